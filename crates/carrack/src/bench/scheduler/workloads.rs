//! Nodes and pods of the workloads that upstream's own harness has (test/integration/scheduler_perf).

use carrack_engine::{ApiRequest, ContentType};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::cli::bench::Workload;

/// Namespace of the measured pods.
pub const NAMESPACE: &str = "carrack-bench";
/// Priority classes of who goes and who comes: name and value.
pub const CLASSES: [(&str, i32); 2] = [("carrack-bench-low", 1), ("carrack-bench-high", 1000)];

/// A node of 4 cores, 32 GiB and 8 widgets, in one of three zones.
pub fn node(number: usize) -> Value {
    let name = format!("hollow-{number}");
    let zone = format!("zone-{}", number % 3);
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone,
            "topology.kubernetes.io/region": "one"}},
        "status": {"capacity": room(), "allocatable": room(),
            "conditions": [{"type": "Ready", "status": "True", "reason": "Hollow", "message": ""}]}})
}

/// Takes off the taint that a new node has until it was seen ready, as the node lifecycle controller does.
pub fn ready(number: usize) -> ApiRequest {
    let patch = json!({"spec": {"taints": null}});
    ApiRequest::patch(&Node::resource(), "", &format!("hollow-{number}"), "", ContentType::MergePatch, &patch)
}

fn room() -> Value {
    json!({"cpu": "4", "memory": "32Gi", "pods": "110", "example.com/widget": "8"})
}

fn plain(name: &str, cpu: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {"app": "bench"}},
        "spec": {"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0, "containers": [{"name": "main",
            "image": "registry.example/pause:1", "resources": {"requests": {"cpu": cpu, "memory": "500Mi"}}}]}})
}

/// A pod to be scheduled.
pub fn pod(workload: Workload, number: usize) -> Value {
    let mut pod = plain(&format!("pod-{number}"), "100m");
    let mine = json!({"matchLabels": {"app": "bench"}});
    match workload {
        Workload::Plain => {}
        Workload::Extended => {
            pod["spec"]["containers"][0]["resources"]["requests"]["example.com/widget"] = "1".into();
            pod["spec"]["containers"][0]["resources"]["limits"] = json!({"example.com/widget": "1"});
        }
        Workload::Affinity => {
            pod["spec"]["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "topology.kubernetes.io/region", "labelSelector": mine}]}});
        }
        Workload::Spread => {
            pod["spec"]["topologySpreadConstraints"] = json!([{"topologyKey": "topology.kubernetes.io/zone",
                "maxSkew": 5, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": mine}]);
        }
        Workload::Preemption => {
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3".into();
            pod["spec"]["priorityClassName"] = CLASSES[1].0.into();
            pod["spec"]["priority"] = CLASSES[1].1.into();
        }
    }
    pod
}

/// A less important pod that fills most of a node.
pub fn victim(number: usize) -> Value {
    let mut pod = plain(&format!("low-{number}"), "3500m");
    pod["spec"]["nodeName"] = format!("hollow-{number}").into();
    pod["spec"]["priorityClassName"] = CLASSES[0].0.into();
    pod["spec"]["priority"] = CLASSES[0].1.into();
    pod
}
