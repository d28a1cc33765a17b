//! Whether a pod accepts a node: node selectors, node affinity, taints and tolerations. Shared by the
//! scheduler and the kubelet's admission.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

/// Whether a toleration covers a taint (k8s.io/component-helpers/scheduling/corev1, `ToleratesTaint`).
#[must_use]
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        // An empty key with Exists covers everything.
        "Exists" => true,
        "Equal" | "" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        // `Lt` and `Gt`, too: upstream compares numbers only behind a gate that is off (`TaintTolerationComparisonOperators`), and
        // refuses pods that ask for it. One that an earlier release has let in tolerates nothing by them.
        _ => false,
    }
}

/// The first taint with one of these effects that the pod does not tolerate.
#[must_use]
pub fn untolerated<'a>(pod: Option<&PodSpec>, node: &'a Node, effects: &[&str]) -> Option<&'a Taint> {
    let tolerations = pod.and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    node.spec
        .as_ref()
        .and_then(|s| s.taints.as_deref())
        .unwrap_or_default()
        .iter()
        .filter(|t| effects.contains(&t.effect.as_str()))
        .find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

fn requirement_holds(r: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = r.values.as_deref().unwrap_or_default();
    match r.operator.as_str() {
        "In" => value.is_some_and(|v| values.iter().any(|x| x == v)),
        "NotIn" => value.is_none_or(|v| !values.iter().any(|x| x == v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" | "Lt" => {
            let have = value.and_then(|v| v.parse::<i64>().ok());
            let want = values.first().and_then(|v| v.parse::<i64>().ok());
            match (have, want) {
                (Some(h), Some(w)) => {
                    if r.operator == "Gt" {
                        h > w
                    } else {
                        h < w
                    }
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// Whether a node matches one term. An empty term matches nothing.
#[must_use]
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let labels = node.metadata.labels.as_ref();
    expressions.iter().all(|r| requirement_holds(r, labels.and_then(|l| l.get(&r.key)).map(String::as_str)))
        && fields.iter().all(|r| r.key == "metadata.name" && requirement_holds(r, node.metadata.name.as_deref()))
}

/// Whether a node matches any term of a selector.
#[must_use]
pub fn selector_matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|t| term_matches(t, node))
}

/// Whether a node matches the pod's node selector and its required node affinity.
#[must_use]
pub fn affinity_matches(pod: Option<&PodSpec>, node: &Node) -> bool {
    let Some(spec) = pod else { return true };
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let selected = spec.node_selector.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|s| selector_matches(s, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn check(pod: serde_json::Value, node: serde_json::Value, accepts: bool, tolerates: bool) {
        let p: Pod = crate::json::from_value(json!({ "spec": pod })).expect("a pod");
        let n: Node = crate::json::from_value(node.clone()).expect("a node");
        assert_eq!(affinity_matches(p.spec.as_ref(), &n), accepts, "{pod} on {node}");
        assert_eq!(
            untolerated(p.spec.as_ref(), &n, &["NoSchedule", "NoExecute"]).is_none(),
            tolerates,
            "{pod} on {node}"
        );
    }

    #[test]
    fn pods_accept_nodes() {
        let node = json!({"metadata": {"name": "n", "labels": {"zone": "a", "rank": "5"}}});
        let affinity = |e: serde_json::Value| {
            json!({"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [e]}}}})
        };
        for (pod, accepts) in [
            (json!({"containers": []}), true),
            (json!({"containers": [], "nodeSelector": {"zone": "a"}}), true),
            (json!({"containers": [], "nodeSelector": {"zone": "b"}}), false),
            (affinity(json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]})), true),
            (affinity(json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]})), false),
            (affinity(json!({"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]})), true),
            (affinity(json!({"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["4"]}]})), true),
            (affinity(json!({"matchExpressions": [{"key": "rank", "operator": "Lt", "values": ["5"]}]})), false),
            (affinity(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})), true),
            (affinity(json!({})), false),
        ] {
            check(pod, node.clone(), accepts, true);
        }
    }

    #[test]
    fn taints_need_tolerations() {
        let node =
            |effect: &str| json!({"metadata": {}, "spec": {"taints": [{"key": "k", "value": "v", "effect": effect}]}});
        for (toleration, effect, tolerated) in [
            (json!(null), "NoSchedule", false),
            (json!(null), "PreferNoSchedule", true),
            (json!({"operator": "Exists"}), "NoExecute", true),
            (json!({"key": "k", "operator": "Exists"}), "NoSchedule", true),
            (json!({"key": "k", "value": "v"}), "NoSchedule", true),
            (json!({"key": "k", "value": "w"}), "NoSchedule", false),
            (json!({"key": "k", "value": "v", "effect": "NoExecute"}), "NoSchedule", false),
            (json!({"key": "other", "operator": "Exists"}), "NoSchedule", false),
            (json!({"key": "k", "operator": "Odd", "value": "v"}), "NoSchedule", false),
        ] {
            let tolerations = if toleration.is_null() { json!([]) } else { json!([toleration]) };
            check(json!({"containers": [], "tolerations": tolerations}), node(effect), true, tolerated);
        }
    }
}
