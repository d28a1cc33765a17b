//! One guest: what is known of it, and the next thing to do about it.
//!
//! ```text
//!  launcher says   going?   next
//!  nothing yet       -      follow its states; after some failures, start a new monitor
//!  Waiting           no     make ready ─▶ keep a record ─▶ sync; a disk's container ended before: kill, and it has failed
//!  Waiting           yes    kill (the launcher ends)
//!  Starting          -      wait
//!  Running, Paused   no     wait
//!  Running, Paused   yes    keep when it was asked first ─▶ power button every 5 s ─▶ after the grace, kill
//!  Ended             -      nothing: the status says how
//! ```

use std::time::Duration;

use carrack_engine::Time;
use carrack_launcher::Domain;
use carrack_launcher::accel::Accel;
use carrack_launcher::domain::{End, EndReason, Phase};
use carrack_launcher::spec::Run;
use carrack_types::kubevirt::{VirtualMachineInstance, phase};
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::COMPUTE_CONTAINER;
use k8s_openapi::api::core::v1::Pod;

use super::Flight;
use super::pace::Pace;
use super::words;
use crate::controllers::vmi::DEFAULT_GRACE_S;
use crate::fence;
use crate::handler::effects::{AgentQuestion, AgentReport, Call, Outcome, Place, Preparation, Prepared, Record, Reply};
use crate::handler::spec::{self, Unready};
use crate::identity::has_acpi;

/// How often the power button is pressed: a guest that still boots misses the first time.
const PRESS_PERIOD: Duration = Duration::from_secs(5);
/// First wait before something is tried again; it doubles.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Longest wait.
const MAX_RETRY: Duration = Duration::from_secs(5);
/// How often it is looked what is left of a guest that runs under the Lease: when the promise is over in between, enough time is left
/// to end it ([`crate::fence`]).
const BOUND_RETRY: Duration = Duration::from_secs(1);
/// How often a guest's agent is asked.
const AGENT_PERIOD: Duration = Duration::from_secs(120);
/// How soon it is asked again where it has credentials: who changes their Secret waits for no more than that.
const CREDENTIALS_PERIOD: Duration = Duration::from_secs(15);
/// How soon it is asked again when it gave no answer, or did not take its credentials.
const AGENT_RETRY: Duration = Duration::from_secs(10);
/// A launcher that was not reached so often in a row has no monitor.
const UNREACHED: u32 = 6;

/// What is known of one instance's guest.
#[derive(Default)]
pub(super) struct Guest {
    /// What is to be kept on the node.
    pub record: Record,
    /// What is kept.
    pub saved: Option<Record>,
    /// An operation is in flight.
    pub busy: bool,
    /// The launcher's states are followed.
    pub watching: bool,
    /// How often in a row they could not be.
    pub unreached: u32,
    /// The guest's last known state.
    pub domain: Option<Domain>,
    /// What was made ready.
    pub prepared: Option<Prepared>,
    /// Its launcher does not understand what it is to run.
    pub not_understood: bool,
    /// What does not work.
    pub trouble: Option<String>,
    /// How often in a row something failed.
    pub failures: u32,
    /// Not to be tried before.
    pub retry_at: Option<Time>,
    /// A timer is set for this time.
    pub wake_at: Option<Time>,
    /// A status write is in flight.
    pub writing: bool,
    /// The last one failed; the next is not sent before.
    pub write_at: Option<Time>,
    /// Revision of the last status write.
    pub barrier: u64,
    /// How often it was written of late.
    pub pace: Pace,
    /// Reasons and messages of the events that went with a status write whose success is not known.
    pub told: Vec<(String, String)>,
    /// What the launcher was last called for, and when.
    pub last_call: Option<(Asked, Time)>,
    /// The shutdown was told as an event.
    pub told_shutdown: bool,
    /// Its end is told by then, also when its pod is still there.
    pub end_told_by: Option<Time>,
    /// It is a fact that no process of the pod is left.
    pub dead: bool,
    /// Its promise lies with its monitor, until then.
    pub armed: Option<Time>,
    /// It is to run under the Lease, so that the watchdog is wanted.
    pub needs_watchdog: bool,
    /// What its agent said, and when to ask again.
    pub agent: AgentState,
}

