//! What the clone controller plans, table by table; the cases are those of KubeVirt's `clone_test.go`, and those that it lacks.

use carrack_engine::testing::Caches;
use carrack_engine::{Absent, Controller, Key, Plan, Refusal, StatusError, Time, Write};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineClone, VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::CloneController;
use crate::controllers::testing::{merge, of};

const NOW: Time = Time::from_unix_s(1_000_000);
const SNAPSHOT: &str = "tmp-snapshot-clone-uid";
const RESTORE: &str = "tmp-restore-clone-uid";

/// What there is in a test.
#[derive(Clone)]
struct Scene {
    clone: Value,
    vms: Vec<Value>,
    snapshots: Vec<Value>,
    contents: Vec<Value>,
    restores: Vec<Value>,
    claims: Vec<Value>,
}

fn owned(uid: &str) -> Value {
    json!([{"apiVersion": "clone.kubevirt.io/v1beta1", "kind": "VirtualMachineClone", "name": "c", "uid": uid,
        "controller": true, "blockOwnerDeletion": true}])
}

fn vm(name: &str, more: Value) -> Value {
    let mut vm = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-uid"), "resourceVersion": "3"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {"interfaces": [
            {"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:01"}]}}, "volumes": []}}}});
    merge(&mut vm, more);
    vm
}

/// A machine with a disk of a claim.
fn with_disk(name: &str, status: Value) -> Value {
    let volumes = json!([{"name": "disk", "persistentVolumeClaim": {"claimName": "data"}}]);
    vm(name, json!({"spec": {"template": {"spec": {"volumes": volumes}}}, "status": status}))
}

