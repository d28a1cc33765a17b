//! Machines that are to run again after failures alone (`runStrategy: RerunOnFailure`): their guests shut down, panic, and go with
//! their nodes.
//!
//! ```text
//!   made ─▶ runs ─┬─ shut down ─▶ stays down, whatever died or was read late meanwhile
//!             ▲   └─ failed ──┐
//!             └───────────────┘
//! ```
//!
//! How an instance ended is what the API says of it, since that is all that a control plane can know: a guest that has shut down on
//! a node that died before it was heard has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::kubevirt::{VirtualMachine, run_strategy};
use carrack_types::resource::Kind as _;
use serde_json::Value;

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::Node;
use crate::observer::{Change, Observer, controller, deleting, key_of, text, uid};
use crate::plants::Bug;
use crate::wants::{Want, guests_of, machine_lacks};
use crate::workload::{Act, What, delete, machine, up_to};

/// The invariant.
pub(crate) const NAME: &str = "what-shut-down-stays-down";

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(planted: Option<Bug>) -> bool {
    matches!(planted, None | Some(Bug::RerunsAlways))
}

/// Machines that nobody changes once they are made; some go in the end.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(up_to(4, safety)) {
        let name = format!("rerun{n}");
        let at = between(rng, Duration::from_secs(1), safety / 3);
        let (resource, object) =
            (VirtualMachine::resource(), machine(&name, run_strategy::RERUN_ON_FAILURE, rng.below(10)));
        acts.push(Act { at, what: What::Create { resource, object, want: Some(("vm", Want::Any)) } });
        let gone = at + between(rng, Duration::from_secs(1), safety);
        if gone < safety && rng.one_in(3) {
            acts.push(delete(gone, VirtualMachine::resource(), "default", &name, "vm"));
        }
    }
}

fn reruns(vm: &Value) -> bool {
    text(vm, "/spec/runStrategy") == run_strategy::RERUN_ON_FAILURE
}

/// UIDs of the machines whose last instance has gone after its guest had shut down.
#[derive(Debug, Default)]
pub(crate) struct Reruns(BTreeSet<String>);

impl Reruns {
    /// Something was committed.
    pub(crate) fn changed(&mut self, changes: &[Change], observer: &Observer, breaches: &mut Vec<Breach>) {
        for change in changes.iter().filter(|change| change.resource == "vmi") {
            let vmi = change.object();
            match (&change.before, &change.after) {
                (None, Some(_)) => {
                    let vm = observer.all("vm").find(|vm| uid(vm) == controller(vmi) && reruns(vm));
                    if vm.is_some_and(|vm| self.has_shut_down(vm)) {
                        let what =
                            format!("{} ({}) is made after the one before it has shut down", key_of(vmi), uid(vmi));
                        breaches.push(Breach::new(NAME, what));
                    }
                }
                (Some(old), None) if text(old, "/status/phase") == "Succeeded" => {
                    self.0.insert(controller(old).to_owned());
                }
                (Some(old), None) => _ = self.0.remove(controller(old)),
                _ => {}
            }
        }
    }

    /// Whether a machine's last instance has gone after its guest had shut down.
    pub(crate) fn has_shut_down(&self, vm: &Value) -> bool {
        self.0.contains(uid(vm))
    }

    /// What is not as it is to be in the end: what has shut down stays so, and everything else runs.
    pub(crate) fn lack(&self, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
        observer.all("vm").filter(|vm| reruns(vm) && !deleting(vm)).find_map(|vm| {
            let name = key_of(vm);
            let lack = if self.has_shut_down(vm) && observer.get("vmi", &name).is_none() {
                let (status, guests) = (text(vm, "/status/printableStatus"), guests_of(&name, nodes));
                (status != "Stopped" || guests > 0)
                    .then(|| format!("has shut down, and is {status:?} with {guests} guests"))
            } else {
                machine_lacks(vm, &name, observer, nodes)
            };
            lack.map(|lack| format!("vm {name} {lack}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(strategy: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "a", "uid": "vm"}, "spec": {"runStrategy": strategy},
            "status": {"printableStatus": "Stopped"}})
    }

    fn vmi(phase: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "a", "uid": "vmi",
            "ownerReferences": [{"controller": true, "uid": "vm"}]}, "status": {"phase": phase}})
    }

    /// Whether another instance may be made after one that ended like this, and whether the machine may stay without one.
    fn check(strategy: &str, ended: Option<&str>, may_start: bool, may_stay_down: bool) {
        let observer = Observer::of([("vm", vm(strategy))]);
        let (mut own, mut breaches) = (Reruns::default(), Vec::new());
        if let Some(phase) = ended {
            let gone = Change { resource: "vmi", before: Some(vmi(phase)), after: None };
            own.changed(&[gone], &observer, &mut breaches);
        }
        assert_eq!(own.lack(&observer, &BTreeMap::new()).is_none(), may_stay_down, "{strategy} after {ended:?}");
        let made = Change { resource: "vmi", before: None, after: Some(vmi("Pending")) };
        own.changed(&[made], &observer, &mut breaches);
        assert_eq!(breaches.is_empty(), may_start, "{strategy} after {ended:?}: {breaches:?}");
    }

    #[test]
    fn only_what_failed_runs_again() {
        check("RerunOnFailure", None, true, false);
        check("RerunOnFailure", Some("Failed"), true, false);
        check("RerunOnFailure", Some("Succeeded"), false, true);
        check("Always", Some("Succeeded"), true, true);
    }
}
