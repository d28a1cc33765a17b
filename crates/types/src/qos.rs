//! A pod's quality-of-service class: what its node takes from it last when there is too little for all.
//!
//! <https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>; upstream: `pkg/apis/core/helper/qos`, `ComputePodQOS`.

use serde_json::Value;

use crate::quantity::Quantity;

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed`, `Burstable` or `BestEffort`, by a pod's spec. Where the pod itself says what it needs, its containers do not
/// count; one that has resources of its own and neither requests nor limits there says nothing.
#[must_use]
pub fn class(spec: &Value) -> &'static str {
    let lists = |own: &&Value| ["requests", "limits"].iter().any(|list| own.get(list).is_some_and(Value::is_object));
    let own = spec.get("resources").filter(lists);
    let containers =
        ["initContainers", "containers"].into_iter().filter_map(|list| spec.get(list)?.as_array()).flatten();
    let counted: Vec<Option<&Value>> = match own {
        Some(own) => vec![Some(own)],
        None => containers.map(|container| container.get("resources")).collect(),
    };
    let (mut any, mut guaranteed) = (false, true);
    for resources in counted {
        let amount = |list: &str, resource: &str| {
            let amount = resources?.get(list)?.get(resource).and_then(amount);
            amount.filter(|amount| !amount.is_zero())
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
                json!({"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1024Mi"}}),
                json!(null),
                "Guaranteed",
            ),
            (
                json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1Gi"}}),
                json!(null),
                "Burstable",
            ),
            (json!({"limits": {"nvidia.com/gpu": 1}}), json!(null), "BestEffort"),
            (json!({}), full.clone(), "Guaranteed"),
            (full.clone(), json!({"requests": {"cpu": "1"}}), "Burstable"),
            (full, json!({}), "Guaranteed"),
        ] {
            let spec = json!({"resources": own, "containers": [{"name": "a", "resources": resources}]});
            assert_eq!(class(&spec), want, "{resources} {own}");
        }
    }
}
