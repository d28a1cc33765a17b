//! That a server says that it is there, whatever else it has to do.

use std::sync::Arc;
use std::time::Duration;

use carrack_apiserver::serve::Settings;
use carrack_store::{MemStore, Op, Store, StoreFuture, Txn, TxnOutcome, Value, WatchItem, stamp_place};
use futures::StreamExt as _;
use tokio::sync::Notify;

use crate::serve::{Running, within};

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
    let mut told = stuck.watch("/registry/masterleases/", stuck.revision()).expect("a watch");
    let says_so = async {
        while let Some(item) = told.next().await {
            if let WatchItem::Events(_) = item.expect("no end") {
                return;
            }
        }
    };
    within("the announcement", says_so).await;
}
