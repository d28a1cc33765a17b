//! Conversion between versions of built-in kinds whose forms differ.
//!
//! Only HorizontalPodAutoscaler has two: `autoscaling/v1` knows a CPU target, `autoscaling/v2` any
//! metrics. It is stored as v2, and what v1 has no fields for travels in annotations.

mod autoscaler;

use std::borrow::Cow;

use serde_json::{Map, Value};

pub(crate) use autoscaler::{DEFAULT_CPU_PERCENT, cpu_metric, has_other_metrics};

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
        "v1" => autoscaler::to_v1(map),
        _ => autoscaler::to_v2(map),
    }
}

/// An autoscaler with fields for all that it says: one of v1 as v2 has it.
pub(crate) fn spelled_out(object: &Value) -> Cow<'_, Value> {
    if object.get("apiVersion").is_none_or(|version| version != "autoscaling/v1") {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    convert("autoscaling", "HorizontalPodAutoscaler", "v2", &mut object);
    Cow::Owned(object)
}

/// Restores what an object says in annotations of a field that a write may not touch, `spec` or `status`, as
/// [`convert()`] would take them for that. `old` is the object before; none when it is new.
pub fn keep(group: &str, kind: &str, field: &str, new: &mut Map<String, Value>, old: Option<&Map<String, Value>>) {
    if differs(group, kind) {
        autoscaler::keep(field, new, old);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn autoscalers_keep_their_cpu_target_both_ways() {
        let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
            "status": {"currentReplicas": 1, "currentCPUUtilizationPercentage": 20}});
        let mut object = v1.clone();
        convert("autoscaling", "HorizontalPodAutoscaler", "v2", &mut object);
        assert_eq!(object["apiVersion"], "autoscaling/v2");
        assert_eq!(object["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 50);
        assert_eq!(object["spec"].get("targetCPUUtilizationPercentage"), None);
        convert("autoscaling", "HorizontalPodAutoscaler", "v1", &mut object);
        assert_eq!((&object["spec"], &object["status"]), (&v1["spec"], &v1["status"]));
    }

    #[test]
    fn autoscalers_of_v1_tell_that_there_are_no_replicas() {
        for (status, of_v2, of_v1) in [
            (json!({"currentReplicas": 0}), json!({}), json!({"currentReplicas": 0})),
            (json!({}), json!({}), json!({"currentReplicas": 0})),
            (json!(null), json!(null), json!(null)),
        ] {
            let mut object = json!({"apiVersion": "autoscaling/v1", "status": status});
            for (version, want) in [("v2", of_v2), ("v1", of_v1)] {
                convert("autoscaling", "HorizontalPodAutoscaler", version, &mut object);
                assert_eq!(object["status"], want, "{version} {status}");
            }
        }
    }
}
