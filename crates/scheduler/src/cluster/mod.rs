//! What the scheduler knows of the cluster: nodes, and the pods that take something of them: bound ones, and assumed ones
//! whose binding is on its way.
//!
//! Nodes form a list in the order of their last change. Whoever keeps something computed from all nodes walks it from the
//! newest end, down to what it has seen: that costs what changed, not what there is.

mod node;
mod objects;

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::pod;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Node;

use crate::pod::Pod;
use crate::pod_info::{PodInfo, normalized};
use crate::tables::{Labels, NO_VALUE, Tables};

use node::features_of;
pub use node::{NodeId, NodeInfo, Seat};
pub use objects::{ObjectName, Objects, name_of};

const NOBODY: NodeId = NodeId::MAX;
/// So many nodes' values of a topology key take about the room of a name.
const NODES_PER_NAME: usize = 32;

/// What changed about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// It was not there before.
    pub added: bool,
    /// What it offers.
    pub allocatable: bool,
    /// It offers more of something.
    pub more: bool,
    /// Its labels.
    pub labels: bool,
    /// Its taints, or whether it is cordoned.
    pub taints: bool,
    /// Features that it declares.
    pub features: bool,
    /// Its images.
    pub images: bool,
}

impl NodeChange {
    /// Whether anything changed that could help a pod.
    #[must_use]
    pub fn matters(self) -> bool {
        self.added || self.allocatable || self.labels || self.taints || self.features
    }
}

/// Where a pod is counted.
#[derive(Clone, Debug)]
struct Placed {
    node: NodeId,
    assumed: bool,
}

/// An image, over all nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageState {
    /// Bytes.
    pub size: i64,
    /// How many nodes have it.
    pub nodes: u32,
}

/// All nodes and their pods.
#[derive(Debug)]
pub struct Cluster {
    /// Numbers of names.
    pub tables: Tables,
    /// Objects other than nodes and pods.
    pub objects: Objects,
    nodes: Vec<NodeInfo>,
    by_name: BTreeMap<Arc<str>, NodeId>,
    vacant: Vec<NodeId>,
    existing: usize,
    placed: BTreeMap<Arc<str>, Placed>,
    newest: NodeId,
    clock: u64,
    epoch: u64,
    images: BTreeMap<u32, ImageState>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            tables: Tables::default(),
            objects: Objects::default(),
            nodes: Vec::new(),
            by_name: BTreeMap::new(),
            vacant: Vec::new(),
            existing: 0,
            placed: BTreeMap::new(),
            newest: NOBODY,
            clock: 0,
            epoch: 0,
            images: BTreeMap::new(),
        }
    }
}

impl Cluster {
    /// Reads a pod.
    pub fn read(&mut self, pod: Arc<Pod>) -> Arc<PodInfo> {
        let info = PodInfo::new(pod, &mut self.tables);
        self.follow_topologies();
        Arc::new(info)
    }
    /// The number of a topology key, known of all nodes.
    pub fn topology(&mut self, key: &str) -> u32 {
        let (id, new) = self.tables.topology(key);
        if new {
            self.follow_topologies();
        }
        id
    }
    /// Nodes learn their values of topology keys that are new.
    fn follow_topologies(&mut self) {
        let known = self.tables.topologies.len();
        if self.nodes.iter().find(|n| n.exists()).is_none_or(|n| n.topology.len() == known) {
            return;
        }
        for node in self.nodes.iter_mut().filter(|n| n.exists()) {
            for topology in self.tables.topologies.iter_mut().skip(node.topology.len()) {
                let label = node.node.as_ref().and_then(|n| n.metadata.labels.as_ref()?.get(&*topology.key));
                let value = label.map_or(NO_VALUE, |text| self.tables.values.id(&**text));
                topology.count(value, true);
                node.topology.push(value);
            }
        }
    }

