//! What single reconciles of a Job plan: counts of indexes, and how Jobs end.

use std::sync::Arc;

use carrack_engine::testing::Caches;
use carrack_engine::{Controller as _, Key, Plan, Refusal, StatusError, Time, Write};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::super::claim::index;
use super::{BY_JOB, JobController, TRACKING, by_job, manage};
use crate::testing::of;

/// What is planned for a Job that started at midnight, an hour later.
fn look(spec: Value, status: Value, pods: &[Value]) -> Plan {
    look_newer("1", spec, status, pods)
}

/// The same, of a Job of this revision.
fn look_newer(revision: &str, spec: Value, status: Value, pods: &[Value]) -> Plan {
    look_again(&mut JobController::default(), revision, spec, status, pods)
}

/// The same, by a controller that may have looked before.
fn look_again(controller: &mut JobController, revision: &str, spec: Value, status: Value, pods: &[Value]) -> Plan {
    let mut job = json!({"metadata": {"namespace": "ns", "name": "j", "uid": "j", "resourceVersion": revision},
        "spec": {"template": {"spec": {"containers": [], "restartPolicy": "Never"}}},
        "status": {"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}}});
    for (part, more) in [("spec", spec), ("status", status)] {
        for (key, value) in more.as_object().into_iter().flatten() {
            job[part][key] = value.clone();
        }
    }
    planned(controller, job, pods, "j")
}

/// What a controller that sees this Job and these pods plans for a key of the namespace, an hour after midnight.
fn planned(controller: &mut JobController, job: Value, pods: &[Value], key: &str) -> Plan {
    let caches = Caches::new()
        .with_index("controller", index::<Pod>)
        .with_index(BY_JOB, by_job)
        .with::<Pod>(pods.iter().cloned().map(of))
        .with::<Job>([of(job)]);
    let now = Time::parse("2026-01-01T01:00:00Z").expect("a time");
    controller.reconcile(&Key::new("ns", key), &caches.view(), now)
}

/// The status that a plan writes; null for none.
fn written(plan: &Plan) -> Value {
    let status = plan.writes.iter().find_map(|write| match write {
        Write::Update { object, .. } => Some(object["status"].clone()),
        _ => None,
    });
    status.unwrap_or_default()
}

fn pod(name: &str, phase: &str, annotations: Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "annotations": annotations,
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [TRACKING], "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}]},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": phase}})
}

/// A pod of an index, with how often that had failed before.
fn of_index(name: &str, index: i32, phase: &str, before: (u32, u32)) -> Value {
    let annotations = json!({"batch.kubernetes.io/job-completion-index": index.to_string(),
        "batch.kubernetes.io/job-index-failure-count": before.0.to_string(),
        "batch.kubernetes.io/job-index-ignored-failure-count": before.1.to_string()});
    pod(name, phase, annotations)
}

fn disrupted(mut pod: Value) -> Value {
    pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True"}]);
    pod
}

/// A plan in short: what is made with which counts, what lets go, and what the status says of failures.
fn words(plan: &Plan) -> Vec<String> {
    let text = |v: &Value| v.as_str().unwrap_or("-").to_owned();
    let writes = plan.writes.iter().filter_map(|write| match write {
        Write::Create { object, .. } => {
            let told = &object["metadata"]["annotations"];
            let [counted, ignored] = ["failure", "ignored-failure"]
                .map(|kind| text(&told[format!("batch.kubernetes.io/job-index-{kind}-count")]));
            Some(format!("make {} {counted} {ignored}", text(&told["batch.kubernetes.io/job-completion-index"])))
        }
        Write::Update { object, .. } => {
            let status = &object["status"];
            Some(format!(
                "failed indexes {}, list {}",
                text(&status["failedIndexes"]),
                status["uncountedTerminatedPods"]["failed"]
            ))
        }
        Write::Patch { key, .. } => Some(format!("let go {}", key.name)),
        Write::Delete { key, .. } => Some(format!("delete {}", key.name)),
        _ => None,
    });
    writes.collect()
}

fn check_indexes(limit: i32, pods: &[Value], expected: &[&str]) {
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": i32::MAX,
        "backoffLimitPerIndex": limit, "podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}});
    let status = json!({"active": 1, "ready": 0, "terminating": 0, "failedIndexes": ""});
    let found: Vec<String> = words(&look(spec, status, pods));
    assert_eq!(found, expected, "{limit} {pods:?}");
}

