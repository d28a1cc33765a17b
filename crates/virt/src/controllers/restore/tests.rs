//! What the restore controller plans, table by table: the scenarios of KubeVirt's `restore_test.go`, and what it leaves
//! open.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Time, Write};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineRestore, VirtualMachineSnapshot,
    VirtualMachineSnapshotContent,
};
use carrack_types::resource::PartialObject;
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotClass};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::RestoreController;
use crate::controllers::defined::definitions;
use crate::controllers::testing::{merge, of, with, words};
use crate::identity::mac_address;

const CREATED: i64 = 1_000_000;
const NOW: Time = Time::from_unix_s(CREATED + 10);
const LATE: Time = Time::from_unix_s(CREATED + 302);

const NEW: &str = "persistentvolumeclaims/restore-r-uid-disk";

fn deleted() -> Value {
    json!({"metadata": {"deletionTimestamp": "1970-01-12T13:46:45Z"}})
}

/// A cluster as JSON, to be changed by each row of a table.
struct World {
    restore: Value,
    vm: Option<Value>,
    vmi: Option<Value>,
    snapshot: Option<Value>,
    content: Option<Value>,
    child: Option<Value>,
    claims: Vec<Value>,
    others: Vec<Value>,
    class: Value,
    /// What the snapshot kept of instance types and preferences.
    revisions: Vec<Value>,
    now: Time,
}

fn spec(claim: &str) -> Value {
    json!({"runStrategy": "Manual", "template": {"metadata": {}, "spec": {
        "domain": {"devices": {"disks": [{"name": "disk"}]}, "cpu": {"cores": 1}},
        "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]}}})
}

fn vm() -> Value {
    let mut spec = spec("data");
    spec["template"]["spec"]["domain"]["cpu"]["cores"] = json!(4);
    json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid", "resourceVersion": "20"}, "spec": spec,
        "status": {}})
}

fn held() -> Value {
    with(vm(), json!({"status": {"restoreInProgress": "r"}}))
}

fn restored(claim: &str) -> Value {
    let mut vm = held();
    vm["metadata"]["annotations"] = json!({"restore.kubevirt.io/lastRestoreUID": "r-r-uid"});
    vm["spec"] = spec(claim);
    vm
}

fn vmi() -> Value {
    json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "vmi-uid", "resourceVersion": "21",
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm",
                "uid": "vm-uid", "controller": true}]},
        "spec": {"domain": {}}, "status": {"phase": "Running"}})
}

fn claim(name: &str, phase: &str, more: Value) -> Value {
    with(
        json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-uid"), "resourceVersion": "22"},
            "spec": {"storageClassName": "local"}, "status": {"phase": phase}}),
        more,
    )
}

fn ours() -> Value {
    json!({"metadata": {"annotations": {"restore.kubevirt.io/lastRestoreUID": "r-r-uid", "restore.kubevirt.io/name": "r"}}})
}

