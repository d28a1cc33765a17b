//! Bindings.
//!
//! ```text
//!   bind ─▶ (reading) ─▶ annotating ─ok─▶ binding ─ok─▶ held ─▶ (confirming, where the cache does not know the pod)
//!               ▲  changed │ unknown         │ unknown, conflict
//!               └──────────┘                 ▼
//!               ▲                         checking ─ bound ─▶ held
//!               └── the pod has changed ─────┤
//!                                            ├─ as it was ─▶ binding
//!                                            └─ too late ──▶ clearing ─ written once more ─▶ nothing
//! ```
//!
//! The annotations rest on UID and resourceVersion, the Binding on the UID and on the resourceVersion that they made. As
//! long as a Binding may still arrive, the pod has not been written since; so once it has, the GPUs are free for others.

use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, ContentType, Effects, Time, TimerId};
use carrack_types::resource::{Kind as _, Object as _, PartialObject};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::{GpuExtender, Planted, Reply, Verb, is_over, node_of};
use crate::ledger::Stage;
use crate::wire::{self, Bind};
use crate::{annotations, demand};

/// How long to wait before asking again what got no answer.
const AGAIN: Duration = Duration::from_millis(500);
/// A pod that was bound and that the cache does not know is looked at after this.
const CONFIRM: Duration = Duration::from_secs(10);
/// How often a pod may change under a binding.
const TRIES: u32 = 10;

/// A binding under way.
#[derive(Debug)]
pub(super) struct Flight {
    namespace: String,
    name: String,
    node: String,
    step: Step,
    /// The request that is out.
    call: Option<CallId>,
    /// When the step goes on, while no request is out.
    pause: Option<TimerId>,
    /// When the scheduler is told that it failed.
    limit: Option<TimerId>,
    /// Questions that wait for the outcome.
    waiting: Vec<u64>,
    /// Nobody waits any more, and it is not to happen any more.
    given_up: bool,
    /// What the Binding rests on; empty until one was sent.
    revision: String,
    tries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The pod is read, to be annotated.
    Reading,
    /// The annotations were sent.
    Annotating,
    /// The Binding was sent.
    Binding,
    /// The pod is read, to learn whether it is bound.
    Checking,
    /// The Binding is to be sent once more.
    Repeating,
    /// The pod is read, to take the annotations away.
    Clearing,
    /// They are being taken away.
    Unwriting,
    /// Bound; the cache has not seen the pod yet.
    Confirming,
}

impl GpuExtender {
    /// Binds a pod, and answers when it is known what became of it.
    pub(super) fn bind(&mut self, now: Time, id: u64, bind: Bind, fx: &mut Effects<Reply>) {
        let Bind { name, namespace, uid, node } = bind;
        if let Some(entry) = self.ledger.get(&uid).filter(|entry| entry.stage == Stage::Held) {
            let outcome = if entry.node == node { Ok(()) } else { Err(format!("it is bound to {}", entry.node)) };
            return self.tell(id, outcome, fx);
        }
        if let Some(flight) = self.flights.get_mut(&uid) {
            if flight.node == node && !flight.given_up {
                flight.waiting.push(id);
                return;
            }
            let text = format!("its binding to {} is not over yet", flight.node);
            return self.tell(id, Err(text), fx);
        }
        let limit = fx.timer(now + self.config.bind);
        self.timers.insert(limit, uid.clone());
        self.flights.insert(
            uid.clone(),
            Flight {
                namespace: namespace.clone(),
                name: name.clone(),
                node,
                step: Step::Reading,
                call: None,
                pause: None,
                limit: Some(limit),
                waiting: vec![id],
                given_up: false,
                revision: String::new(),
                tries: 0,
            },
        );
        match self.pod(&namespace, &name, &uid).filter(|pod| node_of(pod).is_empty()).cloned() {
            Some(pod) => self.annotate(now, &uid, &pod, fx),
            None => self.read(&uid, Step::Reading, fx),
        }
    }

    /// A former life began to bind this pod.
    pub(super) fn undo_found(&mut self, pod: &Pod, node: &str, fx: &mut Effects<Reply>) {
        let flight = Flight {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            node: node.to_owned(),
            step: Step::Clearing,
            call: None,
            pause: None,
            limit: None,
            waiting: Vec::new(),
            given_up: true,
            revision: String::new(),
            tries: 0,
        };
        self.flights.insert(pod.uid().to_owned(), flight);
        self.clear(pod, fx);
    }

    fn tell(&mut self, id: u64, outcome: Result<(), String>, fx: &mut Effects<Reply>) {
        let body = match outcome {
            Ok(()) => wire::failure(""),
            Err(text) => self.failed(Verb::Bind, &text),
        };
        fx.own(Reply { id, status: 200, body });
    }

