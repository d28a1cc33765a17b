//! What single reconciles plan: scaling in proportion, and input that should not be there.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Refusal, StatusError, Time, Write};
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::{CronJobController, DeploymentController, ReplicaSets, StatefulSetController};

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn template(version: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}, "annotations": {"version": version}}, "spec": {"containers": []}})
}

/// What a plan does, in a few words.
fn words(plan: &Plan) -> Vec<String> {
    let writes = plan.writes.iter().map(|w| match w {
        Write::Create { resource, .. } => format!("create {}", resource.plural),
        Write::Update { object, sub: "", .. } => format!("{} {}", w.key().name, object["spec"]["replicas"]),
        Write::Update { object, .. } => format!("status {}", object["status"]["conditions"][0]["reason"]),
        other => format!("{other:?}"),
    });
    writes.chain(plan.events.iter().map(|e| e.reason.clone())).collect()
}

/// What is planned for a Deployment of so many replicas, with sets of these sizes and of another Deployment's size.
fn check_scaling(replicas: i64, was: i64, sets: &[i64], expected: &[&str]) {
    check_scaling_with(replicas, was, sets, sets, expected);
}

/// The same, with sets that have so many pods yet.
fn check_scaling_with(replicas: i64, was: i64, sets: &[i64], pods: &[i64], expected: &[&str]) {
    let deployment = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "d", "generation": 2},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("2"),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}}});
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]);
    let set = |(n, size): (usize, &i64)| -> ReplicaSet {
        read(
            json!({"metadata": {"namespace": "ns", "name": format!("web-{n}"), "uid": n.to_string(), "labels": {"app": "web"},
            "generation": 1, "ownerReferences": owner, "creationTimestamp": format!("2026-01-01T00:00:0{n}Z"),
            "annotations": {"deployment.kubernetes.io/desired-replicas": was.to_string(), "deployment.kubernetes.io/revision": (n + 1).to_string(),
                "deployment.kubernetes.io/max-replicas": (was + 2).to_string()}},
            "spec": {"replicas": size, "selector": {"matchLabels": {"app": "web"}}, "template": template(&(n + 1).to_string())},
            "status": {"replicas": pods[n], "availableReplicas": pods[n], "observedGeneration": 1}}),
        )
    };
    let mut current: Deployment = read(deployment);
    let newest = sets.len().to_string();
    current.metadata.annotations = Some([("deployment.kubernetes.io/revision".to_owned(), newest)].into());
    let caches = Caches::new()
        .with([current])
        .with::<Pod>([])
        .with_index("controller", super::claim::index::<ReplicaSet>)
        .with(sets.iter().enumerate().map(set));
    let plan = DeploymentController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
    assert_eq!(words(&plan), expected, "{was} to {replicas} with {sets:?}");
}

#[test]
fn no_set_grows_while_another_has_pods_to_remove() {
    check_scaling(6, 4, &[4, 0], &["web-0 6"]);
    check_scaling_with(6, 4, &[4, 0], &[4, 1], &["status \"MinimumReplicasAvailable\""]);
    // Fewer are asked for at once.
    check_scaling_with(2, 4, &[4, 0], &[4, 1], &["web-0 2"]);
}

#[test]
fn replicas_are_spread_in_proportion() {
    // A rollout under way, of 10 with a surge of 2: the larger set gets more, and the rest goes to the largest.
    check_scaling(20, 10, &[8, 4], &["web-0 15", "web-1 7"]);
    check_scaling(5, 10, &[8, 4], &["web-0 5", "web-1 2"]);
    check_scaling(0, 10, &[8, 4], &["web-0 0", "web-1 0"]);
    // One set alone has everything.
    check_scaling(7, 10, &[0, 10], &["web-1 7"]);
    check_scaling(7, 10, &[10, 0], &["web-0 7"]);
}

