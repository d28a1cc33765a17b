//! What `/runningpods/` shows: the pods that the runtime runs, made up from what it says of them, as upstream does
//! (`Pod.ToAPIPod` in `pkg/kubelet/container/runtime.go`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::runtime::{ContainerRecord, PodRef, RuntimeSnapshot};

/// Pods of which a sandbox or a container runs.
pub(super) fn pods(runtime: &RuntimeSnapshot) -> Vec<Value> {
    let mut running: BTreeMap<&PodRef, Vec<&ContainerRecord>> = BTreeMap::new();
    for sandbox in runtime.sandboxes.iter().filter(|s| s.ready) {
        running.entry(&sandbox.pod).or_default();
    }
    for container in runtime.containers.iter().filter(|c| c.state == crate::runtime::ContainerState::Running) {
        running.entry(&container.pod).or_default().push(container);
    }
    running
        .into_iter()
        .map(|(pod, containers)| {
            let containers: Vec<Value> =
                containers.iter().map(|c| json!({"name": c.name, "image": c.image, "resources": {}})).collect();
            json!({
                "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid.as_ref()},
                "spec": {"containers": containers},
                "status": {},
            })
        })
        .collect()
}
