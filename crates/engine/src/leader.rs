//! Leader election by a Lease: at most one of several instances acts.
//!
//! The holder renews; the others watch the clock. Ages are measured on the observer's own clock, from
//! when it saw the Lease change, so that clocks that differ do no harm
//! (client-go/tools/leaderelection does the same).
//!
//! The times are a tenth of upstream's, so that somebody else acts within three seconds of a leader's death: others see a
//! renewal at most [`RETRY_PERIOD`] after it was made, wait for [`LEASE_DURATION`], and look again at that very moment. Who
//! is told to end gives the Lease back, and the next one has it at its next look. What makes that safe is not the Lease: a leader that was paused may always send one more write than it should. It is that writes
//! carry what they rest on, so that the late one finds it changed. Whoever loses the Lease stops acting, keeps its
//! caches, and goes on if it gets it back.

use std::time::Duration;

use carrack_types::resource::{Kind, Object};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{ApiError, ApiRequest, ApiResponse, CallId, Effects, Input, Premise, StatusError, Time, TimerId};

/// How long a lease holds without renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(2);
/// A holder that could not renew for so long stops acting.
pub const RENEW_DEADLINE: Duration = Duration::from_millis(1400);
/// Time between tries.
pub const RETRY_PERIOD: Duration = Duration::from_millis(400);
/// How long a term lasts at least that was begun because somebody asked for another one.
pub const SHORTEST_TERM: Duration = Duration::from_secs(2);
/// The same at most, when that goes on and something is slow: longer than the slowest webhook may take, which is 30 s.
pub const LONGEST_TERM: Duration = Duration::from_secs(32);

/// What a candidate is about to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// What the Lease says.
    Read,
    /// Whether it leads on, in the same term.
    Renewed,
    /// Whether it leads on, in another term.
    BegunAnew,
    /// Whether it leads.
    Taken,
}

/// The term in which a candidate leads, or led last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// What its writes rest on: that it still leads in this term.
    pub premise: Premise,
    /// Its number among this candidate's own, from 1 on.
    pub number: u64,
    /// The number of the first one since it began to lead; nobody else can have led since then.
    pub since: u64,
    /// The revision with which it began: nothing of an earlier term was written after it.
    pub revision: u64,
}

/// Takes part in an election. A part that a core embeds.
pub struct LeaderElector {
    namespace: String,
    name: String,
    identity: String,
    call: Option<(CallId, Time, Asked)>,
    timer: Option<TimerId>,
    /// The Lease as last seen, and when it was first seen so.
    observed: Option<(Lease, Time)>,
    /// This candidate's own Lease as it was written last.
    held: Option<Lease>,
    renewed: Option<Time>,
    tenure: Option<Tenure>,
    /// Another term is wanted.
    anew: bool,
    /// When the last term was begun that was asked for, and how long it lasts at least.
    lasts: Option<(Time, Duration)>,
    /// The oldest request that waits for its answer, of those that another term would have refused.
    oldest: Option<CallId>,
    /// Its own request that was answered last: what is older has been under way for a while.
    answered: Option<CallId>,
    /// It is to end: it gives back what it holds, and leads no more.
    stopping: bool,
}