impl Scene {
    /// A clone of the machine `golden` to `copy`, in this phase.
    fn new(phase: &str, status: Value) -> Self {
        let mut clone = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "clone-uid", "resourceVersion": "9",
                "finalizers": ["clone.kubevirt.io/vmclone-protection"]},
            "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "golden"},
                "target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "copy"}},
            "status": {"phase": phase}});
        merge(&mut clone["status"], status);
        Self {
            clone,
            vms: vec![vm("golden", json!({}))],
            snapshots: Vec::new(),
            contents: Vec::new(),
            restores: Vec::new(),
            claims: Vec::new(),
        }
    }
    fn of_snapshot(mut self, name: &str) -> Self {
        let source = json!({"apiGroup": "snapshot.kubevirt.io", "kind": "VirtualMachineSnapshot", "name": name});
        self.clone["spec"]["source"] = source;
        self
    }
    fn with(mut self, more: Value) -> Self {
        merge(&mut self.clone, more);
        self
    }
    fn source(mut self, vm: Value) -> Self {
        self.vms = vec![vm];
        self
    }
    fn without_source(mut self) -> Self {
        self.vms.clear();
        self
    }
    fn target(mut self, more: Value) -> Self {
        let by = format!("{RESTORE}-restore-uid");
        let mut target = vm("copy", json!({"metadata": {"annotations": {"restore.kubevirt.io/lastRestoreUID": by}}}));
        merge(&mut target, more);
        self.vms.push(target);
        self
    }
    /// The clone's snapshot, as the clone makes it.
    fn snapshot(mut self, ready: bool, more: Value) -> Self {
        let made =
            Self::new("", json!({})).source(self.vms.first().cloned().unwrap_or_else(|| vm("golden", json!({}))));
        let mut snapshot = made.created("virtualmachinesnapshots");
        merge(
            &mut snapshot,
            json!({"metadata": {"uid": "snapshot-uid", "resourceVersion": "5"}, "status": {
            "readyToUse": ready, "virtualMachineSnapshotContentName": "vmsnapshot-content-snapshot-uid",
            "phase": if ready { "Succeeded" } else { "InProgress" }}}),
        );
        merge(&mut snapshot, more);
        self.snapshots.push(snapshot);
        self
    }
    /// A snapshot of somebody's.
    fn others_snapshot(mut self, ready: bool) -> Self {
        self.snapshots.push(
            json!({"metadata": {"name": "before", "namespace": "ns", "uid": "snapshot-uid", "resourceVersion": "5"},
            "spec": {"source": {"kind": "VirtualMachine", "name": "golden"}}, "status": {
            "readyToUse": ready, "virtualMachineSnapshotContentName": "vmsnapshot-content-snapshot-uid"}}),
        );
        self
    }
    /// The content of either.
    fn content(mut self, more: Value) -> Self {
        let source = self.vms.first().cloned().unwrap_or_else(|| vm("golden", json!({})));
        let mut content = json!({"metadata": {"name": "vmsnapshot-content-snapshot-uid", "namespace": "ns", "uid": "content-uid",
                "resourceVersion": "6"},
            "spec": {"virtualMachineSnapshotName": self.snapshots[0]["metadata"]["name"],
                "source": {"virtualMachine": {"metadata": source["metadata"], "spec": source["spec"]}}}});
        merge(&mut content, more);
        self.contents.push(content);
        self
    }
    /// The clone's restore, as the clone makes it.
    fn restore(mut self, complete: bool, more: Value) -> Self {
        let mut before = self.clone.clone();
        before["status"] = json!({"phase": "SnapshotInProgress"});
        let mut made = Self { clone: before, restores: Vec::new(), ..self.clone() };
        made.vms.truncate(1);
        if made.snapshots.is_empty() {
            made = made.snapshot(true, json!({}));
        }
        made.snapshots[0]["status"]["readyToUse"] = json!(true);
        if made.contents.is_empty() {
            made = made.content(json!({}));
        }
        let mut restore = made.created("virtualmachinerestores");
        merge(
            &mut restore,
            json!({"metadata": {"uid": "restore-uid", "resourceVersion": "7"}, "status": {"complete": complete}}),
        );
        merge(&mut restore, more);
        self.restores.push(restore);
        self
    }
    fn claim(mut self, name: &str, phase: &str) -> Self {
        self.claims
            .push(json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "status": {"phase": phase}}));
        self
    }

    fn caches(&self) -> Caches {
        fn all<K: DeserializeOwned>(values: &[Value]) -> Vec<K> {
            values.iter().cloned().map(of).collect()
        }
        Caches::new()
            .with(all::<VirtualMachineClone>(std::slice::from_ref(&self.clone)))
            .with(all::<VirtualMachine>(&self.vms))
            .with(all::<VirtualMachineSnapshot>(&self.snapshots))
            .with(all::<VirtualMachineSnapshotContent>(&self.contents))
            .with(all::<VirtualMachineRestore>(&self.restores))
            .with(all::<PersistentVolumeClaim>(&self.claims))
    }
    fn plan(&self) -> Plan {
        CloneController::default().reconcile(&Key::new("ns", "c"), &self.caches().view(), NOW)
    }
    /// What the plan creates of a resource.
    fn created(&self, plural: &str) -> Value {
        let plan = self.plan();
        let created = plan.writes.iter().find_map(|write| match write {
            Write::Create { resource, object } if resource.plural == plural => Some(object.clone()),
            _ => None,
        });
        created.unwrap_or_else(|| panic!("no {plural} in {plan:?}"))
    }
}

