//! How long requests are looked at before they are answered, by what looks at them. What holds one up for good is not counted.
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/filterlatency`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Bounds;

const SECONDS: [f64; 13] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FilterLabels {
    filter: &'static str,
}

/// Metrics of what looks at requests. Each request is counted by all of them, so nothing is looked up for it.
pub(crate) struct FilterMetrics {
    family: Family<FilterLabels, Histogram, Bounds>,
    authentication: Histogram,
    impersonation: Histogram,
    flow: Histogram,
    authorization: Histogram,
}

impl FilterMetrics {
    pub(super) fn new() -> Self {
        let family: Family<FilterLabels, Histogram, Bounds> = Family::new_with_constructor(Bounds(&SECONDS));
        let [authentication, impersonation, flow, authorization] =
            ["authentication", "impersonation", "priorityandfairness", "authorization"]
                .map(|filter| family.get_or_create_owned(&FilterLabels { filter }));
        Self { family, authentication, impersonation, flow, authorization }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_request_filter_duration_seconds",
            "For how long requests were looked at before they were answered, by what looked at them, in seconds",
            self.family.clone(),
        );
    }

    /// It was looked for whose a request is, which is known or is not.
    pub(crate) fn authenticated(&self, elapsed_s: f64) {
        self.authentication.observe(elapsed_s.max(0.0));
    }

    /// For whom a request counts is known.
    pub(crate) fn impersonated(&self, elapsed_s: f64) {
        self.impersonation.observe(elapsed_s.max(0.0));
    }

    /// A request has its seat, or needs none.
    pub(crate) fn seated(&self, elapsed_s: f64) {
        self.flow.observe(elapsed_s.max(0.0));
    }

    /// A request may be made.
    pub(crate) fn authorized(&self, elapsed_s: f64) {
        self.authorization.observe(elapsed_s.max(0.0));
    }
}
