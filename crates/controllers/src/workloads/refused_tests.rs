//! What workloads say of themselves while the server refuses them their pods (a quota that is full, say): what they count follows
//! their pods all the same.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Refusal, StatusError, Time, Write};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::claim::index;
use super::job::by_job;
use super::{DaemonSetController, JobController, ReplicaSets, StatefulSetController};
use crate::testing::of;

/// One that asks for two pods.
fn workload(status: &Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": "web", "uid": "web", "resourceVersion": "5", "generation": 2},
        "spec": {"replicas": 2, "parallelism": 2, "completions": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [], "restartPolicy": "Never"}}},
        "status": status})
}

/// The one that it has, which is ready.
fn pod(version: &str, kind: &str) -> Value {
    json!({"metadata": {"namespace": "ns", "name": "web-0", "uid": "web-0", "resourceVersion": "3",
            "labels": {"app": "web"}, "ownerReferences": [
                {"apiVersion": version, "kind": kind, "name": "web", "uid": "web", "controller": true}]},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

/// What it says when it is refused the second one: these of the fields of its status, and then nothing more.
fn check(controller: &mut dyn Controller, version: &str, kind: &str, status: &Value, expected: &Value) {
    let (key, now) = (Key::new("ns", "web"), Time::parse("2026-01-01T01:00:00Z").expect("a time"));
    let node = |name: &str| of::<Node>(json!({"metadata": {"name": name}}));
    let caches = |status: &Value, revisions: &[ControllerRevision]| {
        let mine = |of_kind: &str| (of_kind == kind).then(|| workload(status));
        Caches::new()
            .with_index("controller", index::<Pod>)
            .with_index("controller", index::<ControllerRevision>)
            .with_index("job-tracked", by_job)
            .with::<ControllerRevision>(revisions.to_vec())
            .with::<Pod>([of(pod(version, kind))])
            .with::<Node>([node("a"), node("b")])
            .with::<PersistentVolumeClaim>([])
            .with::<ReplicaSet>(mine("ReplicaSet").map(of))
            .with::<StatefulSet>(mine("StatefulSet").map(of))
            .with::<DaemonSet>(mine("DaemonSet").map(of))
            .with::<Job>(mine("Job").map(of))
    };
    let first = controller.reconcile(&key, &caches(status, &[]).view(), now);
    let revisions: Vec<ControllerRevision> = first
        .writes
        .iter()
        .filter_map(|write| match write {
            Write::Create { resource, object } if *resource == ControllerRevision::resource() => {
                Some(of(object.clone()))
            }
            _ => None,
        })
        .collect();
    let write = Plan::none().create(&of::<Pod>(pod(version, kind))).writes.remove(0);
    let error = StatusError { code: 403, message: "exceeded quota".into(), ..StatusError::default() };
    let refusal = Refusal { write: &write, error: &error };
    let plan = controller.refused(&key, &caches(status, &revisions).view(), &refusal, now);
    let [Write::Update { object, sub: "status", .. }] = &plan.writes[..] else { panic!("{kind}: {:?}", plan.writes) };
    for (field, value) in expected.as_object().into_iter().flatten() {
        assert_eq!(object["status"][field], *value, "{kind}: {field}");
    }
    assert_eq!(plan.events.len(), 1, "{kind}");
    let again = controller.refused(&key, &caches(&object["status"], &revisions).view(), &refusal, now);
    assert!(again.writes.is_empty(), "{kind}: {:?}", again.writes);
}

#[test]
fn counts_follow_the_pods_also_while_more_are_refused() {
    let of_set = json!({"observedGeneration": 2, "replicas": 1, "readyReplicas": 1});
    check(&mut ReplicaSets::default(), "apps/v1", "ReplicaSet", &json!({"replicas": 0}), &of_set);
    check(&mut StatefulSetController::default(), "apps/v1", "StatefulSet", &json!({"replicas": 0}), &of_set);
    let none = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0,
        "numberReady": 0});
    let of_nodes = json!({"observedGeneration": 2, "desiredNumberScheduled": 2, "currentNumberScheduled": 1,
        "numberReady": 1, "numberAvailable": 1, "numberUnavailable": 1});
    check(&mut DaemonSetController::default(), "apps/v1", "DaemonSet", &none, &of_nodes);
    let begun = json!({"startTime": "2026-01-01T00:00:00Z"});
    check(&mut JobController::default(), "batch/v1", "Job", &begun, &json!({"active": 1, "ready": 1}));
}

/// A DaemonSet's pod that may not go keeps neither others on their nodes nor new ones from theirs, and what it counts is told.
#[test]
fn where_one_pod_of_a_daemon_set_may_not_go_the_others_do_and_come() {
    let (key, now) = (Key::new("ns", "web"), Time::parse("2026-01-01T01:00:00Z").expect("a time"));
    let mut controller = DaemonSetController::default();
    let taint = json!([{"key": "k", "effect": "NoExecute"}]);
    let node = |name: &str, taints: &Value| of::<Node>(json!({"metadata": {"name": name}, "spec": {"taints": taints}}));
    let caches = |status: &Value, revisions: &[ControllerRevision]| {
        let pods = ["a", "b"].map(|name| {
            let mut pod = pod("apps/v1", "DaemonSet");
            pod["metadata"]["name"] = name.into();
            pod["metadata"]["uid"] = name.into();
            pod["spec"]["nodeName"] = name.into();
            of::<Pod>(pod)
        });
        Caches::new()
            .with_index("controller", index::<Pod>)
            .with_index("controller", index::<ControllerRevision>)
            .with::<ControllerRevision>(revisions.to_vec())
            .with::<Pod>(pods)
            .with::<Node>([node("a", &taint), node("b", &taint), node("c", &json!([]))])
            .with::<DaemonSet>([of(workload(status))])
    };
    let none = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0,
        "numberReady": 0});
    let first = controller.reconcile(&key, &caches(&none, &[]).view(), now);
    let [Write::Create { object, .. }] = &first.writes[..] else { panic!("{:?}", first.writes) };
    let revisions = [of::<ControllerRevision>(object.clone())];
    let kinds = |plan: &Plan| -> Vec<&'static str> {
        let kind = |write: &Write| match write {
            Write::Delete { .. } => "delete",
            Write::Create { .. } => "create",
            _ => "other",
        };
        plan.writes.iter().map(kind).collect()
    };
    let plan = controller.reconcile(&key, &caches(&none, &revisions).view(), now);
    assert_eq!((kinds(&plan), plan.apart.len()), (vec!["delete", "delete", "create"], 0));
    let error = StatusError { code: 403, message: "no".into(), ..StatusError::default() };
    let refusal = Refusal { write: &plan.writes[0], error: &error };
    assert_eq!(controller.refused(&key, &caches(&none, &revisions).view(), &refusal, now).writes.len(), 1);
    let plan = controller.reconcile(&key, &caches(&none, &revisions).view(), now);
    let [Write::Update { object, sub: "status", .. }] = &plan.writes[..] else { panic!("{:?}", plan.writes) };
    let plan = controller.reconcile(&key, &caches(&object["status"], &revisions).view(), now);
    assert_eq!(kinds(&plan), ["delete", "delete", "create"]);
    assert_eq!(plan.apart.into_iter().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn where_one_pod_may_not_go_the_others_do() {
    let look = |status: &Value| {
        let pods = ["a", "b", "c", "d"].map(|name| {
            let mut pod = pod("apps/v1", "ReplicaSet");
            pod["metadata"]["name"] = name.into();
            pod["metadata"]["uid"] = name.into();
            of::<Pod>(pod)
        });
        let caches = Caches::new()
            .with_index("controller", index::<Pod>)
            .with::<Pod>(pods)
            .with::<ReplicaSet>([of(workload(status))]);
        let now = Time::parse("2026-01-01T01:00:00Z").expect("a time");
        ReplicaSets::default().reconcile(&Key::new("ns", "web"), &caches.view(), now)
    };
    let plan = look(&json!({"replicas": 4}));
    assert_eq!((plan.writes.len(), plan.apart.len()), (2, 0), "the first that is refused ends it");
    let refused = json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedDelete", "message": "no"});
    // What it counts is told all the same.
    let plan = look(&json!({"replicas": 9, "conditions": [refused]}));
    let [Write::Update { object, sub: "status", .. }] = &plan.writes[..] else { panic!("{:?}", plan.writes) };
    let status = &object["status"];
    assert_eq!((&status["replicas"], &status["conditions"]), (&json!(4), &json!([refused])));
    let plan = look(status);
    assert_eq!((plan.writes.len(), plan.apart.len()), (2, 2));
}
