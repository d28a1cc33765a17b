//! A node with what its pods take, added up.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::Time;
use carrack_types::fit::HostPort;
use k8s_openapi::api::core::v1::{Node, Taint};

use crate::amounts::{Amounts, Sums};
use crate::pod_info::PodInfo;
use crate::tables::{Labels, NO_VALUE, TopologyId, ValueId};

/// Number of a node; one that is gone gives its number to another.
pub type NodeId = u32;

/// Features that a node declares.
pub(super) fn features_of(node: &Node) -> &[String] {
    node.status.as_ref().and_then(|status| status.declared_features.as_deref()).unwrap_or_default()
}

/// A pod on a node.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The pod.
    pub info: Arc<PodInfo>,
    /// When its kubelet first saw it.
    pub started: Option<Time>,
}

/// How many pods of a kind are on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCount {
    /// All of them.
    pub all: u32,
    /// Those whose deletion was not asked for.
    pub staying: u32,
}

/// A node and its pods.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// Name.
    pub name: Arc<str>,
    /// The node; none when pods name one that is not (or no longer) known.
    pub node: Option<Arc<Node>>,
    /// Grows whenever the object changed in a way that matters.
    pub object_version: u64,
    /// What it offers.
    pub allocatable: Amounts,
    /// How many pods it takes.
    pub most_pods: i64,
    /// What its pods ask for.
    pub requested: Sums,
    /// CPU and memory of its pods as scores count them.
    pub nonzero: [i128; 2],
    /// Its pods by UID, assumed ones among them.
    pub pods: BTreeMap<Arc<str>, Seat>,
    /// Host ports in use.
    pub ports: Vec<HostPort>,
    /// Its pods by kind.
    pub kinds: BTreeMap<u32, KindCount>,
    /// Affinity terms of its pods.
    pub terms: BTreeMap<u32, u32>,
    /// Its value of each topology key.
    pub topology: Vec<ValueId>,
    /// Images on it, sorted.
    pub images: Vec<u32>,
    /// When anything of it last changed, as a number.
    pub(super) changed: u64,
    pub(super) newer: NodeId,
    pub(super) older: NodeId,
}

impl NodeInfo {
    /// Whether the node exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.node.is_some()
    }
    /// Its labels.
    #[must_use]
    pub fn labels(&self) -> Option<&Labels> {
        self.node.as_ref()?.metadata.labels.as_ref()
    }
    /// Its taints.
    #[must_use]
    pub fn taints(&self) -> &[Taint] {
        self.node.as_ref().and_then(|n| n.spec.as_ref()).and_then(|s| s.taints.as_deref()).unwrap_or_default()
    }
    /// Features that it declares.
    #[must_use]
    pub fn declared_features(&self) -> &[String] {
        self.node.as_deref().map(features_of).unwrap_or_default()
    }
    /// Whether it is cordoned.
    #[must_use]
    pub fn is_cordoned(&self) -> bool {
        self.node.as_ref().and_then(|n| n.spec.as_ref()).and_then(|s| s.unschedulable).unwrap_or(false)
    }
    /// Its value of a topology key.
    #[must_use]
    pub fn value(&self, topology: TopologyId) -> ValueId {
        self.topology.get(topology as usize).copied().unwrap_or(NO_VALUE)
    }

    pub(super) fn add(&mut self, seat: Seat) {
        let pod = &seat.info;
        self.requested.add(&pod.requests);
        for (sum, amount) in self.nonzero.iter_mut().zip(pod.nonzero) {
            *sum += i128::from(amount);
        }
        self.ports.extend(pod.host_ports.iter().cloned());
        let kind = self.kinds.entry(pod.kind).or_default();
        kind.all += 1;
        kind.staying += u32::from(!pod.is_terminating());
        for own in &pod.terms {
            *self.terms.entry(own.term).or_default() += 1;
        }
        self.pods.insert(pod.uid.clone(), seat);
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Seat> {
        let seat = self.pods.remove(uid)?;
        let pod = &seat.info;
        self.requested.subtract(&pod.requests);
        for (sum, amount) in self.nonzero.iter_mut().zip(pod.nonzero) {
            *sum -= i128::from(amount);
        }
        for port in &pod.host_ports {
            if let Some(at) = self.ports.iter().position(|p| p == port) {
                self.ports.swap_remove(at);
            }
        }
        if let Some(kind) = self.kinds.get_mut(&pod.kind) {
            kind.all = kind.all.saturating_sub(1);
            kind.staying = kind.staying.saturating_sub(u32::from(!pod.is_terminating()));
            if kind.all == 0 {
                self.kinds.remove(&pod.kind);
            }
        }
        for own in &pod.terms {
            if let Some(count) = self.terms.get_mut(&own.term) {
                *count -= 1;
                if *count == 0 {
                    self.terms.remove(&own.term);
                }
            }
        }
        Some(seat)
    }
}
