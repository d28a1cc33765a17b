//! A pod's quality-of-service class, which the API server notes in its status.
//!
//! <https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>

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
                .filter(|amount| *amount > 0)
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

/// A quantity in thousandths, rounded up; none for what is no quantity.
fn amount(value: &Value) -> Option<i128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut nanos: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    nanos = nanos.checked_mul(1_000_000_000)?.checked_add(fraction.parse().ok()?)?;
    let (by, per): (i128, i128) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power: u32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            (10_i128.checked_pow(power)?, 1)
        }
    };
    let thousandths = nanos.checked_mul(by)? / per;
    Some((thousandths + 999_999) / 1_000_000)
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
            (json!({"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1024Mi"}}), "Guaranteed"),
            (json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1Gi"}}), "Burstable"),
            (json!({"limits": {"nvidia.com/gpu": 1}}), "BestEffort"),
        ] {
            let pod = json!({"spec": {"containers": [{"name": "a", "resources": resources}]}});
            assert_eq!(class(pod.as_object().expect("object")), want, "{resources}");
        }
    }

    #[test]
    fn amounts() {
        for (text, want) in [("1", 1000), ("100m", 100), ("0.5", 500), ("1Ki", 1_024_000), ("1e3", 1_000_000), ("1n", 1)] {
            assert_eq!(amount(&json!(text)), Some(want), "{text}");
        }
        assert_eq!(amount(&json!("x")), None);
    }
}
