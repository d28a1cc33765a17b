//! A Deployment's status: counts, and what `kubectl rollout status` waits for.

use std::time::Duration;

use carrack_engine::{EventRecord, Plan, Time};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};

use super::super::conditions::{self, Condition as _};
use super::sets::Sets;
use super::{Wanted, available, spec_replicas};

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const FAILURE: &str = "ReplicaFailure";
const COMPLETE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const NOT_MADE: &str = "ReplicaSetCreateError";

fn condition(kind: &str, status: &str, reason: &str, message: impl Into<String>, now: Time) -> DeploymentCondition {
    DeploymentCondition::new(kind, status, reason, message.into(), now)
}

/// Counts of the sets' pods, with the conditions as they were.
fn counts(wanted: Wanted<'_>, sets: &Sets) -> DeploymentStatus {
    let old = wanted.deployment.status.clone().unwrap_or_default();
    let all = sets.all();
    let sum = |of: &dyn Fn(&ReplicaSet) -> i32| all.iter().map(|s| of(s)).fold(0, i32::saturating_add);
    let of_status = |of: fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> i32| {
        move |s: &ReplicaSet| s.status.as_ref().map_or(0, of)
    };
    let some = |n: i32| (n > 0).then_some(n);
    let replicas = sum(&of_status(|s| s.replicas));
    let now_available = sum(&of_status(|s| s.available_replicas.unwrap_or(0)));
    DeploymentStatus {
        observed_generation: wanted.deployment.metadata.generation,
        replicas: some(replicas),
        updated_replicas: some(sets.new.as_ref().and_then(|s| s.status.as_ref()).map_or(0, |s| s.replicas)),
        ready_replicas: some(sum(&of_status(|s| s.ready_replicas.unwrap_or(0)))),
        available_replicas: some(now_available),
        unavailable_replicas: some(sets.spec_total() - now_available),
        terminating_replicas: Some(sum(&of_status(|s| s.terminating_replicas.unwrap_or(0)))),
        collision_count: old.collision_count,
        conditions: old.conditions,
    }
}

fn n(value: Option<i32>) -> i32 {
    value.unwrap_or(0)
}

/// Whether every replica is of the template and available.
fn complete(wanted: Wanted<'_>, status: &DeploymentStatus) -> bool {
    [status.updated_replicas, status.replicas, status.available_replicas].iter().all(|c| n(*c) == wanted.replicas)
}

/// Whether the rollout is over.
pub(crate) fn is_complete(wanted: Wanted<'_>, sets: &Sets) -> bool {
    complete(wanted, &counts(wanted, sets)) && sets.new.as_ref().is_none_or(|s| available(s) == spec_replicas(s))
}

