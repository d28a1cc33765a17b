//! A machine whose firmware keeps its variables, on a claim: it is switched on and off, deleted, and made again under its name.
//!
//! Whether its guest runs is not asked here: its volume may lie on a node that is down. What is asked is that the claim is there
//! for as long as the machine is, whatever becomes of its instances, and that there is one.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_types::kubevirt::VirtualMachine;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, controller, deleting, key_of, text, uid};
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, delete, machine};

/// The invariant.
pub(crate) const NAME: &str = "state-stays-with-its-machine";
const MACHINE: &str = "keeper";

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(planted: Option<Bug>) -> bool {
    matches!(planted, None | Some(Bug::StateOfInstances))
}

/// The machine's life, in one run of three.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, always: bool, acts: &mut Vec<Act>) {
    if !always && !rng.one_in(3) {
        return;
    }
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "state",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": carrack_storage::DRIVER, "volumeBindingMode": "WaitForFirstConsumer"});
    let create = |at, resource, object, want| Act { at, what: What::Create { resource, object, want } };
    acts.push(create(Duration::from_millis(100), StorageClass::resource(), class, None));
    let mut at = between(rng, Duration::from_secs(1), safety / 4);
    for _ in 0..2 {
        let mut object = machine(MACHINE, "Always", 5);
        object["spec"]["template"]["spec"]["domain"]["firmware"] =
            json!({"bootloader": {"efi": {"secureBoot": false, "persistent": true}}});
        acts.push(create(at, VirtualMachine::resource(), object, Some(("vm", Want::Any))));
        let turns: &[&str] = if rng.one_in(2) { &["Halted"] } else { &["Halted", "Always", "Halted"] };
        for strategy in turns {
            at += between(rng, Duration::from_secs(1), safety / 10);
            let patch = json!({"spec": {"runStrategy": strategy}});
            let (resource, name) = (VirtualMachine::resource(), MACHINE.to_owned());
            acts.push(Act { at, what: What::Try { resource, name, sub: "", patch } });
        }
        at += between(rng, Duration::from_secs(1), safety / 10);
        if rng.one_in(3) {
            return;
        }
        acts.push(delete(at, VirtualMachine::resource(), "default", MACHINE, "vm"));
        at += between(rng, Duration::from_secs(1), safety / 10);
    }
}

/// A claim has come or gone. `made` says when each claim and machine was made, by UID.
pub(crate) fn changed(change: &Change, observer: &Observer, made: &BTreeMap<String, Time>, breaches: &mut Vec<Breach>) {
    let claim = change.object();
    let Some(machine) = claim["metadata"]["labels"]["persistent-state-for"].as_str() else { return };
    let is_of_instance = text(claim, "/metadata/ownerReferences/0/kind") == "VirtualMachineInstance";
    match (&change.before, &change.after) {
        (None, Some(new)) => {
            let twin = |other: &&Value| controller(other) == controller(new) && uid(other) != uid(new);
            let state = |other: &&Value| other["metadata"]["labels"]["persistent-state-for"] == machine;
            if let Some(twin) = observer.all("claim").filter(state).find(twin) {
                let what = format!("{} is made while the same machine has {}", key_of(new), key_of(twin));
                breaches.push(Breach::new(NAME, what));
            }
        }
        (Some(old), None) => {
            // That of an instance counts as the machine's: there are no instances of that name without one.
            let made = |object: &Value| made.get(uid(object)).copied();
            let its = |vm: &&Value| {
                uid(vm) == controller(old) || is_of_instance && key_of(vm).ends_with(machine) && made(vm) <= made(old)
            };
            if let Some(vm) = observer.all("vm").filter(|vm| !deleting(vm)).find(its) {
                let what = format!("{} is gone, and {} is there", key_of(old), key_of(vm));
                breaches.push(Breach::new(NAME, what));
            }
        }
        _ => {}
    }
}
