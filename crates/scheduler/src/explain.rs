//! Why a pod is pending, node by node, and what would have to change.

use std::sync::Arc;

use carrack_types::placement::untolerated;
use serde::Serialize;

use crate::amounts::CPU;

use crate::{Decider, NodeInfo, Plugin, PodInfo, Question, Refusal};

/// What one node says, and what would change its mind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplained {
    /// Its name.
    pub node: String,
    /// Whether it takes the pod.
    pub fits: bool,
    /// Why not, in the scheduler's words.
    pub reasons: Vec<String>,
    /// What would have to change.
    pub changes: Vec<String>,
}

/// Everything about a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// What keeps it from being looked at at all.
    pub held_by: Vec<String>,
    /// What its status says of why it has no node: extenders may have refused what its plugins accept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Node by node.
    pub nodes: Vec<NodeExplained>,
    /// Who would have to go, on the best node for that, as `node: namespace/name, …`.
    pub preemption: Option<String>,
}

/// Explains.
pub fn explain(decider: &mut Decider, question: Question<'_>) -> Explained {
    let pod = question.pod;
    let gates = pod.spec().scheduling_gates.as_deref().unwrap_or_default();
    let held_by = gates.iter().map(|g| format!("scheduling gate {}: somebody has to remove it", g.name)).collect();
    let answers = decider.answers(question);
    let nodes: Vec<NodeExplained> = answers
        .into_iter()
        .map(|answer| {
            let node = decider.cluster.named(&answer.node);
            let mut changes: Vec<String> = node
                .iter()
                .flat_map(|node| answer.refusals.iter().flat_map(|r| change(r, pod, node, decider)))
                .collect();
            changes.dedup();
            NodeExplained {
                fits: answer.refusals.is_empty(),
                reasons: answer.refusals.iter().flat_map(|r| r.reasons.clone()).collect(),
                changes,
                node: answer.node,
            }
        })
        .collect();
    let preemption = (!nodes.iter().any(|n| n.fits))
        .then(|| decider.candidates(question, 1).ok()?.into_iter().next())
        .flatten()
        .and_then(|best| {
            let node = decider.cluster.node(best.node)?.name.clone();
            let victims: Vec<String> = best
                .victims
                .iter()
                .map(|v| format!("{}/{} (priority {})", v.namespace(), v.name(), v.priority))
                .collect();
            Some(format!("{node}: {}", victims.join(", ")))
        });
    let said = pod.pod.unplaced.as_ref().map(|why| why.message.clone());
    Explained { held_by, said, nodes, preemption }
}

fn amount(resource: u32, value: i128) -> String {
    if resource == CPU { format!("{value}m") } else { value.to_string() }
}

/// What would change a node's mind about one refusal.
fn change(refusal: &Refusal, pod: &Arc<PodInfo>, node: &NodeInfo, decider: &Decider) -> Vec<String> {
    let one = |text: &str| vec![text.to_owned()];
    match refusal.plugin {
        Plugin::NodeUnschedulable => vec![format!("kubectl uncordon {}", node.name)],
        Plugin::NodeName => one("spec.nodeName names another node"),
        Plugin::TaintToleration => {
            let taint = node.node.as_ref().and_then(|n| untolerated(Some(pod.spec()), n, &["NoSchedule", "NoExecute"]));
            taint.map_or_else(Vec::new, |t| {
                let value = t.value.as_deref().map(|v| format!("={v}")).unwrap_or_default();
                vec![format!("tolerate {}{value}:{}, or take the taint off", t.key, t.effect)]
            })
        }
        Plugin::NodeAffinity => one("labels of the node that match the pod's nodeSelector and node affinity"),
        Plugin::NodeDeclaredFeatures => vec![format!("a kubelet there that declares {}", pod.needs.join(" and "))],
        Plugin::NodePorts => {
            let taken = node.pods.values().filter(|seat| {
                seat.info.host_ports.iter().any(|theirs| pod.host_ports.iter().any(|p| p.clashes(theirs)))
            });
            taken.map(|s| format!("{}/{} gives back its host port", s.info.namespace(), s.info.name())).collect()
        }
        Plugin::NodeResourcesFit => {
            let tables = &decider.cluster.tables;
            let mut texts: Vec<String> = pod
                .requests
                .iter()
                .filter_map(|(id, wanted)| {
                    let whole = i128::from(node.allocatable.get(id));
                    let (free, wanted) = (whole - node.requested.get(id), i128::from(wanted));
                    let name = tables.resources.name(id);
                    (wanted > free).then(|| {
                        let [w, f, a, s] = [wanted, free.max(0), whole, wanted - free].map(|v| amount(id, v));
                        format!("{s} more of {name}: {w} asked for, {f} free of {a}")
                    })
                })
                .collect();
            if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) >= node.most_pods {
                texts.push(format!("fewer pods: it has {} and takes {}", node.pods.len(), node.most_pods));
            }
            texts
        }
        Plugin::VolumeRestrictions => one("the pod that uses the same disk or claim ends"),
        Plugin::NodeVolumeLimits if refusal.resolvable => one("fewer volumes attached to the node"),
        Plugin::NodeVolumeLimits => one("the volumes' CSI driver on the node"),
        Plugin::VolumeBinding => one("a volume that suits the claim, reachable from the node"),
        Plugin::VolumeZone => one("a volume in the node's zone"),
        Plugin::PodTopologySpread => one("more pods elsewhere, a larger maxSkew, or the node's topology label"),
        Plugin::InterPodAffinity => one("other pods there, or other affinity terms"),
        Plugin::DynamicResources => one("a scheduler with the plugin DynamicResources, named by spec.schedulerName"),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
