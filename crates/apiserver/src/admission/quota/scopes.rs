//! Which objects a quota is for.

use std::collections::BTreeSet;

use carrack_types::pod::ResourceList;
use carrack_types::qos;
use serde::Deserialize;
use serde_json::Value;

use crate::object::{Object, at, str_at};

/// One scope, and which objects of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Selector {
    pub scope_name: String,
    pub operator: String,
    pub values: Vec<String>,
}

impl Selector {
    /// Whether an object is among them.
    pub(super) fn holds(&self, plural: &str, object: &Object) -> bool {
        let scope = self.scope_name.as_str();
        let is_listed = |value: &str| self.values.iter().any(|one| one == value);
        let by_value = |value: &str| match self.operator.as_str() {
            "In" => is_listed(value),
            "NotIn" => !is_listed(value),
            "DoesNotExist" => value.is_empty(),
            _ => !value.is_empty(),
        };
        if plural == "persistentvolumeclaims" {
            return scope == "VolumeAttributesClass" && attributes_classes(object).into_iter().any(by_value);
        }
        if plural != "pods" {
            return false;
        }
        match scope {
            "Terminating" => has_deadline(object),
            "NotTerminating" => !has_deadline(object),
            "BestEffort" => class(object) == "BestEffort",
            "NotBestEffort" => class(object) != "BestEffort",
            "PriorityClass" => by_value(str_at(object, &["spec", "priorityClassName"])),
            "CrossNamespacePodAffinity" => crosses_namespaces(object),
            _ => false,
        }
    }
}

/// The scopes of a quota.
pub(super) fn selectors(quota: &Object) -> Vec<Selector> {
    let listed = at(quota, &["spec", "scopes"]).and_then(Value::as_array).into_iter().flatten();
    let whole = listed.filter_map(Value::as_str).map(|scope| Selector {
        scope_name: scope.to_owned(),
        operator: "Exists".to_owned(),
        values: Vec::new(),
    });
    let selected =
        at(quota, &["spec", "scopeSelector", "matchExpressions"]).and_then(Value::as_array).into_iter().flatten();
    let selected = selected.map(|expression| {
        let text = |field: &str| expression[field].as_str().unwrap_or_default().to_owned();
        let values = expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Selector {
            scope_name: text("scopeName"),
            operator: text("operator"),
            values: values.map(str::to_owned).collect(),
        }
    });
    whole.chain(selected).collect()
}

/// Whether a quota is for this object: its scopes all match. Scopes other than that for claims are
/// about pods; a quota that has them is for nothing else.
pub(super) fn matches(quota: &Object, plural: &str, object: &Object) -> bool {
    selectors(quota).iter().all(|selector| selector.holds(plural, object))
}

/// A pod's quality-of-service class.
fn class(pod: &Object) -> &'static str {
    qos::class(pod.get("spec").unwrap_or(&Value::Null))
}

/// The classes of attributes that a claim has, is to have, or is being given (kubernetes
/// pkg/quota/v1/evaluator/core/persistent_volume_claims.go `getReferencedVolumeAttributesClassNames`); one without a name if none.
fn attributes_classes(claim: &Object) -> BTreeSet<&str> {
    let places: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    let mut names: BTreeSet<&str> = places.iter().map(|place| str_at(claim, place)).collect();
    if names.len() > 1 {
        names.remove("");
    }
    names
}

/// What of an object's scopes a change may make another: whether a pod has a deadline, and a claim's classes of attributes.
pub(super) fn may_change<'o>(plural: &str, object: &'o Object) -> BTreeSet<&'o str> {
    match plural {
        "persistentvolumeclaims" => attributes_classes(object),
        "pods" if has_deadline(object) => BTreeSet::from(["Terminating"]),
        _ => BTreeSet::new(),
    }
}

fn has_deadline(pod: &Object) -> bool {
    at(pod, &["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|s| s >= 0)
}

fn crosses_namespaces(pod: &Object) -> bool {
    let foreign = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|list| !list.is_empty()) || !term["namespaceSelector"].is_null()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let terms = |list: &str| {
            at(pod, &["spec", "affinity", kind, list]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice)
        };
        terms("requiredDuringSchedulingIgnoredDuringExecution").iter().any(foreign)
            || terms("preferredDuringSchedulingIgnoredDuringExecution").iter().any(|t| foreign(&t["podAffinityTerm"]))
    })
}

/// The names that a quota limits.
pub(super) fn hard(quota: &Object) -> ResourceList {
    super::usage::amounts(at(quota, &["spec", "hard"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scopes_select() {
        let pod =
            json!({"spec": {"containers": [{"name": "c"}], "priorityClassName": "high", "activeDeadlineSeconds": 5}});
        let select = |name: &str, operator: &str, values: &[&str]| json!({"spec": {"scopeSelector": {"matchExpressions": [{"scopeName": name, "operator": operator, "values": values}]}}});
        for (quota, plural, want) in [
            (json!({"spec": {}}), "pods", true),
            (json!({"spec": {}}), "services", true),
            (json!({"spec": {"scopes": ["BestEffort"]}}), "pods", true),
            (json!({"spec": {"scopes": ["BestEffort"]}}), "services", false),
            (json!({"spec": {"scopes": ["NotBestEffort"]}}), "pods", false),
            (json!({"spec": {"scopes": ["Terminating", "BestEffort"]}}), "pods", true),
            (json!({"spec": {"scopes": ["NotTerminating"]}}), "pods", false),
            (select("PriorityClass", "In", &["high", "low"]), "pods", true),
            (select("PriorityClass", "NotIn", &["high"]), "pods", false),
            (select("PriorityClass", "Exists", &[]), "pods", true),
            (select("CrossNamespacePodAffinity", "Exists", &[]), "pods", false),
        ] {
            let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
            assert_eq!(matches(&object(&quota), plural, &object(&pod)), want, "{quota} {plural}");
        }
    }
}