/// What is known from a guest's agent.
#[derive(Default)]
pub(super) struct AgentState {
    /// What it said last.
    pub report: Option<AgentReport>,
    /// It is being asked.
    pub asking: bool,
    /// What it says has changed since, so that the answer may be from before.
    pub changed: bool,
    /// When it is to be asked again.
    pub due: Option<Time>,
    /// The credentials that are in the guest.
    pub applied: Option<u64>,
}

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Start,
    Shutdown,
    Kill,
}

impl Asked {
    pub fn by(call: &Call) -> Self {
        match call {
            Call::Sync(_) => Self::Start,
            Call::Shutdown => Self::Shutdown,
            Call::Kill => Self::Kill,
        }
    }
}

/// What is seen of an instance.
pub(super) struct Seen<'a> {
    pub vmi: &'a VirtualMachineInstance,
    pub pod: Option<&'a Pod>,
    pub accel: Accel,
    pub now: Time,
    /// The node's Lease, for guests that run under it.
    pub lease: Hold,
}

/// What the node's Lease allows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hold {
    /// Until when guests may run, and the term in which they start.
    pub open: Option<(Time, i64)>,
    /// No guest that is bound to it may be left: the promise is over, or the Lease was marked.
    pub over: bool,
    /// The machine's watchdog guards it, or it is known that none does.
    pub guarded: bool,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    /// Nothing, until something changes or, if given, this time comes.
    Wait(Option<Time>),
    /// The guest is gone, by the kubelet's word.
    Lost,
    /// Follow the launcher's states.
    Watch(Place),
    /// Keep this record.
    Save(Record),
    /// Make ready.
    Prepare(Box<Preparation>),
    /// Call the launcher.
    Call(Place, Call),
    /// Start a new monitor.
    TakeOver(Place),
    /// Tell its monitor until when it may run.
    Arm(Place, Time),
    /// Write onto the instance that it starts in this term.
    Claim(i64),
    /// End it from outside.
    Destroy(Place),
    /// Look whether any process of the pod is left.
    Look(Place),
    /// Ask the guest's agent.
    Ask(Box<AgentQuestion>),
    /// It cannot be done; why.
    Fail(String),
}

