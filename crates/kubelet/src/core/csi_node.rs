//! The node's CSINode: which CSI drivers are here, what they call the node, and how many volumes they take.
//!
//! It is written whole from what the drivers said; entries of drivers that are not here any more go when
//! their drivers unregister, as upstream's. Where the node is in a driver's terms goes before that onto the Node, as
//! labels, by which the scheduler finds it; they stay, since volumes rest on them. A driver that contradicts a label
//! which is there is not entered, nor is one that says what the API does not take: it would keep all others out. What an
//! entry says of the node cannot be changed, so a driver that says something else by now goes, and comes anew.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, ContentType, Time};
use carrack_schema::validate::names;
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use serde_json::{Value, json};

use super::{Call, Fx, KubeletCore, Wake};
use crate::volumes::CsiNodeInfo;

/// What was asked of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read,
    Written,
    Labelled,
}

/// Annotation of the Node: what each driver calls it, as JSON.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// What is known of the CSINode.
#[derive(Debug, Default)]
pub(super) struct CsiNodeState {
    /// UID of its Node.
    node: String,
    drivers: BTreeMap<String, CsiNodeInfo>,
    /// As read; `Some(None)` when it is not there.
    seen: Option<Option<CSINode>>,
    call: Option<CallId>,
    retry_at: Time,
    due: bool,
    /// Counts what the drivers have said.
    version: u64,
    /// What was written last, of which version, and when that was taken.
    taken: Option<(Asked, u64, Time)>,
    /// Of which version the call under way is; of none if it tells a part of it.
    sent: u64,
}

/// Most bytes of a driver's name for a node.
const MOST_NODE_ID: usize = 256;

/// How soon an API server that took what was written, and kept something else, is told the same again.
const TELL_AGAIN: Duration = Duration::from_secs(10);

impl CsiNodeState {
    pub fn up(&mut self, driver: String, info: CsiNodeInfo) {
        self.drivers.insert(driver, info);
        self.changed();
    }
    /// The drivers that are here.
    pub fn drivers(&self) -> impl Iterator<Item = &str> {
        self.drivers.keys().map(String::as_str)
    }
    /// A driver that is here takes so many volumes now.
    pub fn takes(&mut self, driver: &str, max_volumes: i64) {
        if let Some(info) = self.drivers.get_mut(driver).filter(|info| info.max_volumes != max_volumes) {
            info.max_volumes = max_volumes;
            self.changed();
        }
    }
    pub fn down(&mut self, driver: &str) {
        self.drivers.remove(driver);
        self.changed();
    }
    /// The Node is this one. A CSINode of another one that was there before goes with that, or becomes this one's.
    pub fn is_of(&mut self, node: &str) {
        if self.node == node {
            return;
        }
        let before = std::mem::replace(&mut self.node, node.to_owned());
        self.seen = None;
        // Where no driver is here there is nothing to say.
        if !before.is_empty() && !self.drivers.is_empty() {
            self.changed();
        }
    }
    fn changed(&mut self) {
        self.due = true;
        self.version += 1;
    }
    /// Until when nothing is written of this version, where the same was just taken.
    fn rests_until(&self, asked: Asked, sent: u64) -> Option<Time> {
        let (kind, version, at) = self.taken?;
        (kind == asked && version == sent).then_some(at + TELL_AGAIN)
    }
}

/// What of that which a driver says no API takes. A CSINode is taken as a whole or not at all, and so are the labels of a Node.
fn flaw(name: &str, info: &CsiNodeInfo) -> Option<String> {
    if let Some(problem) = names::csi_driver(name) {
        return Some(format!("its name: {problem}"));
    }
    let length = info.node_id.len();
    if length == 0 || length > MOST_NODE_ID {
        return Some(format!("its name for the node has {length} bytes, and is to have 1 to {MOST_NODE_ID}"));
    }
    info.topology.iter().find_map(|(key, value)| {
        let problem = names::qualified_name(key).or_else(|| names::label_value(value))?;
        Some(format!("its topology, {key:?} with {value:?}: {problem}"))
    })
}

/// The drivers that can be entered, and whose topology does not contradict the Node's labels.
fn agreed(drivers: &BTreeMap<String, CsiNodeInfo>, node: &Node) -> BTreeMap<String, CsiNodeInfo> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let agrees = |(name, info): &(&String, &CsiNodeInfo)| {
        if let Some(flaw) = flaw(name, info) {
            tracing::error!(driver = name, flaw, "what the driver says of the node cannot be entered");
            return false;
        }
        let other = info.topology.iter().find(|(k, v)| labels.get(*k).is_some_and(|there| there != *v));
        if let Some((key, value)) = other {
            tracing::error!(driver = name, key, value, "the driver's topology contradicts a label of the node");
        }
        other.is_none()
    };
    drivers.iter().filter(agrees).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// What is to be changed about the Node, if anything is.
