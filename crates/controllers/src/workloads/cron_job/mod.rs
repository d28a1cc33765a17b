//! Makes Jobs at times.
//!
//! Behaviour follows kube-controller-manager (pkg/controller/cronjob). A Job is named after its CronJob and the minute that it
//! is for, so that one time has one Job, whatever is done twice.
//!
//! What a person made of its template (`kubectl create job --from`) is no Job of a time: it stands in no other's way, and is not
//! replaced. A schedule that is changed is due at times after the change only; that is remembered in memory, as long as upstream's
//! controller, which goes by its queue, remembers it. Where the next Job is to replace the one before, it is made when that is gone.

mod schedule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{
    Controller, DeleteOptions, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write, controller_ref,
};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::claim::{controlled, watch};
use super::conditions::{self, Condition as _};
use super::job::is_finished;
use crate::Planted;
use schedule::{Schedule, TOO_MANY};

/// Annotation of a Job with the time that it is for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// A CronJob's schedule as it was seen last.
struct Seen {
    uid: String,
    schedule: String,
    zone: Option<String>,
    /// Since when it is so; none if it was so when it was seen first.
    since: Option<Time>,
}

/// The controller of CronJobs.
#[derive(Default)]
pub struct CronJobController {
    seen: BTreeMap<Key, Seen>,
    /// A planted bug: names are drawn anew, and Jobs do not say for which times there was one.
    pub(crate) forgets: bool,
}

impl CronJobController {
    /// With a bug, for the simulator.
    pub(super) fn with_planted(self, planted: Option<Planted>) -> Self {
        Self { forgets: planted == Some(Planted::TimesTwice), ..self }
    }
    /// Since when the schedule is as it is, if it was seen to change.
    fn changed(&mut self, key: &Key, cron: &CronJob, now: Time) -> Option<Time> {
        let (schedule, zone) = (&cron.spec.schedule, &cron.spec.time_zone);
        let before = self.seen.get(key).filter(|seen| seen.uid == cron.uid());
        let since = match before {
            Some(seen) if seen.schedule == *schedule && seen.zone == *zone => return seen.since,
            Some(_) => Some(now),
            None => None,
        };
        let seen = Seen { uid: cron.uid().to_owned(), schedule: schedule.clone(), zone: zone.clone(), since };
        self.seen.insert(key.clone(), seen);
        since
    }
}

impl Controller for CronJobController {
    fn name(&self) -> &'static str {
        "cronjob"
    }
    fn event_source(&self) -> &'static str {
        "cronjob-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<CronJob>();
        // A CronJob has no selector: it has the Jobs that it made.
        watch::<Job, CronJob>(setup, |_, _| false);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(cron) = view.get::<CronJob>(&key.namespace, &key.name) else {
            self.seen.remove(key);
            return Plan::none();
        };
        let spec = &cron.spec;
        let changed = self.changed(key, cron, now);
        let jobs: Vec<Arc<Job>> = controlled::<Job>(view, cron.as_ref()).cloned().collect();
        let old = cron.status.clone().unwrap_or_default();
        let mut status = old.clone();
        let plan = follow(cron, &jobs, &mut status, self.forgets);
        let write = |status: CronJobStatus| {
            Plan::none().update_status(cron.as_ref(), &CronJob { status: Some(status), ..CronJob::clone(cron) })
        };
        if status != old {
            // Written before a Job is removed: one that is gone does not say any more for which time it was.
            return plan.then(write(status));
        }
        // One that may not go keeps none that is due from being made.
        let plan = plan.then(clean_up(spec, cron, &jobs).each_apart());
        if cron.is_deleting() || spec.suspend == Some(true) {
            return plan;
        }
        let plan = plan.then(run(cron, &jobs, &mut status, (changed, now), self.forgets));
        if status == old { plan } else { plan.then(write(status)) }
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        let Some(cron) = view.get::<CronJob>(&key.namespace, &key.name) else { return Plan::none() };
        let (reason, doing) = match refusal.write {
            Write::Create { .. } => ("FailedCreate", "creating"),
            Write::Delete { .. } => ("FailedDelete", "deleting"),
            _ => return Plan::none(),
        };
        let message = format!("Error {doing} job: {}", refusal.error.message);
        Plan::none().event(EventRecord::warning(cron.as_ref(), reason, message))
    }
}

fn reference(job: &Job) -> ObjectReference {
    let resource = Job::resource();
    ObjectReference {
        api_version: Some(resource.api_version()),
        kind: Some(resource.kind.into_owned()),
        namespace: job.metadata.namespace.clone(),
        name: job.metadata.name.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        field_path: None,
    }
}

