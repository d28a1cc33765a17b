//! Makes pods that a Job needs, and removes those that it does not need any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{EventRecord, Plan, Premise, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::batch::v1::JobStatus;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};

use super::super::{BURST, names, pods};
use super::indexes::{self, Indexes};
use super::{Known, TRACKING, chooses, let_go, per_index, tracked, verdict};

/// How long a pod waits that replaces one which failed: twice as long after each failure.
const BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// Tells of a pod that was deleted.
pub(super) fn deleted(known: &Known<'_>, pod: &Pod) -> EventRecord {
    EventRecord::normal(known.job, "SuccessfulDelete", format!("Deleted pod: {}", pod.name()))
}

/// Removes pods that are not to count as failed, whatever becomes of the Job: they let go of the finalizer first.
pub(super) fn dismiss<'a>(known: &Known<'_>, pods: impl Iterator<Item = &'a Arc<Pod>>) -> Plan {
    let one = |plan, pod: &Arc<Pod>| let_go(plan, pod).delete(pod.as_ref()).told(deleted(known, pod));
    pods.take(BURST).fold(Plan::none(), one)
}

/// The same, as long as the Job is as it was read.
fn remove<'a>(known: &Known<'_>, pods: impl Iterator<Item = &'a Arc<Pod>>) -> Plan {
    dismiss(known, pods).resting_on(&Premise::unchanged(known.job))
}

/// Ends all pods of a Job that is suspended.
pub(super) fn stop(known: &Known<'_>) -> Plan {
    remove(known, known.active())
}

/// Makes or removes pods.
pub(super) fn plan(known: &Known<'_>, status: &JobStatus, view: &View<'_>) -> Plan {
    let surplus = surplus(known);
    if !surplus.is_empty() {
        return remove(known, surplus.iter());
    }
    let parallelism = known.spec.parallelism.unwrap_or(1).max(0);
    let (succeeded, _) = verdict::totals(status);
    let active = i32::try_from(known.active().count()).unwrap_or(i32::MAX);
    let wanted = match known.spec.completions {
        // Its last pods end as they like, however many there may be.
        None if succeeded > 0 => active,
        None => parallelism,
        Some(completions) => {
            let text = status.failed_indexes.as_deref().unwrap_or_default();
            let given_up = Indexes::parse(text, completions).len();
            (completions - succeeded).saturating_sub(given_up).min(parallelism).max(0)
        }
    };
    if active > wanted {
        let mut order: Vec<&Arc<Pod>> = known.active().collect();
        order.sort_by(|a, b| pods::of_job_goes_before(a, b, known.now));
        return remove(known, order.into_iter().take(usize::try_from(active - wanted).unwrap_or(0)));
    }
    let ending = if known.replaces_ended_only() { i32::try_from(known.terminating()).unwrap_or(i32::MAX) } else { 0 };
    let missing = usize::try_from(wanted - active - ending).unwrap_or(0).min(BURST);
    if missing == 0 {
        return Plan::none();
    }
    if known.spec.selector.is_some() && !chooses(known.job, pod(known, String::new()).metadata.labels.as_ref()) {
        return Plan::none().event(pods::foreign_template(known.job));
    }
    let made =
        if known.is_indexed() { make_indexed(known, status, view, missing) } else { make_any(known, view, missing) };
    if made.writes.is_empty() {
        return made;
    }
    // Ends that somebody else counted meanwhile would be run once more.
    Plan::none().confirm_unchanged(known.job).then(made).resting_on(&Premise::unchanged(known.job))
}

/// Pods of an Indexed Job that are of no index, or of one that another pod has.
fn surplus(known: &Known<'_>) -> Vec<Arc<Pod>> {
    if !known.is_indexed() {
        return Vec::new();
    }
    let completions = known.spec.completions.unwrap_or(0);
    // Of those of one index the most useful one stays.
    let mut order: Vec<&Arc<Pod>> = known.active().collect();
    order.sort_by(|a, b| pods::of_job_goes_before(b, a, known.now));
    let mut seen = BTreeSet::new();
    let takes_place = |pod: &&Arc<Pod>| indexes::of_pod(pod).is_some_and(|i| i < completions && seen.insert(i));
    let (_, surplus): (Vec<_>, Vec<_>) = order.into_iter().partition(takes_place);
    surplus.into_iter().rev().cloned().collect()
}

fn make_any(known: &Known<'_>, view: &View<'_>, missing: usize) -> Plan {
    if let Some(left) = backoff(known) {
        return Plan::none().requeue_after(left);
    }
    let base = known.job.name();
    let free = names::free::<Pod>(view, (known.job.namespace(), base), known.job.uid(), "pod");
    free.take(missing).fold(Plan::none(), |plan, name| create(plan, known, pod(known, name)))
}

fn make_indexed(known: &Known<'_>, status: &JobStatus, view: &View<'_>, missing: usize) -> Plan {
    let completions = known.spec.completions.unwrap_or(0);
    let over = |text: Option<&String>| Indexes::parse(text.map_or("", String::as_str), completions);
    let done = over(status.completed_indexes.as_ref());
    let failed = over(status.failed_indexes.as_ref());
    let lives = |p: &Arc<Pod>| pods::active(p) || known.end_of(p).is_none();
    let taken: Indexes = known.pods.iter().filter(|p| lives(p)).filter_map(|p| indexes::of_pod(p)).collect();
    let not_free = done.union(&failed).union(&taken);
    let mut plan = Plan::none();
    let mut left = missing;
    let of_all = backoff(known);
    // Where each has a limit of its own, its pods tell what it has come to.
    let limited = known.spec.backoff_limit_per_index.map(|_| per_index::by_index(known));
    for index in not_free.missing(completions) {
        if left == 0 {
            break;
        }
        left -= 1;
        let before = limited.as_ref().map(|all| all.get(&index).map_or(&[][..], Vec::as_slice));
        let wait = before.map_or(of_all, |pods| backoff_of_index(known, pods));
        if let Some(wait) = wait {
            plan = plan.requeue_after(wait);
            continue;
        }
        let base = base_of_index(known, index);
        let purpose = format!("index {index}");
        let name = names::free::<Pod>(view, (known.job.namespace(), &base), known.job.uid(), &purpose).next();
        if let Some(name) = name {
            plan = create(plan, known, indexed(known, pod(known, name), index, before));
        }
    }
    plan
}

