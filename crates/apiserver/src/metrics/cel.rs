//! How long the rules of custom resources take: to evaluate them for an object, to compile those of a definition.
//!
//! Upstream: `k8s.io/apiserver/pkg/cel/metrics`.

use carrack_schema::table::{ResourceInfo, SchemaSource, Version};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::seconds;
use crate::catalog::{CRD_GROUP, CRDS};
use crate::env::Env;

/// What Prometheus' clients take where nothing else is said.
const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metrics of rules.
pub(crate) struct CelMetrics {
    compilations: Histogram,
    evaluations: Histogram,
}

impl CelMetrics {
    pub(super) fn new() -> Self {
        Self { compilations: Histogram::new(SECONDS), evaluations: Histogram::new(SECONDS) }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_cel_compilation_duration_seconds",
            "Latency of the validation of definitions, which compiles their rules, in seconds",
            self.compilations.clone(),
        );
        registry.register(
            "apiserver_cel_evaluation_duration_seconds",
            "Latency of the validation of objects that have rules, in seconds",
            self.evaluations.clone(),
        );
    }

    /// Validates an object of this kind, and notes how long that took if there are rules to it.
    pub(crate) fn timed<R>(
        &self,
        row: &ResourceInfo,
        version: &Version,
        env: &dyn Env,
        validate: impl FnOnce() -> R,
    ) -> R {
        let histogram = match &version.schema {
            SchemaSource::Custom(custom) if !custom.rules.is_empty() => &self.evaluations,
            SchemaSource::Builtin(_) if (&*row.group, &*row.plural) == (CRD_GROUP, CRDS) => &self.compilations,
            _ => return validate(),
        };
        let began = env.now();
        let result = validate();
        histogram.observe(seconds(env.now().duration_since(began)));
        result
    }
}