/// Seconds without progress after which a rollout is said to have failed; none where that is not asked.
fn deadline(wanted: Wanted<'_>) -> Option<Duration> {
    let seconds = wanted.spec.progress_deadline_seconds.unwrap_or(600);
    (seconds != i32::MAX).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Whom the messages about progress name.
fn subject(wanted: Wanted<'_>, sets: &Sets) -> String {
    match &sets.new {
        Some(new) => format!("ReplicaSet \"{}\"", new.name()),
        None => format!("Deployment \"{}\"", wanted.deployment.name()),
    }
}

fn progressing(status: &DeploymentStatus) -> Option<&DeploymentCondition> {
    conditions::find(status.conditions.as_ref(), PROGRESSING)
}

/// Says that the Deployment was paused or goes on, if that is news.
pub(crate) fn note_pause(wanted: Wanted<'_>, sets: &Sets, now: Time) -> Option<Plan> {
    deadline(wanted)?;
    let old = wanted.deployment.status.clone().unwrap_or_default();
    let current = progressing(&old);
    if current.is_some_and(|c| c.reason() == TIMED_OUT) {
        return None;
    }
    let was_paused = current.is_some_and(|c| c.reason() == "DeploymentPaused");
    let (reason, message) = match (wanted.is_paused(), was_paused) {
        (true, false) => ("DeploymentPaused", "Deployment is paused"),
        (false, true) => ("DeploymentResumed", "Deployment is resumed"),
        _ => return None,
    };
    let mut new = counts(wanted, sets);
    conditions::set(&mut new.conditions, condition(PROGRESSING, "Unknown", reason, message, now));
    Some(replace(wanted, new))
}

/// Says that the template's set could not be made. Follows upstream's `getNewReplicaSet` in pkg/controller/deployment/sync.go.
pub(crate) fn not_made(wanted: Wanted<'_>, sets: &Sets, name: &str, why: &str, now: Time) -> Plan {
    let message = format!("Failed to create new replica set \"{name}\": {why}");
    let mut new = counts(wanted, sets);
    if deadline(wanted).is_some() {
        conditions::set(&mut new.conditions, condition(PROGRESSING, "False", NOT_MADE, message.clone(), now));
    }
    replace(wanted, new).event(EventRecord::warning(wanted.deployment, NOT_MADE, message))
}

/// What a rollout's first status says: a set was made for it, or one was there.
fn begun(wanted: Wanted<'_>, sets: &Sets, was: Option<&DeploymentCondition>, now: Time) -> DeploymentCondition {
    let who = subject(wanted, sets);
    let (reason, message) = match &sets.new {
        None => ("ReplicaSetUpdated", format!("{who} is progressing.")),
        Some(new) => {
            let told = was.and_then(|c| c.last_update_time.as_ref()).or(wanted
                .deployment
                .metadata
                .creation_timestamp
                .as_ref());
            // Times of objects are whole seconds, and those of a set's own rollout are not before it.
            let is_older = new.metadata.creation_timestamp.as_ref().map(|t| t.0) < told.map(|t| t.0);
            match (is_older, was) {
                (false, _) => ("NewReplicaSetCreated", format!("Created new replica set \"{}\"", new.name())),
                (true, None) => ("FoundNewReplicaSet", format!("Found new replica set \"{}\"", new.name())),
                (true, Some(_)) => ("ReplicaSetUpdated", format!("{who} is progressing.")),
            }
        }
    };
    condition(PROGRESSING, "True", reason, message, now)
}

fn replace(wanted: Wanted<'_>, status: DeploymentStatus) -> Plan {
    if wanted.deployment.status.as_ref() == Some(&status) {
        return Plan::none();
    }
    Plan::none().update_status(&Deployment { status: Some(status), ..wanted.deployment.clone() })
}

/// Writes the status if it is another one, and looks again when the deadline for progress has come.
pub(crate) fn write(wanted: Wanted<'_>, sets: &Sets, collisions: Option<i32>, now: Time) -> Plan {
    let old = wanted.deployment.status.clone().unwrap_or_default();
    let mut new = counts(wanted, sets);
    new.collision_count = collisions.or(new.collision_count);
    let enough = n(new.available_replicas) >= wanted.replicas - wanted.max_unavailable();
    let availability = if enough {
        condition(AVAILABLE, "True", "MinimumReplicasAvailable", "Deployment has minimum availability.", now)
    } else {
        condition(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
            now,
        )
    };
    conditions::set(&mut new.conditions, availability);
    let plan = match deadline(wanted) {
        _ if wanted.is_paused() => Plan::none(),
        Some(after) => progress(wanted, sets, &old, &mut new, after, now),
        // Where no progress is asked for, nothing is said of it (`syncRolloutStatus` in progress.go).
        None => {
            conditions::remove(&mut new.conditions, PROGRESSING);
            Plan::none()
        }
    };
    let failure = sets
        .all()
        .into_iter()
        .rev()
        .find_map(|s| conditions::find(s.status.as_ref().and_then(|s| s.conditions.as_ref()), FAILURE).cloned());
    match failure {
        Some(f) => conditions::set(
            &mut new.conditions,
            condition(
                FAILURE,
                &f.status,
                f.reason.as_deref().unwrap_or_default(),
                f.message.clone().unwrap_or_default(),
                now,
            ),
        ),
        None => conditions::remove(&mut new.conditions, FAILURE),
    }
    plan.then(replace(wanted, new))
}

/// The condition that tells whether the rollout goes on. Returns when to look again.
fn progress(
    wanted: Wanted<'_>,
    sets: &Sets,
    old: &DeploymentStatus,
    new: &mut DeploymentStatus,
    deadline: Duration,
    now: Time,
) -> Plan {
    let current = progressing(old).cloned();
    let was = current.as_ref().map_or("", |c| c.reason()).to_owned();
    if was == COMPLETE && n(new.replicas) == n(new.updated_replicas) {
        return Plan::none();
    }
    let who = subject(wanted, sets);
    let is_done = complete(wanted, new)
        && new.observed_generation.unwrap_or(0) >= wanted.deployment.metadata.generation.unwrap_or(0);
    let goes_on = n(new.updated_replicas) > n(old.updated_replicas)
        || n(new.replicas) - n(new.updated_replicas) < n(old.replicas) - n(old.updated_replicas)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas);
    let since = current.as_ref().and_then(|c| c.last_update_time.as_ref()).map_or(now, Time::from);
    if is_done {
        let message = format!("{who} has successfully progressed.");
        conditions::set(&mut new.conditions, condition(PROGRESSING, "True", COMPLETE, message, now));
    } else if goes_on {
        let mut next = condition(PROGRESSING, "True", "ReplicaSetUpdated", format!("{who} is progressing."), now);
        if let Some(c) = current.filter(|c| c.status == "True") {
            next.last_transition_time = c.last_transition_time;
        }
        // Its time of update is when progress was seen last, so it is replaced though it says the same.
        conditions::remove(&mut new.conditions, PROGRESSING);
        conditions::set(&mut new.conditions, next);
    } else if current.is_some() {
        let left = deadline.saturating_sub(now.since(since));
        if was == TIMED_OUT {
            return Plan::none();
        }
        if was == COMPLETE {
            // The next rollout has begun, and its clock.
            conditions::set(&mut new.conditions, begun(wanted, sets, current.as_ref(), now));
        } else if left.is_zero() {
            let message = format!("{who} has timed out progressing.");
            conditions::set(&mut new.conditions, condition(PROGRESSING, "False", TIMED_OUT, message, now));
        } else {
            return Plan::none().requeue_after(left + Duration::from_secs(1));
        }
    } else {
        // The clock of a rollout starts with its first status.
        conditions::set(&mut new.conditions, begun(wanted, sets, None, now));
    }
    match progressing(new) {
        Some(c) if c.reason() == COMPLETE || c.reason() == TIMED_OUT => Plan::none(),
        _ => Plan::none().requeue_after(deadline + Duration::from_secs(1)),
    }
}
