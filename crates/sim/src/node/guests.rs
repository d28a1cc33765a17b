//! Launchers and their guests, behind virt-handler's effects.
//!
//! A launcher comes up with its container and waits for its machine. What it knows is the real
//! [`Domain`]; the guest under it boots, shuts down when its power button is pressed (or does not
//! care), crashes, and ends with its container. The launcher's monitor may die and be replaced; the
//! guest does not notice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_launcher::accel::{Accel, Probe};
use carrack_launcher::domain::{Observed, Phase};
use carrack_launcher::{Domain, MachineSpec};
use carrack_virt::handler::effects::{
    AgentReport, Call, In, Op, OpError, OpId, Outcome, Place, Record, Reply, WatchdogCall,
};
use serde_json::json;

use super::frozen::Frozen;
use super::watchdog::Watchdog;
use super::{Follow, NodeEvent, Runtime};
use crate::chance::{between, pick};
use crate::counted::Counted;
use crate::writers::Writers;

/// How long a state takes from the launcher to the handler. Always the same, so that they keep their
/// order.
const STATE_DELAY: Duration = Duration::from_millis(1);
/// How soon an agent that comes and goes does so again, at the least and at the most.
const CHATTERS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(80));

/// What a guest does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Its processors run.
    Boots,
    /// It has powered itself off.
    PowersOff,
    /// It has panicked.
    Panics,
    /// QEMU has quit; the container ends.
    Quits,
    /// The monitor dies; the guest goes on.
    LosesMonitor,
    /// The launcher, which hung while it was starting its machine, goes on.
    GoesOn,
    /// Until then its node has promised to run it, if nothing newer was said.
    OutlivesPromise(Time),
    /// Its agent comes or goes, and so many times again.
    Chatters(u32),
}

/// A launcher with its guest.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Namespace and name of its instance, once it has a machine.
    pub name: String,
    pub domain: Domain,
    monitor: bool,
    /// It does not care for its power button.
    stubborn: bool,
    pressed: bool,
    /// The launcher hangs, with what it is about to start.
    hangs: Option<Box<MachineSpec>>,
    /// What happened while there was no monitor. QEMU waits for one before it quits.
    unseen: Option<Observed>,
}

impl Guest {
    /// Whether there is a QEMU process.
    pub(crate) fn alive(&self) -> bool {
        matches!(self.domain.phase, Phase::Starting | Phase::Running | Phase::Paused)
    }
}

/// The guests of a node by their compute containers, and what the handler keeps.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    guests: Counted<BTreeMap<String, Guest>>,
    /// Whose states the handler follows: by instance, the handler's life and the container.
    watches: BTreeMap<String, (u32, String)>,
    /// The handler's local record.
    pub records: BTreeMap<String, Record>,
    pending: BTreeMap<u64, (u32, OpId, Op)>,
    next: u64,
    probed: Option<Probe>,
    /// A planted bug: guests run on when their node's promise is over.
    pub faithless: bool,
    /// A planted bug: a launcher that hung starts its machine whatever has become of it meanwhile.
    pub heedless: bool,
    /// A planted bug: a launcher says of a machine that has not begun that it has.
    pub hollow: bool,
    /// A planted bug: the signals that a handler sends to what holds container disks are forgotten.
    pub forgets_signals: bool,
    /// One launcher in so many hangs while it starts its machine.
    pub hangs_one_in: u64,
    /// The disks that all nodes can open.
    pub writers: Writers,
    /// The machine's watchdog.
    pub watchdog: Watchdog,
    /// Those whose file systems are frozen.
    pub frozen: Frozen,
    /// The instances whose guests have begun here.
    begun: BTreeSet<String>,
    /// Until when guests may run, as it lies with their monitors.
    promises: BTreeMap<String, Time>,
}

