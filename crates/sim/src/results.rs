//! What people have in the end of what they asked for, without what trouble may change of it.
//!
//! Only what they say something of is looked at ([`Want`]), and of that what follows from what they said: how big a machine is to
//! be, how many guests and launchers there are of it, how much a claim asks for and has. On which node something runs, how often it
//! has started, what its UID is and when all that was, is chance; and a single pod may have had to go for good.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::node::Node;
use crate::observer::{Observer, controller, deleting, key_of, owner_kind, terminal, text, uid};
use crate::wants::{Want, guests_of};

/// Owners that are looked after by controllers of machines, by their kinds, with what the observer calls them.
const OWNERS: [(&str, &str); 4] = [
    ("VirtualMachine", "vm"),
    ("VirtualMachineInstance", "vmi"),
    ("VirtualMachineInstanceReplicaSet", "vmirs"),
    ("DataVolume", "datavolume"),
];
/// What they own.
const OWNED: [&str; 4] = ["vmi", "pod", "claim", "datavolume"];

/// What people have, by kind and name.
pub(crate) fn of(
    wants: &BTreeMap<(&'static str, String), Want>,
    observer: &Observer,
    nodes: &BTreeMap<u8, Node>,
) -> BTreeMap<String, Value> {
    let mut results = BTreeMap::new();
    for ((kind, name), want) in wants {
        let has = match (want, observer.get(kind, name)) {
            (Want::Up | Want::Down | Want::Claim | Want::Parent | Want::Instances(_), None) => Value::Null,
            (Want::Up | Want::Down, Some(vm)) => machine(vm, observer, nodes),
            (Want::Claim, Some(claim)) => json!([
                text(claim, "/status/phase"),
                text(claim, "/spec/resources/requests/storage"),
                text(claim, "/status/capacity/storage")
            ]),
            (Want::Parent, Some(parent)) => owned(parent, "secret", observer).into(),
            (Want::Instances(_), Some(set)) => owned(set, "vmi", observer).into(),
            _ => continue,
        };
        results.insert(format!("{kind} {name}"), has);
    }
    let left: Vec<String> = OWNED.into_iter().flat_map(|kind| orphans(kind, observer)).collect();
    if !left.is_empty() {
        results.insert("what has outlived its owner".to_owned(), left.into());
    }
    results
}

/// A machine: how big it is to be, and what there is of it.
fn machine(vm: &Value, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Value {
    let name = key_of(vm);
    let launchers = observer.get("vmi", &name).map_or(0, |vmi| {
        let own = observer.all("pod").filter(|pod| controller(pod) == uid(vmi));
        own.filter(|pod| !terminal(pod)).count()
    });
    let template = &vm["spec"]["template"];
    json!({"guests": guests_of(&name, nodes), "launchers": launchers, "labels": template["metadata"]["labels"],
        "cpu": template["spec"]["domain"]["cpu"], "memory": template["spec"]["domain"]["memory"]})
}

/// How many objects of a kind are an owner's, and are to stay.
fn owned(owner: &Value, kind: &'static str, observer: &Observer) -> usize {
    observer.all(kind).filter(|object| controller(object) == uid(owner) && !deleting(object)).count()
}

/// What is there of a kind, and is to stay, of a machine, an instance or the like that is gone.
fn orphans(kind: &'static str, observer: &Observer) -> impl Iterator<Item = String> {
    let is_orphan = move |object: &&Value| {
        let owner = OWNERS.into_iter().find(|(owner, _)| *owner == owner_kind(object));
        let is_there = |(_, called): (&str, &'static str)| observer.all(called).any(|o| uid(o) == controller(object));
        owner.is_some_and(|owner| !is_there(owner)) && !deleting(object)
    };
    observer.all(kind).filter(is_orphan).map(move |object| format!("{kind} of {}", owner_kind(object)))
}

/// The first thing that is otherwise where nothing fails.
pub(crate) fn difference(troubled: &BTreeMap<String, Value>, calm: &BTreeMap<String, Value>) -> Option<String> {
    let said = |has: Option<&Value>| has.map_or_else(|| "nothing".to_owned(), Value::to_string);
    let differs = |name: &&String| troubled.get(*name) != calm.get(*name);
    let name = troubled.keys().chain(calm.keys()).find(differs)?;
    let (is, would_be) = (said(troubled.get(name)), said(calm.get(name)));
    Some(format!("{name}: {is}; where nothing fails: {would_be}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(guest: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "a", "uid": "v"},
            "spec": {"template": {"spec": {"domain": {"memory": {"guest": guest}}}}}})
    }

    /// An object with an owner, of a kind and with a UID.
    fn of_owner(name: &str, kind: &str, owner: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": name, "uid": name,
            "ownerReferences": [{"controller": true, "kind": kind, "uid": owner}]}})
    }

    fn results(objects: Vec<(&'static str, Value)>) -> BTreeMap<String, Value> {
        let wants = [("vm", Want::Up), ("claim", Want::Claim), ("pod", Want::Any)];
        let wants = wants.map(|(kind, want)| ((kind, "default/a".to_owned()), want));
        of(&BTreeMap::from(wants), &Observer::of(objects), &BTreeMap::new())
    }

    #[test]
    fn what_people_said_counts_and_chance_does_not() {
        let usual = || vec![("vm", vm("1Gi")), ("vmi", of_owner("a", "VirtualMachine", "v"))];
        let calm = results(usual());
        let with = |kind: &'static str, object: Value| results([usual(), vec![(kind, object)]].concat());
        let launcher = |phase: &str| {
            let mut pod = of_owner("virt-launcher-a-x", "VirtualMachineInstance", "a");
            pod["status"]["phase"] = phase.into();
            pod
        };
        let claim = json!({"metadata": {"namespace": "default", "name": "a"}, "status": {"phase": "Bound"}});
        let mut going = of_owner("b", "VirtualMachine", "gone");
        going["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z".into();
        for (what, troubled, differs) in [
            ("nothing", results(usual()), false),
            ("a single pod", with("pod", json!({"metadata": {"namespace": "default", "name": "a"}})), false),
            ("an ended launcher", with("pod", launcher("Failed")), false),
            ("a launcher", with("pod", launcher("Running")), true),
            ("a claim", with("claim", claim), true),
            ("another size", results(vec![("vm", vm("2Gi")), ("vmi", of_owner("a", "VirtualMachine", "v"))]), true),
            ("no machine", results(Vec::new()), true),
            ("an orphan", with("vmi", of_owner("b", "VirtualMachine", "gone")), true),
            ("an orphan that goes", with("vmi", going), false),
            ("another's orphan", with("pod", of_owner("b", "ReplicaSet", "gone")), false),
        ] {
            let difference = difference(&troubled, &calm);
            assert_eq!(difference.is_some(), differs, "{what}: {difference:?}");
        }
    }
}
