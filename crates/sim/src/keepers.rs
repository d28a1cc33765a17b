//! A machine whose firmware keeps its variables, on a claim: it is switched on and off, deleted, and made again under its name.
//!
//! Whether its guest runs is not asked here: its volume may lie on a node that is down. What is asked is that the claim is there
//! for as long as the machine is, whatever becomes of its instances, and that there is one.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_types::kubevirt::VirtualMachine;
use carrack_types::kubevirt::snapshot::names::RESTORE_NAME_ANNOTATION;
use carrack_types::resource::Kind as _;
use carrack_types::well_known::kubevirt::STATE_CLAIM_ANNOTATION;
use carrack_types::well_known::storage::DEFAULT_CLASS;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, controller, deleting, key_of, label, text, uid};
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, create, delete, machine};

/// The invariant.
pub(crate) const NAME: &str = "state-stays-with-its-machine";
const MACHINE: &str = "keeper";

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(planted: Option<Bug>) -> bool {
    matches!(planted, None | Some(Bug::StateOfInstances))
}

/// The class of what machines keep beside their disks: the default one, whose volumes are made where their machine is to run.
pub(crate) fn class(acts: &mut Vec<Act>) {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "state",
        "annotations": {DEFAULT_CLASS: "true"}},
        "provisioner": carrack_storage::DRIVER, "volumeBindingMode": "WaitForFirstConsumer"});
    acts.push(create(Duration::from_millis(100), StorageClass::resource(), class, None));
}

/// Has a machine's firmware keep its variables.
pub(crate) fn keep(machine: &mut Value) {
    machine["spec"]["template"]["spec"]["domain"]["firmware"] =
        json!({"bootloader": {"efi": {"secureBoot": false, "persistent": true}}});
}

/// The machine's life, in one run of three.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, always: bool, acts: &mut Vec<Act>) {
    if !always && !rng.one_in(3) {
        return;
    }
    class(acts);
    let mut at = between(rng, Duration::from_secs(1), safety / 4);
    for _ in 0..2 {
        let mut object = machine(MACHINE, "Always", 5);
        keep(&mut object);
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

/// Whether a restore made a claim. A machine that is restored has one more until it has become what was kept.
fn is_restored(claim: &Value) -> bool {
    !label(claim, "annotations", RESTORE_NAME_ANNOTATION).is_empty()
}

/// Whether a machine keeps what it keeps on another claim than this one: it names the one that it was restored with.
fn has_another(vm: &Value, claim: &Value) -> bool {
    let named = label(vm, "annotations", STATE_CLAIM_ANNOTATION);
    if named.is_empty() { is_restored(claim) } else { named != text(claim, "/metadata/name") }
}

/// A claim has come or gone. `made` says when each claim and machine was made, by UID.
pub(crate) fn changed(change: &Change, observer: &Observer, made: &BTreeMap<String, Time>, breaches: &mut Vec<Breach>) {
    let claim = change.object();
    let Some(machine) = claim["metadata"]["labels"]["persistent-state-for"].as_str() else { return };
    let is_of_instance = text(claim, "/metadata/ownerReferences/0/kind") == "VirtualMachineInstance";
    match (&change.before, &change.after) {
        (None, Some(new)) if !is_restored(new) => {
            let twin = |other: &&Value| controller(other) == controller(new) && uid(other) != uid(new);
            let state =
                |other: &&Value| !is_restored(other) && other["metadata"]["labels"]["persistent-state-for"] == machine;
            if let Some(twin) = observer.all("claim").filter(state).find(twin) {
                let what = format!("{} is made while the same machine has {}", key_of(new), key_of(twin));
                breaches.push(Breach::new(NAME, what));
            }
        }
        (Some(old), None) => {
            // That of an instance counts as the machine's: there are no instances of that name without one.
            let made = |object: &Value| made.get(uid(object)).copied();
            let its = |vm: &&Value| {
                let is_owner = uid(vm) == controller(old);
                is_owner || is_of_instance && key_of(vm).ends_with(machine) && made(vm) <= made(old)
            };
            let its = |vm: &&Value| its(vm) && !has_another(vm, old);
            if let Some(vm) = observer.all("vm").filter(|vm| !deleting(vm)).find(its) {
                let what = format!("{} is gone, and {} is there", key_of(old), key_of(vm));
                breaches.push(Breach::new(NAME, what));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, is_restored: bool) -> Value {
        let annotations = if is_restored { json!({RESTORE_NAME_ANNOTATION: "back"}) } else { json!({}) };
        json!({"metadata": {"namespace": "default", "name": name, "uid": name, "annotations": annotations,
            "labels": {"persistent-state-for": "keeper"}, "ownerReferences": [{"controller": true, "uid": "vm"}]}})
    }

    fn vm(named: Option<&str>) -> Value {
        let annotations = named.map_or(json!({}), |named| json!({STATE_CLAIM_ANNOTATION: named}));
        json!({"metadata": {"namespace": "default", "name": "keeper", "uid": "vm", "annotations": annotations}})
    }

    /// What a restore has made beside it is not a second one, and takes its place when the machine names it.
    #[test]
    fn a_machine_keeps_its_claim_or_has_another_that_it_was_restored_with() {
        let check = |named: Option<&str>, there: Option<Value>, change: Change, expected: usize| {
            let words = format!("{named:?} {there:?} {change:?}");
            let objects = [("vm", vm(named))].into_iter().chain(there.map(|claim| ("claim", claim)));
            let mut breaches = Vec::new();
            changed(&change, &Observer::of(objects), &BTreeMap::new(), &mut breaches);
            assert_eq!(breaches.len(), expected, "{words}: {breaches:?}");
        };
        let comes = |claim: Value| Change { resource: "claim", before: None, after: Some(claim) };
        let goes = |claim: Value| Change { resource: "claim", before: Some(claim), after: None };
        let (own, restored) = (|| claim("own", false), || claim("restored", true));
        check(None, Some(own()), comes(claim("another", false)), 1);
        check(None, Some(own()), comes(restored()), 0);
        check(None, Some(restored()), comes(own()), 0);
        check(None, None, goes(own()), 1);
        check(None, Some(own()), goes(restored()), 0);
        check(Some("restored"), Some(restored()), goes(own()), 0);
        check(Some("restored"), Some(own()), goes(restored()), 1);
    }
}