    /// Nodes that exist, in no particular order.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeInfo)> {
        (0..).zip(&self.nodes).filter(|(_, node)| node.exists())
    }
    /// How many nodes exist.
    #[must_use]
    pub fn len(&self) -> usize {
        self.existing
    }
    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.existing == 0
    }
    /// One more than the greatest number of a node.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.nodes.len()
    }
    /// One node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NodeInfo> {
        self.nodes.get(id as usize)
    }
    /// The number of a node.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }
    /// One node by name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&NodeInfo> {
        self.node(self.find(name)?)
    }
    /// A node that exists, by name. Others are known for the pods on them alone.
    #[must_use]
    pub fn find_existing(&self, name: &str) -> Option<(NodeId, &NodeInfo)> {
        let id = self.find(name)?;
        Some((id, self.node(id).filter(|node| node.exists())?))
    }
    /// When anything last changed.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }
    /// Grows when whatever was computed must be computed anew: a topology key became shared, the labels of a namespace
    /// changed.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    /// Nodes that changed after `seen`, newest first.
    pub fn changed_since(&self, seen: u64) -> impl Iterator<Item = NodeId> {
        let mut next = self.newest;
        std::iter::from_fn(move || {
            let node = self.nodes.get(next as usize).filter(|n| n.changed > seen)?;
            let id = next;
            next = node.older;
            Some(id)
        })
    }
    /// An image, over all nodes.
    #[must_use]
    pub fn image(&self, id: u32) -> ImageState {
        self.images.get(&id).copied().unwrap_or_default()
    }

    /// Something that is computed from a node changed: its pods, its object, who is nominated to it.
    pub fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        if self.newest != id {
            self.unlink(id);
            let before = self.newest;
            if let Some(node) = self.nodes.get_mut(id as usize) {
                node.older = before;
                node.newer = NOBODY;
            }
            if let Some(node) = self.nodes.get_mut(before as usize) {
                node.newer = id;
            }
            self.newest = id;
        }
        if let Some(node) = self.nodes.get_mut(id as usize) {
            node.changed = self.clock;
        }
    }
    fn unlink(&mut self, id: NodeId) {
        let Some((newer, older)) = self.nodes.get(id as usize).map(|n| (n.newer, n.older)) else { return };
        if let Some(node) = self.nodes.get_mut(newer as usize) {
            node.older = older;
        }
        if let Some(node) = self.nodes.get_mut(older as usize) {
            node.newer = newer;
        }
    }

    fn entry(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let fresh = NodeInfo { name: name.into(), newer: NOBODY, older: NOBODY, ..NodeInfo::default() };
        let id = match self.vacant.pop() {
            Some(id) => {
                // Its place in the list of changes stays its own.
                if let Some(slot) = self.nodes.get_mut(id as usize) {
                    let (newer, older, version) = (slot.newer, slot.older, slot.object_version);
                    *slot = NodeInfo { newer, older, object_version: version + 1, ..fresh };
                }
                id
            }
            None => {
                self.nodes.push(fresh);
                NodeId::try_from(self.nodes.len() - 1).unwrap_or(NOBODY - 1)
            }
        };
        self.by_name.insert(name.into(), id);
        self.touch(id);
        id
    }
    fn drop_if_unused(&mut self, id: NodeId) {
        let unused = self.nodes.get(id as usize).filter(|n| !n.exists() && n.pods.is_empty());
        if let Some(name) = unused.map(|n| n.name.clone())
            && self.by_name.remove(&name).is_some()
        {
            self.vacant.push(id);
        }
    }

    /// A node came or changed.
    pub fn set_node(&mut self, object: Arc<Node>) -> NodeChange {
        let id = self.entry(object.name());
        let list = pod::resource_list(object.status.as_ref().and_then(|s| s.allocatable.as_ref()));
        let (allocatable, most_pods) = self.tables.resources.read(&list);
        let images = self.read_images(&object);
        let Some(node) = self.nodes.get_mut(id as usize) else { return NodeChange::default() };
        let old = node.node.clone();
        let taints = |n: &Node| n.spec.as_ref().map(|s| (s.taints.clone(), s.unschedulable));
        let change = NodeChange {
            added: old.is_none(),
            allocatable: node.allocatable != allocatable || node.most_pods != most_pods,
            more: most_pods > node.most_pods
                || allocatable.iter().any(|(id, amount)| amount > node.allocatable.get(id)),
            labels: old.as_ref().is_none_or(|o| o.metadata.labels != object.metadata.labels),
            taints: old.as_ref().is_none_or(|o| taints(o) != taints(&object)),
            features: old.as_ref().is_none_or(|o| features_of(o) != features_of(&object)),
            images: node.images != images,
        };
        node.node = Some(object);
        if change.added {
            self.existing += 1;
        }
        if !(change.matters() || change.images) {
            return change;
        }
        node.object_version += 1;
        node.allocatable = allocatable;
        node.most_pods = most_pods;
        let images_before = std::mem::replace(&mut node.images, images);
        if change.images {
            self.count_images(id, &images_before);
        }
        if change.labels {
            self.retopologize(id);
        }
        self.touch(id);
        change
    }

    fn read_images(&mut self, object: &Node) -> Vec<u32> {
        let mut ids = Vec::new();
        for image in object.status.iter().flat_map(|s| s.images.iter().flatten()) {
            for name in image.names.iter().flatten() {
                let id = self.tables.images.id(&*normalized(name));
                ids.push(id);
                let state = self.images.entry(id).or_default();
                state.size = image.size_bytes.unwrap_or(0).max(0);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
    fn count_images(&mut self, id: NodeId, before: &[u32]) {
        for image in before {
            if let Some(state) = self.images.get_mut(image) {
                state.nodes = state.nodes.saturating_sub(1);
            }
        }
        for image in self.nodes.get(id as usize).map(|n| n.images.clone()).unwrap_or_default() {
            self.images.entry(image).or_default().nodes += 1;
        }
        // Whichever has no node any more had this one.
        for image in before {
            if self.images.get(image).is_some_and(|state| state.nodes == 0) {
                self.images.remove(image);
            }
        }
    }

    /// The labels of a node are others than before: it moves to other domains, and its pods with it.
    fn retopologize(&mut self, id: NodeId) {
        self.count_terms(id, false);
        let Some(node) = self.nodes.get_mut(id as usize) else { return };
        let labels = node.node.as_ref().and_then(|n| n.metadata.labels.as_ref());
        let mut flipped = false;
        let mut values = Vec::with_capacity(self.tables.topologies.len());
        for (at, topology) in self.tables.topologies.iter_mut().enumerate() {
            let value = labels.and_then(|l| l.get(&*topology.key)).map_or(NO_VALUE, |v| self.tables.values.id(&**v));
            let old = node.topology.get(at).copied().unwrap_or(NO_VALUE);
            if old != value {
                flipped |= topology.count(old, false);
                flipped |= topology.count(value, true);
            }
            values.push(value);
        }
        node.topology = values;
        self.epoch += u64::from(flipped);
        self.count_terms(id, true);
    }

    /// Counts the affinity terms of a node's pods in the node's domains.
    fn count_terms(&mut self, id: NodeId, add: bool) {
        let Some(node) = self.nodes.get(id as usize) else { return };
        for (term, count) in &node.terms {
            if let Some(term) = self.tables.terms.get_mut(*term as usize) {
                count_term(&mut term.counts, node.topology.get(term.topology as usize).copied(), *count, add);
            }
        }
    }

    /// A node went. Its pods stay counted until they go themselves.
    pub fn remove_node(&mut self, name: &str) {
        let Some(id) = self.find(name) else { return };
        self.count_terms(id, false);
        let Some(node) = self.nodes.get_mut(id as usize).filter(|n| n.exists()) else { return };
        node.node = None;
        node.object_version += 1;
        node.allocatable = Default::default();
        node.most_pods = 0;
        let images = std::mem::take(&mut node.images);
        let mut flipped = false;
        for (topology, value) in self.tables.topologies.iter_mut().zip(std::mem::take(&mut node.topology)) {
            flipped |= topology.count(value, false);
        }
        self.epoch += u64::from(flipped);
        self.existing -= 1;
        self.count_images(id, &images);
        self.touch(id);
        self.drop_if_unused(id);
    }

    /// A bound pod came or changed. This confirms an assumption, or corrects it. Returns whether it took or gave back
    /// anything.
    pub fn set_pod(&mut self, pod: &Arc<Pod>) -> bool {
        let uid = pod.uid();
        let node = &*pod.node;
        if node.is_empty() || pod.ended {
            return self.remove_pod(uid).is_some();
        }
        let started = pod.started;
        if let Some(placed) = self.placed.get_mut(uid)
            && let Some(info) = self.nodes.get_mut(placed.node as usize)
            && &*info.name == node
            && let Some(seat) = info.pods.get_mut(uid)
            && same(&seat.info.pod, pod)
        {
            placed.assumed = false;
            // What was known of it before need not be kept beside that.
            Arc::make_mut(&mut seat.info).pod = pod.clone();
            if seat.started != started {
                seat.started = started;
                let id = placed.node;
                self.touch(id);
            }
            return false;
        }
        self.remove_pod(uid);
        let info = self.read(pod.clone());
        self.place(Seat { info, started }, node, false);
        true
    }

    /// Counts a pod on a node before its binding is known to have happened.
    pub fn assume(&mut self, info: Arc<PodInfo>, node: NodeId) {
        self.remove_pod(&info.uid.clone());
        if let Some(name) = self.node(node).map(|n| n.name.clone()) {
            self.place(Seat { info, started: None }, &name, true);
        }
    }

    fn place(&mut self, seat: Seat, node: &str, assumed: bool) {
        let id = self.entry(node);
        self.placed.insert(seat.info.uid.clone(), Placed { node: id, assumed });
        let Some(info) = self.nodes.get_mut(id as usize) else { return };
        for own in &seat.info.terms {
            if let Some(term) = self.tables.terms.get_mut(own.term as usize) {
                count_term(&mut term.counts, info.topology.get(term.topology as usize).copied(), 1, true);
            }
        }
        for claim in seat.info.claims() {
            self.objects.claim_used(seat.info.namespace(), &claim.name, true);
        }
        info.add(seat);
        self.touch(id);
    }

    /// A pod went, or its binding failed.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Seat> {
        let Placed { node: id, .. } = self.placed.remove(uid)?;
        let node = self.nodes.get_mut(id as usize)?;
        let seat = node.remove(uid)?;
        for own in &seat.info.terms {
            if let Some(term) = self.tables.terms.get_mut(own.term as usize) {
                count_term(&mut term.counts, node.topology.get(term.topology as usize).copied(), 1, false);
            }
        }
        for claim in seat.info.claims() {
            self.objects.claim_used(seat.info.namespace(), &claim.name, false);
        }
        self.touch(id);
        self.drop_if_unused(id);
        Some(seat)
    }

    /// Whether a pod is assumed and not yet seen bound.
    #[must_use]
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.placed.get(uid).is_some_and(|p| p.assumed)
    }
    /// The node on which a pod is counted.
    #[must_use]
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        let placed = self.placed.get(uid)?;
        self.node(placed.node).map(|n| &*n.name)
    }
    /// A pod that is counted on a node.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&Seat> {
        let placed = self.placed.get(uid)?;
        self.node(placed.node)?.pods.get(uid)
    }
    /// UIDs of pods that are assumed and not yet seen bound.
    pub fn assumed(&self) -> impl Iterator<Item = &str> {
        self.placed.iter().filter(|(_, p)| p.assumed).map(|(uid, _)| &**uid)
    }
    /// How many pods are counted.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.placed.len()
    }

    /// A namespace came, changed or went.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let changed = match labels {
            Some(labels) => self.tables.namespaces.insert(name.to_owned(), labels.clone()) != Some(labels),
            None => self.tables.namespaces.remove(name).is_some(),
        };
        // Terms that choose namespaces by labels may mean other pods now. Where there are none, a namespace that comes
        // is no reason to ask all nodes anew.
        let is_looked_at = self.tables.terms.iter().any(|term| term.matcher.looks_at_namespaces());
        self.epoch += u64::from(changed && is_looked_at);
    }
    /// How many names, sets of labels and terms were given numbers, of whatever is there or was there once. A topology key
    /// counts with the room that it takes of every node: pods name as many as they like.
    #[must_use]
    pub fn names(&self) -> usize {
        let tables = &self.tables;
        let topologies = tables.topologies.len() * (1 + self.nodes.len() / NODES_PER_NAME);
        let values = tables.values.len() + tables.images.len() + tables.resources.count();
        tables.kinds.len() + tables.terms.len() + values + topologies
    }
    /// What this one knows of claims, volumes and namespaces, without nodes and pods.
    #[must_use]
    pub fn bare(&self) -> Self {
        let mut bare = Self { objects: self.objects.clone().unused(), ..Self::default() };
        bare.tables.namespaces.clone_from(&self.tables.namespaces);
        bare
    }
    /// The same cluster with numbers for names that are in use alone. Pods that were read before must be read again, and
    /// what was computed from it be computed anew.
    #[must_use]
    pub fn renumbered(self) -> Self {
        let Self { tables, objects, nodes, placed, .. } = self;
        let mut fresh = Self { objects: objects.unused(), ..Self::default() };
        fresh.tables.namespaces = tables.namespaces;
        for object in nodes.iter().filter_map(|node| node.node.clone()) {
            fresh.set_node(object);
        }
        for node in &nodes {
            for (uid, seat) in &node.pods {
                let info = fresh.read(seat.info.pod.clone());
                let assumed = placed.get(uid).is_some_and(|p| p.assumed);
                fresh.place(Seat { info, started: seat.started }, &node.name, assumed);
            }
        }
        fresh
    }
}

fn count_term(counts: &mut BTreeMap<u32, u32>, value: Option<u32>, by: u32, add: bool) {
    let Some(value) = value.filter(|v| *v != NO_VALUE) else { return };
    if add {
        *counts.entry(value).or_default() += by;
    } else if let Some(count) = counts.get_mut(&value) {
        *count = count.saturating_sub(by);
        if *count == 0 {
            counts.remove(&value);
        }
    }
}

/// Whether nothing that the scheduler looks at differs.
fn same(a: &Pod, b: &Pod) -> bool {
    a.labels == b.labels
        && a.is_deleting() == b.is_deleting()
        && (Arc::ptr_eq(&a.spec, &b.spec) || a.spec.bytes == b.spec.bytes)
}
