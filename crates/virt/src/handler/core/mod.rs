//! The handler's decisions.
//!
//! For each instance that the controllers have handed over (its phase is Scheduled or Running, and its node is this
//! one) there is a [`guest::Guest`] with what is known of it. Whatever is observed, the guest is looked at again from
//! the start ([`guest::act`]): what does the API say, what does the launcher say, what is the next single thing to
//! do. One operation is in flight for a guest at a time.
//!
//! Silence is never taken for an end. A guest is over when its launcher said so, when the kubelet reports that its
//! container ended, or when no process of its pod is left on this node.

mod fencing;
mod guest;
mod heartbeat;
mod lease;
mod leaving;
mod pace;
pub(super) mod watchdog;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{
    ApiRequest, CallId, ContentType, Core, Effects, EventRecord, EventRecorder, Informer, Input, Rng, Selector, Time,
    TimerId,
};
use carrack_launcher::Domain;
use carrack_launcher::accel::{Accel, Probe};
use carrack_launcher::domain::{PANICKED, Phase};
use carrack_types::kubevirt::{VirtualMachineInstance, phase};
use carrack_types::resource::{Kind, Object};
use carrack_types::well_known::kubevirt::{APP_LABEL, KVM_RESOURCE, LAUNCHER, NODE_NAME_LABEL, VMI_FINALIZER};
use k8s_openapi::api::core::v1::{Node, Pod};

use super::effects::{Call, In, Op, OpId, Out, Outcome, Record, Reply, Served, Sought};
use super::{spec, status};
use crate::diff::merge_patch;
use crate::fence;
use crate::identity::launcher_of;
use guest::{Act, Asked, Guest, Seen};
use heartbeat::Heartbeat;
use lease::Keeper;
use leaving::Leaving;
use watchdog::Watchdog;

/// Component name in events.
pub const COMPONENT: &str = "virt-handler";

/// How long a guest's end may wait for its pod, which goes along, or tells what QEMU said.
const END_WAIT: Duration = Duration::from_secs(3);

/// Index of instances by their UIDs: after each step it is looked which guests there are.
const BY_UID: &str = "uid";

/// What an operation in flight is for.
#[derive(Clone, Debug)]
enum Flight {
    Load,
    Probe,
    Save(Record),
    Drop(String),
    Prepare(String),
    Call(String),
    TakeOver(String),
    Look(String),
    /// UID of a pod that goes.
    SeeOff(String),
    Ask(String),
    Arm(String, Time),
    Destroy(String),
    Watchdog,
}

/// Whom a timer wakes.
enum Wake {
    Guest(String),
    /// UID of a pod that goes.
    Leaving(String),
    Heartbeat,
    Lease,
    Watchdog,
}

/// Whose write is in flight.
enum Written {
    Guest(String),
    Node,
}

/// The core of the virt-handler role.
pub struct Handler {
    node_name: String,
    vmis: Informer<VirtualMachineInstance>,
    pods: Informer<Pod>,
    node: Informer<Node>,
    recorder: EventRecorder,
    guests: BTreeMap<String, Guest>,
    /// Pods that go, by their UIDs.
    leaving: BTreeMap<String, Leaving>,
    flights: BTreeMap<OpId, Flight>,
    wakes: BTreeMap<TimerId, Wake>,
    writes: BTreeMap<CallId, Written>,
    heartbeat: Heartbeat,
    lease: Keeper,
    /// When the Lease is looked at again, and the promise that the monitors were told last.
    lease_at: Option<Time>,
    told_until: Option<Time>,
    watchdog: Watchdog,
    /// When it is looked at again.
    watchdog_at: Option<Time>,
    loaded: bool,
    probe: Option<Probe>,
    published: Vec<Served>,
    /// A planted bug: statuses are written as often as they change.
    unpaced: bool,
}