    fn tell_all(&mut self, uid: &str, outcome: &Result<(), String>, fx: &mut Effects<Reply>) {
        let waiting = self.flights.get_mut(uid).map(|f| std::mem::take(&mut f.waiting)).unwrap_or_default();
        for id in waiting {
            self.tell(id, outcome.clone(), fx);
        }
    }

    fn send(&mut self, uid: &str, step: Step, request: ApiRequest, fx: &mut Effects<Reply>) {
        if let Some(flight) = self.flights.get_mut(uid) {
            let id = fx.api(request);
            flight.step = step;
            flight.call = Some(id);
            flight.pause = None;
            self.calls.insert(id, uid.to_owned());
        }
    }

    fn read(&mut self, uid: &str, step: Step, fx: &mut Effects<Reply>) {
        if let Some(flight) = self.flights.get(uid) {
            let request = ApiRequest::get(&Pod::resource(), &flight.namespace, &flight.name);
            self.send(uid, step, request, fx);
        }
    }

    fn pause(&mut self, at: Time, uid: &str, step: Step, fx: &mut Effects<Reply>) {
        if let Some(flight) = self.flights.get_mut(uid) {
            let timer = fx.timer(at);
            flight.step = step;
            flight.call = None;
            flight.pause = Some(timer);
            self.timers.insert(timer, uid.to_owned());
        }
    }

    /// Ends a flight without a word on the ledger.
    fn end(&mut self, uid: &str, outcome: &Result<(), String>, fx: &mut Effects<Reply>) {
        self.tell_all(uid, outcome, fx);
        if let Some(flight) = self.flights.remove(uid) {
            for timer in [flight.pause, flight.limit].into_iter().flatten() {
                self.timers.remove(&timer);
            }
            if let Some(call) = flight.call {
                self.calls.remove(&call);
            }
        }
    }

    /// The pod is gone or over: nothing can be bound any more.
    pub(super) fn drop_flight(&mut self, uid: &str, why: &str, fx: &mut Effects<Reply>) {
        self.end(uid, &Err(why.to_owned()), fx);
    }

    /// The API shows the pod bound to a node.
    pub(super) fn landed(&mut self, uid: &str, node: &str, fx: &mut Effects<Reply>) {
        let Some(flight) = self.flights.get(uid) else { return };
        let outcome = if flight.node == node { Ok(()) } else { Err(format!("it is bound to {node}")) };
        self.end(uid, &outcome, fx);
    }

    /// Writes the choice into the pod's annotations.
    fn annotate(&mut self, now: Time, uid: &str, pod: &Pod, fx: &mut Effects<Reply>) {
        let Some(node) = self.flights.get(uid).map(|f| f.node.clone()) else { return };
        if pod.is_deleting() {
            return self.undo(now, uid, "the pod is being deleted", true, fx);
        }
        let demand = match demand::of(pod, self.names()) {
            Ok(demand) => demand,
            Err(why) => return self.undo(now, uid, &why, true, fx),
        };
        let revision = pod.meta().resource_version.clone().unwrap_or_default();
        if demand.is_empty() {
            return self.send_binding(uid, revision, fx);
        }
        if let Err(why) = self.reserve(pod, &node, &demand) {
            return self.undo(now, uid, &why, true, fx);
        }
        let places = self.ledger.get(uid).map(|entry| entry.places.clone()).unwrap_or_default();
        let chosen = annotations::write(self.names(), &node, &places, self.gpus(&node), now);
        let mut chosen: Map<String, Value> = chosen.into_iter().map(|(key, text)| (key, text.into())).collect();
        // What the pod says of that besides is another attempt's, or its owner's: the node's plugin would believe it.
        for key in annotations::keys(self.names(), pod) {
            chosen.entry(key).or_insert(Value::Null);
        }
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": revision, "annotations": chosen}});
        let (namespace, name) = (pod.namespace(), pod.name());
        let request = ApiRequest::patch(&Pod::resource(), namespace, name, "", ContentType::MergePatch, &patch);
        self.send(uid, Step::Annotating, request, fx);
    }

