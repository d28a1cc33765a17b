//! What a node's machine has, what is left of it, and who uses how much. It is always the same where nothing presses on the node
//! ([`crate::pressure`]).

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;
use carrack_kubelet::eviction::Usage;
use carrack_kubelet::runtime::{Dns, HostFacts, Uid};

use super::{CPUS, MEMORY_BYTES, Node};
use crate::invariants::Breach;
use crate::observer::Observer;
use crate::pressure::Used;
use crate::role::node_name;

/// The bytes of its disk, and those that are free where nobody uses any.
const DISK_BYTES: u64 = 100 << 30;
const FREE_BYTES: u64 = 50 << 30;
/// The same of its inodes.
const INODES: u64 = 1_000_000;
const FREE_INODES: u64 = 900_000;
/// Its process ids, and those that are used in any case.
const PIDS: u64 = 100_000;
const USED_PIDS: u64 = 100;

impl Node {
    pub(crate) fn facts(&self, now: Time) -> HostFacts {
        let (numa_memory, cpu_topology) = crate::memory::machine(self.keeps_memory);
        let used = self.used(now);
        let free_bytes = FREE_BYTES.saturating_sub(used.disk_bytes);
        let free_inodes = FREE_INODES.saturating_sub(used.inodes);
        HostFacts {
            boot_id: self.boot_id(),
            booted_at: self.booted_at,
            machine_id: format!("machine-{}", self.number),
            system_uuid: format!("uuid-{}", self.number),
            kernel_version: "6.1.0-sim".into(),
            os_image: "Simulated".into(),
            architecture: "amd64".into(),
            hostname: node_name(self.number),
            cpus: CPUS,
            cpu_topology,
            numa_nodes: vec![0, 1],
            numa_memory,
            memory_bytes: MEMORY_BYTES,
            memory_available_bytes: (MEMORY_BYTES / 2).saturating_sub(used.memory_bytes),
            swap_bytes: 0,
            pods_memory_bytes: 0,
            pods_memory_available_bytes: 0,
            hugepages_bytes: BTreeMap::new(),
            disk_bytes: DISK_BYTES,
            disk_available_bytes: free_bytes,
            images_apart: false,
            image_disk_bytes: DISK_BYTES,
            image_disk_available_bytes: free_bytes,
            image_inodes: INODES,
            image_inodes_free: free_inodes,
            inodes: INODES,
            inodes_free: free_inodes,
            pids_max: PIDS,
            pids: USED_PIDS + used.pids,
            addresses: vec![std::net::IpAddr::from([192, 168, 0, self.number])],
            resolver: Dns::default(),
            apparmor: false,
        }
    }

    /// What is used of the machine beyond what always is.
    fn used(&self, now: Time) -> Used {
        let Some(low) = &self.low else { return Used::default() };
        let images = Used { disk_bytes: self.images.old_bytes(), ..Used::default() };
        self.runtime.uses(now).map(|(_, used)| used).chain([images, low.beside(now)]).sum()
    }

    /// What pods use.
    pub(super) fn usage(&self, now: Time, pods: BTreeSet<Uid>) -> BTreeMap<Uid, Usage> {
        if self.low.is_none() {
            return BTreeMap::new();
        }
        let of = |pod: &Uid| {
            let mut usage = Usage { processes: 1, ..Usage::default() };
            for (container, used) in self.runtime.uses(now).filter(|(container, _)| container.pod.uid == *pod) {
                usage.memory_bytes += used.memory_bytes;
                usage.disk_bytes += used.disk_bytes;
                usage.layer_bytes += used.disk_bytes;
                *usage.memory.entry(container.name.clone()).or_default() += used.memory_bytes;
                *usage.containers.entry(container.name.clone()).or_default() += used.disk_bytes;
            }
            usage
        };
        let measured = |pod: Uid| {
            let usage = of(&pod);
            (pod, usage)
        };
        pods.into_iter().map(measured).collect()
    }

    /// Its kubelet has just chosen pods that have to go.
    pub(crate) fn evicts(&mut self, now: Time, chosen: &[Uid], observer: &Observer, breaches: &mut Vec<Breach>) {
        let Some(low) = &mut self.low else { return };
        low.evicts((self.number, now), chosen, &self.runtime, observer, breaches);
        self.runtime.evicted.extend(chosen.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Rng;

    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    #[test]
    fn a_node_on_which_nothing_presses_has_what_it_always_has() {
        let node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        let facts = node.facts(Time::from_unix_s(1000));
        let left = (facts.memory_available_bytes, facts.disk_available_bytes, facts.inodes_free, facts.pids);
        assert_eq!(left, (MEMORY_BYTES / 2, FREE_BYTES, FREE_INODES, USED_PIDS));
        assert!(node.usage(Time::default(), BTreeSet::from(["p".into()])).is_empty(), "nothing is known of it");
    }
}