#[test]
fn an_index_remembers_how_often_it_failed() {
    let other = || of_index("b", 1, "Running", (0, 0));
    let failed = |before| of_index("a", 0, "Failed", before);
    // What failed last stays until the next one is there, and says what it knows.
    check_indexes(1, &[failed((0, 0)), other()], &["make 0 1 -"]);
    check_indexes(9, &[failed((3, 2)), other()], &["make 0 4 2"]);
    // What the policy ignores counts apart, and uses up nothing.
    check_indexes(0, &[disrupted(failed((0, 0))), other()], &["make 0 0 1"]);
    check_indexes(1, &[disrupted(failed((1, 5))), other()], &["make 0 1 6"]);
    let earlier = || of_index("z", 0, "Failed", (0, 0));
    check_indexes(5, &[earlier(), disrupted(failed((1, 0))), other()], &["failed indexes , list [\"z\"]", "let go z"]);
    // Then it goes.
    let next = |before| of_index("c", 0, "Running", before);
    check_indexes(1, &[failed((0, 0)), next((1, 0)), other()], &["failed indexes , list [\"a\"]", "let go a"]);
    check_indexes(0, &[disrupted(failed((0, 0))), next((0, 1)), other()], &["let go a"]);
    // One failure too many.
    check_indexes(1, &[failed((1, 7)), other()], &["failed indexes 0, list [\"a\"]", "let go a"]);
    check_indexes(0, &[failed((0, 0)), other()], &["failed indexes 0, list [\"a\"]", "let go a"]);
}

/// The reason for which a Job comes to its end, or `goes on`.
fn check_end(spec: Value, status: Value, pods: &[Value], expected: &str) {
    let plan = look(spec.clone(), status, pods);
    let conditions = written(&plan)["conditions"].as_array().cloned().unwrap_or_default();
    // With no pods left, a Job comes to its end at once.
    let last = conditions.last().map(|c| format!("{} {}", c["type"], c["reason"]).replace('"', ""));
    assert_eq!(last.as_deref().unwrap_or("goes on"), expected, "{spec}");
}