/// What a Deployment says of its progress, as reason and message, when it has this condition, and a set that was made then; and what it
/// says when that set was refused.
fn check_progress(condition: &Value, set_made: &str, expected: &str) {
    let now = Time::from_unix_s(1_767_225_700);
    let deployment = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "d", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"deployment.kubernetes.io/revision": "1"}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("1")},
        "status": {"conditions": condition}});
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]);
    let set = json!({"metadata": {"namespace": "ns", "name": "web-x", "uid": "s", "labels": {"app": "web"}, "generation": 1,
            "ownerReferences": owner, "creationTimestamp": set_made, "annotations": {
                "deployment.kubernetes.io/desired-replicas": "2", "deployment.kubernetes.io/max-replicas": "3",
                "deployment.kubernetes.io/revision": "1"}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("1")},
        "status": {"replicas": 0, "observedGeneration": 1}});
    let caches = Caches::new()
        .with::<Deployment>([read(deployment)])
        .with::<Pod>([])
        .with_index("controller", super::claim::index::<ReplicaSet>)
        .with::<ReplicaSet>([read(set.clone())]);
    let said = |plan: &Plan| {
        let status = plan.writes.iter().find_map(|w| match w {
            Write::Update { object, sub: "status", .. } => Some(object["status"]["conditions"].clone()),
            _ => None,
        });
        let conditions = status.unwrap_or_default();
        let all = conditions.as_array().into_iter().flatten();
        let progress = all.into_iter().find(|c| c["type"] == "Progressing").cloned().unwrap_or_default();
        ["status", "reason", "message"].map(|field| progress[field].as_str().unwrap_or("-").to_owned()).join(" ")
    };
    let (mut controller, key) = (DeploymentController::default(), Key::new("ns", "web"));
    assert_eq!(said(&controller.reconcile(&key, &caches.view(), now)), expected, "{condition} {set_made}");
    let write = Plan::none().create(&read::<ReplicaSet>(set)).writes.remove(0);
    let error = StatusError { code: 403, message: "exceeded quota".into(), ..StatusError::default() };
    let plan = controller.refused(&key, &caches.view(), &Refusal { write: &write, error: &error }, now);
    let not_made = "Failed to create new replica set \"web-x\": exceeded quota";
    assert_eq!(said(&plan), format!("False ReplicaSetCreateError {not_made}"));
    let told = plan.events.iter().map(|e| (e.reason.as_str(), e.message.as_str()));
    assert_eq!(told.collect::<Vec<_>>(), [("ReplicaSetCreateError", not_made)]);
}

