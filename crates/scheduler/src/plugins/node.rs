//! Plugins about the node itself: its name, whether it is cordoned, its labels and taints.

use carrack_types::placement::{affinity_matches, term_matches, tolerates, untolerated};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Taint;

use crate::{Filter, NodeInfo, PodInfo, Refusal, Score};

const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// `spec.nodeName` of the pod.
pub struct NodeName;
impl Filter for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let wanted = pod.pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        if wanted.is_empty() || node.node.as_ref().is_some_and(|n| n.name() == wanted) {
            Ok(())
        } else {
            Err(Refusal::unresolvable("node(s) didn't match the requested node name"))
        }
    }
}

/// A cordoned node takes only pods that tolerate it.
pub struct NodeUnschedulable;
impl Filter for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let cordoned = node.node.as_ref().and_then(|n| n.spec.as_ref()).and_then(|s| s.unschedulable).unwrap_or(false);
        let taint = Taint { key: UNSCHEDULABLE_TAINT.into(), effect: "NoSchedule".into(), ..Taint::default() };
        let tolerations = pod.pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        if cordoned && !tolerations.iter().any(|t| tolerates(t, &taint)) {
            Err(Refusal::unresolvable("node(s) were unschedulable"))
        } else {
            Ok(())
        }
    }
}

/// Taints of the node and tolerations of the pod.
pub struct TaintToleration;
impl Filter for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let taint = node.node.as_ref().and_then(|n| untolerated(&pod.pod, n, &["NoSchedule", "NoExecute"]));
        taint.map_or(Ok(()), |t| {
            let value = t.value.as_deref().unwrap_or_default();
            Err(Refusal::unresolvable(format!("node(s) had untolerated taint {{{}: {value}}}", t.key)))
        })
    }
}
impl Score for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }
    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> u64 {
        let Some(n) = &node.node else { return 0 };
        if untolerated(&pod.pod, n, &["PreferNoSchedule"]).is_none() { 100 } else { 0 }
    }
    fn weight(&self) -> u64 {
        3
    }
}

/// Node selector and node affinity of the pod.
pub struct NodeAffinity;
impl Filter for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        if node.node.as_ref().is_some_and(|n| affinity_matches(&pod.pod, n)) {
            Ok(())
        } else {
            Err(Refusal::unresolvable("node(s) didn't match Pod's node affinity/selector"))
        }
    }
}
impl Score for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }
    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> u64 {
        let preferred = pod
            .pod
            .spec
            .as_ref()
            .and_then(|s| s.affinity.as_ref())
            .and_then(|a| a.node_affinity.as_ref())
            .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref())
            .unwrap_or_default();
        let weight = |w: i32| u64::try_from(w).unwrap_or(0);
        let all: u64 = preferred.iter().map(|p| weight(p.weight)).sum();
        let held: u64 = preferred
            .iter()
            .filter(|p| node.node.as_ref().is_some_and(|n| term_matches(&p.preference, n)))
            .map(|p| weight(p.weight))
            .sum();
        (held * 100).checked_div(all).unwrap_or(0)
    }
    fn weight(&self) -> u64 {
        2
    }
}
