//! How the checks of `/healthz`, `/livez` and `/readyz` go: `/metrics/slis`.
//!
//! Upstream: `k8s.io/component-base/metrics/prometheus/slis`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::text;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CheckLabels {
    name: &'static str,
    r#type: &'static str,
    status: &'static str,
}

/// How a check goes now: its name, its page, and whether it fails.
pub(crate) type Told = (&'static str, &'static str, bool);

/// Counts checks.
pub(crate) struct HealthMetrics {
    registry: Registry,
    checks: Family<CheckLabels, Counter>,
}

impl HealthMetrics {
    pub(super) fn new() -> Self {
        let checks: Family<CheckLabels, Counter> = Family::default();
        let mut registry = Registry::default();
        registry.register("kubernetes_healthchecks", "Number of checks of health, by how they went", checks.clone());
        Self { registry, checks }
    }

    /// A check was made for a page.
    pub(crate) fn checked(&self, name: &'static str, endpoint: &'static str, fails: bool) {
        let status = if fails { "error" } else { "success" };
        self.checks.get_or_create(&CheckLabels { name, r#type: endpoint, status }).inc();
    }

    /// The page.
    pub(crate) fn text(&self, now: &[Told]) -> String {
        let mut out = text::encoded(&self.registry);
        gauges(&mut out, now);
        out
    }
}

/// How each check goes now.
pub(super) fn gauges(out: &mut String, now: &[Told]) {
    let checks = now.iter().map(|(name, endpoint, fails)| {
        (vec![("name", (*name).to_owned()), ("type", (*endpoint).to_owned())], usize::from(!fails))
    });
    text::family(out, "kubernetes_healthcheck", "gauge", "Whether a check of health succeeds", checks);
}
