//! What the controllers of snapshots, contents and restores plan for disks that storage cannot snapshot, table by table.

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

use crate::controllers::defined::definitions;
use crate::controllers::restore::RestoreController;
use crate::controllers::snapshot::{ContentController, SnapshotController};
use crate::controllers::testing::{cached, of, with, words};

mod ends;
mod kept;

const NOW: Time = Time::from_unix_s(1_000_010);
/// After the deadline of a snapshot that says none.
const LATE: Time = Time::from_unix_s(1_000_302);
const COPY: &str = "vmsnapshot-content-s-uid-copy-disk";
const POD: &str = "virt-copying-vm-uid";
const NEW: &str = "restore-r-uid-disk";
const DIGEST: &str = "snapshot.kubevirt.io/spec-digest";

/// A cluster without snapshots of volumes, as JSON, to be changed by each row of a table.
struct World {
    snapshot: Value,
    content: Value,
    restore: Value,
    vm: Option<Value>,
    vmi: Option<Value>,
    claims: Vec<Value>,
    pods: Vec<Value>,
    classes: Vec<Value>,
    /// The VolumeSnapshots, where storage takes them.
    taken: Option<Vec<Value>>,
    now: Time,
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "x/v1", "kind": kind, "name": name, "uid": format!("{name}-uid"), "controller": true}])
}

fn spec() -> Value {
    json!({"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {"disks": [{"name": "disk"}]}},
        "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "data"}}]}}})
}

fn vm() -> Value {
    json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid", "resourceVersion": "20",
            "finalizers": ["snapshot.kubevirt.io/snapshot-source-protection"]},
        "spec": spec(), "status": {"snapshotInProgress": "s"}})
}

fn vmi() -> Value {
    json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "vmi-uid", "resourceVersion": "21",
            "ownerReferences": owner("VirtualMachine", "vm")}, "spec": {"domain": {}}, "status": {"phase": "Running"}})
}

fn claim(name: &str, more: Value) -> Value {
    let base = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-uid"), "resourceVersion": "22"},
        "spec": {"storageClassName": "plain", "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound"}});
    with(base, more)
}