/// The time that a Job is for.
fn scheduled(job: &Job) -> Option<Time> {
    Time::parse(job.metadata.annotations.as_ref()?.get(SCHEDULED)?)
}

/// The name of the Job of a time.
fn name_of(cron: &CronJob, at: Time) -> String {
    format!("{}-{}", cron.name(), at.unix_s().div_euclid(60))
}

/// Whether a Job was made here, and not by a person from the CronJob's template.
fn is_ours(cron: &CronJob, job: &Job) -> bool {
    scheduled(job).is_some_and(|at| job.name().starts_with(&name_of(cron, at)))
}

/// Brings the list of active Jobs, and the times of the last ones, up to date.
fn follow(cron: &CronJob, jobs: &[Arc<Job>], status: &mut CronJobStatus, forgets: bool) -> Plan {
    let mut plan = Plan::none();
    let mut active = status.active.take().unwrap_or_default();
    let listed = |active: &[ObjectReference], job: &Job| active.iter().any(|r| r.uid.as_deref() == Some(job.uid()));
    for job in jobs {
        let finished = is_finished(job);
        if !finished && !listed(&active, job) {
            if is_ours(cron, job) {
                active.push(reference(job));
            } else {
                let message = format!("Saw a job that the controller did not create or forgot: {}", job.name());
                plan = plan.event(EventRecord::warning(cron, "UnexpectedJob", message));
            }
        }
        if let Some(at) = scheduled(job).filter(|_| !forgets)
            && status.last_schedule_time.as_ref().is_none_or(|last| Time::from(last) < at)
        {
            status.last_schedule_time = Some(at.meta());
        }
        let completed = job.status.as_ref().and_then(|s| s.completion_time.as_ref()).filter(|_| finished);
        if let Some(at) = completed
            && status.last_successful_time.as_ref().is_none_or(|last| Time::from(last) < Time::from(at))
        {
            status.last_successful_time = Some(at.clone());
        }
        if finished && listed(&active, job) {
            active.retain(|r| r.uid.as_deref() != Some(job.uid()));
            let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
            let complete = conditions::find(conditions, "Complete").is_some_and(|c| c.status() == "True");
            let how = if complete { "Complete" } else { "Failed" };
            let message = format!("Saw completed job: {}, condition: {how}", job.name());
            plan = plan.event(EventRecord::normal(cron, "SawCompletedJob", message));
        }
    }
    active.retain(|r| {
        let there = jobs.iter().any(|j| r.uid.as_deref() == Some(j.uid()));
        if !there {
            let message = format!("Active job went missing: {}", r.name.as_deref().unwrap_or_default());
            plan.events.push(EventRecord::normal(cron, "MissingJob", message));
        }
        there
    });
    status.active = Some(active).filter(|a| !a.is_empty());
    plan
}

/// Removes Jobs that are over, beyond the history that is kept.
fn clean_up(spec: &CronJobSpec, cron: &CronJob, jobs: &[Arc<Job>]) -> Plan {
    let complete = |j: &Job| {
        let conditions = j.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions::find(conditions, "Complete").is_some_and(|c| c.status() == "True")
    };
    let mut plan = Plan::none();
    for (wanted, keep) in
        [(true, spec.successful_jobs_history_limit.unwrap_or(3)), (false, spec.failed_jobs_history_limit.unwrap_or(1))]
    {
        let over = |j: &&Arc<Job>| is_finished(j) && !j.is_deleting() && complete(j) == wanted;
        let mut over: Vec<&Arc<Job>> = jobs.iter().filter(over).collect();
        let start = |j: &Job| j.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|t| t.0);
        // One that never began is the youngest.
        let key = |j: &Job| (start(j).is_none(), start(j));
        over.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.name().cmp(b.name())));
        let excess = over.len().saturating_sub(usize::try_from(keep).unwrap_or(0));
        plan = over.into_iter().take(excess).fold(plan, |plan, job| remove(plan, cron, job));
    }
    plan
}

fn remove(plan: Plan, cron: &CronJob, job: &Job) -> Plan {
    let options = DeleteOptions { propagation: Some("Background"), ..DeleteOptions::default() };
    let told = EventRecord::normal(cron, "SuccessfulDelete", format!("Deleted job {}", job.name()));
    plan.delete_with(&Job::resource(), job, options).told(told)
}