impl Guests {
    /// The handler of a life asks for an operation.
    pub(crate) fn ask(&mut self, life: u32, id: OpId, op: Op, delay: Duration) -> Vec<Follow> {
        match op {
            Op::Publish(_) => Vec::new(),
            Op::Unwatch(uid) => {
                self.watches.remove(&uid);
                Vec::new()
            }
            op => {
                self.next += 1;
                self.pending.insert(self.next, (life, id, op));
                vec![Follow::Later(delay, NodeEvent::HandlerEffect(self.next))]
            }
        }
    }

    /// The handler has died. What it had asked for may still be carried out, or not.
    pub(crate) fn handler_died(&mut self, rng: &mut Rng) {
        self.watches.clear();
        self.pending.retain(|_, (_, _, op)| !rng.one_in(3) && !matches!(op, Op::Watchdog(_)));
    }

    /// Whether an operation writes the handler's record.
    pub(super) fn keeps(&self, number: u64) -> bool {
        self.pending.get(&number).is_some_and(|(_, _, op)| matches!(op, Op::Save(_)))
    }

    /// An operation takes effect. `fails` is whether it fails before (true) or after it.
    pub(super) fn carry_out(
        &mut self,
        number: u64,
        fails: Option<bool>,
        now: Time,
        runtime: &Runtime,
        rng: &mut Rng,
        blind: bool,
    ) -> Vec<Follow> {
        let Some((life, id, op)) = self.pending.remove(&number) else { return Vec::new() };
        if let Op::Watch(place) = op {
            return self.watch(life, place, runtime);
        }
        // Without its record the handler cannot live at all; that is another matter than what fails here.
        let fails = fails.filter(|_| !matches!(op, Op::Load));
        let mut follow = Vec::new();
        let outcome = match (fails, op) {
            (fails, Op::Watchdog(call)) => {
                // What is planted shows in closing alone.
                let fails = fails.or((self.watchdog.half_closed && call == WatchdogCall::Close).then_some(true));
                let (outcome, look) = match fails {
                    Some(before) => self.watchdog.refuse(call, before, now),
                    None => self.watchdog.call(call, now),
                };
                follow.extend(look.map(|after| Follow::Later(after, NodeEvent::Watchdog)));
                outcome
            }
            (Some(true), _) => Err(OpError("the node hiccups".into())),
            (fails, op) => {
                let outcome = self.do_it(op, now, runtime, rng, blind, &mut follow);
                if fails.is_some() { outcome.and_then(|_| Err(OpError("no answer in time".into()))) } else { outcome }
            }
        };
        let back = between(rng, Duration::from_micros(100), Duration::from_millis(2));
        follow.push(Follow::Handler(life, back, Box::new(In::Done(id, outcome))));
        follow
    }

