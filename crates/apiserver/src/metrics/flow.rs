//! Who was given a seat, who waits for one, and who was sent away.
//!
//! Upstream: `k8s.io/apiserver/pkg/util/flowcontrol/metrics`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::flow::Class;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClassLabels {
    priority_level: String,
    flow_schema: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RejectedLabels {
    priority_level: String,
    flow_schema: String,
    reason: &'static str,
}

/// Metrics of the seats.
#[derive(Default)]
pub(crate) struct FlowMetrics {
    dispatched: Family<ClassLabels, Counter>,
    rejected: Family<RejectedLabels, Counter>,
    executing: Family<ClassLabels, Gauge>,
    waiting: Family<ClassLabels, Gauge>,
}

/// Counted as long as it is there.
pub(crate) struct Counted(Gauge);

impl Counted {
    fn new(family: &Family<ClassLabels, Gauge>, labels: &ClassLabels) -> Self {
        let gauge = family.get_or_create_owned(labels);
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn labels(class: &Class) -> ClassLabels {
    ClassLabels { priority_level: class.level.clone(), flow_schema: class.schema.clone() }
}

impl FlowMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_flowcontrol_dispatched_requests",
            "Number of requests that were given a seat",
            self.dispatched.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_rejected_requests",
            "Number of requests that were sent away for want of a seat",
            self.rejected.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_current_executing_requests",
            "Number of requests that have a seat now",
            self.executing.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_current_inqueue_requests",
            "Number of requests that wait for a seat now",
            self.waiting.clone(),
        );
    }

    /// A request has a seat, as long as what is returned is there.
    pub(crate) fn seated(&self, class: &Class) -> Counted {
        let labels = labels(class);
        self.dispatched.get_or_create(&labels).inc();
        Counted::new(&self.executing, &labels)
    }

    /// A request waits, as long as what is returned is there.
    pub(crate) fn waits(&self, class: &Class) -> Counted {
        Counted::new(&self.waiting, &labels(class))
    }

    /// A request is sent away.
    pub(crate) fn rejected(&self, class: &Class, reason: &'static str) {
        let ClassLabels { priority_level, flow_schema } = labels(class);
        self.rejected.get_or_create(&RejectedLabels { priority_level, flow_schema, reason }).inc();
    }
}
