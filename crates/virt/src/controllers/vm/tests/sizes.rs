//! Sizes of machines: instance types, and the revisions in which they are kept.

use super::*;

fn sized_machine(status: Value) -> VirtualMachine {
    let mut object = json!(vm(json!({"runStrategy": "Always", "instancetype": {"name": "tiny"}}), status));
    object["spec"]["template"]["spec"]["domain"] = json!({"devices": {}});
    serde_json::from_value(object).expect("a machine")
}

fn tiny(guest: &str) -> VirtualMachineClusterInstancetype {
    carrack_types::json::from_value(
        json!({"metadata": {"name": "tiny", "uid": "t", "generation": 4, "resourceVersion": "1"},
        "spec": {"cpu": {"guest": 2}, "memory": {"guest": guest}}}),
    )
    .expect("an instance type")
}

#[test]
fn a_size_is_kept_as_it_was_when_the_machine_first_used_it() {
    let with = |vm: VirtualMachine, types: Vec<VirtualMachineClusterInstancetype>, kept: Vec<ControllerRevision>| {
        let caches = caches(vm, None).with(types).with(kept);
        VmController::default().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW)
    };
    let first = with(sized_machine(json!({})), vec![tiny("64Mi")], Vec::new());
    let name = "demo-tiny-v1beta1-t-4";
    let Some(Write::Create { object: revision, .. }) = first.writes.first() else { panic!("{first:?}") };
    assert_eq!(revision["metadata"]["name"], name);
    assert_eq!(status_of(&first)["instancetypeRef"]["controllerRevisionRef"]["name"], name);
    assert_eq!(created(&first)["spec"]["domain"]["cpu"]["sockets"], 2);
    assert_eq!(created(&first)["metadata"]["annotations"]["kubevirt.io/cluster-instancetype-name"], "tiny");
    // The instance type is another by now, or gone: the machine's is the one it had.
    let mut revision = revision.clone();
    revision["metadata"]["resourceVersion"] = json!("5");
    let kept: ControllerRevision = carrack_types::json::from_value(revision).expect("a revision");
    let status = json!({"instancetypeRef": status_of(&first)["instancetypeRef"]});
    for types in [vec![tiny("1Gi")], Vec::new()] {
        let later = with(sized_machine(status.clone()), types, vec![kept.clone()]);
        assert_eq!(created(&later)["spec"]["domain"]["memory"]["guest"], "64Mi");
    }
    // One that a machine of this name has left behind serves as well; another by its name does not.
    let mut left = kept.clone();
    left.metadata.owner_references = None;
    for status in [json!({}), status.clone()] {
        let again = with(sized_machine(status), vec![tiny("64Mi")], vec![left.clone()]);
        assert!(!acts(&again).iter().any(|act| act == "create controllerrevisions"), "{again:?}");
        assert_eq!(created(&again)["spec"]["domain"]["memory"]["guest"], "64Mi");
    }
    let later = with(sized_machine(status.clone()), Vec::new(), vec![left.clone()]);
    assert_eq!(created(&later)["spec"]["domain"]["memory"]["guest"], "64Mi");
    let other = with(sized_machine(json!({})), vec![tiny("1Gi")], vec![left]);
    assert_eq!(acts(&other)[0], "create controllerrevisions");
    // Once it runs with it, it is kept until the instance has ended, whatever the machine names by then.
    assert_eq!(created(&first)["metadata"]["annotations"]["kubevirt.io/instancetype-revision-name"], name);
    for (started, dropped) in [(name, false), ("another", true)] {
        let mut other = json!(sized_machine(status.clone()));
        other["spec"]["instancetype"]["name"] = json!("small");
        let small = json!({"metadata": {"name": "small", "uid": "s", "generation": 1, "resourceVersion": "1"},
            "spec": {"cpu": {"guest": 1}, "memory": {"guest": "64Mi"}}});
        let annotations = json!({"metadata": {"annotations": {"kubevirt.io/instancetype-revision-name": started}}});
        let owned = {
            let mut owned = kept.clone();
            owned.metadata.resource_version = Some("6".into());
            owned
        };
        let caches = caches(serde_json::from_value(other).expect("a machine"), Some(vmi("Running", annotations)))
            .with([carrack_types::json::from_value::<VirtualMachineClusterInstancetype>(small).expect("a type")])
            .with([owned]);
        let plan = VmController::default().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW);
        assert_eq!(acts(&plan).iter().any(|act| act == "delete controllerrevisions"), dropped, "{plan:?}");
    }
    // Nothing is known of it: nothing is started, and the status says why.
    let missing = with(sized_machine(json!({})), Vec::new(), Vec::new());
    assert_eq!(acts(&missing), STATUS);
    let failure = status_of(&missing)["conditions"].as_array().cloned().unwrap_or_default();
    assert!(failure.iter().any(|c| c["type"] == "Failure" && c["reason"] == "FailedFindInstancetype"), "{failure:?}");
    assert_eq!(status_of(&missing)["printableStatus"], "Stopped");
}

#[test]
fn a_machine_that_was_restored_has_the_size_that_its_snapshot_kept() {
    let kept = |name: &str, guest: &str| -> ControllerRevision {
        let data = json!({"kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": "tiny", "uid": "t", "generation": 3}, "spec": {"cpu": {"guest": 2}, "memory": {"guest": guest}}});
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "5"},
            "revision": 0, "data": data}),
        )
        .expect("a revision")
    };
    let plan = |status: Value, kept: Vec<ControllerRevision>| {
        let mut vm = json!(sized_machine(status));
        vm["spec"]["instancetype"]["revisionName"] = json!("of-the-snapshot");
        let vm = serde_json::from_value(vm).expect("a machine");
        let caches = caches(vm, None).with([tiny("1Gi")]).with(kept);
        VmController::default().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW)
    };
    let live = json!({"instancetypeRef": {"name": "tiny", "kind": "VirtualMachineClusterInstancetype",
        "controllerRevisionRef": {"name": "demo-tiny-v1beta1-t-4"}}});
    for status in [json!({}), live] {
        let first = plan(status, vec![kept("of-the-snapshot", "64Mi")]);
        assert_eq!(created(&first)["spec"]["domain"]["memory"]["guest"], "64Mi");
        // It keeps it itself from now on.
        let own = "demo-tiny-v1beta1-t-3";
        let Some(Write::Create { object: revision, .. }) = first.writes.first() else { panic!("{first:?}") };
        assert_eq!(revision["metadata"]["name"], own);
        assert_eq!(status_of(&first)["instancetypeRef"]["controllerRevisionRef"]["name"], own);
    }
    // What is there now by that name is something else.
    let missing = plan(json!({}), vec![kept("another", "64Mi")]);
    assert_eq!(created(&missing), Value::Null);
    let failure = status_of(&missing)["conditions"].to_string();
    assert!(failure.contains("controllerrevisions.apps"), "{failure}");
}
