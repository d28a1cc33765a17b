//! What changes in a cluster, and whether it may help a pod that some plugins refused: upstream's queueing hints
//! (`EventsToRegister` of each plugin).

use std::sync::Arc;

use crate::cluster::{NodeChange, ObjectName};
use crate::plugins::node::facts;
use crate::tables::TermKind;
use crate::{Cluster, Plugin, PluginSet, PodInfo, Profile};

/// Something that changed.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node, by name.
    Node(Arc<str>, NodeChange),
    /// A node went: fewer domains to spread over.
    NodeGone,
    /// A pod has a node now, or other labels there.
    PodPlaced(Arc<PodInfo>),
    /// A pod takes nothing any more.
    PodGone(Arc<PodInfo>),
    /// A claim.
    Claim(ObjectName),
    /// A volume or a storage class.
    Volume,
    /// What a CSI driver says about itself, a node or its room.
    Csi,
    /// Labels of a namespace.
    Namespace,
    /// What an extender knows may have changed.
    Extender,
}

impl Event {
    /// Plugins that want to hear of it. Nobody knows what an extender wants to hear.
    #[must_use]
    pub fn plugins(&self) -> PluginSet {
        use Plugin::*;
        let list: &[Plugin] = match self {
            Self::Node(_, change) if change.added => return PluginSet::EVERY,
            Self::Node(..) => &[
                NodeUnschedulable,
                TaintToleration,
                NodeAffinity,
                NodePorts,
                NodeResourcesFit,
                VolumeBinding,
                VolumeZone,
                PodTopologySpread,
                InterPodAffinity,
                Extender,
            ],
            Self::NodeGone => &[PodTopologySpread, Extender],
            Self::PodPlaced(_) => &[PodTopologySpread, InterPodAffinity, Extender],
            Self::PodGone(_) => &[
                NodePorts,
                NodeResourcesFit,
                VolumeRestrictions,
                NodeVolumeLimits,
                PodTopologySpread,
                InterPodAffinity,
                Extender,
            ],
            Self::Claim(_) => &[VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone, Extender],
            Self::Volume => &[NodeVolumeLimits, VolumeBinding, VolumeZone, Extender],
            Self::Csi => &[NodeVolumeLimits, VolumeBinding, Extender],
            Self::Namespace => &[InterPodAffinity, Extender],
            Self::Extender => &[Extender],
        };
        list.iter().copied().collect()
    }
}

/// Whether an event may help a pod that these plugins refused.
#[must_use]
pub fn helps(refused_by: PluginSet, pod: &PodInfo, event: &Event, cluster: &Cluster) -> bool {
    let heard_by = event.plugins();
    refused_by.iter().filter(|plugin| heard_by.has(*plugin)).any(|plugin| hint(plugin, pod, event, cluster))
}

fn hint(plugin: Plugin, pod: &PodInfo, event: &Event, cluster: &Cluster) -> bool {
    match event {
        Event::Node(name, change) => node_hint(plugin, pod, name, *change, cluster),
        Event::PodPlaced(other) => match plugin {
            // Its own kind, which may be what it wants to be near to, or what it was spread against.
            Plugin::PodTopologySpread => pod.namespace() == other.namespace(),
            Plugin::InterPodAffinity => cluster.tables.kind(other.kind).is_some_and(|kind| {
                let required = pod.terms.iter().filter(|t| t.kind == TermKind::Required);
                let mut terms = required.filter_map(|t| cluster.tables.terms.get(t.term as usize));
                terms.any(|t| t.matcher.matches(kind, &cluster.tables.namespaces))
            }),
            _ => true,
        },
        Event::PodGone(other) => match plugin {
            Plugin::NodePorts => other.host_ports.iter().any(|p| pod.host_ports.iter().any(|own| own.clashes(p))),
            // A place among the pods is given back too.
            Plugin::NodeResourcesFit | Plugin::Extender => true,
            Plugin::VolumeRestrictions => {
                let shared = other.claims.iter().any(|c| pod.claims.contains(c));
                other.namespace() == pod.namespace() && shared || crate::plugins::volumes::disks_clash(pod, other)
            }
            Plugin::NodeVolumeLimits => !other.claims.is_empty(),
            Plugin::PodTopologySpread => pod.namespace() == other.namespace(),
            Plugin::InterPodAffinity => !pod.terms.is_empty() || !other.terms.is_empty(),
            _ => true,
        },
        Event::Claim((namespace, name)) => {
            namespace == pod.namespace()
                && (pod.claims.iter().any(|c| c.name == *name) || plugin != Plugin::VolumeBinding)
        }
        _ => true,
    }
}

fn node_hint(plugin: Plugin, pod: &PodInfo, name: &str, change: NodeChange, cluster: &Cluster) -> bool {
    let Some(node) = cluster.named(name) else { return false };
    let only = |of: Plugin| Profile { filters: PluginSet::of(of), ..Profile::default() };
    let passes = |of: Plugin| facts(pod, node, &only(of)).refusal.is_none();
    match plugin {
        Plugin::NodeUnschedulable | Plugin::TaintToleration => (change.added || change.taints) && passes(plugin),
        Plugin::NodeName => change.added && passes(plugin),
        Plugin::NodeAffinity => (change.added || change.labels) && passes(plugin),
        Plugin::NodePorts => change.added,
        Plugin::NodeResourcesFit => {
            let enough = pod.requests.iter().all(|(id, amount)| node.allocatable.get(id) >= amount);
            (change.added || change.allocatable) && enough && node.most_pods > 0
        }
        Plugin::PodTopologySpread => change.added || change.labels || change.taints,
        Plugin::InterPodAffinity => change.added || change.labels,
        _ => change.matters(),
    }
}