    fn send_binding(&mut self, uid: &str, revision: String, fx: &mut Effects<Reply>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        let (namespace, name) = (flight.namespace.clone(), flight.name.clone());
        let body = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": revision},
            "target": {"apiVersion": "v1", "kind": "Node", "name": flight.node}});
        flight.revision = revision;
        let request = ApiRequest::create_sub(&Pod::resource(), &namespace, &name, "binding", &body);
        self.send(uid, Step::Binding, request, fx);
    }

    /// It is not to be. `certain`: no Binding is on its way, so that the GPUs are free at once.
    fn undo(&mut self, now: Time, uid: &str, why: &str, certain: bool, fx: &mut Effects<Reply>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        flight.given_up = true;
        tracing::warn!(pod = flight.name, namespace = flight.namespace, node = flight.node, why, "a pod is not bound");
        let written = flight.step != Step::Reading || flight.tries > 0;
        self.tell_all(uid, &Err(why.to_owned()), fx);
        if certain {
            self.ledger.remove(uid);
        } else {
            self.ledger.advance(uid, Stage::Undoing);
        }
        if written {
            self.pause(now, uid, Step::Clearing, fx);
        } else {
            self.end(uid, &Err(why.to_owned()), fx);
        }
    }

    /// Takes the annotations away, and with them the ground of every Binding that was sent.
    fn clear(&mut self, pod: &Pod, fx: &mut Effects<Reply>) {
        let uid = pod.uid();
        let keys = annotations::keys(self.names(), pod);
        if keys.is_empty() {
            // They are gone, and so the pod was written since.
            self.release(uid);
            return self.end(uid, &Err("the binding was undone".to_owned()), fx);
        }
        let nothing: Map<String, Value> = keys.into_iter().map(|key| (key, Value::Null)).collect();
        let patch =
            json!({"metadata": {"uid": uid, "resourceVersion": pod.meta().resource_version, "annotations": nothing}});
        let (namespace, name) = (pod.namespace(), pod.name());
        let request = ApiRequest::patch(&Pod::resource(), namespace, name, "", ContentType::MergePatch, &patch);
        self.send(uid, Step::Unwriting, request, fx);
    }

    /// What a binding that is undone has held is free. A filter may have made the pod another offer meanwhile, which stays.
    fn release(&mut self, uid: &str) {
        if self.ledger.get(uid).is_some_and(|entry| !matches!(entry.stage, Stage::Offered { .. })) {
            self.ledger.remove(uid);
        }
    }

    /// A timer of a flight fired.
    pub(super) fn due(&mut self, now: Time, uid: &str, timer: TimerId, fx: &mut Effects<Reply>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        if flight.limit == Some(timer) {
            flight.limit = None;
            flight.given_up = true;
            let text = format!("it is not known yet whether the pod is bound to {}", flight.node);
            return self.tell_all(uid, &Err(text), fx);
        }
        if flight.pause != Some(timer) {
            return;
        }
        flight.pause = None;
        let (step, given_up, revision) = (flight.step, flight.given_up, flight.revision.clone());
        match step {
            Step::Repeating if given_up => self.undo(now, uid, "nobody waits for it any more", false, fx),
            Step::Repeating => self.send_binding(uid, revision, fx),
            Step::Confirming => self.confirm(uid, fx),
            step => self.read(uid, step, fx),
        }
    }

    fn confirm(&mut self, uid: &str, fx: &mut Effects<Reply>) {
        let Some(flight) = self.flights.get(uid) else { return };
        if self.pod(&flight.namespace, &flight.name, uid).is_some() {
            return self.end(uid, &Ok(()), fx);
        }
        self.read(uid, Step::Confirming, fx);
    }

    /// A request of a flight came back.
    pub(super) fn answered(
        &mut self,
        now: Time,
        uid: &str,
        id: CallId,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Reply>,
    ) {
        let Some(flight) = self.flights.get_mut(uid).filter(|f| f.call == Some(id)) else { return };
        flight.call = None;
        let (step, given_up) = (flight.step, flight.given_up);
        match step {
            Step::Annotating | Step::Binding | Step::Unwriting => self.wrote(now, uid, step, given_up, result, fx),
            Step::Reading | Step::Checking | Step::Clearing | Step::Confirming | Step::Repeating => {
                let pod = result.and_then(|reply| reply.object::<Pod>());
                match pod {
                    Ok(pod) if pod.uid() == uid => self.looked(now, &pod, step, given_up, fx),
                    Ok(_) => self.vanished(uid, fx),
                    Err(error) if error.is_not_found() => self.vanished(uid, fx),
                    Err(error) => {
                        tracing::warn!(uid, %error, "a pod could not be read");
                        if step == Step::Reading && given_up {
                            return self.undo(now, uid, "it could not be read in time", true, fx);
                        }
                        self.pause(now + AGAIN, uid, step, fx);
                    }
                }
            }
        }
    }

    fn vanished(&mut self, uid: &str, fx: &mut Effects<Reply>) {
        self.end(uid, &Err("the pod is gone".to_owned()), fx);
        self.ledger.remove(uid);
    }

    /// A write came back.
    fn wrote(
        &mut self,
        now: Time,
        uid: &str,
        step: Step,
        given_up: bool,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Reply>,
    ) {
        match (step, result) {
            (_, Err(error)) if error.is_not_found() => self.vanished(uid, fx),
            (Step::Annotating, _) if given_up => self.undo(now, uid, "nobody waits for it any more", true, fx),
            (Step::Annotating, Ok(reply)) => match reply.object::<PartialObject>() {
                Ok(pod) => self.send_binding(uid, pod.metadata.resource_version.unwrap_or_default(), fx),
                Err(error) => self.undo(now, uid, &error.to_string(), true, fx),
            },
            (Step::Annotating, Err(error)) if error.is_conflict() || error.is_unknown() => {
                self.again(now, uid, &error, fx);
            }
            (Step::Binding, Ok(_)) => self.bound(now, uid, fx),
            (Step::Binding, Err(error)) if error.is_unknown() || error.is_conflict() => {
                tracing::warn!(uid, %error, "whether a pod is bound is not known");
                if self.planted == Some(Planted::Haste) && error.is_unknown() {
                    self.end(uid, &Err(error.to_string()), fx);
                    self.ledger.remove(uid);
                    return;
                }
                self.read(uid, Step::Checking, fx);
            }
            (Step::Annotating | Step::Binding, Err(error)) => self.undo(now, uid, &error.to_string(), true, fx),
            (Step::Unwriting, Ok(_)) => {
                self.release(uid);
                self.end(uid, &Err("the binding was undone".to_owned()), fx);
            }
            (_, _) => self.pause(now + AGAIN, uid, Step::Clearing, fx),
        }
    }

    /// The pod has changed, or it is not known whether: from the beginning.
    fn again(&mut self, now: Time, uid: &str, why: &dyn std::fmt::Display, fx: &mut Effects<Reply>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        flight.tries += 1;
        if flight.tries > TRIES {
            return self.undo(now, uid, &format!("the pod cannot be annotated: {why}"), true, fx);
        }
        self.read(uid, Step::Reading, fx);
    }

    /// The pod was read, and is the one that is meant.
    fn looked(&mut self, now: Time, pod: &Pod, step: Step, given_up: bool, fx: &mut Effects<Reply>) {
        let uid = pod.uid();
        if is_over(pod) {
            return self.vanished(uid, fx);
        }
        if step == Step::Confirming {
            return self.pause(now + CONFIRM, uid, Step::Confirming, fx);
        }
        if !node_of(pod).is_empty() {
            self.is_bound(pod, fx);
            return self.see(now, pod, fx);
        }
        let rests_on = self.flights.get(uid).map(|f| f.revision.clone()).unwrap_or_default();
        let same = pod.meta().resource_version.as_deref() == Some(&rests_on);
        match step {
            Step::Clearing => self.clear(pod, fx),
            Step::Reading if given_up => self.undo(now, uid, "nobody waits for it any more", true, fx),
            Step::Reading => self.annotate(now, uid, pod, fx),
            // The Binding was refused, or is on its way still. It can be repeated: a second one is refused.
            _ if same && !given_up => self.repeat(now, uid, fx),
            _ if same => self.undo(now, uid, "nobody waits for it any more", false, fx),
            // Whatever was sent rests on a pod that is no more.
            _ if given_up => self.undo(now, uid, "the pod has changed", true, fx),
            _ => {
                let Some(flight) = self.flights.get_mut(uid) else { return };
                flight.tries += 1;
                if flight.tries > TRIES {
                    return self.undo(now, uid, "the pod keeps changing", true, fx);
                }
                self.annotate(now, uid, pod, fx);
            }
        }
    }

    fn repeat(&mut self, now: Time, uid: &str, fx: &mut Effects<Reply>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        flight.tries += 1;
        if flight.tries > TRIES {
            return self.undo(now, uid, "it was refused again and again", false, fx);
        }
        self.pause(now + AGAIN / 5, uid, Step::Repeating, fx);
    }

    /// The API server says that it is bound.
    fn bound(&mut self, now: Time, uid: &str, fx: &mut Effects<Reply>) {
        self.ledger.advance(uid, Stage::Held);
        self.tell_all(uid, &Ok(()), fx);
        let Some(flight) = self.flights.get_mut(uid) else { return };
        flight.given_up = true;
        if self.ledger.get(uid).is_none() {
            return self.end(uid, &Ok(()), fx);
        }
        self.pause(now, uid, Step::Confirming, fx);
    }

    /// A pod that holds GPUs, and that the cache does not know, is watched until it does.
    fn see(&mut self, now: Time, pod: &Pod, fx: &mut Effects<Reply>) {
        let uid = pod.uid();
        if self.ledger.get(uid).is_none() || self.pod(pod.namespace(), pod.name(), uid).is_some() {
            return;
        }
        let flight = Flight {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            node: node_of(pod).to_owned(),
            step: Step::Confirming,
            call: None,
            pause: None,
            limit: None,
            waiting: Vec::new(),
            given_up: true,
            revision: String::new(),
            tries: 0,
        };
        self.flights.insert(uid.to_owned(), flight);
        self.pause(now + CONFIRM, uid, Step::Confirming, fx);
    }
}