fn class(name: &str, provisioner: &str, default: bool) -> Value {
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": default.to_string()});
    json!({"metadata": {"name": name, "resourceVersion": "100", "annotations": annotations}, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer"})
}

/// The object of the one thing that a plan creates.
fn created(plan: &Plan) -> Value {
    let objects: Vec<&Value> = plan
        .writes
        .iter()
        .filter_map(|write| match write {
            Write::Create { object, .. } => Some(object),
            _ => None,
        })
        .collect();
    assert_eq!(objects.len(), 1, "{:?}", words(plan));
    objects[0].clone()
}

impl World {
    /// A locked machine that is off, and its content.
    fn new() -> Self {
        let snapshot = json!({"metadata": {"name": "s", "namespace": "ns", "uid": "s-uid", "resourceVersion": "10",
                "creationTimestamp": "1970-01-12T13:46:40Z", "finalizers": ["snapshot.kubevirt.io/vmsnapshot-protection"]},
            "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}},
            "status": {"phase": "InProgress", "readyToUse": false, "sourceUID": "vm-uid",
                "virtualMachineSnapshotContentName": "vmsnapshot-content-s-uid"}});
        let content = json!({"metadata": {"name": "vmsnapshot-content-s-uid", "namespace": "ns", "uid": "content-uid",
                "resourceVersion": "30", "finalizers": ["snapshot.kubevirt.io/vmsnapshotcontent-protection"]},
            "spec": {"virtualMachineSnapshotName": "s",
                "source": {"virtualMachine": {"metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid"}, "spec": spec()}},
                "volumeBackups": [{"volumeName": "disk", "volumeSnapshotName": COPY,
                    "persistentVolumeClaim": {"metadata": {"name": "data", "uid": "data-uid"},
                        "spec": {"storageClassName": "plain", "accessModes": ["ReadWriteOnce"]}}}]},
            "status": {}});
        let restore = json!({"metadata": {"name": "r", "namespace": "ns", "uid": "r-uid", "resourceVersion": "11",
                "creationTimestamp": "1970-01-12T13:46:40Z", "finalizers": ["snapshot.kubevirt.io/vmrestore-protection"],
                "ownerReferences": owner("VirtualMachine", "vm")},
            "spec": {"target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"},
                "virtualMachineSnapshotName": "s"},
            "status": {"complete": false, "restores": [{"volumeName": "disk", "volumeSnapshotName": COPY,
                "persistentVolumeClaim": NEW}]}});
        Self {
            snapshot,
            content,
            restore,
            vm: Some(vm()),
            vmi: None,
            claims: vec![claim("data", json!({"status": {"capacity": {"storage": "2Gi"}}}))],
            pods: Vec::new(),
            classes: vec![class("plain", "driver", false)],
            taken: None,
            now: NOW,
        }
    }

    /// The same with the claim for the copy, and a pod in this state.
    fn copying(status: Value) -> Self {
        let mut world = Self::new();
        let mut copy = created(&world.content());
        copy["metadata"]["uid"] = json!("copy-uid");
        copy["metadata"]["resourceVersion"] = json!("23");
        world.claims.push(copy);
        let pod = created(&world.content());
        world.pods.push(with(pod, json!({"metadata": {"uid": "pod-uid", "resourceVersion": "24"}, "status": status})));
        world
    }

    /// The snapshot is taken, and to be restored: the machine is held for that, and the new claim is there.
    fn restoring() -> Self {
        let mut world = Self::copying(json!({}));
        world.pods.clear();
        world.content["status"] = json!({"readyToUse": true, "creationTime": "1970-01-12T13:46:44Z"});
        world.snapshot["status"] = json!({"phase": "Succeeded", "readyToUse": true, "sourceUID": "vm-uid",
            "virtualMachineSnapshotContentName": "vmsnapshot-content-s-uid"});
        world.vm = Some(with(
            vm(),
            json!({"metadata": {"finalizers": []},
            "status": {"snapshotInProgress": null, "restoreInProgress": "r"}}),
        ));
        let ours = json!({"restore.kubevirt.io/lastRestoreUID": "r-r-uid", "restore.kubevirt.io/name": "r"});
        world.claims.push(claim(NEW, json!({"metadata": {"annotations": ours}, "status": {"phase": "Pending"}})));
        world
    }

    fn caches(&self) -> Caches {
        // Something newer of each kind: the caches are far enough.
        let newest = json!({"metadata": {"name": "newest", "namespace": "other", "resourceVersion": "100"}});
        let mut caches = Caches::new();
        let mut defined = Vec::<PartialObject>::new();
        if let Some(taken) = &self.taken {
            let class = json!({"metadata": {"name": "snap", "resourceVersion": "100"}, "driver": "shelf",
                "deletionPolicy": "Delete"});
            caches = caches
                .with([of::<VolumeSnapshotClass>(class)])
                .with(taken.iter().chain([&newest]).cloned().map(of::<VolumeSnapshot>));
            defined = ["volumesnapshots", "volumesnapshotclasses"]
                .map(|kind| of(json!({"metadata": {"name": format!("{kind}.snapshot.storage.k8s.io")}})))
                .into();
        }
        caches
            .with([of::<VirtualMachineSnapshot>(self.snapshot.clone())])
            .with([of::<VirtualMachineSnapshotContent>(self.content.clone())])
            .with([of::<VirtualMachineRestore>(self.restore.clone())])
            .with(self.vm.clone().map(of::<VirtualMachine>))
            .with(self.vmi.iter().chain([&newest]).cloned().map(of::<VirtualMachineInstance>))
            .with(self.claims.iter().chain([&newest]).cloned().map(of::<PersistentVolumeClaim>))
            .with(self.pods.iter().cloned().map(of::<Pod>).map(cached))
            .with([of::<ControllerRevision>(with(newest.clone(), json!({"revision": 1})))])
            .with(self.classes.iter().cloned().map(of::<StorageClass>))
            .with_metadata(definitions(), defined)
    }

    fn snapshot(&self) -> Plan {
        SnapshotController::default().reconcile(&Key::new("ns", "s"), &self.caches().view(), self.now)
    }

    fn content(&self) -> Plan {
        let key = Key::new("ns", "vmsnapshot-content-s-uid");
        ContentController::default().reconcile(&key, &self.caches().view(), self.now)
    }

    fn restore(&self) -> Plan {
        RestoreController::default().reconcile(&Key::new("ns", "r"), &self.caches().view(), self.now)
    }
}

