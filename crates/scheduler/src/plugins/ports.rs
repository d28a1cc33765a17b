//! Host ports: two pods on one node can't have the same.

use crate::{Filter, NodeInfo, PodInfo, Refusal};

/// Host ports of the pod against those of the pods on the node.
pub struct NodePorts;
impl Filter for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let clash = |a: &(String, String, i32), b: &(String, String, i32)| {
            a.1 == b.1 && a.2 == b.2 && (a.0 == b.0 || a.0 == "0.0.0.0" || b.0 == "0.0.0.0")
        };
        let taken = || node.pods.values().flat_map(|p| &p.host_ports);
        if pod.host_ports.iter().any(|p| taken().any(|t| clash(p, t))) {
            Err(Refusal::resolvable("node(s) didn't have free ports for the requested pod ports"))
        } else {
            Ok(())
        }
    }
}
