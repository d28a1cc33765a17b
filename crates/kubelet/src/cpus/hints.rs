//! NUMA nodes whose CPUs would do for a container, or for a whole pod (`generateCPUTopologyHints` upstream).

use super::{CpuSet, Cpus};
use crate::topology::{Hint, Nodes};

impl Cpus {
    /// Sets of nodes that have `requested` CPUs for a container.
    #[must_use]
    pub fn hints(&self, uid: &str, container: &str, requested: usize, reusable: &[String]) -> Vec<Hint> {
        let (available, again) = self.choice(uid, container, reusable);
        // No more of them than are needed tie it to their nodes.
        let again = again.iter().take(requested).collect();
        self.hints_of(&available, &again, requested)
    }

    /// Sets of nodes that have as many CPUs as a pod needs at one time.
    #[must_use]
    pub fn hints_of_pod(&self, uid: &str, requested: usize) -> Vec<Hint> {
        let mut own = CpuSet::default();
        self.assigned.get(uid).into_iter().flatten().for_each(|(_, cpus)| own.add(cpus));
        let mut available = self.free();
        available.add(&own);
        self.hints_of(&available, &own, requested)
    }

    fn hints_of(&self, available: &CpuSet, again: &CpuSet, requested: usize) -> Vec<Hint> {
        let (topology, all) = (&self.topology, self.topology.all());
        let mut least = topology.nodes().count();
        let mut out = Vec::new();
        let tied: Nodes = again.iter().map(|cpu| topology.node(cpu)).collect();
        for nodes in topology.nodes().subsets() {
            if topology.on(nodes, &all).len() >= requested {
                least = least.min(nodes.count());
            }
            if tied.within(nodes) && topology.on(nodes, available).len() >= requested {
                out.push(nodes);
            }
        }
        out.into_iter().map(|nodes| Hint { nodes: Some(nodes), preferred: nodes.count() == least }).collect()
    }
}
