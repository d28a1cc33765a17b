//! What `/metrics` says of how long it took to start pods, under upstream's names (`pkg/kubelet/metrics/metrics.go`).

use super::Page;
use crate::adapters::storage_times::Histogram;

/// The page, of how long images took by their sizes, and of how long pods did.
pub(in crate::server) fn starts(pulls: &[(&'static str, Histogram)], pods: &Histogram) -> String {
    let mut page = Page::default();
    let name = "kubelet_image_pull_duration_seconds";
    page.family(name, "histogram", "[ALPHA] Duration in seconds to pull an image.");
    for (size, times) in pulls {
        page.histogram(name, &[("image_size_in_bytes", size)], times);
    }
    let name = "kubelet_pod_start_duration_seconds";
    let help = "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
    page.family(name, "histogram", help);
    page.histogram(name, &[], pods);
    page.0
}

/// `/metrics/slis`: how each check of `/healthz` goes.
pub(in crate::server) fn slis(health: &Result<(), String>) -> String {
    let mut page = Page::default();
    let name = "kubernetes_healthcheck";
    page.family(name, "gauge", "[STABLE] This metric records the result of a single healthcheck.");
    for (check, is_well) in [("log", true), ("ping", true), ("syncloop", health.is_ok())] {
        page.sample(name, &[("name", check), ("type", "healthz")], u8::from(is_well));
    }
    page.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::adapters::storage_times::Histograms;

    #[test]
    fn starts_are_told_under_upstreams_names() {
        let times = Histograms::<()>::default();
        times.ended((), Duration::from_millis(700));
        let all = times.all();
        let page = starts(&[("0-10MB", all[0].1)], &all[0].1);
        for line in [
            "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"0-10MB\",le=\"1\"} 1",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.5\"} 0",
            "kubelet_pod_start_duration_seconds_bucket{le=\"1\"} 1",
            "kubelet_pod_start_duration_seconds_count 1",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
    }

    #[test]
    fn checks_go_well_or_do_not() {
        for (health, expected) in [(Ok(()), 1), (Err("no listing".to_owned()), 0)] {
            let page = slis(&health);
            let line = format!("kubernetes_healthcheck{{name=\"syncloop\",type=\"healthz\"}} {expected}");
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
            assert!(page.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"), "{page}");
        }
    }
}