#[test]
fn jobs_end_for_a_reason() {
    let indexed = |more: Value| {
        let mut spec = json!({"completions": 3, "parallelism": 1, "completionMode": "Indexed"});
        more.as_object().into_iter().flatten().for_each(|(key, value)| spec[key] = value.clone());
        spec
    };
    let target = |reason: &str, status: Value| {
        let mut status = status;
        status["conditions"] = json!([{"type": "FailureTarget", "status": "True", "reason": reason, "message": ""}]);
        status
    };
    let none = || json!({});
    let running = || vec![pod("p", "Running", none())];
    for (spec, status, pods, expected) in [
        (json!({"completions": 1, "parallelism": 1}), none(), running(), "goes on"),
        (json!({"completions": 2, "backoffLimit": 1}), json!({"failed": 1}), running(), "goes on"),
        (
            json!({"completions": 2, "backoffLimit": 1}),
            json!({"failed": 2}),
            running(),
            "FailureTarget BackoffLimitExceeded",
        ),
        (json!({"completions": 1, "activeDeadlineSeconds": 3600}), none(), running(), "FailureTarget DeadlineExceeded"),
        (json!({"completions": 1, "activeDeadlineSeconds": 3601}), none(), running(), "goes on"),
        (
            indexed(json!({"backoffLimitPerIndex": 0, "maxFailedIndexes": 1})),
            json!({"failedIndexes": "0,1", "failed": 2}),
            vec![],
            "Failed MaxFailedIndexesExceeded",
        ),
        (
            indexed(json!({"backoffLimitPerIndex": 0})),
            json!({"failedIndexes": "0", "completedIndexes": "1,2", "failed": 1, "succeeded": 2}),
            vec![],
            "Failed FailedIndexes",
        ),
        (
            indexed(json!({"successPolicy": {"rules": [{"succeededIndexes": "1"}]}})),
            json!({"completedIndexes": "1", "succeeded": 1}),
            vec![],
            "Complete SuccessPolicy",
        ),
        (json!({"completions": 1}), json!({"succeeded": 1}), vec![], "Complete CompletionsReached"),
        (json!({"completions": 1, "suspend": true}), none(), vec![], "Suspended JobSuspended"),
        (
            json!({"completions": 1, "suspend": false}),
            json!({"conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}]}),
            vec![],
            "Suspended JobResumed",
        ),
        // The reason stays when the last pod has ended.
        (json!({"completions": 1}), target("DeadlineExceeded", none()), vec![], "Failed DeadlineExceeded"),
        (json!({"completions": 1}), target("PodFailurePolicy", none()), vec![], "Failed PodFailurePolicy"),
    ] {
        check_end(spec, status, &pods, expected);
    }
}

/// What a look writes down of a Job's clock and pause, and what it tells: `start, conditions, events, requeue`.
fn check_clock(spec: Value, status: Value, pods: &[Value], expected: (&str, &str, &[&str], Option<u64>)) {
    let plan = look(spec.clone(), status.clone(), pods);
    let written = written(&plan);
    let word = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let conditions = written["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<_> = conditions
        .map(|c| {
            format!("{}={} {} ({})", word(&c["type"]), word(&c["status"]), word(&c["reason"]), word(&c["message"]))
        })
        .collect();
    let events: Vec<&str> = plan.events.iter().map(|e| e.reason.as_str()).collect();
    let again = plan.requeue_after.map(|after| after.as_secs());
    assert_eq!(
        (word(&written["startTime"]).as_str(), conditions.join("; ").as_str(), &events[..], again),
        expected,
        "{spec} {status}"
    );
}

#[test]
fn the_clock_of_a_job_stops_while_it_is_suspended() {
    const PAUSED: &str = "Suspended=True JobSuspended (Job suspended)";
    const GOES_ON: &str = "Suspended=False JobResumed (Job resumed)";
    let spec =
        |suspend: bool| json!({"completions": 1, "parallelism": 1, "suspend": suspend, "activeDeadlineSeconds": 1800});
    let no_deadline = |suspend: bool| json!({"completions": 1, "parallelism": 1, "suspend": suspend});
    let status = |start: Value, suspended: Option<&str>, succeeded: i32| {
        let reason = if suspended == Some("True") { "JobSuspended" } else { "JobResumed" };
        let message = if suspended == Some("True") { "Job suspended" } else { "Job resumed" };
        let condition = |status| json!([{"type": "Suspended", "status": status, "reason": reason, "message": message}]);
        json!({"startTime": start, "conditions": suspended.map(condition), "succeeded": succeeded})
    };
    let (midnight, at_one, half) = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2026-01-01T00:45:00Z");
    let running = || [pod("p", "Running", json!({}))];
    let none = || Value::Null;
    // Made suspended: it has no clock, and no deadline.
    check_clock(spec(true), status(none(), None, 0), &[], ("", PAUSED, &["Suspended"], None));
    // Made to run: it starts, and is told of no pause.
    check_clock(spec(false), status(none(), None, 0), &[], (at_one, "", &[], Some(1800)));
    // Suspended while it runs: the clock goes, before its pods do.
    check_clock(spec(true), status(half.into(), None, 0), &running(), ("", PAUSED, &["Suspended"], None));
    check_clock(spec(true), status(half.into(), Some("False"), 0), &running(), ("", PAUSED, &["Suspended"], None));
    // However long it ran: it had no deadline while nobody looked at it.
    check_clock(spec(true), status(midnight.into(), None, 0), &running(), ("", PAUSED, &["Suspended"], None));
    // It goes on: the deadline is as far as ever, also for one that another controller left its clock.
    check_clock(spec(false), status(none(), Some("True"), 0), &[], (at_one, GOES_ON, &["Resumed"], Some(1800)));
    check_clock(
        spec(false),
        status(midnight.into(), Some("True"), 0),
        &[],
        (at_one, GOES_ON, &["Resumed"], Some(1800)),
    );
    check_clock(no_deadline(false), status(none(), Some("True"), 0), &[], (at_one, GOES_ON, &["Resumed"], None));
    // Then it counts from there.
    let target = "FailureTarget=True DeadlineExceeded (Job was active longer than specified deadline)";
    check_clock(
        spec(false),
        status(midnight.into(), Some("False"), 0),
        &running(),
        (midnight, &format!("{GOES_ON}; {target}"), &[], None),
    );
    // One that has what it wanted is neither suspended nor resumed.
    let done = "SuccessCriteriaMet=True CompletionsReached (Reached expected number of succeeded pods)";
    let complete = "Complete=True CompletionsReached (Reached expected number of succeeded pods)";
    for (suspend, suspended, before) in
        [(true, None, ""), (false, Some("True"), "Suspended=True JobSuspended (Job suspended); ")]
    {
        let expected = format!("{before}{done}; {complete}");
        check_clock(
            spec(suspend),
            status(midnight.into(), suspended, 1),
            &[],
            (midnight, &expected, &["Completed"], if suspend { None } else { Some(1800) }),
        );
    }
}

#[test]
fn what_is_said_of_a_pause_is_said_once() {
    for (suspend, kind, reason) in [(true, "True", "JobSuspended"), (false, "False", "JobResumed")] {
        let spec = json!({"completions": 1, "parallelism": 1, "suspend": suspend});
        let start = if suspend { Value::Null } else { json!("2026-01-01T01:00:00Z") };
        let status = json!({"startTime": start, "active": 1, "ready": 0, "terminating": 0,
            "conditions": [{"type": "Suspended", "status": kind, "reason": reason}]});
        let pods = [pod("p", "Running", json!({}))];
        let plan = look(spec, status, &pods);
        assert!(plan.events.is_empty(), "{plan:?}");
        // What is left is to end its pods, which do not count as failed.
        let expected: &[&str] = if suspend { &["let go p", "delete p"] } else { &[] };
        assert_eq!(words(&plan), expected);
    }
}

#[test]
fn a_pod_that_may_not_go_keeps_no_other_of_a_job_that_failed() {
    let status = json!({"active": 2, "ready": 0, "terminating": 0, "conditions": [
        {"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}]});
    let pods = ["a", "b"].map(|name| pod(name, "Running", json!({})));
    let plan = look(json!({"completions": 2, "parallelism": 2}), status, &pods);
    assert_eq!((words(&plan), plan.apart.len()), (vec!["delete a".to_owned(), "delete b".to_owned()], 2));
}

/// A Job whose selector chooses `app: j`, and what is planned for it.
fn look_at_selecting(mut meta: Value, status: Value, pods: &[Value], key: &str) -> Vec<String> {
    let more = json!({"namespace": "ns", "name": "j", "uid": "j", "resourceVersion": "1"});
    meta.as_object_mut().expect("a map").extend(more.as_object().cloned().expect("a map"));
    let labels = json!({"app": "j"});
    let job = json!({"metadata": meta, "status": status, "spec": {"completions": 2, "parallelism": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [], "restartPolicy": "Never"}}}});
    crate::testing::words(&planned(&mut JobController::default(), job, pods, key))
}

fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    pod.pointer_mut(parent).expect("a place")[field] = value;
    pod
}

/// Who leaves a Job takes nothing of it along, and who comes is held like all others.
#[test]
fn pods_that_come_and_go_take_and_lose_the_finalizer() {
    let of_job = || pod("p", "Running", json!({}));
    let going = |pod| with(pod, "/metadata/deletionTimestamp", json!("2026-01-01T00:59:59Z"));
    let nobodys = |pod| with(pod, "/metadata/ownerReferences", json!([]));
    let status = || json!({"startTime": "2026-01-01T00:00:00Z"});
    let released = ["patch ns/p finalizers=[] ownerReferences=[]"];
    assert_eq!(look_at_selecting(json!({}), status(), &[of_job()], "j"), released);
    assert_eq!(look_at_selecting(json!({}), status(), &[going(of_job())], "j"), released);
    // Of a Job that is to go or over, all let go.
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:59:59Z", "finalizers": ["foregroundDeletion"]});
    assert_eq!(look_at_selecting(deleted, status(), &[going(of_job())], "j"), ["patch ns/p finalizers=[]"]);
    let over = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    assert_eq!(look_at_selecting(json!({}), over.clone(), &[of_job()], "j"), ["patch ns/p finalizers=[]"]);
    // One that nobody has, whatever becomes of it.
    for pod in [nobodys(of_job()), going(nobodys(of_job()))] {
        assert_eq!(super::orphans::key(&of(pod.clone())), Some(Key::new("ns", "orphan/p")));
        assert_eq!(look_at_selecting(json!({}), status(), &[pod], "orphan/p"), ["patch ns/p finalizers=[]"]);
    }
    let free = with(nobodys(of_job()), "/metadata/finalizers", json!(["x/y"]));
    for pod in [of_job(), free.clone()] {
        assert_eq!(super::orphans::key(&of(pod.clone())), None);
        assert_eq!(look_at_selecting(json!({}), status(), &[pod], "orphan/p"), [""; 0]);
    }
    // One that is adopted is held, and counts though it has ended.
    let chosen = with(free, "/metadata/labels", json!({"app": "j"}));
    for phase in ["Running", "Succeeded"] {
        let chosen = with(chosen.clone(), "/status/phase", json!(phase));
        let plan = look_at_selecting(json!({}), status(), std::slice::from_ref(&chosen), "j");
        let [confirmed, adopted] = &plan[..] else { panic!("{plan:?}") };
        assert_eq!(confirmed, "confirm alive ns/j");
        assert!(adopted.starts_with(&format!("patch ns/p finalizers=[\"x/y\",\"{TRACKING}\"] owner")), "{adopted}");
        assert!(
            look_at_selecting(json!({}), over.clone(), &[chosen], "j").is_empty(),
            "nobody is adopted after the end"
        );
    }
}

/// How long a Job waits before it makes a pod; none if it makes one.
fn check_wait(spec: Value, pods: &[Value], expected: Option<u64>) {
    let status = json!({"active": 0, "ready": 0, "terminating": 0, "failedIndexes": "", "failed": 1});
    let plan = look(spec, status, pods);
    let made = plan.writes.iter().any(|write| matches!(write, Write::Create { .. }));
    let wait = plan.requeue_after.map(|after| after.as_secs());
    assert_eq!((wait, made), (expected, expected.is_none()), "{pods:?} {:?}", words(&plan));
}

#[test]
fn what_failed_just_now_is_not_tried_again_at_once() {
    let spec = || json!({"completions": 2, "parallelism": 1, "podReplacementPolicy": "TerminatingOrFailed"});
    let counted = |pod| with(pod, "/metadata/finalizers", json!([]));
    let ready = |status: &str, at: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": at}]);
    let ended = |at: &str| json!({"terminated": {"exitCode": 1, "finishedAt": at}});
    let containers = |states: &[Value]| {
        let one = |state: &Value| json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        Value::Array(states.iter().map(one).collect())
    };
    let failed = || counted(pod("a", "Failed", json!({})));
    let (early, late) = ("2026-01-01T00:10:00Z", "2026-01-01T00:59:57Z");
    let running = || json!({"running": {}});
    check_wait(spec(), &[failed()], None);
    let stopped = with(failed(), "/status/containerStatuses", containers(&[ended(late)]));
    check_wait(spec(), &[stopped], Some(7));
    // As long as one runs, or where nobody knows, what the pod was counts.
    let half = with(failed(), "/status/containerStatuses", containers(&[ended(early), running()]));
    check_wait(spec(), &[with(half.clone(), "/status/conditions", ready("False", late))], Some(7));
    check_wait(spec(), &[with(half.clone(), "/status/conditions", ready("False", early))], None);
    let going = with(half, "/metadata/deletionTimestamp", json!("2026-01-01T01:00:27Z"));
    let going = with(going, "/metadata/deletionGracePeriodSeconds", json!(30));
    let going = with(going, "/metadata/finalizers", json!([TRACKING]));
    let pods: Vec<Arc<Pod>> = vec![Arc::new(of(with(going, "/status/conditions", ready("True", early))))];
    assert_eq!(manage::ended_at(&pods[0]), Time::parse(late));
    // An index waits for as often as it failed, and not for as many pods as are left of it.
    let spec = json!({"completions": 1, "parallelism": 1, "completionMode": "Indexed", "backoffLimit": i32::MAX,
        "backoffLimitPerIndex": 9, "podReplacementPolicy": "Failed"});
    let last = of_index("a", 0, "Failed", (3, 1));
    check_wait(spec, &[with(last, "/status/containerStatuses", containers(&[ended(late)]))], Some(157));
}

/// Pods that are gone have failed all the same.
#[test]
fn whoever_deletes_pods_of_a_job_has_it_wait() {
    let mut controller = JobController::default();
    let mut check = |name: &str, pods: &[Value], expected: Option<u64>| {
        let status = json!({"active": 0, "ready": 0, "terminating": 0, "failed": 1});
        let spec = json!({"completions": 9, "parallelism": 1, "podReplacementPolicy": "TerminatingOrFailed"});
        let plan = look_again(&mut controller, "1", spec, status, pods);
        assert_eq!(plan.requeue_after.map(|after| after.as_secs()), expected, "{name}: {:?}", words(&plan));
    };
    let ended = |name: &str, phase: &str, second: u32| {
        let ready =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": format!("2026-01-01T00:59:{second}Z")}]);
        with(with(pod(name, phase, json!({})), "/metadata/finalizers", json!([])), "/status/conditions", ready)
    };
    let failed = |name: &str, second| ended(name, "Failed", second);
    check("one", &[failed("a", 55)], Some(5));
    check("the same one", &[failed("a", 55)], Some(5));
    check("two", &[failed("b", 57)], Some(17));
    check("none is left", &[], Some(17));
    for (n, wait) in [(1, 38), (2, 78), (3, 158), (4, 318), (5, 598), (6, 598), (7, 598), (8, 598)] {
        check("many", &[failed(&format!("c{n}"), 58)], Some(wait));
    }
    check("one succeeded", &[ended("d", "Succeeded", 58)], None);
    check("and is gone", &[failed("e", 59)], Some(9));
    check("earlier ones do not count", &[failed("f", 50)], Some(9));
}

#[test]
fn pods_of_an_index_are_called_by_it() {
    for (name, expected) in [("j".to_owned(), "j-4-"), ("n".repeat(63), &*format!("{}-4-", "n".repeat(55)))] {
        let job = json!({"metadata": {"namespace": "ns", "name": name, "uid": "j", "resourceVersion": "1"},
            "spec": {"template": {"spec": {"containers": []}}, "completions": 5, "parallelism": 1, "completionMode": "Indexed"},
            "status": {"startTime": "2026-01-01T00:00:00Z", "completedIndexes": "0-3", "succeeded": 4}});
        let plan = planned(&mut JobController::default(), job, &[], &name);
        let made = plan.writes.iter().find_map(|write| match write {
            Write::Create { object, .. } => Some(object["metadata"].clone()),
            _ => None,
        });
        let made = made.expect("a pod");
        assert_eq!(made["generateName"], expected);
        let whole = made["name"].as_str().unwrap_or_default();
        assert!(whole.starts_with(expected) && whole.len() == expected.len() + 5, "{whole}");
    }
}

/// What is over has a beginning, and is told of what it has too much.
#[test]
fn a_job_that_is_over_began_before() {
    let met = json!([{"type": "SuccessCriteriaMet", "status": "True", "reason": "CompletionsReached", "message": ""}]);
    for (completions, suspend, succeeded, start, events) in [
        (1, false, 2, true, &["TooManySucceededPods", "Completed"][..]),
        (1, true, 1, true, &["Completed"]),
        // One that was to do nothing never began.
        (0, true, 0, false, &["Completed"]),
    ] {
        let status = json!({"startTime": null, "conditions": met, "succeeded": succeeded});
        let spec = json!({"completions": completions, "parallelism": 1, "suspend": suspend});
        let plan = look(spec, status, &[]);
        let written = written(&plan);
        assert_eq!(!written["startTime"].is_null(), start, "{written}");
        assert_eq!(plan.events.iter().map(|event| event.reason.as_str()).collect::<Vec<_>>(), events);
    }
}

/// Containers that are restarted in place count as long as they run.
#[test]
fn restarts_of_pods_that_are_to_go_count() {
    let restarted = |phase: &str| {
        let statuses = json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 3}]);
        let going = with(pod("a", phase, json!({})), "/metadata/deletionTimestamp", json!("2026-01-01T00:59:59Z"));
        with(going, "/status/containerStatuses", statuses)
    };
    let spec = json!({"completions": 2, "backoffLimit": 3, "podReplacementPolicy": "Failed",
        "template": {"spec": {"containers": [], "restartPolicy": "OnFailure"}}});
    check_end(spec, json!({}), &[restarted("Running")], "FailureTarget BackoffLimitExceeded");
}

#[test]
fn what_is_left_over_or_beyond_does_not_count_as_failed() {
    let spec = |more: Value| {
        let mut spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"});
        more.as_object().into_iter().flatten().for_each(|(key, value)| spec[key] = value.clone());
        spec
    };
    let met = || json!([{"type": "SuccessCriteriaMet", "status": "True", "reason": "SuccessPolicy", "message": ""}]);
    let policy = json!({"successPolicy": {"rules": [{"succeededIndexes": "1"}]}});
    // After success the rest goes, and nobody counts it.
    let status = json!({"conditions": met(), "completedIndexes": "1", "succeeded": 1, "active": 1, "ready": 0, "terminating": 0});
    let plan = look(spec(policy), status, &[of_index("a", 0, "Running", (0, 0))]);
    assert_eq!(words(&plan), ["let go a", "delete a"]);
    assert_eq!(plan.told.iter().map(|(_, event)| event.message.as_str()).collect::<Vec<_>>(), ["Deleted pod: a"]);
    // A Job that shrank below what it has: the surplus goes first, then it is complete.
    let status = json!({"completedIndexes": "0,1", "succeeded": 2, "active": 1, "ready": 0, "terminating": 0});
    let plan = look(spec(json!({})), status.clone(), &[of_index("c", 2, "Running", (0, 0))]);
    assert_eq!(words(&plan), ["let go c", "delete c"]);
    let list = |spec: Value, status: Value, pod: Value| written(&look(spec, status, &[pod]));
    // One that failed beyond the last index, or of none, did not fail for this work.
    let failed = |index: i32| of_index("c", index, "Failed", (0, 0));
    for (index, counts) in [(0, true), (2, false), (-1, false)] {
        let status = list(spec(json!({})), json!({}), failed(index));
        let counted = status["uncountedTerminatedPods"]["failed"] == json!(["c"]);
        assert_eq!(counted, counts, "{index}: {status}");
    }
    // No rule makes it fail after success.
    let rules = json!({"podFailurePolicy": {"rules": [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}});
    for (conditions, expected) in [(met(), 1), (json!([]), 1)] {
        let was_met = conditions != json!([]);
        let status = list(spec(rules.clone()), json!({"conditions": conditions}), disrupted(failed(0)));
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        assert_eq!((all.len(), all[0]["type"] == "SuccessCriteriaMet"), (expected, was_met), "{status}");
    }
    // The last pods of a work queue end as they like.
    let pods = [pod("a", "Running", json!({})), pod("b", "Running", json!({}))];
    let status = json!({"succeeded": 1, "active": 2, "ready": 0, "terminating": 0});
    assert_eq!(words(&look(json!({"parallelism": 1}), status, &pods)), [""; 0]);
}

/// A pod of which the server does not let the finalizer be taken, whatever guards it, is waited for only in the end.
#[test]
fn a_pod_that_may_not_let_go_keeps_neither_others_nor_the_job() {
    let spec = || json!({"completions": 3, "parallelism": 1});
    let both = [pod("a", "Succeeded", json!({})), pod("b", "Succeeded", json!({}))];
    let status = |succeeded: i32, listed: &[&str]| {
        let uncounted = json!({ "succeeded": listed });
        json!({"succeeded": succeeded, "ready": 0, "terminating": 0, "uncountedTerminatedPods": uncounted})
    };
    let mut controller = JobController::default();
    let plan = look_again(&mut controller, "1", spec(), status(0, &["a", "b"]), &both);
    assert_eq!((words(&plan), plan.apart.len()), (vec!["let go a".to_owned(), "let go b".to_owned()], 2));
    let caches = Caches::new().with::<Job>([of(json!({"metadata": {"namespace": "ns", "name": "j", "uid": "j"}}))]);
    for (code, then) in [(409, &["let go a"][..]), (403, &["let go a", "make - - -"])] {
        let error = StatusError { code, message: "no".into(), ..StatusError::default() };
        let refusal = Refusal { write: &plan.writes[0], error: &error };
        let now = Time::parse("2026-01-01T01:00:00Z").expect("a time");
        assert!(controller.refused(&Key::new("ns", "j"), &caches.view(), &refusal, now).is_none());
        let again = look_again(&mut controller, "1", spec(), status(1, &["a"]), &both[..1]);
        assert_eq!(words(&again), then, "{code}");
    }
    // It is not over before that has let go, too.
    let done = json!({"completions": 2, "parallelism": 1});
    let plan = look_again(&mut controller, "1", done, status(1, &["a"]), &both[..1]);
    let kinds = written(&plan)["conditions"].clone();
    let kinds: Vec<&str> = kinds.as_array().into_iter().flatten().filter_map(|c| c["type"].as_str()).collect();
    assert_eq!(kinds, ["SuccessCriteriaMet"]);
}

/// A pod that is not seen may be one that the cache does not have yet; no event tells when it is new enough.
#[test]
fn what_is_not_known_yet_is_asked_again() {
    let spec = || json!({"completions": 2, "parallelism": 1});
    let status = json!({"uncountedTerminatedPods": {"failed": ["gone"]}, "active": 1, "ready": 0, "terminating": 0});
    let plan = look_newer("9", spec(), status.clone(), &[pod("p", "Running", json!({}))]);
    assert_eq!((words(&plan), plan.requeue_after.map(|after| after.as_secs())), (Vec::new(), Some(1)));
    let plan = look_newer("1", spec(), status, &[pod("p", "Running", json!({}))]);
    assert_eq!((words(&plan).len(), plan.requeue_after), (1, None));
}

/// What a Job that is being deleted, or has left its pods behind since, still does: words, and how many it has counted.
fn check_deleted(spec: Value, status: Value, pods: &[Value], expected: &[&str], counts: Option<[usize; 3]>) {
    let mut job = json!({"metadata": {"namespace": "ns", "name": "j", "uid": "j", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:59:00Z", "finalizers": ["foregroundDeletion"]},
        "spec": {"completions": 3, "parallelism": 3, "template": {"spec": {"containers": [], "restartPolicy": "Never"}}},
        "status": {"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}, "ready": 0, "terminating": 0}});
    for (part, more) in [("spec", spec), ("status", status)] {
        for (key, value) in more.as_object().into_iter().flatten() {
            job[part][key] = value.clone();
        }
    }
    let plan = planned(&mut JobController::default(), job, pods, "j");
    let found: Vec<String> = words(&plan).into_iter().filter(|word| !word.starts_with("failed indexes")).collect();
    assert_eq!(found, expected, "{pods:?}");
    let status = written(&plan);
    let told = status.is_object().then(|| {
        let list = |kind: &str| status["uncountedTerminatedPods"][kind].as_array().map_or(0, Vec::len);
        [list("succeeded"), list("failed"), usize::try_from(status["active"].as_u64().unwrap_or(0)).unwrap_or(0)]
    });
    assert_eq!(told, counts, "{pods:?}");
}

#[test]
fn a_job_that_is_deleted_counts_what_has_ended_and_lets_the_rest_go() {
    let none = || json!({});
    let of = |name: &str, phase: &str| pod(name, phase, none());
    let bare = |name: &str, phase: &str| {
        let mut pod = pod(name, phase, none());
        pod["metadata"]["finalizers"] = json!([]);
        pod
    };
    let going = |mut pod: Value| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:59:30Z".into();
        pod
    };
    let all = [of("a", "Succeeded"), of("b", "Failed"), of("c", "Running")];
    check_deleted(none(), none(), &all, &["let go a", "let go b", "let go c"], Some([1, 1, 1]));
    // What is ended along with the Job has not failed.
    check_deleted(none(), json!({"active": 1}), &[going(of("a", "Running"))], &["let go a"], None);
    // It makes none in the place of those that are gone, and ends none.
    check_deleted(none(), json!({"active": 1}), &[bare("a", "Running")], &[], None);
    let late = json!({"activeDeadlineSeconds": 60});
    check_deleted(late, json!({"active": 1}), &[bare("a", "Running")], &[], Some([0, 0, 1]));
    // Its counts follow.
    check_deleted(none(), json!({"active": 1}), &[going(bare("a", "Running"))], &[], Some([0, 0, 0]));
    // Those that its selector does not choose are let go, and not counted.
    let selector = json!({"selector": {"matchLabels": {"app": "web"}}});
    check_deleted(selector, none(), &[of("a", "Succeeded")], &["let go a"], None);
}

#[test]
fn a_job_may_be_complete_while_it_is_deleted() {
    let mut job = json!({"metadata": {"namespace": "ns", "name": "j", "uid": "j", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:59:00Z"},
        "spec": {"completions": 1, "template": {"spec": {"containers": [], "restartPolicy": "Never"}}},
        "status": {"startTime": "2026-01-01T00:00:00Z", "uncountedTerminatedPods": {}, "succeeded": 1}});
    for (failed, expected) in [(0, "Complete"), (7, "Failed")] {
        job["status"]["failed"] = failed.into();
        let status = written(&planned(&mut JobController::default(), job.clone(), &[], "j"));
        let mut kinds = status["conditions"].as_array().into_iter().flatten().map(|c| c["type"].as_str());
        assert_eq!(kinds.next_back().flatten(), Some(expected), "{status}");
    }
}
