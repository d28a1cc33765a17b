//! How a machine's CPUs lie together: threads of a core, cores that share their last cache, NUMA nodes, sockets.

use std::collections::BTreeMap;

use super::CpuSet;
use crate::topology::Nodes;

/// Where a CPU is. Cores and caches are called after the first of their CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Physical core.
    pub core: u32,
    /// What shares the last cache.
    pub cache: u32,
    /// NUMA node.
    pub numa: u32,
    /// Socket.
    pub socket: u32,
}

/// The CPUs that are online.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cpus: BTreeMap<u32, Place>,
}

/// Something that CPUs lie in together.
pub(super) type Level = fn(&Place) -> u32;

impl Topology {
    /// Of these CPUs.
    #[must_use]
    pub fn new(cpus: BTreeMap<u32, Place>) -> Self {
        Self { cpus }
    }

    /// Each CPU a core of its own, all in one socket: what is believed of a machine that does not tell.
    #[must_use]
    pub fn plain(count: u32) -> Self {
        Self::new((0..count).map(|cpu| (cpu, Place { core: cpu, ..Place::default() })).collect())
    }

    /// All CPUs.
    #[must_use]
    pub fn all(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// Where a CPU is.
    pub(super) fn place(&self, cpu: u32) -> Option<&Place> {
        self.cpus.get(&cpu)
    }

    /// How many there are of something.
    pub(super) fn count(&self, level: Level) -> usize {
        self.groups(&self.all(), level).len()
    }

    /// How many physical cores there are.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.count(|place| place.core)
    }

    /// How many sockets there are.
    #[must_use]
    pub fn sockets(&self) -> usize {
        self.count(|place| place.socket)
    }

    /// CPUs of each core, as upstream counts: on a machine whose cores differ, what they have on the average.
    #[must_use]
    pub fn threads_per_core(&self) -> usize {
        self.cpus.len().checked_div(self.cores()).unwrap_or(1).max(1)
    }

    /// Those of `cpus` that lie on these NUMA nodes.
    pub(super) fn on(&self, nodes: Nodes, cpus: &CpuSet) -> CpuSet {
        cpus.iter().filter(|cpu| self.node(*cpu).meets(nodes)).collect()
    }

    /// The NUMA node of a CPU; none for one that is not there.
    pub(super) fn node(&self, cpu: u32) -> Nodes {
        self.place(cpu).map(|place| Nodes::of([i64::from(place.numa)])).unwrap_or_default()
    }

    /// All NUMA nodes that have CPUs.
    #[must_use]
    pub fn nodes(&self) -> Nodes {
        Nodes::of(self.cpus.values().map(|place| i64::from(place.numa)))
    }

    /// `cpus` by what they lie in.
    pub(super) fn groups(&self, cpus: &CpuSet, level: Level) -> BTreeMap<u32, CpuSet> {
        let mut out: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for cpu in cpus.iter() {
            if let Some(place) = self.place(cpu) {
                out.entry(level(place)).or_default().push(cpu);
            }
        }
        out.into_iter().map(|(id, cpus)| (id, cpus.into_iter().collect())).collect()
    }

    /// All CPUs of the cores that any of these is of.
    pub(super) fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let cores = self.groups(cpus, |place| place.core);
        self.cpus.iter().filter(|(_, place)| cores.contains_key(&place.core)).map(|(cpu, _)| *cpu).collect()
    }

    /// Those of `cpus` whose cores are among them as a whole.
    pub(super) fn in_whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let torn = self.whole_cores(&self.all().minus(cpus));
        cpus.minus(&torn)
    }
}
