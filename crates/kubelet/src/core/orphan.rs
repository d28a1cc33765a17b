//! What runs and has no pod that anybody knows of.

use k8s_openapi::api::core::v1::Pod;

use super::worker::PodRuntime;

/// A pod made up from what runs, for stopping it.
pub(super) fn orphan(runtime: &PodRuntime) -> Option<Pod> {
    let reference = runtime.sandboxes.first().map(|s| &s.pod).or_else(|| runtime.containers.first().map(|c| &c.pod))?;
    let mut names: Vec<&str> = runtime.containers.iter().map(|c| c.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": reference.name, "namespace": reference.namespace, "uid": reference.uid.as_ref()},
        "spec": {
            "restartPolicy": "Never",
            "containers": names.iter().map(|n| serde_json::json!({"name": n})).collect::<Vec<_>>(),
        }
    }))
    .ok()
}
