//! Leader election by a Lease: at most one of several instances acts.
//!
//! The holder renews; the others watch the clock. Ages are measured on the observer's own clock, from
//! when it saw the Lease change, so that clocks that differ do no harm
//! (client-go/tools/leaderelection does the same).

use std::time::Duration;

use carrack_types::resource::{Kind, Object};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{ApiError, ApiRequest, ApiResponse, CallId, Effects, Input, Time, TimerId};

/// How long a lease holds without renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for so long stops acting.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between tries.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Takes part in an election. A part that a core embeds.
pub struct LeaderElector {
    namespace: String,
    name: String,
    identity: String,
    call: Option<(CallId, Time, bool)>,
    timer: Option<TimerId>,
    /// The Lease as last seen, and when it was first seen so.
    observed: Option<(Lease, Time)>,
    renewed: Option<Time>,
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
            renewed: None,
        }
    }
    /// Whether this candidate may act now.
    #[must_use]
    pub fn leading(&self, now: Time) -> bool {
        self.renewed.is_some_and(|at| now.since(at) < RENEW_DEADLINE)
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
    fn read<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        let id = fx.api(ApiRequest::get(&Lease::resource(), &self.namespace, &self.name));
        self.call = Some((id, now, false));
    }
    /// Takes an input if it is this elector's.
    pub fn step<E, F>(&mut self, now: Time, input: &Input<E>, fx: &mut Effects<F>) -> bool {
        match input {
            Input::Timer(id) if self.timer == Some(*id) => {
                self.timer = None;
                self.read(now, fx);
                true
            }
            Input::Api { id, result } if self.call.is_some_and(|(c, _, _)| c == *id) => {
                let Some((_, sent, writing)) = self.call.take() else { return false };
                if writing {
                    self.written(now, sent, result, fx);
                } else {
                    self.was_read(now, result, fx);
                }
                true
            }
            _ => false,
        }
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
                let held_for = u64::try_from(spec.lease_duration_seconds.unwrap_or(15)).unwrap_or(15);
                let expired = now.since(seen) >= Duration::from_secs(held_for);
                if holder == self.identity || holder.is_empty() || expired {
                    let request = ApiRequest::update(&self.lease(now, Some(&lease)));
                    self.call = Some((fx.api(request), now, true));
                } else {
                    self.again(now, fx);
                }
            }
            Err(error) if error.is_not_found() => {
                let request = ApiRequest::create(&self.lease(now, None));
                self.call = Some((fx.api(request), now, true));
            }
            Err(error) => {
                tracing::warn!(lease = self.name, %error, "the leader lease could not be read");
                self.again(now, fx);
            }
        }
    }

    fn written<F>(&mut self, now: Time, sent: Time, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<F>) {
        match result {
            Ok(_) => {
                if self.renewed.is_none() {
                    tracing::info!(lease = self.name, identity = self.identity, "leading");
                }
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

    fn again<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        self.timer = Some(fx.timer(now + RETRY_PERIOD));
    }

    fn lease(&self, now: Time, old: Option<&Lease>) -> Lease {
        let spec = old.and_then(|l| l.spec.clone()).unwrap_or_default();
        let mine = spec.holder_identity.as_deref() == Some(&self.identity);
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
                lease_duration_seconds: Some(15),
                acquire_time: if mine { spec.acquire_time } else { Some(now.meta_micro()) },
                renew_time: Some(now.meta_micro()),
                lease_transitions: Some(spec.lease_transitions.unwrap_or(0) + i32::from(!mine && old.is_some())),
                ..LeaseSpec::default()
            }),
        }
    }
}
