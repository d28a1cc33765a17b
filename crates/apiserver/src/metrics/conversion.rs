//! How the webhooks do that convert custom resources between versions.
//!
//! Upstream: `k8s.io/apiextensions-apiserver/pkg/apiserver/conversion/metrics.go`.

use jiff::SignedDuration;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Bounds, DOUBLING_SECONDS, seconds};

const SECONDS: [f64; 15] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabels {
    failure_type: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DefinitionLabels {
    crd_name: String,
    from_version: String,
    succeeded: bool,
    to_version: String,
}

/// Why objects could not be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The webhook was not reached, or had no answer.
    Call,
    /// The answer is none to what was asked, or says no.
    Malformed,
    /// The answer has not as many objects as were sent.
    Partial,
    /// What came back is not the object that was sent.
    Invalid,
}

impl Failure {
    fn text(self) -> &'static str {
        match self {
            Failure::Call => "conversion_webhook_call_failure",
            Failure::Malformed => "conversion_webhook_malformed_response_failure",
            Failure::Partial => "conversion_webhook_partial_response_failure",
            Failure::Invalid => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// Metrics of conversions, for whoever converts.
#[derive(Clone)]
pub(crate) struct ConversionMetrics {
    requests: Family<ResultLabels, Counter>,
    durations: Family<ResultLabels, Histogram, Bounds>,
    definitions: Family<DefinitionLabels, Histogram, Bounds>,
}

impl ConversionMetrics {
    pub(super) fn new() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(Bounds(&SECONDS)),
            definitions: Family::new_with_constructor(Bounds(&DOUBLING_SECONDS)),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_conversion_webhook_request",
            "Number of requests to conversion webhooks, by result and what failed",
            self.requests.clone(),
        );
        registry.register(
            "apiserver_conversion_webhook_duration_seconds",
            "Latency of conversion webhooks in seconds",
            self.durations.clone(),
        );
        registry.register(
            "apiserver_crd_conversion_webhook_duration_seconds",
            "Latency of conversions by webhooks in seconds, by definition and versions",
            self.definitions.clone(),
        );
    }

    /// Objects of a definition have been converted from a version to another, or have not.
    pub(crate) fn converted(
        &self,
        definition: &str,
        (from, to): (&str, &str),
        failure: Option<Failure>,
        took: SignedDuration,
    ) {
        let result = if failure.is_none() { "success" } else { "failure" };
        let labels = ResultLabels { failure_type: failure.map_or("", Failure::text), result };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&labels).observe(seconds(took));
        let labels = DefinitionLabels {
            crd_name: definition.to_owned(),
            from_version: from.to_owned(),
            succeeded: failure.is_none(),
            to_version: to.to_owned(),
        };
        self.definitions.get_or_create(&labels).observe(seconds(took));
    }
}