    fn do_it(
        &mut self,
        op: Op,
        now: Time,
        runtime: &Runtime,
        rng: &mut Rng,
        blind: bool,
        follow: &mut Vec<Follow>,
    ) -> Outcome {
        match op {
            Op::Load => Ok(Reply::Loaded(self.records.values().cloned().collect())),
            Op::Probe => {
                let accel = if rng.one_in(2) { Accel::Kvm } else { Accel::Tcg };
                let probe = self.probed.get_or_insert(Probe { accel, reason: "the seed chose".into() });
                Ok(Reply::Probed(probe.clone()))
            }
            Op::Save(record) => {
                self.records.insert(record.place.uid.clone(), record);
                Ok(Reply::Done)
            }
            Op::Drop(uid) => {
                self.records.remove(&uid);
                Ok(Reply::Done)
            }
            Op::Prepare(preparation) => {
                let needed = preparation.disks.iter().map(|d| &d.container_id).chain([&preparation.place.compute_id]);
                match needed.into_iter().find(|id| !runtime.is_running(id)) {
                    Some(id) => Err(OpError(format!("container {id} does not run"))),
                    None => Ok(Reply::Prepared(Box::default())),
                }
            }
            Op::Call(place, call) => self.call(&place, call, now, runtime, rng, follow),
            Op::TakeOver(place) => self.take_over(&place, now, runtime, rng, follow),
            Op::Promise(places, until) => {
                for place in places {
                    // A monitor that is dead finds it when it is replaced.
                    self.promises.insert(place.compute_id.clone(), until);
                    if runtime.is_running(&place.compute_id) {
                        let over = NodeEvent::Guest(place.compute_id, Doing::OutlivesPromise(until));
                        follow.push(Follow::Later(until.since(now), over));
                    }
                }
                Ok(Reply::Done)
            }
            Op::Destroy(_) if self.faithless => Ok(Reply::Processes(false)),
            Op::Destroy(place) => {
                follow.push(Follow::Say(format!("pod {} is ended from outside", place.pod_uid)));
                let left = runtime.is_running(&place.compute_id);
                if left {
                    follow.push(Follow::Later(Duration::ZERO, NodeEvent::Guest(place.compute_id, Doing::Quits)));
                }
                Ok(Reply::Processes(left || runtime.alive_of(&place.pod_uid).is_some()))
            }
            Op::LookForProcesses(sought) => {
                // Where nobody knows of which pod, they are known by the instance's UID, which launchers bear.
                let left = match sought.pod_uid.as_str() {
                    "" => self.guests.iter().any(|(id, g)| g.domain.uid == sought.uid && runtime.is_running(id)),
                    pod => runtime.alive_of(pod).is_some(),
                };
                let left = left && !blind;
                follow.push(Follow::Say(format!("processes of pod {} are left: {left}", sought.pod_uid)));
                if sought.ends_disks && !self.forgets_signals {
                    let disks = runtime.disks_that_hear(&sought.pod_uid, now).into_iter();
                    let ends = |container| Follow::Later(Duration::ZERO, NodeEvent::Exit { container, code: 0 });
                    follow.extend(disks.map(ends));
                }
                Ok(Reply::Processes(left))
            }
            Op::AskAgent(question) => {
                let frozen = self.frozen.since(&question.place.compute_id, now).is_some();
                match self.launcher(&question.place, runtime) {
                    Some(guest) if guest.domain.agent_connected && !rng.one_in(4) => {
                        Ok(Reply::Agent(Box::new(AgentReport { frozen, ..AgentReport::default() })))
                    }
                    _ => Err(OpError("no agent answers".into())),
                }
            }
            Op::Watch(_) | Op::Unwatch(_) | Op::Publish(_) | Op::Watchdog(_) => Ok(Reply::Done),
        }
    }

    /// A new monitor finds what the dead one knew, and until when its guest may run.
    fn take_over(
        &mut self,
        place: &Place,
        now: Time,
        runtime: &Runtime,
        rng: &mut Rng,
        follow: &mut Vec<Follow>,
    ) -> Outcome {
        let (promised, faithless) = (self.promises.get(&place.compute_id).copied(), self.faithless);
        let Some(guest) = self.launcher(place, runtime) else {
            return Err(OpError("the launcher's container does not run".into()));
        };
        guest.monitor = true;
        follow.push(Follow::Say(format!("a new monitor for the guest of {}", place.uid)));
        if promised.is_some_and(|until| until <= now) && guest.alive() && !faithless {
            guest.unseen = Some(Observed::PromiseOver);
        }
        if let Some(observed) = guest.unseen.take() {
            guest.domain.observe(observed);
            let quits = between(rng, Duration::from_millis(10), Duration::from_secs(1));
            follow.push(Follow::Later(quits, NodeEvent::Guest(place.compute_id.clone(), Doing::Quits)));
        }
        Ok(Reply::Done)
    }

    /// The launcher in a container, which came up with it.
    fn launcher(&mut self, place: &Place, runtime: &Runtime) -> Option<&mut Guest> {
        if !runtime.is_running(&place.compute_id) {
            return None;
        }
        Some(self.guests.entry(place.compute_id.clone()).or_insert_with(|| Guest {
            name: String::new(),
            domain: Domain::waiting(&place.uid),
            monitor: true,
            stubborn: false,
            pressed: false,
            hangs: None,
            unseen: None,
        }))
    }

