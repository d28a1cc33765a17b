//! What is told of a CronJob's Jobs, and what they are told.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller as _, Key, Plan, Time, Write};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use serde_json::{Value, json};

use super::super::claim::index;
use super::{CronJobController, SCHEDULED};
use crate::testing::of;

/// What is planned five seconds after one o'clock for a CronJob that is due each hour.
fn look(spec: Value, status: Value, jobs: &[Value]) -> Plan {
    look_with(&mut CronJobController::default(), spec, status, jobs)
}

/// The same, by a controller that may have looked before.
fn look_with(controller: &mut CronJobController, spec: Value, status: Value, jobs: &[Value]) -> Plan {
    let mut cron = json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c", "resourceVersion": "1",
            "creationTimestamp": "2026-07-01T00:00:00Z"},
        "spec": {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": {"spec": {"containers": []}}}}}, "status": status});
    for (key, value) in spec.as_object().into_iter().flatten() {
        cron["spec"][key] = value.clone();
    }
    let caches = Caches::new()
        .with::<CronJob>([of(cron)])
        .with_index("controller", index::<Job>)
        .with::<Job>(jobs.iter().cloned().map(of));
    let now = Time::parse("2026-07-01T01:00:05Z").expect("a time");
    controller.reconcile(&Key::new("ns", "c"), &caches.view(), now)
}

fn job(name: &str, at: Option<&str>, over: Option<&str>) -> Value {
    let mut job = json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "ownerReferences": [
        {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "c", "controller": true}]}});
    if let Some(at) = at {
        job["metadata"]["annotations"] = json!({SCHEDULED: at});
    }
    if let Some(kind) = over {
        job["status"] = json!({"conditions": [{"type": kind, "status": "True"}]});
    }
    job
}

/// Events, those that wait for a write included.
fn events(plan: &Plan) -> Vec<String> {
    let told = plan.told.iter().map(|(_, event)| event);
    plan.events.iter().chain(told).map(|e| format!("{}: {}", e.reason, e.message)).collect()
}

#[test]
fn what_becomes_of_its_jobs_is_told() {
    let active =
        |name: &str| json!({"active": [{"name": name, "uid": name}], "lastScheduleTime": "2026-07-01T00:00:00Z"});
    let midnight = Some("2026-07-01T00:00:00Z");
    // 1782864000 s: midnight.
    let ours = "c-29714400";
    for (spec, status, jobs, expected) in [
        (json!({}), active("gone"), vec![], vec!["MissingJob: Active job went missing: gone"]),
        (
            json!({}),
            active(ours),
            vec![job(ours, midnight, Some("Complete"))],
            vec!["SawCompletedJob: Saw completed job: c-29714400, condition: Complete"],
        ),
        (
            json!({}),
            active(ours),
            vec![job(ours, midnight, Some("Failed"))],
            vec!["SawCompletedJob: Saw completed job: c-29714400, condition: Failed"],
        ),
        (
            json!({"concurrencyPolicy": "Forbid"}),
            active(ours),
            vec![job(ours, midnight, None)],
            vec![
                "JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid",
            ],
        ),
        // One that a person made is told of, and stands in no way.
        (
            json!({"concurrencyPolicy": "Forbid"}),
            json!({}),
            vec![job("by-hand", None, None)],
            vec![
                "UnexpectedJob: Saw a job that the controller did not create or forgot: by-hand",
                "SuccessfulCreate: Created job c-29714460",
            ],
        ),
        (
            json!({"concurrencyPolicy": "Replace"}),
            json!({}),
            vec![job("by-hand", None, None)],
            vec![
                "UnexpectedJob: Saw a job that the controller did not create or forgot: by-hand",
                "SuccessfulCreate: Created job c-29714460",
            ],
        ),
        (
            json!({"concurrencyPolicy": "Replace"}),
            active(ours),
            vec![job(ours, midnight, None)],
            vec!["SuccessfulDelete: Deleted job c-29714400"],
        ),
        (json!({"suspend": true}), active("by-hand"), vec![job("by-hand", None, None)], vec![]),
        (json!({"suspend": true}), json!({}), vec![job(ours, midnight, None)], vec![]),
        (
            json!({"schedule": "TZ=UTC 0 * * * *"}),
            Value::Null,
            vec![],
            vec![
                "UnsupportedSchedule: CRON_TZ or TZ used in schedule \"TZ=UTC 0 * * * *\" is not officially supported, \
                 use spec.timeZone instead",
                "SuccessfulCreate: Created job c-29714460",
            ],
        ),
    ] {
        assert_eq!(events(&look(spec.clone(), status.clone(), &jobs)), expected, "{spec} {status} {jobs:?}");
    }
}