impl Guest {
    /// Something failed. It is tried again, later each time.
    pub fn fail(&mut self, now: Time, why: String) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + backoff(self.failures));
        self.trouble = Some(why);
    }

    /// An operation succeeded. What was made ready may still not do: then it is tried again later each time, too.
    pub fn succeeded(&mut self, now: Time, flight: &Flight, reply: Reply) {
        if !matches!(flight, Flight::Prepare(_)) {
            self.failures = 0;
        }
        self.retry_at = None;
        self.trouble = None;
        match (flight, reply) {
            (Flight::Save(record), _) => self.saved = Some(record.clone()),
            (Flight::Drop(_), _) => self.saved = None,
            (Flight::Prepare(_), Reply::Prepared(prepared)) => self.prepared = Some(*prepared),
            (Flight::TakeOver(_), _) => self.unreached = 0,
            (Flight::Call(_), Reply::NotUnderstood) => self.not_understood = true,
            (Flight::Arm(_, until), _) => self.armed = Some(*until),
            (Flight::Destroy(_), Reply::Processes(left)) => {
                self.dead = !left;
                self.retry_at = left.then(|| now + FIRST_RETRY);
            }
            (Flight::Look(_), Reply::Processes(left)) => {
                self.dead = !left;
                self.retry_at = left.then(|| now + if self.record.bound { BOUND_RETRY } else { MAX_RETRY });
            }
            // A launcher's state comes by the watch alone, so that states are seen in their order.
            _ => {}
        }
    }

    /// Somebody has changed what the agent says: it is asked at once, and again if it was being asked.
    pub fn agent_changed(&mut self) {
        self.agent.due = None;
        self.agent.changed = self.agent.asking;
    }

    /// The agent was asked.
    pub fn asked_agent(&mut self, now: Time, outcome: Outcome) {
        self.agent.asking = false;
        match outcome {
            Ok(Reply::Agent(report)) => {
                // Of a guest that is frozen nothing else is said: what was said before stands.
                let report = match self.agent.report.take().filter(|_| report.frozen) {
                    Some(before) => AgentReport { frozen: true, ..before },
                    None => *report,
                };
                let again = match &report.credentials {
                    None => AGENT_PERIOD,
                    Some(Ok(_)) => CREDENTIALS_PERIOD,
                    // Those that did not get into the guest are somebody's only way in.
                    Some(Err(_)) => AGENT_RETRY,
                };
                if let Some(Ok(print)) = report.credentials {
                    self.agent.applied = Some(print);
                }
                self.agent.report = Some(report);
                self.agent.due = Some(now + again);
            }
            Ok(_) => self.agent.due = Some(now + AGENT_PERIOD),
            Err(error) => {
                tracing::debug!(uid = self.record.place.uid, %error, "a guest's agent gave no answer");
                self.agent.due = Some(now + AGENT_RETRY);
            }
        }
        if std::mem::take(&mut self.agent.changed) {
            self.agent.due = None;
        }
    }

    /// The launcher says this.
    pub fn observed(&mut self, domain: Domain) {
        if domain.uid != self.record.place.uid {
            // It may say so at any rate.
            tracing::debug!(uid = self.record.place.uid, "a launcher speaks of another instance");
            self.trouble = Some("its launcher speaks of another instance".to_owned());
            return;
        }
        self.unreached = 0;
        self.trouble = None;
        if !domain.agent_connected {
            self.agent = AgentState { asking: self.agent.asking, ..AgentState::default() };
        }
        // An end is final, whatever a new monitor may make of what is left.
        if self.domain.as_ref().is_none_or(|known| known.phase != Phase::Ended) {
            self.domain = Some(domain);
        }
    }

    /// The launcher's states are followed no more.
    pub fn watch_closed(&mut self, now: Time, why: String) {
        self.watching = false;
        if self.domain.as_ref().is_some_and(|domain| domain.phase == Phase::Ended) {
            return;
        }
        self.unreached = self.unreached.saturating_add(1);
        self.retry_at = Some(now + backoff(self.unreached));
        if self.unreached > UNREACHED {
            self.trouble = Some(why);
        }
    }

    /// Why a guest's launcher ended before the guest began.
    fn never_began(&self, vmi: &VirtualMachineInstance, pod: Option<&Pod>) -> String {
        if self.not_understood {
            return "its launcher is of another version than its node's handler".to_owned();
        }
        let disk = pod.and_then(|pod| spec::ended_before(vmi, pod));
        let why = disk.or_else(|| self.trouble.clone());
        why.unwrap_or_else(|| words::added("its launcher ended before the guest started", pod))
    }

    /// Whether it is a fact that no guest runs.
    pub fn is_over(&self) -> bool {
        self.dead
    }

    /// Whether its launcher said that it has ended, or that is a fact.
    pub fn has_ended(&self) -> bool {
        self.dead || self.domain.as_ref().is_some_and(|domain| domain.phase == Phase::Ended)
    }

    /// Whether there is a guest to talk to.
    pub fn is_up(&self) -> bool {
        self.domain
            .as_ref()
            .is_some_and(|domain| matches!(domain.phase, Phase::Running | Phase::Paused | Phase::Starting))
    }

    /// Whether QEMU ended by itself, and its pod has yet to tell what it said.
    pub fn awaits_words(&self, pod: Option<&Pod>) -> bool {
        let end = self.domain.as_ref().and_then(|domain| domain.end.as_ref());
        end.is_some_and(End::is_qemus_own) && !self.dead && pod.is_some_and(|pod| !spec::launcher_has_ended(pod))
    }

    /// The guest's state for the status: what the launcher said, or, when it is a fact that nothing is left, the end
    /// that follows from how the pod ended. All of it can be seen again by a handler that comes later.
    pub fn outcome(&self, vmi: &VirtualMachineInstance, pod: Option<&Pod>) -> Option<Domain> {
        let known = self.domain.as_ref().filter(|domain| domain.phase == Phase::Ended || !self.dead);
        if let Some(known) = known {
            let mut domain = known.clone();
            if let Some(end) = domain.end.as_mut().filter(|end| end.is_qemus_own()) {
                end.detail = words::added(&end.detail, pod);
            }
            // Who asked for its end had no machine yet to end: only if nobody wants the instance any more is that as it should be.
            if !domain.has_begun() && !vmi.is_deleting() {
                let killed = domain.end.as_mut().filter(|end| end.reason == EndReason::Killed);
                if let Some(end) = killed {
                    *end = End { reason: EndReason::FailedToStart, detail: self.never_began(vmi, pod) };
                }
            }
            return Some(domain);
        }
        if !self.dead {
            return None;
        }
        let mut domain = self.domain.clone().unwrap_or_else(|| Domain::waiting(&self.record.place.uid));
        domain.phase = Phase::Ended;
        if !self.record.started && vmi.phase() != phase::RUNNING {
            let reason = if vmi.is_deleting() { EndReason::Killed } else { EndReason::FailedToStart };
            domain.end = Some(End { reason, detail: self.never_began(vmi, pod) });
            return Some(domain);
        }
        let succeeded = pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Succeeded");
        let reason = if succeeded { EndReason::GuestShutdown } else { EndReason::Crashed };
        domain.end = Some(End { reason, detail: words::added("its container ended", pod) });
        Some(domain)
    }
}

