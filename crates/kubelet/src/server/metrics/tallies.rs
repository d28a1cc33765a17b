//! What `/metrics` says of what is counted by a word each, under upstream's names (`pkg/kubelet/metrics/metrics.go`).

use super::Page;
use crate::effects::Tally;

/// The page.
pub(in crate::server) fn tallies(all: &[((Tally, String), u64)]) -> String {
    let families = [
        (
            Tally::Preempted,
            "kubelet_preemptions",
            "preemption_signal",
            "[ALPHA] Cumulative number of pod preemptions by preemption resource",
        ),
        (
            Tally::Rejected,
            "kubelet_admission_rejections_total",
            "reason",
            "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
        ),
        (
            Tally::Collected,
            "kubelet_image_garbage_collected_total",
            "reason",
            "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
        ),
        (
            Tally::Registered,
            "kubelet_device_plugin_registration_total",
            "resource_name",
            "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
        ),
        (
            Tally::Evicted,
            "kubelet_evictions",
            "eviction_signal",
            "[ALPHA] Cumulative number of pod evictions by eviction signal",
        ),
        (
            Tally::Started,
            "kubelet_started_containers_total",
            "container_type",
            "[ALPHA] Cumulative number of containers started",
        ),
    ];
    let mut page = Page::default();
    for (of, name, label, help) in families {
        let counts = all.iter().filter(|((tally, _), _)| *tally == of).map(|((_, word), count)| (word, *count));
        page.counter(name, help, label, counts);
    }
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_counts() {
        let page = tallies(&[
            ((Tally::Preempted, "cpu".into()), 3),
            ((Tally::Rejected, "OutOfcpu".into()), 2),
            ((Tally::Collected, "age".into()), 3),
            ((Tally::Registered, "example.com/x".into()), 1),
            ((Tally::Evicted, "emptydirfs.limit".into()), 2),
            ((Tally::Evicted, "memory.available".into()), 1),
            ((Tally::Started, "init_container".into()), 1),
        ]);
        for line in [
            "# TYPE kubelet_preemptions counter",
            "kubelet_preemptions{preemption_signal=\"cpu\"} 3",
            "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 2",
            "kubelet_image_garbage_collected_total{reason=\"age\"} 3",
            "kubelet_device_plugin_registration_total{resource_name=\"example.com/x\"} 1",
            "kubelet_evictions{eviction_signal=\"emptydirfs.limit\"} 2",
            "kubelet_evictions{eviction_signal=\"memory.available\"} 1",
            "kubelet_started_containers_total{container_type=\"init_container\"} 1",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
        assert_eq!(page.lines().count(), 19, "{page}");
    }
}
