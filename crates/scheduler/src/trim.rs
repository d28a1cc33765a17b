//! Of nodes and of the owners of pods, what the scheduler looks at. What is left of pods is [`crate::pod`]'s matter.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, ReplicationController, ReplicationControllerSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// What names an object, and tells one form of it from another.
fn names(meta: &mut ObjectMeta) {
    *meta = ObjectMeta {
        name: meta.name.take(),
        namespace: meta.namespace.take(),
        uid: meta.uid.take(),
        resource_version: meta.resource_version.take(),
        ..ObjectMeta::default()
    };
}

/// Leaves out of a node what no plugin looks at, above all what its kubelet reports of itself.
pub fn node(node: &mut Node) {
    let labels = node.metadata.labels.take();
    names(&mut node.metadata);
    node.metadata.labels = labels;
    if let Some(spec) = node.spec.take() {
        node.spec = Some(NodeSpec { taints: spec.taints, unschedulable: spec.unschedulable, ..NodeSpec::default() });
    }
    if let Some(status) = node.status.take() {
        node.status = Some(NodeStatus {
            allocatable: status.allocatable,
            declared_features: status.declared_features,
            images: status.images,
            ..NodeStatus::default()
        });
    }
}

/// Leaves of a replica set what chooses its pods.
pub fn replica_set(set: &mut ReplicaSet) {
    names(&mut set.metadata);
    set.status = None;
    if let Some(spec) = set.spec.take() {
        set.spec = Some(ReplicaSetSpec { selector: spec.selector, ..ReplicaSetSpec::default() });
    }
}

/// The same of a stateful set.
pub fn stateful_set(set: &mut StatefulSet) {
    names(&mut set.metadata);
    set.status = None;
    if let Some(spec) = set.spec.take() {
        set.spec = Some(StatefulSetSpec { selector: spec.selector, ..StatefulSetSpec::default() });
    }
}

/// The same of a replication controller.
pub fn replication_controller(controller: &mut ReplicationController) {
    names(&mut controller.metadata);
    controller.status = None;
    if let Some(spec) = controller.spec.take() {
        controller.spec =
            Some(ReplicationControllerSpec { selector: spec.selector, ..ReplicationControllerSpec::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cluster;
    use crate::cluster::Objects;
    use serde_json::json;
    use std::sync::Arc;

    /// The cluster is the same with less of a node.
    #[test]
    fn nothing_that_counts_is_left_out_of_a_node() {
        let whole: Node = carrack_types::json::from_value(json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "3", "labels": {"zone": "a"}, "annotations": {"x": "y"}},
            "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "4", "pods": "9", "example.com/x": "2"}, "capacity": {"cpu": "5"},
                "declaredFeatures": ["A", "B"],
                "conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "Hostname", "address": "n"}],
                "images": [{"names": ["i:1"], "sizeBytes": 7}], "nodeInfo": {"architecture": "amd64", "bootID": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}}))
        .expect("a node");
        let mut less = whole.clone();
        node(&mut less);
        assert!(less.metadata.annotations.is_none());
        let status = less.status.as_ref().expect("a status");
        assert!(status.node_info.is_none() && status.conditions.is_none() && status.capacity.is_none());
        let (uid, revision) = (&less.metadata.uid, &less.metadata.resource_version);
        assert_eq!((uid, revision), (&whole.metadata.uid, &whole.metadata.resource_version));
        let known = |node: Node| {
            let mut cluster = Cluster::default();
            cluster.topology("zone");
            cluster.set_node(Arc::new(node));
            let node = cluster.named("n").expect("it is there");
            let image = cluster.image(node.images[0]);
            let offers = (node.allocatable.clone(), node.most_pods, node.topology.clone(), image.size);
            let says = (node.taints().to_vec(), node.declared_features().to_vec(), node.is_cordoned());
            assert_eq!(says.1, ["A", "B"]);
            (offers, node.labels().cloned(), says)
        };
        assert_eq!(known(whole), known(less));
    }

    /// Owners choose their pods with less of them as they did.
    #[test]
    fn nothing_that_counts_is_left_out_of_owners() {
        let owner = json!({"metadata": {"name": "o", "namespace": "d", "uid": "o", "labels": {"x": "y"}}, "spec": {"replicas": 3,
            "selector": {"matchLabels": {"a": "b"}}, "serviceName": "s", "template": {"metadata": {"labels": {"a": "b"}}}}});
        let mut plain = owner.clone();
        plain["spec"]["selector"] = json!({"a": "b"});
        let mut objects = Objects::default();
        let key = ("d".to_owned(), "o".to_owned());
        let mut set: ReplicaSet = carrack_types::json::from_value(owner.clone()).expect("a set");
        replica_set(&mut set);
        assert!(set.metadata.labels.is_none() && set.spec.as_ref().is_some_and(|s| s.template.is_none()));
        objects.replica_sets.insert(key.clone(), Arc::new(set));
        let mut set: StatefulSet = carrack_types::json::from_value(owner).expect("a set");
        stateful_set(&mut set);
        objects.stateful_sets.insert(key.clone(), Arc::new(set));
        let mut controller: ReplicationController = carrack_types::json::from_value(plain).expect("a controller");
        replication_controller(&mut controller);
        objects.replication_controllers.insert(key, Arc::new(controller));
        for kind in ["ReplicaSet", "StatefulSet", "ReplicationController"] {
            let pod = json!({"metadata": {"namespace": "d", "name": "p", "labels": {"a": "b"}, "ownerReferences": [
                {"apiVersion": "v1", "kind": kind, "name": "o", "uid": "o", "controller": true}]}});
            let selector = objects.default_selector(&serde_json::from_value(pod).expect("a pod"));
            let chosen = selector.and_then(|selector| selector.match_labels).unwrap_or_default();
            assert_eq!(chosen, [("a".to_owned(), "b".to_owned())].into(), "{kind}");
        }
    }
}
