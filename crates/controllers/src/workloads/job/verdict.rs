//! How a Job goes on: whether it has succeeded or failed, is suspended, or needs pods.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{EventRecord, Plan, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;

use super::super::conditions::{self, Condition as _};
use super::super::pods;
use super::indexes::Indexes;
use super::{Known, manage, per_index, policy, tracked};

pub(super) const MET: &str = "SuccessCriteriaMet";
pub(super) const TARGET: &str = "FailureTarget";
const COMPLETIONS_REACHED: &str = "CompletionsReached";

fn condition(kind: &str, status: &str, reason: &str, message: impl Into<String>, now: Time) -> JobCondition {
    JobCondition::new(kind, status, reason, message.into(), now)
}

/// Fills in what a status says of the pods as they are.
pub(super) fn present(known: &Known<'_>, status: &mut JobStatus) {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let active = known.active().count();
    status.active = Some(count(active)).filter(|n| *n > 0);
    status.ready = Some(count(known.active().filter(|p| pods::ready(p)).count()));
    status.terminating = Some(count(known.terminating()));
    // Nothing of these is another word for not known.
    status.uncounted_terminated_pods.get_or_insert_default();
    if known.spec.backoff_limit_per_index.is_some() {
        status.failed_indexes.get_or_insert_default();
    }
}

/// Pods that have succeeded and failed so far, those that are not counted yet included.
pub(super) fn totals(status: &JobStatus) -> (i32, i32) {
    let listed = |list: Option<&Vec<String>>| i32::try_from(list.map_or(0, Vec::len)).unwrap_or(i32::MAX);
    let uncounted = status.uncounted_terminated_pods.as_ref();
    let sum = |n: Option<i32>, list| n.unwrap_or(0).saturating_add(listed(list));
    (
        sum(status.succeeded, uncounted.and_then(|u| u.succeeded.as_ref())),
        sum(status.failed, uncounted.and_then(|u| u.failed.as_ref())),
    )
}

/// Decides, with nothing left to write down of pods that have ended.
pub(super) fn plan(known: &Known<'_>, view: &View<'_>) -> Plan {
    let old = known.status();
    let mut status = old.clone();
    let mut plan = Plan::none();
    if !known.is_finishing() {
        // Its deadline is judged by the clock of one that goes on.
        let mut going_on = status.clone();
        // Who makes no pods any more neither pauses nor goes on.
        let told = if known.job.is_deleting() { Plan::none() } else { suspend(known, &mut going_on) };
        let (end, again) = judge(known, &going_on);
        if let Some(after) = again {
            plan = plan.requeue_after(after);
        }
        match end {
            Some(end) => {
                // One that was over when it was suspended or went on never was suspended or went on.
                start(known, &mut status);
                conditions::set(&mut status.conditions, end);
            }
            None => {
                status = going_on;
                plan = plan.then(told);
            }
        }
    }
    present(known, &mut status);
    let has = |kind: &str| conditions::find(status.conditions.as_ref(), kind).filter(|c| c.status() == "True").cloned();
    if let Some(target) = has(MET).or_else(|| has(TARGET)) {
        let rest = match target.kind() {
            // Whether its pods go with it or stay behind is decided by who deleted it.
            _ if known.job.is_deleting() => Plan::none(),
            // Those that are left over after success are not to count as failed.
            MET => manage::dismiss(known, known.active()),
            _ => {
                let one = |plan: Plan, pod: &Arc<Pod>| plan.delete(pod.as_ref()).told(manage::deleted(known, pod));
                // One that may not go keeps no other.
                known.active().fold(Plan::none(), one).each_apart()
            }
        };
        let counted = !known.pods.iter().any(|p| tracked(p)) && waiting(&status) == 0;
        if known.active().next().is_none() && known.terminating() == 0 && counted {
            plan = plan.then(finish(known, &mut status, &target));
        }
        return write(known, &old, status, rest.then(plan));
    }
    if known.job.is_deleting() {
        return write(known, &old, status, plan);
    }
    let work = if known.is_suspended() { manage::stop(known) } else { manage::plan(known, &status, view) };
    if work.writes.is_empty() {
        return write(known, &old, status, plan.then(work));
    }
    // What is said of a Job before its first pods is said first; the rest is said of the pods that there are then.
    if status.start_time != old.start_time || status.conditions != old.conditions {
        let said = JobStatus { active: old.active, ready: old.ready, terminating: old.terminating, ..status };
        return write(known, &old, said, plan);
    }
    plan.then(work)
}

/// UIDs that wait to be counted.
fn waiting(status: &JobStatus) -> usize {
    let lists = status.uncounted_terminated_pods.iter().flat_map(|u| [u.succeeded.as_ref(), u.failed.as_ref()]);
    lists.flatten().map(Vec::len).sum()
}

/// Writes a status, if it is another one than before, and then the rest.
pub(super) fn write(known: &Known<'_>, old: &JobStatus, new: JobStatus, plan: Plan) -> Plan {
    if *old == new {
        return plan;
    }
    Plan::none().update_status(known.job, &Job { status: Some(new), ..known.job.clone() }).then(plan)
}

/// Starts the clock of a Job that may have pods for the first time.
fn start(known: &Known<'_>, status: &mut JobStatus) {
    if status.start_time.is_none() && !known.is_suspended() {
        status.start_time = Some(known.now.meta());
    }
}

