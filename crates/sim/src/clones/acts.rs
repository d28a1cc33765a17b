//! What people do with machines, snapshots and clones.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::kubevirt::snapshot::volume_restore;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineClone, VirtualMachineSnapshot};
use carrack_types::resource::Kind as _;
use carrack_types::snapshots::VolumeSnapshotClass;
use carrack_types::well_known::storage::{DEFAULT_CLASS, DEFAULT_SNAPSHOT_CLASS};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::storage::{DRIVER, PLAIN};
use super::{Mishap, host, squatter};
use crate::chance::{below, between};
use crate::options::Options;
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, create, delete, up_to};

/// A scene that always plays the same, for tests that try everything that can go wrong in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// A clone of a machine with two disks.
    OfMachine,
    /// A clone of a machine two of whose disks storage cannot snapshot.
    Copied,
    /// A clone of a snapshot, to a target without a name.
    OfSnapshot,
    /// A clone of a snapshot that is asked for after it.
    Later,
    /// A clone of a machine that keeps something beside its disk.
    Kept,
    /// A restore to a machine that is not there.
    Anew,
    /// A restore to the machine itself.
    Back,
    /// A restore to the machine itself, whose disks have their names again.
    InPlace,
    /// A clone of a machine whose disk cannot be snapshotted, which is given up after a while.
    Hopeless,
    /// A snapshot of a machine that runs, with a disk that storage snapshots and one that the machine copies.
    Running,
    /// The same of a machine whose guest has no agent, and that copies both of its disks.
    Speechless,
    /// A snapshot of a machine that is off, which is started before the pod comes that is to copy its disk.
    Awoken,
    /// A clone of a machine that keeps something beside its disks, and a snapshot of the clone's target as soon as that is there.
    Hasty,
    /// A clone of a machine that keeps something beside its disks, where nothing can keep that any more.
    Unkept,
    /// A snapshot of a machine that runs once, and whose guest has shut down: its instance is over, and still there.
    Spent,
    /// A clone whose target is deleted when it has been there for a while.
    Forsaken,
    /// A hundred clones of one machine at once.
    Hundred,
}

impl Scene {
    /// Whether machines run in it.
    pub(crate) fn runs(self) -> bool {
        matches!(
            self,
            Self::Running | Self::Speechless | Self::Awoken | Self::Hasty | Self::Unkept | Self::Kept | Self::Spent
        )
    }
}

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// All acts.
pub(crate) fn acts(rng: &mut Rng, options: &Options) -> Vec<Act> {
    let (scene, bug) = (options.scene, options.hint());
    let may_go = options.mishap.is_some_and(Mishap::gives_up);
    let mut people = People { acts: Vec::new(), safety: options.safety, may_go };
    people.ground();
    match scene {
        Some(scene) => people.play(scene),
        None if options.copies => people.copies(rng, bug),
        None => people.live(rng, bug),
    }
    people.acts
}

/// How a clone is to end.
const SUCCEEDS: Want = Want::Clone { may_fail: false, may_go: false };
pub(super) const MAY_FAIL: Want = Want::Clone { may_fail: true, may_go: false };
const MAY_GO: Want = Want::Clone { may_fail: true, may_go: true };

pub(super) struct People {
    pub(super) acts: Vec<Act>,
    pub(super) safety: Duration,
    /// What is asked for in a scene may be given up.
    may_go: bool,
}

