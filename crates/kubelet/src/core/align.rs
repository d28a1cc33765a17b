//! The last word of admission: whether a pod's devices can lie together.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::{Fx, KubeletCore};
use crate::admission::Decision;
use crate::devices::{Alignment, Need};
use crate::runtime::Uid;
use crate::spec::pod;
use crate::topology::{MAX_NODES, Nodes, Policy};

impl KubeletCore {
    /// The machine's NUMA nodes.
    fn numa_nodes(&self) -> Nodes {
        Nodes::of(self.host.numa_nodes.iter().map(|n| i64::from(*n)))
    }

    /// Ends the kubelet where sets of NUMA nodes are too many to be tried, as upstream does.
    pub(super) fn check_topology(&self, fx: &mut Fx) {
        let nodes = self.host.numa_nodes.len();
        if self.config.topology.0 != Policy::None && nodes > MAX_NODES {
            fx.exit(format!(
                "topologyManagerPolicy is for machines with at most {MAX_NODES} NUMA nodes; there are {nodes}"
            ));
        }
    }

    /// Chooses and notes the devices of a pod that is admitted otherwise, where the node insists that they lie together.
    pub(super) fn laid_together(&mut self, uid: &Uid, pod: &Pod) -> Decision {
        let ((policy, scope), all) = (self.config.topology, self.numa_nodes());
        if policy == Policy::None || all.count() == 0 {
            return Decision::Admit;
        }
        let containers = pod::init_containers(pod).map(|(_, c)| c).chain(&pod::spec(pod).containers);
        let needs: Vec<Need> = containers
            .filter_map(|c| {
                let (counts, reusable) = self.device_needs(pod, &c.name)?;
                let reusable = reusable.into_iter().map(str::to_owned).collect();
                Some(Need { container: c.name.clone(), counts, reusable })
            })
            .collect();
        let named = |resource: &String| needs.iter().any(|n| n.counts.contains_key(resource));
        let totals: BTreeMap<String, usize> = pod::requests(pod)
            .into_iter()
            .filter(|(resource, _)| named(resource))
            .map(|(resource, milli)| (resource, usize::try_from(milli / 1000).unwrap_or(0)))
            .collect();
        match self.devices.align(uid, policy, scope, all, &needs, &totals) {
            Alignment::Aligned(news) => {
                if news {
                    self.checkpoint.touch();
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
        }
    }
}