    fn watch(&mut self, life: u32, place: Place, runtime: &Runtime) -> Vec<Follow> {
        let compute = place.compute_id.clone();
        let domain = self.launcher(&place, runtime).filter(|g| g.monitor).map(|g| g.domain.clone());
        let uid = place.uid;
        let news = match domain {
            Some(domain) => {
                self.watches.insert(uid.clone(), (life, compute));
                In::Domain(uid, Box::new(domain))
            }
            None => In::WatchClosed(uid, "no launcher answers".into()),
        };
        vec![Follow::Handler(life, STATE_DELAY, Box::new(news))]
    }

    fn call(
        &mut self,
        place: &Place,
        call: Call,
        now: Time,
        runtime: &Runtime,
        rng: &mut Rng,
        follow: &mut Vec<Follow>,
    ) -> Outcome {
        let (compute, hollow) = (place.compute_id.clone(), self.hollow);
        // With the planted bug, a machine's first launcher hangs and the others do not.
        let hangs = match &call {
            Call::Sync(spec) if self.heedless => spec.writer().is_some_and(|writer| self.writers.is_new(&writer)),
            Call::Sync(_) => self.hangs_one_in > 0 && rng.one_in(self.hangs_one_in),
            _ => false,
        };
        let Some(guest) = self.launcher(place, runtime).filter(|g| g.monitor && g.hangs.is_none()) else {
            return Err(OpError("no launcher answers".into()));
        };
        match call {
            Call::Sync(spec) if spec.uid != guest.domain.uid => {
                return Err(OpError("the machine belongs to another launcher".into()));
            }
            Call::Sync(_) if guest.domain.phase != Phase::Waiting => {}
            Call::Sync(spec) if hangs => {
                follow.push(Follow::Say(format!("the launcher of {}/{} hangs", spec.namespace, spec.name)));
                guest.hangs = Some(spec);
                let length = between(rng, Duration::from_secs(30), Duration::from_secs(60));
                follow.push(Follow::Later(length, NodeEvent::Guest(compute, Doing::GoesOn)));
                return Err(OpError("no answer in time".into()));
            }
            Call::Sync(spec) => self.start(&compute, *spec, now, rng, follow)?,
            Call::Shutdown => {
                guest.domain.observe(Observed::ShutdownRequested);
                if guest.alive() && !guest.stubborn && !guest.pressed {
                    guest.pressed = true;
                    let takes = between(rng, Duration::from_millis(200), Duration::from_secs(20));
                    follow.push(Follow::Later(takes, NodeEvent::Guest(compute.clone(), Doing::PowersOff)));
                }
            }
            Call::Kill => {
                if hollow && !guest.domain.has_begun() {
                    guest.domain.observe(Observed::Accepted { accel: Accel::Tcg });
                }
                guest.domain.observe(Observed::KillRequested);
                follow.push(Follow::Say(format!("guest of {} is killed in {compute}", guest.name)));
                let quits = between(rng, Duration::from_millis(10), Duration::from_secs(1));
                follow.push(Follow::Later(quits, NodeEvent::Guest(compute.clone(), Doing::Quits)));
            }
        }
        let domain = self.guests.get(&compute).map(|guest| Box::new(guest.domain.clone()));
        self.publish(&compute, follow);
        domain.map(Reply::Domain).ok_or_else(|| OpError("the launcher is gone".into()))
    }

