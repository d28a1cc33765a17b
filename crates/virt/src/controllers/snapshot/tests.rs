//! What the controllers of snapshots and contents plan, table by table: the scenarios of KubeVirt's `snapshot_test.go`,
//! and what it leaves open.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Refusal, StatusError, Time, Write};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
};
use carrack_types::resource::PartialObject;
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotClass};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::classes::statuses;
use super::{ContentController, SnapshotController};
use crate::controllers::defined::definitions;
use crate::controllers::testing::{cached, of, with, words};

mod sizes;

const CREATED: i64 = 1_000_000;
const NOW: Time = Time::from_unix_s(CREATED + 10);
const LATE: Time = Time::from_unix_s(CREATED + 302);

const CONTENT: &str = "virtualmachinesnapshotcontents/vmsnapshot-content-s-uid";
const DISK: &str = "volumesnapshots/vmsnapshot-s-uid-volume-disk";

/// A cluster as JSON, to be changed by each row of a table.
struct World {
    snapshot: Value,
    content: Option<Value>,
    vm: Option<Value>,
    vmi: Option<Value>,
    claim: Option<Value>,
    pod: Option<Value>,
    child: Option<Value>,
    classes: Vec<Value>,
    defined: bool,
    /// What makes the volumes of the storage class.
    provisioner: &'static str,
    /// When volumes of it are bound.
    binding: &'static str,
    now: Time,
}

fn vm() -> Value {
    json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid", "resourceVersion": "20",
            "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"]},
        "spec": {"runStrategy": "Manual", "template": {"spec": {
            "domain": {"devices": {"disks": [{"name": "disk"}]}},
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "cloud", "cloudInitNoCloud": {"userData": "x"}}]}}},
        "status": {}})
}

fn locked() -> Value {
    with(
        vm(),
        json!({"metadata": {"finalizers": ["kubevirt.io/virtualMachineControllerFinalize",
            "snapshot.kubevirt.io/snapshot-source-protection"]}, "status": {"snapshotInProgress": "s"}}),
    )
}

fn vmi(conditions: &[&str]) -> Value {
    let conditions: Vec<Value> = conditions.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
    json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "vmi-uid", "resourceVersion": "21",
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm",
                "uid": "vm-uid", "controller": true}]},
        "spec": {"domain": {}},
        "status": {"phase": "Running", "conditions": conditions, "virtualMachineRevisionName": "revision"}})
}