impl World {
    /// A restore that has its finalizer and owner, of a machine that is off.
    fn new() -> Self {
        let owner = |kind: &str, name: &str, uid: &str| json!([{"apiVersion": "x/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
        Self {
            restore: json!({"metadata": {"name": "r", "namespace": "ns", "uid": "r-uid", "resourceVersion": "10",
                    "creationTimestamp": "1970-01-12T13:46:40Z",
                    "finalizers": ["snapshot.kubevirt.io/vmrestore-protection"],
                    "ownerReferences": owner("VirtualMachine", "vm", "vm-uid")},
                "spec": {"target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"},
                    "virtualMachineSnapshotName": "s"},
                "status": {"complete": false}}),
            vm: Some(held()),
            vmi: None,
            snapshot: Some(json!({"metadata": {"name": "s", "namespace": "ns", "uid": "s-uid"},
                "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}},
                "status": {"phase": "Succeeded", "readyToUse": true, "sourceUID": "vm-uid",
                    "virtualMachineSnapshotContentName": "content"}})),
            content: Some(json!({"metadata": {"name": "content", "namespace": "ns", "uid": "content-uid"},
                "spec": {"virtualMachineSnapshotName": "s",
                    "source": {"virtualMachine": {"metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid",
                        "labels": {"app": "x"}}, "spec": spec("data")}},
                    "volumeBackups": [{"volumeName": "disk", "volumeSnapshotName": "vs",
                        "persistentVolumeClaim": {
                            "metadata": {"name": "data", "labels": {"tier": "gold"}, "annotations": {
                                "volume.kubernetes.io/selected-node": "n", "note": "kept"},
                                "ownerReferences": owner("VirtualMachine", "vm", "vm-uid")},
                            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                                "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}}}}]},
                "status": {"readyToUse": true, "creationTime": "1970-01-12T13:46:40Z"}})),
            child: Some(json!({"metadata": {"name": "vs", "namespace": "ns", "uid": "vs-uid", "resourceVersion": "40",
                    "ownerReferences": owner("VirtualMachineSnapshotContent", "content", "content-uid")},
                "spec": {"source": {"persistentVolumeClaimName": "data"}},
                "status": {"readyToUse": true, "restoreSize": "2Gi"}})),
            claims: vec![claim("data", "Bound", json!({}))],
            others: Vec::new(),
            class: json!({"metadata": {"name": "local"}, "provisioner": "driver",
                "volumeBindingMode": "WaitForFirstConsumer"}),
            revisions: Vec::new(),
            now: NOW,
        }
    }

    /// The same with the claims in the status.
    fn begun() -> Self {
        let mut world = Self::new();
        world.restore["status"]["restores"] = json!([{"volumeName": "disk", "volumeSnapshotName": "vs",
            "persistentVolumeClaim": "restore-r-uid-disk"}]);
        world
    }

    /// The same of a machine that is not there.
    fn elsewhere(mut self) -> Self {
        self.restore["spec"]["target"]["name"] = json!("other");
        self.restore["metadata"]["ownerReferences"] = json!([]);
        self.vm = None;
        self
    }

    fn plan(&self) -> Plan {
        let kinds = ["volumesnapshots.snapshot.storage.k8s.io", "volumesnapshotclasses.snapshot.storage.k8s.io"];
        let caches = Caches::new()
            .with([of::<VirtualMachineRestore>(self.restore.clone())])
            .with(self.vm.iter().chain(&self.others).cloned().map(of::<VirtualMachine>))
            .with(self.vmi.clone().map(of::<VirtualMachineInstance>))
            .with(self.snapshot.clone().map(of::<VirtualMachineSnapshot>))
            .with(self.content.clone().map(of::<VirtualMachineSnapshotContent>))
            .with(self.child.clone().map(of::<VolumeSnapshot>))
            .with::<VolumeSnapshotClass>([])
            .with::<Pod>([])
            .with(self.claims.iter().cloned().map(of::<PersistentVolumeClaim>))
            .with([of::<StorageClass>(self.class.clone())])
            .with(self.revisions.iter().cloned().map(of::<ControllerRevision>))
            .with_metadata(definitions(), kinds.map(|name| of::<PartialObject>(json!({"metadata": {"name": name}}))));
        RestoreController::default().reconcile(&Key::new("ns", "r"), &caches.view(), self.now)
    }
}

fn check(world: &World, wanted: &[&str], what: &str) {
    assert_eq!(words(&world.plan()), wanted, "{what}");
}

fn status(text: &str) -> String {
    format!("patch virtualmachinerestores/r/status {text}")
}

/// The status when something keeps it from going on.
fn stopped(why: &str) -> String {
    status(&format!("Progressing=False({why}) Ready=False({why})"))
}

/// The status when it is over.
fn failed(why: &str) -> String {
    status(&format!("Progressing=False({why}) Ready=False({why}) Failure=True({why})"))
}

fn creating() -> String {
    status("Progressing=True(Creating new PVCs) Ready=False(Waiting for new PVCs)")
}

fn updating() -> String {
    status("Progressing=True(Updating target spec) Ready=False(Waiting for target update)")
}

const NO_INSTANCE: &str = "absent virtualmachineinstances/vm";

#[test]
fn a_restore_is_initialised_and_takes_its_target() {
    let mut world = World::new();
    world.vm = Some(vm());
    world.restore["status"] = json!(null);
    let initialising = "complete=false Progressing=True(Initializing VirtualMachineRestore) \
                        Ready=False(Initializing VirtualMachineRestore)";
    check(&world, &[&status(initialising)], "a status first");
    world.restore["status"] = json!({"complete": false});
    world.restore["metadata"]["finalizers"] = json!([]);
    world.restore["metadata"]["ownerReferences"] = json!([]);
    let marks = "patch virtualmachinerestores/r finalizers=[snapshot.kubevirt.io/vmrestore-protection] ownerReferences";
    check(&world, &["alive virtualmachines/vm", marks], "then finalizer and owner");
    let mut world = World::new();
    world.vm = Some(vm());
    check(&world, &[NO_INSTANCE, "patch virtualmachines/vm/status restoreInProgress=r"], "then the target");
    let premises = world.plan().premises;
    let rests = premises.iter().any(|(n, premise)| *n == 1 && premise.resource == "virtualmachineinstances");
    assert!(rests, "which rests on having no instance: {premises:?}");
}

#[test]
fn a_target_that_runs_is_stopped_waited_for_or_the_end() {
    let running = |policy: &Value, now: Time| {
        let mut world = World::new();
        world.vm = Some(vm());
        world.vmi = Some(vmi());
        world.now = now;
        world.restore["spec"]["targetReadinessPolicy"] = policy.clone();
        world
    };
    let check = |policy: Value, now: Time, wanted: &[&str]| {
        check(&running(&policy, now), wanted, &format!("{policy} {now:?}"));
    };
    let grace = stopped(
        "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore, or the \
         operation will fail after 5m0s",
    );
    check(json!(null), NOW, &[&grace]);
    let plan = running(&json!(null), NOW).plan();
    assert!(plan.requeue_after.is_some());
    let told: Vec<&str> = plan.events.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(told, ["RestoreTargetNotReady"]);
    check(json!("WaitGracePeriod"), NOW, &[&grace]);
    let exceeded = failed(
        "Restore target failed to be ready within 5m0s. Please power off the target VM before attempting restore",
    );
    check(json!("WaitGracePeriod"), LATE, &[&exceeded]);
    let plan = running(&json!("WaitGracePeriod"), LATE).plan();
    assert_eq!(plan.premises[0].1.uid.as_deref(), Some("vmi-uid"), "it fails while the instance is there");
    let eventually =
        stopped("Waiting for target VM to be powered off. Please stop the restore target to proceed with restore");
    check(json!("WaitEventually"), NOW, &[&eventually]);
    check(json!("WaitEventually"), LATE, &[&eventually]);
    check(json!("FailImmediate"), NOW, &[&failed("Restore target VMI must be powered off before restore operation")]);
    check(
        json!("StopTarget"),
        NOW,
        &[
            "patch virtualmachines/vm/status stateChangeRequests",
            &stopped("Automatically stopping restore target for restore operation"),
        ],
    );
    // One that always runs does not any more.
    let mut world = World::new();
    world.vm = Some(with(vm(), json!({"spec": {"runStrategy": "Always"}})));
    world.vmi = Some(vmi());
    world.restore["spec"]["targetReadinessPolicy"] = json!("StopTarget");
    assert_eq!(words(&world.plan())[0], "patch virtualmachines/vm runStrategy=Halted");
    world.vmi = Some(with(vmi(), deleted()));
    assert_eq!(words(&world.plan()).len(), 1, "it is being stopped");
    // What has ended makes room, whatever the policy; unless its machine comes again by itself, and takes it away.
    let stopping = stopped("Automatically stopping restore target for restore operation");
    for policy in ["WaitGracePeriod", "FailImmediate", "StopTarget"] {
        let mut world = running(&json!(policy), LATE);
        world.vmi = Some(with(vmi(), json!({"status": {"phase": "Succeeded"}})));
        assert_eq!(words(&world.plan()), ["delete virtualmachineinstances/vm", stopping.as_str()], "{policy}");
        world.vmi = world.vmi.map(|over| with(over, deleted()));
        assert_eq!(words(&world.plan()), [stopping.as_str()], "{policy}");
    }
    let mut world = running(&json!("FailImmediate"), NOW);
    world.vm = Some(with(vm(), json!({"spec": {"runStrategy": "Always"}})));
    world.vmi = Some(with(vmi(), json!({"status": {"phase": "Failed"}})));
    assert_eq!(words(&world.plan()), [failed("Restore target VMI must be powered off before restore operation")]);
}

#[test]
fn what_it_waits_for_is_told() {
    let check = |change: fn(&mut World), wanted: &str| {
        let mut world = World::begun();
        change(&mut world);
        check(&world, &[&stopped(wanted)], wanted);
        let plan = world.plan();
        assert_eq!(plan.events.iter().map(|e| e.reason.as_str()).collect::<Vec<_>>(), ["VirtualMachineRestoreError"]);
        assert!(plan.requeue_after.is_some(), "{wanted}");
    };
    check(|w| w.snapshot = None, "VMSnapshot ns/s does not exist");
    check(
        |w| {
            w.snapshot = w.snapshot.take().map(|s| with(s, json!({"status": {"phase": "Failed", "readyToUse": false}})))
        },
        "VMSnapshot ns/s failed and is invalid to use",
    );
    check(
        |w| w.snapshot = w.snapshot.take().map(|s| with(s, json!({"status": {"readyToUse": false}}))),
        "VMSnapshot ns/s not ready",
    );
    check(
        |w| {
            let none = json!({"status": {"virtualMachineSnapshotContentName": null}});
            w.snapshot = w.snapshot.take().map(|s| with(s, none));
        },
        "no snapshot content name in ns/s",
    );
    check(|w| w.content = None, "VMSnapshotContent ns/content does not exist");
    check(
        |w| w.content = w.content.take().map(|c| with(c, json!({"status": {"readyToUse": false}}))),
        "VMSnapshotContent ns/content not ready",
    );
    check(
        |w| w.vm = Some(with(held(), json!({"metadata": {"uid": "another"}}))),
        "restore source and restore target are different but restore target already exists",
    );
    check(|w| w.child = None, "missing volumeSnapshot vs");
    check(
        |w| w.child = w.child.take().map(|c| with(c, json!({"metadata": {"ownerReferences": []}}))),
        "volumeSnapshot vs does not belong to content",
    );
    check(
        |w| w.claims.push(claim("restore-r-uid-disk", "Lost", ours())),
        "PVC ns/restore-r-uid-disk in status \"Lost\"",
    );
    check(|w| w.vm = Some(with(vm(), json!({"status": {"snapshotInProgress": "x"}}))), "vm snapshot x in progress");
}

#[test]
fn another_restore_that_holds_the_target_is_waited_for_or_gone() {
    let mut world = World::begun();
    world.vm = Some(with(vm(), json!({"status": {"restoreInProgress": "gone"}})));
    check(
        &world,
        &[NO_INSTANCE, "absent virtualmachinerestores/gone", "patch virtualmachines/vm/status restoreInProgress=r"],
        "it has left this behind",
    );
}

#[test]
fn claims_are_named_by_the_policy() {
    let check = |more: Value, wanted: &str| {
        let mut world = World::new();
        merge(&mut world.restore["spec"], more.clone());
        let plan = world.plan();
        let Write::Patch { patch, .. } = &plan.writes[0] else { panic!("{plan:?}") };
        let volume = json!({"volumeName": "disk", "volumeSnapshotName": "vs", "persistentVolumeClaim": wanted});
        assert_eq!(patch["status"]["restores"], json!([volume]), "{more}");
    };
    check(json!({}), "restore-r-uid-disk");
    check(json!({"volumeRestorePolicy": "RandomizeNames"}), "restore-r-uid-disk");
    check(json!({"volumeRestorePolicy": "InPlace"}), "data");
    check(json!({"volumeRestorePolicy": "PrefixTargetName"}), "vm-disk");
    check(
        json!({"volumeRestorePolicy": "InPlace",
            "volumeRestoreOverrides": [{"volumeName": "disk", "restoreName": "mine"}]}),
        "mine",
    );
}

fn created(plan: &Plan) -> Value {
    let created = plan.writes.iter().find_map(|write| match write {
        Write::Create { object, .. } => Some(object.clone()),
        _ => None,
    });
    created.expect("a create")
}

#[test]
fn claims_are_made_from_volume_snapshots() {
    let world = World::begun();
    check(&world, &[NO_INSTANCE, &format!("create {NEW}"), &creating()], "of a machine that is there");
    let plan = world.plan();
    let premises: Vec<&str> = plan.premises.iter().filter(|(n, _)| *n == 1).map(|(_, p)| p.resource.as_str()).collect();
    assert_eq!(premises, ["virtualmachineinstances", "virtualmachines", "virtualmachinerestores"]);
    let object = created(&plan);
    let spec = &object["spec"];
    assert_eq!(spec["resources"]["requests"]["storage"], "2Gi", "what was snapshotted may have grown");
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "vs"});
    assert_eq!((&spec["dataSource"], &spec["dataSourceRef"], &spec["volumeName"]), (&source, &source, &Value::Null));
    let metadata = &object["metadata"];
    assert_eq!(metadata["ownerReferences"][0]["uid"], "vm-uid");
    assert_eq!(
        metadata["annotations"],
        json!({"note": "kept", "restore.kubevirt.io/name": "r", "restore.kubevirt.io/lastRestoreUID": "r-r-uid"})
    );
    assert_eq!(
        metadata["labels"],
        json!({"tier": "gold", "restore.kubevirt.io/source-vm-name": "vm",
            "restore.kubevirt.io/source-vm-namespace": "ns"})
    );

    let mut world = World::begun();
    world.restore["spec"]["volumeOwnershipPolicy"] = json!("None");
    world.restore["spec"]["volumeRestoreOverrides"] =
        json!([{"volumeName": "disk", "labels": {"a": "b"}, "annotations": {"c": "d"}}]);
    let metadata = created(&world.plan())["metadata"].clone();
    assert_eq!(
        (&metadata["ownerReferences"], &metadata["labels"]["a"], &metadata["annotations"]["c"]),
        (&Value::Null, &json!("b"), &json!("d"))
    );

    // A machine that is not there yet is to own what one that was there owned.
    let world = World::begun().elsewhere();
    check(&world, &["absent virtualmachines/other", &format!("create {NEW}"), &creating()], "of another");
    let metadata = created(&world.plan())["metadata"].clone();
    assert_eq!(
        (&metadata["ownerReferences"], &metadata["annotations"]["restore.kubevirt.io/owned-by-vm"]),
        (&Value::Null, &json!("r"))
    );
}

#[test]
fn claims_are_waited_for_where_that_makes_sense() {
    let check = |mode: &str, phase: &str, waits: bool| {
        let mut world = World::begun();
        world.class["volumeBindingMode"] = json!(mode);
        world.claims.push(claim("restore-r-uid-disk", phase, ours()));
        let wanted = if waits { creating() } else { updating() };
        assert_eq!(words(&world.plan()).last(), Some(&wanted), "{mode} {phase}");
    };
    check("Immediate", "Pending", true);
    check("Immediate", "Bound", false);
    check("WaitForFirstConsumer", "Pending", false);
    check("WaitForFirstConsumer", "Bound", false);
}

#[test]
fn a_name_that_somebody_else_has_ends_it() {
    let mut world = World::begun();
    world.claims.push(claim("restore-r-uid-disk", "Bound", json!({})));
    let why = "PersistentVolumeClaim ns/restore-r-uid-disk exists and was not made by this restore";
    check(&world, &[&failed(why)], "not adopted");
    assert_eq!(world.plan().premises[0].1.uid.as_deref(), Some("restore-r-uid-disk-uid"), "while it is there");
    let mut world = World::new();
    world.content = world.content.map(|mut content| {
        let more = with(content["spec"]["volumeBackups"][0].clone(), json!({"volumeName": "second"}));
        content["spec"]["volumeBackups"].as_array_mut().expect("a list").push(more);
        content
    });
    world.restore["spec"]["volumeRestorePolicy"] = json!("InPlace");
    check(&world, &[&failed("several volumes would be restored to the claim data")], "two of one name");
}

#[test]
fn in_place_the_claim_makes_room_on_proof() {
    let mut world = World::begun();
    world.restore["spec"]["volumeRestorePolicy"] = json!("InPlace");
    world.restore["status"]["restores"][0]["persistentVolumeClaim"] = json!("data");
    check(
        &world,
        &[NO_INSTANCE, "alive volumesnapshots/vs", "delete persistentvolumeclaims/data", &creating()],
        "while there is something to restore, and nobody uses it",
    );
    let plan = world.plan();
    let Write::Delete { options, .. } = &plan.writes[2] else { panic!("{plan:?}") };
    assert_eq!((options.uid.as_deref(), options.resource_version.as_deref()), (Some("data-uid"), Some("22")));
    world.claims = vec![claim("data", "Bound", deleted())];
    check(&world, &[&creating()], "waits");
    world.claims.clear();
    check(&world, &[NO_INSTANCE, "create persistentvolumeclaims/data", &creating()], "again");
    world.claims = vec![claim("data", "Bound", ours())];
    assert_eq!(words(&world.plan()).last(), Some(&updating()));
    world.claims = vec![claim("data", "Bound", json!({}))];
    world.child = None;
    check(&world, &[&stopped("missing volumeSnapshot vs")], "nothing to restore");

    // For another machine, the source's own claim does not go.
    let mut world = World::begun().elsewhere();
    world.restore["spec"]["volumeRestorePolicy"] = json!("InPlace");
    world.restore["status"]["restores"][0]["persistentVolumeClaim"] = json!("data");
    world.others = vec![vm()];
    check(&world, &[&stopped("PersistentVolumeClaim data is used by VirtualMachine vm")], "in use");
}

/// A restored volume has its claim from the restore, and none from a template.
#[test]
fn templates_of_restored_volumes_go() {
    let mut world = World::begun();
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    let spec = &mut world.content.as_mut().expect("a content")["spec"]["source"]["virtualMachine"]["spec"];
    spec["template"]["spec"]["volumes"][0] = json!({"name": "disk", "dataVolume": {"name": "data"}});
    let template = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
    spec["dataVolumeTemplates"] = json!([template("data"), template("other")]);
    let plan = world.plan();
    let patched = plan.writes.iter().find_map(|write| match write {
        Write::Patch { resource, patch, sub: "", .. } if resource.plural == "virtualmachines" => Some(&patch["spec"]),
        _ => None,
    });
    let patched = patched.expect("a patch");
    assert_eq!(patched["dataVolumeTemplates"], json!([template("other")]));
    let volume = &patched["template"]["spec"]["volumes"][0];
    assert_eq!(volume["persistentVolumeClaim"]["claimName"], "restore-r-uid-disk", "{patched}");
    // A claim that a DataVolume would fill again makes no room.
    let mut world = World::begun();
    world.restore["spec"]["volumeRestorePolicy"] = json!("InPlace");
    world.restore["status"]["restores"][0]["persistentVolumeClaim"] = json!("data");
    let owner = json!([{"apiVersion": "x/v1", "kind": "DataVolume", "name": "data", "uid": "d", "controller": true}]);
    world.claims = vec![claim("data", "Bound", json!({"metadata": {"ownerReferences": owner}}))];
    let told = format!("{:?}", world.plan());
    assert!(told.contains("belongs to a DataVolume") && !told.contains("Delete {"), "{told}");
}

#[test]
fn the_target_becomes_what_the_snapshot_holds() {
    let mut world = World::begun();
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    check(&world, &[NO_INSTANCE, "patch virtualmachines/vm annotations template", &updating()], "changed");
    let plan = world.plan();
    let Write::Patch { patch, .. } = &plan.writes[1] else { panic!("{plan:?}") };
    assert_eq!(patch["metadata"]["annotations"]["restore.kubevirt.io/lastRestoreUID"], "r-r-uid");
    let template = &patch["spec"]["template"]["spec"];
    assert_eq!(template["domain"]["cpu"]["cores"], 1);
    assert_eq!(template["volumes"][0]["persistentVolumeClaim"]["claimName"], "restore-r-uid-disk");
    assert!(plan.premises.iter().any(|(n, p)| *n == 1 && p.resource == "virtualmachineinstances"));
    let strategy = |spec: Value| {
        let mut world = World::begun();
        world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
        world.vm = Some(with(held(), json!({"spec": spec})));
        let plan = world.plan();
        let Write::Patch { patch, .. } = &plan.writes[1] else { panic!("{plan:?}") };
        (patch["spec"]["running"].clone(), patch["spec"]["runStrategy"].clone())
    };
    // It keeps its own; the older field is set to off.
    assert_eq!(strategy(json!({"runStrategy": "RerunOnFailure"})), (Value::Null, Value::Null));
    assert_eq!(strategy(json!({"runStrategy": null, "running": true})), (json!(false), Value::Null));
    world.vm = Some(with(held(), deleted()));
    check(&world, &[&stopped("VirtualMachine vm is being deleted")], "not while it goes");
}

#[test]
fn a_machine_that_is_not_there_is_made() {
    let mut world = World::begun().elsewhere();
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    world.restore["spec"]["patches"] = json!([
        r#"{"op": "replace", "path": "/spec/template/spec/domain/cpu/cores", "value": 2}"#,
        r#"{"op": "add", "path": "/metadata/labels/who", "value": "me"}"#
    ]);
    check(
        &world,
        &["absent virtualmachines/other", "create virtualmachines/other", &updating()],
        "of the snapshot's spec, off, with the patches",
    );
    let plan = world.plan();
    let object = created(&plan);
    assert_eq!(object["spec"]["runStrategy"], "Halted");
    assert_eq!(object["spec"]["template"]["spec"]["domain"]["cpu"]["cores"], 2);
    assert_eq!(object["metadata"]["labels"], json!({"app": "x", "who": "me"}));
    assert_eq!(object["metadata"]["annotations"], json!({"restore.kubevirt.io/lastRestoreUID": "r-r-uid"}));
    let premises: Vec<&str> = plan.premises.iter().filter(|(n, _)| *n == 1).map(|(_, p)| p.resource.as_str()).collect();
    assert_eq!(premises, ["virtualmachines", "virtualmachinerestores"]);
    world.restore["spec"]["patches"] = json!([r#"{"op": "remove", "path": "/spec/nothing"}"#]);
    let words = words(&world.plan());
    assert!(words[0].contains("Failure=True(error patching VM other: failed to apply patch"), "{words:?}");
}

#[test]
fn a_machine_that_comes_again_is_the_same_to_its_guest() {
    let domain = |target: &str, given: Value, patches: Value, owner: &str| {
        let mut world = World::begun().elsewhere();
        world.restore["spec"]["target"]["name"] = json!(target);
        world.restore["spec"]["patches"] = patches;
        world.restore["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "x/v1", "kind": owner, "name": "o", "uid": "o-uid", "controller": true}]);
        world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
        let content = world.content.as_mut().expect("a content");
        let domain = &mut content["spec"]["source"]["virtualMachine"]["spec"]["template"]["spec"]["domain"];
        domain["firmware"] = given;
        domain["devices"]["interfaces"] =
            json!([{"name": "given", "macAddress": "02:00:00:00:00:01"}, {"name": "other"}]);
        created(&world.plan())["spec"]["template"]["spec"]["domain"].clone()
    };
    let firmware = |target: &str, given: Value, patches: Value| {
        domain(target, given, patches, "VirtualMachine")["firmware"].clone()
    };
    let none = json!([]);
    assert_eq!(firmware("vm", json!(null), none.clone()), json!({"uuid": "vm-uid"}));
    assert_eq!(firmware("vm", json!({"serial": "x"}), none.clone()), json!({"serial": "x", "uuid": "vm-uid"}));
    assert_eq!(firmware("vm", json!({"uuid": "said"}), none.clone()), json!({"uuid": "said"}));
    assert_eq!(firmware("other", json!(null), none), json!(null), "another machine has its own");
    let other = r#"{"op": "replace", "path": "/spec/template/spec/domain/firmware/uuid", "value": "mine"}"#;
    assert_eq!(firmware("vm", json!(null), json!([other])), json!({"uuid": "mine"}), "patches come after");
    let macs = |target: &str, owner: &str| {
        let nics = domain(target, json!(null), json!([]), owner)["devices"]["interfaces"].clone();
        assert_eq!(nics[0]["macAddress"], "02:00:00:00:00:01");
        nics[1]["macAddress"].clone()
    };
    assert_eq!(macs("vm", "VirtualMachine"), json!(mac_address("vm-uid", "other")));
    assert_eq!(macs("other", "VirtualMachine"), json!(null));
    // A clone that is called as its source was is another machine.
    assert_eq!(macs("vm", "VirtualMachineClone"), json!(null));
    assert_eq!(domain("vm", json!(null), json!([]), "VirtualMachineClone")["firmware"], json!(null));
}

#[test]
fn a_restored_machine_gets_its_claims_and_is_let_go() {
    let done = status(
        "complete=true Progressing=False(Operation complete) Ready=True(Operation complete) \
         restoreTime=1970-01-12T13:46:50Z",
    );
    let free = "patch virtualmachines/vm/status memoryDumpRequest=null restoreInProgress=null";
    let mut world = World::begun();
    world.vm = Some(restored("restore-r-uid-disk"));
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    check(&world, &[free, &done], "it has them");
    let plan = world.plan();
    assert_eq!(plan.told.iter().map(|(_, e)| e.reason.as_str()).collect::<Vec<_>>(), ["VirtualMachineRestoreComplete"]);
    // It may run by then.
    world.vmi = Some(vmi());
    check(&world, &[free, &done], "whatever it does");
    world.claims[1]["metadata"]["annotations"]["restore.kubevirt.io/owned-by-vm"] = json!("r");
    let adopt = format!("patch {NEW} annotations ownerReferences");
    check(&world, &["alive virtualmachines/vm", &adopt, free, &done], "it gets them");

    world.restore["status"] = json!({"complete": true});
    check(&world, &[free], "what a crash left behind");
    world.vm = Some(with(restored("restore-r-uid-disk"), json!({"status": {"restoreInProgress": null}})));
    check(&world, &[], "it is over");
}

#[test]
fn a_restore_that_ends_early_gives_its_claims_to_the_machine_that_is_there() {
    let mut world = World::begun();
    world.restore = with(world.restore, deleted());
    world.vm = Some(restored("restore-r-uid-disk"));
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    world.claims[1]["metadata"]["annotations"]["restore.kubevirt.io/owned-by-vm"] = json!("r");
    let adopt = format!("patch {NEW} annotations ownerReferences");
    check(&world, &["alive virtualmachines/vm", &adopt], "they would be nobody's, and stay");
    assert!(world.plan().requeue_after.is_some());
    let Some(Write::Patch { patch, .. }) = world.plan().writes.into_iter().nth(1) else { panic!("a patch") };
    assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "vm-uid");
    world.claims[1]["metadata"]["ownerReferences"] = patch["metadata"]["ownerReferences"].clone();
    let free = "patch virtualmachines/vm/status memoryDumpRequest=null restoreInProgress=null";
    check(&world, &[free], "then it goes on");
    // One that another restore has made what it is has its own.
    let other = json!({"restore.kubevirt.io/lastRestoreUID": "s-s-uid"});
    world.vm = Some(with(restored("data"), json!({"metadata": {"annotations": other}})));
    world.claims[1]["metadata"]["ownerReferences"] = json!([]);
    assert!(!words(&world.plan()).contains(&adopt));
}

#[test]
fn a_restored_machine_has_its_instance_type_for_itself_before_the_restore_is_complete() {
    const KIND: &str = "VirtualMachineClusterInstancetype";
    let mut world = World::begun();
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    let sized = |own: &str, resource_version: &str| {
        let of = json!({"name": "tiny", "kind": KIND, "controllerRevisionRef": {"name": own}});
        let named = json!({"name": "tiny", "kind": KIND, "revisionName": "kept"});
        Some(with(
            restored("restore-r-uid-disk"),
            json!({"metadata": {"resourceVersion": resource_version}, "spec": {"instancetype": named},
                "status": {"instancetypeRef": of}}),
        ))
    };
    world.revisions =
        vec![json!({"metadata": {"name": "kept", "namespace": "ns", "uid": "k", "resourceVersion": "50"},
        "revision": 0, "data": {"kind": KIND, "metadata": {"name": "tiny", "uid": "t", "generation": 4}, "spec": {}}})];
    world.vm = sized("vm-tiny-v1beta1-t-5", "20");
    check(&world, &[&updating()], "it has another one still");
    let failure = json!({"type": "Failure", "status": "True", "reason": "FailedFindPreference", "message": "no wide"});
    world.vm.as_mut().expect("a machine")["status"]["conditions"] = json!([failure]);
    check(&world, &[&stopped("no wide")], "it cannot have it for now, and that is told");
    world.vm = sized("vm-tiny-v1beta1-t-4", "20");
    let named = "patch virtualmachines/vm instancetype";
    assert_eq!(words(&world.plan())[0], named, "it has it, and does not name the snapshot's any more");
    let Some(Write::Patch { patch, .. }) = world.plan().writes.into_iter().next() else { panic!("a patch") };
    assert_eq!(patch["spec"], json!({"instancetype": {"revisionName": null}}));
    // What is not in the cache yet is not gone; what is gone is not waited for.
    world.revisions = Vec::new();
    world.vm = sized("vm-tiny-v1beta1-t-5", "60");
    check(&world, &[&updating()], "the cache is behind");
    world.revisions =
        vec![json!({"metadata": {"name": "newest", "namespace": "ns", "uid": "n", "resourceVersion": "70"},
        "revision": 0})];
    assert_eq!(words(&world.plan())[0], named);
}

#[test]
fn a_restore_that_came_to_nothing_leaves_nothing() {
    let gone = "patch virtualmachinerestores/r finalizers=[]";
    let deleting = stopped("VM restore is deleting");
    let free = "patch virtualmachines/vm/status memoryDumpRequest=null restoreInProgress=null";
    let mut world = World::begun();
    world.restore = with(world.restore, deleted());
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    check(
        &world,
        &["unchanged virtualmachines/vm", "delete persistentvolumeclaims/restore-r-uid-disk", &deleting],
        "what nobody has",
    );
    world.claims[1] = claim("restore-r-uid-disk", "Bound", with(ours(), deleted()));
    check(&world, &[&deleting], "waits");
    world.claims.pop();
    check(&world, &[&format!("absent {NEW}"), free], "lets go");
    world.vm = Some(vm());
    check(&world, &[&format!("absent {NEW}"), gone], "surely");
    // What the machine has it keeps, and what somebody else has.
    world.vm = Some(with(restored("restore-r-uid-disk"), json!({"status": {"restoreInProgress": null}})));
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    check(&world, &[gone], "in use");
    world.vm = Some(vm());
    world.claims[1] = claim("restore-r-uid-disk", "Bound", json!({}));
    check(&world, &[gone], "not ours");
    // Of one that is complete, nothing goes.
    world.claims[1] = claim("restore-r-uid-disk", "Bound", ours());
    world.restore["status"]["complete"] = json!(true);
    check(&world, &[gone], "complete");
    // Whether there is a machine that has them must be known.
    let mut world = World::begun().elsewhere();
    world.restore = with(world.restore, deleted());
    world.claims.push(claim("restore-r-uid-disk", "Bound", ours()));
    check(
        &world,
        &["absent virtualmachines/other", "delete persistentvolumeclaims/restore-r-uid-disk", &deleting],
        "nobody is there",
    );
    world.claims.pop();
    check(&world, &[&format!("absent {NEW}"), "absent virtualmachines/other", gone], "surely");
}
