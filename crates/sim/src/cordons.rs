//! Nodes that are cordoned, and pods that come there all the same.
//!
//! ```text
//!   a node is cordoned ─▶ a scheduler hears of it ─▶ it sends no further pod there, but such as tolerate that
//! ```
//!
//! An API server binds a pod to a cordoned node like to any other: it is the scheduler that minds (NodeUnschedulable). What a
//! scheduler decided before it had heard of that is still bound, minutes later if a volume has to be made, and a binding may be on
//! its way for long. So this goes by when a scheduler decides, and by how far it has heard of nodes then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use carrack_scheduler::Scheduler;
use serde_json::{Value, json};

use crate::closings::{UNSCHEDULABLE, takes};
use crate::drains::is_cordoned;
use crate::invariants::Breach;
use crate::observer::{Change, text};
use crate::role::Role;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "cordoned-nodes-take-no-pods";

/// UIDs of pods that a process has sent to a node and not yet seen there, with the life of the process.
type Sent = (u32, BTreeSet<Arc<str>>);

/// A node that is cordoned, and who sends pods there.
#[derive(Debug)]
struct Cordoned {
    /// At which revision it was cordoned.
    since: u64,
    /// What each scheduler that has heard of that had sent there when it was last looked at.
    sent: BTreeMap<Role, Sent>,
}

/// All nodes that are cordoned, by name.
#[derive(Debug, Default)]
pub(crate) struct Cordons(BTreeMap<String, Cordoned>);

impl Cordons {
    /// Changes that were just committed, in their order.
    pub(crate) fn changed(&mut self, changes: &[Change]) {
        for change in changes.iter().filter(|change| change.resource == "node") {
            let name = text(change.object(), "/metadata/name");
            let [before, after] = [&change.before, &change.after].map(|node| node.as_ref().filter(|n| is_cordoned(n)));
            match (before, after) {
                (Some(_), Some(_)) => {}
                (None, Some(node)) => {
                    let revision = text(node, "/metadata/resourceVersion").parse::<u64>().ok();
                    let cordoned = revision.map(|since| Cordoned { since, sent: BTreeMap::new() });
                    self.0.extend(cordoned.map(|cordoned| (name.to_owned(), cordoned)));
                }
                (_, None) => _ = self.0.remove(name),
            }
        }
    }

    /// Looks at a scheduler that has just done something, in this life.
    pub(crate) fn look(&mut self, (role, life): (Role, u32), scheduler: &Scheduler, breaches: &mut Vec<Breach>) {
        // It does something many times a second, and hardly ever is a node cordoned.
        if self.0.is_empty() {
            return;
        }
        let Some((_, heard)) = scheduler.heard_up_to() else { return };
        let cluster = scheduler.cluster();
        for (name, cordoned) in &mut self.0 {
            if heard < cordoned.since {
                // It has read all nodes anew, from somebody who is behind.
                cordoned.sent.remove(&role);
                continue;
            }
            let pods = cluster.named(name).into_iter().flat_map(|node| &node.pods);
            let sent: BTreeMap<&Arc<str>, _> = pods.filter(|(uid, _)| cluster.is_assumed(uid)).collect();
            let now = (life, sent.keys().copied().cloned().collect());
            let Some((of_life, before)) = cordoned.sent.insert(role, now) else { continue };
            for (uid, seat) in sent.into_iter().filter(|(uid, _)| of_life == life && !before.contains(*uid)) {
                let spec = serde_json::to_value(seat.info.spec()).unwrap_or_default();
                if !takes(&json!({"spec": {"unschedulable": true}}), &spec) {
                    let pod = format!("{}/{}", seat.info.namespace(), seat.info.name());
                    let what = format!("{role} sends {pod} ({uid}) to {name}, and has heard that it is cordoned");
                    breaches.push(Breach::new(NAME, what));
                }
            }
        }
    }
}

/// With the planted bug, what a scheduler hears instead of a line of a watch: no node is cordoned in it.
pub(crate) fn unheard(line: &Bytes) -> Bytes {
    let mut event: Value = serde_json::from_slice(line).unwrap_or_default();
    let is_node = event["object"]["kind"] == "Node";
    let Some(spec) = event["object"]["spec"].as_object_mut().filter(|_| is_node) else { return line.clone() };
    spec.remove("unschedulable");
    if let Some(taints) = spec.get_mut("taints").and_then(Value::as_array_mut) {
        taints.retain(|taint| taint["key"] != UNSCHEDULABLE);
    }
    event.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cordoned: bool, revision: &str) -> Option<Value> {
        Some(json!({"metadata": {"name": "a", "resourceVersion": revision}, "spec": {"unschedulable": cordoned}}))
    }

    #[test]
    fn a_node_is_cordoned_since_it_was_last_open() {
        let mut cordons = Cordons::default();
        for (before, after, expected) in [
            (None, node(false, "1"), None),
            (node(false, "1"), node(true, "2"), Some(2)),
            (node(true, "2"), node(true, "3"), Some(2)),
            (node(true, "3"), node(false, "4"), None),
            (node(false, "4"), node(true, "5"), Some(5)),
            (node(true, "5"), None, None),
            (None, node(true, "7"), Some(7)),
        ] {
            let words = format!("{before:?} {after:?}");
            for cordoned in cordons.0.values_mut() {
                cordoned.sent.insert(Role::Scheduler, (1, BTreeSet::new()));
            }
            cordons.changed(&[Change { resource: "node", before: before.clone(), after: after.clone() }]);
            assert_eq!(cordons.0.get("a").map(|cordoned| cordoned.since), expected, "{words}");
            // What was sent there before counts as long as the node stays as it is.
            let stays = [before, after].iter().all(|node| node.as_ref().is_some_and(is_cordoned));
            let counts = cordons.0.get("a").is_some_and(|cordoned| !cordoned.sent.is_empty());
            assert_eq!(counts, stays, "{words}");
        }
    }

    #[test]
    fn a_cordon_is_not_heard() {
        let line = |kind: &str, spec: Value| {
            Bytes::from(json!({"type": "MODIFIED", "object": {"kind": kind, "spec": spec}}).to_string())
        };
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let cordoned = json!({"unschedulable": true, "taints": [taint(UNSCHEDULABLE), taint("other")]});
        let heard = unheard(&line("Node", cordoned.clone()));
        assert_eq!(heard, line("Node", json!({"taints": [taint("other")]})));
        let pod = line("Pod", cordoned);
        assert_eq!(unheard(&pod), pod);
        let bookmark = Bytes::from_static(b"{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Node\"}}");
        assert_eq!(unheard(&bookmark), bookmark);
    }
}
