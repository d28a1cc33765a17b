//! Events are forgotten after a while, so that they cannot fill the store: after an hour, unless the server is told otherwise
//! (upstream's `--event-ttl`). There each write has a lease of that length, and none where it is 0; here they are looked at now
//! and then, and go by when they happened last.

use std::sync::Arc;
use std::time::Duration;

use carrack_store::{Check, Entry, Op, Range, Store, StoreError, Txn, TxnOutcome};
use futures::future::join_all;
use serde_json::Value;

use crate::keys;
use crate::object::{Object, meta_str, str_at};
use crate::server::ApiServer;
use crate::status::Status;
use crate::stored;

/// How long an event is kept after it happened last, unless the server is told otherwise.
pub(crate) const EVENT_TTL: Duration = Duration::from_secs(3600);
/// How many entries are looked at at a time, and removed.
const BATCH: usize = 500;

impl ApiServer {
    /// Removes events that are past their time. The shell calls this now and then.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn expire_events(&self) -> Result<usize, Status> {
        let store = &*self.inner.store;
        let ttl = self.inner.event_ttl;
        if ttl.is_zero() {
            return Ok(0);
        }
        let ttl_s = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let now_s = self.inner.env.now().as_second();
        let prefix = keys::of("", "events", None);
        let (mut after, mut removed) = (None, 0);
        loop {
            let page = store.range(Range { prefix: prefix.clone(), after, limit: BATCH, at: None }).await?;
            after = page.entries.last().map(|entry| entry.key.to_string());
            let is_old = |entry: &&Arc<Entry>| now_s.saturating_sub(last_seen_s(&stored::parse(entry))) > ttl_s;
            // Side by side, so that they share the store's flushes: one after the other, more might come than go.
            let going: Vec<_> = page.entries.iter().filter(is_old).map(|entry| remove(store, entry)).collect();
            for is_removed in join_all(going).await {
                removed += usize::from(is_removed?);
            }
            if page.remaining == 0 {
                return Ok(removed);
            }
        }
    }
}

/// Removes an event. One that was counted up meanwhile stays.
async fn remove(store: &dyn Store, entry: &Entry) -> Result<bool, StoreError> {
    let checks = vec![Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)];
    let ops = vec![Op::Delete(Arc::clone(&entry.key))];
    Ok(matches!(store.transact(Txn { checks, ops }).await?, TxnOutcome::Committed { .. }))
}

/// When an event happened last, in seconds since the epoch.
fn last_seen_s(event: &Object) -> i64 {
    let times = [
        meta_str(event, "creationTimestamp"),
        str_at(event, &["firstTimestamp"]),
        str_at(event, &["lastTimestamp"]),
        str_at(event, &["eventTime"]),
        event.get("series").and_then(|series| series.get("lastObservedTime")).and_then(Value::as_str).unwrap_or(""),
    ];
    times
        .iter()
        .filter_map(|text| text.parse::<jiff::Timestamp>().ok())
        .map(jiff::Timestamp::as_second)
        .max()
        .unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use carrack_store::{MemStore, StoreFuture};
    use serde_json::json;

    use super::*;
    use crate::env::tests::Still;
    use crate::server::Config;

    /// A store that takes its time to write, and counts what it has been asked to.
    #[derive(Default)]
    struct Slow {
        store: MemStore,
        asked: AtomicUsize,
    }

    impl carrack_store::Layer for Slow {
        fn below(&self) -> &dyn Store {
            &self.store
        }
        fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                let mut was_asked = false;
                let once = |_: &mut Context<'_>| {
                    if std::mem::replace(&mut was_asked, true) { Poll::Ready(()) } else { Poll::Pending }
                };
                std::future::poll_fn(once).await;
                self.store.transact(txn).await
            })
        }
    }

    #[test]
    fn many_go_at_a_time() {
        const MANY: usize = 20;
        let slow = Arc::new(Slow::default());
        for number in 0..MANY {
            let name = format!("e{number}");
            let event = json!({"metadata": {"name": name, "creationTimestamp": "1960-01-01T00:00:00Z"}});
            let value = stored::encode(event.as_object().expect("an object"), "v1", "Event");
            let op = Op::Put((keys::of("", "events", Some("default")) + &name).into(), value);
            slow.store.commit(Txn { checks: Vec::new(), ops: vec![op] }).expect("stored");
        }
        let server = ApiServer::new(Config::new(slow.clone(), Arc::new(Still)));
        let mut cx = Context::from_waker(Waker::noop());
        let mut expiring = pin!(server.expire_events());
        assert!(expiring.as_mut().poll(&mut cx).is_pending());
        assert_eq!(slow.asked.load(Ordering::Relaxed), MANY, "none waits for another");
        assert!(matches!(expiring.as_mut().poll(&mut cx), Poll::Ready(Ok(MANY))));
    }
}
