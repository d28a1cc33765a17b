//! Which CPUs to take (kubelet `cm/cpumanager/cpu_assignment.go`).
//!
//! *Packed*: whole NUMA nodes and sockets first, then whole caches where that is preferred, then whole cores, then single
//! threads; among equals what has the fewest free CPUs, so that what is whole stays whole. *Distributed*: the same number
//! from each of as few NUMA nodes as will do.

use super::topology::{Level, Topology};
use super::{CpuSet, Options};

/// Takes `count` of the free CPUs; none where there are not as many.
#[must_use]
pub fn take(topology: &Topology, free: &CpuSet, count: usize, options: Options) -> Option<CpuSet> {
    if count == 0 {
        return Some(CpuSet::default());
    }
    if free.len() < count {
        return None;
    }
    if options.distribute_across_numa {
        let group = if options.full_cores_only { topology.threads_per_core() } else { 1 };
        return super::distribute::distributed(topology, free, count, group, options);
    }
    packed(topology, free, count, options.prefer_one_cache)
}

/// Takes CPUs that lie together.
pub(super) fn packed(topology: &Topology, free: &CpuSet, count: usize, one_cache: bool) -> Option<CpuSet> {
    let mut taking = Taking { topology, free: free.clone(), need: count, taken: CpuSet::default() };
    let numa: Level = |place| place.numa;
    let socket: Level = |place| place.socket;
    // What contains the other comes first.
    let outer = if topology.count(socket) >= topology.count(numa) { [numa, socket] } else { [socket, numa] };
    taking.take_whole(&outer[..1]);
    taking.take_whole(&outer);
    if one_cache {
        taking.take_caches(&[outer[0], outer[1], |place| place.cache]);
    }
    let cores: [Level; 3] = [outer[0], outer[1], |place| place.core];
    taking.take_whole(&cores);
    for (_, cpus) in taking.sorted(&cores) {
        for cpu in cpus.iter() {
            taking.take(&CpuSet::from_iter([cpu]));
        }
    }
    (taking.need == 0).then_some(taking.taken)
}

struct Taking<'a> {
    topology: &'a Topology,
    free: CpuSet,
    need: usize,
    taken: CpuSet,
}

impl Taking<'_> {
    /// Takes these if no more than that are needed.
    fn take(&mut self, cpus: &CpuSet) {
        if cpus.len() <= self.need {
            self.need -= cpus.len();
            self.taken.add(cpus);
            self.free = self.free.minus(cpus);
        }
    }

    /// What is free, by the innermost of these levels: emptier ones first, within emptier ones of the level above.
    fn sorted(&self, levels: &[Level]) -> Vec<(u32, CpuSet)> {
        let mut out = vec![(0, self.free.clone())];
        for level in levels {
            let inner = |(_, cpus): (u32, CpuSet)| {
                let mut groups: Vec<_> = self.topology.groups(&cpus, *level).into_iter().collect();
                groups.sort_by_key(|(id, cpus)| (cpus.len(), *id));
                groups
            };
            out = out.into_iter().flat_map(inner).collect();
        }
        out
    }

    /// Takes what is free as a whole, as long as so many are needed.
    fn take_whole(&mut self, levels: &[Level]) {
        let Some(level) = levels.last() else { return };
        let whole = self.topology.groups(&self.topology.all(), *level);
        for (id, cpus) in self.sorted(levels) {
            if whole.get(&id) == Some(&cpus) {
                self.take(&cpus);
            }
        }
    }

    /// Takes whole caches, and the rest from the first one that has enough.
    fn take_caches(&mut self, levels: &[Level]) {
        self.take_whole(levels);
        let threads = self.topology.threads_per_core();
        for (_, cpus) in self.sorted(levels) {
            if self.need == 0 {
                return;
            }
            let cores = self.topology.groups(&cpus, |place| place.core);
            let wanted = self.need.div_ceil(threads);
            let mut part = CpuSet::default();
            for core in cores.values().take(wanted) {
                part.add(core);
            }
            // An odd number leaves one thread of the last core.
            if part.len() == self.need + 1 && !self.need.is_multiple_of(threads) {
                part = part.iter().take(self.need).collect();
            }
            if part.len() == self.need {
                self.take(&part);
            }
        }
    }
}