    /// A launcher starts its machine, if its node's promise and its disks allow it.
    fn start(
        &mut self,
        compute: &str,
        spec: MachineSpec,
        now: Time,
        rng: &mut Rng,
        follow: &mut Vec<Follow>,
    ) -> Result<(), OpError> {
        let heeds = !self.heedless;
        if heeds && !self.faithless && self.promises.get(compute).is_some_and(|until| *until <= now) {
            return Err(OpError("the node's lease has run out".into()));
        }
        let Some(guest) = self.guests.get_mut(compute) else { return Ok(()) };
        guest.name = format!("{}/{}", spec.namespace, spec.name);
        guest.stubborn = rng.one_in(5);
        let refused = spec.writer().and_then(|writer| self.writers.open(&writer, heeds).err());
        let (observed, what) = match refused {
            Some(refusal) => (Observed::FailedToStart(refusal.to_string()), format!("does not start: {refusal}")),
            None => (Observed::Accepted { accel: spec.accel }, "starts".to_owned()),
        };
        guest.domain.observe(observed);
        if guest.domain.has_begun() {
            self.begun.insert(guest.domain.uid.clone());
        }
        follow.push(Follow::Say(format!("guest of {} in {compute} {what}", guest.name)));
        let boots = between(rng, Duration::from_millis(100), Duration::from_secs(3));
        let doing = if guest.alive() { Doing::Boots } else { Doing::Quits };
        follow.push(Follow::Later(boots, NodeEvent::Guest(compute.to_owned(), doing)));
        Ok(())
    }

    /// A guest does something by itself. Returns the container that ends by it.
    pub(super) fn does(
        &mut self,
        compute: &str,
        doing: Doing,
        now: Time,
        rng: &mut Rng,
        follow: &mut Vec<Follow>,
    ) -> Option<String> {
        if doing == Doing::GoesOn {
            let spec = self.guests.get_mut(compute)?.hangs.take()?;
            if let Err(why) = self.start(compute, *spec, now, rng, follow) {
                follow.push(Follow::Say(format!("the launcher in {compute} goes on, and does not start: {why}")));
            }
            self.publish(compute, follow);
            return None;
        }
        let guest = self.guests.get_mut(compute)?;
        let shutdown = |reason: &str| Observed::Event { name: "SHUTDOWN".into(), data: json!({"reason": reason}) };
        match doing {
            Doing::Boots => {
                guest.domain.observe(Observed::RunState("running".into()));
                if rng.one_in(3) {
                    let data = json!({"id": "channel0", "open": true});
                    guest.domain.observe(Observed::Event { name: "VSERPORT_CHANGE".into(), data });
                }
            }
            Doing::PowersOff | Doing::Panics => {
                if !guest.alive() {
                    return None;
                }
                if !guest.monitor {
                    let state = if doing == Doing::Panics { "guest-panicked" } else { "shutdown" };
                    guest.unseen = Some(Observed::RunState(state.into()));
                    return None;
                }
                guest.domain.observe(shutdown(if doing == Doing::Panics { "guest-panic" } else { "guest-shutdown" }));
                let quits = between(rng, Duration::from_millis(10), Duration::from_secs(1));
                follow.push(Follow::Later(quits, NodeEvent::Guest(compute.to_owned(), Doing::Quits)));
            }
            Doing::GoesOn => return None,
            Doing::Quits => return Some(compute.to_owned()),
            Doing::OutlivesPromise(until) => {
                if self.faithless {
                    return None;
                }
                let extended = self.promises.get(compute).is_some_and(|promised| *promised > until);
                if extended || !guest.monitor || !guest.alive() {
                    return None;
                }
                guest.domain.observe(Observed::PromiseOver);
                let quits = between(rng, Duration::from_millis(10), Duration::from_secs(1));
                follow.push(Follow::Later(quits, NodeEvent::Guest(compute.to_owned(), Doing::Quits)));
            }
            Doing::Chatters(left) => {
                if !guest.alive() || !guest.monitor {
                    return None;
                }
                let data = json!({"id": "channel0", "open": !guest.domain.agent_connected});
                guest.domain.observe(Observed::Event { name: "VSERPORT_CHANGE".into(), data });
                if let Some(left) = left.checked_sub(1) {
                    let soon = between(rng, CHATTERS.0, CHATTERS.1);
                    follow.push(Follow::Later(soon, NodeEvent::Guest(compute.to_owned(), Doing::Chatters(left))));
                }
                self.publish(compute, follow);
                return None;
            }
            Doing::LosesMonitor => {
                guest.monitor = false;
                follow.push(Follow::Say(format!("the monitor of the guest of {} dies", guest.name)));
                self.hang_up(compute, "the launcher's monitor died", follow);
                return None;
            }
        }
        if doing != Doing::Boots || self.guests.get(compute).is_some_and(Guest::alive) {
            let name = self.guests.get(compute).map(|g| g.name.clone()).unwrap_or_default();
            follow.push(Follow::Say(format!("guest of {name} in {compute}: {doing:?}")));
        }
        self.publish(compute, follow);
        None
    }

