//! The definitions of custom resources, followed while those are watched.
//!
//! A watch shows objects as the definition had them when it began: in its versions, by its conversion. So it ends when another
//! is in force, and the client's next one begins with that; upstream does the same
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver`, `updateCustomResourceDefinition`).
//!
//! ```text
//!   store ──one watch──▶ Followed ──wakes one──▶ a follower, which looks ──another is in force──▶ wakes all
//! ```
//!
//! However many watch a resource, its definition is watched once. Whoever is polled looks into that watch; who is woken for it
//! and goes away instead wakes the next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use carrack_store::{Event, Store, StoreError, Watch, WatchItem};
use serde_json::Value;

use crate::context::definition_key;
use crate::object::at;
use crate::stored;
use carrack_schema::table::ResourceInfo;

/// The definitions that somebody follows.
#[derive(Default)]
pub(crate) struct Definitions {
    by_key: Mutex<BTreeMap<Arc<str>, Arc<Followed>>>,
    /// Numbers their followers.
    next: AtomicU64,
}

/// One of them.
struct Followed {
    key: Arc<str>,
    state: Mutex<State>,
    waiting: Arc<Waiting>,
}

struct State {
    changes: Watch,
    /// Another definition is in force, or none.
    is_over: bool,
}

/// Who waits for a definition's watch to say something.
#[derive(Default)]
struct Waiting(Mutex<BTreeMap<u64, Waker>>);

/// One follower's share of it.
pub(super) struct Defined {
    all: Arc<Definitions>,
    /// There until it goes.
    followed: Option<Arc<Followed>>,
    id: u64,
}

/// Nothing under these locks can be left half done by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let one = lock(&self.0).pop_first();
        if let Some((_, waker)) = one {
            waker.wake();
        }
    }
}

impl Waiting {
    fn wake_all(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        all.into_values().for_each(Waker::wake);
    }
}

impl Followed {
    /// Whether another definition is in force, or none.
    fn is_over(&self) -> bool {
        let waker = Waker::from(Arc::clone(&self.waiting));
        let mut state = lock(&self.state);
        if !state.is_over && self.look(&mut state, &mut Context::from_waker(&waker)) {
            state.is_over = true;
            drop(state);
            self.waiting.wake_all();
            return true;
        }
        state.is_over
    }

    fn look(&self, state: &mut State, cx: &mut Context<'_>) -> bool {
        loop {
            match state.changes.as_mut().poll_next(cx) {
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

impl Definitions {
    /// Follows the definition of a kind from now on; none for built-in kinds, which stay what they are.
    pub(super) fn follow(
        self: &Arc<Self>,
        store: &dyn Store,
        row: &ResourceInfo,
    ) -> Result<Option<Defined>, StoreError> {
        if !row.is_custom {
            return Ok(None);
        }
        let follower = |followed| {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            Some(Defined { all: Arc::clone(self), followed: Some(followed), id })
        };
        let key = definition_key(row);
        let known = lock(&self.by_key).get(&key).cloned();
        // What was before is for those who came before.
        if let Some(followed) = known.filter(|followed| !followed.is_over()) {
            return Ok(follower(followed));
        }
        let changes = store.watch(&key, store.revision())?;
        let state = Mutex::new(State { changes, is_over: false });
        let followed = Arc::new(Followed { key: Arc::clone(&key), state, waiting: Arc::default() });
        let before = lock(&self.by_key).insert(key, Arc::clone(&followed));
        drop(before);
        Ok(follower(followed))
    }
}

impl Defined {
    /// Whether another definition is in force, or none; who asks is woken when that comes to be so.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(followed) = &self.followed else { return true };
        // First, so that whatever is said from now on finds somebody to wake.
        let before = lock(&followed.waiting.0).insert(self.id, cx.waker().clone());
        drop(before);
        followed.is_over()
    }
}

impl Drop for Defined {
    fn drop(&mut self) {
        let Some(followed) = self.followed.take() else { return };
        let waits = lock(&followed.waiting.0).remove(&self.id);
        if waits.is_none() {
            // It was woken, and will not look.
            Arc::clone(&followed.waiting).wake();
        }
        // Under the lock, so that of two who go together one is the last.
        let mut by_key = lock(&self.all.by_key);
        let is_last = Arc::strong_count(&followed) == 2;
        let is_known = by_key.get(&followed.key).is_some_and(|known| Arc::ptr_eq(known, &followed));
        if is_last && is_known {
            by_key.remove(&followed.key);
        }
        drop(followed);
    }
}
