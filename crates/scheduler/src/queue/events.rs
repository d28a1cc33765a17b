//! What changes in a cluster, and whether it may help a pod that some plugins refused: upstream's queueing hints
//! (`EventsToRegister` of each plugin).

use std::sync::Arc;

use super::hints::Hints;
use crate::cluster::{NodeChange, ObjectName};
use crate::plugins::fit::is_ignored;
use crate::plugins::node::facts;
use crate::tables::TermKind;
use crate::{Cluster, NodeInfo, Plugin, PluginSet, PodInfo, Probe, Profile};

/// Something that changed.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node, by name.
    Node(Arc<str>, NodeChange),
    /// A node of this name went: fewer domains to spread over.
    NodeGone(Arc<str>),
    /// A pod has a node now.
    PodPlaced(Arc<PodInfo>),
    /// A pod has become another one where it is: what it was, what it is, and its node. It may hold less, or have other labels.
    PodChanged(Arc<PodInfo>, Arc<PodInfo>, Arc<str>),
    /// A pod takes nothing any more of the node of this name, or nothing is kept for it there any more.
    PodGone(Arc<PodInfo>, Arc<str>),
    /// A claim.
    Claim(ObjectName),
    /// A volume or a storage class.
    Volume,
    /// What a CSI driver says about itself, a node or its room.
    Csi,
    /// A volume is attached to a node no more.
    Detached,
    /// Labels of a namespace.
    Namespace,
    /// What an extender knows may have changed.
    Extender,
}

impl Event {
    /// The node whose room it gives back.
    #[must_use]
    pub fn room_of(&self) -> Option<&Arc<str>> {
        match self {
            Self::PodGone(_, node) | Self::PodChanged(_, _, node) => Some(node),
            _ => None,
        }
    }
    /// The node at which it happened, where it may be the end of what somebody waits for there.
    #[must_use]
    pub fn node(&self) -> Option<&Arc<str>> {
        match self {
            Self::Node(node, _) | Self::NodeGone(node) => Some(node),
            _ => self.room_of(),
        }
    }
    /// Upstream's name of it (framework/events.go). Changes of namespaces and of what extenders know have none there.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Node(_, change) if change.added => "NodeAdd",
            Self::Node(_, change) if change.allocatable => "NodeUpdateNodeAllocatable",
            Self::Node(_, change) if change.labels => "NodeUpdateNodeLabel",
            Self::Node(_, change) if change.taints => "NodeUpdateNodeTaint",
            Self::Node(_, change) if change.features => "NodeUpdateNodeDeclaredFeature",
            Self::Node(..) => "NodeUpdate",
            Self::NodeGone(_) => "NodeDelete",
            Self::PodPlaced(_) => "AssignedPodAdd",
            Self::PodChanged(before, after, _) if before.kind != after.kind => "AssignedPodUpdatePodLabel",
            Self::PodChanged(before, after, _) if after.asks_less_than(before) => "AssignedPodUpdatePodScaleDown",
            Self::PodChanged(..) => "AssignedPodUpdate",
            Self::PodGone(..) => "AssignedPodDelete",
            Self::Claim(_) => "PersistentVolumeClaimUpdate",
            Self::Volume => "PersistentVolumeUpdate",
            Self::Csi => "storage.k8s.io/CSINodeUpdate",
            Self::Detached => "storage.k8s.io/VolumeAttachmentDelete",
            Self::Namespace => "NamespaceUpdate",
            Self::Extender => "ForceActivate",
        }
    }
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
                NodeDeclaredFeatures,
                NodePorts,
                NodeResourcesFit,
                VolumeBinding,
                VolumeZone,
                PodTopologySpread,
                InterPodAffinity,
                Extender,
            ],
            // Who wants to be near to pods that are nowhere any more may be the first of them.
            Self::NodeGone(_) => &[PodTopologySpread, InterPodAffinity, Extender],
            Self::PodPlaced(_) => &[PodTopologySpread, InterPodAffinity, Extender],
            // Its ports and volumes stay what they are.
            Self::PodChanged(..) => &[NodeResourcesFit, PodTopologySpread, InterPodAffinity, Extender],
            Self::PodGone(..) => &[
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
            Self::Detached => &[NodeVolumeLimits, Extender],
            Self::Namespace => &[InterPodAffinity, Extender],
            Self::Extender => &[Extender],
        };
        list.iter().copied().collect()
    }
    /// Those of [`Self::plugins`] to which it says another thing for each pod, by the pod's own volumes. To all others
    /// it says one thing of pods that are alike otherwise.
    pub(super) fn plugins_about_own_volumes(&self) -> PluginSet {
        match self {
            Self::Claim(_) => PluginSet::of(Plugin::VolumeBinding),
            // Who had no volumes shared none.
            Self::PodGone(other, _) if other.has_volumes => PluginSet::of(Plugin::VolumeRestrictions),
            _ => PluginSet::default(),
        }
    }
}

