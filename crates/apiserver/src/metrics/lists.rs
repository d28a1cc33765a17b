//! What lists cost: how many objects are read for them, how many of those are looked at, and how many are told.
//!
//! Upstream: `k8s.io/apiserver/pkg/storage/etcd3/metrics`. There is no other cache than the store here, so each list is counted
//! as one from storage.

use carrack_schema::table::ResourceInfo;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ListLabels {
    group: String,
    resource: String,
}

/// What one list cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Objects that were read.
    pub fetched: usize,
    /// Those of them that were looked at.
    pub evaluated: usize,
    /// Those that were told.
    pub returned: usize,
}

/// Metrics of lists.
#[derive(Default)]
pub(crate) struct ListMetrics {
    lists: Family<ListLabels, Counter>,
    fetched: Family<ListLabels, Counter>,
    evaluated: Family<ListLabels, Counter>,
    returned: Family<ListLabels, Counter>,
}

impl ListMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        for (name, help, family) in [
            ("apiserver_storage_list", "Number of lists", &self.lists),
            ("apiserver_storage_list_fetched_objects", "Number of objects that were read for lists", &self.fetched),
            (
                "apiserver_storage_list_evaluated_objects",
                "Number of objects that were looked at for lists",
                &self.evaluated,
            ),
            ("apiserver_storage_list_returned_objects", "Number of objects that lists told of", &self.returned),
        ] {
            registry.register(name, help, family.clone());
        }
    }

    /// A resource was listed.
    pub(crate) fn listed(&self, row: &ResourceInfo, cost: Cost) {
        let labels = ListLabels { group: row.group.to_string(), resource: row.plural.to_string() };
        self.lists.get_or_create(&labels).inc();
        self.fetched.get_or_create(&labels).inc_by(cost.fetched as u64);
        self.evaluated.get_or_create(&labels).inc_by(cost.evaluated as u64);
        self.returned.get_or_create(&labels).inc_by(cost.returned as u64);
    }
}