#[track_caller]
fn check(plan: &Plan, wanted: &[&str]) {
    assert_eq!(words(plan), wanted);
}

#[test]
fn a_volume_without_snapshots_is_kept_as_a_copy() {
    let kept = |change: fn(&mut World)| {
        let mut world = World::new();
        world.content = json!({"metadata": {"name": "other", "namespace": "ns"}, "spec": {"source": {}}});
        change(&mut world);
        created(&world.snapshot())["spec"]["volumeBackups"].clone()
    };
    assert_eq!(kept(|_| {})[0]["volumeSnapshotName"], COPY);
    let no_class = |world: &mut World| world.claims[0]["spec"]["storageClassName"] = json!(null);
    assert_eq!(kept(no_class), json!(null), "nothing makes a volume for the copy");
    let static_class = |world: &mut World| {
        world.classes = vec![class("plain", "kubernetes.io/no-provisioner", false), class("local", "driver", true)];
    };
    assert_eq!(kept(static_class)[0]["volumeSnapshotName"], COPY, "by the default class");
    assert_eq!(
        kept(|world| world.classes = vec![class("plain", "kubernetes.io/no-provisioner", true)]),
        json!(null),
        "a class that makes nothing"
    );
}

#[test]
fn a_machine_whose_guest_is_told_of_errors_is_to_be_stopped_first() {
    let loud = |policy: &str, bus: &str| {
        let mut vmi = vmi();
        vmi["spec"]["domain"]["devices"] =
            json!({"disks": [{"name": "disk", "errorPolicy": policy, "disk": {"bus": bus}}]});
        vmi
    };
    for (vmi, stops) in [
        (vmi(), false),
        (loud("stop", "virtio"), false),
        (loud("stop", "usb"), true),
        (loud("report", "virtio"), true),
        (loud("ignore", "scsi"), true),
    ] {
        let mut world = World::new();
        world.vm.as_mut().expect("a machine")["status"] = json!({});
        world.content = json!({"metadata": {"name": "other", "namespace": "ns"}, "spec": {"source": {}}});
        world.vmi = Some(with(vmi.clone(), json!({"status": {"phase": "Succeeded"}})));
        let said = words(&world.snapshot()).join("\n");
        assert!(said.contains("virtualmachines/vm"), "what has ended is told of nothing: {vmi}: {said}");
        world.vmi = Some(vmi.clone());
        let plan = world.snapshot();
        let said = words(&plan).join("\n");
        assert_eq!(!said.contains("virtualmachines/vm"), stops, "whether it is locked: {vmi}: {said}");
        if !stops {
            continue;
        }
        assert!(said.contains("Progressing=False(In error state)"), "{said}");
        let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
        let wanted = "stop the machine, or give the class a VolumeSnapshotClass";
        let told = patch["status"]["error"]["message"].as_str().is_some_and(|text| text.contains(wanted));
        assert!(told, "{patch}");
        // One that was started after it was locked is let go.
        world.vm = Some(vm());
        let said = words(&world.snapshot());
        assert!(said[0].starts_with("patch virtualmachines/vm finalizers="), "{said:?}");
    }
}

/// A machine that runs, with the claim for the copy and a pod that waits.
fn receiving(agent: bool) -> World {
    let mut world = World::new();
    let mut copy = created(&world.content());
    copy["metadata"]["uid"] = json!("copy-uid");
    copy["metadata"]["resourceVersion"] = json!("23");
    world.claims.push(copy);
    let condition = json!([{"type": "AgentConnected", "status": if agent { "True" } else { "False" }}]);
    world.vmi = Some(with(vmi(), json!({"status": {"nodeName": "n", "conditions": condition}})));
    let pod = created(&world.content());
    let running = json!({"phase": "Running", "containerStatuses": [{"name": "copy", "ready": true, "restartCount": 0,
        "image": "", "imageID": "", "containerID": "containerd://abc", "state": {"running": {}}}]});
    world.pods.push(with(pod, json!({"metadata": {"uid": "pod-uid", "resourceVersion": "24"}, "status": running})));
    world
}

