//! What people do with machines that run while their disks are copied, and with those that are off and are to start meanwhile.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineRestore, VirtualMachineSnapshot};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use serde_json::{Value, json};

use super::acts::{MAY_FAIL, People, SECOND};
use super::host;
use super::room::Room;
use crate::chance::{below, between};
use crate::observer::{Observer, controller, deleting, key_of, text, uid};
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, delete, up_to};

/// Machines: with an agent in its guest and a disk that storage snapshots, without, and one that is off at first.
const MACHINES: [&str; 3] = ["live", "mute", "still"];

impl People {
    /// The node where machines run.
    pub(super) fn node(&mut self) {
        let at = Duration::from_millis(2);
        self.create(at, Node::resource(), json!(host::node()), None);
        self.create(at, Lease::resource(), host::lease(), None);
    }

    /// A machine that runs from the beginning.
    pub(super) fn runs(&mut self, at: Duration, name: &str, claims: &[&str]) {
        self.runs_by("Always", at, name, claims);
    }

    /// The same of one that does not start again when its guest has ended.
    pub(super) fn runs_once(&mut self, at: Duration, name: &str, claims: &[&str]) {
        self.runs_by("Once", at, name, claims);
    }

    fn runs_by(&mut self, strategy: &str, at: Duration, name: &str, claims: &[&str]) {
        self.machine(at, name, claims, Want::Any);
        if let Some(Act { what: What::Create { object, .. }, .. }) = self.acts.last_mut() {
            object["spec"]["runStrategy"] = strategy.into();
        }
    }

    /// What was made last, a machine, keeps its firmware's variables.
    pub(super) fn keeps_state(&mut self) {
        if let Some(Act { what: What::Create { object, .. }, .. }) = self.acts.last_mut() {
            object["spec"]["template"]["spec"]["domain"]["firmware"]["bootloader"] =
                json!({"efi": {"secureBoot": false, "persistent": true}});
        }
    }

    pub(super) fn restore(&mut self, at: Duration, name: &str, snapshot: &str, target: &str, want: Want) {
        let target = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": target});
        let object = json!({"metadata": {"namespace": "default", "name": name},
            "spec": {"target": target, "virtualMachineSnapshotName": snapshot}});
        self.create(at, VirtualMachineRestore::resource(), object, Some(("vmrestore", want)));
    }

    /// What was asked for last, a snapshot, has so long.
    fn deadline(&mut self, deadline: Duration) {
        if let Some(Act { what: What::Create { object, .. }, .. }) = self.acts.last_mut() {
            object["spec"]["failureDeadline"] = format!("{}s", deadline.as_secs()).into();
        }
    }

    pub(super) fn is_to(&mut self, at: Duration, name: &str, strategy: &str) {
        let patch = json!({"spec": {"runStrategy": strategy}});
        let what = What::Try { resource: VirtualMachine::resource(), name: name.into(), sub: "", patch };
        self.acts.push(Act { at, what });
    }

    /// Asks for a start, as `virtctl start` does: what holds a machine holds its strategy, and not this.
    pub(super) fn start(&mut self, at: Duration, name: &str) {
        let patch = json!({"status": {"stateChangeRequests": [{"action": "Start"}]}});
        let what = What::Try { resource: VirtualMachine::resource(), name: name.into(), sub: "status", patch };
        self.acts.push(Act { at, what });
    }