impl Handler {
    /// The handler of a node.
    #[must_use]
    pub fn new(node_name: &str, rng: &Rng) -> Self {
        let on_node = Selector::labels(format!("{NODE_NAME_LABEL}={node_name}"));
        // All pods of the node: whose launcher one is, its owner says, and not a label that may be taken off.
        let placed = Selector::fields(format!("spec.nodeName={node_name}"));
        let own = Selector::fields(format!("metadata.name={node_name}"));
        let mut vmis: Informer<VirtualMachineInstance> =
            Informer::new(VirtualMachineInstance::resource(), on_node, rng.fork("vmis"));
        vmis.add_index(BY_UID, |vmi| vec![vmi.uid().to_owned()]);
        Self {
            node_name: node_name.to_owned(),
            vmis,
            pods: Informer::new(Pod::resource(), placed, rng.fork("pods")).trimmed_by(trim),
            node: Informer::new(Node::resource(), own, rng.fork("node")),
            recorder: EventRecorder::new(COMPONENT, rng.fork("events")).on_host(node_name),
            guests: BTreeMap::new(),
            leaving: BTreeMap::new(),
            flights: BTreeMap::new(),
            wakes: BTreeMap::new(),
            writes: BTreeMap::new(),
            heartbeat: Heartbeat::new(rng.fork("heartbeat")),
            lease: Keeper::new(node_name),
            lease_at: None,
            told_until: None,
            watchdog: Watchdog::new(false),
            watchdog_at: None,
            loaded: false,
            probe: None,
            published: Vec::new(),
            unpaced: false,
        }
    }

