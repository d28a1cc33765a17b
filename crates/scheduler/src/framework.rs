//! What a plugin is: a filter says whether a pod fits a node, a score how well.

use std::sync::Arc;

use carrack_types::pod::{self, ResourceList};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use crate::NodeInfo;

/// A pod with what plugins ask of it, computed once.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// The pod.
    pub pod: Arc<Pod>,
    /// What it asks of a node.
    pub requests: ResourceList,
    /// Host ports it takes: (host IP, protocol, port).
    pub host_ports: Vec<(String, String, i32)>,
}

impl PodInfo {
    /// From a pod.
    #[must_use]
    pub fn new(pod: Arc<Pod>) -> Self {
        let requests = pod::requests(&pod);
        let spec = pod.spec.as_ref();
        let host_ports = spec
            .into_iter()
            .flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()))
            .flat_map(|c| c.ports.iter().flatten())
            .filter_map(|p| {
                let port = p.host_port.filter(|p| *p > 0)?;
                let ip = p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
                Some((ip, p.protocol.clone().unwrap_or_else(|| "TCP".into()), port))
            })
            .collect();
        Self { pod, requests, host_ports }
    }
    /// Its UID.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.pod.uid()
    }
    /// Its priority; 0 where none is given.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
    }
}

/// Why a node does not take a pod, in upstream's words: the text is counted over all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The texts, at least one.
    pub reasons: Vec<String>,
    /// Whether removing pods from the node could help.
    pub resolvable: bool,
}

impl Refusal {
    /// One reason that removing pods could resolve.
    #[must_use]
    pub fn resolvable(reason: impl Into<String>) -> Self {
        Self { reasons: vec![reason.into()], resolvable: true }
    }
    /// One reason that stays whatever pods are removed.
    #[must_use]
    pub fn unresolvable(reason: impl Into<String>) -> Self {
        Self { reasons: vec![reason.into()], resolvable: false }
    }
}

/// Says whether a pod fits a node.
pub trait Filter: Send {
    /// Upstream's name of the plugin.
    fn name(&self) -> &'static str;
    /// Whether it fits.
    ///
    /// # Errors
    /// Why it does not.
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal>;
}

/// Says how well a pod fits a node.
pub trait Score: Send {
    /// Upstream's name of the plugin.
    fn name(&self) -> &'static str;
    /// From 0 to 100; more is better.
    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> u64;
    /// How much it counts.
    fn weight(&self) -> u64 {
        1
    }
}

/// The plugins of one scheduler.
pub struct Profile {
    /// Asked in order; the first refusal of a node counts.
    pub filters: Vec<Box<dyn Filter>>,
    /// Summed with their weights.
    pub scores: Vec<Box<dyn Score>>,
}
