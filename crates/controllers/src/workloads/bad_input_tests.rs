//! Objects that admission would refuse, or that somebody made on purpose: what is told of them, and that nothing is made for
//! them without end.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Time};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::claim::index;
use super::{
    DaemonSetController, DeploymentController, JobController, ReplicaSets, StatefulSetController, TtlController,
};
use crate::testing::{of, words};

/// What a plan does: its writes and the reasons of its events.
fn told(plan: &Plan) -> Vec<String> {
    let events = plan.events.iter().chain(plan.told.iter().map(|(_, event)| event));
    words(plan).into_iter().chain(events.map(|e| format!("{} {}", e.reason, e.message))).collect()
}

fn object(kind: &str, spec: &Value, selector: &Value, labels: &Value) -> Value {
    let mut spec = spec.clone();
    spec["selector"] = selector.clone();
    spec["template"] = json!({"metadata": {"labels": labels}, "spec": {"containers": [], "restartPolicy": "Never"}});
    json!({"metadata": {"namespace": "ns", "name": kind, "uid": kind, "resourceVersion": "5", "generation": 1}, "spec": spec})
}

/// What each kind of workload does with such a spec, with these pods there.
fn plans(spec: &Value, selector: &Value, labels: &Value, pods: &[Value]) -> Vec<(&'static str, Plan)> {
    let caches = |kind: &str| {
        let mine = |wanted: &str| (kind == wanted).then(|| object(kind, spec, selector, labels));
        Caches::new()
            .with_index("controller", index::<Pod>)
            .with_index("controller", index::<ReplicaSet>)
            .with_index("controller", index::<ControllerRevision>)
            .with_index("job-tracked", |_: &Pod| Vec::new())
            .with::<Pod>(pods.iter().cloned().map(of))
            .with::<Node>([of(json!({"metadata": {"name": "n"}}))])
            .with::<PersistentVolumeClaim>([])
            .with::<Deployment>(mine("deployment").map(of))
            .with::<ReplicaSet>(mine("replicaset").map(of))
            .with::<StatefulSet>(mine("statefulset").map(of))
            .with::<DaemonSet>(mine("daemonset").map(of))
            .with::<Job>(mine("job").map(of))
    };
    let mut all: Vec<(&'static str, Box<dyn Controller>)> = vec![
        ("deployment", Box::new(DeploymentController::default())),
        ("replicaset", Box::new(ReplicaSets::default())),
        ("statefulset", Box::new(StatefulSetController::default())),
        ("daemonset", Box::new(DaemonSetController::default())),
        ("job", Box::new(JobController::default())),
    ];
    all.iter_mut()
        .map(|(kind, controller)| {
            (*kind, controller.reconcile(&Key::new("ns", *kind), &caches(kind).view(), Time::default()))
        })
        .collect()
}

#[test]
fn what_would_not_be_its_own_is_not_made() {
    let spec = json!({"replicas": 2, "parallelism": 2, "completions": 2});
    let plans = plans(&spec, &json!({"matchLabels": {"app": "web"}}), &json!({"app": "other"}), &[]);
    for (kind, plan) in plans {
        let told = told(&plan);
        assert!(told.iter().all(|t| !t.starts_with("create")), "{kind}: {told:?}");
        let said = told.iter().any(|t| t.starts_with("FailedCreate Error creating: the selector"));
        // A Job says first that it has begun.
        assert!(said || kind == "job", "{kind}: {told:?}");
        assert_eq!(plan.requeue_after, None, "{kind} looks again though nothing can have changed");
    }
}

#[test]
fn pods_of_others_are_left_to_them() {
    let selector = json!({"matchLabels": {"app": "web"}});
    let labels = json!({"app": "web"});
    let pod = |name: &str, owner: Value| {
        json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "3", "labels": {"app": "web"},
            "ownerReferences": owner}, "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}})
    };
    let others = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": true}]);
    // An owner of a kind that nobody knows, which is not there either.
    let nobodys =
        json!([{"apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": "t", "controller": true}]);
    // An owner that does not control it is none to a controller.
    let loose = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}]);
    for (owner, touched) in [(others, false), (nobodys, false), (loose, true)] {
        let pods = [pod("web-0", owner.clone()), pod("web-1", owner.clone())];
        let spec = json!({"replicas": 1, "parallelism": 1, "completions": 1});
        for (kind, plan) in plans(&spec, &selector, &labels, &pods) {
            let about = |w: &&String| w.contains("ns/web-0") || w.contains("ns/web-1");
            let words = words(&plan);
            let found: Vec<_> = words.iter().filter(about).collect();
            if !touched {
                assert!(found.is_empty(), "{kind} with {owner}: {found:?}");
            } else if kind == "replicaset" {
                assert!(
                    found.iter().all(|w| w.starts_with("patch") && w.contains("\"uid\":\"replicaset\"")),
                    "{found:?}"
                );
                assert_eq!(found.len(), 2, "{kind} with {owner}: {words:?}");
            }
        }
    }
}