#[test]
fn a_rollout_says_whether_its_set_was_made_or_found_or_refused() {
    let said = |status: &str, reason: &str, message: &str| {
        json!([{"type": "Progressing", "status": status, "reason": reason, "message": message,
            "lastUpdateTime": "2026-01-01T00:01:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    };
    let (before, at_first, later) = ("2025-12-31T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:01:30Z");
    let created = "True NewReplicaSetCreated Created new replica set \"web-x\"";
    let goes_on = "True ReplicaSetUpdated ReplicaSet \"web-x\" is progressing.";
    check_progress(&json!([]), at_first, created);
    check_progress(&json!([]), before, "True FoundNewReplicaSet Found new replica set \"web-x\"");
    // Its clock goes on.
    check_progress(&said("True", "ReplicaSetUpdated", "ReplicaSet \"web-x\" is progressing."), later, goes_on);
    let timed_out = "ReplicaSet \"web-x\" has timed out progressing.";
    let over = format!("False ProgressDeadlineExceeded {timed_out}");
    check_progress(&said("False", "ProgressDeadlineExceeded", timed_out), before, &over);
    // What was said of another rollout is not said of this one.
    for (status, reason, message) in [
        ("True", "ReplicaSetUpdated", "ReplicaSet \"web-w\" is progressing."),
        ("True", "ReplicaSetUpdated", "Deployment \"web\" is progressing."),
        ("True", "NewReplicaSetCreated", "Created new replica set \"web-w\""),
        ("True", "NewReplicaSetAvailable", "ReplicaSet \"web-w\" has successfully progressed."),
        ("False", "ProgressDeadlineExceeded", "ReplicaSet \"web-w\" has timed out progressing."),
        ("False", "ReplicaSetCreateError", "Failed to create new replica set \"web-x\": exceeded quota"),
    ] {
        check_progress(&said(status, reason, message), later, created);
        check_progress(&said(status, reason, message), at_first, goes_on);
    }
    // One that was paused goes on with the set that it had.
    let resumed = said("Unknown", "DeploymentResumed", "Deployment is resumed");
    check_progress(&resumed, later, created);
    check_progress(&resumed, at_first, "Unknown DeploymentResumed Deployment is resumed");
}

/// What is planned for a ReplicaSet without pods.
fn check_set(spec: Value, expected: &[&str]) {
    let set = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "s"}, "spec": spec});
    let caches = Caches::new()
        .with::<ReplicaSet>([read(set.clone())])
        .with_index("controller", super::claim::index::<Pod>)
        .with::<Pod>([]);
    let plan = ReplicaSets::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
    assert_eq!(words(&plan), expected, "{set}");
}

#[test]
fn what_a_set_cannot_do_is_told_and_not_tried() {
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    check_set(
        json!({"replicas": 2, "selector": selector("web"), "template": template("1")}),
        &["create pods", "create pods"],
    );
    // Pods that would not belong to it would be made without end.
    check_set(
        json!({"replicas": 2, "selector": selector("db"), "template": template("1")}),
        &["status \"FailedCreate\"", "FailedCreate"],
    );
    check_set(json!({"replicas": -3, "selector": selector("web"), "template": template("1")}), &["status null"]);
}

/// What a StatefulSet of four plans with running pods of these ordinals, and on what the pod that it makes rests.
fn check_order(policy: &str, start: i64, there: &[i64], made: Option<&str>, rests_on: &[&str]) {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s", "controller": true}]);
    let set = json!({"metadata": {"namespace": "ns", "name": "db", "uid": "s", "resourceVersion": "5"},
        "spec": {"replicas": 4, "serviceName": "db", "podManagementPolicy": policy, "ordinals": {"start": start},
            "selector": {"matchLabels": {"app": "web"}}, "template": template("1")}});
    let pod = |ordinal: &i64| {
        let name = format!("db-{ordinal}");
        let labels = json!({"app": "web", "statefulset.kubernetes.io/pod-name": name,
            "apps.kubernetes.io/pod-index": ordinal.to_string()});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "labels": labels, "ownerReferences": owner},
            "status": {"phase": "Running", "conditions": ready}})
    };
    let plan = |revisions: Vec<ControllerRevision>| {
        let caches = Caches::new()
            .with::<StatefulSet>([read(set.clone())])
            .with_index("controller", super::claim::index::<ControllerRevision>)
            .with(revisions)
            .with_index("controller", super::claim::index::<Pod>)
            .with::<Pod>(there.iter().map(|ordinal| read(pod(ordinal))))
            .with::<PersistentVolumeClaim>([]);
        StatefulSetController::default().reconcile(&Key::new("ns", "db"), &caches.view(), Time::default())
    };
    // First it notes the template.
    let [Write::Create { object, .. }] = &plan(Vec::new()).writes[..] else { panic!("a revision") };
    let plan = plan(vec![read(object.clone())]);
    let first = plan.writes.iter().position(|w| matches!(w, Write::Create { .. }));
    assert_eq!(first.map(|n| plan.writes[n].key().name).as_deref(), made, "{policy}, {there:?}");
    let own = plan.premises.iter().filter(|(number, premise)| Some(*number) == first && premise.resource == "pods");
    let names: Vec<&str> = own.map(|(_, premise)| premise.name.as_str()).collect();
    assert_eq!(names, rests_on, "{policy}, {there:?}");
}

