//! Conversion between versions of built-in kinds whose forms differ.
//!
//! Only HorizontalPodAutoscaler has two: `autoscaling/v1` knows a CPU target, `autoscaling/v2` any
//! metrics. It is stored as v2. What v1 has no fields for travels in annotations upstream; here v1
//! leaves out what it cannot say, and a write through v1 keeps what was there only if it is CPU.

use serde_json::{Map, Value, json};

/// Whether objects of a kind need [`convert`] between two of its versions; otherwise only
/// `apiVersion` differs.
#[must_use]
pub fn differs(group: &str, kind: &str) -> bool {
    group == "autoscaling" && kind == "HorizontalPodAutoscaler"
}

/// Converts an object of a built-in kind in place and sets its `apiVersion`.
pub fn convert(group: &str, kind: &str, to_version: &str, object: &mut Value) {
    let Value::Object(map) = object else { return };
    let api_version = if group.is_empty() { to_version.to_owned() } else { format!("{group}/{to_version}") };
    let from = map.insert("apiVersion".to_owned(), api_version.clone().into());
    if !differs(group, kind) || from.as_ref().and_then(Value::as_str) == Some(&api_version) {
        return;
    }
    match to_version {
        "v1" => autoscaler_to_v1(map),
        _ => autoscaler_to_v2(map),
    }
}

fn object<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(key).and_then(Value::as_object_mut)
}

/// CPU utilization out of metrics, `key` being what holds the number.
fn take_cpu(map: &mut Map<String, Value>, list: &str, inner: &str) -> Option<Value> {
    let metrics = map.remove(list)?;
    let cpu = metrics.as_array()?.iter().find(|m| m.pointer("/resource/name").is_some_and(|n| n == "cpu"))?.clone();
    cpu.pointer(&format!("/resource/{inner}/averageUtilization")).filter(|v| !v.is_null()).cloned()
}

fn autoscaler_to_v1(map: &mut Map<String, Value>) {
    if let Some(spec) = object(map, "spec") {
        if let Some(target) = take_cpu(spec, "metrics", "target") {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
        spec.remove("behavior");
    }
    if let Some(status) = object(map, "status") {
        if let Some(current) = take_cpu(status, "currentMetrics", "current") {
            status.insert("currentCPUUtilizationPercentage".to_owned(), current);
        }
        status.remove("conditions");
    }
}

fn autoscaler_to_v2(map: &mut Map<String, Value>) {
    if let Some(spec) = object(map, "spec")
        && let Some(target) = spec.remove("targetCPUUtilizationPercentage")
    {
        let target = json!({"type": "Utilization", "averageUtilization": target});
        spec.insert("metrics".to_owned(), json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    }
    if let Some(status) = object(map, "status")
        && let Some(current) = status.remove("currentCPUUtilizationPercentage")
    {
        let current = json!({"averageUtilization": current});
        status.insert(
            "currentMetrics".to_owned(),
            json!([{"type": "Resource", "resource": {"name": "cpu", "current": current}}]),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autoscalers_keep_their_cpu_target_both_ways() {
        let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
            "status": {"currentReplicas": 1, "currentCPUUtilizationPercentage": 20}});
        let mut object = v1.clone();
        convert("autoscaling", "HorizontalPodAutoscaler", "v2", &mut object);
        assert_eq!(object["apiVersion"], "autoscaling/v2");
        assert_eq!(object["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 50);
        assert_eq!(object["spec"].get("targetCPUUtilizationPercentage"), None);
        convert("autoscaling", "HorizontalPodAutoscaler", "v1", &mut object);
        assert_eq!(object, v1);
    }
}
