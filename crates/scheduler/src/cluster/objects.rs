//! Objects other than nodes and pods that placement depends on.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::resource::Object;
use carrack_types::selector::map_selects;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::Pod;

/// Namespace and name; the namespace of cluster-wide objects is empty.
pub type ObjectName = (String, String);

/// The name of an object.
pub fn name_of<K: Object>(object: &K) -> ObjectName {
    (object.namespace().to_owned(), object.name().to_owned())
}

type Map<K> = BTreeMap<ObjectName, Arc<K>>;

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Claims, as seen, with what this scheduler assumed about them laid over.
    pub claims: Map<PersistentVolumeClaim>,
    /// Volumes.
    pub volumes: Map<PersistentVolume>,
    /// Volumes that are promised to claims by pods in flight: volume to claim.
    pub promised: BTreeMap<String, ObjectName>,
    /// Storage classes.
    pub classes: Map<StorageClass>,
    /// What CSI drivers say about nodes.
    pub csi_nodes: Map<CSINode>,
    /// What is attached to nodes, or is to be, by the node's name and its own.
    pub attachments: Map<VolumeAttachment>,
    /// CSI drivers.
    pub drivers: Map<CSIDriver>,
    /// Room that CSI drivers have.
    pub capacities: Map<CSIStorageCapacity>,
    /// Disruption budgets.
    pub budgets: Map<PodDisruptionBudget>,
    /// Services.
    pub services: Map<Service>,
    /// Replication controllers.
    pub replication_controllers: Map<ReplicationController>,
    /// Replica sets.
    pub replica_sets: Map<ReplicaSet>,
    /// Stateful sets.
    pub stateful_sets: Map<StatefulSet>,
    /// Grows with each change of a budget.
    pub budgets_version: u64,
    /// How many placed pods use a claim.
    used: BTreeMap<ObjectName, u32>,
}

impl Objects {
    pub(super) fn claim_used(&mut self, namespace: &str, name: &str, add: bool) {
        let key = (namespace.to_owned(), name.to_owned());
        let count = self.used.entry(key.clone()).or_default();
        *count = if add { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.used.remove(&key);
        }
    }
    /// The same before any pod was placed.
    pub(super) fn unused(self) -> Self {
        Self { used: BTreeMap::new(), ..self }
    }
    /// How many placed pods use a claim.
    #[must_use]
    pub fn claim_users(&self, namespace: &str, name: &str) -> u32 {
        self.used.get(&(namespace.to_owned(), name.to_owned())).copied().unwrap_or(0)
    }
    /// A claim.
    #[must_use]
    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.get(&(namespace.to_owned(), name.to_owned()))
    }
    /// The key of an attachment: those of one node lie together.
    #[must_use]
    pub fn attachment_key(attachment: &VolumeAttachment) -> ObjectName {
        (attachment.spec.node_name.clone(), attachment.name().to_owned())
    }
    /// What is attached to a node, or is to be.
    pub fn attachments_of(&self, node: &str) -> impl Iterator<Item = &Arc<VolumeAttachment>> {
        let all = self.attachments.range((node.to_owned(), String::new())..);
        all.take_while(move |((at, _), _)| at == node).map(|(_, attachment)| attachment)
    }
    /// A cluster-wide object of one of the maps.
    #[must_use]
    pub fn global<'a, K>(map: &'a Map<K>, name: &str) -> Option<&'a Arc<K>> {
        map.get(&(String::new(), name.to_owned()))
    }

    /// What chooses the pods that a pod is one of: its services and its controller (component-helpers, `DefaultSelector`).
    /// None when nothing does.
    #[must_use]
    pub fn default_selector(&self, pod: &Pod) -> Option<LabelSelector> {
        let (namespace, labels) = (pod.namespace(), Some(&*pod.labels));
        let mut chosen = LabelSelector::default();
        let mut any = false;
        for (_, service) in
            self.services.range((namespace.to_owned(), String::new())..).take_while(|((ns, _), _)| ns == namespace)
        {
            let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
            if map_selects(selector, labels) {
                chosen.match_labels.get_or_insert_default().extend(selector.cloned().unwrap_or_default());
                any = true;
            }
        }
        let owner = pod.meta().owner_references.iter().flatten().find(|o| o.controller == Some(true));
        if let Some(owner) = owner {
            let key = (namespace.to_owned(), owner.name.clone());
            let of = match owner.kind.as_str() {
                "ReplicaSet" => self.replica_sets.get(&key).and_then(|o| Some(o.spec.as_ref()?.selector.clone())),
                "StatefulSet" => self.stateful_sets.get(&key).and_then(|o| Some(o.spec.as_ref()?.selector.clone())),
                "ReplicationController" => self.replication_controllers.get(&key).and_then(|o| {
                    let match_labels = o.spec.as_ref()?.selector.clone();
                    Some(LabelSelector { match_labels, match_expressions: None })
                }),
                _ => None,
            };
            if let Some(of) = of {
                any = true;
                chosen.match_labels.get_or_insert_default().extend(of.match_labels.unwrap_or_default());
                chosen.match_expressions.get_or_insert_default().extend(of.match_expressions.unwrap_or_default());
            }
        }
        let empty = chosen.match_labels.as_ref().is_none_or(|l| l.is_empty())
            && chosen.match_expressions.as_ref().is_none_or(|e| e.is_empty());
        (any && !empty).then_some(chosen)
    }
}