fn claim() -> Value {
    json!({"metadata": {"name": "data", "namespace": "ns", "uid": "c-uid", "resourceVersion": "22",
            "labels": {"app": "x"}, "managedFields": [{"manager": "kubectl"}]},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"}})
}

fn content(status: Value) -> Value {
    json!({"metadata": {"name": "vmsnapshot-content-s-uid", "namespace": "ns", "uid": "content-uid",
            "resourceVersion": "30", "finalizers": ["snapshot.kubevirt.io/vmsnapshotcontent-protection"]},
        "spec": {"virtualMachineSnapshotName": "s",
            "source": {"virtualMachine": {"metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid"},
                "spec": vm()["spec"]}},
            "volumeBackups": [{"volumeName": "disk", "volumeSnapshotName": "vmsnapshot-s-uid-volume-disk",
                "persistentVolumeClaim": {"metadata": {"name": "data"}, "spec": {"storageClassName": "local"}}}]},
        "status": status})
}

fn child(status: Value) -> Value {
    json!({"metadata": {"name": "vmsnapshot-s-uid-volume-disk", "namespace": "ns", "uid": "vs-uid",
            "resourceVersion": "40", "ownerReferences": [{"apiVersion": "snapshot.kubevirt.io/v1beta1",
                "kind": "VirtualMachineSnapshotContent", "name": "vmsnapshot-content-s-uid", "uid": "content-uid",
                "controller": true}]},
        "spec": {"source": {"persistentVolumeClaimName": "data"}}, "status": status})
}

fn class(name: &str, more: Value) -> Value {
    with(
        json!({"metadata": {"name": name, "resourceVersion": "100"}, "driver": "driver", "deletionPolicy": "Delete"}),
        more,
    )
}

/// When there is a deletion to wait for.
fn deleted() -> Value {
    json!({"metadata": {"deletionTimestamp": "1970-01-12T13:46:45Z"}})
}

const TAKEN: &str = "1970-01-12T13:46:44Z";

impl World {
    /// A snapshot in progress of a machine that is off, and everything that it takes.
    fn new() -> Self {
        Self {
            snapshot: json!({"metadata": {"name": "s", "namespace": "ns", "uid": "s-uid", "resourceVersion": "10",
                    "creationTimestamp": "1970-01-12T13:46:40Z",
                    "finalizers": ["snapshot.kubevirt.io/vmsnapshot-protection"]},
                "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}},
                "status": {"phase": "InProgress", "readyToUse": false}}),
            content: None,
            vm: Some(vm()),
            vmi: None,
            claim: Some(claim()),
            pod: None,
            child: None,
            classes: vec![class("snap", json!({}))],
            defined: true,
            provisioner: "driver",
            binding: "Immediate",
            now: NOW,
        }
    }

    fn caches(&self) -> Caches {
        // Something newer of each kind: the caches are far enough.
        let newest = json!({"metadata": {"name": "newest", "namespace": "other", "resourceVersion": "100"}});
        let revision = json!({"metadata": {"name": "revision", "namespace": "ns", "uid": "r", "resourceVersion": "100",
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm",
                    "uid": "vm-uid", "controller": true}]},
            "revision": 1, "data": {"spec": with(vm()["spec"].clone(),
                json!({"template": {"spec": {"domain": {"cpu": {"cores": 7}}, "volumes": []}}}))}});
        let mut caches = Caches::new()
            .with([of::<VirtualMachineSnapshot>(self.snapshot.clone())])
            .with(self.content.clone().map(of::<VirtualMachineSnapshotContent>))
            .with(self.vm.clone().map(of::<VirtualMachine>))
            .with(self.vmi.iter().chain([&newest]).cloned().map(of::<VirtualMachineInstance>))
            .with(self.claim.iter().chain([&newest]).cloned().map(of::<PersistentVolumeClaim>))
            .with(self.pod.clone().map(of::<Pod>).map(cached))
            .with([of::<ControllerRevision>(revision)])
            .with([of::<StorageClass>(json!({"metadata": {"name": "local", "resourceVersion": "100"},
                "provisioner": self.provisioner, "volumeBindingMode": self.binding}))]);
        let mut names = Vec::new();
        if self.defined {
            names = vec!["volumesnapshots.snapshot.storage.k8s.io", "volumesnapshotclasses.snapshot.storage.k8s.io"];
            caches = caches
                .with(self.classes.iter().cloned().map(of::<VolumeSnapshotClass>))
                .with(self.child.iter().chain([&newest]).cloned().map(of::<VolumeSnapshot>));
        }
        let metadata = names.into_iter().map(|name| of::<PartialObject>(json!({"metadata": {"name": name}})));
        caches.with_metadata(definitions(), metadata)
    }

    fn snapshot(&self) -> Plan {
        SnapshotController::default().reconcile(&Key::new("ns", "s"), &self.caches().view(), self.now)
    }

    fn content(&self) -> Plan {
        let key = Key::new("ns", "vmsnapshot-content-s-uid");
        ContentController::default().reconcile(&key, &self.caches().view(), self.now)
    }

    fn refused(&self, write: &Write, message: &str) -> Plan {
        let key = Key::new("ns", "vmsnapshot-content-s-uid");
        let error = StatusError { code: 500, message: message.to_owned(), ..StatusError::default() };
        let refusal = Refusal { write, error: &error };
        ContentController::default().refused(&key, &self.caches().view(), &refusal, self.now)
    }
}

fn check(plan: &Plan, wanted: &[&str], what: &str) {
    assert_eq!(words(plan), wanted, "{what}");
}

fn status(text: &str) -> String {
    format!("patch virtualmachinesnapshots/s/status {text}")
}

#[test]
fn a_machine_finds_its_open_snapshots() {
    let check = |phase: &str, more: Value, wanted: &[&str]| {
        let snapshot = with(with(World::new().snapshot, json!({"status": {"phase": phase}})), more);
        assert_eq!(super::by_open(&of::<VirtualMachineSnapshot>(snapshot)), wanted, "{phase}");
    };
    check("InProgress", json!({}), &["ns", "ns/vm"]);
    check("Succeeded", json!({}), &[]);
    check("Succeeded", deleted(), &["ns", "ns/vm"]);
}

