//! From a chosen node to a binding that was seen.
//!
//! ```text
//!   reserve ─▶ claims are written ─▶ claims are bound ─▶ binding ──ok──▶ bound ──watch shows it──▶ confirmed
//!      │              │                    │                │             │ not shown for a while
//!      │              └── refused, too late┴── refused      │ unknown     ▼
//!      │                        ▼                           └────────▶ checking (a live read) ──▶ bound, or
//!      └──────────────────── forgotten: back into the queue ◀── fencing ◀────────────────────────┘
//! ```
//!
//! What fencing is for says [`fence`], and what is told of pods whose claims are written, [`announce`].

mod announce;
mod claims;
mod fence;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, ContentType, Delta, Effects, EventRecord, Time, TimerId};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::volume::SELECTED_NODE;
use carrack_types::well_known::storage::BOUND_BY_CONTROLLER;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use super::{Call, Planted, Scheduler};
use crate::cluster::{ObjectName, Objects};
use crate::extender::{Ask, Extender, read_bind};
use crate::metrics::{Point, Status};
use crate::plugins::volumes::Plan;
use crate::queue::Row;
use crate::{Ended, Event, NodeId, Pod};

use claims::{Progress, Written, progress};
pub use waiting::Waiting;

/// Time between tries to learn what became of a binding.
const CHECK_RETRY: Duration = Duration::from_secs(1);
/// A binding that was acknowledged, and that the watch does not show, is looked at after this.
const CONFIRM: Duration = Duration::from_secs(30);

/// Names a flight. Who lost its node and was given one anew is on another flight, and what comes late of the one before is none of its.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightId {
    /// The pod's UID.
    pub uid: Arc<str>,
    number: u64,
}

/// A pod with a chosen node.
#[derive(Debug)]
pub struct Flight {
    /// Its number among all flights.
    number: u64,
    /// Since which term this scheduler had led when it decided (see [`Scheduler::since`]).
    pub of_term: u64,
    pub row: Row,
    pub node: Arc<str>,
    plan: Plan,
    /// When its claims and volumes were as the plan wants them.
    written: Written,
    stage: Stage,
    /// When this stage began.
    since: Time,
    timer: Option<TimerId>,
    /// The pod as last heard of.
    pub latest: Option<Arc<Pod>>,
    /// Whether events and metrics say that it was bound: the reply and the watch both tell of it, in any order.
    told: bool,
    /// The revision of the pod that the binding rests on, as far as it is known.
    rests_on: Option<String>,
    /// How often a binding was sent.
    sent: u32,
    /// What is to be said of the last one, should it come to nothing.
    trouble: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// So many writes to claims and volumes are not answered yet.
    Writing(usize),
    /// Until the claims are bound.
    Waiting,
    /// The binding was sent.
    Binding,
    /// Nobody knows whether it was bound.
    Checking,
    /// It is being made sure that it will not be.
    Fencing,
    /// It was bound, and the watch does not show it yet.
    Bound,
}

/// What a request of a flight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is told where the pod is to go.
    Announce,
    /// A claim or a volume is written.
    Write,
    /// The binding.
    Bind,
    /// A live read of the pod.
    Check,
    /// The pod is written, so that no binding takes effect any more.
    Fence,
}

impl Flight {
    fn new(number: u64, row: Row, node: Arc<str>, plan: Plan, since: Time, of_term: u64) -> Self {
        Self {
            number,
            of_term,
            row,
            node,
            plan,
            written: Written::new(),
            stage: Stage::Writing(0),
            since,
            timer: None,
            latest: None,
            told: false,
            rests_on: None,
            sent: 0,
            trouble: String::new(),
        }
    }

    /// Its name.
    pub fn id(&self) -> FlightId {
        FlightId { uid: self.row.pod.uid.clone(), number: self.number }
    }
    /// Whether this is its name, and it waits for its claims.
    pub fn waits_as(&self, id: &FlightId) -> bool {
        self.number == id.number && self.stage == Stage::Waiting
    }
    /// Whether its binding was acknowledged.
    pub fn is_bound(&self) -> bool {
        self.stage == Stage::Bound
    }
    /// Whether others have to do something before it goes on: make its volumes.
    #[cfg(test)]
    pub fn waits_for_claims(&self) -> bool {
        self.stage == Stage::Waiting
    }
}

/// The claim that a volume says it is of.
fn claim_of(volume: &PersistentVolume) -> Option<ObjectName> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some((claim.namespace.clone()?, claim.name.clone()?))
}

