//! Which of its node's pods a handler goes by.

use super::*;

#[test]
fn a_launcher_that_has_lost_its_labels_is_one_still() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.change(POD, |pod| pod["metadata"]["labels"] = Value::Null);
    // What it does not ask for is not there for it.
    let asks_for = rig.core.pods.selector();
    assert_eq!((asks_for.fields.as_str(), asks_for.labels.as_str()), ("spec.nodeName=n1", ""));
    rig.start(Vec::new());
    rig.boot();
}

#[test]
fn other_pods_of_the_node_are_left_alone_and_not_kept() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.put(
        "/api/v1/namespaces/ns/pods/other",
        json!({
        "metadata": {"name": "other", "namespace": "ns", "uid": "other", "labels": {"app": "web"},
            "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "volumeroot", "command": ["/usr/bin/container-disk"]}]},
        "status": {"phase": "Running"}}),
    );
    rig.start(Vec::new());
    rig.boot();
    rig.pass(Duration::from_secs(5));
    assert!(!rig.ops.iter().any(|out| matches!(out.op, Op::LookForProcesses(_))), "{:?}", rig.ops);
    let kept = |name: &str| rig.core.pods.cache().get("ns", name).expect("there").clone();
    assert!(kept("other").spec.is_none() && kept("other").metadata.labels.is_none());
    assert!(kept("virt-launcher-demo").spec.is_some());
}