#[test]
fn a_snapshot_is_initialised_and_locks_its_source() {
    let mut world = World::new();
    world.snapshot["metadata"]["finalizers"] = json!([]);
    check(
        &world.snapshot(),
        &["patch virtualmachinesnapshots/s finalizers=[snapshot.kubevirt.io/vmsnapshot-protection]"],
        "a finalizer first",
    );
    let mut world = World::new();
    world.snapshot["status"] = json!(null);
    check(
        &world.snapshot(),
        &[&status(
            "Progressing=False(Source not locked) Ready=False(Not ready) phase=InProgress readyToUse=false \
                   sourceUID=vm-uid",
        )],
        "then a status",
    );
    let plan = World::new().snapshot();
    check(
        &plan,
        &[
            "patch virtualmachines/vm/status snapshotInProgress=s",
            &status("Progressing=False(Source not locked) Ready=False(Not ready) sourceUID=vm-uid"),
        ],
        "then the field",
    );
    assert!(plan.requeue_after.is_some());
    let mut world = World::new();
    world.vm = Some(with(vm(), json!({"status": {"snapshotInProgress": "s"}})));
    assert_eq!(
        words(&world.snapshot())[0],
        "patch virtualmachines/vm finalizers=[kubevirt.io/virtualMachineControllerFinalize,\
         snapshot.kubevirt.io/snapshot-source-protection]"
    );
}

