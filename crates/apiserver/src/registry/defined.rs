//! The definition of a custom resource, followed while that is watched.
//!
//! A watch shows objects as the definition had them when it began: in its versions, by its conversion. So it ends when another
//! is in force, and the client's next one begins with that; upstream does the same
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver`, `updateCustomResourceDefinition`).

use std::sync::Arc;
use std::task::{Context, Poll};

use carrack_store::{Event, Store, StoreError, Watch, WatchItem};
use serde_json::Value;

use crate::context::definition_key;
use crate::object::at;
use crate::stored;
use carrack_schema::table::ResourceInfo;

/// Follows a definition from now on.
pub(super) struct Defined {
    key: Arc<str>,
    changes: Watch,
}

impl Defined {
    /// None for built-in kinds, which stay what they are.
    pub(super) fn follow(store: &dyn Store, row: &ResourceInfo) -> Result<Option<Defined>, StoreError> {
        if !row.is_custom {
            return Ok(None);
        }
        let key = definition_key(row);
        let changes = store.watch(&key, store.revision())?;
        Ok(Some(Defined { key, changes }))
    }

    /// Whether another definition is in force, or none; who asks is woken when that comes to be so.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            match self.changes.as_mut().poll_next(cx) {
                Poll::Pending => return false,
                Poll::Ready(Some(Ok(WatchItem::Progress(_)))) => {}
                Poll::Ready(Some(Ok(WatchItem::Events(events)))) => {
                    if events.iter().any(|event| self.concerns(event)) {
                        return true;
                    }
                }
                // What it is now is not known; the client asks again.
                Poll::Ready(Some(Err(_)) | None) => return true,
            }
        }
    }

    fn concerns(&self, event: &Event) -> bool {
        let said = |entry: &Arc<carrack_store::Entry>| {
            let object = stored::parse(entry);
            let of = |path: &[&str]| at(&object, path).cloned().unwrap_or(Value::Null);
            (of(&["spec"]), of(&["status", "acceptedNames"]))
        };
        match (&event.previous, &event.current) {
            (Some(entry), None) => entry.key == self.key,
            (before, Some(now)) => now.key == self.key && before.as_ref().map(said) != Some(said(now)),
            (None, None) => false,
        }
    }
}
