//! How often somebody acted as somebody else, in which way, and how long it took to say whether he may.
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/filters/impersonation/metrics`.

use std::cell::Cell;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Bounds, seconds};
use crate::env::Env;

/// The bounds that Prometheus' libraries have where nobody says.
const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StatusLabels {
    /// In which way, or that it was refused.
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    mode: &'static str,
    decision: &'static str,
}

/// Metrics of those who act as others.
pub(crate) struct ImpersonationMetrics {
    attempts: Family<StatusLabels, Counter>,
    durations: Family<StatusLabels, Histogram, Bounds>,
    authorizations: Family<DecisionLabels, Counter>,
    authorization_durations: Family<DecisionLabels, Histogram, Bounds>,
}

impl ImpersonationMetrics {
    pub(super) fn new() -> Self {
        Self {
            attempts: Family::default(),
            durations: Family::new_with_constructor(Bounds(&SECONDS)),
            authorizations: Family::default(),
            authorization_durations: Family::new_with_constructor(Bounds(&SECONDS)),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_impersonation_attempts",
            "Number of requests that were to be made as somebody else, by the way in which they were, or failed",
            self.attempts.clone(),
        );
        registry.register(
            "apiserver_impersonation_duration_seconds",
            "For how long it was looked at whether they may, in seconds",
            self.durations.clone(),
        );
        registry.register(
            "apiserver_impersonation_authorization_attempts",
            "Number of questions that the authorizer was asked for them",
            self.authorizations.clone(),
        );
        registry.register(
            "apiserver_impersonation_authorization_duration_seconds",
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
        let labels = DecisionLabels { mode, decision: if allowed { "allowed" } else { "denied" } };
        self.metrics.authorizations.get_or_create(&labels).inc();
        self.metrics.authorization_durations.get_or_create(&labels).observe(seconds(took));
    }

    /// It was to be made as somebody else, and is so in this way; none where that was refused.
    pub(crate) fn end(&self, mode: Option<&'static str>) {
        let labels = StatusLabels { status: mode.unwrap_or("failed") };
        self.metrics.attempts.get_or_create(&labels).inc();
        let took = self.env.now().duration_since(self.began);
        self.metrics.durations.get_or_create(&labels).observe(seconds(took));
    }
}
