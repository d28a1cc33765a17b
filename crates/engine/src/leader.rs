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

use crate::{ApiError, ApiRequest, ApiResponse, CallId, Effects, Input, Time, TimerId};

/// How long a lease holds without renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(2);
/// A holder that could not renew for so long stops acting.
pub const RENEW_DEADLINE: Duration = Duration::from_millis(1400);
/// Time between tries.
pub const RETRY_PERIOD: Duration = Duration::from_millis(400);

/// Takes part in an election. A part that a core embeds.
pub struct LeaderElector {
    namespace: String,
    name: String,
    identity: String,
    call: Option<(CallId, Time, bool)>,
    timer: Option<TimerId>,
    /// The Lease as last seen, and when it was first seen so.
    observed: Option<(Lease, Time)>,
    /// This candidate's own Lease as it was written last.
    held: Option<Lease>,
    renewed: Option<Time>,
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
            (Some((_, _, true)), _) => {}
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
        self.write(now, ApiRequest::update(&Lease { spec: Some(spec), ..lease }), fx);
    }
    fn read<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        let id = fx.api(ApiRequest::get(&Lease::resource(), &self.namespace, &self.name));
        self.call = Some((id, now, false));
    }
    /// Takes an input if it is this elector's.
    pub fn step<E, F>(&mut self, now: Time, input: &Input<E>, fx: &mut Effects<F>) -> bool {
        match input {
            Input::Timer(id) if self.timer == Some(*id) => {
                self.timer = None;
                match self.held.take().filter(|_| self.leading(now)) {
                    // The holder renews what it wrote; if somebody took it, that fails, and it looks.
                    Some(lease) => self.write(now, ApiRequest::update(&self.lease(now, Some(&lease))), fx),
                    None => self.read(now, fx),
                }
                true
            }
            Input::Api { id, result } if self.call.is_some_and(|(c, _, _)| c == *id) => {
                let Some((_, sent, writing)) = self.call.take() else { return false };
                if self.stopping {
                    let written = result.as_ref().ok().filter(|_| writing).and_then(|reply| reply.json::<Lease>().ok());
                    if let Some(lease) = written.filter(|lease| self.is_mine(lease)) {
                        self.give_back(now, lease, fx);
                    }
                } else if writing {
                    self.written(now, sent, result, fx);
                } else {
                    self.was_read(now, result, fx);
                }
                true
            }
            _ => false,
        }
    }

    fn write<F>(&mut self, now: Time, request: ApiRequest, fx: &mut Effects<F>) {
        self.call = Some((fx.api(request), now, true));
    }

    fn was_read<F>(&mut self, now: Time, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<F>) {
        match result.as_ref().map_err(Clone::clone).and_then(|r| r.json::<Lease>()) {
            Ok(lease) => {
                if self.observed.as_ref().is_none_or(|(old, _)| old.revision() != lease.revision()) {
                    self.observed = Some((lease.clone(), now));
                }
                let spec = lease.spec.clone().unwrap_or_default();
                let holder = spec.holder_identity.clone().unwrap_or_default();
                let seen = self.observed.as_ref().map_or(now, |(_, at)| *at);
                let held_for = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(15);
                let expired = now.since(seen) >= Duration::from_secs(held_for);
                if holder == self.identity || holder.is_empty() || expired {
                    self.write(now, ApiRequest::update(&self.lease(now, Some(&lease))), fx);
                } else {
                    // The moment at which it would be over is not slept through.
                    let next = (now + RETRY_PERIOD).min(seen + Duration::from_secs(held_for));
                    self.timer = Some(fx.timer(next));
                }
            }
            Err(error) if error.is_not_found() => {
                self.write(now, ApiRequest::create(&self.lease(now, None)), fx);
            }
            Err(error) => {
                tracing::warn!(lease = self.name, %error, "the leader lease could not be read");
                self.again(now, fx);
            }
        }
    }

    fn written<F>(&mut self, now: Time, sent: Time, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<F>) {
        match result {
            Ok(reply) => {
                if !self.leading(now) {
                    tracing::info!(lease = self.name, identity = self.identity, "leading");
                }
                self.held = reply.json().ok();
                // Counted from before the request, so that it is never longer than others believe.
                self.renewed = Some(sent);
            }
            Err(error) if error.is_conflict() || error.is_already_exists() => {
                tracing::debug!(lease = self.name, %error, "another candidate was faster");
            }
            Err(error) => tracing::warn!(lease = self.name, %error, "the leader lease could not be renewed"),
        }
        self.again(now, fx);
    }

    fn is_mine(&self, lease: &Lease) -> bool {
        lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(&self.identity)
    }

    fn again<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        self.timer = Some(fx.timer(now + RETRY_PERIOD));
    }

    fn lease(&self, now: Time, old: Option<&Lease>) -> Lease {
        let spec = old.and_then(|l| l.spec.clone()).unwrap_or_default();
        let mine = old.is_some_and(|lease| self.is_mine(lease));
        Lease {
            metadata: old.map_or_else(
                || ObjectMeta {
                    namespace: Some(self.namespace.clone()),
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                |l| l.metadata.clone(),
            ),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                acquire_time: if mine { spec.acquire_time } else { Some(now.meta_micro()) },
                renew_time: Some(now.meta_micro()),
                lease_transitions: Some(spec.lease_transitions.unwrap_or(0) + i32::from(!mine && old.is_some())),
                ..LeaseSpec::default()
            }),
        }
    }
}
