//! How often somebody acted as somebody else, in which way, and how long it took to say whether he may.
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/filters/impersonation/metrics`.

use std::cell::Cell;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Bounds, DOUBLING_SECONDS, seconds};
use crate::env::Env;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    /// In which way; of an attempt that was refused, in none.
    mode: &'static str,
    decision: &'static str,
}

impl Labels {
    fn new(mode: &'static str, allowed: bool) -> Self {
        Self { mode, decision: if allowed { "allowed" } else { "denied" } }
    }
}

/// Metrics of those who act as others.
pub(crate) struct ImpersonationMetrics {
    attempts: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, Bounds>,
    authorizations: Family<Labels, Counter>,
    authorization_durations: Family<Labels, Histogram, Bounds>,
}

impl ImpersonationMetrics {
    pub(super) fn new() -> Self {
        Self {
            attempts: Family::default(),
            durations: Family::new_with_constructor(Bounds(&DOUBLING_SECONDS)),
            authorizations: Family::default(),
            authorization_durations: Family::new_with_constructor(Bounds(&DOUBLING_SECONDS)),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_impersonation_attempts",
            "Number of requests that were to be made as somebody else, by the way in which they were, and whether they might",
            self.attempts.clone(),
        );
        registry.register(
            "apiserver_impersonation_attempts_duration_seconds",
            "For how long it was looked at whether they may, in seconds",
            self.durations.clone(),
        );
        registry.register(
            "apiserver_impersonation_authorization_attempts",
            "Number of questions that the authorizer was asked for them",
            self.authorizations.clone(),
        );
        registry.register(
            "apiserver_impersonation_authorization_attempts_duration_seconds",
            "Latency of its answers in seconds",
            self.authorization_durations.clone(),
        );
    }

    /// A request that may be to be made as somebody else is looked at from now on.
    pub(crate) fn start<'a>(&'a self, env: &'a dyn Env) -> Attempt<'a> {
        let now = env.now();
        Attempt { metrics: self, env, began: now, since: Cell::new(now) }
    }
}

/// A request that is looked at.
pub(crate) struct Attempt<'a> {
    metrics: &'a ImpersonationMetrics,
    env: &'a dyn Env,
    began: jiff::Timestamp,
    /// When the last question was answered.
    since: Cell<jiff::Timestamp>,
}

impl Attempt<'_> {
    /// The authorizer has said whether it may be so.
    pub(crate) fn checked(&self, mode: &'static str, allowed: bool) {
        let now = self.env.now();
        let took = now.duration_since(self.since.replace(now));
        let labels = Labels::new(mode, allowed);
        self.metrics.authorizations.get_or_create(&labels).inc();
        self.metrics.authorization_durations.get_or_create(&labels).observe(seconds(took));
    }

    /// It was to be made as somebody else, and is so in this way; none where that was refused.
    pub(crate) fn end(&self, mode: Option<&'static str>) {
        let labels = Labels::new(mode.unwrap_or_default(), mode.is_some());
        self.metrics.attempts.get_or_create(&labels).inc();
        let took = self.env.now().duration_since(self.began);
        self.metrics.durations.get_or_create(&labels).observe(seconds(took));
    }
}