impl Scheduler {
    pub(super) fn reserve(&mut self, now: Time, row: Row, node: NodeId, plan: Plan, fx: &mut Effects<Ask>) {
        let Some(name) = self.decider.cluster.node(node).map(|n| n.name.clone()) else {
            return self.queue.retry(&row.pod.uid, now);
        };
        let uid = row.pod.uid.clone();
        // From here on the pod itself is counted there. Where else room was kept for it, there is some for others.
        let kept = self.queue.chosen(&uid);
        self.decider.cluster.assume(row.pod.clone(), node);
        if let Some(kept) = kept.filter(|kept| *kept != name) {
            self.happened(now, Event::PodGone(row.pod.clone(), kept));
        }
        self.happened(now, Event::PodPlaced(row.pod.clone()));
        self.flown += 1;
        let flight = Flight::new(self.flown, row, name, plan, now, self.since);
        if !flight.plan.is_empty() {
            return self.write_claims(now, uid, flight, fx);
        }
        self.flights.insert(uid.clone(), flight);
        self.bind(now, &uid, fx);
        if let Some(planted) = &mut self.planted
            && planted.was_updated(&uid)
        {
            self.queue.unpop(&uid);
        }
    }

    fn write_claims(&mut self, now: Time, uid: Arc<str>, mut flight: Flight, fx: &mut Effects<Ask>) {
        let mut requests = Vec::new();
        let objects = &mut self.decider.cluster.objects;
        for (claim, volume) in &flight.plan.bindings {
            objects.promised.insert(volume.clone(), claim.clone());
            let (Some(claim), Some(volume)) = (objects.claims.get(claim), Objects::global(&objects.volumes, volume))
            else {
                continue;
            };
            let mut patch = json!({
                "metadata": {"uid": volume.uid(), "resourceVersion": volume.metadata.resource_version},
                "spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.name(),
                    "namespace": claim.namespace(), "uid": claim.uid(),
                    "resourceVersion": claim.metadata.resource_version}}});
            // Where somebody else has promised it, who takes it from the claim leaves that promise
            // (component-helpers/storage/volume, `GetBindVolumeToClaim`).
            if claim_of(volume).is_none() {
                patch["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
            }
            requests.push(ApiRequest::patch(
                &PersistentVolume::resource(),
                "",
                volume.name(),
                "",
                ContentType::MergePatch,
                &patch,
            ));
        }
        for claim in &flight.plan.provisions {
            let Some(claim) = objects.claims.get(claim) else { continue };
            if claim.annotation(SELECTED_NODE) == Some(&flight.node) {
                flight.written.insert((claim.namespace().to_owned(), claim.name().to_owned()), claim.revision());
                continue;
            }
            let patch = json!({"metadata": {"uid": claim.uid(), "resourceVersion": claim.metadata.resource_version,
                "annotations": {SELECTED_NODE: &*flight.node}}});
            let (namespace, name) = (claim.namespace(), claim.name());
            let resource = PersistentVolumeClaim::resource();
            requests.push(ApiRequest::patch(&resource, namespace, name, "", ContentType::MergePatch, &patch));
        }
        let announces = self.announce(now, &flight, fx);
        flight.stage = Stage::Writing(requests.len() + usize::from(announces));
        for request in requests {
            self.awaits(now, self.send(request, fx), Call::Flight(flight.id(), Step::Write));
        }
        let timer = fx.timer(now + flight.row.profile.bind_timeout);
        self.timers.insert(timer, uid.clone());
        flight.timer = Some(timer);
        self.flights.insert(uid.clone(), flight);
        self.claims_written(now, &uid, fx);
    }

    /// One of the writes that its claims wait for was answered.
    fn one_written(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        if let Some(Flight { stage: Stage::Writing(left), .. }) = self.flights.get_mut(uid) {
            *left = left.saturating_sub(1);
            self.claims_written(now, uid, fx);
        }
    }

    fn claims_written(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        if let Some(flight) = self.flights.get_mut(uid).filter(|f| f.stage == Stage::Writing(0)) {
            flight.stage = Stage::Waiting;
            self.waiting.add(&flight.row.pod.uid, &flight.plan);
            self.claims_bound(now, uid, fx);
        }
    }

    /// A claim changed: some pods may have waited for that.
    pub(super) fn claim_changed(&mut self, now: Time, claim: &ObjectName, fx: &mut Effects<Ask>) {
        for uid in self.waiting.for_claim(claim) {
            self.claims_bound(now, &uid, fx);
        }
    }

    /// A volume changed: it may have been made for a claim, or be a claim's no more.
    pub(super) fn volume_changed(&mut self, now: Time, delta: &Delta<PersistentVolume>, fx: &mut Effects<Ask>) {
        let before = match delta {
            Delta::Updated(old, _) => claim_of(old),
            Delta::Added(_) | Delta::Removed(_) => None,
        };
        let after = claim_of(delta.object());
        if let Some(claim) = before.filter(|claim| Some(claim) != after.as_ref()) {
            self.claim_changed(now, &claim, fx);
        }
        if let Some(claim) = after {
            self.claim_changed(now, &claim, fx);
        }
    }

    /// A node is not there any more: nobody makes volumes for it.
    pub(super) fn node_gone(&mut self, now: Time, node: &str, fx: &mut Effects<Ask>) {
        let waits = |flight: &&Flight| flight.stage == Stage::Waiting && *flight.node == *node;
        let uids: Vec<Arc<str>> = self.flights.values().filter(waits).map(|f| f.row.pod.uid.clone()).collect();
        for uid in uids {
            self.claims_bound(now, &uid, fx);
        }
    }

    fn claims_bound(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        match progress(&flight.plan, &flight.written, &flight.node, &self.decider.cluster) {
            Progress::Awaited => {}
            Progress::Lost(why) => self.forget(now, uid, Some(&format!("binding volumes: {why}")), fx),
            Progress::Bound => {
                if let Some(timer) = flight.timer.take() {
                    self.timers.remove(&timer);
                }
                // It may ask for more by now.
                if self.has_become_another(uid) {
                    return self.forget(now, uid, None, fx);
                }
                self.bind(now, uid, fx);
            }
        }
    }

    /// The flight of this name, if it has not ended.
    fn flight(&mut self, id: &FlightId) -> Option<&mut Flight> {
        let by_pod_alone = self.planted_bug == Some(Planted::MistakenAnswers);
        self.flights.get_mut(&id.uid).filter(|flight| flight.number == id.number || by_pod_alone)
    }

    fn bind(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        let Some(revision) = self.flights.get(uid).map(|flight| self.newest_revision(flight)) else { return };
        let Some(flight) = self.flights.get_mut(uid) else { return };
        if !flight.plan.is_empty() && flight.sent == 0 {
            let took = now.since(flight.since);
            self.metrics.point(Point::PreBind, &flight.row.profile.scheduler_name, Status::Success, took);
        }
        self.waiting.remove(uid, &flight.plan);
        flight.stage = Stage::Binding;
        flight.since = now;
        flight.sent += 1;
        flight.rests_on = None;
        let (pod, node) = (&flight.row.pod, &*flight.node);
        let binder = self.config.extenders.iter().position(|e| !e.bind_verb.is_empty() && e.is_interested(&pod.pod));
        if let Some(extender) = binder {
            let body = Extender::bind_args(pod, node);
            let verb = self.config.extenders[extender].bind_verb.clone();
            let id = fx.fresh();
            self.binds.insert(id, flight.id());
            return fx.own(Ask { id, extender, verb, body });
        }
        let mut body = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": pod.namespace(), "name": pod.name(), "uid": &*pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        if let Some(revision) = &revision {
            body["metadata"]["resourceVersion"] = revision.as_str().into();
        }
        flight.rests_on = revision;
        let request = ApiRequest::create_sub(&Pod::resource(), pod.namespace(), pod.name(), "binding", &body);
        tracing::trace!(pod = pod.name(), node, %uid, ?now, "binding");
        let call = Call::Flight(flight.id(), Step::Bind);
        self.awaits(now, self.send(request, fx), call);
    }

    /// An extender that binds pods answered.
    pub(super) fn binder_answered(
        &mut self,
        now: Time,
        id: &FlightId,
        result: Result<bytes::Bytes, String>,
        fx: &mut Effects<Ask>,
    ) {
        if !self.flight(id).is_some_and(|f| f.stage == Stage::Binding) {
            return;
        }
        let uid = &*id.uid;
        match result.and_then(|body| read_bind(&body)) {
            Ok(()) => self.bound(now, uid, fx),
            Err(error) => {
                // Whatever it says, it may have bound the pod: only the pod itself can tell.
                tracing::warn!(uid, error, "an extender did not bind a pod");
                self.troubled(uid, &error);
                self.check(now, uid, fx);
            }
        }
    }

    pub(super) fn flight_answered(
        &mut self,
        now: Time,
        id: &FlightId,
        step: Step,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Ask>,
    ) {
        let uid = &*id.uid;
        let Some(flight) = self.flight(id) else { return };
        match (step, flight.stage, result) {
            (Step::Write, Stage::Writing(_), Ok(reply)) => {
                flight.written.extend(claims::written(&reply));
                self.one_written(now, uid, fx);
            }
            (Step::Write, Stage::Writing(_), Err(error)) => {
                self.forget(now, uid, Some(&format!("binding volumes: {error}")), fx);
            }
            (Step::Announce, _, result) => self.announced(now, uid, result, fx),
            (Step::Bind, Stage::Binding, Ok(_)) => self.bound(now, uid, fx),
            (Step::Bind, Stage::Binding, Err(error))
                if error.may_have_acted() || error.is_conflict() || error.is_not_found() =>
            {
                // It may have taken effect, now or before, or the pod may be gone: only the pod itself can tell.
                tracing::warn!(uid, node = &*flight.node, %error, "a binding's outcome is unknown");
                self.troubled(uid, &error);
                self.check(now, uid, fx);
            }
            (Step::Bind, Stage::Binding, Err(error)) => {
                let message = self.troubled(uid, &error);
                self.forget(now, uid, Some(&message), fx);
            }
            (Step::Check, Stage::Checking, Ok(reply)) => match reply.object::<Pod>() {
                Ok(live) if live.uid() != uid => self.vanished(now, uid),
                Ok(live) if live.node.is_empty() => self.unbound(now, uid, live, fx),
                Ok(live) => {
                    flight.node = (*live.node).into();
                    // It may be another node than the one on which it was assumed.
                    self.seat(now, &Arc::new(live));
                    self.bound(now, uid, fx);
                }
                Err(error) => {
                    tracing::warn!(uid, %error, "a pod could not be read");
                    self.check_later(now, uid, fx);
                }
            },
            (Step::Check, Stage::Checking, Err(error)) if error.is_not_found() => self.vanished(now, uid),
            (Step::Check, Stage::Checking, Err(_)) => self.check_later(now, uid, fx),
            (Step::Fence, Stage::Fencing, result) => self.fenced(now, uid, result, fx),
            _ => {}
        }
    }

    /// Notes why a binding may have come to nothing, in words.
    fn troubled(&mut self, uid: &str, error: &dyn std::fmt::Display) -> String {
        let Some(flight) = self.flights.get_mut(uid) else { return String::new() };
        flight.trouble = format!("binding to node {} failed: {error}", flight.node);
        flight.trouble.clone()
    }

    fn check(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        flight.stage = Stage::Checking;
        let (pod, flight) = (flight.row.pod.clone(), flight.id());
        let id = fx.api(ApiRequest::get(&Pod::resource(), pod.namespace(), pod.name()));
        self.awaits(now, id, Call::Flight(flight, Step::Check));
    }
    fn check_later(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        self.set_timer(now + CHECK_RETRY, uid, fx);
    }
    fn set_timer(&mut self, at: Time, uid: &str, fx: &mut Effects<Ask>) {
        if let Some(flight) = self.flights.get_mut(uid) {
            let timer = fx.timer(at);
            flight.timer = Some(timer);
            self.timers.insert(timer, flight.row.pod.uid.clone());
        }
    }

    pub(super) fn flight_due(&mut self, now: Time, uid: &str, timer: TimerId, fx: &mut Effects<Ask>) {
        let Some(flight) = self.flights.get(uid).filter(|f| f.timer == Some(timer)) else { return };
        match flight.stage {
            Stage::Writing(_) | Stage::Waiting => {
                let limit_s = flight.row.profile.bind_timeout.as_secs();
                self.forget(now, uid, Some(&format!("binding volumes: not done within {limit_s} s")), fx);
            }
            Stage::Checking | Stage::Bound => self.check(now, uid, fx),
            Stage::Binding | Stage::Fencing => {}
        }
    }

    /// The API server says that a pod is bound.
    fn bound(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        let Some(mut flight) = self.flights.remove(uid) else { return };
        let node = flight.node.clone();
        self.tell_bound(now, &mut flight, &node, fx);
        flight.stage = Stage::Bound;
        self.flights.insert(flight.row.pod.uid.clone(), flight);
        self.set_timer(now + CONFIRM, uid, fx);
    }
    fn tell_bound(&mut self, now: Time, flight: &mut Flight, node: &str, fx: &mut Effects<Ask>) {
        if std::mem::replace(&mut flight.told, true) {
            return;
        }
        let Flight { row, stage, since, .. } = flight;
        let (pod, profile) = (&row.pod, &row.profile.scheduler_name);
        let message = format!("Successfully assigned {}/{} to {node}", pod.namespace(), pod.name());
        self.record(now, profile, EventRecord::normal(&*pod.pod, "Scheduled", message), fx);
        if *stage == Stage::Binding {
            self.metrics.point(Point::Bind, profile, Status::Success, now.since(*since));
        }
        self.metrics.attempt(Ended::Scheduled, profile, now.since(row.popped));
        self.metrics.scheduled(row.attempts, now.since(row.first_seen), row.flushed);
    }

    /// The watch shows that a pod in flight is bound, wherever.
    pub(super) fn confirmed(&mut self, now: Time, mut flight: Flight, pod: &Pod, fx: &mut Effects<Ask>) {
        self.release_volumes(now, &flight);
        // The watch may be faster than the reply.
        if matches!(flight.stage, Stage::Binding | Stage::Checking | Stage::Fencing) {
            self.tell_bound(now, &mut flight, &pod.node, fx);
        }
    }

    /// A pod is not there any more, or another one has its name. What the watch has still to tell of it is older.
    fn vanished(&mut self, now: Time, uid: &str) {
        self.vanished.insert(uid.into());
        self.drop_pod(now, uid);
    }

    /// Somebody else decides now: pods whose binding was not sent yet go back into the queue. What became of the others
    /// is still learnt.
    pub(super) fn stop_reserving(&mut self, now: Time, fx: &mut Effects<Ask>) {
        let early = |f: &Flight| matches!(f.stage, Stage::Writing(_) | Stage::Waiting);
        let uids: Vec<Arc<str>> = self.flights.iter().filter(|(_, f)| early(f)).map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.forget(now, &uid, None, fx);
        }
    }

    /// A pod whose binding was not sent yet goes back into the queue when another is to have its room; nobody need delete it
    /// (kubernetes #135502).
    pub(super) fn gives_way(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) -> bool {
        let early = self.flights.get(uid).is_some_and(|f| matches!(f.stage, Stage::Writing(_) | Stage::Waiting));
        if early {
            self.forget(now, uid, None, fx);
        }
        early
    }

    /// Whether a pod that flies is not the one any more for which its node was chosen.
    fn has_become_another(&mut self, uid: &str) -> bool {
        let Some(flight) = self.flights.get(uid) else { return false };
        let Some(latest) = flight.latest.clone() else { return false };
        !self.decider.cluster.read(latest).is_like(&flight.row.pod)
    }

    /// A flight ends. Volumes that were promised to its pod's claims are free for others, who have to be told: nothing else may ever
    /// change about these.
    pub(super) fn release_volumes(&mut self, now: Time, flight: &Flight) {
        self.waiting.remove(&flight.row.pod.uid, &flight.plan);
        if let Some(timer) = &flight.timer {
            self.timers.remove(timer);
        }
        let promised = &mut self.decider.cluster.objects.promised;
        let mut released = false;
        for (_, volume) in &flight.plan.bindings {
            released |= promised.remove(volume).is_some();
        }
        if released {
            self.happened(now, Event::Volume);
        }
    }

    /// Takes back what was reserved, and puts the pod back into the queue.
    fn forget(&mut self, now: Time, uid: &str, why: Option<&str>, fx: &mut Effects<Ask>) {
        let Some(flight) = self.flights.remove(uid) else { return };
        self.release_volumes(now, &flight);
        if self.decider.cluster.is_assumed(uid) && self.planted_bug != Some(Planted::LeakedAssumptions) {
            self.unseat(now, uid);
        }
        if let Some(latest) = &flight.latest {
            let info = self.decider.cluster.read(latest.clone());
            self.queue.set(info, flight.row.profile.clone(), now);
        }
        match why {
            Some(message) => self.failed(now, &flight.row, message, fx),
            None => {
                self.queue.retry(uid, now);
                // Of a pod with claims to write it was told where it was to go.
                if !flight.plan.is_empty() {
                    self.take_back(now, uid, fx);
                }
            }
        }
    }
}