    /// Its console server listens on another port than the usual one; the node says so to the API server.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.heartbeat.port = port;
        self
    }

    /// The machine's watchdog backs the promise that the node's guests run under.
    #[must_use]
    pub fn with_watchdog(mut self) -> Self {
        self.watchdog = Watchdog::new(true);
        self
    }

    /// An earlier process may have left it armed, so that it is taken over, whatever runs. `set_to` is what it is set to, where
    /// that is known.
    #[must_use]
    pub fn taking_over_watchdog(mut self, set_to: Option<Duration>) -> Self {
        self.watchdog = Watchdog::new(true).taking_over(set_to);
        self
    }

    /// Plants a bug: statuses are written as often as they change. For the simulator, which must find it; never for a real
    /// process.
    #[must_use]
    pub fn with_planted_hurry(mut self) -> Self {
        self.unpaced = true;
        self
    }

    /// Plants a bug: which of its node's pods are launchers, their label says. For the simulator, which must find it; never for
    /// a real process.
    #[must_use]
    pub fn with_planted_labels(mut self, rng: &Rng) -> Self {
        let launchers = Selector {
            labels: format!("{APP_LABEL}={LAUNCHER}"),
            ..Selector::fields(format!("spec.nodeName={}", self.node_name))
        };
        self.pods = Informer::new(Pod::resource(), launchers, rng.fork("pods")).trimmed_by(trim);
        self
    }

    fn op(&mut self, fx: &mut Effects<Out>, op: Op, flight: Flight) {
        let id = OpId(fx.fresh());
        self.flights.insert(id, flight);
        fx.own(Out { id, op });
    }

    /// An operation whose result, if any, comes by another way.
    fn tell(fx: &mut Effects<Out>, op: Op) {
        let id = OpId(fx.fresh());
        fx.own(Out { id, op });
    }

    fn wake(&mut self, fx: &mut Effects<Out>, at: Time, whom: Wake) {
        self.wakes.insert(fx.timer(at), whom);
    }

    fn instance(&self, uid: &str) -> Option<Arc<VirtualMachineInstance>> {
        self.vmis.cache().by_index(BY_UID, uid).next().cloned()
    }

    /// The pod of an instance: one beside it whose controlling owner it is. What only bears a launcher's labels was
    /// made by somebody else, who must not be told what is for the launcher, and whose end says nothing. Once a guest
    /// was started, no other pod than its own takes its place.
    fn pod(&self, namespace: &str, uid: &str) -> Option<Arc<Pod>> {
        let record = self.guests.get(uid).map(|guest| &guest.record);
        let started = record.filter(|record| record.started && !record.place.pod_uid.is_empty());
        let is_own = |pod: &&Arc<Pod>| {
            launcher_of(pod) == Some(uid)
                && pod.namespace() == namespace
                && started.is_none_or(|record| record.place.pod_uid == pod.uid())
        };
        self.pods.cache().by_owner(uid).find(is_own).cloned()
    }

    fn ready(&self) -> bool {
        self.loaded && self.vmis.synced() && self.pods.synced()
    }

    fn consider_all(&mut self, now: Time, fx: &mut Effects<Out>) {
        let mut uids: Vec<String> = self.guests.keys().cloned().collect();
        uids.extend(
            self.vmis.cache().iter().map(|vmi| vmi.uid().to_owned()).filter(|uid| !self.guests.contains_key(uid)),
        );
        for uid in uids {
            self.consider(now, &uid, fx);
        }
    }

    /// Looks at one instance: does the next thing, and brings its status up to date.
    fn consider(&mut self, now: Time, uid: &str, fx: &mut Effects<Out>) {
        let Some(probe) = self.probe.clone().filter(|_| self.ready()) else { return };
        let vmi = self.instance(uid);
        let here = vmi.as_ref().filter(|vmi| {
            matches!(vmi.phase(), phase::SCHEDULED | phase::RUNNING)
                && vmi.status.as_ref().is_some_and(|status| status.node_name == self.node_name)
        });
        let Some(vmi) = here else {
            self.forget(now, uid, fx);
            return;
        };
        let pod = self.pod(vmi.namespace(), uid);
        let lease = self.hold(now);
        let guest = self.guests.entry(uid.to_owned()).or_default();
        guest.record.namespace = vmi.namespace().to_owned();
        guest.record.name = vmi.name().to_owned();
        // Where no record says under what a guest runs, its instance does.
        let is_unread = guest.record.is_unread();
        if is_unread || guest.saved.is_none() && vmi.phase() == phase::RUNNING {
            guest.record.bound = fence::is_bound(vmi) || guest.record.bound && !is_unread;
        }
        let seen = Seen { vmi, pod: pod.as_deref(), accel: probe.accel, now, lease };
        let act = if guest.busy { Act::Wait(None) } else { guest::act(guest, &seen) };
        if matches!(act, Act::Call(_, Call::Shutdown)) && !guest.told_shutdown {
            guest.told_shutdown = true;
            let event = EventRecord::normal(vmi.as_ref(), "ShuttingDown", "Signaled Graceful Shutdown");
            self.recorder.record(now, event, fx);
        }
        self.carry_out(now, uid, act, fx);
        self.report(now, uid, vmi, pod.as_deref(), fx);
    }

    /// An instance that is not this node's concern (any more).
    fn forget(&mut self, now: Time, uid: &str, fx: &mut Effects<Out>) {
        let over = self.hold(now).over;
        let Some(guest) = self.guests.get_mut(uid) else { return };
        if guest.busy || guest.retry_at.is_some_and(|at| at > now) {
            return;
        }
        guest.watching = false;
        // One that runs under the Lease is not left to itself when its instance is somebody else's matter: it must be
        // over when the Lease is said to be free of guests. That it has ended its monitor says before QEMU has quit, and if
        // that dies in between, QEMU goes on: what its kubelet ends is waited for.
        let ended = guest.domain.as_ref().is_some_and(|domain| domain.phase == Phase::Ended) && !over;
        if guest.record.bound && !guest.dead && !guest.record.place.pod_uid.is_empty() {
            let place = guest.record.place.clone();
            let act = if ended { Act::Look(place) } else { Act::Destroy(place) };
            return self.carry_out(now, uid, act, fx);
        }
        // Nor is one of which nobody knows where it is: whatever bears the instance's UID may be its guest.
        if guest.record.is_unread() && !guest.dead {
            let place = guest.record.place.clone();
            return self.carry_out(now, uid, Act::Look(place), fx);
        }
        Self::tell(fx, Op::Unwatch(uid.to_owned()));
        // It is forgotten once its record is surely gone.
        if guest.saved.is_some() {
            guest.busy = true;
            self.op(fx, Op::Drop(uid.to_owned()), Flight::Drop(uid.to_owned()));
            return;
        }
        self.guests.remove(uid);
    }

    fn carry_out(&mut self, now: Time, uid: &str, act: Act, fx: &mut Effects<Out>) {
        let Some(guest) = self.guests.get_mut(uid) else { return };
        let asks =
            !matches!(act, Act::Wait(_) | Act::Watch(_) | Act::Lost | Act::Fail(_) | Act::Ask(_) | Act::Claim(_));
        guest.busy |= asks;
        let owner = uid.to_owned();
        match act {
            Act::Wait(None) => {}
            Act::Wait(Some(until)) => {
                if guest.wake_at != Some(until) {
                    guest.wake_at = Some(until);
                    self.wake(fx, until, Wake::Guest(owner));
                }
            }
            Act::Lost => guest.dead = true,
            Act::Watch(place) => {
                guest.watching = true;
                Self::tell(fx, Op::Watch(place));
            }
            Act::Save(record) => self.op(fx, Op::Save(record.clone()), Flight::Save(record)),
            Act::Prepare(preparation) => self.op(fx, Op::Prepare(preparation), Flight::Prepare(owner)),
            Act::Call(place, call) => {
                guest.last_call = Some((Asked::by(&call), now));
                self.op(fx, Op::Call(place, call), Flight::Call(owner));
            }
            Act::TakeOver(place) => self.op(fx, Op::TakeOver(place), Flight::TakeOver(owner)),
            Act::Look(place) => {
                let sought = Sought { uid: place.uid, pod_uid: place.pod_uid, ends_disks: false };
                self.op(fx, Op::LookForProcesses(sought), Flight::Look(owner));
            }
            Act::Ask(question) => {
                // Beside all else: an agent that is slow must not keep anything waiting.
                guest.agent.asking = true;
                self.op(fx, Op::AskAgent(question), Flight::Ask(owner));
            }
            Act::Arm(place, until) => self.op(fx, Op::Promise(vec![place], until), Flight::Arm(owner, until)),
            Act::Destroy(place) => {
                tracing::warn!(uid, "the node's lease is over: the guest is ended");
                self.op(fx, Op::Destroy(place), Flight::Destroy(owner));
            }
            Act::Claim(term) => self.claim(uid, term, fx),
            Act::Fail(why) => {
                guest.fail(now, why);
                if let Some(until) = guest.retry_at {
                    self.wake(fx, until, Wake::Guest(owner));
                }
            }
        }
    }

    /// Writes the status if it is not what it should be, and the last write has been seen.
    fn report(
        &mut self,
        now: Time,
        uid: &str,
        vmi: &Arc<VirtualMachineInstance>,
        pod: Option<&Pod>,
        fx: &mut Effects<Out>,
    ) {
        let Some(guest) = self.guests.get_mut(uid) else { return };
        let must_wait = guest.write_at.is_some_and(|at| at > now);
        if guest.writing || must_wait || vmi.revision() < guest.barrier {
            return;
        }
        let mut new = vmi.as_ref().clone();
        let domain = guest.outcome(vmi, pod);
        let seen = status::Seen {
            pod,
            domain: domain.as_ref(),
            trouble: guest.trouble.as_deref(),
            agent: guest.agent.report.as_ref(),
        };
        status::apply(&mut new, &seen, now);
        let goes_in_order = vmi.is_deleting() && new.phase() == phase::SUCCEEDED;
        if goes_in_order && pod.is_none() {
            // Nothing holds it any more: its end is told in the write that lets it go.
            new.remove_finalizer(VMI_FINALIZER);
        } else if goes_in_order || guest.awaits_words(pod) {
            // Its pod is about to go, or to tell what QEMU said.
            let until = *guest.end_told_by.get_or_insert(now + END_WAIT);
            if now < until {
                if guest.wake_at != Some(until) {
                    guest.wake_at = Some(until);
                    self.wake(fx, until, Wake::Guest(uid.to_owned()));
                }
                return;
            }
        }
        let patch = merge_patch(vmi.as_ref(), &new);
        let is_step = self.unpaced || new.phase() != vmi.phase() || new.metadata != vmi.metadata;
        if let Some(until) = guest.pace.waits_until(now).filter(|_| patch.is_some() && !is_step) {
            if guest.pace.wake_at != Some(until) {
                guest.pace.wake_at = Some(until);
                self.wake(fx, until, Wake::Guest(uid.to_owned()));
            }
            return;
        }
        // What was told with a write that failed is not told again with the next.
        let told = std::mem::take(&mut guest.told);
        let Some(mut patch) = patch else { return };
        for event in changes(vmi, &new, domain.as_ref(), guest.trouble.as_deref()) {
            let words = (event.reason.clone(), event.message.clone());
            if !told.contains(&words) {
                self.recorder.record(now, event, fx);
            }
            guest.told.push(words);
        }
        let mut metadata = patch["metadata"].as_object().cloned().unwrap_or_default();
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("resourceVersion".to_owned(), vmi.metadata.resource_version.clone().into());
        patch["metadata"] = metadata.into();
        guest.writing = true;
        let resource = VirtualMachineInstance::resource();
        let request = ApiRequest::patch(&resource, vmi.namespace(), vmi.name(), "", ContentType::MergePatch, &patch);
        self.writes.insert(fx.api(request), Written::Guest(uid.to_owned()));
    }

    fn done(&mut self, now: Time, id: OpId, outcome: Outcome, fx: &mut Effects<Out>) {
        let Some(flight) = self.flights.remove(&id) else {
            // Nobody waits for it; what it is for ends guests, all the same, when it fails again and again.
            if let Err(error) = outcome {
                tracing::warn!(%error, "something that was asked of the node has failed");
            }
            return;
        };
        let uid = match flight {
            Flight::Load => return self.was_loaded(now, outcome, fx),
            Flight::Probe => return self.was_probed(now, outcome, fx),
            Flight::SeeOff(ref pod) => return self.saw_off(now, pod, &outcome, fx),
            Flight::Watchdog => {
                let waited = !self.is_guarded();
                self.watchdog.done(now, outcome);
                if waited && self.is_guarded() {
                    // Those that waited for it may start.
                    self.consider_all(now, fx);
                }
                return;
            }
            Flight::Save(ref record) => record.place.uid.clone(),
            Flight::Drop(ref uid)
            | Flight::Prepare(ref uid)
            | Flight::Call(ref uid)
            | Flight::TakeOver(ref uid)
            | Flight::Look(ref uid)
            | Flight::Ask(ref uid)
            | Flight::Arm(ref uid, _)
            | Flight::Destroy(ref uid) => uid.clone(),
        };
        if let Some(guest) = self.guests.get_mut(&uid) {
            guest.busy &= matches!(flight, Flight::Ask(_));
            match (outcome, &flight) {
                // A guest need not have an agent that answers; nothing else waits for it.
                (outcome, Flight::Ask(_)) => guest.asked_agent(now, outcome),
                (Ok(reply), _) => guest.succeeded(now, &flight, reply),
                (Err(error), _) => guest.fail(now, error.0),
            }
            if let Some(until) = guest.retry_at {
                self.wake(fx, until, Wake::Guest(uid.clone()));
            }
        }
        self.consider(now, &uid, fx);
    }

    fn was_loaded(&mut self, now: Time, outcome: Outcome, fx: &mut Effects<Out>) {
        match outcome {
            Ok(Reply::Loaded(records)) => {
                for record in records {
                    let guest = Guest { saved: Some(record.clone()), record, ..Guest::default() };
                    self.guests.insert(guest.record.place.uid.clone(), guest);
                }
                self.loaded = true;
                self.consider_all(now, fx);
            }
            // Without its record and its tools the handler can do nothing; somebody has to look.
            Ok(other) => fx.exit(format!("the local record: {other:?} is no record")),
            Err(error) => fx.exit(format!("the node cannot run virtual machines: {error}")),
        }
    }

    fn was_probed(&mut self, now: Time, outcome: Outcome, fx: &mut Effects<Out>) {
        let probe = match outcome {
            Ok(Reply::Probed(probe)) => probe,
            Ok(_) => Probe { accel: Accel::Tcg, reason: "the probe gave no answer".to_owned() },
            Err(error) => Probe { accel: Accel::Tcg, reason: error.0 },
        };
        tracing::info!(accel = probe.accel.name(), reason = probe.reason, "acceleration chosen");
        self.probe = Some(probe);
        self.consider_all(now, fx);
    }

    fn own(&mut self, now: Time, event: In, fx: &mut Effects<Out>) {
        match event {
            In::Done(id, outcome) => self.done(now, id, outcome, fx),
            In::Domain(uid, domain) => {
                if let Some(guest) = self.guests.get_mut(&uid) {
                    guest.observed(*domain);
                }
                self.consider(now, &uid, fx);
            }
            In::WatchClosed(uid, why) => {
                if let Some(guest) = self.guests.get_mut(&uid) {
                    guest.watch_closed(now, why);
                    if let Some(until) = guest.retry_at {
                        self.wake(fx, until, Wake::Guest(uid.clone()));
                    }
                }
                self.consider(now, &uid, fx);
            }
            In::AgentChanged(uid) => {
                if let Some(guest) = self.guests.get_mut(&uid) {
                    guest.agent_changed();
                }
                self.consider(now, &uid, fx);
            }
            In::ProbeAgain => self.op(fx, Op::Probe, Flight::Probe),
            In::CpuManager(is_on) => self.heartbeat.cpu_manager = Some(is_on),
            In::Device { resource, present, registered } => {
                // KVM's module may be loaded after this process was started.
                if present && resource == KVM_RESOURCE && self.heartbeat.is_missing(&resource) {
                    self.op(fx, Op::Probe, Flight::Probe);
                }
                self.heartbeat.device(resource, present, registered);
            }
        }
    }

    fn answered(
        &mut self,
        now: Time,
        written: Written,
        result: &Result<carrack_engine::ApiResponse, carrack_engine::ApiError>,
        fx: &mut Effects<Out>,
    ) {
        match written {
            Written::Node => {
                if let Some(at) = self.heartbeat.answered(now, result) {
                    self.wake(fx, at, Wake::Heartbeat);
                }
            }
            Written::Guest(uid) => {
                if let Some(guest) = self.guests.get_mut(&uid) {
                    guest.writing = false;
                    match result {
                        Ok(reply) => {
                            guest.told.clear();
                            guest.pace.wrote(now);
                            match reply.object::<VirtualMachineInstance>() {
                                Ok(vmi) => guest.barrier = vmi.revision(),
                                Err(error) => {
                                    tracing::warn!(uid, %error, "the reply to a status write is not understood");
                                }
                            }
                        }
                        // The newer object comes by the watch; a second later it is tried again in any case.
                        Err(error) => {
                            tracing::debug!(uid, %error, "a status was not written");
                            let again = now + Duration::from_secs(1);
                            guest.write_at = (!error.is_conflict()).then_some(again);
                            self.wake(fx, again, Wake::Guest(uid.clone()));
                            return;
                        }
                    }
                }
                self.consider(now, &uid, fx);
            }
        }
    }

    /// Says that the node lives, when it is time to or something changed.
    fn beat(&mut self, now: Time, fx: &mut Effects<Out>) {
        let node = self.node.cache().get("", &self.node_name).cloned();
        // Who cannot renew its Lease knows nothing of a mark on it, which the control plane would defend for ever.
        let holds = self.lease.promised(now).is_some() && !self.lease.is_marked();
        let able = self.loaded && self.probe.is_some() && holds;
        let (patch, next) = self.heartbeat.next(now, node.as_deref(), able, self.watchdog.said());
        if let Some(patch) = patch {
            let request =
                ApiRequest::patch(&Node::resource(), "", &self.node_name, "", ContentType::MergePatch, &patch);
            self.writes.insert(fx.api(request), Written::Node);
        }
        if let Some(at) = next {
            self.wake(fx, at, Wake::Heartbeat);
        }
    }

    /// Tells the console server which guests there are, when that changed.
    fn publish(&mut self, fx: &mut Effects<Out>) {
        let mut served: Vec<Served> = self
            .guests
            .iter()
            .filter(|(_, guest)| !guest.record.place.compute_id.is_empty() && guest.is_up())
            .map(|(uid, guest)| Served {
                namespace: guest.record.namespace.clone(),
                name: guest.record.name.clone(),
                place: guest.record.place.clone(),
                address: self.pod(&guest.record.namespace, uid).and_then(|pod| pod.status.as_ref()?.pod_ip.clone()),
                disks: Vec::new(),
                nics: BTreeMap::new(),
            })
            .collect();
        if served != self.published {
            self.published.clone_from(&served);
            for guest in &mut served {
                if let Some(vmi) = self.instance(&guest.place.uid) {
                    guest.disks = vmi.spec.domain.devices.disks.iter().map(|disk| disk.name.clone()).collect();
                    guest.nics = spec::taps(&vmi);
                }
            }
            Self::tell(fx, Op::Publish(served));
        }
    }
}

