//! A pod's quality-of-service class, which the API server notes in its status.
//!
//! <https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>

use carrack_types::quantity::Quantity;
use serde_json::Value;

use crate::object::Object;

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub(crate) fn class(pod: &Object) -> &'static str {
    let spec = pod.get("spec");
    let containers = ["initContainers", "containers"]
        .into_iter()
        .filter_map(|list| spec.and_then(|spec| spec.get(list)).and_then(Value::as_array))
        .flatten();
    let (mut any, mut guaranteed) = (false, true);
    for container in containers {
        let amount = |list: &str, resource: &str| {
            container
                .get("resources")
                .and_then(|resources| resources.get(list))
                .and_then(|list| list.get(resource))
                .and_then(amount)
                .filter(|amount| !amount.is_zero())
        };
        for resource in COUNTED {
            let limit = amount("limits", resource);
            let request = amount("requests", resource).or(limit);
            any |= request.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
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
    use super::*;
    use serde_json::json;

    #[test]
    fn classes() {
        for (resources, want) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
            (
                json!({"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1024Mi"}}),
                "Guaranteed",
            ),
            (json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1Gi"}}), "Burstable"),
            (json!({"limits": {"nvidia.com/gpu": 1}}), "BestEffort"),
        ] {
            let pod = json!({"spec": {"containers": [{"name": "a", "resources": resources}]}});
            assert_eq!(class(pod.as_object().expect("object")), want, "{resources}");
        }
    }
}
