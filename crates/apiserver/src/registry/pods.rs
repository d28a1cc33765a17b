//! What a new pod becomes once everybody has had his say about it (`PrepareForCreate` of upstream's `pkg/registry/core/pod`).

use carrack_types::qos;
use carrack_types::well_known::APPARMOR_PREFIX;
use serde_json::{Map, Value, json};

use crate::object::{Object, at, child_mut, meta, str_at};

/// Completes a pod that was admitted, those of its parts among them that others have added. Gives what its creator is told.
pub(super) fn complete(pod: &mut Object, now: &str) -> Vec<String> {
    let class = qos::class(pod.get("spec").unwrap_or(&Value::Null));
    child_mut(pod, "status").insert("qosClass".to_owned(), class.into());
    wait_at_gates(pod, now);
    select_by_own_labels(pod);
    confine(pod)
}

/// Says of a pod that waits at gates that it does: no scheduler looks at it, who would say so (`applySchedulingGatedCondition`).
fn wait_at_gates(pod: &mut Object, now: &str) {
    const KIND: &str = "PodScheduled";
    let gates = at(pod, &["spec", "schedulingGates"]).and_then(Value::as_array);
    if gates.is_none_or(Vec::is_empty) {
        return;
    }
    let conditions = child_mut(pod, "status").entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    if conditions.iter().all(|condition| condition["type"] != KIND) {
        conditions.push(json!({
            "type": KIND, "status": "False", "reason": "SchedulingGated", "message": "Waits at scheduling gates",
            "lastTransitionTime": now,
        }));
    }
}

/// Writes into the selectors of a pod's terms, of affinity and of spreading, what they say of its own labels by key alone: who
/// reads the selectors later need not know the keys, and the pod's labels may change (`mutatePodAffinity` and
/// `mutateTopologySpreadConstraints`).
fn select_by_own_labels(pod: &mut Object) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let Some(labels) = meta(pod, "labels").and_then(Value::as_object).cloned() else { return };
    let Some(spec) = pod.get_mut("spec") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (list, term) in [(REQUIRED, ""), (PREFERRED, "/podAffinityTerm")] {
            for item in items(spec.pointer_mut(&format!("/affinity/{kind}/{list}"))) {
                select_by(item.pointer_mut(term), &labels);
            }
        }
    }
    for constraint in items(spec.pointer_mut("/topologySpreadConstraints")) {
        select_by(Some(constraint), &labels);
    }
}

/// The items of a list; none where there is none.
fn items(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

/// The same of one term. One without a selector selects nothing, and goes on to do so.
fn select_by(term: Option<&mut Value>, labels: &Map<String, Value>) {
    let Some(term) = term.and_then(Value::as_object_mut) else { return };
    let mut wanted = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let with_value = keys.filter_map(|key| Some((key, labels.get(key)?)));
        wanted.extend(with_value.map(|(key, value)| json!({"key": key, "operator": operator, "values": [value]})));
    }
    let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut) else { return };
    if wanted.is_empty() {
        return;
    }
    let expressions = selector.entry("matchExpressions").or_insert_with(|| json!([]));
    if let Some(expressions) = expressions.as_array_mut() {
        expressions.append(&mut wanted);
    }
}

/// Longest name of a profile, in bytes: a path's (`PATH_MAX`).
const MAX_PROFILE: usize = 4095;

/// Gives containers whose AppArmor profile an annotation names the field that says so, unless they have it or the pod's says the
/// same (`applyAppArmorVersionSkew`).
fn confine(pod: &mut Object) -> Vec<String> {
    let annotations = meta(pod, "annotations").and_then(Value::as_object);
    let annotations = annotations.filter(|all| all.keys().any(|key| key.starts_with(APPARMOR_PREFIX))).cloned();
    let Some(annotations) = annotations.filter(|_| str_at(pod, &["spec", "os", "name"]) != "windows") else {
        return Vec::new();
    };
    let of_pod = at(pod, &["spec", "securityContext", "appArmorProfile"]).cloned();
    let mut warnings = Vec::new();
    let Some(spec) = pod.get_mut("spec") else { return warnings };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec.get_mut(list)).filter_map(Value::as_object_mut) {
            let key = format!("{APPARMOR_PREFIX}{}", str_at(container, &["name"]));
            let Some(said) = annotations.get(&key).and_then(Value::as_str) else { continue };
            if at(container, &["securityContext", "appArmorProfile"]).is_some() {
                continue;
            }
            let profile = profile(said);
            if profile.is_some() && profile == of_pod {
                continue;
            }
            if let Some(profile) = profile {
                child_mut(container, "securityContext").insert("appArmorProfile".to_owned(), profile);
            }
            warnings.push(format!(
                "metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
            ));
        }
    }
    warnings
}

