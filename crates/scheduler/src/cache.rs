//! Nodes, and what the pods on them take: bound pods, and assumed ones whose binding is on its way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_types::pod::{self, ResourceList};
use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::PodInfo;

/// A node with its pods.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// The node; none when pods name one that is not (or no longer) known.
    pub node: Option<Arc<Node>>,
    /// What it offers.
    pub allocatable: ResourceList,
    /// What its pods ask for.
    pub requested: ResourceList,
    /// Its pods by UID, assumed ones among them.
    pub pods: BTreeMap<String, PodInfo>,
}

impl NodeInfo {
    /// What is left of a resource.
    #[must_use]
    pub fn free(&self, resource: &str) -> Quantity {
        self.allocatable.get(resource).copied().unwrap_or_default()
            - self.requested.get(resource).copied().unwrap_or_default()
    }
    fn add(&mut self, pod: PodInfo) {
        pod::add(&mut self.requested, &pod.requests);
        self.pods.insert(pod.uid().to_owned(), pod);
    }
    fn remove(&mut self, uid: &str) -> Option<PodInfo> {
        let pod = self.pods.remove(uid)?;
        pod::subtract(&mut self.requested, &pod.requests);
        Some(pod)
    }
}

/// All nodes.
#[derive(Debug, Default)]
pub struct NodeCache {
    nodes: BTreeMap<String, NodeInfo>,
    /// Node of each pod that takes something, by UID.
    placed: BTreeMap<String, String>,
    /// Pods whose binding is on its way.
    assumed: BTreeSet<String>,
}

impl NodeCache {
    /// Nodes that exist, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeInfo)> {
        self.nodes.iter().filter(|(_, n)| n.node.is_some()).map(|(name, n)| (name.as_str(), n))
    }
    /// One node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name)
    }
    /// A node came or changed.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let info = self.nodes.entry(node.name().to_owned()).or_default();
        info.allocatable = pod::resource_list(node.status.as_ref().and_then(|s| s.allocatable.as_ref()));
        info.node = Some(node);
    }
    /// A node went. Its pods stay counted until they go themselves.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(info) = self.nodes.get_mut(name) {
            info.node = None;
            if info.pods.is_empty() {
                self.nodes.remove(name);
            }
        }
    }
    /// A bound pod came or changed. This confirms an assumption, or corrects it.
    pub fn set_pod(&mut self, pod: Arc<Pod>) {
        let uid = pod.uid().to_owned();
        self.remove_pod(&uid);
        let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
        if !node.is_empty() && !pod::is_terminal(&pod) {
            self.place(PodInfo::new(pod), node);
        }
    }
    /// A pod went, or its binding failed.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        self.assumed.remove(uid);
        let Some(node) = self.placed.remove(uid) else { return false };
        if let Some(info) = self.nodes.get_mut(&node) {
            info.remove(uid);
            if info.node.is_none() && info.pods.is_empty() {
                self.nodes.remove(&node);
            }
        }
        true
    }
    /// Counts a pod on a node before its binding is known to have happened.
    pub fn assume(&mut self, pod: PodInfo, node: &str) {
        let uid = pod.uid().to_owned();
        self.remove_pod(&uid);
        self.assumed.insert(uid);
        self.place(pod, node.to_owned());
    }
    /// Whether a pod is assumed and not yet seen bound.
    #[must_use]
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.assumed.contains(uid)
    }
    /// The node on which a pod is counted.
    #[must_use]
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.placed.get(uid).map(String::as_str)
    }
    fn place(&mut self, pod: PodInfo, node: String) {
        self.placed.insert(pod.uid().to_owned(), node.clone());
        self.nodes.entry(node).or_default().add(pod);
    }
}
