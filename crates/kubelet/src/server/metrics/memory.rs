//! What `/metrics` says of memory of NUMA nodes that is kept for containers, under upstream's names.

use super::Page;
use crate::memory::MemoryView;

/// The page.
pub(in crate::server) fn memory(view: &MemoryView) -> String {
    let mut page = Page::default();
    let (asked, refused) = view.asked;
    for (name, help, value) in [
        (
            "kubelet_memory_manager_pinning_requests_total",
            "[ALPHA] The number of memory pages allocations which required pinning.",
            asked,
        ),
        (
            "kubelet_memory_manager_pinning_errors_total",
            "[ALPHA] The number of memory pages allocations which required pinning that failed.",
            refused,
        ),
    ] {
        page.family(name, "counter", help);
        page.sample(name, &[], value);
    }
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted() {
        let page = memory(&MemoryView { asked: (5, 1), ..MemoryView::default() });
        for line in ["kubelet_memory_manager_pinning_requests_total 5", "kubelet_memory_manager_pinning_errors_total 1"]
        {
            assert!(page.lines().any(|l| l == line), "{line} is not in {page}");
        }
    }
}
