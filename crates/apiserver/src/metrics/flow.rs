//! Who was given a seat, who waits for one, and who was sent away.
//!
//! Upstream: `k8s.io/apiserver/pkg/util/flowcontrol/metrics`.

use std::collections::BTreeMap;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Bounds;
use crate::flow::Class;
use crate::flow::seats::LevelConfig;

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

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LevelLabels {
    priority_level: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WaitLabels {
    execute: bool,
    flow_schema: String,
    priority_level: String,
}

const WAIT_SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// Metrics of the seats.
pub(crate) struct FlowMetrics {
    dispatched: Family<ClassLabels, Counter>,
    rejected: Family<RejectedLabels, Counter>,
    executing: Family<ClassLabels, Gauge>,
    waiting: Family<ClassLabels, Gauge>,
    waits: Family<WaitLabels, Histogram, Bounds>,
    nominal: Family<LevelLabels, Gauge>,
    lower: Family<LevelLabels, Gauge>,
    upper: Family<LevelLabels, Gauge>,
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
    pub(super) fn new() -> Self {
        Self {
            dispatched: Family::default(),
            rejected: Family::default(),
            executing: Family::default(),
            waiting: Family::default(),
            waits: Family::new_with_constructor(Bounds(&WAIT_SECONDS)),
            nominal: Family::default(),
            lower: Family::default(),
            upper: Family::default(),
        }
    }

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
        // Every request takes one.
        registry.register(
            "apiserver_flowcontrol_current_executing_seats",
            "Number of seats that are taken now",
            self.executing.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "How long requests waited for a seat, and whether they got one",
            self.waits.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_nominal_limit_seats",
            "Number of seats that a priority level has by its share",
            self.nominal.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_lower_limit_seats",
            "Number of seats of a priority level that no other one borrows",
            self.lower.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_upper_limit_seats",
            "Number of seats that a priority level uses at the most, its own and borrowed ones",
            self.upper.clone(),
        );
    }

    /// The levels have become these.
    pub(crate) fn levels(&self, levels: &BTreeMap<String, LevelConfig>) {
        for family in [&self.nominal, &self.lower, &self.upper] {
            family.clear();
        }
        for (name, level) in levels.iter().filter(|(_, level)| !level.exempt) {
            let labels = LevelLabels { priority_level: name.clone() };
            let lower = level.nominal.saturating_sub(level.lendable);
            for (family, seats) in [(&self.nominal, level.nominal), (&self.lower, lower), (&self.upper, level.limit)] {
                family.get_or_create(&labels).set(i64::try_from(seats).unwrap_or(i64::MAX));
            }
        }
    }

    /// A request has waited for so long, and has a seat or none.
    fn waited(&self, class: ClassLabels, execute: bool, elapsed_s: f64) {
        let ClassLabels { priority_level, flow_schema } = class;
        let labels = WaitLabels { execute, flow_schema, priority_level };
        self.waits.get_or_create(&labels).observe(elapsed_s.max(0.0));
    }

    /// A request that waited for so long has a seat, as long as what is returned is there.
    pub(crate) fn seated(&self, class: &Class, waited_s: f64) -> Counted {
        let labels = labels(class);
        self.dispatched.get_or_create(&labels).inc();
        let counted = Counted::new(&self.executing, &labels);
        self.waited(labels, true, waited_s);
        counted
    }

    /// A request waits, as long as what is returned is there.
    pub(crate) fn waits(&self, class: &Class) -> Counted {
        Counted::new(&self.waiting, &labels(class))
    }

    /// A request that waited for so long is sent away.
    pub(crate) fn rejected(&self, class: &Class, reason: &'static str, waited_s: f64) {
        self.waited(labels(class), false, waited_s);
        let ClassLabels { priority_level, flow_schema } = labels(class);
        self.rejected.get_or_create(&RejectedLabels { priority_level, flow_schema, reason }).inc();
    }
}
