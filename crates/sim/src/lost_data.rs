//! Data that went with its node for good, and pods that wait for it without end.
//!
//! ```text
//!   claim ─▶ volume on the disk of a node ─▶ the node is taken away ─┬─▶ its pods wait, and come to no other node
//!                                                                    └─▶ its claim goes: the volume is Released, and stays
//! ```
//!
//! The scheduler leaves a pod Pending whose volume no node reaches (plugins/volumebinding), and only the driver of its own node
//! deletes what a volume holds: its PersistentVolume keeps its finalizer until somebody takes that off by hand. So it is
//! upstream with external-provisioner on each node.

use carrack_storage::DRIVER;
use carrack_storage::provision::PROVISIONING;
use carrack_types::volume::SELECTED_NODE;
use serde_json::Value;

use crate::invariants::Breach;
use crate::observer::{Change, Observer, beside, key_of, label, text};
use crate::workload::TENANT;

/// The invariant that is looked after here, and where claims get their volumes.
pub(crate) const NAME: &str = "volumes-are-where-their-pods-are";

/// The node that a volume names first in its affinity; empty for none. Those on the disk of a node name no other.
pub(crate) fn first_node(volume: &Value) -> &str {
    text(volume, "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values/0")
}

/// The node on whose disk a volume of a pod was, where that node is gone.
pub(crate) fn lost_node<'a>(pod: &Value, observer: &'a Observer) -> Option<&'a str> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let mut nodes = volumes.filter_map(|volume| {
        let claim = observer.get("claim", &beside(pod, text(volume, "/persistentVolumeClaim/claimName")))?;
        let volume = observer.get("volume", text(claim, "/spec/volumeName"))?;
        Some(first_node(volume)).filter(|node| text(volume, "/spec/csi/driver") == DRIVER && !node.is_empty())
    });
    nodes.find(|node| observer.get("node", node).is_none())
}

/// Pods that have just come to a node, and whose data went with another one.
pub(crate) fn bound(changes: &[Change], observer: &Observer, breaches: &mut Vec<Breach>) {
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let node = |pod: &Option<Value>| pod.as_ref().map_or("", |pod| text(pod, "/spec/nodeName")).to_owned();
        let (Some(pod), had, has) = (&change.after, node(&change.before), node(&change.after)) else { continue };
        if had == has || has.is_empty() {
            continue;
        }
        if let Some(lost) = lost_node(pod, observer).filter(|lost| *lost != has) {
            let what = format!("{} comes to {has}, and a volume of it was at {lost} alone, which is gone", key_of(pod));
            breaches.push(Breach::new(NAME, what));
        }
    }
}

/// Whether what a volume holds may go with its node: it is on that node's disk, and no more is asked of it than that it is there.
pub(crate) fn may_go(volume: &Value) -> bool {
    let claim = text(volume, "/spec/claimRef/name");
    text(volume, "/spec/csi/driver") == DRIVER && claim.starts_with(TENANT)
}

/// Whether nobody at its volume's node has anything left to do for a claim: it has its volume, and bears no finalizer of the
/// provisioner there any more.
pub(crate) fn is_settled(claim: &Value) -> bool {
    let mut finalizers = claim.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten();
    let has_volume = !text(claim, "/spec/volumeName").is_empty();
    has_volume && text(claim, "/metadata/name").starts_with(TENANT) && !finalizers.any(|name| name == PROVISIONING)
}

/// Whether a claim may still be taken by any node: one whose word comes late would take it and never serve it.
pub(crate) fn is_free(claim: &Value, class: &str) -> bool {
    let is_taken = !label(claim, "annotations", SELECTED_NODE).is_empty();
    !is_taken && text(claim, "/spec/storageClassName") == class && text(claim, "/spec/volumeName").is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workload::SOON;

    fn pod(node: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "p"}, "spec": {"nodeName": node,
            "volumes": [{"name": "s", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim":
                {"claimName": "tenant0"}}]}})
    }

    fn claim(volume: &str, finalizer: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "tenant0", "finalizers": ["else", finalizer]},
            "spec": {"volumeName": volume, "storageClassName": SOON}})
    }

    fn volume(driver: &str, claim: &str) -> Value {
        let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": ["node2"]}]});
        json!({"metadata": {"name": "v"}, "spec": {"csi": {"driver": driver}, "claimRef": {"name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}})
    }

    #[test]
    fn a_pod_whose_data_is_lost_comes_to_no_other_node() {
        let node = || ("node", json!({"metadata": {"name": "node2"}}));
        let own = || vec![("claim", claim("v", "")), ("volume", volume(DRIVER, "tenant0"))];
        let with_node = own().into_iter().chain([node()]).collect();
        let of_else = vec![("claim", claim("v", "")), ("volume", volume("else", "tenant0"))];
        let unbound = vec![("claim", claim("", "")), ("volume", volume(DRIVER, "tenant0"))];
        for (objects, before, after, is_lost, found) in [
            (own(), "", "node1", true, 1),
            // It was decided before the node went.
            (own(), "", "node2", true, 0),
            (own(), "node1", "node1", true, 0),
            (own(), "", "", true, 0),
            (with_node, "", "node1", false, 0),
            (of_else, "", "node1", false, 0),
            (unbound, "", "node1", false, 0),
            (Vec::new(), "", "node1", false, 0),
        ] {
            let words = format!("{objects:?} {before:?} {after:?}");
            let (observer, mut breaches) = (Observer::of(objects), Vec::new());
            assert_eq!(lost_node(&pod(after), &observer), is_lost.then_some("node2"), "{words}");
            let change = Change { resource: "pod", before: Some(pod(before)), after: Some(pod(after)) };
            bound(&[change], &observer, &mut breaches);
            assert_eq!(breaches.len(), found, "{words}");
        }
    }

    #[test]
    fn what_may_go_with_its_node() {
        for (volume, expected) in
            [(volume(DRIVER, "tenant0"), true), (volume(DRIVER, "growing0"), false), (volume("else", "tenant0"), false)]
        {
            assert_eq!(may_go(&volume), expected, "{volume}");
        }
        let mut chosen = claim("", "");
        chosen["metadata"]["annotations"] = json!({SELECTED_NODE: "node2"});
        for (claim, settled, free) in [
            (claim("v", ""), true, false),
            (claim("v", PROVISIONING), false, false),
            (claim("", ""), false, true),
            (chosen, false, false),
        ] {
            assert_eq!((is_settled(&claim), is_free(&claim, SOON)), (settled, free), "{claim}");
        }
        assert!(!is_free(&claim("", ""), "late"));
    }
}
