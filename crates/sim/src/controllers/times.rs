//! CronJobs: one Job for one time, and no second one where that is not allowed.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::batch::v1::CronJob;
use serde_json::{Value, json};

use super::acts::{Work, start, template};
use crate::invariants::Breach;
use crate::observer::{Change, Observer, controller, is_true, key_of, text, uid};
use crate::workload::Act;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// CronJobs that are suspended in the end, so that they come to rest.
pub(super) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(3) {
        cron_job(rng, safety, &format!("often{n}"), acts);
    }
}

/// CronJobs that are all due at the same time, and may run beside themselves.
pub(super) fn many(safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..8 {
        let (name, at) = (&*format!("often{n}"), Duration::from_secs(1));
        let mut work = Work { resource: CronJob::resource(), kind: "cronjob", name, at, safety };
        let mut template = template(name, 1);
        template["metadata"]["annotations"][carrack_hollow::EXIT_CODE] = "0".into();
        template["spec"]["restartPolicy"] = "Never".into();
        work.create(json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}), acts);
        work.at = safety;
        work.patch(json!({"suspend": true}), acts);
    }
}

fn cron_job(rng: &mut Rng, safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let mut work = Work { resource: CronJob::resource(), kind: "cronjob", name, at, safety };
    let policy = ["Allow", "Forbid", "Replace"][usize::try_from(rng.below(3)).unwrap_or(0)];
    let mut template = template(name, 1);
    template["metadata"]["annotations"][carrack_hollow::EXIT_CODE] = "0".into();
    template["metadata"]["annotations"][carrack_hollow::EXIT_AFTER_S] = rng.below(90).to_string().into();
    template["spec"]["restartPolicy"] = "Never".into();
    let schedule = if rng.one_in(2) { "* * * * *".to_owned() } else { format!("@every {}s", 60 + rng.below(20)) };
    work.create(
        json!({"schedule": schedule, "concurrencyPolicy": policy, "successfulJobsHistoryLimit": rng.below(3),
            "failedJobsHistoryLimit": 1, "jobTemplate": {"spec": {"template": template}}}),
        acts,
    );
    if rng.one_in(2) && work.wait(rng) {
        work.patch(json!({"suspend": true}), acts);
        work.at += Duration::from_secs(1 + rng.below(5));
        work.patch(json!({"suspend": false}), acts);
    }
    // It may have been let go on after that.
    work.at = work.at.max(safety);
    work.patch(json!({"suspend": true}), acts);
}

/// Times of which a Job was made, by the CronJob's UID.
#[derive(Default)]
pub(super) struct Times(BTreeSet<(String, String)>);

pub(super) fn is_over(job: &Value) -> bool {
    is_true(job, "Complete") || is_true(job, "Failed")
}

impl Times {
    /// A Job was just made.
    pub(super) fn made(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        let job = change.object();
        let Some(cron) = observer.all("cronjob").find(|c| uid(c) == controller(job)) else { return };
        if change.before.is_some() {
            return;
        }
        let mut breach = |what: String| breaches.push(Breach::new("one-job-for-one-time", what));
        let annotations = job.pointer("/metadata/annotations");
        let at = annotations.and_then(|a| a[SCHEDULED].as_str()).unwrap_or_default().to_owned();
        if !self.0.insert((uid(cron).to_owned(), at.clone())) {
            breach(format!("{} is a second Job for {at} of {}", key_of(job), key_of(cron)));
        }
        let running: Vec<String> =
            observer.all("job").filter(|j| controller(j) == uid(cron) && !is_over(j)).map(key_of).collect();
        if text(cron, "/spec/concurrencyPolicy") != "Allow" && running.len() > 1 {
            breach(format!("{} may have one Job at a time, and has {running:?}", key_of(cron)));
        }
    }
}

/// Why a CronJob is not as it should be: it lists Jobs that are over, or keeps too many.
pub(crate) fn lacks(cron: &Value, observer: &Observer) -> Option<String> {
    let active = cron.pointer("/status/active").and_then(Value::as_array).map_or(0, Vec::len);
    let jobs: Vec<&Value> = observer.all("job").filter(|j| controller(j) == uid(cron)).collect();
    let limit = cron.pointer("/spec/successfulJobsHistoryLimit").and_then(Value::as_u64).unwrap_or(3);
    let over = jobs.iter().filter(|j| is_over(j)).count();
    if active > 0 || over < jobs.len() {
        return Some(format!("has {active} active Jobs, and {} that are not over", jobs.len() - over));
    }
    (u64::try_from(over).unwrap_or(0) > limit).then(|| format!("keeps {over} Jobs of {limit}"))
}
