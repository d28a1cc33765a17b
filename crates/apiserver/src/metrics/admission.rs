//! How long admission takes, and what it says: each plugin, each half of it, webhooks and policies.
//!
//! A write passes some forty plugins' calls, so what most of them are counted by is looked up once, at the start.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/metrics` and `admission/plugin/cel/metrics`.

use std::sync::OnceLock;

use jiff::{SignedDuration, Timestamp};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Bounds, seconds};
use crate::admission::{Operation, verb};
use crate::env::Env;

const SECONDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const POLICY_SECONDS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];
/// Longer than any code is that means something; upstream has the same bound.
const MAX_CODE: u16 = 600;

/// Which half of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Objects are completed.
    Admit,
    /// Objects are checked.
    Validate,
}

impl Step {
    fn text(self) -> &'static str {
        match self {
            Step::Admit => "admit",
            Step::Validate => "validate",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabels {
    operation: &'static str,
    rejected: bool,
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NamedLabels {
    name: String,
    operation: &'static str,
    rejected: bool,
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    code: u32,
    name: String,
    operation: &'static str,
    rejected: bool,
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RejectionLabels {
    error_type: &'static str,
    name: String,
    operation: &'static str,
    rejection_code: u32,
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OpenLabels {
    name: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PolicyLabels {
    enforcement_action: &'static str,
    error_type: &'static str,
    policy: String,
    policy_binding: String,
}

/// How a webhook's call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// It lets the request through.
    Allowed,
    /// It refuses with this code.
    Denied(u16),
    /// It could not be asked, and goes without.
    Open,
    /// It could not be asked, so that the request is refused with this code.
    Failed(u16),
}

/// One histogram for each operation, of which this is the last.
type Once = [OnceLock<Histogram>; Operation::Connect as usize + 1];
/// How many evaluations of policies, and how long they took.
type Checks = (Family<PolicyLabels, Counter>, Family<PolicyLabels, Histogram, Bounds>);

/// Metrics of admission.
pub(crate) struct AdmissionMetrics {
    plugins: Family<NamedLabels, Histogram, Bounds>,
    /// Of each plugin what it is counted by when it lets a request through, by half and operation, once it has.
    known: Vec<(&'static str, [Once; 2])>,
    steps: Family<StepLabels, Histogram, Bounds>,
    webhooks: Family<NamedLabels, Histogram, Bounds>,
    calls: Family<CallLabels, Counter>,
    rejections: Family<RejectionLabels, Counter>,
    open: Family<OpenLabels, Counter>,
    /// Validating ones, then mutating ones.
    checks: [Checks; 2],
}

impl AdmissionMetrics {
    /// Of these plugins, in their order.
    pub(super) fn new(plugins: impl Iterator<Item = &'static str>) -> Self {
        let policies = || (Family::default(), Family::new_with_constructor(Bounds(&POLICY_SECONDS)));
        Self {
            plugins: Family::new_with_constructor(Bounds(&SECONDS)),
            known: plugins.map(|name| (name, Default::default())).collect(),
            steps: Family::new_with_constructor(Bounds(&SECONDS)),
            webhooks: Family::new_with_constructor(Bounds(&WEBHOOK_SECONDS)),
            calls: Family::default(),
            rejections: Family::default(),
            open: Family::default(),
            checks: [policies(), policies()],
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_admission_controller_admission_duration_seconds",
            "Latency of admission plugins in seconds, by name, operation and type",
            self.plugins.clone(),
        );
        registry.register(
            "apiserver_admission_step_admission_duration_seconds",
            "Latency of the steps of admission in seconds, by operation and type",
            self.steps.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Latency of admission webhooks in seconds, by name, operation and type",
            self.webhooks.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_request",
            "Number of calls of admission webhooks, by name, code, operation and type",
            self.calls.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_fail_open_count",
            "Number of calls of admission webhooks that failed and were gone without",
            self.open.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_rejection_count",
            "Number of requests that admission webhooks refused, or for want of them were refused",
            self.rejections.clone(),
        );
        for (kind, (count, durations)) in ["validating", "mutating"].into_iter().zip(&self.checks) {
            registry.register(
                format!("apiserver_{kind}_admission_policy_check"),
                "Number of evaluations of admission policies, by what came of them",
                count.clone(),
            );
            registry.register(
                format!("apiserver_{kind}_admission_policy_check_duration_seconds"),
                "Latency of admission policies in seconds",
                durations.clone(),
            );
        }
    }

    /// A plugin, the `index`th of all, took so long.
    pub(crate) fn plugin(
        &self,
        index: usize,
        (step, operation): (Step, Operation),
        refuses: bool,
        took: SignedDuration,
    ) {
        let Some((name, known)) = self.known.get(index) else { return };
        let histogram = || {
            let (name, operation) = ((*name).to_owned(), verb(operation));
            let labels = NamedLabels { name, operation, rejected: refuses, r#type: step.text() };
            self.plugins.get_or_create_owned(&labels)
        };
        if refuses {
            histogram().observe(seconds(took));
            return;
        }
        known[step as usize][operation as usize].get_or_init(histogram).observe(seconds(took));
    }

    /// A half of admission, which began then, is over.
    pub(crate) fn step(&self, (step, operation): (Step, Operation), refuses: bool, began: Timestamp, env: &dyn Env) {
        let labels = StepLabels { operation: verb(operation), rejected: refuses, r#type: step.text() };
        self.steps.get_or_create(&labels).observe(seconds(env.now().duration_since(began)));
    }

    /// A webhook has been called.
    pub(crate) fn webhook(
        &self,
        name: &str,
        (step, operation): (Step, Operation),
        called: Called,
        took: SignedDuration,
    ) {
        let r#type = match step {
            Step::Admit => "admit",
            Step::Validate => "validating",
        };
        let (code, rejected) = match called {
            Called::Allowed => (200, false),
            Called::Denied(code) | Called::Failed(code) => (code, true),
            Called::Open => (500, false),
        };
        let (code, name, operation) = (u32::from(code.min(MAX_CODE)), name.to_owned(), verb(operation));
        let labels = NamedLabels { name: name.clone(), operation, rejected, r#type };
        self.webhooks.get_or_create(&labels).observe(seconds(took));
        let labels = CallLabels { code, name: name.clone(), operation, rejected, r#type };
        self.calls.get_or_create(&labels).inc();
        let error_type = match called {
            Called::Allowed => return,
            Called::Open => {
                self.open.get_or_create(&OpenLabels { name, r#type }).inc();
                return;
            }
            Called::Denied(_) => "no_error",
            Called::Failed(_) => "calling_webhook_error",
        };
        self.rejections
            .get_or_create(&RejectionLabels { error_type, name, operation, rejection_code: code, r#type })
            .inc();
    }

    /// A policy has been asked by way of a binding. `error_type` is upstream's word for what went wrong.
    pub(crate) fn policy(
        &self,
        step: Step,
        (policy, binding): (&str, &str),
        (enforcement_action, error_type): (&'static str, &'static str),
        took: SignedDuration,
    ) {
        let labels = PolicyLabels {
            enforcement_action,
            error_type,
            policy: policy.to_owned(),
            policy_binding: binding.to_owned(),
        };
        let (count, durations) = &self.checks[usize::from(step == Step::Admit)];
        count.get_or_create(&labels).inc();
        durations.get_or_create(&labels).observe(seconds(took));
    }
}
