//! People who change their minds: they have a machine start anew, and switch it off before it has stopped.
//!
//! ```text
//!   runs ─▶ restart: [Stop, Start] is asked of it ─▶ halted at once ─▶ stops ─▶ stays off, whatever is left of what was asked
//! ```
//!
//! Nobody switches such a machine on again. So it is known that it is to be off, whatever its spec says later: who has changed that
//! was nobody who wanted it.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::kubevirt::{VirtualMachine, run_strategy};
use carrack_types::resource::Kind as _;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, controller, key_of, text, uid};
use crate::wants::Want;
use crate::workload::{Act, What, ask, machine, switch, up_to};

/// The invariant.
pub(crate) const NAME: &str = "halted-machines-stay-off";
/// The name of this part of the work, and what such machines are called.
pub(crate) const PART: &str = "fickle";

/// Machines that run or are started, are to start anew, and are switched off for good.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(up_to(4, safety)) {
        let name = format!("{PART}{n}");
        let (strategy, want) = match rng.one_in(3) {
            true => (run_strategy::MANUAL, Want::Down),
            false => (run_strategy::ALWAYS, Want::Up),
        };
        let mut at = between(rng, Duration::from_secs(1), safety / 4);
        let (resource, object) = (VirtualMachine::resource(), machine(&name, strategy, 5 + rng.below(15)));
        acts.push(Act { at, what: What::Create { resource, object, want: Some(("vm", want)) } });
        if strategy == run_strategy::MANUAL {
            acts.push(ask(at + Duration::from_millis(100), &name, "start", json!({})));
        }
        // Until its guest runs, mostly.
        at += between(rng, safety / 5, safety / 3);
        acts.push(ask(at, &name, "restart", json!({})));
        at += between(rng, Duration::from_millis(20), Duration::from_secs(2));
        acts.push(switch(at, &name, run_strategy::HALTED, Want::Down));
    }
}

/// Whether a machine is one of these.
fn is_one(vm: &Value) -> bool {
    text(vm, "/metadata/name").starts_with(PART)
}

/// UIDs of such machines that were switched off.
#[derive(Debug, Default)]
pub(crate) struct Fickle(BTreeSet<String>);

impl Fickle {
    /// Changes that were just committed, in their order.
    pub(crate) fn changed(&mut self, changes: &[Change], breaches: &mut Vec<Breach>) {
        for change in changes {
            match (change.resource, &change.before, &change.after) {
                ("vm", _, Some(vm)) if is_one(vm) => {
                    let strategy = text(vm, "/spec/runStrategy");
                    if strategy == run_strategy::HALTED {
                        self.0.insert(uid(vm).to_owned());
                    } else if self.is_off(vm) {
                        let what = format!("{} was switched off for good, and is to run: {strategy}", key_of(vm));
                        breaches.push(Breach::new(NAME, what));
                    }
                }
                ("vmi", None, Some(vmi)) if self.0.contains(controller(vmi)) => {
                    let what = format!("{} ({}) is made after its machine was switched off", key_of(vmi), uid(vmi));
                    breaches.push(Breach::new(NAME, what));
                }
                _ => {}
            }
        }
    }

    /// Whether a machine was switched off for good.
    pub(crate) fn is_off(&self, vm: &Value) -> bool {
        self.0.contains(uid(vm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_switched_off_stays_off() {
        let vm = |name: &str, strategy: &str| json!({"metadata": {"namespace": "default", "name": name, "uid": "vm"}, "spec": {"runStrategy": strategy}});
        let owners = json!([{"controller": true, "uid": "vm"}]);
        let metadata = json!({"namespace": "default", "name": "a", "uid": "vmi", "ownerReferences": owners});
        let vmi = || json!({"metadata": metadata});
        let check = |name: &str, after: Option<Value>, resource: &'static str, expected: usize| {
            let (mut own, mut breaches) = (Fickle::default(), Vec::new());
            let halts = Change {
                resource: "vm",
                before: Some(vm(name, run_strategy::ALWAYS)),
                after: Some(vm(name, run_strategy::HALTED)),
            };
            // What was there before does not matter.
            let made = Change { resource: "vmi", before: None, after: Some(vmi()) };
            own.changed(&[made, halts], &mut breaches);
            assert!(breaches.is_empty(), "{name} {resource}: {breaches:?}");
            own.changed(&[Change { resource, before: None, after }], &mut breaches);
            assert_eq!(breaches.len(), expected, "{name} {resource}: {breaches:?}");
        };
        check("fickle0", Some(vm("fickle0", run_strategy::ALWAYS)), "vm", 1);
        check("fickle0", Some(vm("fickle0", run_strategy::HALTED)), "vm", 0);
        check("fickle0", Some(vmi()), "vmi", 1);
        check("fickle0", None, "vmi", 0);
        // Others may be switched on again.
        check("vm0", Some(vm("vm0", run_strategy::ALWAYS)), "vm", 0);
        check("vm0", Some(vmi()), "vmi", 0);
    }
}
