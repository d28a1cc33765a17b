//! Of pods and nodes, what the extender looks at. It hears of all of a cluster's, and most have nothing to do with GPUs.

use k8s_openapi::api::core::v1::{Container, Node, NodeStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Names;

/// Leaves what names an object, and tells one form of it from another, and annotations of ours.
fn meta(meta: &mut ObjectMeta, names: &Names) {
    let mut annotations = meta.annotations.take().unwrap_or_default();
    annotations.retain(|key, _| names.is_ours(key));
    *meta = ObjectMeta {
        name: meta.name.take(),
        namespace: meta.namespace.take(),
        uid: meta.uid.take(),
        resource_version: meta.resource_version.take(),
        creation_timestamp: meta.creation_timestamp.take(),
        deletion_timestamp: meta.deletion_timestamp.take(),
        annotations: Some(annotations).filter(|own| !own.is_empty()),
        ..ObjectMeta::default()
    };
}

fn containers(list: Vec<Container>) -> Vec<Container> {
    let asking = |of: Container| Container {
        name: of.name,
        resources: of.resources,
        restart_policy: of.restart_policy,
        ..Container::default()
    };
    list.into_iter().map(asking).collect()
}

/// Leaves of a pod what it asks for, where it is, and whether it has a node or has ended.
pub(crate) fn pod(pod: &mut Pod, names: &Names) {
    meta(&mut pod.metadata, names);
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(PodSpec {
            containers: containers(spec.containers),
            init_containers: spec.init_containers.map(containers),
            node_name: spec.node_name,
            priority: spec.priority,
            ..PodSpec::default()
        });
    }
    if let Some(status) = pod.status.take() {
        let mut conditions = status.conditions.unwrap_or_default();
        conditions.retain(|condition| condition.type_ == "PodScheduled");
        pod.status = Some(PodStatus { phase: status.phase, conditions: Some(conditions), ..PodStatus::default() });
    }
}

/// Leaves of a node what it says of its GPUs.
pub(crate) fn node(node: &mut Node, names: &Names) {
    meta(&mut node.metadata, names);
    node.spec = None;
    if let Some(status) = node.status.take() {
        node.status =
            Some(NodeStatus { allocatable: status.allocatable, capacity: status.capacity, ..NodeStatus::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{annotations, demand, node as of_node};
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
        serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
    }

    #[test]
    fn what_counts_is_left_of_a_pod_and_nothing_else() {
        let names = Names::default();
        let resources = json!({"limits": {"tencent.com/vcuda-core": "100", "memory": "1Gi"}});
        let asks = json!({"name": "c", "resources": resources});
        let left = json!({"metadata": {"namespace": "d", "name": "p", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2025-12-31T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"tencent.com/predicate-node": "n", "tencent.com/predicate-gpu-idx-0": "1"}},
            "spec": {"nodeName": "n", "priority": 5, "containers": [asks],
                "initContainers": [{"name": "i", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}});
        let mut whole = left.clone();
        whole["metadata"]["labels"] = json!({"a": "b"});
        whole["metadata"]["annotations"]["example.com/long"] = "text".into();
        whole["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        whole["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
        whole["status"]["podIP"] = "10.0.0.1".into();
        let ready = json!({"type": "Ready", "status": "True"});
        whole["status"]["conditions"] = json!([ready, left["status"]["conditions"][0]]);
        let before: Pod = read(&whole);
        let mut after = before.clone();
        pod(&mut after, &names);
        assert_eq!(after, read::<Pod>(&left));
        let seen = |pod: &Pod| {
            let demand = demand::of(pod, &names).expect("a demand");
            (annotations::read(&names, pod, "n", &demand), annotations::keys(&names, pod), demand)
        };
        assert_eq!(seen(&after), seen(&before));
    }

    #[test]
    fn a_nodes_gpus_are_left_of_it() {
        let names = Names::default();
        let gpus = json!([{"uuid": "GPU-a", "memory": 4}]).to_string();
        let whole = json!({"metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"tencent.com/gpu-devices": gpus}},
            "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {"allocatable": {"tencent.com/vcuda-core": "100"}, "capacity": {"tencent.com/vcuda-core": "100"},
                "images": [{"names": ["i"], "sizeBytes": 1}]}});
        let before: Node = read(&whole);
        let mut after = before.clone();
        node(&mut after, &names);
        let status = after.status.clone().unwrap_or_default();
        assert!(after.metadata.labels.is_none() && after.spec.is_none() && status.images.is_none());
        assert_eq!(of_node::of(&after, &names), of_node::of(&before, &names));
    }
}
