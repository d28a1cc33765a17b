//! How many pods a kubelet has, under upstream's names (`pkg/kubelet/metrics/metrics.go`). Upstream counts its workers as well, and
//! how long each turn of one took; here a turn is a step of the core, which waits for nothing.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::Page;
use crate::spec::pod;

/// Whether a pod is counted.
type Counts = fn(&Pod) -> bool;

/// The page.
pub(in crate::server) fn pods(all: &[Arc<Pod>]) -> String {
    let mut page = Page::default();
    let goes_on = |pod: &Pod| !pod::is_terminal(pod);
    let families: [(&str, &str, Counts); 2] = [
        ("kubelet_desired_pods", "[ALPHA] The number of pods the kubelet is being instructed to run.", |_| true),
        (
            "kubelet_active_pods",
            "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods.",
            goes_on,
        ),
    ];
    for (name, help, counts) in families {
        page.family(name, "gauge", help);
        for (label, is_static) in [("", false), ("true", true)] {
            let count = all.iter().filter(|pod| counts(pod) && pod::is_static(pod) == is_static).count();
            page.sample(name, &[("static", label)], count);
        }
    }
    let ephemeral = all.iter().filter(|pod| goes_on(pod));
    let ephemeral: usize = ephemeral.map(|pod| pod::spec(pod).ephemeral_containers.iter().flatten().count()).sum();
    let name = "kubelet_managed_ephemeral_containers";
    page.family(name, "gauge", "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.");
    page.sample(name, &[], ephemeral);
    page.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::server::fixture::pod_of;

    #[test]
    fn pods_are_counted() {
        let hash = "0123456789abcdef0123456789abcdef";
        let annotations = json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file"});
        let of_file = json!({"metadata": {"uid": hash, "annotations": annotations}, "spec": {"containers": []}});
        let runs = json!({"metadata": {}, "spec": {"containers": [], "ephemeralContainers": [{"name": "e"}]}});
        let over = json!({"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Failed"}});
        let page = pods(&[pod_of(of_file), pod_of(runs), pod_of(over)]);
        for line in [
            "kubelet_desired_pods{static=\"\"} 2",
            "kubelet_desired_pods{static=\"true\"} 1",
            "kubelet_active_pods{static=\"\"} 1",
            "kubelet_active_pods{static=\"true\"} 1",
            "kubelet_managed_ephemeral_containers 1",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
    }
}
