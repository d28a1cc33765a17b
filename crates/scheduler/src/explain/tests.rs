use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{Cluster, Profile};

/// Asks why a node with these fields refuses a pod with this spec, beside one pod of 600m on host port 80 with the claim `taken`.
fn check(node: Value, spec: Value, reason: &str, change: &str) {
    let mut object = json!({"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": {},
        "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "2"}}});
    for (pointer, value) in node.as_object().into_iter().flatten() {
        *object.pointer_mut(pointer).expect("a field") = value.clone();
    }
    let mut cluster = Cluster::default();
    cluster.set_node(Arc::new(serde_json::from_value(object).expect("a node")));
    let claim = json!({"metadata": {"name": "taken", "namespace": "d", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": "v"}});
    let volume = json!({"metadata": {"name": "v", "labels": {"topology.kubernetes.io/zone": "b"}}, "spec": {}});
    let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    cluster.objects.claims.insert(key("d", "taken"), Arc::new(serde_json::from_value(claim).expect("a claim")));
    cluster.objects.volumes.insert(key("", "v"), Arc::new(serde_json::from_value(volume).expect("a volume")));
    let there = json!({"metadata": {"name": "t", "namespace": "d", "uid": "t", "labels": {"app": "x"}}, "spec": {"nodeName": "n",
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "taken"}}],
        "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}],
            "resources": {"requests": {"cpu": "600m"}}}]}});
    cluster.set_pod(&Arc::new(serde_json::from_value(there).expect("a pod")));
    let asking = json!({"metadata": {"name": "p", "namespace": "d", "uid": "p", "labels": {"app": "x"}}, "spec": spec});
    let info = cluster.read(Arc::new(serde_json::from_value(asking).expect("a pod")));
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
    let explained = explain(&mut Decider::new(cluster), question);
    let [answer] = &explained.nodes[..] else { panic!("one node") };
    assert!(answer.reasons.iter().any(|r| r == reason), "{spec}: {answer:?}");
    assert!(answer.changes.iter().any(|c| c.contains(change)), "{spec}: {answer:?}");
}

/// Each filter says what would have to change.
#[test]
fn every_refusal_has_a_remedy() {
    let plain = || json!({"containers": []});
    let with = |field: &str, value: Value| json!({"containers": [], field: value});
    let asks = |cpu: &str| json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
    check(json!({"/spec": {"unschedulable": true}}), plain(), "node(s) were unschedulable", "kubectl uncordon n");
    let taint = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    let tainted = json!({"/spec": {"taints": taint}});
    check(tainted, plain(), "node(s) had untolerated taint(s)", "tolerate k=v:NoSchedule");
    let selector = with("nodeSelector", json!({"zone": "b"}));
    check(json!({}), selector, "node(s) didn't match Pod's node affinity/selector", "labels of the node");
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    let together = json!({"containers": [{"name": "c", "restartPolicy": "Never", "restartPolicyRules": rules}]});
    let undeclared = "node(s) didn't match Pod's required features";
    check(json!({}), together, undeclared, "a kubelet there that declares RestartAllContainersOnContainerExits");
    check(json!({}), asks("500m"), "Insufficient cpu", "100m more of cpu: 500m asked for, 400m free of 1000m");
    let full = json!({"/status": {"allocatable": {"cpu": "1", "pods": "1"}}});
    check(full, plain(), "Too many pods", "fewer pods: it has 1 and takes 1");
    let port = json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]});
    let taken = "node(s) didn't have free ports for the requested pod ports";
    check(json!({}), port, taken, "d/t gives back its host port");
    let spread = json!([{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2,
        "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let skewed = "node(s) didn't match pod topology spread constraints";
    check(json!({}), with("topologySpreadConstraints", spread), skewed, "larger maxSkew");
    let apart = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}});
    let beside = "node(s) didn't match pod anti-affinity rules";
    check(json!({}), with("affinity", apart), beside, "other pods there");
    let claim = |name: &str| with("volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]));
    check(json!({}), claim("none"), "persistentvolumeclaim \"none\" not found", "a volume that suits the claim");
    let alone = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    check(json!({}), claim("taken"), alone, "the pod that uses the same disk or claim ends");
}