fn backoff(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(MAX_RETRY)
}

/// Decides the next thing to do.
pub(super) fn act(guest: &mut Guest, seen: &Seen<'_>) -> Act {
    // Before anything else, whatever else is the matter: what was promised.
    if guest.record.bound && seen.lease.over && !guest.dead && !guest.record.place.pod_uid.is_empty() {
        return match guest.retry_at.filter(|at| *at > seen.now) {
            Some(at) => Act::Wait(Some(at)),
            None => Act::Destroy(guest.record.place.clone()),
        };
    }
    if guest.has_ended() {
        return Act::Wait(None);
    }
    if let Some(at) = guest.retry_at.filter(|at| *at > seen.now) {
        return Act::Wait(Some(at));
    }
    let Some(pod) = seen.pod else { return vanished(guest, seen) };
    if spec::launcher_has_ended(pod) {
        return Act::Lost;
    }
    // Its kubelet has given it up, such as after a restart, and says nothing of the containers that it had.
    if is_terminal(pod) && spec::status_of(pod, COMPUTE_CONTAINER).is_none() {
        return vanished(guest, seen);
    }
    let Some(place) = spec::place(seen.vmi, pod) else { return Act::Wait(None) };
    if guest.record.place != place {
        // Another container is another launcher; what was said by the one before does not hold.
        guest.record.place = place.clone();
        guest.prepared = None;
        guest.not_understood = false;
    }
    if !guest.watching {
        let started = guest.record.started || seen.vmi.phase() == phase::RUNNING;
        if guest.unreached >= UNREACHED && started {
            return Act::TakeOver(place);
        }
        return Act::Watch(place);
    }
    let going = seen.vmi.is_deleting() || pod.is_deleting();
    match guest.domain.as_ref().map(|domain| domain.phase) {
        None | Some(Phase::Starting | Phase::Ended) => Act::Wait(None),
        // What a launcher does not understand once it never will: whoever made the instance makes another.
        Some(Phase::Waiting) if going || guest.not_understood => repeat(guest, seen.now, &place, Call::Kill),
        Some(Phase::Waiting) => start(guest, seen, pod, place),
        Some(Phase::Running | Phase::Paused) if going => shut_down(guest, seen, &place),
        Some(Phase::Running) => ask_agent(guest, seen, place),
        Some(Phase::Paused) => Act::Wait(None),
    }
}

/// Asks the agent when it is time to, if there is one.
fn ask_agent(guest: &Guest, seen: &Seen<'_>, place: Place) -> Act {
    if guest.agent.asking || !guest.domain.as_ref().is_some_and(|domain| domain.agent_connected) {
        return Act::Wait(None);
    }
    match guest.agent.due {
        Some(due) if due > seen.now => Act::Wait(Some(due)),
        _ => {
            let credentials = spec::credentials(&seen.vmi.spec);
            Act::Ask(Box::new(AgentQuestion { place, credentials, applied: guest.agent.applied }))
        }
    }
}

/// The pod is not in the API any more, by an operator's force or a lost node's clean-up, or tells nothing of its
/// containers. Whether its guest still runs is seen here only.
fn vanished(guest: &Guest, seen: &Seen<'_>) -> Act {
    let mut place = guest.record.place.clone();
    if place.pod_uid.is_empty() {
        // Known from before this handler's time. Where no pod is named any more, its processes are looked for, too.
        let active = seen.vmi.status.as_ref().and_then(|status| status.active_pods.keys().next());
        let pod_uid = seen.pod.map(Object::uid).or(active.map(String::as_str)).unwrap_or_default().to_owned();
        place = Place { uid: seen.vmi.uid().to_owned(), pod_uid, compute_id: String::new() };
    }
    Act::Look(place)
}

