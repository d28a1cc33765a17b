//! The plugins, each with upstream's name, semantics and words.

mod fit;
mod node;
mod ports;

pub use fit::{BalancedAllocation, Fit, LeastAllocated};
pub use node::{NodeAffinity, NodeName, NodeUnschedulable, TaintToleration};
pub use ports::NodePorts;

use crate::Profile;

impl Default for Profile {
    /// The default plugins in upstream's order.
    fn default() -> Self {
        Self {
            filters: vec![
                Box::new(NodeUnschedulable),
                Box::new(NodeName),
                Box::new(TaintToleration),
                Box::new(NodeAffinity),
                Box::new(NodePorts),
                Box::new(Fit),
            ],
            scores: vec![
                Box::new(TaintToleration),
                Box::new(NodeAffinity),
                Box::new(LeastAllocated),
                Box::new(BalancedAllocation),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use crate::{NodeCache, PodInfo, Profile};

    fn pod(spec: &Value) -> PodInfo {
        let uid = spec.to_string();
        PodInfo::new(Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": spec})).expect("a pod"),
        ))
    }

    /// Asks the default filters whether a node with one pod of 600m on host port 80 takes another pod.
    fn check(node: &Value, spec: &Value, expected: &[&str]) {
        let mut cache = NodeCache::default();
        cache.set_node(Arc::new(serde_json::from_value(node.clone()).expect("a node")));
        let there = json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}],
            "resources": {"requests": {"cpu": "600m"}}}]});
        cache.assume(pod(&there), "n");
        let pod = pod(spec);
        let refusal = Profile::default().filters.iter().find_map(|f| f.filter(&pod, cache.node("n")?).err());
        assert_eq!(refusal.map(|r| r.reasons).unwrap_or_default(), expected, "{spec} on {node}");
    }

    #[test]
    fn default_filters() {
        let node = |spec: Value| {
            json!({"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": spec,
                "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "2", "example.com/gpu": "1"}}})
        };
        let asks = |requests: Value| json!({"containers": [{"name": "c", "resources": {"requests": requests}}]});
        let plain = node(json!({}));
        check(&plain, &asks(json!({"cpu": "400m", "memory": "1Gi"})), &[]);
        check(&plain, &asks(json!({"cpu": "401m"})), &["Insufficient cpu"]);
        check(&plain, &asks(json!({"cpu": "2", "memory": "2Gi"})), &["Insufficient cpu", "Insufficient memory"]);
        check(&plain, &asks(json!({"example.com/gpu": "2"})), &["Insufficient example.com/gpu"]);
        check(&plain, &asks(json!({"example.com/unknown": "1"})), &["Insufficient example.com/unknown"]);
        check(
            &plain,
            &json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80, "hostIP": "127.0.0.1"}]}]}),
            &["node(s) didn't have free ports for the requested pod ports"],
        );
        check(
            &plain,
            &json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80, "protocol": "UDP"}]}]}),
            &[],
        );
        check(
            &plain,
            &json!({"containers": [], "nodeSelector": {"zone": "b"}}),
            &["node(s) didn't match Pod's node affinity/selector"],
        );
        check(
            &plain,
            &json!({"containers": [], "nodeName": "other"}),
            &["node(s) didn't match the requested node name"],
        );
        check(&node(json!({"unschedulable": true})), &asks(json!({})), &["node(s) were unschedulable"]);
        check(
            &node(json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]})),
            &asks(json!({})),
            &["node(s) had untolerated taint {k: v}"],
        );
        let mut full = plain;
        full["status"]["allocatable"]["pods"] = "1".into();
        check(&full, &asks(json!({})), &["Too many pods"]);
    }
}
