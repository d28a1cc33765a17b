//! The last word of admission: whether a pod's CPUs, memory and devices can be had, and lie together.

use k8s_openapi::api::core::v1::Pod;

use super::cpus::total_need;
use super::{Fx, KubeletCore};
use crate::admission::Decision;
use crate::align::{Alignment, Lay, Need, Stock};
use crate::config::NodeConfig;
use crate::cpus::Refusal;
use crate::devices::Devices;
use crate::runtime::{HostFacts, Uid};
use crate::topology::{MAX_NODES, Nodes, Policy};

/// Whether sets of the machine's NUMA nodes can be tried, where that is asked for.
pub(super) fn few_nodes(config: &NodeConfig, host: &HostFacts) -> Result<(), String> {
    let nodes = host.numa_nodes.len();
    if config.topology.0 == Policy::None || nodes <= MAX_NODES {
        return Ok(());
    }
    Err(format!("topologyManagerPolicy is for machines with at most {MAX_NODES} NUMA nodes; there are {nodes}"))
}

impl KubeletCore {
    /// What is granted and intended, for those who check invariants.
    #[must_use]
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The machine's NUMA nodes.
    fn numa_nodes(&self) -> Nodes {
        Nodes::of(self.host.numa_nodes.iter().map(|n| i64::from(*n)))
    }

    /// Ends the kubelet where sets of NUMA nodes are too many to be tried, as upstream does.
    pub(super) fn check_topology(&self, fx: &mut Fx) {
        if let Err(why) = few_nodes(&self.config, &self.host) {
            fx.exit(why);
        }
    }

    /// The pod's containers are over: what they had is free.
    pub(super) fn let_go(&mut self, uid: &Uid) {
        if self.devices.release(uid) {
            self.checkpoint.touch();
        }
        if self.cpus.release(uid) {
            self.cpus_changed();
        }
        if self.numa.memory.release(uid) {
            self.memory_changed();
        }
    }

    /// Notes what a pod that is admitted otherwise is given: CPUs of its own, memory of NUMA nodes, and devices where the node
    /// insists that they lie together.
    pub(super) fn laid_together(&mut self, uid: &Uid, pod: &Pod) -> Decision {
        let ((policy, scope), all) = (self.config.topology, self.numa_nodes());
        let policy = if all.count() == 0 { Policy::None } else { policy };
        if policy == Policy::None && !self.cpus.assigns() && !self.numa.memory.assigns() {
            return Decision::Admit;
        }
        let needs = self.needs(pod);
        let total = total_need(pod, &needs);
        let lay = Lay { uid, policy, scope, all, needs: &needs, total: &total };
        let mut stock = Stock { devices: &mut self.devices, cpus: &mut self.cpus, memory: &mut self.numa.memory };
        match lay.together(&mut stock) {
            Alignment::Aligned(news) => {
                if news.devices {
                    self.checkpoint.touch();
                }
                if news.cpus {
                    self.cpus_changed();
                }
                if news.memory {
                    self.memory_changed();
                }
                Decision::Admit
            }
            Alignment::Refused => Decision::Reject {
                reason: "TopologyAffinityError".into(),
                message: "Resources cannot be allocated with Topology locality".into(),
            },
            Alignment::Lacking(resource) => {
                let message = format!("devices of {resource} are held by containers that are not over yet");
                Decision::Wait { resource, message }
            }
            Alignment::NoCpus(refusal, wanted) => {
                self.show_counts();
                let leaves = |uid: &Uid| self.leaves(uid);
                if !matches!(refusal, Refusal::Torn { .. }) && self.cpus.free_without(leaves) >= wanted {
                    let message = "CPUs are held by pods that are terminating".into();
                    return Decision::Wait { resource: "cpu".into(), message };
                }
                let (reason, message) = refusal.rejection();
                Decision::Reject { reason: reason.into(), message }
            }
            Alignment::NoMemory(refusal) => {
                self.show_counts();
                self.no_memory(refusal, &needs)
            }
        }
    }

    /// Whether a pod is on its way out.
    fn leaves(&self, uid: &Uid) -> bool {
        self.workers.get(uid).is_none_or(|w| w.stopping.is_some())
    }

    /// What pods that are on their way out have is waited for.
    fn no_memory(&self, refusal: crate::memory::Refusal, needs: &[Need]) -> Decision {
        let asks = needs.iter().map(|need| &need.memory).filter(|asks| !asks.is_empty());
        if self.numa.memory.could_without(|uid| self.leaves(uid), asks) {
            let message = "memory of NUMA nodes is held by pods that are terminating".into();
            return Decision::Wait { resource: "memory".into(), message };
        }
        let (reason, message) = refusal.rejection();
        Decision::Reject { reason: reason.into(), message }
    }
}