/// The copy was begun, as the content remembers.
fn begun() -> World {
    let mut world = receiving(true);
    world.content["status"] = json!({"readyToUse": false, "volumeSnapshotStatus": [
        {"volumeSnapshotName": COPY, "creationTime": "1970-01-12T13:46:42Z", "readyToUse": false}]});
    world
}

#[test]
fn a_machine_that_runs_copies_its_disks_itself() {
    let mut world = receiving(true);
    let pod = world.pods[0].clone();
    let spec = &pod["spec"];
    assert_eq!(spec["containers"][0]["args"], json!(["receive", "--uid", "vmi-uid", "/disks/target-0"]));
    assert_eq!((spec["volumes"].as_array().map(Vec::len), &spec["restartPolicy"]), (Some(1), &json!("Never")));
    let term = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(term[0]["matchFields"][0]["values"], json!(["n"]));
    // Frozen only while it begins.
    let calls = |world: &World| -> Vec<String> {
        words(&world.content()).into_iter().map(|word| word.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let at = "call virtualmachineinstances/vm/";
    let content = "patch virtualmachinesnapshotcontents/vmsnapshot-content-s-uid/status".to_owned();
    let all = |names: &[&str]| -> Vec<String> {
        names.iter().map(|name| format!("{at}{name}")).chain([content.clone()]).collect()
    };
    assert_eq!(calls(&world), all(&["freeze", "copyvolumes", "unfreeze"]));
    let plan = world.content();
    let Some(Write::Call { body, .. }) = plan.writes.get(1) else { panic!("{plan:?}") };
    assert_eq!(body, &json!({"pod": "pod-uid", "container": "abc", "volumes": ["disk"]}));
    let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
    let said = &patch["status"]["volumeSnapshotStatus"][0];
    assert_eq!((&said["creationTime"], &said["readyToUse"]), (&json!("1970-01-12T13:46:50Z"), &json!(false)));
    assert_eq!(patch["status"]["creationTime"], json!(null), "what is not whole is not taken");
    assert_eq!(calls(&receiving(false)), all(&["copyvolumes"]));
    // A pod that has not started yet is waited for.
    world.pods[0]["status"] = json!({"phase": "Pending"});
    assert!(!words(&world.content()).join(" ").contains("call"));

    // Once it is whole, it is as of the time at which it began.
    let mut world = begun();
    check(&world.content(), &[]);
    world.pods[0]["status"] = json!({"phase": "Succeeded"});
    for vmi in [world.vmi.clone(), None] {
        world.vmi = vmi;
        let plan = world.content();
        let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
        assert_eq!(plan.writes.len(), 1, "{:?}", words(&plan));
        assert_eq!(patch["status"]["creationTime"], "1970-01-12T13:46:42Z");
        assert_eq!(patch["status"]["readyToUse"], true);
    }
}

#[test]
fn a_copy_that_a_machine_did_not_finish_is_begun_anew() {
    let another = with(vmi(), json!({"metadata": {"uid": "next-uid"}, "status": {"nodeName": "n"}}));
    let failed = json!({"phase": "Failed", "containerStatuses": null});
    for (vmi, status) in [
        (Some(another), None),
        (None, None),
        (Some(with(vmi(), json!({"status": {"nodeName": "n", "phase": "Succeeded"}}))), None),
        (Some(with(vmi(), json!({"status": {"nodeName": "n"}}))), Some(failed)),
    ] {
        let mut world = begun();
        world.vmi = vmi.clone();
        if let Some(status) = status {
            world.pods[0]["status"] = status;
        }
        let said = words(&world.content());
        assert!(said[0].starts_with(&format!("delete pods/{POD}")), "{vmi:?}: {said:?}");
        // A machine that is off is copied by a pod, one that has ended is waited for.
        world.pods.clear();
        let plan = world.content();
        let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
        let forgotten = &patch["status"]["volumeSnapshotStatus"][0];
        assert!(forgotten["readyToUse"] == false && forgotten["creationTime"].is_null(), "{patch}");
        world.content["status"] = json!({"readyToUse": false, "volumeSnapshotStatus": [
            {"volumeSnapshotName": COPY, "readyToUse": false}]});
        let phase = vmi.map(|vmi| vmi["status"]["phase"].clone());
        let said = words(&world.content()).join("\n");
        assert_eq!(
            said.contains(&format!("create pods/{POD}")),
            phase != Some(json!("Succeeded")),
            "{phase:?}: {said}"
        );
    }
}

/// One disk is copied by the machine, the other is taken by storage.
#[test]
fn disks_of_both_kinds_are_of_one_time() {
    const OTHER: &str = "vmsnapshot-s-uid-volume-more";
    let other = |mut world: World| {
        let backups = world.content["spec"]["volumeBackups"].as_array_mut().expect("backups");
        backups.push(json!({"volumeName": "more", "volumeSnapshotName": OTHER,
            "persistentVolumeClaim": {"metadata": {"name": "more"}, "spec": {"storageClassName": "shelf"}}}));
        world.classes.push(class("shelf", "shelf", false));
        world.taken = Some(Vec::new());
        world
    };
    let said = |world: &World| words(&world.content()).join("\n");
    let of_storage = |status: Value| {
        json!({"metadata": {"name": OTHER, "namespace": "ns", "uid": "vs-uid", "resourceVersion": "40",
            "ownerReferences": owner("VirtualMachineSnapshotContent", "content")},
        "spec": {"source": {"persistentVolumeClaimName": "more"}}, "status": status})
    };
    // Nothing is taken before the pod is there; then all at once, and the guest stays frozen until storage is done.
    let mut world = other(receiving(true));
    let pods = std::mem::take(&mut world.pods);
    assert!(said(&world).starts_with(&format!("create pods/{POD}")) && !said(&world).contains("volumesnapshots"));
    world.pods = pods;
    let all = words(&world.content());
    let firsts: Vec<&str> = all.iter().filter_map(|word| word.split(' ').next()).collect();
    assert_eq!(firsts, ["call", "create", "call", "patch"], "{all:?}");
    assert!(all[0].ends_with("freeze") && all[1].ends_with(OTHER) && all[2].ends_with("copyvolumes"), "{all:?}");
    let mut world = other(begun());
    world.taken = Some(vec![of_storage(json!({}))]);
    assert!(!said(&world).contains("call"), "{}", said(&world));
    world.taken = Some(vec![of_storage(json!({"creationTime": "1970-01-12T13:46:44Z", "readyToUse": true}))]);
    assert!(said(&world).starts_with("call virtualmachineinstances/vm/unfreeze"), "{}", said(&world));
    // A copy that is begun anew is of another time: what storage has taken goes first, and then all is taken again.
    world.pods.clear();
    let drop = format!("delete volumesnapshots/{OTHER}");
    for vmi in [world.vmi.clone(), None] {
        world.vmi = vmi;
        check(&world.content(), &[&format!("no child pods/{POD}"), &drop]);
    }
    let going = json!({"metadata": {"deletionTimestamp": "1970-01-12T13:46:45Z"}});
    world.taken = Some(vec![with(of_storage(json!({})), going)]);
    assert!(!said(&world).contains("create"), "{}", said(&world));
    // So do a copy of which it is not known when it was begun, and one of which storage's part is gone.
    let again = ["call virtualmachineinstances/vm/unfreeze".to_owned(), format!("delete pods/{POD}")];
    let mut unsure = other(receiving(true));
    unsure.taken = Some(vec![of_storage(json!({}))]);
    for mut world in [unsure, other(begun())] {
        for status in [json!({}), json!({"phase": "Succeeded"})] {
            let pod = with(world.pods.pop().expect("a pod"), json!({ "status": status }));
            world.pods.push(pod);
            // What fails at once is not begun again at once.
            let mut young = world.content["metadata"].clone();
            young["creationTimestamp"] = json!("1970-01-12T13:46:40Z");
            let metadata = std::mem::replace(&mut world.content["metadata"], young);
            world.pods[0]["metadata"]["creationTimestamp"] = json!("1970-01-12T13:46:49Z");
            let waits = words(&world.content()).join("\n");
            assert!(waits.contains("error") && !waits.contains("delete"), "{waits}");
            world.content["metadata"] = metadata;
            let said = words(&world.content());
            assert!(
                said.len() == 2 && said.iter().zip(&again).all(|(said, again)| said.starts_with(again)),
                "{said:?}"
            );
        }
    }
}

/// Storage takes all disks; the guest may have gone on between two of them.
#[test]
fn disks_that_storage_takes_are_of_one_time() {
    const A: &str = "vmsnapshot-s-uid-volume-a";
    const B: &str = "vmsnapshot-s-uid-volume-b";
    let check = |status: Value, wanted: &[&str]| {
        let mut world = World::new();
        let backup = |name: &str, child: &str| {
            json!({"volumeName": name, "volumeSnapshotName": child,
                "persistentVolumeClaim": {"metadata": {"name": name}, "spec": {"storageClassName": "shelf"}}})
        };
        world.content["spec"]["volumeBackups"] = json!([backup("a", A), backup("b", B)]);
        world.classes = vec![class("shelf", "shelf", false)];
        world.taken =
            Some(vec![json!({"metadata": {"name": A, "namespace": "ns", "uid": "a-uid", "resourceVersion": "40",
                "ownerReferences": owner("VirtualMachineSnapshotContent", "content")},
            "spec": {"source": {"persistentVolumeClaimName": "a"}}, "status": {}})]);
        world.vmi = Some(with(vmi(), json!({ "status": status })));
        check(&world.content(), wanted);
    };
    let agent = json!([{"type": "AgentConnected", "status": "True"}]);
    check(json!({ "conditions": agent }), &[&format!("delete volumesnapshots/{A}")]);
    check(json!({"conditions": agent, "fsFreezeStatus": "frozen"}), &[&format!("create volumesnapshots/{B}")]);
    // Without an agent nothing holds it still, and nothing says so.
    check(json!({}), &[&format!("create volumesnapshots/{B}")]);
}

#[test]
fn a_copy_is_a_claim_that_a_pod_fills() {
    let world = World::new();
    let plan = world.content();
    check(&plan, &[&format!("create persistentvolumeclaims/{COPY}")]);
    let made = created(&plan);
    assert_eq!(made["spec"]["storageClassName"], "plain");
    // The volume has two gibibytes, and a copy needs somewhat more.
    assert_eq!(made["spec"]["resources"]["requests"]["storage"], "2240Mi");
    assert_eq!(made["metadata"]["annotations"]["snapshot.kubevirt.io/volume-size"], "2048Mi");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "content-uid");

    let mut world = World::copying(json!({}));
    world.pods.clear();
    let plan = world.content();
    check(&plan, &["absent virtualmachineinstances/vm", &format!("create pods/{POD}")]);
    let premises: Vec<&str> = plan.premises.iter().filter(|(n, _)| *n == 1).map(|(_, p)| p.resource.as_str()).collect();
    for resource in
        ["virtualmachineinstances", "virtualmachines", "virtualmachinesnapshots", "virtualmachinesnapshotcontents"]
    {
        assert!(premises.contains(&resource), "{resource}: {premises:?}");
    }
    let made = created(&plan);
    let container = &made["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["copy", "keep", "/disks/source-0/disk.img", "/disks/target-0/disk.qcow2"]));
    assert_eq!(container["volumeMounts"][0]["readOnly"], true, "{made}");
    assert_eq!(container["volumeMounts"][1]["readOnly"], json!(null), "{made}");
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(made["spec"]["automountServiceAccountToken"], false);

    let says = |status: Value, wanted: &str| {
        let said = words(&World::copying(status).content()).join("\n");
        assert!(said.contains(wanted), "{wanted}: {said}");
    };
    says(json!({}), "patch virtualmachinesnapshotcontents/vmsnapshot-content-s-uid/status readyToUse=false");
    let failing = json!({"phase": "Running", "containerStatuses": [{"name": "copy", "ready": false, "restartCount": 1,
        "image": "", "imageID": "", "lastState": {"terminated": {"exitCode": 1, "message": "the disk is in use"}}}]});
    says(failing.clone(), "error");
    says(json!({"phase": "Failed"}), &format!("delete pods/{POD}"));
    says(json!({"phase": "Succeeded"}), "readyToUse=true");
    let plan = World::copying(failing).content();
    let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
    assert_eq!(patch["status"]["error"]["message"], format!("copying pod {POD}: the disk is in use"));
}

#[test]
fn what_is_somebody_elses_is_not_taken() {
    let says = |change: fn(&mut World), wanted: &str| {
        let mut world = World::copying(json!({"phase": "Succeeded"}));
        change(&mut world);
        let plan = world.content();
        let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{wanted}: {:?}", words(&plan)) };
        assert_eq!(patch["status"]["readyToUse"], false, "{patch}");
        assert!(patch["status"]["error"]["message"].as_str().is_some_and(|text| text.contains(wanted)), "{patch}");
    };
    says(|world| world.claims[1]["metadata"]["ownerReferences"] = json!([]), "belongs to somebody else");
    says(|world| world.claims[1]["metadata"]["annotations"][DIGEST] = json!("x"), "belongs to somebody else");
    says(|world| world.pods[0]["metadata"]["ownerReferences"] = json!([]), "copies for somebody else");
    let mut world = World::copying(json!({"phase": "Succeeded"}));
    world.pods[0]["metadata"]["annotations"][DIGEST] = json!("x");
    let said = words(&world.content());
    check(&world.content(), &[&format!("delete pods/{POD}")]);
    assert_eq!(said.len(), 1, "a pod for something else is made anew");
    // Somebody deleted the claim with the copy, and it was made again: it is blank.
    let mut world = World::copying(json!({"phase": "Succeeded"}));
    world.claims[1]["metadata"]["uid"] = json!("another-uid");
    check(&world.content(), &[&format!("delete pods/{POD}")]);
}

#[test]
fn a_content_goes_after_its_pod_and_its_copies() {
    let mut world = World::copying(json!({"phase": "Succeeded"}));
    world.content["status"] = json!({"readyToUse": true, "creationTime": "1970-01-12T13:46:44Z"});
    check(&world.content(), &[&format!("delete pods/{POD}")]);
    let Some(Write::Delete { options, .. }) = world.content().writes.into_iter().next() else { panic!("a deletion") };
    assert_eq!(options.grace_period_s, Some(0), "it runs nothing any more");
    world.content["metadata"]["deletionTimestamp"] = json!("1970-01-12T13:46:45Z");
    check(&world.content(), &[&format!("delete pods/{POD}"), &format!("delete persistentvolumeclaims/{COPY}")]);
    world.pods.clear();
    check(&world.content(), &[&format!("delete persistentvolumeclaims/{COPY}")]);
    world.claims.truncate(1);
    let gone = "patch virtualmachinesnapshotcontents/vmsnapshot-content-s-uid finalizers=[]";
    check(&world.content(), &[&format!("no child pods/{POD}"), &format!("absent persistentvolumeclaims/{COPY}"), gone]);
}

#[test]
fn a_copy_that_is_lost_is_told_of_on_proof() {
    let mut world = World::copying(json!({}));
    world.pods.clear();
    world.content["status"] = json!({"readyToUse": true, "creationTime": "1970-01-12T13:46:44Z"});
    world.claims.truncate(1);
    let said = words(&world.content());
    assert_eq!(said[0], format!("absent persistentvolumeclaims/{COPY}"));
    assert!(said[1].contains("readyToUse=false"), "{said:?}");
}

#[test]
fn a_restored_claim_is_filled_before_its_machine_is_changed() {
    let mut world = World::restoring();
    let new = world.claims.pop();
    let plan = world.restore();
    let made = created(&plan);
    assert_eq!(made["metadata"]["name"], NEW);
    assert_eq!((&made["spec"]["dataSource"], &made["spec"]["storageClassName"]), (&json!(null), &json!("plain")));
    assert_eq!(made["spec"]["resources"]["requests"]["storage"], "2048Mi");
    world.claims.extend(new);

    let plan = world.restore();
    let off = "absent virtualmachineinstances/vm";
    let filling =
        "patch virtualmachinerestores/r/status Progressing=True(Filling new PVCs) Ready=False(Waiting for new PVCs)";
    check(&plan, &[off, &format!("create pods/{POD}"), filling]);
    let pod = created(&plan);
    let args = json!(["copy", "restore", "/disks/source-0/disk.qcow2", "/disks/target-0/disk.img"]);
    assert_eq!(pod["spec"]["containers"][0]["args"], args);
    let pod = with(pod, json!({"metadata": {"uid": "pod-uid", "resourceVersion": "24"}}));
    let at = |phase: &str| vec![with(pod.clone(), json!({"status": {"phase": phase}}))];
    world.pods = at("Running");
    check(&world.restore(), &[filling]);
    world.pods = at("Failed");
    assert_eq!(words(&world.restore())[0], format!("delete pods/{POD}"));
    world.pods = at("Succeeded");
    let said = words(&world.restore());
    assert!(said[1].starts_with("patch virtualmachines/vm"), "{said:?}");
    // A claim that was deleted and made again since is blank, and filled first.
    let last = world.claims.last_mut().expect("the new claim");
    let uid = std::mem::replace(&mut last["metadata"]["uid"], json!("another-uid"));
    assert_eq!(words(&world.restore())[0], format!("delete pods/{POD}"));
    world.claims.last_mut().expect("the new claim")["metadata"]["uid"] = uid;
    let vm = world.vm.take().expect("a machine");
    world.vm = Some(with(vm, json!({"metadata": {"annotations": {"restore.kubevirt.io/lastRestoreUID": "r-r-uid"}}})));
    check(&world.restore(), &[&format!("delete pods/{POD}")]);
    world.pods.clear();
    let said = words(&world.restore());
    assert_eq!(said[..2], [format!("no child pods/{POD}"), "no child pods/virt-copying-r-uid".to_owned()]);
    assert!(said.last().is_some_and(|last| last.contains("complete=true")), "{said:?}");
}

/// A static volume may have been of many nodes; what is made in its place is of the default class.
#[test]
fn a_claim_of_another_class_than_its_source_is_for_one_node() {
    for (class, mode) in [("plain", "ReadWriteMany"), ("other", "ReadWriteOnce")] {
        let mut world = World::restoring();
        world.claims.pop();
        world.claims[1]["spec"]["storageClassName"] = json!(class);
        let of = &mut world.content["spec"]["volumeBackups"][0]["persistentVolumeClaim"];
        of["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        let made = created(&world.restore());
        assert_eq!((&made["spec"]["storageClassName"], &made["spec"]["accessModes"]), (&json!(class), &json!([mode])));
    }
}

#[test]
fn a_restore_whose_pod_fails_again_and_again_fails() {
    let mut world = World::restoring();
    let pod = created(&world.restore());
    let mut said = |restarts: i32| {
        let failing = json!({"phase": "Running", "containerStatuses": [{"name": "copy", "ready": false, "image": "",
            "restartCount": restarts, "imageID": "", "state": {"terminated": {"exitCode": 1, "message": "no room"}}}]});
        let pod =
            with(pod.clone(), json!({"metadata": {"uid": "pod-uid", "resourceVersion": "24"}, "status": failing}));
        world.pods = vec![pod];
        words(&world.restore()).join("\n")
    };
    assert!(!said(4).contains("Failure"), "it may come to something");
    let failed = said(5);
    assert!(failed.contains("Failure=True") && failed.contains("no room"), "{failed}");
    // Then the pod goes, which keeps the target from starting, and the target is let go.
    world.restore["status"]["conditions"] = json!([{"type": "Failure", "status": "True"}]);
    check(&world.restore(), &[&format!("delete pods/{POD}")]);
    world.pods.clear();
    assert!(words(&world.restore())[0].starts_with("patch virtualmachines/vm/status"), "{:?}", words(&world.restore()));
}

#[test]
fn a_restore_that_came_to_nothing_leaves_no_pod() {
    let mut world = World::restoring();
    let pod = created(&world.restore());
    world.pods = vec![with(pod, json!({"metadata": {"uid": "pod-uid", "resourceVersion": "24"}}))];
    world.restore["metadata"]["deletionTimestamp"] = json!("1970-01-12T13:46:45Z");
    assert_eq!(words(&world.restore())[0], format!("delete pods/{POD}"));
    world.pods.clear();
    assert!(words(&world.restore()).iter().any(|word| word == &format!("delete persistentvolumeclaims/{NEW}")));
}
