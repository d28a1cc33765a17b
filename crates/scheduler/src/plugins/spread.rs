//! PodTopologySpread: what a pod's constraints say, with defaults (plugins/podtopologyspread).

use std::sync::Arc;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::profile::SpreadDefaults;
use crate::tables::{PodMatcher, TopologyId, merge_keys};
use crate::{Cluster, PodInfo, Profile};

/// One constraint, read.
#[derive(Clone, Debug)]
pub struct Constraint {
    /// The label whose values are the domains.
    pub topology: TopologyId,
    /// Whether that is the host name.
    pub by_host: bool,
    /// How much domains may differ.
    pub max_skew: i64,
    /// With fewer domains than this, the least count is 0.
    pub min_domains: i64,
    /// Whether nodes are refused, not only scored.
    pub hard: bool,
    /// Pods that count.
    pub matcher: PodMatcher,
    /// Only nodes that match the pod's node affinity count.
    pub honor_affinity: bool,
    /// Only nodes whose taints the pod tolerates count.
    pub honor_taints: bool,
    /// Whether the pod itself counts.
    pub counts_itself: bool,
}

/// The constraints of a pod, and whether nodes need the labels of all of them.
#[derive(Clone, Debug, Default)]
pub struct Constraints {
    /// One by one.
    pub list: Vec<Constraint>,
    /// Nodes without one of the labels don't count.
    pub need_all: bool,
}

/// What upstream spreads by where the pod says nothing (system defaults).
fn system_defaults() -> Vec<TopologySpreadConstraint> {
    [("kubernetes.io/hostname", 3), ("topology.kubernetes.io/zone", 5)]
        .map(|(key, max_skew)| TopologySpreadConstraint {
            topology_key: key.to_owned(),
            max_skew,
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            ..TopologySpreadConstraint::default()
        })
        .into()
}

/// What the default constraints count for a pod: none where it has constraints of its own, or nothing chooses it.
#[must_use]
pub fn default_selector(pod: &PodInfo, profile: &Profile, cluster: &Cluster) -> Option<LabelSelector> {
    let own = pod.spec().topology_spread_constraints.as_deref().unwrap_or_default();
    let none = matches!(&profile.spread_defaults, SpreadDefaults::List(list) if list.is_empty());
    if !own.is_empty() || none {
        return None;
    }
    cluster.objects.default_selector(&pod.pod)
}

/// The constraints of a pod.
#[must_use]
pub fn constraints(
    pod: &PodInfo,
    profile: &Profile,
    default: Option<&LabelSelector>,
    cluster: &mut Cluster,
) -> Constraints {
    let own = pod.spec().topology_spread_constraints.clone().unwrap_or_default();
    let (list, need_all) = match (&profile.spread_defaults, default) {
        _ if !own.is_empty() => (own, true),
        (_, None) => return Constraints::default(),
        (SpreadDefaults::System, Some(_)) => (system_defaults(), false),
        (SpreadDefaults::List(list), Some(_)) => (list.clone(), true),
    };
    let kind = cluster.tables.kind(pod.kind).cloned();
    let list = list
        .iter()
        .map(|c| {
            let mut selector = c.label_selector.clone().or_else(|| default.cloned());
            if let (Some(selector), Some(kind)) = (&mut selector, &kind) {
                merge_keys(selector, c.match_label_keys.as_deref(), "In", &kind.labels);
            }
            let matcher = PodMatcher::in_namespace(pod.namespace(), selector);
            let counts_itself = kind.as_ref().is_some_and(|k: &Arc<_>| matcher.matches(k, &cluster.tables.namespaces));
            Constraint {
                topology: cluster.topology(&c.topology_key),
                by_host: c.topology_key == "kubernetes.io/hostname",
                max_skew: c.max_skew.into(),
                min_domains: c.min_domains.unwrap_or(1).into(),
                hard: c.when_unsatisfiable == "DoNotSchedule",
                matcher,
                honor_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
                honor_taints: c.node_taints_policy.as_deref() == Some("Honor"),
                counts_itself,
            }
        })
        .collect();
    Constraints { list, need_all }
}
