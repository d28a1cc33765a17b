//! A pod's quality-of-service class: what its node takes from it last when there is too little for all.
//!
//! <https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>; upstream: `pkg/apis/core/v1/helper/qos`, `ComputePodQOS`.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use serde_json::Value;

use crate::quantity::Quantity;

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

/// What somebody may name amounts in.
#[derive(Clone, Copy)]
enum List {
    Requests,
    Limits,
}

/// What somebody asks for, as it was read.
trait Asked: Copy {
    /// The amount of a resource; none where it is not named, or is no quantity.
    fn amount(self, list: List, resource: &str) -> Option<Quantity>;
    /// Whether it names something that a pod may have as a whole: CPUs, memory, huge pages.
    fn is_of_pod(self) -> bool;
}

impl Asked for &Value {
    fn amount(self, list: List, resource: &str) -> Option<Quantity> {
        self.get(list.name())?.get(resource).and_then(amount)
    }

    fn is_of_pod(self) -> bool {
        let names = [List::Requests, List::Limits].into_iter().filter_map(|list| self.get(list.name())?.as_object());
        names.flatten().any(|(name, _)| may_be_of_pod(name))
    }
}

impl Asked for &ResourceRequirements {
    fn amount(self, list: List, resource: &str) -> Option<Quantity> {
        let list = match list {
            List::Requests => self.requests.as_ref(),
            List::Limits => self.limits.as_ref(),
        };
        Quantity::try_from(list?.get(resource)?).ok()
    }

    fn is_of_pod(self) -> bool {
        self.requests.iter().chain(&self.limits).flatten().any(|(name, _)| may_be_of_pod(name))
    }
}

impl List {
    fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// Whether a pod may have a resource as a whole (upstream's `IsSupportedPodLevelResource`).
#[must_use]
pub fn may_be_of_pod(resource: &str) -> bool {
    COUNTED.contains(&resource) || resource.starts_with("hugepages-")
}

/// The class by what counts: who names nothing of either is `BestEffort`, and `Guaranteed` where each has a limit of both that
/// is what it requests. A request of nothing is one, and less than any limit.
fn decide(counted: impl IntoIterator<Item = Option<impl Asked>>) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for asked in counted {
        for resource in COUNTED {
            let amount = |list| asked.and_then(|asked| asked.amount(list, resource));
            let limit = amount(List::Limits).unwrap_or_default();
            let request = amount(List::Requests).unwrap_or(limit);
            any |= !limit.is_zero() || !request.is_zero();
            guaranteed &= !limit.is_zero() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, by a pod's spec. Where the pod itself says what it needs, its containers do not
/// count.
#[must_use]
pub fn class(spec: &Value) -> &'static str {
    if let Some(own) = spec.get("resources").filter(|own| own.is_of_pod()) {
        return decide([Some(own)]);
    }
    let containers =
        ["initContainers", "containers"].into_iter().filter_map(|list| spec.get(list)?.as_array()).flatten();
    decide(containers.map(|container| container.get("resources")))
}

/// The same, of a spec that was decoded.
#[must_use]
pub fn class_of(spec: &PodSpec) -> &'static str {
    if let Some(own) = own(spec) {
        return decide([Some(own)]);
    }
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    decide(containers.map(|container| container.resources.as_ref()))
}

/// What a pod itself says that it needs; none where it names nothing there that a pod may have as a whole (upstream's
/// `IsPodLevelResourcesSet`).
#[must_use]
pub fn own(spec: &PodSpec) -> Option<&ResourceRequirements> {
    spec.resources.as_ref().filter(|own| own.is_of_pod())
}

fn amount(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        for (resources, own, want) in [
            (json!({}), json!(null), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), json!(null), "Burstable"),
            (full.clone(), json!(null), "Guaranteed"),
            (
                json!({"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1024Mi"}}),
                json!(null),
                "Guaranteed",
            ),
            (
                json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}),
                json!(null),
                "Burstable",
            ),
            (json!({"limits": {"nvidia.com/gpu": "1"}}), json!(null), "BestEffort"),
            // A request of nothing is not the limit.
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0", "memory": "1Gi"}}),
                json!(null),
                "Burstable",
            ),
            (json!({"requests": {"cpu": "0", "memory": "0"}}), json!(null), "BestEffort"),
            (json!({}), full.clone(), "Guaranteed"),
            (full.clone(), json!({"requests": {"cpu": "1"}}), "Burstable"),
            // One that names nothing does not count, nor what only containers may have.
            (full.clone(), json!({}), "Guaranteed"),
            (full.clone(), json!({"requests": {}}), "Guaranteed"),
            (full.clone(), json!({"limits": {"example.com/d": "1"}}), "Guaranteed"),
            (full, json!({"limits": {"hugepages-2Mi": "2Mi"}}), "BestEffort"),
        ] {
            let spec = json!({"resources": own, "containers": [{"name": "a", "resources": resources}]});
            assert_eq!(class(&spec), want, "{resources} {own}");
            let decoded: PodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(class_of(&decoded), want, "decoded: {resources} {own}");
        }
        // As it was written, an amount may be a number.
        let numbers = json!({"containers": [{"resources": {"limits": {"cpu": 1, "memory": 1024}}}]});
        assert_eq!(class(&numbers), "Guaranteed");
    }
}
