//! What `/metrics` says of CPUs that containers have for themselves, under upstream's names.

use super::Page;
use crate::cpus::CpuView;

/// The page.
pub(in crate::server) fn cpus(view: &CpuView) -> String {
    let mut page = Page::default();
    let (asked, refused) = view.asked;
    let taken: usize = view.by_node.values().sum();
    for (name, kind, help, value) in [
        (
            "kubelet_cpu_manager_pinning_requests_total",
            "counter",
            "[ALPHA] The number of cpu core allocations which required pinning.",
            asked,
        ),
        (
            "kubelet_cpu_manager_pinning_errors_total",
            "counter",
            "[ALPHA] The number of cpu core allocations which required pinning failed.",
            refused,
        ),
        (
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "gauge",
            "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            view.free.len() as u64 * 1000,
        ),
        (
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "gauge",
            "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
            taken as u64,
        ),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    }
    let name = "kubelet_cpu_manager_allocation_per_numa";
    page.family(name, "gauge", "[ALPHA] Number of CPUs allocated per NUMA node");
    for (node, count) in &view.by_node {
        page.sample(name, &[("numa_node", &node.to_string())], count);
    }
    let name = "kubelet_container_aligned_compute_resources_count";
    page.family(
        name,
        "counter",
        "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
    );
    page.sample(name, &[("boundary", "physical_cpu"), ("scope", "container")], view.in_whole_cores);
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        let view = CpuView {
            free: "3-7".parse().unwrap(),
            asked: (5, 1),
            in_whole_cores: 4,
            by_node: [(0, 2), (1, 1)].into(),
            ..CpuView::default()
        };
        let page = cpus(&view);
        for line in [
            "kubelet_cpu_manager_pinning_requests_total 5",
            "kubelet_cpu_manager_pinning_errors_total 1",
            "kubelet_cpu_manager_shared_pool_size_millicores 5000",
            "kubelet_cpu_manager_exclusive_cpu_allocation_count 3",
            "kubelet_cpu_manager_allocation_per_numa{numa_node=\"1\"} 1",
            "kubelet_container_aligned_compute_resources_count{boundary=\"physical_cpu\",scope=\"container\"} 4",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in {page}");
        }
    }
}
