//! Plugins about the node itself: its name, whether it is cordoned, its labels and taints.

use carrack_types::placement::{affinity_matches, selector_matches, term_matches, tolerates, untolerated};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{NodeAffinity, PreferredSchedulingTerm, Taint, Toleration};

use crate::{NodeInfo, Plugin, PodInfo, Profile, Refusal};

const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// What is so of a pod and a node until the node's object changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The first plugin that refuses.
    pub refusal: Option<Refusal>,
    /// Whether the node matches the pod's selector and required affinity.
    pub matches: bool,
    /// Whether the pod tolerates the taints that keep pods away.
    pub tolerated: bool,
    /// Preferred taints that the pod does not tolerate: fewer are better.
    pub intolerable: i64,
    /// Weights of the preferred terms that the node matches: more is better.
    pub preferred: i64,
}

fn tolerations(pod: &PodInfo) -> &[Toleration] {
    pod.spec().tolerations.as_deref().unwrap_or_default()
}

/// Whether a cordon keeps the pod away.
fn kept_by_cordon(pod: &PodInfo, node: &NodeInfo) -> bool {
    let taint = Taint { key: UNSCHEDULABLE_TAINT.into(), effect: "NoSchedule".into(), ..Taint::default() };
    node.is_cordoned() && !tolerations(pod).iter().any(|t| tolerates(t, &taint))
}

fn preferred_terms(affinity: Option<&NodeAffinity>) -> &[PreferredSchedulingTerm] {
    affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref()).unwrap_or_default()
}

/// Asks the plugins that look at the node's object, in their order.
#[must_use]
pub fn facts(pod: &PodInfo, node: &NodeInfo, profile: &Profile) -> Facts {
    let Some(object) = &node.node else { return Facts::default() };
    let wanted = pod.node();
    let named = wanted.is_empty() || object.name() == wanted;
    let matches = affinity_matches(Some(pod.spec()), object);
    let untolerated = untolerated(Some(pod.spec()), object, &["NoSchedule", "NoExecute"]);
    let own = pod.spec().affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let added = profile.added_affinity.as_ref();
    let enforced = added
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
        .is_none_or(|selector| selector_matches(selector, object));
    let on = |plugin| profile.filters.has(plugin);
    let refuse = |plugin, reason: &str| Some(Refusal::unresolvable(plugin, reason));
    let refusal = if on(Plugin::NodeUnschedulable) && kept_by_cordon(pod, node) {
        refuse(Plugin::NodeUnschedulable, "node(s) were unschedulable")
    } else if on(Plugin::NodeName) && !named {
        refuse(Plugin::NodeName, "node(s) didn't match the requested node name")
    } else if untolerated.is_some() && on(Plugin::TaintToleration) {
        // Which taint it is, who may read nodes is told by `carrack explain` (kubernetes #134740).
        refuse(Plugin::TaintToleration, "node(s) had untolerated taint(s)")
    } else if on(Plugin::NodeAffinity) && !enforced {
        refuse(Plugin::NodeAffinity, "node(s) didn't match scheduler-enforced node affinity")
    } else if on(Plugin::NodeAffinity) && !matches {
        refuse(Plugin::NodeAffinity, "node(s) didn't match Pod's node affinity/selector")
    } else {
        None
    };
    let soft: Vec<&Toleration> = tolerations(pod)
        .iter()
        .filter(|t| matches!(t.effect.as_deref().unwrap_or_default(), "" | "PreferNoSchedule"))
        .collect();
    let intolerable = node
        .taints()
        .iter()
        .filter(|taint| taint.effect == "PreferNoSchedule" && !soft.iter().any(|t| tolerates(t, taint)))
        .count();
    let preferred = preferred_terms(own)
        .iter()
        .chain(preferred_terms(added))
        .filter(|p| p.weight > 0 && term_matches(&p.preference, object))
        .map(|p| i64::from(p.weight))
        .sum();
    Facts {
        refusal,
        matches,
        tolerated: untolerated.is_none(),
        intolerable: i64::try_from(intolerable).unwrap_or(i64::MAX),
        preferred,
    }
}
