//! How a machine's instance type is kept with it.

use super::*;

const CLUSTER: &str = "VirtualMachineClusterInstancetype";
const KEPT: &str = "vmsnapshot-content-s-uid-instancetype";

fn sized(vm: Value) -> Value {
    with(
        vm,
        json!({"spec": {"instancetype": {"name": "tiny", "kind": CLUSTER}}, "status": {"instancetypeRef":
            {"name": "tiny", "kind": CLUSTER, "controllerRevisionRef": {"name": "vm-tiny"}}}}),
    )
}

fn revision(name: &str, owner: &str) -> ControllerRevision {
    of(json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "50", "labels": {"a": "b"},
            "ownerReferences": [{"apiVersion": "x/v1", "kind": "X", "name": "o", "uid": owner, "controller": true}]},
        "revision": 0, "data": {"kind": CLUSTER, "metadata": {"name": "tiny"}, "spec": {"cpu": {"guest": 2}}}}))
}

/// The first object that a plan makes.
fn made(plan: &Plan) -> Value {
    let made = plan.writes.iter().find_map(|write| match write {
        Write::Create { object, .. } => Some(object.clone()),
        _ => None,
    });
    made.expect("something is made")
}

#[test]
fn a_content_names_the_revision_that_it_keeps() {
    let mut world = World::new();
    let named = |world: &World| {
        made(&world.snapshot())["spec"]["source"]["virtualMachine"]["spec"]["instancetype"]["revisionName"].clone()
    };
    world.vm = Some(sized(locked()));
    assert_eq!(named(&world), KEPT);
    // Another one by now, which the machine has never had: it is looked up when it is restored.
    world.vm = Some(with(sized(locked()), json!({"spec": {"instancetype": {"name": "other"}}})));
    assert_eq!(named(&world), json!(null));
    // One that runs has what it was started with.
    let started = with(locked(), json!({"spec": {"instancetype": {"name": "tiny", "kind": CLUSTER}}}))["spec"].clone();
    let from =
        json!({"kubevirt.io/started-from": started.to_string(), "kubevirt.io/instancetype-revision-name": "vm-tiny"});
    world.vmi =
        Some(with(vmi(&[]), json!({"metadata": {"annotations": from}, "status": {"virtualMachineRevisionName": ""}})));
    assert_eq!(named(&world), KEPT);
    let named = made(&world.snapshot())["spec"]["source"].clone();
    world.content = Some(with(content(json!(null)), json!({"spec": {"source": named}})));
    let key = Key::new("ns", "vmsnapshot-content-s-uid");
    let caches = world.caches().with([revision("vm-tiny", "vm-uid")]);
    let keeps = ContentController::default().reconcile(&key, &caches.view(), NOW);
    check(&keeps, &[&format!("create controllerrevisions/{KEPT}")], "it is the running one's");
}

#[test]
fn what_a_machine_is_sized_by_is_kept_before_anything_is_taken() {
    let mut world = World::new();
    world.vm = Some(sized(locked()));
    let named = json!({"instancetype": {"name": "tiny", "kind": CLUSTER, "revisionName": KEPT}});
    world.content = Some(with(content(json!(null)), json!({"spec": {"source": {"virtualMachine": {"spec": named}}}})));
    let plan = |revisions: Vec<ControllerRevision>| {
        let key = Key::new("ns", "vmsnapshot-content-s-uid");
        ContentController::default().reconcile(&key, &world.caches().with(revisions).view(), NOW)
    };
    let keeps = plan(vec![revision("vm-tiny", "vm-uid")]);
    check(&keeps, &[&format!("create controllerrevisions/{KEPT}")], "it is kept first");
    let kept = made(&keeps);
    assert_eq!(kept["metadata"]["ownerReferences"][0]["uid"], "content-uid");
    assert_eq!((&kept["data"]["spec"]["cpu"]["guest"], &kept["metadata"]["labels"]["a"]), (&json!(2), &json!("b")));
    assert!(keeps.premises.iter().any(|(n, premise)| *n == 0 && premise.resource == "virtualmachinesnapshotcontents"));
    let taken = plan(vec![revision("vm-tiny", "vm-uid"), revision(KEPT, "content-uid")]);
    check(&taken, &[&format!("create {DISK}")], "then the volumes are taken");
    for (revisions, what) in [(vec![], "lost"), (vec![revision(KEPT, "x")], "somebody else's")] {
        let said = words(&plan(revisions));
        assert!(
            said.len() == 1 && said[0].contains("error") && said[0].contains("readyToUse=false"),
            "{what}: {said:?}"
        );
    }
}
