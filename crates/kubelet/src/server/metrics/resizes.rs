//! What `/metrics` says of resizes, under upstream's names (`pkg/kubelet/metrics/metrics.go`).

use super::Page;
use crate::allocation::ResizeCounts;

/// The page.
pub(in crate::server) fn resizes(counts: &ResizeCounts) -> String {
    let mut page = Page::default();
    page.family("kubelet_pod_pending_resizes", "gauge", "[ALPHA] Number of pending resizes for pods.");
    for (reason, count) in &counts.pending {
        page.sample("kubelet_pod_pending_resizes", &[("reason", reason)], count);
    }
    page.family("kubelet_pod_in_progress_resizes", "gauge", "[ALPHA] Number of in-progress resizes for pods.");
    page.sample("kubelet_pod_in_progress_resizes", &[], counts.in_progress);
    let help = "[ALPHA] Number of infeasible resizes for pods.";
    let infeasible = counts.infeasible.iter().map(|(detail, count)| (detail, *count));
    page.counter("kubelet_pod_infeasible_resizes_total", help, "reason_detail", infeasible);
    let help = "[ALPHA] Cumulative number of resizes that were accepted after being deferred.";
    let accepted = counts.accepted.iter().map(|(trigger, count)| (trigger, *count));
    page.counter("kubelet_pod_deferred_accepted_resizes_total", help, "retry_trigger", accepted);
    let name = "kubelet_container_requested_resizes_total";
    page.family(name, "counter", "[ALPHA] Number of requested resizes, counted at the container level.");
    for ((resource, requirement, operation), count) in &counts.requested {
        let labels = [("operation", *operation), ("requirement", *requirement), ("resource", *resource)];
        page.sample(name, &labels, count);
    }
    let name = "kubelet_pod_resize_duration_milliseconds";
    page.family(name, "summary", "[ALPHA] Duration in milliseconds to actuate a pod resize");
    for (good, (count, took)) in &counts.took {
        let labels = [("success", if *good { "true" } else { "false" })];
        page.sample(&format!("{name}_sum"), &labels, took.as_millis());
        page.sample(&format!("{name}_count"), &labels, count);
    }
    page.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counts_are_told_under_upstreams_names() {
        let page = resizes(&ResizeCounts {
            pending: [("deferred", 2), ("infeasible", 0)].into(),
            in_progress: 3,
            infeasible: [("static_pod", 4)].into(),
            accepted: [("pods_removed", 5)].into(),
            requested: [(("cpu", "limits", "increase"), 6)].into(),
            took: [(true, (7, Duration::from_millis(80)))].into(),
        });
        for line in [
            "kubelet_pod_pending_resizes{reason=\"deferred\"} 2",
            "kubelet_pod_pending_resizes{reason=\"infeasible\"} 0",
            "kubelet_pod_in_progress_resizes 3",
            "kubelet_pod_infeasible_resizes_total{reason_detail=\"static_pod\"} 4",
            "kubelet_pod_deferred_accepted_resizes_total{retry_trigger=\"pods_removed\"} 5",
            "kubelet_container_requested_resizes_total{operation=\"increase\",requirement=\"limits\",resource=\"cpu\"} 6",
            "kubelet_pod_resize_duration_milliseconds_sum{success=\"true\"} 80",
            "kubelet_pod_resize_duration_milliseconds_count{success=\"true\"} 7",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
    }
}