/// A pod that waits.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    /// The pod.
    pub pod: &'a PodInfo,
    /// Its plugins.
    pub profile: &'a Profile,
    /// Those that refused it.
    pub refused_by: PluginSet,
    /// Pods that are nominated to the event's node.
    pub nominated: &'a [Arc<PodInfo>],
}

/// Whether an event may help a pod, as those of these plugins say that refused it. For pods that are alike
/// (`Row::alike`) the answer is the same, unless one is nominated to the event's node, or the event is about its
/// volumes ([`Event::plugins_about_own_volumes`]).
#[must_use]
pub fn helps(waiting: Waiting<'_>, event: &Event, asked: PluginSet, cluster: &Cluster, hints: &mut Hints) -> bool {
    let mut asked = waiting.refused_by.iter().filter(|plugin| asked.has(*plugin));
    asked.any(|plugin| hints.ask(plugin, event, || hint(plugin, waiting, event, cluster)))
}

fn hint(plugin: Plugin, waiting: Waiting<'_>, event: &Event, cluster: &Cluster) -> bool {
    let pod = waiting.pod;
    match event {
        Event::Node(name, change) => node_hint(plugin, waiting, name, *change, cluster),
        Event::PodPlaced(other) => placed_hint(plugin, pod, other, cluster),
        Event::PodGone(other, node) => gone_hint(plugin, waiting, other, node, cluster),
        Event::PodChanged(before, after, node) => {
            gone_hint(plugin, waiting, before, node, cluster) || placed_hint(plugin, pod, after, cluster)
        }
        Event::Claim((namespace, name)) => {
            namespace == pod.namespace()
                && (pod.claims().iter().any(|c| c.name == *name) || plugin != Plugin::VolumeBinding)
        }
        _ => true,
    }
}

/// Whether a pod that has a node may help another.
fn placed_hint(plugin: Plugin, pod: &PodInfo, other: &PodInfo, cluster: &Cluster) -> bool {
    match plugin {
        // Its own kind, which may be what it wants to be near to, or what it was spread against.
        Plugin::PodTopologySpread => pod.namespace() == other.namespace(),
        Plugin::InterPodAffinity => cluster.tables.kind(other.kind).is_some_and(|kind| {
            let required = pod.terms.iter().filter(|t| t.kind == TermKind::Required);
            let mut terms = required.filter_map(|t| cluster.tables.terms.get(t.term as usize));
            terms.any(|t| t.matcher.matches(kind, &cluster.tables.namespaces))
        }),
        _ => plugin == Plugin::Extender,
    }
}

/// Whether a pod that takes nothing of a node any more, or less, may help another.
fn gone_hint(plugin: Plugin, waiting: Waiting<'_>, other: &PodInfo, node: &str, cluster: &Cluster) -> bool {
    let pod = waiting.pod;
    match plugin {
        Plugin::NodePorts => other.host_ports.iter().any(|p| pod.host_ports.iter().any(|own| own.clashes(p))),
        // A place among the pods is given back too.
        Plugin::NodeResourcesFit => cluster.named(node).is_some_and(|node| has_room(waiting, node, cluster)),
        Plugin::VolumeRestrictions => {
            let shared = other.claims().iter().any(|c| pod.claims().contains(c));
            other.namespace() == pod.namespace() && shared || crate::plugins::volumes::disks_clash(pod, other)
        }
        Plugin::NodeVolumeLimits => !other.claims().is_empty(),
        Plugin::PodTopologySpread => pod.namespace() == other.namespace(),
        Plugin::InterPodAffinity => !pod.terms.is_empty() || !other.terms.is_empty(),
        _ => true,
    }
}