fn node_patch(drivers: &BTreeMap<String, CsiNodeInfo>, node: &Node) -> Option<Value> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let missing: BTreeMap<&String, &String> =
        drivers.values().flat_map(|d| &d.topology).filter(|(k, _)| !labels.contains_key(*k)).collect();
    let ids: BTreeMap<&String, &String> = drivers.iter().map(|(name, d)| (name, &d.node_id)).collect();
    let there: BTreeMap<String, String> =
        node.annotation(NODE_IDS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let same = there.iter().eq(ids.iter().map(|(k, v)| (*k, *v)));
    if missing.is_empty() && same {
        return None;
    }
    let text = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
    Some(json!({"metadata": {"labels": missing, "annotations": {NODE_IDS: text}}}))
}

fn entries(drivers: &BTreeMap<String, CsiNodeInfo>) -> Vec<CSINodeDriver> {
    let entry = |(name, info): (&String, &CsiNodeInfo)| CSINodeDriver {
        name: name.clone(),
        node_id: info.node_id.clone(),
        topology_keys: Some(info.topology.keys().cloned().collect::<Vec<_>>()).filter(|k| !k.is_empty()),
        allocatable: i32::try_from(info.max_volumes)
            .ok()
            .filter(|n| *n > 0)
            .map(|count| VolumeNodeResources { count: Some(count) }),
    };
    drivers.iter().map(entry).collect()
}

/// What of it is written now: the entries that contradict none that is there. Each of those goes before there is another one
/// (`ValidateCSINodeUpdate`, `pkg/apis/storage/validation`).
fn writable(wanted: &[CSINodeDriver], there: Option<&CSINode>) -> Vec<CSINodeDriver> {
    let contradicts = |new: &CSINodeDriver, old: &CSINodeDriver| {
        old.name == new.name && (&old.node_id, &old.topology_keys) != (&new.node_id, &new.topology_keys)
    };
    let is_new = |new: &&CSINodeDriver| there.is_none_or(|n| !n.spec.drivers.iter().any(|old| contradicts(new, old)));
    wanted.iter().filter(is_new).cloned().collect()
}