impl People {
    pub(super) fn create(
        &mut self,
        at: Duration,
        resource: carrack_types::resource::Resource,
        object: Value,
        want: Option<(&'static str, Want)>,
    ) {
        self.acts.push(create(at, resource, object, want));
    }

    fn ground(&mut self) {
        let at = Duration::from_millis(1);
        let class = json!({"metadata": {"name": "shelf"}, "provisioner": DRIVER, "volumeBindingMode": "Immediate"});
        self.create(at, StorageClass::resource(), class, None);
        let default = json!({DEFAULT_CLASS: "true"});
        let class = json!({"metadata": {"name": "plain", "annotations": default}, "provisioner": PLAIN,
            "volumeBindingMode": "Immediate"});
        self.create(at, StorageClass::resource(), class, None);
        let default = json!({DEFAULT_SNAPSHOT_CLASS: "true"});
        let class = json!({"metadata": {"name": "shelf", "annotations": default}, "driver": DRIVER, "deletionPolicy": "Delete"});
        self.create(at, VolumeSnapshotClass::resource(), class, None);
    }

    /// A machine that is stopped, with a disk for each of these claims. Of those that begin with `plain` there are no snapshots.
    pub(super) fn machine(&mut self, at: Duration, name: &str, claims: &[&str], want: Want) {
        for claim in claims {
            let class = if claim.starts_with("plain") { "plain" } else { "shelf" };
            let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}}});
            let claim = json!({"metadata": {"namespace": "default", "name": claim}, "spec": spec});
            self.create(at, PersistentVolumeClaim::resource(), claim, Some(("claim", Want::Claim)));
        }
        let disk = |claim: &&str| json!({"name": claim, "disk": {"bus": "virtio"}});
        let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let object = json!({"metadata": {"namespace": "default", "name": name,
                "labels": {"app": "golden", "tier": "1"}, "annotations": {"note": "keep"}},
            "spec": {"runStrategy": "Halted", "template": {"metadata": {"labels": {"app": "golden"}}, "spec": {
                "domain": {
                    "firmware": {"serial": "of-the-source", "uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223"},
                    "devices": {"disks": claims.iter().map(disk).collect::<Vec<_>>(),
                        "interfaces": [{"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:01"}]},
                    "resources": {"requests": {"memory": "64Mi"}}},
                "networks": [{"name": "default", "pod": {}}],
                "volumes": claims.iter().map(volume).collect::<Vec<_>>()}}}});
        self.create(at, VirtualMachine::resource(), object, Some(("vm", want)));
    }

    pub(super) fn snapshot(&mut self, at: Duration, name: &str, of: &str) {
        let object = json!({"metadata": {"namespace": "default", "name": name},
            "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": of}}});
        self.create(at, VirtualMachineSnapshot::resource(), object, None);
    }

    pub(super) fn clone(&mut self, at: Duration, name: &str, source: (&str, &str), target: Option<&str>, want: Want) {
        let (kind, of) = source;
        let group = if kind == "VirtualMachine" { "kubevirt.io" } else { "snapshot.kubevirt.io" };
        let mut object = json!({"metadata": {"namespace": "default", "name": name, "labels": {}},
            "spec": {"source": {"apiGroup": group, "kind": kind, "name": of},
                "labelFilters": ["*", "!tier"], "newMacAddresses": {"default": "02:00:00:00:00:02"},
                "newSMBiosSerial": "of-the-copy",
                "patches": [r#"{"op": "add", "path": "/metadata/labels/copy", "value": "yes"}"#]}});
        if let Some(target) = target {
            object["spec"]["target"] = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": target});
        }
        self.create(at, VirtualMachineClone::resource(), object, Some(("clone", want)));
    }

    fn play(&mut self, scene: Scene) {
        let claims: &[&str] = match scene {
            Scene::Hopeless => &["bad-disk", "data"],
            Scene::Copied | Scene::Running => &["plain-root", "data", "plain-data"],
            Scene::Speechless => &["plain-root", "plain-data"],
            Scene::Awoken | Scene::Hasty => &["plain-root"],
            Scene::Unkept | Scene::Kept => &["data"],
            Scene::Spent => &["plain-root", "data"],
            _ => &["root", "data"],
        };
        let name = match scene {
            Scene::Speechless => host::MUTE,
            Scene::Spent => host::BRIEF,
            _ => "golden",
        };
        if scene.runs() {
            self.node();
        }
        match scene {
            Scene::Running | Scene::Hasty | Scene::Unkept | Scene::Kept => {
                self.runs(SECOND, name, claims);
                self.keeps_state();
            }
            Scene::Speechless => self.runs(SECOND, name, claims),
            Scene::Spent => self.runs_once(SECOND, name, claims),
            Scene::Awoken => self.machine(SECOND, name, claims, Want::Any),
            _ => self.machine(SECOND, name, claims, Want::Down),
        }
        let (machine, at) = (("VirtualMachine", name), SECOND * 8);
        let succeeds = Want::Clone { may_fail: false, may_go: self.may_go };
        match scene {
            Scene::OfMachine | Scene::Copied | Scene::Running | Scene::Speechless | Scene::Kept => {
                self.clone(at, "copying", machine, Some("copy"), succeeds)
            }
            Scene::Anew | Scene::Back | Scene::InPlace => {
                self.snapshot(SECOND * 4, "before", "golden");
                let target = if scene == Scene::Anew { "again" } else { "golden" };
                self.restore(at, "back", "before", target, Want::Restore { may_go: self.may_go });
                if scene == Scene::InPlace
                    && let Some(Act { what: What::Create { object, .. }, .. }) = self.acts.last_mut()
                {
                    object["spec"]["volumeRestorePolicy"] = volume_restore::IN_PLACE.into();
                }
            }
            Scene::Later => {
                self.clone(at, "copying", ("VirtualMachineSnapshot", "before"), Some("copy"), succeeds);
                self.snapshot(at + SECOND * 2, "before", "golden");
            }
            Scene::Hasty => {
                self.clone(at, "copying", machine, Some("copy"), SUCCEEDS);
                self.snapshot(at, "early", "copy");
            }
            Scene::Unkept => {
                self.acts.push(delete(at, StorageClass::resource(), "", "plain", "class"));
                self.clone(at + SECOND, "copying", machine, Some("copy"), MAY_FAIL);
            }
            Scene::Awoken => {
                self.is_to(SECOND * 2, name, "Manual");
                self.snapshot(at, "before", name);
                self.start(SECOND * 12, name);
            }
            Scene::OfSnapshot => {
                self.snapshot(SECOND * 4, "before", "golden");
                self.clone(at, "copying", ("VirtualMachineSnapshot", "before"), None, succeeds);
            }
            Scene::Spent => {
                // When its guest has shut down, mostly.
                self.snapshot(SECOND * 20, "after", name);
                if let Some(Act { what: What::Create { want, .. }, .. }) = self.acts.last_mut() {
                    *want = Some(("vmsnapshot", Want::Snapshot));
                }
            }
            Scene::Hopeless => self.clone(at, "copying", machine, Some("copy"), MAY_FAIL),
            Scene::Hundred => {
                for n in 0..100 {
                    self.clone(at, &format!("copying{n}"), machine, Some(&format!("copy{n}")), SUCCEEDS);
                }
            }
            Scene::Forsaken => {
                self.clone(at, "copying", machine, Some("copy"), Want::Clone { may_fail: false, may_go: true });
                // Late enough, whatever went wrong before.
                self.acts.push(delete(SECOND * 100, VirtualMachine::resource(), "default", "copy", "vm"));
            }
        }
    }

    /// Clones of machines that come, change and go, at times that the seed chose.
    fn live(&mut self, rng: &mut Rng, bug: Option<Bug>) {
        let (safety, soon) = (self.safety, SECOND * 3);
        // This one stays, and can be cloned.
        self.machine(SECOND, "golden0", &["root0", "slow0"], Want::Down);
        // This one, too: its disks are copied.
        self.machine(SECOND, "golden2", &["plain2", "root2"], Want::Down);
        self.snapshot(between(rng, SECOND * 2, safety / 2), "before2", "golden2");
        let comes = between(rng, SECOND, safety / 3);
        let claim = if rng.one_in(4) { "bad1" } else { "root1" };
        self.machine(comes, "golden1", &[claim], Want::Down);
        if rng.one_in(2) {
            self.acts.push(delete(
                between(rng, comes + soon, safety),
                VirtualMachine::resource(),
                "default",
                "golden1",
                "vm",
            ));
        }
        for n in 0..1 + rng.below(3) {
            let what = What::Patch {
                resource: VirtualMachine::resource(),
                namespace: "default".into(),
                name: "golden0".into(),
                patch: json!({"metadata": {"labels": {format!("changed{n}"): "yes"}}}),
                kind: "vm",
                want: None,
            };
            self.acts.push(Act { at: between(rng, soon, safety), what });
        }
        self.snapshot(between(rng, SECOND * 2, safety / 2), "before0", "golden0");
        let sources = [
            ("VirtualMachine", "golden0"),
            ("VirtualMachine", "golden1"),
            ("VirtualMachine", "nobody"),
            ("VirtualMachineSnapshot", "before0"),
            ("VirtualMachine", "golden2"),
            ("VirtualMachineSnapshot", "before2"),
        ];
        for n in 0..up_to(3, safety) + rng.below(up_to(5, safety)) {
            let at = between(rng, soon, safety * 2 / 3);
            let source = sources[usize::try_from(rng.below(6)).unwrap_or(0)];
            let (name, own) = (format!("clone{n}"), format!("copy{n}"));
            let target = match rng.below(4) {
                0 => None,
                1 => Some("both"),
                _ => Some(own.as_str()),
            };
            let target = target.filter(|_| bug != Some(Bug::TargetDrawnLate));
            let alone = target.is_none_or(|target| target == own);
            let squatted = rng.one_in(5) || bug == Some(Bug::AdoptsAnything);
            let sure = alone && !squatted && matches!(source.1, "golden0" | "before0" | "golden2" | "before2");
            let fate = rng.below(5);
            let mut want = if sure { SUCCEEDS } else { MAY_FAIL };
            if fate == 0 && target == Some(own.as_str()) {
                want = MAY_GO;
            }
            self.clone(at, &name, source, target, want);
            if squatted && let Some(Act { what: What::Create { object, .. }, .. }) = self.acts.last_mut() {
                object["metadata"]["labels"][squatter::LABEL] = "golden0".into();
            }
            let later = at + below(rng, (SECOND * 30).min(safety));
            match fate {
                // The target goes, and the clone with it; unless it was not there yet. So nothing is said of the machine.
                0 if target == Some(own.as_str()) => {
                    self.acts.push(delete(later, VirtualMachine::resource(), "default", &own, "target"));
                }
                1 => self.acts.push(delete(later, VirtualMachineClone::resource(), "default", &name, "clone")),
                _ => {}
            }
        }
    }
}
