//! Plugins about the node itself: its name, whether it is cordoned, its labels and taints, the features that it declares.

use carrack_types::placement::{affinity_matches, selector_matches, term_matches, tolerates, untolerated};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{NodeAffinity, PreferredSchedulingTerm, Taint, Toleration};

use crate::{NodeInfo, Plugin, PodInfo, Probe, Profile, Refusal};

const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// What is so of a pod and a node until the node's object changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The first plugin that refuses, and why. It is kept for every node by every class, so it is no [`Refusal`] yet.
    pub refused: Option<(Plugin, &'static str)>,
    /// Whether the node matches the pod's selector and required affinity.
    pub matches: bool,
    /// Whether the pod tolerates the taints that keep pods away.
    pub tolerated: bool,
    /// Preferred taints that the pod does not tolerate: fewer are better.
    pub intolerable: i64,
    /// Weights of the preferred terms that the node matches: more is better.
    pub preferred: i64,
}

impl Facts {
    /// Why the node refuses the pod, if it does.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.refused.map(|(plugin, reason)| Refusal::unresolvable(plugin, reason))
    }
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
pub fn facts(pod: &PodInfo, node: &NodeInfo, profile: &Profile, probe: &mut Probe) -> Facts {
    let Some(object) = &node.node else { return Facts::default() };
    let wanted = pod.node();
    let own = pod.spec().affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let added = profile.added_affinity.as_ref();
    let enforced = added
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
        .is_none_or(|selector| selector_matches(selector, object));
    let (mut tolerated, mut matches) = (None, None);
    let tolerates_all = || untolerated(Some(pod.spec()), object, &["NoSchedule", "NoExecute"]).is_none();
    let matches_own = || affinity_matches(Some(pod.spec()), object);
    let mut refused = None;
    let mut ask = |plugin: Plugin, why: &mut dyn FnMut() -> Option<&'static str>| {
        if refused.is_none() && profile.filters.has(plugin) {
            let mut said = None;
            let asked = || {
                said = why();
                said.map_or(Ok(()), |reason| Err(Refusal::unresolvable(plugin, reason)))
            };
            if probe.filter(plugin, asked).is_err() {
                refused = said.map(|reason| (plugin, reason));
            }
        }
    };
    ask(Plugin::NodeUnschedulable, &mut || kept_by_cordon(pod, node).then_some("node(s) were unschedulable"));
    ask(Plugin::NodeName, &mut || {
        let named = wanted.is_empty() || object.name() == wanted;
        (!named).then_some("node(s) didn't match the requested node name")
    });
    ask(Plugin::TaintToleration, &mut || {
        // Which taint it is, who may read nodes is told by `carrack explain` (kubernetes #134740).
        (!*tolerated.insert(tolerates_all())).then_some("node(s) had untolerated taint(s)")
    });
    ask(Plugin::NodeAffinity, &mut || {
        if !enforced {
            return Some("node(s) didn't match scheduler-enforced node affinity");
        }
        (!*matches.insert(matches_own())).then_some("node(s) didn't match Pod's node affinity/selector")
    });
    // Most pods need none, and have nothing to ask.
    if !pod.needs.is_empty() {
        ask(Plugin::NodeDeclaredFeatures, &mut || {
            let declared = node.declared_features();
            let all = pod.needs.iter().all(|needed| declared.iter().any(|feature| feature == needed));
            (!all).then_some("node(s) didn't match Pod's required features")
        });
    }
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
        refused,
        matches: matches.unwrap_or_else(matches_own),
        tolerated: tolerated.unwrap_or_else(tolerates_all),
        intolerable: i64::try_from(intolerable).unwrap_or(i64::MAX),
        preferred,
    }
}
