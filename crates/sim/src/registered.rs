//! CSI drivers that come and go, and what nodes' `CSINodes` say of them.
//!
//! ```text
//!   driver there ─▶ named ─ it goes ─▶ not named ─ it is there again ─▶ named, soon
//! ```
//!
//! Whoever schedules, and whoever attaches, goes by that: a driver that is left out there is one that no volume can come to.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use serde_json::Value;

use crate::invariants::Breach;
use crate::node::Node;
use crate::observer::{Observer, text};
use crate::role::node_name;

/// The invariant.
pub(crate) const NAME: &str = "registered-drivers-are-named";

/// How soon a driver is named that is there, once nothing fails any more.
const WITHIN: Duration = Duration::from_secs(60);

/// Drivers that are not named though their kubelets are there, by node, and since when.
#[derive(Debug, Default)]
pub(crate) struct Registered(BTreeMap<(u8, &'static str), Time>);

/// The drivers of a node that its CSINode does not name.
fn unnamed<'a>(node: &'a Node, observer: &'a Observer) -> impl Iterator<Item = &'static str> + 'a {
    let said = observer.get("csinode", &node_name(node.number));
    let named = said.and_then(|said| said.pointer("/spec/drivers")).and_then(Value::as_array);
    node.registered().filter(move |driver| !named.into_iter().flatten().any(|entry| text(entry, "/name") == *driver))
}

impl Registered {
    /// Looked at from time to time, now that nothing fails any more, with the nodes whose kubelets are there.
    pub(crate) fn look<'a>(
        &mut self,
        now: Time,
        nodes: impl Iterator<Item = &'a Node>,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) {
        let mut found = BTreeMap::new();
        for node in nodes {
            for driver in unnamed(node, observer) {
                let place = (node.number, driver);
                found.insert(place, self.0.get(&place).copied().unwrap_or(now));
            }
        }
        self.0 = found;
        if let Some(((node, driver), since)) = self.0.iter().find(|(_, since)| now.since(**since) > WITHIN) {
            let s = now.since(*since).as_secs();
            breaches
                .push(Breach::new(NAME, format!("node{node} has the driver {driver}, and its CSINode not, for {s} s")));
        }
    }

    /// What is not as it is to be in the end.
    pub(crate) fn lack(&self) -> Option<String> {
        self.0.keys().next().map(|(node, driver)| format!("the CSINode of node{node} does not name {driver}"))
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Rng;
    use serde_json::json;

    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    #[test]
    fn a_driver_that_is_not_named_is_found_in_time() {
        let at = Time::from_unix_s;
        let node = Node::new(1, at(0), Rng::new(1), NodeFaults::none(), Rack::default());
        let csi_node = |names: &[&str]| {
            let drivers: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            Observer::of([("csinode", json!({"metadata": {"name": "node1"}, "spec": {"drivers": drivers}}))])
        };
        let all: Vec<&str> = node.registered().collect();
        let (whole, lacking) = (csi_node(&all), csi_node(&all[1..]));
        let (mut registered, mut breaches) = (Registered::default(), Vec::new());
        for (s, observer, is_whole) in
            [(0, &whole, true), (5, &lacking, false), (60, &lacking, false), (65, &lacking, false)]
        {
            registered.look(at(s), std::iter::once(&node), observer, &mut breaches);
            assert_eq!((registered.lack().is_none(), breaches.len()), (is_whole, 0), "after {s} s");
        }
        registered.look(at(66), std::iter::once(&node), &lacking, &mut breaches);
        assert_eq!(breaches.len(), 1);
        // A kubelet that is not there names nothing.
        registered.look(at(67), std::iter::empty(), &lacking, &mut breaches);
        assert!(registered.lack().is_none());
    }
}