#[test]
fn in_order_a_pod_rests_on_those_before_it() {
    check_order("OrderedReady", 0, &[], Some("db-0"), &[]);
    check_order("OrderedReady", 0, &[0], Some("db-1"), &["db-0"]);
    check_order("OrderedReady", 0, &[0, 1, 2], Some("db-3"), &["db-0", "db-1", "db-2"]);
    check_order("OrderedReady", 5, &[5, 6], Some("db-7"), &["db-5", "db-6"]);
    // One in the middle is missing: those behind it are not asked.
    check_order("OrderedReady", 0, &[0, 2, 3], Some("db-1"), &["db-0"]);
    check_order("OrderedReady", 0, &[0, 1, 2, 3], None, &[]);
    check_order("Parallel", 0, &[0], Some("db-1"), &[]);
}

/// What is planned for a CronJob that was made at midnight, and when it is looked at again.
fn check_cron(schedule: &str, more: Value, now: &str, expected: &[&str], again_s: Option<u64>) {
    let mut spec = json!({"schedule": schedule, "jobTemplate": {"spec": {"template": template("1")}}});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let cron = json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec});
    let caches = Caches::new()
        .with::<CronJob>([read(cron)])
        .with_index("controller", super::claim::index::<Job>)
        .with::<Job>([]);
    let now = Time::parse(now).expect("a time");
    let plan = CronJobController::default().reconcile(&Key::new("ns", "c"), &caches.view(), now);
    let made: Vec<String> = words(&plan).into_iter().filter(|w| !w.starts_with("status")).collect();
    assert_eq!(made, expected, "{schedule} at {}", now.rfc3339());
    assert_eq!(plan.requeue_after.map(|after| after.as_secs()), again_s, "{schedule} at {}", now.rfc3339());
}

#[test]
fn cron_jobs_wait_for_their_time_and_never_spin() {
    let none = json!({});
    check_cron("*/10 * * * *", none.clone(), "2026-01-01T00:05:00Z", &[], Some(300));
    check_cron("*/10 * * * *", none.clone(), "2026-01-01T00:10:01Z", &["create jobs"], Some(599));
    check_cron("* * * * *", none.clone(), "2026-01-01T06:00:00Z", &["create jobs", "TooManyMissedTimes"], Some(60));
    check_cron("*/10 * * * *", json!({"startingDeadlineSeconds": 30}), "2026-01-01T00:15:00Z", &[], Some(300));
    check_cron("*/10 * * * *", json!({"suspend": true}), "2026-01-01T00:15:00Z", &[], None);
    // Intervals are reckoned from the time before, also where what is late is not made up for.
    check_cron("@every 10m", none.clone(), "2026-01-01T00:04:00Z", &[], Some(360));
    check_cron(
        "@every 10m",
        json!({"startingDeadlineSeconds": 30}),
        "2026-01-01T00:10:10Z",
        &["create jobs"],
        Some(590),
    );
    check_cron("@every 10m", json!({"startingDeadlineSeconds": 30}), "2026-01-01T00:14:00Z", &[], Some(360));
    check_cron("@every 1m", json!({"startingDeadlineSeconds": 30}), "2026-01-01T06:00:10Z", &["create jobs"], Some(50));
    // The clock went back behind its creation.
    check_cron("*/10 * * * *", none.clone(), "2025-12-31T23:00:00Z", &[], Some(4200));
    for bad in ["what", "* * * *"] {
        check_cron(bad, none.clone(), "2026-01-01T00:15:00Z", &["UnparseableSchedule"], None);
    }
    // It never comes.
    check_cron("0 0 30 2 *", none.clone(), "2026-01-01T00:15:00Z", &["InvalidSchedule"], None);
    check_cron("* * * * *", json!({"timeZone": "Mars/Olympus"}), "2026-01-01T00:15:00Z", &["UnknownTimeZone"], None);
}
