//! One step of a rollout.

use std::sync::Arc;

use carrack_engine::{Plan, Time, View};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;

use super::super::{claim, pods};
use super::sets::{self, Sets};
use super::{Wanted, available, resize, spec_replicas, status};

/// Goes one step on.
pub(crate) fn step(wanted: Wanted<'_>, sets: &Sets, view: &View<'_>, now: Time) -> Plan {
    let current = sets::keep_current(wanted, sets, now);
    if !current.writes.is_empty() {
        return current;
    }
    let plan = if wanted.is_recreate() { recreate(wanted, sets, view, now) } else { rolling(wanted, sets, view, now) };
    if !plan.writes.is_empty() {
        return sets::resting(wanted, sets, plan);
    }
    let plan = if status::is_complete(wanted, sets) { sets::clean_up(wanted, sets) } else { plan };
    plan.then(status::write(wanted, sets, None, now))
}

/// The old pods go, all of them, and then the new ones come.
fn recreate(wanted: Wanted<'_>, sets: &Sets, view: &View<'_>, now: Time) -> Plan {
    let down = sets.old.iter().filter(|s| spec_replicas(s) > 0).fold(Plan::none(), |p, s| p.then(resize(wanted, s, 0)));
    if !down.writes.is_empty() {
        return down;
    }
    let ended = |pod: &Pod| pods::terminal(pod);
    let old_runs = sets.old.iter().any(|s| claim::controlled::<Pod>(view, s.as_ref()).any(|p| !ended(p)));
    if old_runs || !sets.are_current() {
        return Plan::none();
    }
    match &sets.new {
        None => sets::make(wanted, sets, view, wanted.replicas, now),
        Some(new) => resize(wanted, new, wanted.replicas),
    }
}

/// New pods come within the surge, old ones go while enough are available.
fn rolling(wanted: Wanted<'_>, sets: &Sets, view: &View<'_>, now: Time) -> Plan {
    let up = match &sets.new {
        None => sets::make(wanted, sets, view, room(wanted, sets, 0), now),
        Some(new) => {
            let size = spec_replicas(new);
            let to = if size > wanted.replicas { wanted.replicas } else { size + room(wanted, sets, size) };
            resize(wanted, new, to)
        }
    };
    if !up.writes.is_empty() {
        return up;
    }
    down(wanted, sets)
}

/// By how much the template's set may grow.
fn room(wanted: Wanted<'_>, sets: &Sets, size: i32) -> i32 {
    if !sets.are_current() {
        return 0;
    }
    let most = wanted.replicas.saturating_add(wanted.max_surge());
    most.saturating_sub(sets.most()).min(wanted.replicas - size).max(0)
}

/// Scales old sets down, as far as enough pods stay available: first pods that are not available, then the others.
fn down(wanted: Wanted<'_>, sets: &Sets) -> Plan {
    if sets.old.iter().all(|s| spec_replicas(s) == 0) {
        return Plan::none();
    }
    let min_available = wanted.replicas - wanted.max_unavailable();
    let coming = sets.new.as_ref().map_or(0, |new| spec_replicas(new) - available(new));
    let mut may_go = sets.spec_total() - min_available - coming;
    if may_go <= 0 {
        return Plan::none();
    }
    let mut sizes: Vec<(&Arc<ReplicaSet>, i32)> = sets.old.iter().map(|s| (s, spec_replicas(s))).collect();
    // One that has not seen its size yet may have been told to do without the very pods that it says are not available.
    for (set, size) in sizes.iter_mut().filter(|(set, _)| sets::is_current(set)) {
        let unavailable = (*size - available(set)).clamp(0, may_go);
        *size -= unavailable;
        may_go -= unavailable;
    }
    let all_available: i32 = sets.all().iter().map(|s| available(s)).fold(0, i32::saturating_add);
    let mut spare = (all_available - min_available).max(0);
    for (_, size) in &mut sizes {
        let gone = (*size).min(spare).max(0);
        *size -= gone;
        spare -= gone;
    }
    sizes
        .into_iter()
        .filter(|(set, size)| *size != spec_replicas(set))
        .fold(Plan::none(), |plan, (set, size)| plan.then(resize(wanted, set, size)))
}
