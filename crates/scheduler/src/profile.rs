//! The plugins of one scheduler, with their weights and arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};

use crate::{Plugin, PluginSet};

/// How NodeResourcesFit scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FitStrategy {
    /// More is left, the better.
    LeastAllocated,
    /// Less is left, the better.
    MostAllocated,
    /// By points of utilization (percent) and score (0 to 10).
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// Which constraints PodTopologySpread has for pods without any.
#[derive(Clone, Debug, PartialEq)]
pub enum SpreadDefaults {
    /// Zones and nodes, softly; also nodes without a zone.
    System,
    /// These.
    List(Vec<TopologySpreadConstraint>),
}

/// A resource in a score, and how much it counts.
pub type WeightedResource = (String, i64);

/// The plugins of one scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// `spec.schedulerName` of its pods.
    pub scheduler_name: String,
    /// Plugins that filter; asked in their order, the first refusal of a node counts.
    pub filters: PluginSet,
    /// Plugins that score, with their weights.
    pub weights: BTreeMap<Plugin, i64>,
    /// Whether SchedulingGates holds pods back.
    pub gates: bool,
    /// Whether DefaultPreemption looks for victims.
    pub preemption: bool,
    /// NodeResourcesFit: how it scores.
    pub fit_strategy: FitStrategy,
    /// NodeResourcesFit: what it scores.
    pub fit_resources: Vec<WeightedResource>,
    /// NodeResourcesFit: extended resources that it leaves alone.
    pub ignored_resources: Vec<String>,
    /// NodeResourcesFit: the same by the part of their name before the slash.
    pub ignored_groups: Vec<String>,
    /// NodeResourcesBalancedAllocation: what it scores.
    pub balanced_resources: Vec<WeightedResource>,
    /// PodTopologySpread: for pods without constraints.
    pub spread_defaults: SpreadDefaults,
    /// InterPodAffinity: how much the required affinity of a pod that is there counts in scores.
    pub hard_pod_affinity_weight: i64,
    /// InterPodAffinity: preferences of pods that are there don't count for pods without preferences.
    pub ignore_preferred_of_existing: bool,
    /// NodeAffinity: required and preferred for every pod.
    pub added_affinity: Option<NodeAffinity>,
    /// VolumeBinding: how long volumes may take to be bound.
    pub bind_timeout: Duration,
}

/// Which filters run by default.
pub const DEFAULT_FILTERS: [Plugin; 13] = [
    Plugin::NodeUnschedulable,
    Plugin::NodeName,
    Plugin::TaintToleration,
    Plugin::NodeAffinity,
    Plugin::NodeDeclaredFeatures,
    Plugin::NodePorts,
    Plugin::NodeResourcesFit,
    Plugin::VolumeRestrictions,
    Plugin::NodeVolumeLimits,
    Plugin::VolumeBinding,
    Plugin::VolumeZone,
    Plugin::PodTopologySpread,
    Plugin::InterPodAffinity,
];

/// Which scores count by default, and how much (apis/config/v1/default_plugins.go).
pub const DEFAULT_WEIGHTS: [(Plugin, i64); 7] = [
    (Plugin::TaintToleration, 3),
    (Plugin::NodeAffinity, 2),
    (Plugin::NodeResourcesFit, 1),
    (Plugin::PodTopologySpread, 2),
    (Plugin::InterPodAffinity, 2),
    (Plugin::NodeResourcesBalancedAllocation, 1),
    (Plugin::ImageLocality, 1),
];

/// Name of the scheduler that pods get when they name none.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

fn cpu_and_memory() -> Vec<WeightedResource> {
    ["cpu", "memory"].map(|name| (name.to_owned(), 1)).into()
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            scheduler_name: DEFAULT_SCHEDULER_NAME.to_owned(),
            filters: DEFAULT_FILTERS.into_iter().collect(),
            weights: DEFAULT_WEIGHTS.into(),
            gates: true,
            preemption: true,
            fit_strategy: FitStrategy::LeastAllocated,
            fit_resources: cpu_and_memory(),
            ignored_resources: Vec::new(),
            ignored_groups: Vec::new(),
            balanced_resources: cpu_and_memory(),
            spread_defaults: SpreadDefaults::System,
            hard_pod_affinity_weight: 1,
            ignore_preferred_of_existing: false,
            added_affinity: None,
            bind_timeout: Duration::from_secs(600),
        }
    }
}

impl Profile {
    /// The default plugins under another name.
    #[must_use]
    pub fn named(scheduler_name: &str) -> Self {
        Self { scheduler_name: scheduler_name.to_owned(), ..Self::default() }
    }
    /// How much a score counts; 0 for not at all.
    #[must_use]
    pub fn weight(&self, plugin: Plugin) -> i64 {
        self.weights.get(&plugin).copied().unwrap_or(0)
    }
}
