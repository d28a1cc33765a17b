//! Counts ends of pods, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Plan, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;

use super::super::conditions::{self, Condition as _};
use super::indexes::{self, Indexes};
use super::policy::Meaning;
use super::{Known, let_go, per_index, tracked, verdict};

/// The most UIDs in the status at a time, and so the most pods that are counted by one write.
const BATCH: usize = 500;
/// How soon to look again for pods that are gone, where the cache of pods is older than the Job. No event of the Job's own may
/// come when the cache is new enough.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Writes what is to be counted; then the pods that are written down let go.
pub(super) fn plan(known: &Known<'_>, view: &View<'_>) -> Plan {
    let old = known.status();
    let mut status = old.clone();
    let mut uncounted = status.uncounted_terminated_pods.take().unwrap_or_default();
    let unsure = count_released(known, view, &mut status, &mut uncounted);
    let released = note_ended(known, &mut status, &mut uncounted);
    let is_empty = |list: &Option<Vec<String>>| list.as_ref().is_none_or(Vec::is_empty);
    uncounted.succeeded = uncounted.succeeded.filter(|l| !l.is_empty());
    uncounted.failed = uncounted.failed.filter(|l| !l.is_empty());
    let waits = !is_empty(&uncounted.succeeded) || !is_empty(&uncounted.failed);
    // An empty list is what upstream leaves once it has counted something.
    status.uncounted_terminated_pods = (waits || old.uncounted_terminated_pods.is_some()).then_some(uncounted);
    let mut plan = if unsure { Plan::none().requeue_after(LOOK_AGAIN) } else { Plan::none() };
    if status != old {
        verdict::present(known, &mut status);
        plan = plan.update_status(known.job, &Job { status: Some(status), ..known.job.clone() });
    }
    // One that may not let go keeps no other.
    plan.then(released.iter().fold(Plan::none(), |plan, pod| let_go(plan, pod)).each_apart())
}

/// Moves those that have let go from the lists to the counts. A pod that is not there has let go only if the cache of pods is
/// at least as new as the status that names it. Returns whether one stays in the lists only because the cache is older.
fn count_released(
    known: &Known<'_>,
    view: &View<'_>,
    status: &mut JobStatus,
    uncounted: &mut UncountedTerminatedPods,
) -> bool {
    if [&uncounted.succeeded, &uncounted.failed].into_iter().flatten().all(Vec::is_empty) {
        return false;
    }
    let by_uid: BTreeMap<&str, &Arc<Pod>> = known.pods.iter().map(|pod| (pod.uid(), pod)).collect();
    let current = view.revision::<Pod>() >= known.job.revision();
    let mut unsure = false;
    let mut held = |uid: &String| match by_uid.get(uid.as_str()) {
        Some(pod) => tracked(pod) && !known.forgets,
        None => {
            unsure |= !current;
            !current
        }
    };
    let mut count = |list: &mut Option<Vec<String>>, counter: &mut Option<i32>| {
        let Some(list) = list else { return };
        let before = list.len();
        list.retain(&mut held);
        let released = i32::try_from(before - list.len()).unwrap_or(0);
        if released > 0 {
            *counter = Some(counter.unwrap_or(0).saturating_add(released));
        }
    };
    count(&mut uncounted.succeeded, &mut status.succeeded);
    count(&mut uncounted.failed, &mut status.failed);
    unsure
}

/// Writes down pods that have ended. Returns all that may let go.
fn note_ended(known: &Known<'_>, status: &mut JobStatus, uncounted: &mut UncountedTerminatedPods) -> Vec<Arc<Pod>> {
    let completions = known.spec.completions.unwrap_or(0);
    let mut completed = Indexes::parse(status.completed_indexes.as_deref().unwrap_or_default(), completions);
    let held = per_index::judge(known, &completed, status);
    let given_up = Indexes::parse(status.failed_indexes.as_deref().unwrap_or_default(), completions);
    let listed: BTreeSet<String> = uncounted.succeeded.iter().chain(&uncounted.failed).flatten().cloned().collect();
    let mut released = Vec::new();
    let lets_all_go = known.job.is_deleting();
    for pod in known.pods.iter().filter(|p| tracked(p) && (lets_all_go || !held.contains(p.uid()))) {
        let end = known.end_of(pod);
        if end.is_none() && !lets_all_go {
            continue;
        }
        if released.len() >= BATCH {
            break;
        }
        released.push(pod.clone());
        let Some(succeeded) = end else { continue };
        let uid = pod.uid().to_owned();
        if listed.contains(&uid) {
            continue;
        }
        let valid_index = indexes::of_pod(pod).filter(|index| known.is_indexed() && *index < completions);
        if succeeded {
            match valid_index {
                // One that was given up stays so.
                Some(index) if given_up.contains(index) => {}
                // The index is enough to know it by.
                Some(index) => completed.insert(index),
                None if known.is_indexed() => {}
                None => uncounted.succeeded.get_or_insert_default().push(uid),
            }
            continue;
        }
        match known.meaning(pod) {
            Meaning::Ignored => continue,
            // How the Job ends is decided once.
            Meaning::FailsJob(message) if !known.is_finishing() => {
                let target = JobCondition::new("FailureTarget", "True", "PodFailurePolicy", message, known.now);
                conditions::set(&mut status.conditions, target);
            }
            _ => {}
        }
        // One that is of no index, or of one that is not wanted any more, is not of this work.
        if valid_index.is_some() || !known.is_indexed() {
            uncounted.failed.get_or_insert_default().push(uid);
        }
    }
    if known.is_indexed() {
        let text = completed.to_string();
        if !text.is_empty() || status.completed_indexes.is_some() {
            status.completed_indexes = Some(text).filter(|t| !t.is_empty());
        }
        let succeeded = completed.len();
        status.succeeded = Some(succeeded).filter(|n| *n > 0).or(status.succeeded.map(|_| 0));
    }
    released
}
