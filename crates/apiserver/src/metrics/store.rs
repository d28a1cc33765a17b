//! The store, timed, by the resources whose objects are read and written.

use std::sync::Arc;

use carrack_store::{Layer, Op, Range, RangePage, Store, StoreError, StoreFuture, Txn, TxnOutcome};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Bounds;
use super::answered::SECONDS;
use crate::env::Env;
use crate::keys::Places;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
    group: String,
    resource: String,
}

/// Metrics of the store. Upstream's names speak of etcd, whatever the store is.
#[derive(Clone)]
pub(crate) struct StoreMetrics {
    durations: Family<OperationLabels, Histogram, Bounds>,
    requests: Family<OperationLabels, Counter>,
    errors: Family<OperationLabels, Counter>,
    places: Arc<Places>,
}

impl StoreMetrics {
    pub(super) fn new() -> Self {
        Self {
            durations: Family::new_with_constructor(Bounds(&SECONDS)),
            requests: Family::default(),
            errors: Family::default(),
            places: Arc::new(Places::new()),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "etcd_request_duration_seconds",
            "Latency of the store in seconds for each operation and resource",
            self.durations.clone(),
        );
        registry.register(
            "etcd_requests",
            "Requests to the store for each operation and resource",
            self.requests.clone(),
        );
        registry.register("etcd_request_errors", "Failed requests to the store", self.errors.clone());
    }

    fn note(&self, operation: &'static str, key: &str, elapsed_s: f64, ok: bool) {
        let (group, resource) = self.places.resource(key);
        let labels = OperationLabels { operation, group: group.to_owned(), resource: resource.to_owned() };
        self.durations.get_or_create(&labels).observe(elapsed_s.max(0.0));
        self.requests.get_or_create(&labels).inc();
        if !ok {
            self.errors.get_or_create(&labels).inc();
        }
    }
}

/// A store whose writes are timed, and reads of many keys; a read of one is a look into a map.
pub(crate) struct Metered {
    store: Arc<dyn Store>,
    env: Arc<dyn Env>,
    metrics: StoreMetrics,
}

impl Metered {
    pub(crate) fn new(store: Arc<dyn Store>, env: Arc<dyn Env>, metrics: StoreMetrics) -> Self {
        Self { store, env, metrics }
    }

    async fn timed<T>(&self, operation: &'static str, key: &str, work: StoreFuture<'_, T>) -> Result<T, StoreError> {
        let began = self.env.now();
        let outcome = work.await;
        let elapsed_s = self.env.now().duration_since(began).as_secs_f64();
        self.metrics.note(operation, key, elapsed_s, outcome.is_ok());
        outcome
    }
}

impl Layer for Metered {
    fn below(&self) -> &dyn Store {
        &*self.store
    }

    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        let (operation, key) = match txn.ops.first() {
            Some(Op::Put(key, _)) => {
                let new = txn.checks.iter().any(|check| matches!(check, carrack_store::Check::Absent(k) if k == key));
                (if new { "create" } else { "update" }, Arc::clone(key))
            }
            Some(Op::Delete(key)) => ("delete", Arc::clone(key)),
            None => ("check", "".into()),
        };
        Box::pin(async move { self.timed(operation, &key, self.store.transact(txn)).await })
    }
    fn range(&self, range: Range) -> StoreFuture<'_, RangePage> {
        let prefix = range.prefix.clone();
        Box::pin(async move { self.timed("list", &prefix, self.store.range(range)).await })
    }
}
