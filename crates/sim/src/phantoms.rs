//! Nodes that are nothing but their objects: nobody is there, so that a pod which is told to leave does not. For such a pod another
//! one waits, and its node is deleted meanwhile, comes to refuse it, or offers less than it asks for.
//!
//! ```text
//!   a node ─▶ a pod comes ─▶ it is to go for another one ─┬─▶ the node is deleted ──────────▶ nobody waits for it
//!                                                         └─▶ it refuses that, or is small ─┘
//! ```
//!
//! Nothing else of a run comes to these nodes: they are cordoned, and only these pods tolerate that.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::chance::between;
use crate::options::Options;
use crate::plants::Bug;
use crate::workload::{self, Act, IMPORTANT, What, delete, important, mounting, taint};

/// The name of this part of the work.
pub(crate) const PART: &str = "phantoms";
/// The label by which pods ask for one of these nodes, which is its name.
const LABEL: &str = "sim.carrack.io/phantom";
/// By which a node is found that somebody deletes. Nobody looks for it: a late request may make it again.
pub(crate) const KIND: &str = "phantom";

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    options.faults && !options.small && planted.is_none() && rng.fork("whether nodes are phantoms").one_in(4)
}

/// Such nodes, with two pods each. With `go` there are more of them, and all of them are deleted while a pod waits.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, go: bool, acts: &mut Vec<Act>) {
    important(acts);
    let count = if go { 3 } else { 1 + rng.below(2) };
    for n in 0..count {
        one(&mut rng.fork(&format!("{n}")), safety, &format!("phantom{n}"), go, acts);
    }
}

/// Something is made of which nothing is said.
pub(crate) fn create(at: Duration, resource: Resource, object: Value) -> Act {
    workload::create(at, resource, object, None)
}

fn one(rng: &mut Rng, safety: Duration, name: &str, goes: bool, acts: &mut Vec<Act>) {
    let mut at = between(rng, Duration::from_secs(2), safety / 3);
    acts.push(create(at, Node::resource(), node(name)));
    for (pod, class) in [("dweller", None), ("nominee", Some(IMPORTANT))] {
        at += between(rng, Duration::from_secs(2), Duration::from_secs(5));
        acts.push(create(at, Pod::resource(), asking_for(name, pod, class)));
    }
    at += between(rng, Duration::from_secs(2), Duration::from_secs(8));
    let way = if goes { 0 } else { rng.below(3) };
    match way {
        1 => acts.push(taint(at, name.to_owned(), &json!([{"key": "sim/full", "effect": "NoSchedule"}]))),
        2 => {
            let patch = json!({"status": {"allocatable": {"cpu": "100m"}}});
            let what = What::Try { resource: Node::resource(), name: name.to_owned(), sub: "status", patch };
            acts.push(Act { at, what });
        }
        _ => {}
    }
    if way != 0 {
        at += between(rng, Duration::from_secs(2), Duration::from_secs(15));
    }
    acts.push(delete(at, Node::resource(), "", name, KIND));
}

/// A node that says that it is ready.
pub(crate) fn node(name: &str) -> Value {
    let room = json!({"cpu": "1", "memory": "1Gi", "pods": "10"});
    json!({"metadata": {"name": name, "labels": {LABEL: name}},
        "spec": {"unschedulable": true},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// A pod for such a node, which has no room for two of them.
pub(crate) fn asking_for(node: &str, name: &str, class: Option<&str>) -> Value {
    let mut pod = mounting(&format!("{name}-of-{node}"), 5, "scratch", "emptyDir", json!({}));
    let spec = &mut pod["spec"];
    spec["nodeSelector"] = json!({LABEL: node});
    spec["tolerations"] = json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]);
    spec["containers"][0]["resources"] = json!({"limits": {"cpu": "800m"}});
    if let Some(class) = class {
        spec["priorityClassName"] = class.into();
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_goes_after_a_pod_waits_for_it() {
        for (seed, goes) in (0..50).map(|seed| (seed, seed % 2 == 0)) {
            let (safety, mut all) = (Duration::from_secs(60), Vec::new());
            acts(&mut Rng::new(seed), safety, goes, &mut all);
            let gone = |act: &&Act| matches!(&act.what, What::Delete { name, .. } if name == "phantom0");
            let comes = |act: &&Act| matches!(&act.what, What::Create { object, .. } if object["metadata"]["name"] == "nominee-of-phantom0");
            let [gone, comes] = [all.iter().find(gone), all.iter().find(comes)].map(|act| act.map(|act| act.at));
            assert!(comes.is_some() && comes < gone && gone < Some(safety), "seed {seed}: {comes:?}, {gone:?}");
        }
    }
}
