//! Machines that leave their instance behind when they are deleted, and machines of their name that find it there.
//!
//! ```text
//!   made, and runs ─▶ deleted with orphans ─▶ made again ─▶ takes the instance over ─▶ does with it what its strategy says
//!                                                  └─▶ deleted just then ─▶ made once more
//! ```
//!
//! Whose owner is gone is taken away by the garbage collector, so that a machine which is deleted as it takes an instance over
//! would take a guest along that somebody wanted to keep.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{ApiRequest, DeleteOptions, Method, Rng};
use carrack_types::kubevirt::{VirtualMachine, run_strategy};
use carrack_types::resource::Kind as _;
use serde_json::Value;

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, controller, deleting, key_of, uid};
use crate::options::Options;
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, delete, machine};

/// The invariant.
pub(crate) const NAME: &str = "owners-were-there";
/// The name of this part of the work.
pub(crate) const PART: &str = "heritage";
/// With the planted bug, for how long a request that takes an instance over is on its way, at the least and at the most: who has
/// sent it has long given it up, and knows what has become of the machine since.
pub(crate) const LATE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(10));
/// After which time such a request has come.
const OVER: Duration = Duration::from_secs(15);

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    options.faults && !options.small && planted.is_none() && rng.fork("whether machines leave something").one_in(4)
}

/// The lives of machines of a name. With `always` there are two names, and each time the machine goes again as it comes.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, always: bool, acts: &mut Vec<Act>) {
    for n in 0..if always { 2 } else { 1 } {
        lives(&mut rng.fork(&format!("{n}")), safety, &format!("legacy{n}"), always, acts);
    }
}

fn create(at: Duration, name: &str, strategy: &str) -> Act {
    let (resource, object) = (VirtualMachine::resource(), machine(name, strategy, 5));
    Act { at, what: What::Create { resource, object, want: Some(("vm", Want::Any)) } }
}

fn lives(rng: &mut Rng, safety: Duration, name: &str, always: bool, acts: &mut Vec<Act>) {
    let soon = |rng: &mut Rng| between(rng, Duration::from_secs(3), Duration::from_secs(7));
    let mut at = between(rng, Duration::from_secs(1), Duration::from_secs(5));
    acts.push(create(at, name, run_strategy::ALWAYS));
    // Until its guest runs, mostly.
    at += between(rng, Duration::from_secs(15), Duration::from_secs(25));
    while at < safety {
        let options = DeleteOptions { propagation: Some("Orphan"), ..DeleteOptions::default() };
        let what = What::Delete {
            resource: VirtualMachine::resource(),
            namespace: "default".into(),
            name: name.into(),
            options,
            kind: "vm",
        };
        acts.push(Act { at, what });
        at += soon(rng);
        let others = [run_strategy::ALWAYS, run_strategy::HALTED, run_strategy::MANUAL];
        let other = others[usize::try_from(rng.below(3)).unwrap_or(0)];
        acts.push(create(at, name, if always { run_strategy::ALWAYS } else { other }));
        if rng.one_in(2) || always {
            at += between(rng, Duration::from_millis(200), Duration::from_secs(3));
            acts.push(delete(at, VirtualMachine::resource(), "default", name, "vm"));
            at += if always { OVER } else { soon(rng) };
            acts.push(create(at, name, run_strategy::ALWAYS));
        }
        at += between(rng, Duration::from_secs(10), Duration::from_secs(40));
    }
}

/// Whether a machine takes an instance over by this request, if a controller of machines sends it.
pub(crate) fn adopts(request: &ApiRequest) -> bool {
    request.method == Method::Patch
        && request.path.contains("/virtualmachineinstances/")
        && String::from_utf8_lossy(&request.body).contains("\"ownerReferences\"")
}

/// UID of the machine that an instance belongs to.
fn owner(vmi: &Value) -> Option<&str> {
    let owners = vmi.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let machine = |owner: &&Value| owner["controller"] == true && owner["kind"] == "VirtualMachine";
    owners.into_iter().flatten().find(machine)?["uid"].as_str()
}

/// UIDs of the machines that are there.
#[derive(Debug, Default)]
pub(crate) struct Heritage(BTreeSet<String>);

impl Heritage {
    /// Changes that were just committed, in their order.
    pub(crate) fn changed(&mut self, changes: &[Change], breaches: &mut Vec<Breach>) {
        for change in changes {
            match (change.resource, &change.before, &change.after) {
                ("vm", _, Some(vm)) => _ = self.0.insert(uid(vm).to_owned()),
                ("vm", Some(vm), None) => _ = self.0.remove(uid(vm)),
                ("vmi", before, Some(vmi)) => {
                    let (was, is) = (before.as_ref().and_then(owner), owner(vmi));
                    if let Some(owner) = is.filter(|owner| was != is && !self.0.contains(*owner)) {
                        let what =
                            format!("{} comes to belong to the machine {owner}, which is not there", key_of(vmi));
                        breaches.push(Breach::new(NAME, what));
                    }
                }
                _ => {}
            }
        }
    }
}

/// A machine that has an instance of its name, and not as its own.
pub(crate) fn lack(observer: &Observer) -> Option<String> {
    observer.all("vm").filter(|vm| !deleting(vm)).find_map(|vm| {
        let name = key_of(vm);
        let vmi = observer.get("vmi", &name).filter(|vmi| !deleting(vmi))?;
        controller(vmi).is_empty().then(|| format!("vm {name} has not taken the instance of its name over"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(uid: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "a", "uid": uid}})
    }

    fn vmi(owner: &str) -> Value {
        let owners = if owner.is_empty() {
            json!([])
        } else {
            json!([{"kind": "VirtualMachine", "controller": true, "uid": owner}])
        };
        json!({"metadata": {"namespace": "default", "name": "a", "uid": "vmi", "ownerReferences": owners}})
    }

    #[test]
    fn an_instance_comes_to_belong_to_a_machine_that_is_there() {
        let check = |changes: Vec<(&'static str, Option<Value>, Option<Value>)>, expected: usize| {
            let words = format!("{changes:?}");
            let changes: Vec<Change> =
                changes.into_iter().map(|(resource, before, after)| Change { resource, before, after }).collect();
            let mut breaches = Vec::new();
            Heritage::default().changed(&changes, &mut breaches);
            assert_eq!(breaches.len(), expected, "{words}");
        };
        let comes = || ("vm", None, Some(vm("x")));
        let goes = || ("vm", Some(vm("x")), None);
        let taken = || ("vmi", Some(vmi("")), Some(vmi("x")));
        check(vec![comes(), taken(), goes()], 0);
        check(vec![comes(), goes(), taken()], 1);
        check(vec![taken()], 1);
        check(vec![comes(), ("vmi", None, Some(vmi("x")))], 0);
        check(vec![("vmi", None, Some(vmi("x")))], 1);
        // That was found when it came to belong to it.
        check(vec![("vmi", Some(vmi("x")), Some(vmi("x")))], 0);
        check(vec![("vmi", Some(vmi("x")), Some(vmi("")))], 0);
    }

    #[test]
    fn an_instance_that_nobody_owns_is_taken_over_in_the_end() {
        for (owner, expected) in [("", true), ("x", false), ("y", false)] {
            let observer = Observer::of([("vm", vm("x")), ("vmi", vmi(owner))]);
            assert_eq!(lack(&observer).is_some(), expected, "{owner}");
        }
        assert_eq!(lack(&Observer::of([("vmi", vmi(""))])), None);
    }
}
