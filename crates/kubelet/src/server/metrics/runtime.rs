//! What `/metrics` says of the runtime's operations, under upstream's names (`pkg/kubelet/metrics/metrics.go`).

use std::collections::BTreeMap;

use super::Page;
use crate::adapters::storage_times::Histogram;

/// The operation by which a pod starts.
const SANDBOX: &str = "run_podsandbox";
/// The operation by which it is seen which pods run.
const RELIST: &str = "list_containers";

/// The page, of operations by their names and whether they succeeded.
pub(in crate::server) fn runtime(all: &[((&'static str, bool), Histogram)]) -> String {
    let mut page = Page::default();
    let (mut by_name, mut failed) = (BTreeMap::<&str, Histogram>::new(), BTreeMap::<&str, u64>::new());
    for ((operation, good), times) in all {
        by_name.entry(operation).or_default().add(times);
        if !good {
            failed.insert(operation, times.count);
        }
    }
    let help = "[ALPHA] Cumulative number of runtime operations by operation type.";
    let counts = by_name.iter().map(|(operation, times)| (operation, times.count));
    page.counter("kubelet_runtime_operations_total", help, "operation_type", counts);
    for (name, help, count) in [
        (
            "kubelet_started_pods_total",
            "[ALPHA] Cumulative number of pods started",
            by_name.get(SANDBOX).map_or(0, |times| times.count),
        ),
        (
            "kubelet_started_pods_errors_total",
            "[ALPHA] Cumulative number of errors when starting pods",
            failed.get(SANDBOX).copied().unwrap_or(0),
        ),
    ] {
        page.family(name, "counter", help);
        page.sample(name, &[], count);
    }
    let help = "[ALPHA] Cumulative number of runtime operation errors by operation type.";
    page.counter("kubelet_runtime_operations_errors_total", help, "operation_type", failed);
    let name = "kubelet_runtime_operations_duration_seconds";
    page.family(name, "histogram", "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.");
    for (operation, times) in &by_name {
        page.histogram(name, &[("operation_type", operation)], times);
    }
    if let Some(times) = by_name.get(RELIST) {
        let name = "kubelet_pleg_relist_duration_seconds";
        page.family(name, "histogram", "[ALPHA] Duration in seconds for relisting pods in PLEG.");
        page.histogram(name, &[], times);
    }
    page.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::adapters::storage_times::Histograms;

    #[test]
    fn operations_are_counted_with_their_failures() {
        let times = Histograms::<(&'static str, bool)>::default();
        for (good, millis) in [(true, 50), (true, 200), (false, 3000)] {
            times.ended(("list_containers", good), Duration::from_millis(millis));
        }
        times.ended(("pull_image", true), Duration::from_secs(2));
        times.ended(("run_podsandbox", true), Duration::from_secs(1));
        times.ended(("run_podsandbox", false), Duration::from_secs(1));
        let page = runtime(&times.all());
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"list_containers\"} 3",
            "kubelet_runtime_operations_errors_total{operation_type=\"list_containers\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"list_containers\",le=\"0.25\"} 2",
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=\"list_containers\"} 3.25",
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"pull_image\"} 1",
            "kubelet_pleg_relist_duration_seconds_bucket{le=\"5\"} 3",
            "kubelet_pleg_relist_duration_seconds_count 3",
            "kubelet_started_pods_total 2",
            "kubelet_started_pods_errors_total 1",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
        assert!(!page.contains("errors_total{operation_type=\"pull_image\"}"), "{page}");
    }
}