/// Says that a Job was suspended or goes on. A suspended one has no clock, and that of one that goes on starts anew: its
/// deadline is for how long it is active without a pause (upstream's `syncJob`).
fn suspend(known: &Known<'_>, status: &mut JobStatus) -> Plan {
    let was = conditions::find(status.conditions.as_ref(), "Suspended").is_some_and(|c| c.status() == "True");
    let (status_text, reason, message) = match (known.is_suspended(), was) {
        (true, false) => ("True", "JobSuspended", "Job suspended"),
        (false, true) => ("False", "JobResumed", "Job resumed"),
        _ => {
            start(known, status);
            return Plan::none();
        }
    };
    conditions::set(&mut status.conditions, condition("Suspended", status_text, reason, message, known.now));
    status.start_time = None;
    start(known, status);
    let event = if known.is_suspended() { "Suspended" } else { "Resumed" };
    Plan::none().event(EventRecord::normal(known.job, event, message))
}

/// Whether the Job has come to an end, and when to ask again whatever happens.
fn judge(known: &Known<'_>, status: &JobStatus) -> (Option<JobCondition>, Option<Duration>) {
    let spec = known.spec;
    let failed_for = |reason: &str, message: &str| Some(condition(TARGET, "True", reason, message, known.now));
    let (succeeded, failed) = totals(status);
    let failed = failed.saturating_add(per_index::not_written(known, status));
    let limit = spec.backoff_limit.unwrap_or(6);
    if failed > limit || restarts_exceed(known, limit) {
        return (failed_for("BackoffLimitExceeded", "Job has reached the specified backoff limit"), None);
    }
    let mut again = None;
    if let (Some(limit_s), Some(started), false) =
        (spec.active_deadline_seconds, status.start_time.as_ref(), known.is_suspended())
    {
        let limit = Duration::from_secs(u64::try_from(limit_s).unwrap_or(0));
        let left = limit.saturating_sub(known.now.since(Time::from(started)));
        if left.is_zero() {
            return (failed_for("DeadlineExceeded", "Job was active longer than specified deadline"), None);
        }
        again = Some(left);
    }
    let completions = spec.completions.unwrap_or(0);
    if known.is_indexed() {
        let failed = Indexes::parse(status.failed_indexes.as_deref().unwrap_or_default(), completions);
        let completed = Indexes::parse(status.completed_indexes.as_deref().unwrap_or_default(), completions);
        if spec.max_failed_indexes.is_some_and(|most| failed.len() > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return (failed_for("MaxFailedIndexesExceeded", message), again);
        }
        if !failed.is_empty() && failed.union(&completed).len() >= completions {
            return (failed_for("FailedIndexes", "Job has failed indexes"), again);
        }
        if let Some(rule) = spec.success_policy.as_ref().and_then(|p| policy::succeeds(p, &completed, completions)) {
            let message = format!("Matched rules at index {rule}");
            return (Some(condition(MET, "True", "SuccessPolicy", message, known.now)), again);
        }
    }
    let done = match spec.completions {
        // Any success says that the work is done; the others may end.
        None => succeeded > 0 && known.active().next().is_none() && known.terminating() == 0,
        // Those that are too many go first, and count as nothing.
        Some(wanted) => succeeded >= wanted && known.active().next().is_none(),
    };
    let message = "Reached expected number of succeeded pods";
    (done.then(|| condition(MET, "True", COMPLETIONS_REACHED, message, known.now)), again)
}

/// Whether containers that are restarted in place have failed too often.
fn restarts_exceed(known: &Known<'_>, limit: i32) -> bool {
    let in_place = known.spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure");
    if !in_place {
        return false;
    }
    let of = |pod: &Pod| -> i32 {
        let status = pod.status.as_ref();
        let init = status.iter().flat_map(|s| s.init_container_statuses.iter().flatten());
        let all = init.chain(status.iter().flat_map(|s| s.container_statuses.iter().flatten()));
        all.map(|c| c.restart_count).fold(0, i32::saturating_add)
    };
    // Those that are to end still run as long as they do.
    let run = known.pods.iter().filter(|p| !pods::terminal(p));
    let sum = run.map(|p| of(p)).fold(0, i32::saturating_add);
    if limit == 0 { sum > 0 } else { sum >= limit }
}

/// The end itself, once the last pod has ended and is counted.
fn finish(known: &Known<'_>, status: &mut JobStatus, target: &JobCondition) -> Plan {
    let message = target.message.clone().unwrap_or_default();
    let success = target.kind() == MET;
    let kind = if success { "Complete" } else { "Failed" };
    conditions::set(&mut status.conditions, condition(kind, "True", target.reason(), message.clone(), known.now));
    // What is over began, also if it was over before it ever went on.
    if !(known.is_suspended() && known.spec.completions == Some(0)) {
        status.start_time.get_or_insert_with(|| known.now.meta());
    }
    if success {
        // A clock that went back makes nothing end before it began.
        let began = status.start_time.as_ref().map(Time::from);
        status.completion_time = Some(began.map_or(known.now, |began| began.max(known.now)).meta());
        let too_many = known.spec.completions.is_some_and(|wanted| status.succeeded.unwrap_or(0) > wanted);
        let message = "Too many succeeded pods running after completion count reached";
        let warning = too_many.then(|| EventRecord::warning(known.job, "TooManySucceededPods", message));
        let told = warning.into_iter().fold(Plan::none(), Plan::event);
        return told.event(EventRecord::normal(known.job, "Completed", "Job completed"));
    }
    Plan::none().event(EventRecord::warning(known.job, target.reason(), message))
}
