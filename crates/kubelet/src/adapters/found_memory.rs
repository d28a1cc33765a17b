//! What memory the machine's NUMA nodes have, from /sys.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::found_cpus;
use super::host::hugepages_in;
use crate::memory::{MEMORY, Machine, Sizes};
use crate::status::node::hugepage_resource;

/// From a directory such as /sys/devices/system/node. A machine without one is a single node, which has all there is. Nothing where
/// a node does not tell: what is known of the others alone is no word on the machine.
pub(super) fn look(dir: &Path, memory_bytes: u64, hugepages: &BTreeMap<u64, u64>) -> Machine {
    let online = found_cpus::list(&dir.join("online"));
    if online.is_empty() {
        return Machine::from([(0, sizes(memory_bytes, hugepages))]);
    }
    let of_node = |number: u32| {
        let node = dir.join(format!("node{number}"));
        let total = total(&fs::read_to_string(node.join("meminfo")).ok()?)?;
        Some((number, sizes(total, &hugepages_in(&node.join("hugepages")))))
    };
    online.iter().map(of_node).collect::<Option<Machine>>().unwrap_or_default()
}

fn sizes(memory_bytes: u64, hugepages: &BTreeMap<u64, u64>) -> Sizes {
    let huge = hugepages.iter().map(|(size, bytes)| (hugepage_resource(*size), *bytes));
    huge.chain([(MEMORY.to_owned(), memory_bytes)]).collect()
}

/// Bytes in a line such as `Node 0 MemTotal:       16314088 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn nodes_have_their_own_memory() {
        let huge = BTreeMap::from([(2 << 20, 4 << 20)]);
        let sizes = |memory: u64, small: u64| Sizes::from([("hugepages-2Mi".into(), small), (MEMORY.into(), memory)]);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(look(dir.path(), 1 << 30, &huge), Machine::from([(0, sizes(1 << 30, 4 << 20))]));
        write(dir.path(), "online", "0,2\n");
        write(dir.path(), "node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:        7 kB\n");
        write(dir.path(), "node0/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
        // Half of a machine is none.
        assert_eq!(look(dir.path(), 1 << 30, &huge), Machine::new());
        write(dir.path(), "node2/meminfo", "Node 2 MemTotal: 2048 kB\n");
        write(dir.path(), "node2/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
        let expected = Machine::from([(0, sizes(1 << 20, 6 << 20)), (2, sizes(2 << 20, 0))]);
        assert_eq!(look(dir.path(), 1 << 30, &huge), expected);
    }

    #[test]
    fn this_machine_tells() {
        let memory = look(Path::new("/sys/devices/system/node"), 1 << 30, &BTreeMap::new());
        assert!(memory.values().all(|sizes| sizes.contains_key(MEMORY)), "{memory:?}");
    }
}
