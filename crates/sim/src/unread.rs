//! Records of a kubelet that a loss of power took, or what was last written of them.
//!
//! ```text
//!   written ─▶ power is lost: empty, half there, or as before ─▶ the kubelet starts
//!                 ├─ nothing of it can be here ─▶ dropped, and its pod is recorded anew
//!                 └─ something may be here ─▶ stays, and holds what it may name, until its pod is known again or gone
//! ```
//!
//! Nothing that was mounted is left then, and nothing runs: what such a record could have named holds nobody up for long.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use carrack_kubelet::records::{POD_PREFIX, PodRecord, VOLUME_PREFIX};
use carrack_kubelet::volumes::Staging;

use crate::invariants::Breach;
use crate::node::Node;

/// The invariant.
pub(crate) const NAME: &str = "unread-records-go";

/// How long it may take a kubelet to start and to look at its pods, once nothing fails any more.
const WITHIN: Duration = Duration::from_secs(60);

/// Whether a record is as it should be: it can be read, and lacks nothing of its pod. Those of images may stay as they are: who
/// brings no credentials for one is verified, for as long as it is there.
fn is_whole(name: &str, body: &[u8]) -> bool {
    if name.starts_with(POD_PREFIX) {
        serde_json::from_slice::<PodRecord>(body).is_ok_and(|record| !record.may_have_more)
    } else {
        !name.starts_with(VOLUME_PREFIX) || serde_json::from_slice::<Staging>(body).is_ok()
    }
}

/// Records on a node's disk that a loss of power took and that are not whole again.
fn broken(node: &Node) -> impl Iterator<Item = &str> {
    node.disk.lost().filter(|(name, body)| !is_whole(name, body)).map(|(name, _)| name)
}

/// One of them, if there are any.
pub(crate) fn left(node: &Node) -> Option<&str> {
    broken(node).next()
}

/// Since when such records are there, on which node.
#[derive(Debug, Default)]
pub(crate) struct Unread(BTreeMap<(u8, String), Time>);

impl Unread {
    /// Looked at from time to time, while nothing fails.
    pub(crate) fn look(&mut self, now: Time, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
        let mut left = Vec::new();
        for node in nodes.values().filter(|node| node.up) {
            left.extend(broken(node).map(|name| (node.number, name.to_owned())));
        }
        self.0.retain(|place, _| left.contains(place));
        for place in left {
            let (number, name) = place.clone();
            let since = *self.0.entry(place).or_insert(now);
            if now.since(since) > WITHIN {
                let what =
                    format!("the record {name} on node{number} is not whole for {} s", now.since(since).as_secs());
                breaches.push(Breach::new(NAME, what));
            }
        }
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
    fn a_record_that_was_lost_is_soon_gone_or_whole() {
        let pod = |may_have_more: bool| {
            json!({"pod": {"metadata": {"name": "p"}}, "admitted": true, "terminating": false, "deleted": false, "volumes": [],
                "mayHaveMore": may_have_more})
            .to_string()
        };
        let (whole, lacking, half) = (pod(false), pod(true), "{\"pod\":".to_owned());
        for (name, is, found) in [
            ("pod-p", None, false),
            ("pod-p", Some(whole), false),
            ("pod-p", Some(lacking), true),
            ("pod-p", Some(half.clone()), true),
            ("volume-v", None, false),
            ("volume-v", Some(half), true),
            ("volume-v", Some(String::new()), true),
        ] {
            let faults = NodeFaults { loses_one_in: 1, ..NodeFaults::none() };
            let mut node = Node::new(1, Time::default(), Rng::new(1), faults, Rack::default());
            node.disk.records.insert(name.to_owned(), b"{".to_vec());
            assert_eq!(left(&node), None, "{name}: the power was not lost yet");
            node.disk.write(name.to_owned(), b"{".to_vec());
            node.power_off(Time::default());
            match &is {
                Some(body) => node.disk.write(name.to_owned(), body.clone().into_bytes()),
                None => _ = node.disk.records.remove(name),
            }
            node.up = true;
            assert_eq!(left(&node), found.then_some(name), "{name}: {is:?}");
            let (nodes, mut unread, mut breaches) = (BTreeMap::from([(1, node)]), Unread::default(), Vec::new());
            unread.look(Time::default(), &nodes, &mut breaches);
            assert!(breaches.is_empty(), "{name}: {is:?} is there for no time yet");
            unread.look(Time::default() + WITHIN + Duration::from_secs(1), &nodes, &mut breaches);
            assert_eq!(!breaches.is_empty(), found, "{name}: {is:?}");
        }
    }
}
