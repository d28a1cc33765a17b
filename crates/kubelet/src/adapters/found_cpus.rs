//! How the machine's CPUs lie together, from /sys.
//!
//! Some files for each CPU tell that, and a machine may have hundreds. They are read again only when other CPUs are online than
//! when they were read last, or lie on other NUMA nodes: cores, sockets and caches stay what they are while their CPUs are there.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cpus::{CpuSet, Place, Topology};

/// Which CPUs are online, and those of each NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Online {
    cpus: CpuSet,
    nodes: Vec<(u32, CpuSet)>,
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The numbers in a file such as /sys/devices/system/cpu/online; none where it tells nothing.
pub(super) fn list(path: &Path) -> CpuSet {
    text(path).parse().unwrap_or_default()
}

impl Online {
    /// As a directory such as /sys/devices/system has it.
    fn read(system: &Path) -> Self {
        let cpus_of = |node| list(&system.join(format!("node/node{node}/cpulist")));
        let nodes = list(&system.join("node/online")).iter().map(|node| (node, cpus_of(node))).collect();
        Self { cpus: list(&system.join("cpu/online")), nodes }
    }
}

/// The CPUs as they were found last.
#[derive(Clone, Debug, Default)]
pub struct FoundCpus(Arc<Mutex<Option<(Online, Topology)>>>);

impl FoundCpus {
    /// How the CPUs lie together, from a directory such as /sys/devices/system; as many plain ones where it tells nothing.
    pub(super) fn look(&self, system: &Path, count: u32) -> Topology {
        let online = Online::read(system);
        if online.cpus.is_empty() {
            return Topology::plain(count);
        }
        // The value is replaced whole.
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, topology)) = found.as_ref().filter(|(then, _)| *then == online) {
            return topology.clone();
        }
        let topology = topology(system, &online);
        // What came or went while it was read is seen the next time.
        *found = Some((online.clone(), topology.clone())).filter(|_| Online::read(system) == online);
        topology
    }
}

fn topology(system: &Path, online: &Online) -> Topology {
    let of = |cpu: u32| {
        let dir = system.join(format!("cpu/cpu{cpu}"));
        let number = |name: &str| text(&dir.join(name)).trim().parse::<u32>().ok();
        let first = |name: &str| list(&dir.join(name)).iter().next();
        // The last cache is the one of the highest level that is there.
        let cache = (2..=4)
            .rev()
            .filter(|index| number(&format!("cache/index{index}/level")) >= Some(3))
            .find_map(|index| first(&format!("cache/index{index}/shared_cpu_list")));
        let socket = number("topology/physical_package_id").unwrap_or(0);
        Place {
            core: first("topology/core_cpus_list").or_else(|| first("topology/thread_siblings_list")).unwrap_or(cpu),
            // Without one, what a socket has is one.
            cache: cache.unwrap_or(u32::MAX - socket.min(u32::MAX / 2)),
            numa: online.nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map_or(0, |(node, _)| *node),
            socket,
        }
    };
    Topology::new(online.cpus.iter().map(|cpu| (cpu, of(cpu))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A directory such as /sys/devices/system of a machine with two sockets of two cores of two threads, one of them off.
    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| write(dir.path(), path, text);
        write("cpu/online", "0-6\n");
        write("node/online", "0-1\n");
        write("node/node0/cpulist", "0-1,4-5\n");
        write("node/node1/cpulist", "2-3,6\n");
        for cpu in 0..8 {
            let core = cpu % 4;
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{}\n", core / 2));
            write(&format!("cpu/cpu{cpu}/topology/core_cpus_list"), &format!("{core},{}\n", core + 4));
            write(&format!("cpu/cpu{cpu}/cache/index2/level"), "2\n");
            write(&format!("cpu/cpu{cpu}/cache/index3/level"), "3\n");
            let together = if core < 2 { "0-1,4-5" } else { "2-3,6" };
            write(&format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), together);
        }
        dir
    }

    #[test]
    fn cpus_are_found_where_they_are() {
        let dir = machine();
        let place = |core, socket| Place { core, cache: socket * 2, numa: socket, socket };
        let expected = [(0, 0), (1, 0), (2, 1), (3, 1), (0, 0), (1, 0), (2, 1)];
        let expected = (0..).zip(expected).map(|(cpu, (core, socket))| (cpu, place(core, socket))).collect();
        assert_eq!(FoundCpus::default().look(dir.path(), 9), Topology::new(expected));
        // A machine that tells nothing has so many.
        assert_eq!(FoundCpus::default().look(&dir.path().join("none"), 3), Topology::plain(3));
    }

    #[test]
    fn cpus_are_looked_at_again_when_they_have_become_others() {
        let (dir, found) = (machine(), FoundCpus::default());
        let first = found.look(dir.path(), 9);
        // It shows which files are read: sockets of CPUs that stay do not change.
        for cpu in 0..8 {
            write(dir.path(), &format!("cpu/cpu{cpu}/topology/physical_package_id"), "7\n");
        }
        assert_eq!(found.look(dir.path(), 9), first);
        let mut seen = first;
        for (path, text) in [("cpu/online", "0-7\n"), ("node/node1/cpulist", "2-3,6-7\n"), ("node/online", "0\n")] {
            write(dir.path(), path, text);
            let now = found.look(dir.path(), 9);
            assert_ne!(now, seen, "{path}");
            assert_eq!(now, FoundCpus::default().look(dir.path(), 9), "{path}");
            seen = now;
        }
    }
}