#[test]
fn a_job_says_in_its_time_zone_for_when_it_is() {
    for (zone, expected) in [
        (Value::Null, "2026-07-01T01:00:00Z"),
        (json!("Etc/UTC"), "2026-07-01T01:00:00Z"),
        (json!("Europe/Berlin"), "2026-07-01T03:00:00+02:00"),
        (json!("America/New_York"), "2026-06-30T21:00:00-04:00"),
    ] {
        let plan = look(json!({ "timeZone": zone }), Value::Null, &[]);
        let made = plan.writes.iter().find_map(|write| match write {
            Write::Create { object, .. } => object["metadata"]["annotations"][SCHEDULED].as_str(),
            _ => None,
        });
        assert_eq!(made, Some(expected), "{zone}");
        assert_eq!(made.and_then(Time::parse), Time::parse("2026-07-01T01:00:00Z"), "{zone}");
    }
}

#[test]
fn a_changed_schedule_is_not_due_for_times_before_the_change() {
    let mut controller = CronJobController::default();
    let mut look = |schedule: &str, suspend: bool, now: &str| {
        let cron = json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c", "resourceVersion": "1",
                "creationTimestamp": "2026-07-01T00:00:00Z"},
            "spec": {"schedule": schedule, "suspend": suspend,
                "jobTemplate": {"spec": {"template": {"spec": {"containers": []}}}}},
            "status": {"lastScheduleTime": "2026-07-01T03:00:00Z"}});
        let caches = Caches::new().with::<CronJob>([of(cron)]).with_index("controller", index::<Job>).with::<Job>([]);
        let now = Time::parse(now).expect("a time");
        let plan = controller.reconcile(&Key::new("ns", "c"), &caches.view(), now);
        plan.writes.iter().any(|write| matches!(write, Write::Create { .. }))
    };
    for (schedule, suspend, now, expected) in [
        ("0 3 * * *", false, "2026-07-01T12:00:00Z", false),
        // It was to be at four, and is five hours late when it is asked for.
        ("0 4 * * *", false, "2026-07-01T12:00:01Z", false),
        ("0 4 * * *", false, "2026-07-01T12:01:00Z", false),
        ("0 4 * * *", false, "2026-07-02T04:00:00Z", true),
        // What was missed while it was suspended is made up for, as ever.
        ("0 6 * * *", true, "2026-07-02T05:00:00Z", false),
        ("0 6 * * *", true, "2026-07-02T06:30:00Z", false),
        ("0 6 * * *", false, "2026-07-02T07:00:00Z", true),
    ] {
        assert_eq!(look(schedule, suspend, now), expected, "{schedule} {suspend} at {now}");
    }
    // Who sees it for the first time knows of no change.
    let mut controller = CronJobController::default();
    let plan = look_with(&mut controller, json!({"schedule": "30 0 * * *"}), Value::Null, &[]);
    assert_eq!(events(&plan), ["SuccessfulCreate: Created job c-29714430"]);
}

#[test]
fn the_jobs_that_began_first_go_first() {
    let over = |name: &str, began: Value| {
        let mut job = job(name, None, Some("Complete"));
        job["status"]["startTime"] = began;
        job
    };
    let jobs = [
        over("never", Value::Null),
        over("late", json!("2026-07-01T00:30:00Z")),
        over("early", json!("2026-07-01T00:10:00Z")),
    ];
    let plan = look(json!({"suspend": true, "successfulJobsHistoryLimit": 1}), json!({}), &jobs);
    assert_eq!(events(&plan), ["SuccessfulDelete: Deleted job early", "SuccessfulDelete: Deleted job late"]);
}

#[test]
fn a_job_that_may_not_go_holds_up_none_that_is_due() {
    let over = |name: &str| job(name, None, Some("Complete"));
    let plan = look(json!({"successfulJobsHistoryLimit": 1}), json!({}), &[over("a"), over("b")]);
    let [Write::Delete { .. }, Write::Create { .. }, Write::Update { .. }] = &plan.writes[..] else {
        panic!("{:?}", plan.writes)
    };
    assert_eq!(plan.apart.into_iter().collect::<Vec<_>>(), [0]);
}
