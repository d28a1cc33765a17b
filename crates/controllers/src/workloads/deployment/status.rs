//! A Deployment's status: counts, and what `kubectl rollout status` waits for.

use std::sync::Arc;
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
const GOES_ON: &str = "ReplicaSetUpdated";
const CREATED: &str = "NewReplicaSetCreated";
const FOUND: &str = "FoundNewReplicaSet";
const RESUMED: &str = "DeploymentResumed";
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
        terminating_replicas: terminating(&all),
        collision_count: old.collision_count,
        conditions: old.conditions,
    }
}

/// How many pods are going; unknown where a set that has reported does not say it. One that has not reported has none.
fn terminating(all: &[&Arc<ReplicaSet>]) -> Option<i32> {
    all.iter().filter_map(|set| set.status.as_ref()).try_fold(0_i32, |sum, status| match status.terminating_replicas {
        None if status.observed_generation.unwrap_or(0) == 0 => Some(sum),
        counted => counted.map(|n| sum.saturating_add(n)),
    })
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
        (false, true) => (RESUMED, "Deployment is resumed"),
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

/// Whether the template's set was there before its condition said something last, or before the Deployment, where it says
/// nothing yet. Times of objects are whole seconds, and those of a set's own rollout are not before it.
fn was_there(wanted: Wanted<'_>, new: &ReplicaSet, was: Option<&DeploymentCondition>) -> bool {
    let told = was.and_then(|c| c.last_update_time.as_ref());
    let told = told.or(wanted.deployment.metadata.creation_timestamp.as_ref());
    new.metadata.creation_timestamp.as_ref().map(|t| t.0) < told.map(|t| t.0)
}

/// Whether what is said of progress is about another rollout: it names another set, or one that could not be made then, or was
/// said before the set was made. What a rollout that has failed said would else be taken for the one that mends it.
fn is_of_another(wanted: Wanted<'_>, sets: &Sets, said: &DeploymentCondition) -> bool {
    match (said.reason(), &sets.new) {
        (NOT_MADE, new) => new.is_some(),
        (RESUMED, new) => new.as_ref().is_some_and(|new| !was_there(wanted, new, Some(said))),
        (COMPLETE | GOES_ON | CREATED | FOUND | TIMED_OUT, new) => {
            let name = format!("\"{}\"", new.as_ref().map_or_else(|| wanted.deployment.name(), |new| new.name()));
            said.message.as_ref().is_none_or(|message| !message.contains(&name))
        }
        _ => false,
    }
}

/// What a rollout's first status says: a set was made for it, or one was there.
fn begun(wanted: Wanted<'_>, sets: &Sets, was: Option<&DeploymentCondition>, now: Time) -> DeploymentCondition {
    let who = subject(wanted, sets);
    let (reason, message) = match &sets.new {
        None => (GOES_ON, format!("{who} is progressing.")),
        Some(new) => match (was_there(wanted, new, was), was) {
            (false, _) => (CREATED, format!("Created new replica set \"{}\"", new.name())),
            (true, None) => (FOUND, format!("Found new replica set \"{}\"", new.name())),
            (true, Some(_)) => (GOES_ON, format!("{who} is progressing.")),
        },
    };
    condition(PROGRESSING, "True", reason, message, now)
}

/// Which set's failure to make or remove pods is told: the template's before the others, and of those the oldest's.
fn failure(sets: &Sets) -> Option<DeploymentCondition> {
    let of = |set: &Arc<ReplicaSet>| {
        conditions::find(set.status.as_ref().and_then(|s| s.conditions.as_ref()), FAILURE).cloned()
    };
    let found = sets.new.iter().chain(&sets.old).find_map(of)?;
    Some(DeploymentCondition {
        type_: found.type_,
        status: found.status,
        reason: found.reason,
        message: found.message,
        last_update_time: found.last_transition_time.clone(),
        last_transition_time: found.last_transition_time,
    })
}

fn replace(wanted: Wanted<'_>, status: DeploymentStatus) -> Plan {
    if wanted.deployment.status.as_ref() == Some(&status) {
        return Plan::none();
    }
    Plan::none().update_status(wanted.deployment, &Deployment { status: Some(status), ..wanted.deployment.clone() })
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
    match failure(sets) {
        Some(failure) => conditions::set(&mut new.conditions, failure),
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
    let current = progressing(old);
    let was = current.map_or("", |c| c.reason());
    let of_another = current.is_some_and(|c| is_of_another(wanted, sets, c));
    if was == COMPLETE && !of_another && n(new.replicas) == n(new.updated_replicas) {
        return Plan::none();
    }
    let who = subject(wanted, sets);
    let is_done = complete(wanted, new)
        && new.observed_generation.unwrap_or(0) >= wanted.deployment.metadata.generation.unwrap_or(0);
    let goes_on = n(new.updated_replicas) > n(old.updated_replicas)
        || n(new.replicas) - n(new.updated_replicas) < n(old.replicas) - n(old.updated_replicas)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas);
    let mut next = match current {
        _ if is_done => condition(PROGRESSING, "True", COMPLETE, format!("{who} has successfully progressed."), now),
        _ if goes_on => condition(PROGRESSING, "True", GOES_ON, format!("{who} is progressing."), now),
        // The clock of a rollout starts with its first status.
        None => begun(wanted, sets, None, now),
        Some(c) if of_another || was == COMPLETE => begun(wanted, sets, Some(c), now),
        Some(_) if was == TIMED_OUT => return Plan::none(),
        Some(c) => {
            let since = c.last_update_time.as_ref().map_or(now, Time::from);
            let left = deadline.saturating_sub(now.since(since));
            if !left.is_zero() {
                return Plan::none().requeue_after(left + Duration::from_secs(1));
            }
            condition(PROGRESSING, "False", TIMED_OUT, format!("{who} has timed out progressing."), now)
        }
    };
    if let Some(c) = current.filter(|c| c.status == next.status) {
        next.keep_transition(c);
    }
    // Its time of update is when progress was seen last, so it is replaced though it may say the same.
    conditions::remove(&mut new.conditions, PROGRESSING);
    let over = [COMPLETE, TIMED_OUT].contains(&next.reason());
    conditions::set(&mut new.conditions, next);
    if over { Plan::none() } else { Plan::none().requeue_after(deadline + Duration::from_secs(1)) }
}
