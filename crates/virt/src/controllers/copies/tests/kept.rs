//! What a machine keeps beside its volumes goes with its snapshots, and comes with its restores.

use super::*;
use crate::identity::state_claim_name;
use carrack_types::well_known::kubevirt::STARTED_FROM_ANNOTATION;

const VOLUME: &str = "persistent-state-for-vm";
const KEPT: &str = "vmsnapshot-content-s-uid-copy-persistent-state-for-vm";
const RESTORED: &str = "restore-r-uid-persistent-state-for-vm";
const NAMES: &str = "kubevirt.io/persistent-state-claim";

/// The claim of the machine.
fn state(phase: &str) -> Value {
    claim(
        &state_claim_name("vm", "vm-uid"),
        json!({"metadata": {"labels": {"persistent-state-for": "vm"}, "ownerReferences": owner("VirtualMachine", "vm")},
            "status": {"phase": phase}}),
    )
}

/// A machine whose firmware keeps its variables.
fn keeper() -> Value {
    let domain = json!({"firmware": {"bootloader": {"efi": {"persistent": true}}}});
    with(vm(), json!({"spec": {"template": {"spec": {"domain": domain}}}}))
}

/// A content that has it, and nothing else.
fn keeping() -> World {
    let mut world = World::new();
    world.claims = vec![state("Bound")];
    let metadata = world.claims[0]["metadata"].clone();
    world.content["spec"]["volumeBackups"] = json!([{"volumeName": VOLUME, "volumeSnapshotName": KEPT,
        "persistentVolumeClaim": {"metadata": metadata, "spec": {"storageClassName": "plain"}}}]);
    world
}

/// What a plan makes of this kind, as a cache shows it.
fn made(world: &mut World, plan: &Plan) -> Value {
    let object = with(created(plan), json!({"metadata": {"uid": "new-uid", "resourceVersion": "23"}, "status": {}}));
    if object["kind"] == "Pod" || object["spec"].get("containers").is_some() {
        world.pods.push(object.clone());
    } else {
        world.claims.push(object.clone());
    }
    object
}