#[test]
fn what_keeps_a_source_from_being_locked_is_told() {
    let check = |change: fn(&mut World), wanted: &str| {
        let mut world = World::new();
        change(&mut world);
        let plan = world.snapshot();
        let words = words(&plan);
        assert!(words.len() == 1 && words[0].contains(wanted), "{wanted}: {words:?}");
        assert!(plan.requeue_after.is_some(), "{wanted}");
    };
    check(|world| world.vm = None, "Progressing=False(Source does not exist)");
    check(|world| world.claim = None, "(Source not locked source ns/vm volume doesnt exist: data)");
    check(
        |world| world.claim = Some(with(claim(), json!({"status": {"phase": "Pending"}}))),
        "(Source not locked source ns/vm volume not bound: data)",
    );
    check(
        |world| {
            world.claim = Some(with(claim(), json!({"status": {"phase": "Pending"}})));
            world.binding = "WaitForFirstConsumer";
        },
        "volume not bound: data; its StorageClass binds it when it is first used: start the machine once)",
    );
    check(
        |world| world.claim = Some(with(claim(), deleted())),
        "(Source not locked source ns/vm volume is being deleted: data)",
    );
    let pod = |phase: &str| {
        json!({"metadata": {"name": "p", "namespace": "ns"}, "status": {"phase": phase},
            "spec": {"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}})
    };
    let mut world = World::new();
    world.pod = Some(pod("Running"));
    assert!(words(&world.snapshot())[0].contains("source is offline but 1 pods using PVCs [data]"));
    world.pod = Some(pod("Succeeded"));
    assert!(words(&world.snapshot())[0].starts_with("patch virtualmachines/vm/status"), "a pod that is over");
    check(
        |world| world.vm = Some(with(vm(), json!({"status": {"restoreInProgress": "r"}}))),
        "(Source not locked restore \"r\" in progress)",
    );
    check(|world| world.vm = Some(with(vm(), deleted())), "(Source not locked source ns/vm is being deleted)");
}

#[test]
fn a_lock_that_was_left_behind_is_taken_over_on_proof() {
    let mut world = World::new();
    world.vm = Some(with(vm(), json!({"status": {"snapshotInProgress": "gone"}})));
    check(
        &world.snapshot().clone(),
        &[
            "absent virtualmachinesnapshots/gone",
            "patch virtualmachines/vm/status snapshotInProgress=s",
            &status("Progressing=False(Source not locked) Ready=False(Not ready) sourceUID=vm-uid"),
        ],
        "nobody has it",
    );
}

#[test]
fn a_locked_source_is_kept_in_a_content() {
    let mut world = World::new();
    world.vm = Some(locked());
    let plan = world.snapshot();
    check(
        &plan,
        &[
            &format!("create {CONTENT}"),
            &status(
                "Progressing=True(Source locked and operation in progress) Ready=False(Not ready) \
                     sourceUID=vm-uid",
            ),
        ],
        "offline",
    );
    let Write::Create { object, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    assert_eq!(object["metadata"]["finalizers"], json!(["snapshot.kubevirt.io/vmsnapshotcontent-protection"]));
    assert_eq!(object["spec"]["virtualMachineSnapshotName"], "s");
    let kept = &object["spec"]["source"]["virtualMachine"];
    assert_eq!((&kept["metadata"]["uid"], &kept["spec"]), (&json!("vm-uid"), &vm()["spec"]));
    let backups = &object["spec"]["volumeBackups"];
    assert_eq!(backups.as_array().map(Vec::len), Some(1));
    assert_eq!(backups[0]["volumeSnapshotName"], "vmsnapshot-s-uid-volume-disk");
    let metadata = &backups[0]["persistentVolumeClaim"]["metadata"];
    assert_eq!((&metadata["labels"], &metadata["managedFields"]), (&json!({"app": "x"}), &Value::Null));
    // It is made while snapshot and machine are as they were read, and not later.
    let named: Vec<(usize, &str)> = plan.premises.iter().map(|(n, premise)| (*n, premise.name.as_str())).collect();
    assert_eq!(named, [(0, "s"), (0, "vm")]);
    assert!(plan.premises.iter().all(|(_, premise)| premise.resource_version.is_some()));

    // What runs was started from something else than what is wanted by now; its disks are those of now.
    world.vmi = Some(vmi(&[]));
    let plan = world.snapshot();
    let Write::Create { object, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    let template = &object["spec"]["source"]["virtualMachine"]["spec"]["template"]["spec"];
    assert_eq!(template["domain"]["cpu"]["cores"], 7);
    assert_eq!(template["volumes"], vm()["spec"]["template"]["spec"]["volumes"]);
    // There is a revision only where the machine was changed since; the instance knows by itself.
    let from = with(vm()["spec"].clone(), json!({"template": {"spec": {"domain": {"cpu": {"cores": 5}}}}}));
    let carried = json!({"metadata": {"annotations": {"kubevirt.io/started-from": from.to_string()}},
        "status": {"virtualMachineRevisionName": "not made"}});
    world.vmi = Some(with(vmi(&[]), carried));
    let plan = world.snapshot();
    let Write::Create { object, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    let template = &object["spec"]["source"]["virtualMachine"]["spec"]["template"]["spec"];
    assert_eq!(template["domain"]["cpu"]["cores"], 5);
}

#[test]
fn volumes_without_a_class_are_left_out_on_proof() {
    let made = |world: &World| {
        let plan = world.snapshot();
        let object = plan.writes.iter().find_map(|write| match write {
            Write::Create { object, .. } => Some(object["spec"]["volumeBackups"].as_array().map_or(0, Vec::len)),
            _ => None,
        });
        (words(&plan)[0].clone(), object)
    };
    // Nothing makes volumes for copies either.
    let mut world = World { provisioner: "kubernetes.io/no-provisioner", ..World::new() };
    world.vm = Some(locked());
    world.classes = vec![class("snap", json!({"driver": "another"}))];
    assert_eq!(made(&world).1, Some(0));
    world.defined = false;
    let absent = "absent customresourcedefinitions/volumesnapshotclasses.snapshot.storage.k8s.io".to_owned();
    assert_eq!(made(&world), (absent, Some(0)));
    world.defined = true;
    world.provisioner = "driver";
    // Several classes: the default one counts, and without one nothing is decided.
    let default = json!({"metadata": {"annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"}}});
    world.classes = vec![class("a", json!({})), class("b", default)];
    assert_eq!(made(&world).1, Some(1));
    world.classes = vec![class("a", json!({})), class("b", json!({}))];
    let plan = world.snapshot();
    let Write::Patch { patch, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    assert_eq!(patch["status"]["error"]["message"], "2 matching VolumeSnapshotClasses for local");
    // Caches that lag decide nothing.
    world.classes = vec![class("snap", json!({"metadata": {"resourceVersion": "3"}}))];
    assert_eq!(made(&world).1, None);
}

#[test]
fn what_the_content_says_the_snapshot_says() {
    let check = |content_status: Value, wanted: &[&str]| {
        let mut world = World::new();
        world.vm = Some(locked());
        world.vmi = Some(vmi(&["AgentConnected"]));
        world.content = Some(content(content_status.clone()));
        check(&world.snapshot(), wanted, &content_status.to_string());
    };
    check(
        json!(null),
        &[&status(
            "Progressing=True(Source locked and operation in progress) Ready=False(Not ready) \
                   indications=[GuestAgent,Online] sourceIndications sourceUID=vm-uid",
        )],
    );
    check(
        json!({"readyToUse": false, "error": {"message": "no", "time": TAKEN}}),
        &[&status(
            "Progressing=False(In error state) Ready=False(Not ready) error indications=[GuestAgent,Online] \
                   sourceIndications sourceUID=vm-uid \
                   virtualMachineSnapshotContentName=vmsnapshot-content-s-uid",
        )],
    );
    let unlock = "patch virtualmachines/vm finalizers=[kubevirt.io/virtualMachineControllerFinalize]";
    check(
        json!({"readyToUse": false, "creationTime": TAKEN}),
        &[
            unlock,
            &status(
                "Progressing=False(Operation complete) Ready=False(Not ready) creationTime=1970-01-12T13:46:44Z \
                     phase=Succeeded snapshotVolumes sourceUID=vm-uid \
                     virtualMachineSnapshotContentName=vmsnapshot-content-s-uid",
            ),
        ],
    );
    // It was taken, and something of it is not there any more.
    check(
        json!({"readyToUse": false, "creationTime": TAKEN, "error": {"message": "missing", "time": TAKEN}}),
        &[
            unlock,
            &status(
                "Progressing=False(In error state) Ready=False(Not ready) creationTime=1970-01-12T13:46:44Z error \
                     phase=Succeeded snapshotVolumes sourceUID=vm-uid \
                     virtualMachineSnapshotContentName=vmsnapshot-content-s-uid",
            ),
        ],
    );
    check(
        json!({"readyToUse": true, "creationTime": TAKEN}),
        &[
            unlock,
            &status(
                "Progressing=False(Operation complete) Ready=True(Ready) creationTime=1970-01-12T13:46:44Z \
                     phase=Succeeded readyToUse=true snapshotVolumes sourceUID=vm-uid \
                     virtualMachineSnapshotContentName=vmsnapshot-content-s-uid",
            ),
        ],
    );
}

#[test]
fn an_error_that_stays_is_written_once() {
    let mut world = World::new();
    world.vm = Some(locked());
    world.content = Some(content(json!({"readyToUse": false, "error": {"message": "no", "time": TAKEN}})));
    let plan = world.snapshot();
    let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
    world.snapshot["status"] = with(world.snapshot["status"].clone(), patch["status"].clone());
    world.now = Time::from_unix_s(CREATED + 20);
    check(&world.snapshot(), &[], "nothing has changed since");
}

#[test]
fn indications_say_how_it_was_taken() {
    let check = |conditions: &[&str], error: Value, wanted: &[&str]| {
        let mut world = World::new();
        world.vm = Some(locked());
        world.vmi = Some(vmi(conditions));
        world.content = Some(content(json!({"readyToUse": false, "error": error})));
        let plan = world.snapshot();
        let Write::Patch { patch, .. } = &plan.writes[0] else { panic!("{plan:?}") };
        assert_eq!(patch["status"]["indications"], json!(wanted));
        let told = patch["status"]["sourceIndications"].as_array().expect("indications");
        assert!(told.iter().all(|one| one["message"] != "Unknown indication"), "{told:?}");
    };
    check(&[], json!(null), &["NoGuestAgent", "Online"]);
    check(&["AgentConnected"], json!(null), &["GuestAgent", "Online"]);
    check(&["AgentConnected", "Paused"], json!(null), &["Online", "Paused"]);
    let vss = json!({"message": "the guest says: fsfreeze is limited up to 10 seconds"});
    check(&["AgentConnected"], vss, &["GuestAgent", "Online", "QuiesceTimeout"]);
}

#[test]
fn volumes_that_could_be_in_it_and_are_not_are_told() {
    let mut world = World::new();
    world.vm = Some(locked());
    let mut taken = content(json!({"readyToUse": true, "creationTime": TAKEN}));
    world.content = Some(taken.clone());
    let lists = |world: &World| {
        let plan = world.snapshot();
        let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
        (patch["status"]["snapshotVolumes"].clone(), patch["status"]["indications"].clone())
    };
    let (volumes, indications) = lists(&world);
    assert_eq!(volumes, json!({"includedVolumes": ["disk"], "excludedVolumes": ["cloud"]}));
    assert_eq!(indications, Value::Null, "a disk that is made on the spot is nothing that could be in it");
    taken["spec"]["volumeBackups"] = json!([]);
    world.content = Some(taken);
    let (volumes, indications) = lists(&world);
    assert_eq!(volumes, json!({"excludedVolumes": ["disk", "cloud"]}));
    assert_eq!(indications, json!(["PartialSnapshot"]));
}

#[test]
fn a_snapshot_that_takes_too_long_fails_on_proof() {
    let failed = status(
        "Failure=True(snapshot deadline exceeded) Progressing=False(Operation failed) \
                         Ready=False(Not ready) phase=Failed sourceUID=vm-uid",
    );
    let mut world = World::new();
    world.now = LATE;
    world.vm = Some(locked());
    check(&world.snapshot(), &[&format!("absent {CONTENT}"), &failed], "no content");
    // What it waited for is told: by its conditions it has failed.
    let waited = |world: &World| {
        let plan = world.snapshot();
        let patch = plan.writes.iter().find_map(|write| match write {
            Write::Patch { patch, .. } => Some(patch.clone()),
            _ => None,
        });
        patch.expect("a status")["status"]["error"]["message"].clone()
    };
    assert_eq!(waited(&world), Value::Null);
    (world.vm, world.claim) = (Some(vm()), None);
    assert_eq!(waited(&world), "source ns/vm volume doesnt exist: data");
    world.vm = None;
    assert_eq!(waited(&world), "Source does not exist");
    world.snapshot["status"]["error"] = json!({"message": "no luck", "time": TAKEN});
    assert_eq!(words(&world.snapshot()).iter().filter(|word| word.contains("error")).count(), 0, "it stays");
    let mut world = World::new();
    (world.now, world.vm) = (LATE, Some(locked()));
    world.content = Some(content(json!(null)));
    check(&world.snapshot(), &[&format!("unchanged {CONTENT}"), &failed], "a content that is not taken");
    assert!(world.snapshot().premises.iter().any(|(n, premise)| *n == 1 || premise.name.starts_with("vmsnapshot")));
    // One that was taken in time has not failed, however late that is seen.
    world.content = Some(content(json!({"readyToUse": true, "creationTime": TAKEN})));
    assert!(words(&world.snapshot())[1].contains("phase=Succeeded"));
    // Zero is for as long as it takes.
    world.content = None;
    world.snapshot["spec"]["failureDeadline"] = json!("0s");
    assert!(words(&world.snapshot())[0].starts_with("create"));
    world.snapshot["spec"]["failureDeadline"] = json!("10m");
    assert!(words(&world.snapshot())[0].starts_with("create"));
}

#[test]
fn a_source_that_is_gone_ends_it_on_proof() {
    let failed = status(
        "Failure=True(Source does not exist) Progressing=False(Operation failed) Ready=False(Not ready) phase=Failed",
    );
    let wanted = ["absent virtualmachines/vm", &format!("absent {CONTENT}"), &failed];
    let mut world = World::new();
    world.snapshot["status"]["sourceUID"] = json!("former");
    check(&world.snapshot(), &wanted, "another has its name");
    world.vm = None;
    check(&world.snapshot(), &wanted, "deleted");
    let plan = world.snapshot();
    let Write::Confirm { absent, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    assert!(format!("{absent:?}").contains("former"), "{absent:?}");
}

#[test]
fn somebody_elses_content_ends_it() {
    let mut world = World::new();
    world.vm = Some(locked());
    world.content = Some(with(content(json!(null)), json!({"spec": {"virtualMachineSnapshotName": "another"}})));
    let words = words(&world.snapshot());
    assert!(words.len() == 1 && words[0].contains("belongs to somebody else"), "{words:?}");
    // And it is left alone when the snapshot goes.
    world.snapshot = with(world.snapshot, deleted());
    assert!(!super::super::testing::words(&world.snapshot()).iter().any(|word| word.starts_with("delete")));
}

#[test]
fn a_failed_snapshot_drops_its_content_and_lets_go() {
    let mut world = World::new();
    world.snapshot["status"] = json!({"phase": "Failed", "readyToUse": false, "sourceUID": "vm-uid", "conditions": [
        {"type": "Failure", "status": "True", "reason": "snapshot deadline exceeded"},
        {"type": "Progressing", "status": "False", "reason": "Operation failed"},
        {"type": "Ready", "status": "False", "reason": "Not ready"}]});
    world.vm = Some(locked());
    world.content = Some(content(json!(null)));
    check(&world.snapshot(), &[&format!("delete {CONTENT}")], "content");
    world.content = Some(with(content(json!(null)), deleted()));
    check(&world.snapshot(), &[], "waits");
    world.content = None;
    let unlock = "patch virtualmachines/vm finalizers=[kubevirt.io/virtualMachineControllerFinalize]";
    check(&world.snapshot(), &[&format!("absent {CONTENT}"), unlock], "lets go of it, surely");
    world.vm = Some(with(vm(), json!({"status": {"snapshotInProgress": "s"}})));
    let field = "patch virtualmachines/vm/status snapshotInProgress=null";
    check(&world.snapshot(), &[&format!("absent {CONTENT}"), field], "and of its field");
    world.vm = Some(vm());
    check(&world.snapshot(), &[], "it stays as it is");
}

#[test]
fn a_deleted_snapshot_goes_after_its_content() {
    let gone = "patch virtualmachinesnapshots/s finalizers=[]";
    let succeeded = json!({"phase": "Succeeded", "readyToUse": true, "creationTime": TAKEN});
    let mut world = World::new();
    world.snapshot = with(world.snapshot, deleted());
    world.snapshot["status"] = succeeded;
    world.content = Some(content(json!({"readyToUse": true, "creationTime": TAKEN})));
    assert_eq!(words(&world.snapshot())[0], format!("delete {CONTENT}"));
    let plan = world.snapshot();
    let Write::Delete { options, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    assert_eq!((options.uid.as_deref(), options.resource_version.as_deref()), (Some("content-uid"), Some("30")));
    world.content = None;
    check(&world.snapshot(), &[&format!("absent {CONTENT}"), gone], "surely");
    world.vm = None;
    let absent = "absent virtualmachines/vm";
    check(&world.snapshot(), &[&format!("absent {CONTENT}"), absent, gone], "and surely nobody is held");

    // A content that is to stay stays, if there is something in it.
    world.vm = Some(vm());
    world.snapshot["spec"]["deletionPolicy"] = json!("Retain");
    world.content = Some(content(json!({"readyToUse": true, "creationTime": TAKEN})));
    check(&world.snapshot(), &[gone], "retained");
    world.content = Some(content(json!({"readyToUse": false, "creationTime": TAKEN})));
    assert_eq!(words(&world.snapshot())[0], format!("delete {CONTENT}"), "of no use");

    // Before it was taken.
    let mut world = World::new();
    world.snapshot = with(world.snapshot, deleted());
    world.vm = Some(locked());
    world.content = Some(content(json!(null)));
    let words = words(&world.snapshot());
    assert!(words[0].starts_with("delete") && words[1].contains("phase=Deleting"), "{words:?}");
}

#[test]
fn guests_are_frozen_before_and_thawed_after() {
    let create = format!("create {DISK}");
    let (freeze, thaw) = ("call virtualmachineinstances/vm/freeze", "call virtualmachineinstances/vm/unfreeze");
    let frozen = json!({"status": {"fsFreezeStatus": "frozen"}});
    let check_freeze = |vmi: Option<Value>, wanted: &[&str]| {
        let mut world = World::new();
        world.vm = Some(locked());
        world.vmi.clone_from(&vmi);
        world.content = Some(content(json!(null)));
        check(&world.content(), wanted, &format!("{vmi:?}"));
    };
    check_freeze(None, &[&create]);
    check_freeze(Some(vmi(&[])), &[&create]);
    check_freeze(Some(vmi(&["AgentConnected"])), &[freeze, &create]);
    check_freeze(Some(vmi(&["AgentConnected", "Paused"])), &[&create]);
    check_freeze(Some(with(vmi(&["AgentConnected"]), json!({"status": {"phase": "Succeeded"}}))), &[&create]);
    // Frozen by somebody else, or for what was before.
    check_freeze(Some(with(vmi(&["AgentConnected"]), frozen)), &[thaw, freeze, &create]);

    let mut world = World::new();
    world.vm = Some(locked());
    world.vmi = Some(vmi(&["AgentConnected"]));
    world.content = Some(content(json!(null)));
    let Write::Call { body, .. } = &world.content().writes[0] else { panic!("a call") };
    assert_eq!(body, &json!({"unfreezeTimeout": "290s"}), "for no longer than the snapshot may take");
    world.child = Some(child(json!({"creationTime": TAKEN, "readyToUse": false})));
    let said = format!(
        "patch {CONTENT}/status creationTime=1970-01-12T13:46:50Z readyToUse=false \
                        volumeSnapshotStatus"
    );
    check(&world.content(), &[thaw, &said], "thawed before it is said that all is taken");
    // Without the lock nothing is frozen.
    world.child = None;
    world.vm = Some(vm());
    check(&world.content(), &[&format!("patch {CONTENT}/status readyToUse=false")], "not locked");
}

#[test]
fn volume_snapshots_say_what_the_content_says() {
    let check = |content_status: Value, child_status: Option<Value>, wanted: &[&str]| {
        let mut world = World::new();
        world.vm = Some(locked());
        world.content = Some(content(content_status));
        world.child = child_status.clone().map(child);
        check(&world.content(), wanted, &format!("{child_status:?}"));
    };
    let patch = |text: &str| format!("patch {CONTENT}/status {text}");
    check(json!(null), Some(json!(null)), &[&patch("readyToUse=false volumeSnapshotStatus")]);
    check(
        json!(null),
        Some(json!({"readyToUse": false, "error": {"message": "no room"}})),
        &[&patch("error readyToUse=false volumeSnapshotStatus")],
    );
    check(
        json!(null),
        Some(json!({"creationTime": TAKEN, "readyToUse": true})),
        &[&patch("creationTime=1970-01-12T13:46:50Z readyToUse=true volumeSnapshotStatus")],
    );
    // What was taken and is not there any more: surely, and told.
    check(
        json!({"creationTime": TAKEN, "readyToUse": true}),
        None,
        &[&format!("absent {DISK}"), &patch("error readyToUse=false")],
    );
    // Somebody else's.
    let mut world = World::new();
    world.vm = Some(locked());
    world.content = Some(content(json!(null)));
    world.child = Some(with(
        child(json!({"creationTime": TAKEN, "readyToUse": true})),
        json!({"metadata": {"ownerReferences": []}}),
    ));
    let plan = world.content();
    let Write::Patch { patch, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    assert_eq!(
        patch["status"]["error"]["message"],
        "volumesnapshots.snapshot.storage.k8s.io \"vmsnapshot-s-uid-volume-disk\" already exists, and belongs to \
         somebody else"
    );
}

#[test]
fn what_the_guest_refuses_is_told() {
    let mut world = World::new();
    world.vm = Some(locked());
    world.vmi = Some(vmi(&["AgentConnected"]));
    world.content = Some(content(json!(null)));
    let freeze = world.content().writes[0].clone();
    let plan = world.refused(&freeze, "the guest does not answer");
    let Write::Patch { patch, .. } = &plan.writes[0] else { panic!("{plan:?}") };
    assert_eq!(patch["status"]["error"]["message"], "the guest does not answer");
    world.content = Some(content(json!({"error": {"message": "the guest does not answer"}})));
    check(&world.refused(&freeze, "the guest does not answer"), &[], "once");
    // A content that is to go does not wait for a guest that does not answer.
    world.content = Some(with(content(json!(null)), deleted()));
    let thaw = world.content().writes[0].clone();
    let gone = format!("patch {CONTENT} finalizers=[]");
    check(&world.refused(&thaw, "the guest does not answer"), &[&format!("absent {DISK}"), &gone], "goes");
}

#[test]
fn a_content_goes_after_its_volume_snapshots() {
    let gone = format!("patch {CONTENT} finalizers=[]");
    let mut world = World::new();
    world.vm = Some(vm());
    world.content = Some(with(content(json!({"creationTime": TAKEN})), deleted()));
    world.child = Some(child(json!({"creationTime": TAKEN})));
    check(&world.content(), &[&format!("delete {DISK}")], "its own");
    world.child = Some(with(child(json!({"creationTime": TAKEN})), deleted()));
    check(&world.content(), &[], "waits");
    world.child = None;
    check(&world.content(), &[&format!("absent {DISK}"), &gone], "surely");
    world.child = Some(with(child(json!(null)), json!({"metadata": {"ownerReferences": []}})));
    check(&world.content(), &[&gone], "somebody else's stays");
}

#[test]
fn machines_say_which_volumes_can_be_snapshotted() {
    let check = |change: fn(&mut World), wanted: Value| {
        let mut world = World::new();
        change(&mut world);
        let vm: VirtualMachine = of(world.vm.clone().expect("a machine"));
        assert_eq!(json!(statuses(&vm, &world.caches().view())), wanted);
    };
    let cloud = || {
        let reason = "Snapshot is not supported for this volumeSource type [cloud]";
        json!({"name": "cloud", "enabled": false, "reason": reason})
    };
    let disk = |reason: &str| json!([{"name": "disk", "enabled": false, "reason": reason}, cloud()]);
    check(|_| {}, json!([{"name": "disk", "enabled": true}, cloud()]));
    check(|world| world.claim = None, disk("PVC not found"));
    let none = "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [local] [disk]";
    let copied = || {
        json!([{"name": "disk", "enabled": true,
        "reason": format!("{none}; it is copied")}, cloud()])
    };
    check(|world| world.classes = vec![class("x", json!({"driver": "another"}))], copied());
    check(|world| world.defined = false, copied());
    check(
        |world| {
            world.defined = false;
            world.provisioner = "kubernetes.io/no-provisioner";
        },
        disk(none),
    );
    check(
        |world| world.classes = vec![class("a", json!({})), class("b", json!({}))],
        disk("2 matching VolumeSnapshotClasses for local"),
    );
}
