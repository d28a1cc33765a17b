//! How often pods, and templates of pods, were held against the level of their namespace.
//!
//! Upstream: `k8s.io/pod-security-admission/metrics`. No policy is unreadable here, so that there is nothing to count of such.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::admission::{Attributes, Operation};
use crate::nonresource::MINOR;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EvaluationLabels {
    decision: &'static str,
    policy_level: &'static str,
    policy_version: String,
    mode: &'static str,
    request_operation: &'static str,
    resource: &'static str,
    subresource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    request_operation: &'static str,
    resource: &'static str,
    subresource: String,
}

/// Counts what PodSecurity finds. Clones count together.
#[derive(Clone, Default)]
pub(crate) struct PodSecurityMetrics {
    evaluations: Family<EvaluationLabels, Counter>,
    exemptions: Family<RequestLabels, Counter>,
}

/// What is done, to what.
fn request(attributes: &Attributes<'_>) -> RequestLabels {
    RequestLabels {
        request_operation: match attributes.operation {
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
            Operation::Connect => "connect",
        },
        resource: match (&*attributes.row.group, &*attributes.row.plural) {
            ("", "pods") => "pod",
            _ => "controller",
        },
        subresource: attributes.subresource.to_owned(),
    }
}

/// The release of a policy: a namespace can name any, and those that are not there yet count as one.
fn release(minor: Option<u32>) -> String {
    match minor {
        None => "latest".to_owned(),
        Some(minor) if MINOR.parse::<u32>().is_ok_and(|own| minor <= own) => format!("v1.{minor}"),
        Some(_) => "future".to_owned(),
    }
}

impl PodSecurityMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "pod_security_evaluations",
            "Number of pods and templates that were held against a policy, by what came of it",
            self.evaluations.clone(),
        );
        registry.register(
            "pod_security_exemptions",
            "Number of pods and templates that were not, since somebody or something is exempt",
            self.exemptions.clone(),
        );
    }

    /// A pod or a template was not looked at.
    pub(crate) fn exempted(&self, attributes: &Attributes<'_>) {
        self.exemptions.get_or_create(&request(attributes)).inc();
    }

    /// A pod or a template was held against the policy of a mode, which is a level as it was in some release.
    pub(crate) fn evaluated(
        &self,
        attributes: &Attributes<'_>,
        mode: &'static str,
        (level, minor): (&'static str, Option<u32>),
        is_allowed: bool,
    ) {
        let RequestLabels { request_operation, resource, subresource } = request(attributes);
        let labels = EvaluationLabels {
            decision: if is_allowed { "allow" } else { "deny" },
            policy_level: level,
            policy_version: release(minor),
            mode,
            request_operation,
            resource,
            subresource,
        };
        self.evaluations.get_or_create(&labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn releases_are_few() {
        for (minor, want) in [(None, "latest"), (Some(25), "v1.25"), (Some(36), "v1.36"), (Some(37), "future")] {
            assert_eq!(release(minor), want, "{minor:?}");
        }
    }
}