/// Whether a node has room for a pod beside those that are nominated to it, perhaps without less important ones.
///
/// A node that refuses the pod for what it is itself need not be looked at, if the pod will be told when that changes: then the
/// plugin that refuses is one of those that it waits for. One that came between since (a taint on a node that was full
/// when the pod looked at it) is not, and its end would wake nobody; so the pod looks again, and waits for that instead.
fn has_room(waiting: Waiting<'_>, node: &NodeInfo, cluster: &Cluster) -> bool {
    let Waiting { pod, profile, refused_by, .. } = waiting;
    let refused = facts(pod, node, profile, &mut Probe::default()).refused;
    !refused.is_some_and(|(plugin, _)| refused_by.has(plugin)) && is_enough(waiting, node, cluster)
}

/// Whether a node may still take a pod for which it is being made free. One that is gone, offers less by now or refuses
/// the pod for what it is will not, whoever leaves it: who waits for it has to look elsewhere, and nothing else that
/// happens there would say so.
#[must_use]
pub fn may_become_free(waiting: Waiting<'_>, node: &str, cluster: &Cluster) -> bool {
    let Some((_, node)) = cluster.find_existing(node) else { return false };
    let refused = facts(waiting.pod, node, waiting.profile, &mut Probe::default()).refused;
    // Who is not asked how much there is refuses nobody for that.
    let asks = waiting.profile.filters.has(Plugin::NodeResourcesFit);
    refused.is_none() && (!asks || is_enough(waiting, node, cluster))
}

/// Whether a node offers enough for a pod beside those there, and those nominated to it, that are no less important.
fn is_enough(waiting: Waiting<'_>, node: &NodeInfo, cluster: &Cluster) -> bool {
    let Waiting { pod, profile, nominated, .. } = waiting;
    let beside = || nominated.iter().filter(|p| p.priority >= pod.priority && p.uid != pod.uid);
    let stay = || node.pods.values().map(|seat| &seat.info).filter(|other| other.priority >= pod.priority);
    let there = || stay().chain(beside());
    let pods = i64::try_from(there().count()).unwrap_or(i64::MAX);
    let enough = |id: u32, amount: i64| {
        let used: i128 = there().map(|p| i128::from(p.requests.get(id))).sum();
        carrack_types::fit::fits(amount.into(), used, node.allocatable.get(id).into())
            || is_ignored(cluster.tables.resources.name(id), profile)
    };
    pods < node.most_pods && pod.requests.iter().all(|(id, amount)| enough(id, amount))
}

fn node_hint(plugin: Plugin, waiting: Waiting<'_>, name: &str, change: NodeChange, cluster: &Cluster) -> bool {
    let Some(node) = cluster.named(name) else { return false };
    let (pod, profile) = (waiting.pod, waiting.profile);
    let only = |of: Plugin| Profile { filters: PluginSet::of(of), ..Profile::default() };
    let passes = |of: Plugin| facts(pod, node, &only(of), &mut Probe::default()).refused.is_none();
    match plugin {
        Plugin::NodeUnschedulable | Plugin::TaintToleration => (change.added || change.taints) && passes(plugin),
        Plugin::NodeName => change.added && passes(plugin),
        Plugin::NodeAffinity => (change.added || change.labels) && passes(plugin),
        Plugin::NodeDeclaredFeatures => (change.added || change.features) && passes(plugin),
        Plugin::NodePorts => change.added,
        Plugin::NodeResourcesFit => {
            let enough = pod.requests.iter().all(|(id, amount)| {
                node.allocatable.get(id) >= amount || is_ignored(cluster.tables.resources.name(id), profile)
            });
            (change.added || change.more) && enough && node.most_pods > 0
        }
        Plugin::PodTopologySpread => change.added || change.labels || change.taints,
        Plugin::InterPodAffinity => change.added || change.labels,
        // No node has devices for it.
        Plugin::DynamicResources => false,
        _ => change.matters(),
    }
}
