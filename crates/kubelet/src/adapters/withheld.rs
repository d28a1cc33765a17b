//! What a container is kept from that it was not given: the machine's swap, its huge pages, and a life without the processes
//! that were killed for memory.
//!
//! All of it is written into the container's own control group (upstream:
//! `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`), where the kernel has a file for it: what it has none for, no runtime
//! could write. The older hierarchy has no bound for swap alone; there runtimes let who has a limit of memory have no swap.

use std::fs;

use k8s_cri::v1;

use super::{cgroups, host};
use crate::runtime::Resources;
use crate::spec::resources::hugepage_name;

/// The file that bounds a group's swap.
const SWAP: &str = "memory.swap.max";
/// The file that says whether all of a group's processes are killed where one of them would be.
const TOGETHER: &str = "memory.oom.group";

/// A container to be made, with what it is kept from. Its group will be below the one at this path.
pub(super) fn from(mut config: v1::ContainerConfig, limits: &Resources, group: &str) -> v1::ContainerConfig {
    if let Some(r) = config.linux.as_mut().and_then(|l| l.resources.as_mut()) {
        let pages = host::hugepages().into_keys().map(hugepage_name);
        keep_from_pages(r, pages.filter(|page| cgroups::bounds_pages(group, page)));
        if cgroups::bounds(group, SWAP) {
            r.unified.insert(SWAP.to_owned(), swap(limits));
        }
        if limits.dies_whole && cgroups::bounds(group, TOGETHER) {
            r.unified.insert(TOGETHER.to_owned(), "1".to_owned());
        }
    }
    config
}

/// The new size of a container, with the swap that belongs to it. Who has none keeps having none. A kernel without swap may have
/// no file for it, and nothing to bound.
pub(super) fn resized(mut size: v1::LinuxContainerResources, limits: &Resources) -> v1::LinuxContainerResources {
    if limits.swap_for_bytes > 0 && cgroups::is_unified() && host::swap_bytes() > 0 {
        size.unified.insert(SWAP.to_owned(), swap(limits));
    }
    size
}

/// Of the pages that it asked for none of it gets none.
fn keep_from_pages(r: &mut v1::LinuxContainerResources, pages: impl Iterator<Item = String>) {
    for page_size in pages {
        if r.hugepage_limits.iter().all(|asked| asked.page_size != page_size) {
            r.hugepage_limits.push(v1::HugepageLimit { page_size, limit: 0 });
        }
    }
}

fn swap(limits: &Resources) -> String {
    let facts = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |key: &str| host::meminfo(&facts, key);
    share(limits.swap_for_bytes, bytes("MemTotal"), bytes("SwapTotal")).to_string()
}

/// As much of the swap as an amount is of the memory, in bytes (upstream's `calcSwapForBurstablePods`).
fn share(of_bytes: i64, memory_bytes: u64, swap_bytes: u64) -> u64 {
    let of_bytes = u64::try_from(of_bytes).unwrap_or(0);
    if of_bytes > memory_bytes || memory_bytes == 0 {
        return 0;
    }
    u64::try_from(u128::from(swap_bytes) * u128::from(of_bytes) / u128::from(memory_bytes)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_shared_by_memory() {
        for (of, memory, swap, expected) in
            [(0, 100, 50, 0), (20, 100, 50, 10), (100, 100, 50, 50), (101, 100, 50, 0), (20, 100, 0, 0), (1, 0, 1, 0)]
        {
            assert_eq!(share(of, memory, swap), expected, "{of} of {memory}, {swap}");
        }
    }

    #[test]
    fn nobody_has_pages_that_he_did_not_ask_for() {
        let asked = v1::HugepageLimit { page_size: "2MB".into(), limit: 7 };
        let mut r = v1::LinuxContainerResources { hugepage_limits: vec![asked], ..Default::default() };
        keep_from_pages(&mut r, ["1GB".to_owned(), "2MB".to_owned()].into_iter());
        let limits: Vec<_> = r.hugepage_limits.iter().map(|l| (l.page_size.as_str(), l.limit)).collect();
        assert_eq!(limits, [("2MB", 7), ("1GB", 0)]);
    }
}
