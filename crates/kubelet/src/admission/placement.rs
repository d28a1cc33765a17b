//! Whether a pod's selector, affinity and tolerations fit a Node.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint};

use crate::spec::pod::spec;

fn requirement(r: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = r.values.as_deref().unwrap_or_default();
    let number = |s: Option<&str>| s.and_then(|s| s.parse::<i64>().ok());
    let bound = number(values.first().map(String::as_str));
    match r.operator.as_str() {
        "In" => value.is_some_and(|v| values.iter().any(|x| x == v)),
        "NotIn" => value.is_none_or(|v| values.iter().all(|x| x != v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => matches!((number(value), bound), (Some(v), Some(b)) if v > b),
        "Lt" => matches!((number(value), bound), (Some(v), Some(b)) if v < b),
        _ => false,
    }
}

fn term(t: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = t.match_expressions.as_deref().unwrap_or_default();
    let fields = t.match_fields.as_deref().unwrap_or_default();
    // An empty term selects nothing.
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|l| l.get(key)).map(String::as_str);
    let name = node.metadata.name.as_deref();
    expressions.iter().all(|r| requirement(r, label(&r.key)))
        && fields.iter().all(|r| r.key == "metadata.name" && requirement(r, name))
}

/// Whether the pod's nodeSelector and required node affinity select this node.
#[must_use]
pub fn matches_node(pod: &Pod, node: &Node) -> bool {
    let s = spec(pod);
    let labels = node.metadata.labels.as_ref();
    let selected = s.node_selector.iter().flatten().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v));
    let affinity = s
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
        .is_none_or(|a| a.node_selector_terms.iter().any(|t| term(t, node)));
    selected && affinity
}

/// The first NoExecute taint of the node that the pod does not tolerate.
#[must_use]
pub fn untolerated_no_execute(pod: &Pod, node: &Node) -> Option<String> {
    let tolerations = spec(pod).tolerations.as_deref().unwrap_or_default();
    let tolerated = |taint: &Taint| {
        tolerations.iter().any(|t| {
            let key = t.key.as_deref().unwrap_or_default();
            let operator = t.operator.as_deref().unwrap_or("Equal");
            t.effect.as_deref().is_none_or(|e| e.is_empty() || e == taint.effect)
                && (key == taint.key || (key.is_empty() && operator == "Exists"))
                && (operator == "Exists"
                    || t.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
        })
    };
    node.spec
        .iter()
        .flat_map(|s| s.taints.iter().flatten())
        .find(|t| t.effect == "NoExecute" && !tolerated(t))
        .map(|t| t.key.clone())
}