#[test]
fn numbers_below_nothing_are_nothing() {
    let spec = json!({"replicas": -3, "parallelism": -2, "completions": -1, "minReadySeconds": -5,
        "revisionHistoryLimit": -1, "backoffLimit": -1, "progressDeadlineSeconds": -7});
    let labels = json!({"app": "web"});
    for (kind, plan) in plans(&spec, &json!({ "matchLabels": labels }), &labels, &[]) {
        let made: Vec<_> = words(&plan).into_iter().filter(|w| w.starts_with("create pods")).collect();
        // A DaemonSet has no number, and a Deployment's set makes no pods.
        assert!(made.is_empty() || kind == "daemonset", "{kind}: {made:?}");
        assert!(plan.requeue_after.is_none_or(|after| after.as_millis() > 0), "{kind} would spin");
    }
}

#[test]
fn a_clock_that_goes_back_is_waited_for() {
    // A Job that has run since tomorrow, and a Deployment whose progress was seen tomorrow.
    let labels = json!({"app": "web"});
    let mut job =
        object("job", &json!({"parallelism": 1, "completions": 1, "activeDeadlineSeconds": 60}), &Value::Null, &labels);
    job["status"] = json!({"startTime": "2026-01-02T00:00:00Z"});
    let caches = Caches::new()
        .with_index("controller", index::<Pod>)
        .with_index("job-tracked", |_: &Pod| Vec::new())
        .with::<Pod>([])
        .with::<Job>([of(job)]);
    let now = Time::parse("2026-01-01T00:00:00Z").expect("a time");
    let plan = JobController::default().reconcile(&Key::new("ns", "job"), &caches.view(), now);
    assert!(words(&plan).iter().any(|w| w.starts_with("create pods")), "{:?}", words(&plan));
    assert!(plan.requeue_after.is_none_or(|after| after.as_secs() <= 60), "{:?}", plan.requeue_after);
}

/// What has ended, or become ready, tomorrow: it counts from now on for as long as it would have.
#[test]
fn what_is_to_happen_some_time_after_tomorrow_is_not_looked_for_all_the_time() {
    let now = Time::parse("2026-01-01T00:00:00Z").expect("a time");
    let tomorrow = "2026-01-02T00:00:00Z";
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "lastTransitionTime": tomorrow}]);
    let labels = json!({"app": "web"});
    let mut job = object("job", &json!({"ttlSecondsAfterFinished": 100}), &Value::Null, &labels);
    job["status"] = json!({"conditions": condition("Complete")});
    let caches = Caches::new().with::<Job>([of(job)]);
    let plan = TtlController.reconcile(&Key::new("ns", "job"), &caches.view(), now);
    assert_eq!((words(&plan), plan.requeue_after.map(|after| after.as_secs())), (Vec::new(), Some(100)));
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "replicaset", "uid": "replicaset", "controller": true}]);
    let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "labels": labels, "ownerReferences": owner},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running", "conditions": condition("Ready")}});
    let set = object(
        "replicaset",
        &json!({"replicas": 1, "minReadySeconds": 30}),
        &json!({ "matchLabels": labels }),
        &labels,
    );
    let caches =
        Caches::new().with_index("controller", index::<Pod>).with::<Pod>([of(pod)]).with::<ReplicaSet>([of(set)]);
    let plan = ReplicaSets::default().reconcile(&Key::new("ns", "replicaset"), &caches.view(), now);
    assert_eq!(words(&plan), ["update ns/replicaset/status"], "it is ready, and not yet available");
    assert_eq!(plan.requeue_after.map(|after| after.as_secs()), Some(30));
}