/// Leaves of a pod that is no launcher no more than that it is there: what else runs on the node is not the handler's, and takes
/// next to no room. One that has lost its owner, such as with its instance, is known by its label.
fn trim(pod: &mut Pod) {
    if launcher_of(pod).is_some() || pod.label(APP_LABEL) == Some(LAUNCHER) {
        return;
    }
    (pod.spec, pod.status) = (None, None);
    let metadata = &mut pod.metadata;
    (metadata.labels, metadata.annotations, metadata.managed_fields) = (None, None, None);
}

/// What is worth an event about a status change.
fn changes(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    domain: Option<&Domain>,
    trouble: Option<&str>,
) -> Vec<EventRecord> {
    let mut events = Vec::new();
    if old.phase() != new.phase() {
        let detail = domain.and_then(|domain| domain.end.as_ref()).map(|end| end.detail.as_str());
        if new.phase() == phase::RUNNING {
            events.push(EventRecord::normal(new, "Created", "VirtualMachineInstance defined."));
        }
        if new.phase() == phase::FAILED && detail == Some(PANICKED) {
            events.push(EventRecord::warning(new, "GuestPanicked", "The guest's system panicked."));
        }
        events.extend(match new.phase() {
            phase::RUNNING => Some(EventRecord::normal(new, "Started", "VirtualMachineInstance started.")),
            phase::SUCCEEDED => Some(EventRecord::normal(new, "Stopped", "The VirtualMachineInstance was shut down.")),
            phase::FAILED => {
                let why = detail.or(trouble).unwrap_or("its pod ended");
                Some(EventRecord::warning(new, "Stopped", format!("The VirtualMachineInstance crashed: {why}")))
            }
            _ => None,
        });
        // What is left of the guest is cleared up: programs wait for KubeVirt's word for that.
        if new.is_final() {
            events.push(EventRecord::normal(new, "Deleted", "Signaled Deletion"));
        }
    }
    let failing =
        |vmi: &VirtualMachineInstance| vmi.condition("Synchronized").map(|condition| condition.message.clone());
    if let Some(why) = failing(new).filter(|why| failing(old).as_ref() != Some(why)) {
        events.push(EventRecord::warning(new, "SyncFailed", why));
    }
    let stopped =
        |vmi: &VirtualMachineInstance| vmi.condition("Paused").is_some_and(|paused| paused.reason == "PausedIOError");
    if stopped(new) && !stopped(old) {
        let warning = domain.and_then(|domain| domain.warning.as_deref()).unwrap_or_default();
        events.push(EventRecord::warning(new, "IOerror", disk_error(new, warning)));
    }
    events
}