    fn publish(&self, compute: &str, follow: &mut Vec<Follow>) {
        let Some(guest) = self.guests.get(compute).filter(|g| g.monitor) else { return };
        for (uid, (life, _)) in self.watches.iter().filter(|(_, (_, c))| c == compute) {
            let news = In::Domain(uid.clone(), Box::new(guest.domain.clone()));
            follow.push(Follow::Handler(*life, STATE_DELAY, Box::new(news)));
        }
    }

    fn hang_up(&mut self, compute: &str, why: &str, follow: &mut Vec<Follow>) {
        let gone: Vec<String> =
            self.watches.iter().filter(|(_, (_, c))| c == compute).map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            if let Some((life, _)) = self.watches.remove(&uid) {
                let news = In::WatchClosed(uid, why.to_owned());
                follow.push(Follow::Handler(life, STATE_DELAY, Box::new(news)));
            }
        }
    }

    /// Guests end with their containers.
    pub(super) fn reap(&mut self, runtime: &Runtime, follow: &mut Vec<Follow>) {
        let gone: Vec<String> = self.guests.keys().filter(|id| !runtime.is_running(id)).cloned().collect();
        for compute in gone {
            self.guests.remove(&compute);
            self.promises.remove(&compute);
            self.frozen.thaw(&compute);
            self.hang_up(&compute, "the launcher hung up", follow);
        }
    }

    /// A loss of power has left one of the handler's records so that it cannot be read.
    pub(super) fn spoil_record(&mut self, rng: &mut Rng) {
        let uids: Vec<String> = self.records.keys().cloned().collect();
        if let Some(uid) = pick(rng, &uids) {
            self.records.insert(uid.clone(), Record::unread(&uid));
        }
    }

    /// The power goes; what is on the disk stays.
    pub(super) fn power_off(&mut self) {
        self.guests.clear();
        self.promises.clear();
        self.frozen = Frozen::default();
        self.watches.clear();
        self.pending.clear();
        self.watchdog.power_off();
        self.probed = None;
    }

    /// Somebody has changed what the agent of an instance's guest says: the handler that follows it hears of that.
    pub(super) fn agent_changed(&self, uid: &str) -> Option<Follow> {
        let (life, _) = self.watches.get(uid)?;
        Some(Follow::Handler(*life, STATE_DELAY, Box::new(In::AgentChanged(uid.to_owned()))))
    }

    /// Whether a guest of an instance has ever begun here.
    pub(crate) fn has_begun(&self, uid: &str) -> bool {
        self.begun.contains(uid)
    }

    /// Whether the machine of a launcher has begun.
    pub(super) fn has_begun_in(&self, container: &str) -> bool {
        self.guests.get(container).is_some_and(|guest| guest.domain.has_begun())
    }

    /// Whether a launcher hangs that was about to start its machine.
    pub(crate) fn hanging(&self) -> bool {
        self.guests.values().any(|guest| guest.hangs.is_some())
    }

    /// How often what is to be seen of the guests may have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.guests.changes()
    }

    /// The guests whose QEMU runs, with their containers.
    pub(crate) fn alive(&self) -> impl Iterator<Item = (&str, &Guest)> {
        self.guests.iter().filter(|(_, g)| g.alive()).map(|(id, g)| (id.as_str(), g))
    }
}