/// A plan in short: its writes in their order, then its events.
fn acts(plan: &Plan) -> Vec<String> {
    let write = |write: &Write| match write {
        Write::Create { object, .. } => format!("create {}", object["metadata"]["name"].as_str().unwrap_or_default()),
        Write::Delete { key, options, .. } => {
            format!("delete {} {}", key.name, options.uid.as_deref().unwrap_or_default())
        }
        Write::Patch { sub: "status", patch, .. } => {
            let status = &patch["status"];
            let field = |name: &str| match status.get(name) {
                None => String::new(),
                Some(value) => format!(" {name}={}", value.as_str().unwrap_or("null")),
            };
            format!("status{}{}{}{}", field("phase"), field("snapshotName"), field("restoreName"), field("targetName"))
        }
        Write::Patch { patch, .. } => format!("patch {}", patch["metadata"]["finalizers"]),
        Write::Confirm { absent, .. } => match absent {
            Absent::Object { key, uid } if uid.is_empty() => format!("no {}", key.name),
            Absent::Child { key, owner } => format!("no {} of {owner}", key.name),
            Absent::Newer { key, resource_version } => format!("same {} {resource_version}", key.name),
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    };
    let events = plan.events.iter().chain(plan.told.iter().map(|(_, event)| event));
    let error = plan.error.iter().map(|error| format!("error {error}"));
    plan.writes.iter().map(write).chain(events.map(|event| format!("! {}", event.reason))).chain(error).collect()
}

#[track_caller]
fn check(name: &str, scene: &Scene, wanted: &[&str]) {
    assert_eq!(acts(&scene.plan()), wanted, "{name}");
}

/// Names that the status has.
fn named(names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| ((*name).to_owned(), json!(if *name == "snapshotName" { SNAPSHOT } else { RESTORE })))
        .collect()
}