fn start(guest: &mut Guest, seen: &Seen<'_>, pod: &Pod, place: Place) -> Act {
    let Some(prepared) = &guest.prepared else {
        return match spec::preparation(seen.vmi, pod, &place) {
            Ok(preparation) => Act::Prepare(Box::new(preparation)),
            Err(Unready::Yet(why)) => Act::Fail(why),
            // Containers of launchers are not started again: it would be tried for ever. Whoever made the instance makes another.
            Err(Unready::Ended(why)) => {
                guest.trouble = Some(why);
                repeat(guest, seen.now, &place, Call::Kill)
            }
        };
    };
    if fence::is_bound(seen.vmi) {
        // Nothing starts without a promise, nor before the instance says in which term: a write that fails it for
        // that term's end then finds it changed.
        guest.needs_watchdog = true;
        let Some((until, term)) = seen.lease.open.filter(|_| seen.lease.guarded) else { return Act::Wait(None) };
        if fence::token(seen.vmi) != Some(term) {
            let must_wait = guest.writing || guest.write_at.is_some_and(|at| at > seen.now);
            return if must_wait { Act::Wait(None) } else { Act::Claim(term) };
        }
        guest.record.bound = true;
        if guest.saved.as_ref().is_some_and(|saved| saved.bound) && guest.armed.is_none_or(|armed| armed < until) {
            return Act::Arm(place, until);
        }
    }
    // The first sight of the instance counts: what is seen later may be younger than a run elsewhere.
    if guest.record.epoch == 0 {
        guest.record.epoch = seen.vmi.revision();
    }
    let mut machine = match spec::machine(seen.vmi, pod, prepared, spec::accel(pod, seen.accel), seen.now) {
        Ok(machine) => machine,
        Err(why) => {
            // What it lacks, such as a key of a Secret, may be there when it is looked at once more.
            guest.prepared = None;
            return Act::Fail(why);
        }
    };
    let node = seen.vmi.status.as_ref().map_or_else(String::new, |status| status.node_name.clone());
    machine.run = Some(Run { epoch: guest.record.epoch, node });
    guest.record.started = true;
    if guest.saved.as_ref() != Some(&guest.record) {
        return Act::Save(guest.record.clone());
    }
    repeat(guest, seen.now, &place, Call::Sync(Box::new(machine)))
}

fn shut_down(guest: &mut Guest, seen: &Seen<'_>, place: &Place) -> Act {
    // A handler before this one may have had a clock that was far ahead.
    let is_sound = |since: &i64| Time(*since).since(seen.now) <= PRESS_PERIOD;
    let since = guest.record.shutdown_since_ns.filter(is_sound).unwrap_or(seen.now.0);
    guest.record.shutdown_since_ns = Some(since);
    if guest.saved.as_ref() != Some(&guest.record) {
        return Act::Save(guest.record.clone());
    }
    // A guest without a power button would be waited for in vain. (Upstream: `isACPIEnabled` in pkg/virt-handler.)
    let grace_s = match has_acpi(&seen.vmi.spec.domain) {
        true => seen.vmi.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_S),
        false => 0,
    };
    let deadline = Time(since) + Duration::from_secs(u64::try_from(grace_s).unwrap_or(0));
    if seen.now >= deadline {
        return repeat(guest, seen.now, place, Call::Kill);
    }
    match repeat(guest, seen.now, place, Call::Shutdown) {
        Act::Wait(Some(at)) => Act::Wait(Some(at.min(deadline))),
        other => other,
    }
}

/// Calls, unless the same was called for a short time ago.
fn repeat(guest: &Guest, now: Time, place: &Place, call: Call) -> Act {
    match guest.last_call {
        Some((asked, at)) if asked == Asked::by(&call) && now.since(at) < PRESS_PERIOD => {
            Act::Wait(Some(at + PRESS_PERIOD))
        }
        _ => Act::Call(place.clone(), call),
    }
}
