//! What these controllers keep of pods in their cache: what they look at.
//!
//! Any pod may use a machine's disks, so all pods are watched; and each instance has a launcher for as long as it is there.
//! Most of what a pod says is for its scheduler and its node, and takes more room than the rest.

use carrack_types::well_known::kubevirt::UNPAUSED_CONDITION;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};

/// The conditions that are looked at.
const CONDITIONS: [&str; 3] = ["Ready", "PodScheduled", UNPAUSED_CONDITION];

/// Leaves out of a pod what no controller of machines looks at. It cannot be written back whole.
pub(super) fn pod(pod: &mut Pod) {
    pod.spec = pod.spec.take().map(|spec| {
        let volumes = few(spec.volumes.into_iter().flatten().filter(|v| v.persistent_volume_claim.is_some()));
        PodSpec {
            node_name: spec.node_name,
            containers: few(spec.containers.into_iter().map(container)),
            volumes: (!volumes.is_empty()).then_some(volumes),
            ..PodSpec::default()
        }
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        reason: status.reason,
        message: status.message,
        qos_class: status.qos_class,
        conditions: status.conditions.map(|all| few(all.into_iter().filter(|c| CONDITIONS.contains(&&*c.type_)))),
        container_statuses: status.container_statuses.map(|all| few(all.into_iter().map(container_status))),
        init_container_statuses: status.init_container_statuses.map(|all| few(all.into_iter().map(container_status))),
        ..PodStatus::default()
    });
}

fn container(container: Container) -> Container {
    Container { name: container.name, image: container.image, ..Container::default() }
}

fn container_status(status: ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        name: status.name,
        container_id: status.container_id,
        state: status.state,
        last_state: status.last_state,
        restart_count: status.restart_count,
        ..ContainerStatus::default()
    }
}

/// A list without the room that others had in it.
fn few<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut few: Vec<T> = items.collect();
    few.shrink_to_fit();
    few
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controllers::testing::of;

    #[test]
    fn what_is_looked_at_stays() {
        let check = |name: &str, whole: &Value, kept: &Value| {
            let mut trimmed: Pod = of(whole.clone());
            pod(&mut trimmed);
            assert_eq!(trimmed, of::<Pod>(kept.clone()), "{name}");
        };
        // Whose it is, what it is marked with and that it goes.
        let metadata = json!({"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
            "annotations": {"c": "d"}, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "o", "controller": true}]});
        check("one that is new", &json!({"metadata": metadata}), &json!({"metadata": metadata}));

        let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        let [ready, scheduled, unpaused, other] =
            ["Ready", "PodScheduled", "kubevirt.io/virtual-machine-unpaused", "Initialized"]
                .map(|kind| json!({"type": kind, "status": "False", "reason": "R", "message": "m"}));
        let state = json!({"name": "compute", "containerID": "containerd://1", "restartCount": 2,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "lastState": {"terminated": {"exitCode": 1}}});
        let said = |more: Value| {
            let mut said = state.clone();
            said.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            json!([said])
        };
        let whole = said(json!({"image": "i", "imageID": "sha", "ready": true, "started": true}));
        let little = said(json!({"image": "", "imageID": "", "ready": false}));
        check(
            "one that runs",
            &json!({"metadata": metadata,
                "spec": {"nodeName": "n", "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}],
                    "terminationGracePeriodSeconds": 30, "volumes": [{"name": "e", "emptyDir": {}}, claim],
                    "containers": [{"name": "compute", "image": "i", "resources": {"requests": {"cpu": "1"}},
                        "env": [{"name": "k", "value": "v"}], "ports": [{"containerPort": 80}]}]},
                "status": {"phase": "Running", "qosClass": "Burstable", "reason": "R", "message": "m",
                    "hostIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.2"}], "startTime": "2026-01-01T00:00:00Z",
                    "conditions": [ready, other, scheduled, unpaused],
                    "containerStatuses": whole, "initContainerStatuses": whole}}),
            &json!({"metadata": metadata,
                "spec": {"nodeName": "n", "volumes": [claim], "containers": [{"name": "compute", "image": "i"}]},
                "status": {"phase": "Running", "qosClass": "Burstable", "reason": "R", "message": "m",
                    "conditions": [ready, scheduled, unpaused],
                    "containerStatuses": little, "initContainerStatuses": little}}),
        );
        check(
            "one without a claim",
            &json!({"metadata": metadata, "spec": {"containers": [], "volumes": [{"name": "e", "emptyDir": {}}]}}),
            &json!({"metadata": metadata, "spec": {"containers": []}}),
        );
    }
}