#[test]
fn it_is_in_a_snapshot_if_there_is_any() {
    let volumes = |claims: Vec<Value>| {
        let mut world = World::new();
        world.claims.extend(claims);
        world.content = json!({"metadata": {"name": "other", "namespace": "ns"}, "spec": {"source": {}}});
        let backups = created(&world.snapshot())["spec"]["volumeBackups"].clone();
        let names = backups.as_array().into_iter().flatten().map(|backup| backup["volumeName"].clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(volumes(vec![]), ["disk"]);
    assert_eq!(volumes(vec![state("Bound")]), ["disk", VOLUME]);
    assert_eq!(volumes(vec![state("Pending")]), ["disk"], "a machine that never ran has kept nothing");
    let another = with(state("Bound"), json!({"metadata": {"ownerReferences": owner("VirtualMachine", "other")}}));
    assert_eq!(volumes(vec![another]), ["disk"], "it is another machine's");
    let mut world = World::new();
    world.vm.as_mut().expect("a machine")["status"] = json!({});
    world.claims.push(with(state("Bound"), json!({"metadata": {"deletionTimestamp": "1970-01-12T13:46:45Z"}})));
    let said = words(&world.snapshot()).join("\n");
    assert!(said.contains("volume is being deleted: persistent-state-for-vm-"), "{said}");
}

/// What a plan says of its snapshot.
fn said_of_snapshot(plan: &Plan) -> Value {
    let said = plan.writes.iter().find_map(|write| match write {
        Write::Patch { resource, patch, .. } if resource.plural == "virtualmachinesnapshots" => Some(patch.clone()),
        _ => None,
    });
    said.unwrap_or_else(|| panic!("nothing is said: {plan:?}"))["status"].clone()
}

#[test]
fn what_was_restored_is_in_a_snapshot_before_its_machine_owns_it() {
    let mark = json!({"restore.kubevirt.io/lastRestoreUID": "b-b-uid"});
    let snapshot_of = |machine: Value, claim: Option<Value>| {
        let mut world = World::new();
        world.content = json!({"metadata": {"name": "other", "namespace": "ns"}, "spec": {"source": {}}});
        let names = with(mark.clone(), json!({NAMES: RESTORED}));
        world.vm = Some(with(machine, json!({"metadata": {"annotations": names}})));
        world.claims.extend(claim);
        world.snapshot()
    };
    let restored = |marks: &Value, phase: &str| {
        claim(RESTORED, json!({"metadata": {"annotations": marks}, "status": {"phase": phase}}))
    };
    let snapshot = |marks: &Value, phase: &str| snapshot_of(keeper(), Some(restored(marks, phase)));
    let names = |plan: &Plan| {
        let backups = created(plan)["spec"]["volumeBackups"].clone();
        backups.as_array().into_iter().flatten().map(|backup| backup["volumeName"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&snapshot(&mark, "Bound")), ["disk", VOLUME]);
    // The machine does not start with what is not its own, or without what it names. So nothing is left out.
    let foreign = "source ns/vm keeps its state on a claim that is not its own";
    let lost = format!("source ns/vm volume doesnt exist: {RESTORED}");
    for (claim, wanted) in [
        (Some(restored(&json!({"restore.kubevirt.io/lastRestoreUID": "c-c-uid"}), "Bound")), foreign),
        (Some(restored(&json!({}), "Bound")), foreign),
        (None, lost.as_str()),
    ] {
        assert_eq!(said_of_snapshot(&snapshot_of(keeper(), claim))["error"]["message"], wanted);
    }
    // A machine that keeps nothing any more needs none of it.
    assert_eq!(names(&snapshot_of(vm(), None)), ["disk"]);
    assert_eq!(names(&snapshot_of(vm(), Some(restored(&json!({}), "Bound")))), ["disk"]);
    // What has no volume yet holds all the same what it is to be made of. The machine may have to start for that.
    let plan = snapshot(&mark, "Pending");
    assert_eq!(words(&plan)[0], "patch virtualmachines/vm finalizers=[]");
    let wanted = format!("source ns/vm volume not bound: {RESTORED}; ");
    let said = said_of_snapshot(&plan)["error"]["message"].to_string();
    assert!(said.contains(&wanted) && said.contains("start the machine once"), "{said}");
}

#[test]
fn what_cannot_be_kept_is_told() {
    let mut world = World::new();
    world.claims.push(state("Bound"));
    world.content["status"] = json!({"readyToUse": true, "creationTime": "1970-01-12T13:46:44Z"});
    let said = said_of_snapshot(&world.snapshot());
    assert_eq!(said["snapshotVolumes"], json!({"includedVolumes": ["disk"], "excludedVolumes": [VOLUME]}));
    assert_eq!(said["indications"], json!(["PartialSnapshot"]));
    // The content remembers it.
    let left_out = |machine: Value, provisioner: &str, more: Value| {
        let mut world = World::new();
        world.vm = Some(machine);
        world.claims.push(with(state("Bound"), more));
        world.classes = vec![class("plain", provisioner, false)];
        world.content = json!({"metadata": {"name": "other", "namespace": "ns"}, "spec": {"source": {}}});
        created(&world.snapshot())["metadata"]["annotations"]["snapshot.kubevirt.io/left-out"].clone()
    };
    let nobody = "kubernetes.io/no-provisioner";
    assert_eq!(left_out(keeper(), nobody, json!({})), VOLUME);
    assert_eq!(
        left_out(vm(), nobody, json!({})),
        Value::Null,
        "nothing is lost of a machine that keeps nothing any more"
    );
    assert_eq!(left_out(keeper(), "driver", json!({})), "", "nothing was left out");
    assert_eq!(left_out(keeper(), nobody, json!({"status": {"phase": "Pending"}})), "");
}

#[test]
fn what_a_guest_does_not_have_it_cannot_copy() {
    let names = |domain: Value, taken: Option<Vec<Value>>| {
        let mut world = World::new();
        world.content = json!({"metadata": {"name": "other", "namespace": "ns"}, "spec": {"source": {}}});
        world.claims.push(state("Bound"));
        // Started from what the machine is still.
        let spec = world.vm.as_ref().map_or(Value::Null, |vm| vm["spec"].clone());
        let started = json!({STARTED_FROM_ANNOTATION: spec.to_string()});
        world.vmi = Some(with(vmi(), json!({"metadata": {"annotations": started}, "spec": {"domain": domain}})));
        if taken.is_some() {
            world.classes = vec![class("plain", "shelf", false)];
        }
        world.taken = taken;
        let backups = created(&world.snapshot())["spec"]["volumeBackups"].clone();
        backups.as_array().into_iter().flatten().map(|backup| backup["volumeName"].clone()).collect::<Vec<_>>()
    };
    let keeps = json!({"firmware": {"bootloader": {"efi": {"persistent": true}}}});
    assert_eq!(names(keeps, None), ["disk", VOLUME]);
    assert_eq!(names(json!({}), None), ["disk"], "its machine kept something once, and does not any more");
    assert_eq!(names(json!({}), Some(Vec::new())), ["disk", VOLUME], "storage needs no guest");
}

#[test]
fn it_has_no_place_of_its_own_to_be_restored_to() {
    let name = |more: Value| {
        let mut world = restoring();
        world.restore["status"] = json!({"complete": false});
        world.restore["spec"] = with(world.restore["spec"].clone(), more);
        let plan = world.restore();
        let Some(Write::Patch { patch, .. }) = plan.writes.first() else { panic!("{plan:?}") };
        patch["status"]["restores"][0]["persistentVolumeClaim"].clone()
    };
    assert_eq!(name(json!({})), RESTORED);
    // What was there stays until the restore is complete, so nothing is lost with a restore that fails.
    assert_eq!(name(json!({"volumeRestorePolicy": "InPlace"})), RESTORED);
    assert_eq!(name(json!({"volumeRestorePolicy": "PrefixTargetName"})), format!("vm-{VOLUME}"));
    let mine = json!([{"volumeName": VOLUME, "restoreName": "mine"}]);
    assert_eq!(name(json!({"volumeRestorePolicy": "InPlace", "volumeRestoreOverrides": mine})), "mine");
}

#[test]
fn it_is_copied_as_a_disk_is() {
    let mut world = keeping();
    let plan = world.content();
    assert_eq!(made(&mut world, &plan)["metadata"]["name"], KEPT);
    let args = |plan: &Plan| created(plan)["spec"]["containers"][0]["args"].clone();
    let keep = json!(["copy", "keep", "/disks/source-0/nvram", "/disks/target-0/disk.qcow2"]);
    assert_eq!(args(&world.content()), keep);
    // One that runs has its launcher do it.
    world.vmi = Some(with(vmi(), json!({"status": {"nodeName": "n"}})));
    let plan = world.content();
    made(&mut world, &plan);
    world.pods[0]["status"] = json!({"phase": "Running", "containerStatuses": [{"name": "copy", "ready": true,
        "restartCount": 0, "image": "", "imageID": "", "containerID": "containerd://abc", "state": {"running": {}}}]});
    let plan = world.content();
    let Some(Write::Call { body, .. }) = plan.writes.first() else { panic!("{plan:?}") };
    assert_eq!(body["volumes"], json!(["vm-state"]));
    // A volume of the machine's own may be called so, and is a disk.
    let mut world = keeping();
    let volumes = json!([{"name": VOLUME, "persistentVolumeClaim": {"claimName": "x"}}]);
    world.content["spec"]["source"]["virtualMachine"]["spec"]["template"]["spec"]["volumes"] = volumes;
    let plan = world.content();
    made(&mut world, &plan);
    assert_eq!(args(&world.content())[2], "/disks/source-0/disk.img");
}

/// A restore of it, with the copy.
fn restoring() -> World {
    let mut world = keeping();
    let plan = world.content();
    made(&mut world, &plan);
    let base = World::restoring();
    (world.snapshot, world.vm) = (base.snapshot, base.vm);
    world.content["status"] = base.content["status"].clone();
    world.restore["status"]["restores"] =
        json!([{"volumeName": VOLUME, "volumeSnapshotName": KEPT, "persistentVolumeClaim": RESTORED}]);
    world
}

#[test]
fn a_restored_machine_has_that_of_its_snapshot_and_no_other() {
    let mut world = restoring();
    // It is the machine's, whoever is to own the volumes.
    world.restore["spec"]["volumeOwnershipPolicy"] = json!("None");
    let plan = world.restore();
    let claim = made(&mut world, &plan);
    assert_eq!(
        (&claim["metadata"]["name"], &claim["metadata"]["labels"]["persistent-state-for"]),
        (&json!(RESTORED), &json!("vm"))
    );
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "vm-uid");
    let plan = world.restore();
    let pod = made(&mut world, &plan);
    let fill = json!(["copy", "restore", "/disks/source-0/disk.qcow2", "/disks/target-0/nvram"]);
    assert_eq!(pod["spec"]["containers"][0]["args"], fill);
    world.pods[0]["status"] = json!({"phase": "Succeeded"});
    // It names it in the write that makes it what it was.
    let plan = world.restore();
    let patch = plan.writes.iter().find_map(|write| match write {
        Write::Patch { patch, key, .. } if key.name == "vm" => Some(patch.clone()),
        _ => None,
    });
    assert_eq!(patch.expect("the machine is changed")["metadata"]["annotations"][NAMES], RESTORED);
    world.pods.clear();

    let old = format!("delete persistentvolumeclaims/{}", state_claim_name("vm", "vm-uid"));
    let marks = json!({"restore.kubevirt.io/lastRestoreUID": "r-r-uid", NAMES: RESTORED});
    world.vm = Some(with(world.vm.take().expect("a machine"), json!({"metadata": {"annotations": marks}})));
    let plan = world.restore();
    let said = words(&plan);
    assert!(said.contains(&old) && said.last().is_some_and(|last| last.contains("complete=true")), "{said:?}");
    assert!(!said.contains(&format!("delete persistentvolumeclaims/{RESTORED}")), "{said:?}");
    // Not before the new one is there.
    world.claims.retain(|claim| claim["metadata"]["name"] != RESTORED);
    assert!(!words(&world.restore()).contains(&old));
}

#[test]
fn another_machine_gets_one_of_its_own() {
    let mut world = restoring();
    world.restore["spec"]["target"]["name"] = json!("copy");
    world.restore["metadata"]["ownerReferences"] = json!([]);
    // The source was restored once, and snapshotted before it owned this.
    world.content["spec"]["volumeBackups"][0]["persistentVolumeClaim"]["metadata"]["ownerReferences"] = json!([]);
    world.content["spec"]["source"]["virtualMachine"]["metadata"]["annotations"] = json!({NAMES: "the-source's"});
    let plan = world.restore();
    let claim = made(&mut world, &plan);
    assert_eq!(claim["metadata"]["labels"]["persistent-state-for"], "copy");
    assert_eq!(claim["metadata"]["annotations"]["restore.kubevirt.io/owned-by-vm"], "r");
    let plan = world.restore();
    made(&mut world, &plan);
    world.pods[0]["status"] = json!({"phase": "Succeeded"});
    assert_eq!(created(&world.restore())["metadata"]["annotations"][NAMES], RESTORED);
    // Of a snapshot without any it has none.
    world.content["spec"]["volumeBackups"] = json!([]);
    world.restore["status"]["restores"] = json!([]);
    assert_eq!(created(&world.restore())["metadata"]["annotations"][NAMES], Value::Null);
}

#[test]
fn in_place_it_makes_room_unless_another_machine_has_it() {
    let mut world = restoring();
    let name = state_claim_name("vm", "vm-uid");
    world.restore["spec"]["volumeRestorePolicy"] = json!("InPlace");
    world.restore["status"]["restores"][0]["persistentVolumeClaim"] = json!(name);
    let delete = format!("delete persistentvolumeclaims/{name}");
    assert!(words(&world.restore()).contains(&delete));
    world.restore["spec"]["target"]["name"] = json!("copy");
    world.restore["metadata"]["ownerReferences"] = json!([]);
    let said = words(&world.restore()).join("\n");
    assert!(said.contains(&format!("PersistentVolumeClaim {name} is used by VirtualMachine vm")), "{said}");
}
