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
    /// Whose a request is, which is found or is not.
    pub(crate) authentication: Filter,
    /// For whom a request counts.
    pub(crate) impersonation: Filter,
    /// When a request has its seat, or that it needs none.
    pub(crate) flow: Filter,
    /// Whether a request may be made.
    pub(crate) authorization: Filter,
}

/// One of those that look at requests.
pub(crate) struct Filter(Histogram);

impl Filter {
    /// It has looked at a request for so long.
    pub(crate) fn took(&self, elapsed_s: f64) {
        self.0.observe(elapsed_s.max(0.0));
    }
}

impl FilterMetrics {
    pub(super) fn new() -> Self {
        let family: Family<FilterLabels, Histogram, Bounds> = Family::new_with_constructor(Bounds(&SECONDS));
        let [authentication, impersonation, flow, authorization] =
            ["authentication", "impersonation", "priorityandfairness", "authorization"]
                .map(|filter| Filter(family.get_or_create_owned(&FilterLabels { filter })));
        Self { family, authentication, impersonation, flow, authorization }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_request_filter_duration_seconds",
            "For how long requests were looked at before they were answered, by what looked at them, in seconds",
            self.family.clone(),
        );
    }
}
