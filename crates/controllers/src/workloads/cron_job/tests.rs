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
    CronJobController::default().reconcile(&Key::new("ns", "c"), &caches.view(), now)
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
        // One that a person made is told of once, and counts as active.
        (
            json!({"suspend": true}),
            json!({}),
            vec![job("by-hand", None, None)],
            vec!["UnexpectedJob: Saw a job that the controller did not create or forgot: by-hand"],
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
