//! Zones of nodes, and pods that are told theirs.
//!
//! In some runs kubelets say in which zones their nodes are. Pods are spread over these then, silent nodes are counted by zone,
//! and the API server labels a pod that comes to a node with the node's zone (PodTopologyLabels).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiRequest, Rng, Time};

use crate::invariants::Breach;
use crate::observer::{Change, key_of, label, text};
use crate::plants::Bug;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "placed-pods-carry-their-zone";

/// The label, of nodes and of pods.
const LABEL: &str = "topology.kubernetes.io/zone";
/// How long a node must have been there: longer than an API server takes for a binding, which looks at the node first.
const SETTLED: Duration = Duration::from_secs(10);

/// Whether nodes have zones. Beside other planted bugs than that of zones they have none.
pub(crate) fn are_there(root: &Rng, planted: Option<Bug>) -> bool {
    planted == Some(Bug::ZonesLost) || planted.is_none() && root.fork("zones").one_in(4)
}

/// With which labels a node's kubelet says where the node is.
pub(crate) fn labels(node: u8) -> BTreeMap<String, String> {
    let zone = if node.is_multiple_of(2) { "even" } else { "odd" };
    [(LABEL.to_owned(), zone.to_owned())].into()
}

/// A binding, posted to the resource of all bindings, where nobody labels pods.
pub(crate) fn without_labels(request: ApiRequest) -> ApiRequest {
    let path = request.path.split_once("/pods/").map(|(namespace, _)| format!("{namespace}/bindings"));
    ApiRequest { path: path.unwrap_or_else(|| request.path.clone()), ..request }
}

/// In which zone each Node is, and since when.
#[derive(Debug, Default)]
pub(crate) struct Zones(BTreeMap<String, (String, Time)>);

impl Zones {
    /// Changes that were just committed.
    pub(crate) fn changed(&mut self, now: Time, changes: &[Change], breaches: &mut Vec<Breach>) {
        for change in changes {
            match change.resource {
                "node" => self.node(now, change),
                "pod" => breaches.extend(self.pod(now, change)),
                _ => {}
            }
        }
    }

    fn node(&mut self, now: Time, change: &Change) {
        let name = text(change.object(), "/metadata/name");
        let zone = change.after.as_ref().map_or("", |node| label(node, "labels", LABEL));
        if zone.is_empty() {
            self.0.remove(name);
        } else if self.0.get(name).is_none_or(|(known, _)| known != zone) {
            self.0.insert(name.to_owned(), (zone.to_owned(), now));
        }
    }

    /// A pod that had no node, and has one now.
    fn pod(&self, now: Time, change: &Change) -> Option<Breach> {
        let (old, new) = (change.before.as_ref()?, change.after.as_ref()?);
        let (from, to) = (text(old, "/spec/nodeName"), text(new, "/spec/nodeName"));
        let (zone, since) = self.0.get(to).filter(|_| from.is_empty())?;
        let carried = label(new, "labels", LABEL);
        let is_lost = carried != zone && now.since(*since) >= SETTLED;
        is_lost.then(|| {
            let what = format!("{} comes to {to} in the zone {zone}, and is told {carried:?}", key_of(new));
            Breach::new(NAME, what)
        })
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Method;
    use serde_json::{Value, json};

    use super::*;

    fn node() -> Value {
        json!({"metadata": {"name": "node1", "labels": labels(1)}})
    }

    fn pod(node: &str, zone: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "p", "labels": {LABEL: zone}}, "spec": {"nodeName": node}})
    }

    /// What is found when a pod changes so, and its node is there for so many seconds.
    fn found(there_s: u64, before: &Value, after: &Value) -> bool {
        let (begin, mut zones, mut breaches) = (Time::from_unix_s(100), Zones::default(), Vec::new());
        let change = |resource, before: Option<&Value>, after: &Value| Change {
            resource,
            before: before.cloned(),
            after: Some(after.clone()),
        };
        zones.changed(begin, &[change("node", None, &node())], &mut breaches);
        let later = begin + Duration::from_secs(there_s);
        zones.changed(later, &[change("node", Some(&node()), &node())], &mut breaches);
        zones.changed(later, &[change("pod", Some(before), after)], &mut breaches);
        !breaches.is_empty()
    }

    #[test]
    fn a_pod_that_comes_to_a_node_without_its_zone_is_found() {
        for (there_s, before, after, expected) in [
            (60, pod("", ""), pod("node1", "odd"), false),
            (60, pod("", ""), pod("node1", ""), true),
            (60, pod("", "even"), pod("node1", "even"), true),
            // The binding may have looked at the node before it was there.
            (1, pod("", ""), pod("node1", ""), false),
            // It has been there, and people may do with its labels what they like.
            (60, pod("node1", "odd"), pod("node1", ""), false),
            (60, pod("", ""), pod("node2", ""), false),
        ] {
            assert_eq!(found(there_s, &before, &after), expected, "{there_s} s: {before} {after}");
        }
    }

    #[test]
    fn bindings_without_labels_are_posted_where_all_are() {
        let path = |path: &str| without_labels(ApiRequest::new(Method::Post, path)).path;
        assert_eq!(path("/api/v1/namespaces/default/pods/p/binding"), "/api/v1/namespaces/default/bindings");
        assert_eq!(path("/api/v1/nodes"), "/api/v1/nodes");
    }
}