/// What pods of an index are called, but for what makes their names differ. The index stays whole however long the Job's name is.
fn base_of_index(known: &Known<'_>, index: i32) -> String {
    let index = format!("-{index}");
    let name: String = known.job.name().chars().take((names::BASE_MAX - 1).saturating_sub(index.len())).collect();
    name + &index
}

fn create(plan: Plan, known: &Known<'_>, pod: Pod) -> Plan {
    let told = EventRecord::normal(known.job, "SuccessfulCreate", format!("Created pod: {}", pod.name()));
    plan.create(&pod).told(told)
}

/// When a pod ended: by its containers, if none of them runs any more; else when it was not ready any more, or was to be gone
/// without its time to end.
pub(super) fn ended_at(pod: &Pod) -> Option<Time> {
    let status = pod.status.as_ref();
    let of_status = status.and_then(|s| {
        let states = || {
            let all = s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten());
            all.filter_map(|c| c.state.as_ref())
        };
        let finished = states().filter_map(|c| c.terminated.as_ref()?.finished_at.as_ref().map(Time::from)).max();
        finished.filter(|_| states().all(|c| c.running.is_none()))
    });
    let unready = || {
        let condition = pods::condition(pod, "Ready").filter(|c| c.status == "False")?;
        condition.last_transition_time.as_ref().map(Time::from)
    };
    let asked = || {
        let grace = u64::try_from(pod.metadata.deletion_grace_period_seconds.unwrap_or(0)).unwrap_or(0);
        pod.metadata.deletion_timestamp.as_ref().map(|at| Time::from(at) - Duration::from_secs(grace))
    };
    let made = || pod.metadata.creation_timestamp.as_ref().map(Time::from);
    of_status.or_else(unready).or_else(asked).or_else(made)
}

/// Whether a pod failed, rather than was removed because it was not needed.
pub(super) fn failed(known: &Known<'_>, pod: &Pod) -> bool {
    known.end_of(pod) == Some(false) && (tracked(pod) || !pod.is_deleting())
}

/// How long to wait yet before making another pod: after failures since the last success.
fn backoff(known: &Known<'_>) -> Option<Duration> {
    let (last, failures) = known.streak.failures()?;
    wait(known, last, failures)
}

/// The same for one of an index that has a limit of its own: its pods tell how often it failed.
fn backoff_of_index(known: &Known<'_>, of_index: &[&Pod]) -> Option<Duration> {
    let last = of_index.iter().filter(|p| failed(known, p)).filter_map(|p| ended_at(p)).max()?;
    wait(known, last, per_index::failures(known, of_index).all())
}

/// What is left of the wait after so many failures, of which the last was then.
fn wait(known: &Known<'_>, last: Time, failures: u32) -> Option<Duration> {
    let doublings = failures.saturating_sub(1).min(16);
    let wait = BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF);
    // A clock that went back makes the wait no longer than it is.
    let left = wait.saturating_sub(known.now.since(last));
    (!left.is_zero()).then_some(left)
}

/// A pod of the Job.
fn pod(known: &Known<'_>, name: String) -> Pod {
    let mut pod = pods::from_template(known.job, &known.spec.template, name);
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
    let labels = pod.metadata.labels.get_or_insert_default();
    let (uid, name) = (known.job.uid(), known.job.name());
    for (key, value) in [("controller-uid", uid), ("job-name", name)] {
        labels.entry(format!("batch.kubernetes.io/{key}")).or_insert_with(|| value.to_owned());
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    pod
}

/// Tells a pod its index: by annotation, label, environment and host name. `before` are those that its index had before it, where
/// that has a limit of its own.
fn indexed(known: &Known<'_>, mut pod: Pod, index: i32, before: Option<&[&Pod]>) -> Pod {
    let text = index.to_string();
    pod.metadata.generate_name = Some(format!("{}-", base_of_index(known, index)));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(indexes::INDEX.to_owned(), text.clone());
    if let Some(before) = before {
        let failures = per_index::failures(known, before);
        annotations.insert(per_index::FAILURES.to_owned(), failures.counted.to_string());
        if failures.ignored > 0 && !known.untold {
            annotations.insert(per_index::IGNORED.to_owned(), failures.ignored.to_string());
        }
    }
    pod.metadata.labels.get_or_insert_default().insert(indexes::INDEX.to_owned(), text);
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{}-{index}", known.job.name()));
    let source = ObjectFieldSelector {
        api_version: Some("v1".into()),
        field_path: format!("metadata.labels['{}']", indexes::INDEX),
    };
    let variable = EnvVar {
        name: "JOB_COMPLETION_INDEX".into(),
        value_from: Some(EnvVarSource { field_ref: Some(source), ..EnvVarSource::default() }),
        ..EnvVar::default()
    };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let env = container.env.get_or_insert_default();
        if env.iter().all(|e| e.name != variable.name) {
            env.push(variable.clone());
        }
    }
    pod
}