    /// At times that the seed chose: snapshots, clones and restores of machines that start, stop, restart and go.
    pub(super) fn copies(&mut self, rng: &mut Rng, bug: Option<Bug>) {
        let (safety, soon) = (self.safety, SECOND * 5);
        self.node();
        self.runs(SECOND, "live", &["plain-live", "data-live"]);
        self.keeps_state();
        self.runs(SECOND, "mute", &["plain-mute"]);
        // Its claim may be deleted, and goes when the machine lets go of it.
        for act in &mut self.acts {
            if let What::Create { object, want, .. } = &mut act.what
                && object["metadata"]["name"] == "plain-mute"
            {
                *want = None;
            }
        }
        self.machine(SECOND, "still", &["plain-still"], Want::Any);
        self.is_to(SECOND, "still", "Manual");
        self.snapshot(soon, "kept", "still");
        let pick = |rng: &mut Rng| MACHINES[usize::try_from(rng.below(3)).unwrap_or(0)];
        for n in 0..up_to(2, safety) + rng.below(up_to(3, safety)) {
            let (at, name) = (between(rng, soon, safety), format!("snap{n}"));
            let of = if bug.is_some() && rng.one_in(2) { "still" } else { pick(rng) };
            self.snapshot(at, &name, of);
            if rng.one_in(2) {
                self.deadline(between(rng, SECOND * 10, SECOND * 60));
            }
            if of == "still" && rng.one_in(2) {
                self.start(at + below(rng, SECOND * 6), of);
            }
            if rng.one_in(3) {
                let gone = at + below(rng, SECOND * 15);
                self.acts.push(delete(gone, VirtualMachineSnapshot::resource(), "default", &name, "vmsnapshot"));
            }
        }
        if rng.one_in(2) {
            let source = ("VirtualMachine", pick(rng));
            let at = between(rng, soon, safety);
            self.clone(at, "clone", source, Some("copy"), MAY_FAIL);
            // As soon as it is there, whether its disks are filled or not.
            for later in [SECOND * 4, SECOND * 12] {
                self.is_to(at + below(rng, later), "copy", "Always");
            }
        }
        for n in 0..1 + rng.below(up_to(2, safety)) {
            let target = if rng.one_in(3) { "fresh" } else { "still" };
            let at = between(rng, soon * 3, safety);
            self.restore(at, &format!("back{n}"), "kept", target, Want::Any);
            if rng.one_in(2) {
                self.start(at + below(rng, SECOND * 6), target);
            }
        }
        for _ in 0..up_to(2, safety) + rng.below(up_to(5, safety)) {
            let (at, name) = (between(rng, soon, safety), pick(rng));
            match rng.below(3) {
                0 if name != "still" => self.is_to(at, name, "Halted"),
                1 if name != "still" => self.is_to(at, name, "Always"),
                _ => {
                    self.acts.push(delete(at, VirtualMachineInstance::resource(), "default", name, "instance"));
                }
            }
        }
        if rng.one_in(4) && bug.is_none() {
            let at = between(rng, soon, safety);
            match rng.below(2) {
                0 => self.acts.push(delete(at, VirtualMachine::resource(), "default", "mute", "vm")),
                _ => {
                    let resource = PersistentVolumeClaim::resource();
                    self.acts.push(delete(at, resource, "default", "plain-mute", "claim in use"));
                }
            }
        }
    }
}

/// Why machines are not as they should be in the end.
pub(crate) fn machines_lack(observer: &Observer, room: &Room) -> Option<String> {
    let is_there = |volume: &Value| {
        let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() else { return true };
        observer.get("claim", &format!("default/{claim}")).is_some_and(|claim| !deleting(claim))
    };
    let guests = room.guests();
    for machine in observer.all("vm") {
        let volumes = machine.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
        let whole = volumes.into_iter().flatten().all(is_there);
        let instance = observer.get("vmi", &key_of(machine)).filter(|vmi| controller(vmi) == uid(machine));
        let up = instance.is_some_and(|vmi| guests.iter().any(|guest| guest == uid(vmi)));
        match text(machine, "/spec/runStrategy") {
            "Always" if whole && !up => return Some(format!("vm {} is to run and does not", key_of(machine))),
            "Halted" if instance.is_some() => return Some(format!("vm {} is to be off and is not", key_of(machine))),
            _ => {}
        }
        for field in ["snapshotInProgress", "restoreInProgress"] {
            let by = text(machine, &format!("/status/{field}"));
            let kind = if field.starts_with("snapshot") { "vmsnapshot" } else { "vmrestore" };
            if !by.is_empty() && observer.get(kind, &format!("default/{by}")).is_none() {
                return Some(format!("vm {} is held by {by}, which is gone", key_of(machine)));
            }
        }
    }
    let lost = guests.iter().find(|guest| !observer.all("vmi").any(|vmi| uid(vmi) == **guest));
    lost.map(|guest| format!("the guest of {guest} has outlived its instance")).or_else(|| room.lack())
}