#[test]
fn the_first_write_is_the_finalizer() {
    let bare = Scene::new("", json!({})).with(json!({"metadata": {"finalizers": ["other"]}}));
    check("a clone without it", &bare, &[r#"patch ["other","clone.kubevirt.io/vmclone-protection"]"#]);
}

#[test]
fn a_source_that_is_not_ready_is_waited_for() {
    let wait = ["status", "! SourceDoesNotExist"];
    check("no machine", &Scene::new("", json!({})).without_source(), &wait);
    check("no snapshot", &Scene::new("", json!({})).of_snapshot("before"), &wait);
    let going = vm("golden", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    check("a machine that goes", &Scene::new("", json!({})).source(going), &wait);
    // What was said is not said again.
    let plan = Scene::new("", json!({})).without_source().plan();
    let [Write::Patch { patch, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    let told = Scene::new("", patch["status"].clone()).without_source();
    check("told already", &told, &[]);
    let disk = |status: Value| Scene::new("", json!({})).source(with_disk("golden", status));
    let statuses = |enabled: bool| json!({"volumeSnapshotStatuses": [{"name": "disk", "enabled": enabled}]});
    check("volumes nobody knows of", &disk(json!({})), &["status", "! VMVolumeSnapshotsInvalid"]);
    check("volumes without snapshots", &disk(statuses(false)), &["status", "! VMVolumeSnapshotsInvalid"]);
    check("volumes with snapshots", &disk(statuses(true)), &["create tmp-snapshot-clone-uid", "! SnapshotCreated"]);
    // What firmware keeps is taken along; upstream refuses such machines.
    let efi = json!({"firmware": {"bootloader": {"efi": {"persistent": true}}}});
    let keeps = vm("golden", json!({"spec": {"template": {"spec": {"domain": efi}}}}));
    let taken = ["create tmp-snapshot-clone-uid", "! SnapshotCreated"];
    check("state beside volumes", &Scene::new("", json!({})).source(keeps.clone()), &taken);
    let state = |enabled: bool, volumes: Value| {
        let statuses = json!({"volumeSnapshotStatuses": [{"name": "persistent-state-for-golden", "enabled": enabled}]});
        let mut keeps = keeps.clone();
        merge(&mut keeps, json!({"status": statuses, "spec": {"template": {"spec": {"volumes": volumes}}}}));
        Scene::new("", json!({})).source(keeps)
    };
    check("state that can be kept", &state(true, json!([])), &taken);
    let cannot = state(false, json!([]));
    check("state that cannot be kept", &cannot, &["status", "! VMVolumeSnapshotsInvalid"]);
    let plan = cannot.plan();
    let [Write::Patch { patch, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    let ready = patch["status"]["conditions"][1].clone();
    assert_eq!(
        (&ready["type"], &ready["reason"]),
        (&json!("Ready"), &json!("Virtual Machine volume persistent-state-for-golden does not support snapshots"))
    );
    let scratch = json!([{"name": "persistent-state-for-golden", "emptyDisk": {"capacity": "1Gi"}}]);
    check("a volume of that name that is not kept", &state(false, scratch), &taken);
}

#[test]
fn the_snapshot_of_a_machine() {
    let create = ["create tmp-snapshot-clone-uid", "! SnapshotCreated"];
    check("none yet", &Scene::new("", json!({})), &create);
    check("none yet, though waited for", &Scene::new("SnapshotInProgress", json!({})), &create);
    let made = Scene::new("", json!({})).created("virtualmachinesnapshots");
    assert_eq!(made["metadata"]["ownerReferences"], owned("clone-uid"));
    assert_eq!(
        made["spec"],
        json!({"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "golden"}})
    );
    let plan = Scene::new("", json!({})).plan();
    let [(0, premise)] = &plan.premises[..] else { panic!("{plan:?}") };
    assert_eq!((premise.name.as_str(), premise.resource_version.as_deref()), ("c", Some("9")), "it rests on the clone");

    let there = |status: Value, more: Value| Scene::new("SnapshotInProgress", status).snapshot(false, more);
    let name = named(&["snapshotName"]);
    check("there, and not noted", &there(json!({}), json!({})), &["status snapshotName=tmp-snapshot-clone-uid"]);
    let noted = Scene::new("", json!({})).snapshot(false, json!({}));
    check("there, and nothing noted", &noted, &["status phase=SnapshotInProgress snapshotName=tmp-snapshot-clone-uid"]);
    let plan = noted.plan();
    let [Write::Patch { patch, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    check("not ready yet", &Scene::new("", patch["status"].clone()).snapshot(false, json!({})), &[]);
    check(
        "failed",
        &there(name.clone(), json!({"status": {"phase": "Failed", "error": {"message": "no room"}}})),
        &["same tmp-snapshot-clone-uid 5", "status phase=Failed", "! SnapshotFailed"],
    );
    check(
        "deleted by somebody",
        &Scene::new("SnapshotInProgress", name.clone()),
        &["no tmp-snapshot-clone-uid", "status phase=Failed", "! SnapshotDeleted"],
    );
    check("the source is gone meanwhile", &there(name, json!({})).without_source(), &["status"]);
}

#[test]
fn what_has_a_childs_name_is_looked_at() {
    let conflict = |child: &str, revision: &str| -> Vec<String> {
        vec![format!("same {child} {revision}"), "status phase=Failed".to_owned(), "! NameConflict".to_owned()]
    };
    let check = |name: &str, scene: &Scene, wanted: Vec<String>| assert_eq!(acts(&scene.plan()), wanted, "{name}");
    let foreign = json!({"metadata": {"ownerReferences": owned("another-uid")}});
    let other = json!({"metadata": {"annotations": {"clone.kubevirt.io/spec-digest": "another"}}});
    let snapshot = |more: &Value| Scene::new("", json!({})).snapshot(true, more.clone());
    check("somebody else's snapshot", &snapshot(&foreign), conflict(SNAPSHOT, "5"));
    check("nobody's snapshot", &snapshot(&json!({"metadata": {"ownerReferences": []}})), conflict(SNAPSHOT, "5"));
    check("a snapshot of something else", &snapshot(&other), conflict(SNAPSHOT, "5"));
    let restore = |more: &Value| {
        let scene =
            Scene::new("SnapshotInProgress", named(&["snapshotName"])).snapshot(true, json!({})).content(json!({}));
        scene.restore(false, more.clone())
    };
    check("somebody else's restore", &restore(&foreign), conflict(RESTORE, "7"));
    check("a restore to something else", &restore(&other), conflict(RESTORE, "7"));
    // Once it was taken for the clone's own, it is.
    let adopted = named(&["snapshotName", "restoreName"]);
    let scene = Scene::new("RestoreInProgress", adopted).snapshot(true, json!({})).content(json!({}));
    check("adopted before", &scene.restore(false, other), vec!["status".to_owned()]);
}

#[test]
fn the_restore_of_a_snapshot() {
    let noted = |names: &[&str], phase: &str| Scene::new(phase, named(names)).snapshot(true, json!({}));
    let create = ["create tmp-restore-clone-uid", "! SnapshotReady", "! RestoreCreated"];
    let ready = noted(&["snapshotName"], "SnapshotInProgress");
    check("the snapshot is ready", &ready.clone().content(json!({})), &create);
    check("the snapshot is ready, the source gone", &ready.clone().content(json!({})).without_source(), &create);
    let restore = ready.clone().content(json!({})).created("virtualmachinerestores");
    assert_eq!(restore["metadata"]["ownerReferences"], owned("clone-uid"));
    assert_eq!(restore["spec"]["virtualMachineSnapshotName"], SNAPSHOT);
    assert_eq!(restore["spec"]["target"], json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "copy"}));
    let patch = r#"{"op":"remove","path":"/spec/template/spec/domain/devices/interfaces/0/macAddress"}"#;
    assert_eq!(restore["spec"]["patches"], json!([patch]));
    let prefixed = ready.clone().content(json!({})).with(json!({"spec": {"volumeNamePolicy": "PrefixTargetName"}}));
    assert_eq!(prefixed.created("virtualmachinerestores")["spec"]["volumeRestorePolicy"], "PrefixTargetName");
    // What is to be changed is seen in the snapshot, not in the machine as it is now.
    let labels = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let changed = ready.clone().content(json!({"spec": {"source": {"virtualMachine": labels("old")}}}));
    let changed = changed.source(vm("golden", labels("new"))).with(json!({"spec": {"labelFilters": ["none"]}}));
    let patches = changed.created("virtualmachinerestores")["spec"]["patches"].to_string();
    assert!(patches.contains("/metadata/labels/old") && !patches.contains("/metadata/labels/new"), "{patches}");

    let invalid = ["same vmsnapshot-content-snapshot-uid 6", "status phase=Failed", "! SnapshotContentInvalid"];
    let content = |more: Value| ready.clone().content(more);
    check("a content of nothing", &content(json!({"spec": {"virtualMachineSnapshotName": null}})), &invalid);
    let disk = with_disk("golden", json!({}))["spec"].clone();
    let without = json!({"spec": {"source": {"virtualMachine": {"spec": disk}}}});
    check("a volume that is not in it", &content(without.clone()), &invalid);
    let mut with = without;
    with["spec"]["volumeBackups"] = json!([{"volumeName": "disk", "persistentVolumeClaim": {}}]);
    check("a volume that is in it", &content(with), &create);
    let left_out = json!({"snapshot.kubevirt.io/left-out": "persistent-state-for-golden"});
    check("state that was left out", &content(json!({"metadata": {"annotations": left_out}})), &invalid);
    let keeps = json!({"firmware": {"bootloader": {"efi": {"persistent": true}}}});
    let keeper = |noted: Value| {
        let machine = json!({"metadata": {"name": "golden"}, "spec": {"template": {"spec": {"domain": keeps}}}});
        content(json!({"metadata": {"annotations": noted}, "spec": {"source": {"virtualMachine": machine}}}))
    };
    check("none was left out", &keeper(json!({"snapshot.kubevirt.io/left-out": ""})), &create);
    let unsure: Vec<&str> = create.iter().copied().chain(["! StateUnknown"]).collect();
    check("that is not noted, since it is old", &keeper(json!({})), &unsure);
    check(
        "a content that the cache does not show",
        &ready,
        &["no vmsnapshot-content-snapshot-uid", "status phase=Failed", "! SnapshotContentInvalid"],
    );

    let there = ready.clone().content(json!({})).restore(false, json!({}));
    check("there, and not noted", &there, &["status phase=RestoreInProgress restoreName=tmp-restore-clone-uid"]);
    let both = || noted(&["snapshotName", "restoreName"], "RestoreInProgress").content(json!({}));
    check("not done yet", &both().restore(false, json!({})), &["status"]);
    let failure =
        json!({"status": {"conditions": [{"type": "Failure", "status": "True", "reason": "TargetNotReady"}]}});
    check(
        "failed",
        &both().restore(false, failure),
        &["same tmp-restore-clone-uid 7", "status phase=Failed", "! RestoreFailed"],
    );
    check("deleted by somebody", &both(), &["no tmp-restore-clone-uid", "status phase=Failed", "! RestoreDeleted"]);
    let mut bereft = both().restore(false, json!({}));
    bereft.snapshots.clear();
    check(
        "its snapshot deleted by somebody",
        &bereft,
        &["no tmp-snapshot-clone-uid", "status phase=Failed", "! SnapshotDeleted"],
    );
}

#[test]
fn a_snapshot_as_source() {
    let cloned = |phase: &str, status: Value| Scene::new(phase, status).of_snapshot("before");
    check("not ready", &cloned("SnapshotInProgress", json!({})).others_snapshot(false), &["status"]);
    check(
        "not ready, nothing noted",
        &cloned("", json!({})).others_snapshot(false),
        &["status phase=SnapshotInProgress"],
    );
    let ready = cloned("", json!({})).others_snapshot(true).content(json!({}));
    check("ready", &ready, &["create tmp-restore-clone-uid", "! SnapshotReady", "! RestoreCreated"]);
    let restored = ready.restore(false, json!({}));
    check("restored, not noted", &restored, &["status phase=RestoreInProgress restoreName=tmp-restore-clone-uid"]);
    let done = cloned("Succeeded", json!({"targetName": "copy", "restoreName": RESTORE}))
        .others_snapshot(true)
        .content(json!({}));
    let done = done.restore(true, json!({})).target(json!({}));
    check("done", &done, &["delete tmp-restore-clone-uid restore-uid", "! PVCBound"]);
    // The source stays.
    let cleared = cloned("Succeeded", json!({"targetName": "copy", "restoreName": RESTORE})).others_snapshot(true);
    check(
        "cleared up",
        &cleared.target(json!({})),
        &[
            "no tmp-restore-clone-uid of clone-uid",
            "no tmp-snapshot-clone-uid of clone-uid",
            "status snapshotName=null restoreName=null",
        ],
    );
}

#[test]
fn a_target_that_is_taken() {
    let ready =
        || Scene::new("SnapshotInProgress", named(&["snapshotName"])).snapshot(true, json!({})).content(json!({}));
    let taken = ["same copy 3", "status phase=Failed", "! RestoreCreationFailed"];
    let mut strange = ready();
    strange.vms.push(vm("copy", json!({})));
    check("by a machine that was there", &strange, &taken);
    let others =
        json!({"metadata": {"annotations": {"restore.kubevirt.io/lastRestoreUID": "tmp-restore-another-uid-7"}}});
    check("by another clone", &ready().target(others.clone()), &taken);
    let both = Scene::new("RestoreInProgress", named(&["snapshotName", "restoreName"])).snapshot(true, json!({}));
    let both = both.content(json!({})).restore(false, json!({}));
    check("by another clone, while restoring", &both.clone().target(others), &taken);
    check("by its own restore", &both.target(json!({})), &["status"]);
    // A snapshot may be restored to the machine that it is of.
    let mut back = Scene::new("", json!({})).of_snapshot("before").others_snapshot(true).content(json!({}));
    back.clone["spec"]["target"]["name"] = json!("golden");
    check(
        "by the snapshot's own source",
        &back,
        &["create tmp-restore-clone-uid", "! SnapshotReady", "! RestoreCreated"],
    );
}

#[test]
fn refusals() {
    let scene = Scene::new("SnapshotInProgress", named(&["snapshotName"])).snapshot(true, json!({})).content(json!({}));
    let check = |reason: &str, wanted: &[&str]| {
        let (plan, caches) = (scene.plan(), scene.caches());
        let error = StatusError { code: 422, reason: reason.into(), message: "no".into(), ..StatusError::default() };
        let refusal = Refusal { write: &plan.writes[0], error: &error };
        let said = CloneController::default().refused(&Key::new("ns", "c"), &caches.view(), &refusal, NOW);
        assert_eq!(acts(&said), wanted, "{reason}");
    };
    check("Invalid", &["no tmp-restore-clone-uid of clone-uid", "status phase=Failed", "! RestoreCreationFailed"]);
    check("Forbidden", &["! RestoreCreationFailed"]);
    check("AlreadyExists", &[]);
}

#[test]
fn the_target_appears() {
    let done = || {
        let scene = Scene::new("RestoreInProgress", named(&["snapshotName", "restoreName"])).snapshot(true, json!({}));
        scene.content(json!({})).restore(true, json!({}))
    };
    check("the restore is done", &done(), &["status phase=CreatingTargetVM targetName=copy", "! RestoreReady"]);
    check(
        "the restore is done, the target there",
        &done().target(json!({})),
        &["status phase=Succeeded targetName=copy", "! RestoreReady", "! TargetVMCreated"],
    );
    let creating = |more: Value| {
        let mut status = named(&["snapshotName", "restoreName"]);
        merge(&mut status, json!({"targetName": "copy"}));
        let scene = Scene::new("CreatingTargetVM", status).snapshot(true, json!({})).content(json!({}));
        scene.restore(true, json!({})).with(more)
    };
    check("there", &creating(json!({})).target(json!({})), &["status phase=Succeeded", "! TargetVMCreated"]);
    let mut without = creating(json!({}));
    without.restores.clear();
    check("there, the restore is gone", &without.target(json!({})), &["status phase=Succeeded", "! TargetVMCreated"]);
    check("deleted at once", &creating(json!({})), &["no copy", "delete c clone-uid"]);
    // A target without a name in the spec has one that follows from the clone.
    let nameless =
        Scene::new("SnapshotInProgress", named(&["snapshotName"])).snapshot(true, json!({})).content(json!({}));
    let nameless = nameless.with(json!({"spec": {"target": null}}));
    let name = |scene: &Scene| scene.created("virtualmachinerestores")["spec"]["target"]["name"].clone();
    assert_eq!(name(&nameless), name(&nameless));
    assert!(name(&nameless).as_str().is_some_and(|name| name.starts_with("clone-golden-")), "{}", name(&nameless));
    let plan = done().target(json!({})).plan();
    let [Write::Patch { patch, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    assert_eq!(patch["status"]["creationTime"], json!(NOW.meta()));
    let conditions = patch["status"]["conditions"].to_string();
    assert!(conditions.contains(r#""reason":"Ready","status":"True","type":"Ready""#), "{conditions}");
    assert!(conditions.contains(r#""reason":"Ready","status":"False","type":"Progressing""#), "{conditions}");
}

#[test]
fn what_was_made_is_taken_away_and_then_forgotten() {
    let succeeded = |names: &[&str]| {
        let mut status = named(names);
        merge(&mut status, json!({"targetName": "copy"}));
        Scene::new("Succeeded", status).target(json!({}))
    };
    let both = || {
        let scene = succeeded(&["snapshotName", "restoreName"]).snapshot(true, json!({})).content(json!({}));
        scene.restore(true, json!({"status": {"restores": [{"volumeName": "a", "persistentVolumeClaim": "restored-a",
            "volumeSnapshotName": "x"}, {"volumeName": "b", "persistentVolumeClaim": "restored-b", "volumeSnapshotName": "y"}]}}))
    };
    let delete = "delete tmp-restore-clone-uid restore-uid";
    let bound = |name: &str| both().claim("restored-a", "Bound").claim("restored-b", name);
    check("a claim is not bound", &bound("Pending"), &[]);
    check("all claims are bound", &bound("Bound"), &[delete, "! PVCBound"]);
    check("a claim's volume is lost", &bound("Lost"), &[delete, "! PVCBound"]);
    check(
        "a claim is not in the cache",
        &both().claim("restored-a", "Bound"),
        &["no restored-b", delete, "! PVCBound"],
    );
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut goes = bound("Bound");
    merge(&mut goes.restores[0], going.clone());
    check("the restore goes", &goes, &[]);
    let mut gone = both();
    gone.restores.clear();
    let no_restore = "no tmp-restore-clone-uid of clone-uid";
    check("the restore is gone", &gone, &[no_restore, "delete tmp-snapshot-clone-uid snapshot-uid"]);
    merge(&mut gone.snapshots[0], going.clone());
    check("the snapshot goes", &gone, &[]);
    gone.snapshots.clear();
    let no_snapshot = "no tmp-snapshot-clone-uid of clone-uid";
    check("both are gone", &gone, &[no_restore, no_snapshot, "status snapshotName=null restoreName=null"]);
    let resting: Vec<String> = gone.plan().premises.iter().map(|(_, premise)| premise.name.clone()).collect();
    assert!(resting.contains(&SNAPSHOT.to_owned()) && resting.contains(&RESTORE.to_owned()), "{resting:?}");
    check("forgotten", &succeeded(&[]), &[]);
    // One that comes late is found, whatever the status says.
    check(
        "a snapshot that came late",
        &succeeded(&[]).snapshot(true, json!({})),
        &[no_restore, "delete tmp-snapshot-clone-uid snapshot-uid"],
    );

    let failed = |names: &[&str]| Scene::new("Failed", named(names)).snapshot(false, json!({}));
    check(
        "failed while restoring",
        &failed(&["snapshotName", "restoreName"]).content(json!({})).restore(false, json!({})),
        &[delete],
    );
    check("failed before", &failed(&["snapshotName"]), &[no_restore, "delete tmp-snapshot-clone-uid snapshot-uid"]);

    let deleted = |scene: Scene| scene.with(going.clone());
    check("deleted at first", &deleted(Scene::new("", json!({}))), &[no_restore, no_snapshot, "patch []"]);
    check(
        "deleted while the snapshot is taken",
        &deleted(Scene::new("SnapshotInProgress", named(&["snapshotName"])).snapshot(false, json!({}))),
        &[no_restore, "delete tmp-snapshot-clone-uid snapshot-uid"],
    );
    let restoring = Scene::new("RestoreInProgress", named(&["snapshotName", "restoreName"])).snapshot(true, json!({}));
    check("deleted while restoring", &deleted(restoring.content(json!({})).restore(false, json!({}))), &[delete]);
    check("deleted while claims are made", &deleted(bound("Pending")), &[]);
    check("deleted when they are", &deleted(bound("Bound")), &[delete, "! PVCBound"]);
    let others = deleted(Scene::new("", json!({})))
        .with(json!({"metadata": {"finalizers": ["a", "clone.kubevirt.io/vmclone-protection"]}}));
    check("others hold it, too", &others, &[no_restore, no_snapshot, r#"patch ["a"]"#]);
    check("let go of", &deleted(Scene::new("", json!({}))).with(json!({"metadata": {"finalizers": ["a"]}})), &[]);
}

#[test]
fn a_clone_goes_after_its_target() {
    let scene = Scene::new("Succeeded", json!({"targetName": "copy"}));
    check("the target is not in the cache", &scene, &["no copy", "delete c clone-uid"]);
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    check("the target goes", &scene.clone().target(going), &[]);
    check("a phase that nobody knows", &Scene::new("Unknown", json!({})), &[]);
}
