//! NodeDeclaredFeatureValidator: a pod is resized only in ways that its node declares (`status.declaredFeatures`).
//!
//! Upstream: `k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures`, on since v1.36, and what
//! `k8s.io/component-helpers/nodedeclaredfeatures` sees in a change. It looks at other updates of pods, too, but none of those
//! that are allowed needs anything that a node declares.

use std::collections::BTreeMap;

use carrack_types::declared::{GUARANTEED_CPU_RESIZE, POD_RESOURCES_RESIZE};
use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, at, str_at};
use crate::status::Status;

pub(super) struct NodeDeclaredFeatures;

/// The node of a pod that is resized.
fn node_of<'a>(attributes: &'a Attributes<'_>) -> Option<&'a str> {
    let is_of_pods = attributes.row.group.is_empty() && attributes.row.plural == "pods";
    let is_resize = attributes.operation == Operation::Update && attributes.subresource == "resize";
    let node = str_at(&attributes.object, &["spec", "nodeName"]);
    (is_of_pods && is_resize && !node.is_empty()).then_some(node)
}

/// What a node has to declare where a pod is to become another, by name.
fn features(old: &Object, new: &Object) -> Vec<&'static str> {
    let is_guaranteed = str_at(old, &["status", "qosClass"]) == "Guaranteed";
    let needs = [
        (GUARANTEED_CPU_RESIZE, is_guaranteed && cpus(old).ne(cpus(new))),
        (POD_RESOURCES_RESIZE, of_whole(old) != of_whole(new)),
    ];
    needs.into_iter().filter(|(_, needed)| *needed).map(|(feature, _)| feature).collect()
}

/// The CPU that each container asks for. No resize changes which there are.
fn cpus(pod: &Object) -> impl Iterator<Item = Quantity> {
    let containers = at(pod, &["spec", "containers"]).and_then(Value::as_array);
    containers.into_iter().flatten().map(|container| quantity(&container["resources"]["requests"]["cpu"]))
}

/// The resources of the pod as a whole.
fn of_whole(pod: &Object) -> BTreeMap<(&str, &str), Quantity> {
    let mut all = BTreeMap::new();
    for kind in ["limits", "requests"] {
        let resources = at(pod, &["spec", "resources", kind]).and_then(Value::as_object);
        all.extend(resources.into_iter().flatten().map(|(name, value)| ((kind, name.as_str()), quantity(value))));
    }
    all
}

/// A quantity as it counts, however it is written.
fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|text| Quantity::parse(text).ok()).unwrap_or_default()
}

impl AdmissionPlugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        node_of(attributes).map(|node| Needed::one("", "nodes", "", node)).into_iter().collect()
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let (Some(name), Some(old)) = (node_of(attributes), attributes.old) else { return Ok(()) };
        let mut missing = features(old, &attributes.object);
        if missing.is_empty() {
            return Ok(());
        }
        let Some(node) = lookup.get("", "nodes", "", name) else {
            return Err(attributes.forbidden(&format!("node {name:?} not found")));
        };
        let declared = at(node, &["status", "declaredFeatures"]).and_then(Value::as_array);
        missing.retain(|feature| declared.is_none_or(|all| all.iter().all(|known| known.as_str() != Some(*feature))));
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        let why = format!("pod update requires features {missing} which are not available on node {name:?}");
        Err(attributes.forbidden(&why))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_resize_needs() {
        let pod = |class: &str, cpu: &Value, whole: &Value| -> Object {
            let spec = json!({"containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": cpu}}}],
                "resources": whole});
            serde_json::from_value(json!({"spec": spec, "status": {"qosClass": class}})).expect("an object")
        };
        let check = |class: &str, old: (&Value, &Value), new: (&Value, &Value), want: &[&str]| {
            let (was, becomes) = (pod(class, old.0, old.1), pod(class, new.0, new.1));
            assert_eq!(features(&was, &becomes), want, "{class} {old:?} {new:?}");
        };
        let (one, same_one, two, none) = (json!("1"), json!("1000m"), json!("2"), json!(null));
        let [small, same, large] = ["500m", "0.5", "1"].map(|cpu| json!({"requests": {"cpu": cpu}}));
        let limited = json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "500m"}});
        check("Guaranteed", (&one, &none), (&one, &none), &[]);
        check("Guaranteed", (&one, &none), (&two, &none), &[GUARANTEED_CPU_RESIZE]);
        check("Guaranteed", (&one, &none), (&same_one, &none), &[]);
        check("Burstable", (&one, &none), (&two, &none), &[]);
        check("Burstable", (&one, &small), (&one, &same), &[]);
        check("Burstable", (&one, &small), (&one, &large), &[POD_RESOURCES_RESIZE]);
        check("Burstable", (&one, &small), (&one, &limited), &[POD_RESOURCES_RESIZE]);
        check("Burstable", (&one, &none), (&one, &small), &[POD_RESOURCES_RESIZE]);
        check("Guaranteed", (&one, &small), (&two, &large), &[GUARANTEED_CPU_RESIZE, POD_RESOURCES_RESIZE]);
    }
}
