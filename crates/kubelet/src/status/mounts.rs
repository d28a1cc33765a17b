//! What a container's status says of its mounts: which of them cannot be written, and whether what is mounted below them can
//! (`convertToAPIContainerStatuses` in `pkg/kubelet/kubelet_pods.go`).

use k8s_openapi::api::core::v1::{Container, ContainerStatus, VolumeMount, VolumeMountStatus};

/// The mounts of a container. `can_recurse` says whether its runtime can keep what is below a mount from being written; while
/// that is not known, what was told before stands.
#[must_use]
pub fn told(
    c: &Container,
    before: Option<&ContainerStatus>,
    can_recurse: Option<bool>,
) -> Option<Vec<VolumeMountStatus>> {
    let mounts = c.volume_mounts.as_deref().filter(|mounts| !mounts.is_empty())?;
    let known = before.and_then(|s| s.volume_mounts.as_ref()).filter(|known| known.len() == mounts.len());
    match (can_recurse, known) {
        (None, Some(known)) => Some(known.clone()),
        _ => Some(mounts.iter().map(|m| one(m, can_recurse == Some(true))).collect()),
    }
}

fn one(m: &VolumeMount, can_recurse: bool) -> VolumeMountStatus {
    let is_read_only = m.read_only == Some(true);
    let is_wanted = matches!(m.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"));
    let below = if is_wanted && can_recurse { "Enabled" } else { "Disabled" };
    VolumeMountStatus {
        name: m.name.clone(),
        mount_path: m.mount_path.clone(),
        read_only: is_read_only.then_some(true),
        recursive_read_only: is_read_only.then(|| below.to_owned()),
        volume_status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Upstream's `test/e2e_node/mount_rro_linux_test.go` looks at these.
    #[test]
    fn mounts_are_told() {
        let before = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Enabled"}]});
        let before: ContainerStatus = serde_json::from_value(before).expect("a status");
        for (read_only, asked, can_recurse, before, expected) in [
            (false, json!(null), Some(true), None, json!(null)),
            (true, json!(null), Some(true), None, json!("Disabled")),
            (true, json!("Disabled"), Some(true), None, json!("Disabled")),
            (true, json!("IfPossible"), Some(true), None, json!("Enabled")),
            (true, json!("IfPossible"), Some(false), None, json!("Disabled")),
            (true, json!("Enabled"), Some(true), None, json!("Enabled")),
            (true, json!("Enabled"), None, None, json!("Disabled")),
            (true, json!("Enabled"), None, Some(&before), json!("Enabled")),
            (true, json!("IfPossible"), Some(false), Some(&before), json!("Disabled")),
        ] {
            let what = format!("{read_only} {asked} {can_recurse:?} {}", before.is_some());
            let mount = json!({"name": "v", "mountPath": "/v", "readOnly": read_only, "recursiveReadOnly": asked});
            let c: Container = serde_json::from_value(json!({"name": "c", "volumeMounts": [mount]})).expect("one");
            let mut status = json!({"name": "v", "mountPath": "/v"});
            if read_only {
                status["readOnly"] = true.into();
                status["recursiveReadOnly"] = expected;
            }
            let told = serde_json::to_value(told(&c, before, can_recurse)).expect("JSON");
            assert_eq!(told, json!([status]), "{what}");
        }
        let none: Container = serde_json::from_value(json!({"name": "c", "volumeMounts": []})).expect("one");
        assert_eq!(serde_json::to_value(told(&none, Some(&before), None)).expect("JSON"), Value::Null);
    }
}