/// The profile that an annotation means, if it means one that there may be.
fn profile(said: &str) -> Option<Value> {
    match said {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let name = said.strip_prefix("localhost/")?;
            let may_be = !name.is_empty() && name.trim() == name && name.len() <= MAX_PROFILE;
            may_be.then(|| json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completes a pod and expects this at a place in it, and so many warnings.
    #[track_caller]
    fn check(metadata: Value, spec: Value, pointer: &str, expected: Value, warnings: usize) {
        let mut pod = Object::from_iter([("metadata".to_owned(), metadata), ("spec".to_owned(), spec)]);
        let told = complete(&mut pod, "now");
        assert_eq!(told.len(), warnings, "{told:?}");
        let pod = Value::Object(pod);
        assert_eq!(pod.pointer(pointer).cloned().unwrap_or_default(), expected, "{pod}");
    }

    #[test]
    fn keys_become_requirements() {
        let labels = json!({"labels": {"app": "x", "hash": "1"}});
        let term = |selector: Value, keys: Value, others: Value| {
            let (same, other) = ("matchLabelKeys", "mismatchLabelKeys");
            json!({"topologyKey": "zone", "labelSelector": selector, same: keys, other: others})
        };
        let is = |key: &str, operator: &str, value: &str| json!({"key": key, "operator": operator, "values": [value]});
        for (given, expected) in [
            (
                term(json!({}), json!(["hash", "none"]), json!(["app"])),
                json!([is("hash", "In", "1"), is("app", "NotIn", "x")]),
            ),
            (
                term(json!({"matchExpressions": [is("a", "In", "b")]}), json!(["hash"]), Value::Null),
                json!([is("a", "In", "b"), is("hash", "In", "1")]),
            ),
            (term(json!({}), json!(["none"]), Value::Null), Value::Null),
            (term(Value::Null, json!(["hash"]), Value::Null), Value::Null),
        ] {
            for kind in ["podAffinity", "podAntiAffinity"] {
                let required = "requiredDuringSchedulingIgnoredDuringExecution";
                let at = format!("/spec/affinity/{kind}/{required}/0/labelSelector/matchExpressions");
                let spec = json!({"affinity": {kind: {required: [given]}}});
                check(labels.clone(), spec, &at, expected.clone(), 0);
                let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
                let at = format!("/spec/affinity/{kind}/{preferred}/0/podAffinityTerm/labelSelector/matchExpressions");
                let spec = json!({"affinity": {kind: {preferred: [{"weight": 1, "podAffinityTerm": given}]}}});
                check(labels.clone(), spec, &at, expected.clone(), 0);
            }
        }
        let spread = json!({"topologySpreadConstraints": [{"labelSelector": {}, "matchLabelKeys": ["hash"]}]});
        let at = "/spec/topologySpreadConstraints/0/labelSelector/matchExpressions";
        check(labels, spread.clone(), at, json!([is("hash", "In", "1")]), 0);
        check(json!({}), spread, at, Value::Null, 0);
    }

    #[test]
    fn annotations_become_profiles() {
        let at = "/spec/containers/0/securityContext/appArmorProfile";
        let long = format!("localhost/{}", "x".repeat(4096));
        let localhost = json!({"type": "Localhost", "localhostProfile": "web"});
        let (none, unconfined, of_runtime) =
            (Value::Null, json!({"type": "Unconfined"}), json!({"type": "RuntimeDefault"}));
        for (said, own, of_pod, expected, warnings) in [
            ("unconfined", &none, &none, &unconfined, 1),
            ("runtime/default", &none, &none, &of_runtime, 1),
            ("localhost/web", &none, &unconfined, &localhost, 1),
            // Who says it in both ways has said it, and so has who says it of the pod.
            ("unconfined", &unconfined, &none, &unconfined, 0),
            ("unconfined", &none, &unconfined, &none, 0),
            // What is no profile is for validation to refuse.
            ("localhost/", &none, &none, &none, 1),
            ("localhost/ web", &none, &none, &none, 1),
            (long.as_str(), &none, &none, &none, 1),
            ("", &none, &none, &none, 1),
        ] {
            let metadata = json!({"annotations": {format!("{APPARMOR_PREFIX}a"): said}});
            let spec = json!({
                "securityContext": {"appArmorProfile": of_pod},
                "containers": [{"name": "a", "securityContext": {"appArmorProfile": own}}, {"name": "b"}],
            });
            check(metadata.clone(), spec.clone(), at, expected.clone(), warnings);
            let windows = json!({"os": {"name": "windows"}, "containers": spec["containers"]});
            check(metadata, windows, at, own.clone(), 0);
        }
        check(json!({}), json!({"containers": [{"name": "a"}]}), "/spec/containers/0", json!({"name": "a"}), 0);
    }

    #[test]
    fn the_class_is_that_of_what_was_admitted() {
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        for (resources, class) in [(json!({}), "BestEffort"), (limits, "Guaranteed")] {
            let spec = json!({"containers": [{"name": "a", "resources": resources}]});
            check(json!({}), spec, "/status/qosClass", class.into(), 0);
        }
    }
}
