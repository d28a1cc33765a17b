//! That a server says that it is there, whatever else it has to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use carrack_apiserver::serve::Settings;
use carrack_store::{MemStore, Op, Range, Store, StoreFuture, Txn, TxnOutcome, Value, WatchItem, stamp_place};
use futures::StreamExt as _;
use tokio::sync::Notify;

use crate::serve::{Running, within};

/// Where servers say that they are there.
const RECORDS: &str = "/registry/masterleases/";

/// A store of which no event can be removed in any time.
#[derive(Default)]
struct Stuck {
    store: MemStore,
    /// It has been tried.
    tried: Notify,
}

impl carrack_store::Layer for Stuck {
    fn below(&self) -> &dyn Store {
        &self.store
    }
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        if txn.ops.iter().any(|op| matches!(op, Op::Delete(key) if key.starts_with("/registry/events/"))) {
            self.tried.notify_one();
            return Box::pin(std::future::pending());
        }
        self.store.transact(txn)
    }
}

/// Other servers take one for gone that has not said for a while that it is there.
#[tokio::test]
async fn a_server_is_there_while_it_removes_what_has_expired() {
    let stuck = Arc::new(Stuck::default());
    let event = r#"{"apiVersion":"v1","kind":"Event","metadata":{"resourceVersion":"","creationTimestamp":"2020-01-01T00:00:00Z","name":"e","namespace":"default"}}"#;
    let value = Value { bytes: event.into(), stamp_at: stamp_place(event.as_bytes()) };
    let ops = vec![Op::Put("/registry/events/default/e".into(), value)];
    stuck.store.commit(Txn { checks: Vec::new(), ops }).expect("stored");
    let often = Duration::from_millis(10);
    let settings = Settings { housekeeping: often, presence: often, ..Settings::default() };
    let store = Arc::clone(&stuck);
    let _running = Running::start_with(settings, |config| {
        config.store = store;
        config.network.advertise = "10.0.0.1:6443".parse().ok();
    })
    .await;
    within("the removal", stuck.tried.notified()).await;
    let mut told = stuck.watch(RECORDS, stuck.revision()).expect("a watch");
    let says_so = async {
        while let Some(item) = told.next().await {
            if let WatchItem::Events(_) = item.expect("no end") {
                return;
            }
        }
    };
    within("the announcement", says_so).await;
}

/// A store that takes its time with what says that a server is there, and does it all the same when nobody waits for it any more.
struct Slow {
    store: Arc<MemStore>,
    /// Such a write is on its way.
    begun: Notify,
    /// It may come to its end.
    go_on: Arc<Notify>,
    is_slow: AtomicBool,
}

impl carrack_store::Layer for Slow {
    fn below(&self) -> &dyn Store {
        &*self.store
    }
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        let says_so = |op: &Op| matches!(op, Op::Put(key, _) if key.starts_with(RECORDS));
        if !self.is_slow.load(Ordering::Acquire) || !txn.ops.iter().any(says_so) {
            return self.store.transact(txn);
        }
        self.begun.notify_one();
        let (store, go_on) = (Arc::clone(&self.store), Arc::clone(&self.go_on));
        let sent = tokio::spawn(async move {
            go_on.notified().await;
            store.transact(txn).await
        });
        Box::pin(async { sent.await.expect("no panic") })
    }
}

/// What it said last is on its way to the store when it ends, and comes there before it says that it is gone.
#[tokio::test]
async fn a_server_that_ends_does_not_come_back_by_what_it_said_before() {
    let (begun, go_on, is_slow) = (Notify::new(), Arc::new(Notify::new()), AtomicBool::new(false));
    let slow = Arc::new(Slow { store: Arc::default(), begun, go_on: Arc::clone(&go_on), is_slow });
    let store = Arc::clone(&slow);
    let settings = Settings { presence: Duration::from_millis(10), ..Settings::default() };
    let mut running = Running::start_with(settings, |config| {
        config.store = store;
        config.network.advertise = "10.0.0.1:6443".parse().ok();
    })
    .await;
    slow.is_slow.store(true, Ordering::Release);
    within("the announcement", slow.begun.notified()).await;
    drop(running.stop.take());
    // It would give up on the write now, and say that it is gone.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    slow.is_slow.store(false, Ordering::Release);
    go_on.notify_one();
    within("the server's end", running.serving).await.expect("task").expect("serve");
    let range = Range { prefix: RECORDS.to_owned(), after: None, limit: 0, at: None };
    let left = slow.store.range(range).await.expect("readable");
    assert!(left.entries.is_empty(), "{:?}", left.entries);
}