/// Makes the Job of the latest time that has come, unless it is too late for it or another one is in the way.
fn run(
    cron: &CronJob,
    jobs: &[Arc<Job>],
    status: &mut CronJobStatus,
    (changed, now): (Option<Time>, Time),
    forgets: bool,
) -> Plan {
    let spec = &cron.spec;
    let warn = |reason: &str, message: String| Plan::none().event(EventRecord::warning(cron, reason, message));
    if let Some(zone) = &spec.time_zone
        && let Err(error) = jiff::tz::TimeZone::get(zone)
    {
        return warn("UnknownTimeZone", format!("invalid timeZone: {zone:?}: {error}"));
    }
    let mut plan = Plan::none();
    if spec.schedule.contains("TZ") {
        let message = format!(
            "CRON_TZ or TZ used in schedule {:?} is not officially supported, use spec.timeZone instead",
            spec.schedule
        );
        plan = warn("UnsupportedSchedule", message);
    }
    let schedule = match Schedule::parse(&spec.schedule, spec.time_zone.as_deref()) {
        Ok(schedule) => schedule,
        Err(error) => {
            return plan
                .then(warn("UnparseableSchedule", format!("unparseable schedule: {:?} : {error}", spec.schedule)));
        }
    };
    let created = cron.metadata.creation_timestamp.as_ref().map_or(now, Time::from);
    let last = status.last_schedule_time.as_ref().map_or(created, Time::from);
    let last = changed.map_or(last, |changed| changed.min(now).max(last));
    let deadline = spec.starting_deadline_seconds.map(|s| Duration::from_secs(u64::try_from(s).unwrap_or(0)));
    let since = match deadline {
        None => last,
        // What comes at intervals is reckoned from what came before, however long ago that was.
        Some(deadline) if schedule.is_interval() => schedule.missed(last, now - deadline).map_or(last, |m| m.latest),
        Some(deadline) => last.max(now - deadline),
    };
    let Some(first) = schedule.next(since) else {
        let why = "time difference between two schedules is less than 1 second";
        return plan.then(warn("InvalidSchedule", format!("invalid schedule: {} : {why}", spec.schedule)));
    };
    // Looked at again when the next time has come. A clock that goes back makes that later, and nothing else.
    let missed = schedule.missed(since, now);
    let from = if schedule.is_interval() { missed.map_or(since, |m| m.latest) } else { since.max(now) };
    let next = schedule.next(from).unwrap_or(first);
    let again = Plan::none().requeue_after(next.since(now) + Duration::from_millis(100));
    let Some(missed) = missed else { return again };
    // What is odd about the schedule is said when there is something to do, and not at each look.
    let mut plan = again.then(plan);
    if missed.count > TOO_MANY {
        let advice = "Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        let message = format!("too many missed start times. {advice}");
        plan = plan.then(warn("TooManyMissedTimes", message));
    }
    if deadline.is_some_and(|d| now.since(missed.latest) > d) {
        let at = missed.latest.meta().0.strftime("%a, %d %b %Y %H:%M:%S +0000");
        let message = format!("Missed scheduled time to start a job: {at}");
        return plan.then(warn("MissSchedule", message));
    }
    let mut name = name_of(cron, missed.latest);
    if forgets {
        name += &format!("-{}", now.0);
    }
    if jobs.iter().any(|j| j.name() == name) {
        status.last_schedule_time = Some(missed.latest.meta());
        return plan;
    }
    let listed = |job: &Job| status.active.iter().flatten().any(|r| r.uid.as_deref() == Some(job.uid()));
    let running: Vec<&Arc<Job>> = jobs.iter().filter(|j| !is_finished(j) && (is_ours(cron, j) || listed(j))).collect();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !running.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            return plan.event(EventRecord::normal(cron, "JobAlreadyActive", message));
        }
        Some("Replace") if !running.is_empty() => {
            // The next one comes when they are gone.
            return running.into_iter().filter(|j| !j.is_deleting()).fold(plan, |plan, job| remove(plan, cron, job));
        }
        _ => {}
    }
    status.last_schedule_time = Some(missed.latest.meta());
    let message = format!("Created job {name}");
    let make = Plan::none().create(&job(cron, spec, name, missed.latest)).resting_on(&Premise::unchanged(cron));
    plan.then(make).told(EventRecord::normal(cron, "SuccessfulCreate", message))
}

/// A time as it is written in a time zone: with the zone's offset, where it has one.
fn in_zone(at: Time, zone: Option<&str>) -> String {
    let zone = zone.and_then(|name| jiff::tz::TimeZone::get(name).ok());
    let zoned = zone.map(|zone| at.meta().0.to_zoned(zone)).filter(|zoned| zoned.offset().seconds() != 0);
    zoned.map_or_else(|| at.rfc3339(), |zoned| zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

/// The Job of a time.
fn job(cron: &CronJob, spec: &CronJobSpec, name: String, at: Time) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), in_zone(at, spec.time_zone.as_deref()));
    Job {
        metadata: ObjectMeta {
            namespace: cron.metadata.namespace.clone(),
            name: Some(name),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_ref(cron)]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}
