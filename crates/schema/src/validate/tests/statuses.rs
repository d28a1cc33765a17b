//! Statuses: which of them are refused.

use serde_json::{Value, json};

use super::causes::{changed, global, named};

/// Holds each status against a base that has a good one: group, kind, whether it is in a namespace, its spec, and what is wrong
/// with which status.
#[test]
fn statuses_say_what_can_be() {
    let at = "2026-01-01T00:00:00Z";
    let condition = |change: &dyn Fn(&mut Value)| {
        let mut one =
            json!({"type": "DisruptionAllowed", "status": "True", "reason": "Enough", "lastTransitionTime": at});
        change(&mut one);
        json!({"conditions": [one]})
    };
    let twice =
        json!({"conditions": [{"type": "Dangling", "status": "True"}, {"type": "Dangling", "status": "False"}]});
    let table: Vec<(&str, &str, Value, &[&str])> = vec![
        ("policy", "PodDisruptionBudget", json!({"disruptionsAllowed": 0, "currentHealthy": 2}), &[]),
        (
            "policy",
            "PodDisruptionBudget",
            json!({"disruptionsAllowed": -1, "currentHealthy": -1, "desiredHealthy": -1, "expectedPods": -1}),
            &[
                "Invalid status.disruptionsAllowed",
                "Invalid status.currentHealthy",
                "Invalid status.desiredHealthy",
                "Invalid status.expectedPods",
            ],
        ),
        ("policy", "PodDisruptionBudget", condition(&|_| {}), &[]),
        (
            "policy",
            "PodDisruptionBudget",
            condition(&|one| one["status"] = json!("Perhaps")),
            &["NotSupported status.conditions[0].status"],
        ),
        (
            "policy",
            "PodDisruptionBudget",
            condition(&|one| one["type"] = json!("a b")),
            &["Invalid status.conditions[0].type"],
        ),
        (
            "policy",
            "PodDisruptionBudget",
            condition(&|one| one["observedGeneration"] = json!(-1)),
            &["Invalid status.conditions[0].observedGeneration"],
        ),
        (
            "policy",
            "PodDisruptionBudget",
            json!({"conditions": [{"type": "A", "status": "True"}]}),
            &["Required status.conditions[0].lastTransitionTime", "Required status.conditions[0].reason"],
        ),
        (
            "policy",
            "PodDisruptionBudget",
            condition(&|one| one["reason"] = json!("1st")),
            &["Invalid status.conditions[0].reason"],
        ),
        (
            "policy",
            "PodDisruptionBudget",
            condition(&|one| one["message"] = json!("x".repeat(40_000))),
            &["TooLong status.conditions[0].message"],
        ),
        ("autoscaling", "HorizontalPodAutoscaler", json!({"currentReplicas": 1, "desiredReplicas": 0}), &[]),
        (
            "autoscaling",
            "HorizontalPodAutoscaler",
            json!({"currentReplicas": -1, "desiredReplicas": -1}),
            &["Invalid status.currentReplicas", "Invalid status.desiredReplicas"],
        ),
        ("", "ResourceQuota", json!({"hard": {"pods": "2"}, "used": {"pods": "1", "limits.cpu": "500m"}}), &[]),
        (
            "",
            "ResourceQuota",
            json!({"hard": {"pods": "-2", "things": "1"}, "used": {"pods": "1500m", "a b": "1"}}),
            &[
                "Invalid status.hard[pods]",
                "Invalid status.hard[things]",
                "Invalid status.used[a b]",
                "Invalid status.used[pods]",
            ],
        ),
        (
            "",
            "PersistentVolumeClaim",
            json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi", "example.com/iops": "5"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
            &[],
        ),
        (
            "",
            "PersistentVolumeClaim",
            json!({"capacity": {"storage": "-1"}, "allocatedResources": {"cpu": "1", "storage": "-1"},
                "allocatedResourceStatuses": {"cpu": "NodeResizePending", "storage": "Growing"}}),
            &[
                "Invalid status.capacity[storage]",
                "NotSupported status.allocatedResources",
                "Invalid status.allocatedResources[storage]",
                "NotSupported status.allocatedResourceStatus",
                "NotSupported status.allocatedResourceStatus",
            ],
        ),
        (
            "",
            "Node",
            json!({"capacity": {"cpu": "1500m", "pods": "110", "example.com/gpu": "2", "memory": "1Gi"}}),
            &[],
        ),
        (
            "",
            "Node",
            json!({"capacity": {"cpu": "-1", "pods": "1500m"}, "allocatable": {"example.com/gpu": "1500m"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "10.0.0.1"}]}),
            &[
                "Duplicate status.addresses[1]",
                "Invalid status.capacity.cpu",
                "Invalid status.capacity.pods",
                "Invalid status.allocatable.example.com/gpu",
            ],
        ),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema", twice.clone(), &["Duplicate status.conditions[1].type"]),
        (
            "flowcontrol.apiserver.k8s.io",
            "PriorityLevelConfiguration",
            json!({"conditions": [{"status": "True"}]}),
            &["Required status.conditions[0].type"],
        ),
        ("apiregistration.k8s.io", "APIService", twice, &[]),
        (
            "apiregistration.k8s.io",
            "APIService",
            json!({"conditions": [{"type": "Available", "status": "Perhaps"}]}),
            &["NotSupported status.conditions[0].status"],
        ),
    ];
    for (group, kind, status, expected) in table {
        let is_namespaced = crate::table::find_kind(group, kind).expect(kind).namespaced;
        let base = if is_namespaced { named(json!({})) } else { global(json!({})) };
        changed(group, kind, "status", &base, &[("/status", status, expected)]);
    }
}

#[test]
fn a_namespace_goes_when_it_is_deleted() {
    let with_phase = |phase: &str, deleted: bool| {
        let mut object = global(json!({"status": {"phase": phase}}));
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        object
    };
    for (deleted, phase, other) in [(false, "Active", "Terminating"), (true, "Terminating", "Active")] {
        let base = with_phase(phase, deleted);
        let refused: &[&str] = &["Invalid status.Phase"];
        changed(
            "",
            "Namespace",
            "status",
            &base,
            &[
                ("/status/conditions", json!([{"type": "A", "status": "True"}]), &[]),
                ("/status/phase", json!(other), refused),
                ("/status/phase", Value::Null, refused),
            ],
        );
    }
}