impl LeaderElector {
    /// A candidate with this identity for the Lease of this name.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            call: None,
            timer: None,
            observed: None,
            held: None,
            renewed: None,
            tenure: None,
            anew: false,
            lasts: None,
            oldest: None,
            answered: None,
            stopping: false,
        }
    }
    /// Whether this candidate may act now.
    #[must_use]
    pub fn leading(&self, now: Time) -> bool {
        !self.stopping && self.renewed.is_some_and(|at| now.since(at) < RENEW_DEADLINE)
    }
    /// Until when this candidate may act, unless it renews; long ago when it does not lead.
    #[must_use]
    pub fn leads_until(&self) -> Time {
        self.renewed.filter(|_| !self.stopping).map_or(Time::default(), |at| at + RENEW_DEADLINE)
    }
    /// Whether it led and may act no more.
    #[must_use]
    pub fn lost(&self, now: Time) -> bool {
        self.renewed.is_some() && !self.leading(now)
    }
    /// The term in which it leads, or led last. None while it has not led.
    #[must_use]
    pub fn tenure(&self) -> Option<&Tenure> {
        self.tenure.as_ref()
    }
    /// Asks for another term, so that what was sent in this one is refused: nobody knows what becomes of it. The term is over when
    /// [`Self::tenure`] tells another one. That is with the next renewal; but where such terms follow each other, each of them lasts
    /// longer than the one before while something takes its time, so that it is done in one.
    pub fn begin_anew(&mut self) {
        // What was sent before one that is on its way is answered is of an earlier term anyway.
        self.anew |= !matches!(self.call, Some((_, _, Asked::BegunAnew | Asked::Taken)));
    }
    /// The oldest request that rests on the term and has no answer yet; to be told before each step.
    pub fn awaits(&mut self, oldest: Option<CallId>) {
        self.oldest = oldest;
    }
    /// Whether an error says that a write rests on a term of this Lease that is over.
    #[must_use]
    pub fn is_over_by(&self, error: &StatusError) -> bool {
        error.code == 409 && error.details["kind"] == "leases" && error.details["name"] == self.name.as_str()
    }
    /// Begins.
    pub fn start<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        self.read(now, fx);
    }
    /// Leads no more, and gives the Lease back if it holds it, so that nobody has to wait for its end.
    pub fn stop<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        let led = self.leading(now);
        self.stopping = true;
        self.timer = None;
        match (&self.call, self.held.take()) {
            // Whether it holds the Lease, and in which revision, is known when the answer is there.
            (Some((_, _, asked)), _) if *asked != Asked::Read => {}
            (_, Some(lease)) if led => self.give_back(now, lease, fx),
            _ => self.call = None,
        }
    }
    /// Whether nothing of it is under way any more, once it was stopped.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.call.is_none()
    }
    /// As client-go does it: nobody holds it, and it would be over at once.
    fn give_back<F>(&mut self, now: Time, lease: Lease, fx: &mut Effects<F>) {
        tracing::info!(lease = self.name, identity = self.identity, "giving the leader lease back");
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.meta_micro()),
            renew_time: Some(now.meta_micro()),
            lease_transitions: lease.spec.as_ref().and_then(|spec| spec.lease_transitions),
            ..LeaseSpec::default()
        };
        self.write(now, ApiRequest::update(&Lease { spec: Some(spec), ..lease }), Asked::Renewed, fx);
    }
    fn read<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        let id = fx.api(ApiRequest::get(&Lease::resource(), &self.namespace, &self.name));
        self.call = Some((id, now, Asked::Read));
    }
    /// The holder renews what it wrote; if somebody took it, that fails, and it looks.
    fn renew<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        self.timer = None;
        match self.held.take().filter(|_| self.leading(now)) {
            Some(lease) => self.go_on(now, &lease, fx),
            None => self.read(now, fx),
        }
    }
    /// Renews a Lease that nobody else can have held since it was this candidate's.
    fn go_on<F>(&mut self, now: Time, lease: &Lease, fx: &mut Effects<F>) {
        // What was sent just now loses little when it is refused.
        let is_slow = self.oldest.zip(self.answered).is_some_and(|(oldest, answered)| oldest < answered);
        let lasts = self
            .lasts
            .is_some_and(|(begun, least)| now.since(begun) < if is_slow { least } else { least.min(SHORTEST_TERM) });
        let asked = if self.anew && !lasts { Asked::BegunAnew } else { Asked::Renewed };
        self.anew &= asked != Asked::BegunAnew;
        self.write(now, ApiRequest::update(&self.lease(now, Some(lease), asked)), asked, fx);
    }
    /// Begins to lead, if nobody is faster.
    fn take<F>(&mut self, now: Time, old: Option<&Lease>, fx: &mut Effects<F>) {
        let lease = self.lease(now, old, Asked::Taken);
        let request = if old.is_some() { ApiRequest::update(&lease) } else { ApiRequest::create(&lease) };
        self.write(now, request, Asked::Taken, fx);
    }
    /// Takes an input if it is this elector's.
    pub fn step<E, F>(&mut self, now: Time, input: &Input<E>, fx: &mut Effects<F>) -> bool {
        match input {
            Input::Timer(id) if self.timer == Some(*id) => {
                self.renew(now, fx);
                true
            }
            Input::Api { id, result } if self.call.is_some_and(|(c, _, _)| c == *id) => {
                let Some((_, sent, asked)) = self.call.take() else { return false };
                self.answered = Some(*id);
                if self.stopping {
                    let written = result.as_ref().ok().filter(|_| asked != Asked::Read);
                    let written = written.and_then(|reply| reply.object::<Lease>().ok());
                    if let Some(lease) = written.filter(|lease| self.is_mine(lease)) {
                        self.give_back(now, lease, fx);
                    }
                } else if asked == Asked::Read {
                    self.was_read(now, result, fx);
                } else {
                    self.written(now, sent, asked, result, fx);
                }
                true
            }
            _ => false,
        }
    }

    fn write<F>(&mut self, now: Time, request: ApiRequest, asked: Asked, fx: &mut Effects<F>) {
        self.call = Some((fx.api(request), now, asked));
    }

    fn was_read<F>(&mut self, now: Time, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<F>) {
        match result.as_ref().map_err(Clone::clone).and_then(|r| r.object::<Lease>()) {
            Ok(lease) => {
                if self.observed.as_ref().is_none_or(|(old, _)| old.revision() != lease.revision()) {
                    self.observed = Some((lease.clone(), now));
                }
                let spec = lease.spec.clone().unwrap_or_default();
                let holder = spec.holder_identity.clone().unwrap_or_default();
                let seen = self.observed.as_ref().map_or(now, |(_, at)| *at);
                let held_for = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(15);
                let expired = now.since(seen) >= Duration::from_secs(held_for);
                if self.tenure.as_ref().is_some_and(|tenure| tenure.premise == Premise::same_term(&lease)) {
                    // A renewal failed; but each beginning is counted, and nobody has begun since.
                    self.go_on(now, &lease, fx);
                } else if holder == self.identity || holder.is_empty() || expired {
                    self.take(now, Some(&lease), fx);
                } else {
                    // The moment at which it would be over is not slept through.
                    let next = (now + RETRY_PERIOD).min(seen + Duration::from_secs(held_for));
                    self.timer = Some(fx.timer(next));
                }
            }
            Err(error) if error.is_not_found() => self.take(now, None, fx),
            Err(error) => {
                tracing::warn!(lease = self.name, %error, "the leader lease could not be read");
                self.again(now, fx);
            }
        }
    }

    fn written<F>(
        &mut self,
        now: Time,
        sent: Time,
        asked: Asked,
        result: &Result<ApiResponse, ApiError>,
        fx: &mut Effects<F>,
    ) {
        match result.as_ref().map_err(Clone::clone).and_then(|reply| reply.object::<Lease>()) {
            Ok(lease) => {
                if !self.leading(now) {
                    tracing::info!(lease = self.name, identity = self.identity, "leading");
                }
                if asked == Asked::BegunAnew {
                    let goes_on = |(begun, least): (Time, Duration)| sent.since(begun) < least * 2;
                    let before = self.lasts.filter(|lasts| goes_on(*lasts));
                    let least = before.map_or(SHORTEST_TERM, |(_, least)| (least * 2).min(LONGEST_TERM));
                    self.lasts = Some((sent, least));
                }
                self.anew &= asked != Asked::Taken;
                let premise = Premise::same_term(&lease);
                if asked == Asked::Taken || self.tenure.as_ref().is_none_or(|tenure| tenure.premise != premise) {
                    let number = self.tenure.as_ref().map_or(0, |tenure| tenure.number) + 1;
                    let since = self.tenure.as_ref().filter(|_| asked != Asked::Taken).map_or(number, |t| t.since);
                    self.tenure = Some(Tenure { premise, number, since, revision: lease.revision() });
                }
                self.held = Some(lease);
                // Counted from before the request, so that it is never longer than others believe.
                self.renewed = Some(sent);
            }
            Err(error) => {
                // No other term has begun, as far as is known.
                self.anew |= matches!(asked, Asked::BegunAnew | Asked::Taken);
                self.say_why_not(&error);
            }
        }
        self.again(now, fx);
    }

    fn say_why_not(&self, error: &ApiError) {
        match error {
            error if error.is_conflict() || error.is_already_exists() => {
                tracing::debug!(lease = self.name, %error, "another candidate was faster");
            }
            error => tracing::warn!(lease = self.name, %error, "the leader lease could not be renewed"),
        }
    }

    fn is_mine(&self, lease: &Lease) -> bool {
        lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(&self.identity)
    }

    fn again<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        self.timer = Some(fx.timer(now + RETRY_PERIOD));
    }

    /// The Lease as this candidate writes it. Only one that renews it has its term from before.
    fn lease(&self, now: Time, old: Option<&Lease>, asked: Asked) -> Lease {
        let spec = old.and_then(|l| l.spec.clone()).unwrap_or_default();
        let renews = asked == Asked::Renewed;
        let metadata = || ObjectMeta {
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            ..ObjectMeta::default()
        };
        // Nobody compares two terms but for equality, so they may begin again.
        let more = i32::from(!renews && old.is_some());
        let transitions = spec.lease_transitions.unwrap_or(0).checked_add(more).unwrap_or(0);
        Lease {
            metadata: old.map_or_else(metadata, |l| l.metadata.clone()),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                acquire_time: if renews { spec.acquire_time } else { Some(now.meta_micro()) },
                renew_time: Some(now.meta_micro()),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }
}
