//! What the cluster's settings make of a launcher pod.

use super::*;

/// The pod of an instance, under these settings.
fn launcher(configuration: &Value, more: Value) -> Value {
    let cluster = read(json!({"metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": configuration}}));
    created(&plan_with(vmi("", more), None, Some(node("true", &[])), Some(cluster))).expect("a pod")
}

#[test]
fn where_launchers_run_and_by_what() {
    let check = |configuration: Value, more: Value, path: &str, wanted: Value| {
        let pod = launcher(&configuration, more);
        assert_eq!(pod.pointer(path).cloned().unwrap_or_default(), wanted, "{configuration}");
    };
    let (label, class) = ("/spec/nodeSelector/zone", "/spec/runtimeClassName");
    let zone = |zone: &str| json!({"developerConfiguration": {"nodeSelectors": {"zone": zone}}});
    let own = json!({"spec": {"nodeSelector": {"zone": "own"}}});
    check(json!({}), json!({}), label, Value::Null);
    check(zone("a"), json!({}), label, json!("a"));
    check(zone("a"), own, label, json!("own"));
    check(zone("a"), json!({}), "/spec/nodeSelector/kubevirt.io~1schedulable", json!("true"));
    check(json!({}), json!({}), class, Value::Null);
    check(json!({"defaultRuntimeClass": ""}), json!({}), class, Value::Null);
    check(json!({"defaultRuntimeClass": "slim"}), json!({}), class, json!("slim"));
    // The node's handler reads it off the pod, and nobody else says it.
    let less = "/metadata/annotations/kubevirt.io~1less-space-percent";
    let theirs = || json!({"metadata": {"annotations": {"kubevirt.io/less-space-percent": "99"}}});
    let tolerant = json!({"developerConfiguration": {"pvcTolerateLessSpaceUpToPercent": 25}});
    check(json!({}), theirs(), less, Value::Null);
    check(tolerant, theirs(), less, json!("25"));
}

#[test]
fn containers_beside_the_launchers_have_what_the_cluster_gives_them() {
    let resources = json!({"requests": {"memory": "2M"}, "limits": {"cpu": "20m", "memory": "0"}});
    let settings = |kind: &str| json!({"supportContainerResources": [{"type": kind, "resources": resources}]});
    let logs = json!({"spec": {"domain": {"devices": {"logSerialConsole": true}}}});
    let check = |kind: &str, name: &str, wanted: Value| {
        let pod = launcher(&settings(kind), logs.clone());
        let containers = pod["spec"]["containers"].as_array().expect("containers");
        let found = containers.iter().find(|container| container["name"] == name).expect(name);
        assert_eq!(found["resources"], wanted, "{kind} {name}");
    };
    let usual = json!({"requests": {"cpu": "1m", "memory": "1M"}, "limits": {"cpu": "10m", "memory": "40M"}});
    let given = json!({"requests": {"cpu": "1m", "memory": "2M"}, "limits": {"cpu": "20m", "memory": "40M"}});
    check("sidecar", "volumeroot", usual);
    check("container-disk", "volumeroot", given);
    let given = json!({"requests": {"cpu": "5m", "memory": "2M"}, "limits": {"cpu": "20m", "memory": "60M"}});
    check("guest-console-log", "guest-console-log", given);
}

#[test]
fn launchers_get_more_memory_where_the_cluster_says_so() {
    let memory = |configuration: Value| {
        let pod = launcher(&configuration, json!({}));
        pod["spec"]["containers"][0]["resources"]["requests"]["memory"].clone()
    };
    let bytes = |memory: Value| carrack_types::kubevirt::Quantity::from(memory.as_str().expect("text")).units();
    let usual = bytes(memory(json!({}))).expect("an amount");
    let doubled = bytes(memory(json!({"additionalGuestMemoryOverheadRatio": "2"}))).expect("an amount");
    assert_eq!(doubled - usual, usual - (128 << 20), "what is beside the guest's own");
}