impl KubeletCore {
    /// Brings the CSINode up to date.
    pub(super) fn step_csi_node(&mut self, now: Time, fx: &mut Fx) {
        let s = &mut self.csi_node;
        if !s.due || s.call.is_some() {
            return;
        }
        if s.retry_at > now {
            let at = s.retry_at;
            self.wake(at, Wake::CsiNode);
            return;
        }
        // Its owner is the Node, which has to be there first.
        let Some(node) = self.node.seen.clone() else { return };
        let name = &self.config.node_name;
        let s = &mut self.csi_node;
        let drivers = agreed(&s.drivers, &node);
        let mut is_whole = true;
        let (asked, request) = match (&s.seen, node_patch(&drivers, &node)) {
            (_, Some(patch)) => {
                let node = Node::resource();
                (Asked::Labelled, ApiRequest::patch(&node, "", name, "", ContentType::MergePatch, &patch))
            }
            (None, None) => (Asked::Read, ApiRequest::get(&CSINode::resource(), "", name)),
            (Some(seen), None) => {
                let wanted = entries(&drivers);
                // One of an earlier Node of this name goes with that.
                let is_own =
                    |n: &CSINode| n.metadata.owner_references.iter().flatten().any(|owner| owner.uid == node.uid());
                let is_there = |n: &CSINode| n.spec.drivers == wanted && is_own(n);
                if seen.as_ref().is_some_and(is_there) || (seen.is_none() && wanted.is_empty()) {
                    s.due = false;
                    return;
                }
                let now_written = writable(&wanted, seen.as_ref());
                is_whole = now_written == wanted;
                let owner = OwnerReference {
                    api_version: "v1".into(),
                    kind: "Node".into(),
                    name: name.clone(),
                    uid: node.uid().to_owned(),
                    ..OwnerReference::default()
                };
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    owner_references: Some(vec![owner]),
                    ..ObjectMeta::default()
                };
                let request = match seen {
                    None => ApiRequest::create(&CSINode { metadata, spec: CSINodeSpec { drivers: now_written } }),
                    Some(old) => {
                        let mut new = old.clone();
                        new.metadata.owner_references = metadata.owner_references;
                        new.spec.drivers = now_written;
                        ApiRequest::update(&new)
                    }
                };
                (Asked::Written, request)
            }
        };
        let sent = if is_whole { self.csi_node.version } else { 0 };
        if let Some(until) = self.csi_node.rests_until(asked, sent).filter(|until| *until > now) {
            self.wake(until, Wake::CsiNode);
            return;
        }
        let call = fx.api(request);
        self.calls.insert(call, Call::CsiNode(asked));
        self.csi_node.call = Some(call);
        self.csi_node.sent = sent;
    }

    pub(super) fn csi_node_answered(&mut self, now: Time, asked: Asked, result: Result<ApiResponse, ApiError>) {
        let s = &mut self.csi_node;
        s.call = None;
        if asked == Asked::Labelled {
            match result.and_then(|r| r.object::<Node>()) {
                Ok(node) => {
                    s.taken = Some((asked, s.sent, now));
                    self.node_written(node);
                }
                Err(error) => {
                    tracing::warn!(%error, "the node's topology is not on it");
                    s.retry_at = now + Duration::from_secs(1);
                    self.wake(now + Duration::from_secs(1), Wake::CsiNode);
                }
            }
            return;
        }
        match result.and_then(|r| r.object::<CSINode>()) {
            Ok(node) => {
                s.seen = Some(Some(node));
                if asked == Asked::Written {
                    s.taken = Some((asked, s.sent, now));
                }
            }
            Err(e) if e.is_not_found() && asked == Asked::Read => s.seen = Some(None),
            Err(error) => {
                tracing::warn!(%error, "the CSINode is not up to date");
                s.seen = None;
                s.retry_at = now + Duration::from_secs(1);
                self.wake(now + Duration::from_secs(1), Wake::CsiNode);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_rests_until_a_driver_says_something_else() {
        let at = Time::from_unix_s(100);
        let mut s = CsiNodeState::default();
        s.up("d".into(), CsiNodeInfo { node_id: "n".into(), max_volumes: 0, topology: BTreeMap::new() });
        s.taken = Some((Asked::Written, s.version, at));
        assert_eq!(s.rests_until(Asked::Written, s.version), Some(at + TELL_AGAIN));
        assert_eq!(s.rests_until(Asked::Labelled, s.version), None);
        s.takes("d", 3);
        assert_eq!(s.rests_until(Asked::Written, s.version), None);
    }

    fn says(node_id: &str, topology: &[(&str, &str)]) -> CsiNodeInfo {
        let topology = topology.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        CsiNodeInfo { node_id: node_id.into(), max_volumes: 0, topology }
    }

    #[test]
    fn who_cannot_be_entered_keeps_nobody_out() {
        let long = "n".repeat(MOST_NODE_ID + 1);
        for (name, info, is_entered) in [
            ("a.io", says("n", &[]), true),
            ("A.io", says("n", &[("a.io/zone", "z1"), ("plain", "")]), true),
            ("-a", says("n", &[]), false),
            ("a.io", says("", &[]), false),
            ("a.io", says(&long, &[]), false),
            ("a.io", says("n", &[("a.io/zone", "rack 7")]), false),
            ("a.io", says("n", &[("a.io/zone/rack", "7")]), false),
            ("a.io", says("n", &[("there", "1")]), true),
            ("a.io", says("n", &[("there", "2")]), false),
        ] {
            let labels = Some(BTreeMap::from([("there".to_owned(), "1".to_owned())]));
            let node = Node { metadata: ObjectMeta { labels, ..ObjectMeta::default() }, ..Node::default() };
            let drivers = BTreeMap::from([(name.to_owned(), info.clone()), ("z.io".to_owned(), says("n", &[]))]);
            let agreed = agreed(&drivers, &node);
            assert_eq!((agreed.contains_key(name), agreed.contains_key("z.io")), (is_entered, true), "{name} {info:?}");
        }
    }

    /// The API takes no other names and topologies for those of an entry that is there.
    #[test]
    fn what_an_entry_says_goes_before_something_else_is_said() {
        let all =
            |a: &CsiNodeInfo| entries(&BTreeMap::from([("a".to_owned(), a.clone()), ("b".into(), says("n", &[]))]));
        let (zone, rack) = (says("n", &[("zone", "1")]), says("n", &[("rack", "1"), ("zone", "1")]));
        for (there, wanted, expected) in [
            (None, &zone, &["a", "b"][..]),
            (Some(&zone), &zone, &["a", "b"]),
            (Some(&zone), &rack, &["b"]),
            (Some(&zone), &says("m", &[("zone", "1")]), &["b"]),
            (Some(&zone), &CsiNodeInfo { max_volumes: 3, ..zone.clone() }, &["a", "b"]),
        ] {
            let node = |drivers| CSINode { metadata: ObjectMeta::default(), spec: CSINodeSpec { drivers } };
            let there = there.map(|a| node(all(a)));
            let written = writable(&all(wanted), there.as_ref());
            let names: Vec<&str> = written.iter().map(|driver| driver.name.as_str()).collect();
            assert_eq!(names, expected, "{there:?}, and {wanted:?} is wanted");
            // Then all of it can be.
            assert_eq!(writable(&all(wanted), Some(&node(written))), all(wanted), "{wanted:?}");
        }
    }
}