/// Why a guest was stopped, from what its launcher warned of, who calls disks by their places. (Upstream: `eventCallback` in
/// virt-launcher's notify client.)
fn disk_error(vmi: &VirtualMachineInstance, warning: &str) -> String {
    let named = warning.split_once(" on disk-").and_then(|(_, named)| named.split_once(' '));
    let place = named.and_then(|(place, _)| place.parse::<usize>().ok());
    let disk = place.and_then(|place| vmi.spec.domain.devices.disks.get(place));
    let disk = disk.map_or("unknown", |disk| disk.name.as_str());
    if warning.ends_with("No space left on device") {
        format!("VM Paused due to not enough space on volume: {disk}")
    } else {
        format!("VM Paused due to IO error at the volume: {disk}")
    }
}

impl Core for Handler {
    type In = In;
    type Out = Out;

    fn step(&mut self, now: Time, input: Input<In>, fx: &mut Effects<Out>) {
        if let Some(deltas) = self.vmis.step(now, &input, fx) {
            deltas.iter().for_each(|delta| self.consider(now, delta.object().uid(), fx));
        } else if let Some(deltas) = self.pods.step(now, &input, fx) {
            for delta in &deltas {
                self.sees_pod(now, delta, fx);
                if let Some(uid) = launcher_of(delta.object()) {
                    self.consider(now, uid, fx);
                }
            }
        } else if self.node.step(now, &input, fx).is_some() || self.recorder.step(now, &input, fx) {
            // What follows from it is looked at below.
        } else {
            match input {
                Input::Start => {
                    self.vmis.start(fx);
                    self.pods.start(fx);
                    self.node.start(fx);
                    self.op(fx, Op::Load, Flight::Load);
                    self.op(fx, Op::Probe, Flight::Probe);
                }
                Input::Own(event) => self.own(now, event, fx),
                Input::Timer(id) => {
                    match self.wakes.remove(&id) {
                        Some(Wake::Guest(uid)) => {
                            if let Some(guest) = self.guests.get_mut(&uid) {
                                guest.wake_at = None;
                            }
                            self.consider(now, &uid, fx);
                        }
                        Some(Wake::Leaving(pod)) => self.see_off(now, &pod, fx),
                        // What is due is looked at below.
                        Some(Wake::Heartbeat | Wake::Lease | Wake::Watchdog) | None => {}
                    }
                }
                Input::Api { id, result } => {
                    if let Some(written) = self.writes.remove(&id) {
                        self.answered(now, written, &result, fx);
                    } else {
                        self.lease.answered(now, id, &result);
                    }
                }
                Input::Watch { .. } => {}
            }
        }
        // A list that completes makes absence a fact: everything that was waiting for it is looked at.
        if self.ready() && !self.heartbeat.all_seen {
            self.heartbeat.all_seen = true;
            self.consider_all(now, fx);
        }
        self.hold_lease(now, fx);
        self.guard(now, fx);
        self.beat(now, fx);
        self.publish(fx);
    }
}

#[cfg(test)]
mod tests;
