//! A pod for each ordinal, in order or all at once, and none beyond.

use std::time::Duration;

use carrack_engine::{EventRecord, Plan, Premise, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;

use super::super::{BURST, pods};
use super::{Known, claims, identity};

/// So many of the pods before it a new one rests on, the nearest ones: a request has no room for more.
const RESTS_ON: i64 = 32;

/// What is to be done, and whether an update has to wait for what is not done yet.
pub(super) struct Scaling {
    pub plan: Plan,
    pub waits: bool,
}

impl std::ops::Deref for Scaling {
    type Target = Plan;
    fn deref(&self) -> &Plan {
        &self.plan
    }
}

/// The revision that a pod of an ordinal is made of: below the partition the one that pods were of before.
fn revision_for<'a>(known: &'a Known<'_>, ordinal: i64) -> &'a ControllerRevision {
    if known.rolls() && ordinal < known.partition() { &known.current } else { &known.update }
}

fn told(known: &Known<'_>, what: &str, pod: &str) -> EventRecord {
    let reason = if what == "create" { "SuccessfulCreate" } else { "SuccessfulDelete" };
    EventRecord::normal(known.set, reason, format!("{what} Pod {pod} in StatefulSet {} successful", known.set.name()))
}

/// Adds the removal of a pod.
pub(super) fn remove(plan: Plan, known: &Known<'_>, pod: &Pod) -> Plan {
    plan.delete(pod).told(told(known, "delete", pod.name()))
}

/// Makes, mends and removes pods. In order, one thing at a time; or in parallel, all that can be done.
pub(super) fn plan(view: &View<'_>, known: &Known<'_>) -> Scaling {
    let mut plan = Plan::none();
    for ordinal in known.ordinals() {
        if plan.writes.len() >= BURST {
            return Scaling { plan, waits: true };
        }
        let (next, done) = replica(view, known, ordinal);
        plan = plan.then(next);
        if known.is_ordered() && !done {
            return Scaling { plan, waits: true };
        }
    }
    let condemned = || known.pods.iter().rev().filter(|(ordinal, _)| !known.ordinals().contains(ordinal));
    // Whose the claims are is told of all of them at once, before the first one goes. A pod that goes is given nothing more.
    for (ordinal, pod) in condemned().filter(|(_, pod)| !pod.is_deleting()) {
        plan = plan.then(claims::owned(view, known, *ordinal, pod));
    }
    for (_, pod) in condemned() {
        if !pod.is_deleting() {
            if known.is_ordered()
                && let Some(left) = awaited(known, pod, condemned().skip(1).map(|(_, pod)| pod.as_ref()))
            {
                return Scaling { plan: left.into_iter().fold(plan, Plan::requeue_after), waits: true };
            }
            plan = remove(plan, known, pod);
        }
        if known.is_ordered() {
            return Scaling { plan, waits: true };
        }
    }
    Scaling { plan, waits: false }
}

/// Of pods of an ordered set that are too many, one that is not available goes only as the last such one: while one of a
/// lower ordinal is not available either, nobody is removed. Where that holds, how long it takes till one of them is
/// available if nothing happens to them.
fn awaited<'a>(known: &Known<'_>, highest: &Pod, lower: impl Iterator<Item = &'a Pod>) -> Option<Option<Duration>> {
    let own = known.healthy(highest).err()?;
    let mut others = lower.filter_map(|pod| known.healthy(pod).err()).peekable();
    others.peek()?;
    Some(others.chain([own]).flatten().min())
}

/// In an ordered set a pod is made beside those before it. One of them may have been taken away since they were read, so the
/// write itself rests on their being there.
fn in_order(plan: Plan, known: &Known<'_>, ordinal: i64) -> Plan {
    if !known.is_ordered() {
        return plan;
    }
    let before = known.start().max(ordinal.saturating_sub(RESTS_ON))..ordinal;
    let pods = before.filter_map(|ordinal| known.pods.get(&ordinal));
    pods.fold(plan, |plan, pod| plan.resting_on(&Premise::present(pod.as_ref())))
}

/// What an ordinal needs, and whether it is done with.
fn replica(view: &View<'_>, known: &Known<'_>, ordinal: i64) -> (Plan, bool) {
    let Some(pod) = known.pods.get(&ordinal) else {
        // Somebody else's pod has the name: making ours is refused and told.
        let Some(plan) = claims::missing(view, known, ordinal) else { return (Plan::none(), false) };
        let pod = identity::pod(known, ordinal, revision_for(known, ordinal));
        let told = told(known, "create", pod.name());
        return (in_order(plan.create(&pod).told(told), known, ordinal), false);
    };
    if pod.is_deleting() {
        return (Plan::none(), false);
    }
    if pods::terminal(pod) {
        let (reason, what) = match pods::phase(pod) {
            "Failed" => ("RecreatingFailedPod", "failed"),
            _ => ("RecreatingTerminatedPod", "terminated"),
        };
        let message =
            format!("StatefulSet {}/{} is recreating {what} Pod {}", pod.namespace(), known.set.name(), pod.name());
        let event = match what {
            "failed" => EventRecord::warning(known.set, reason, message),
            _ => EventRecord::normal(known.set, reason, message),
        };
        return (remove(Plan::none(), known, pod).told(event), false);
    }
    let mut plan =
        claims::missing(view, known, ordinal).unwrap_or_default().then(claims::owned(view, known, ordinal, pod));
    if let Some(patch) = identity::mended(known, ordinal, pod) {
        plan = plan.patch(pod.as_ref(), patch);
    }
    match known.healthy(pod) {
        Ok(()) => (plan, true),
        Err(Some(left)) => (plan.requeue_after(left), false),
        Err(None) => (plan, false),
    }
}
