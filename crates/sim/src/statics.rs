//! Static pods: manifests that people put on nodes, change and remove, and the mirrors that the API has of them.
//!
//! ```text
//!   written ─▶ its kubelet reads it ─▶ it runs ─▶ its mirror says so ─▶ that is deleted, called failed, or goes with its Node
//!     │                                 ▲                                  └─▶ it runs on, and is mirrored again
//!     └─ changed or removed ─▶ it ends, and its mirror goes ─┘ what the manifest is now
//! ```
//!
//! A kubelet is told to read them when its node gets the first one, and starts anew for that, as with any change of its
//! configuration. Otherwise it fares as it does without: it is killed, its node is drained, shut down and loses its power. That pods
//! whose manifests are gone leave nothing on their nodes is looked after with all others ([`crate::wants`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{ApiRequest, ContentType, DeleteOptions, Rng, Time};
use carrack_types::resource::Kind as _;
use carrack_types::well_known::MIRROR_ANNOTATION;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use serde_json::{Value, json};

use crate::chance::between;
use crate::drains::{Tie, tie};
use crate::invariants::Breach;
use crate::node::Node;
use crate::observer::{Observer, deleting, key_of, label, text, uid};
use crate::options::Options;
use crate::role::node_name;
use crate::workload::up_to;

/// The name of this part of the work.
pub(crate) const PART: &str = "statics";
/// The invariant of who ends static pods.
pub(crate) const PICTURES: &str = "mirrors-are-but-pictures";
/// The invariant of how many of them run.
pub(crate) const ONCE: &str = "manifests-run-once";
/// The invariant of what is told of them.
pub(crate) const MIRRORED: &str = "manifests-are-mirrored";

/// How often kubelets read manifests, where they do.
pub(crate) const READ_EVERY: Duration = Duration::from_secs(2);
/// How soon a mirror is as it is to be, once nothing fails any more: what it takes to read a manifest, to end what it was before, and
/// to ask for a mirror and to write its status with the longest of pauses between.
const WITHIN: Duration = Duration::from_secs(90);
/// How soon a kubelet is started anew once more whose Node somebody has deleted: it registers that only when it starts.
const AGAIN: Duration = Duration::from_secs(30);
/// How manifests, and so their pods, are called.
const NAME: &str = "static";

/// Whether this is part of the work. Beside other planted bugs than its own it is not; small runs have it where it is chosen with
/// the rest of their work.
fn are_there(work: &Rng, options: &Options) -> bool {
    let fits = options.has_whole_nodes() && options.faults;
    let is_meant = options.plant.is_none_or(|plant| plant.bug.is_of_statics());
    let drawn = || {
        let always = options.only.is_some() || options.hint().is_some();
        always || work.fork("whether there are manifests").one_in(4)
    };
    fits && is_meant && drawn() && options.parts(work).has(PART)
}

/// Whether a pod of the API says that it is the picture of one of a manifest.
pub(crate) fn is_mirror(pod: &Value) -> bool {
    !label(pod, "annotations", MIRROR_ANNOTATION).is_empty()
}

/// What somebody does about a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Writes it as it never was before.
    Writes,
    /// Puts it back as it was last.
    PutsBack,
    Removes,
    /// Deletes its mirror.
    Deletes {
        at_once: bool,
    },
    /// Says of its mirror that it has failed.
    Fails,
    /// Deletes its Node, if that has nothing else.
    TakesNodeOut,
}

/// The same, with the manifest and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Act {
    at: Time,
    number: u8,
    manifest: u64,
    what: What,
}

/// What is done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// A manifest is written on a node's disk.
    Writes { number: u8, name: String, text: String },
    /// It is removed.
    Removes { number: u8, name: String },
    /// Something is asked of the API server.
    Asks(ApiRequest),
    /// A node's kubelet is started anew, since its Node is gone.
    Restarts { number: u8 },
}

/// All that people do with manifests, and what is to be said of them.
#[derive(Debug, Default)]
pub(crate) struct Statics {
    /// What is still to be done, in order.
    acts: Vec<Act>,
    /// Which version each manifest has, or had last, by its node and its number.
    versions: BTreeMap<(u8, u64), u32>,
    /// Nodes that somebody has deleted, and when their kubelets were started anew for that, if they were.
    taken_out: BTreeMap<u8, Option<Time>>,
    /// Since when a mirror is not as it is to be, by its node and its name.
    wrong: BTreeMap<(u8, String), Time>,
    are_there: bool,
}

impl Statics {
    /// What the seed chooses for a cluster that begins then, with so many nodes.
    pub(crate) fn new(begin: Time, root: &Rng, nodes: u8, options: &Options) -> Self {
        if nodes == 0 || !are_there(&root.fork("workload"), options) {
            return Self::default();
        }
        let (mut rng, safety) = (root.fork(PART), options.safety);
        let first = rng.below(nodes.into());
        let count = (1 + rng.below(2)).min(nodes.into());
        let mut acts = Vec::new();
        for n in 0..count {
            let number = 1 + u8::try_from((first + n) % u64::from(nodes)).unwrap_or(0);
            for manifest in 0..1 + rng.below(2) {
                let act = |at: Duration, what: What| Act { at: begin + at, number, manifest, what };
                acts.push(act(between(&mut rng, safety / 10, safety / 3), What::Writes));
                for _ in 0..1 + rng.below(up_to(12, safety)) {
                    let at = between(&mut rng, safety / 5, safety);
                    acts.push(act(at, drawn(&mut rng)));
                }
            }
        }
        acts.sort_by_key(|act| act.at);
        Self { acts, are_there: true, ..Self::default() }
    }

    /// What is done now: of nodes that are off nothing, and of those that are gone nothing any more.
    pub(crate) fn due(&mut self, now: Time, nodes: &BTreeMap<u8, Node>, observer: &Observer) -> Vec<Deed> {
        let is_due = |act: &Act| act.at <= now && nodes.get(&act.number).is_none_or(|node| node.up || node.gone);
        let (due, later): (Vec<Act>, Vec<Act>) = std::mem::take(&mut self.acts).into_iter().partition(is_due);
        self.acts = later;
        let is_on = |act: &Act| nodes.get(&act.number).is_some_and(|node| node.up);
        let mut deeds: Vec<Deed> = due.into_iter().filter(is_on).filter_map(|act| self.deed(act, observer)).collect();
        for (number, last) in &mut self.taken_out {
            let is_gone = observer.get("node", &node_name(*number)).is_none();
            let is_up = nodes.get(number).is_some_and(|node| node.up);
            if is_gone && is_up && last.is_none_or(|last| now.since(last) >= AGAIN) {
                *last = Some(now);
                deeds.push(Deed::Restarts { number: *number });
            }
        }
        deeds
    }

    fn deed(&mut self, act: Act, observer: &Observer) -> Option<Deed> {
        let Act { number, manifest, what, .. } = act;
        let name = format!("{NAME}{manifest}");
        let mirror = format!("{name}-{}", node_name(number));
        let version = self.versions.entry((number, manifest)).or_default();
        Some(match what {
            What::Writes | What::PutsBack => {
                *version += u32::from(what == What::Writes);
                Deed::Writes { number, text: manifest_of(&name, *version).to_string(), name }
            }
            What::Removes => Deed::Removes { number, name },
            What::Deletes { at_once } => {
                let options = DeleteOptions { grace_period_s: at_once.then_some(0), ..DeleteOptions::default() };
                Deed::Asks(ApiRequest::delete(&Pod::resource(), "default", &mirror, &options))
            }
            What::Fails => {
                let (pods, patch) = (Pod::resource(), json!({"status": {"phase": "Failed"}}));
                Deed::Asks(ApiRequest::patch(&pods, "default", &mirror, "status", ContentType::MergePatch, &patch))
            }
            What::TakesNodeOut => {
                let node = node_name(number);
                let is_here = |pod: &Value| text(pod, "/spec/nodeName") == node;
                let has_others = observer.all("pod").any(|pod| is_here(pod) && !is_mirror(pod));
                if has_others || tie(&node, observer) != Tie::Free {
                    return None;
                }
                // The Node that comes then is another one.
                let of = uid(observer.get("node", &node)?).to_owned();
                let options = DeleteOptions { uid: Some(of), ..DeleteOptions::default() };
                self.taken_out.insert(number, None);
                Deed::Asks(ApiRequest::delete(&KubeNode::resource(), "", &node, &options))
            }
        })
    }

    /// Whether there are manifests in this run.
    pub(crate) fn are_there(&self) -> bool {
        self.are_there
    }

    /// Looked at from time to time, now that nothing fails any more, with the nodes whose kubelets are there.
    pub(crate) fn look<'a>(
        &mut self,
        now: Time,
        nodes: impl Iterator<Item = &'a Node>,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) {
        if !self.are_there {
            return;
        }
        let (mut found, mut late) = (BTreeMap::new(), None);
        for node in nodes {
            for (name, why) in wrong(node, observer) {
                let place = (node.number, name);
                let since = self.wrong.get(&place).copied().unwrap_or(now);
                if now.since(since) > WITHIN {
                    let s = now.since(since).as_secs();
                    late = late.or_else(|| Some(format!("{} on node{} {why}, for {s} s", place.1, place.0)));
                }
                found.insert(place, since);
            }
        }
        self.wrong = found;
        breaches.extend(late.map(|what| Breach::new(MIRRORED, what)));
    }

    /// What is not as it is to be in the end.
    pub(crate) fn lack(&self, nodes: &BTreeMap<u8, Node>, observer: &Observer) -> Option<String> {
        if !self.are_there {
            return None;
        }
        if let Some(act) = self.acts.first() {
            return Some(format!("somebody is still busy with a manifest on {}", node_name(act.number)));
        }
        nodes.values().filter(|node| !node.gone).find_map(|node| {
            let (name, why) = idle(node).or_else(|| wrong(node, observer).pop_first())?;
            Some(format!("{name} on node{} {why}", node.number))
        })
    }
}

/// What somebody does once a manifest is there.
fn drawn(rng: &mut Rng) -> What {
    match rng.below(9) {
        0 | 1 => What::Writes,
        2 => What::PutsBack,
        3 | 4 => What::Removes,
        5 => What::Deletes { at_once: false },
        6 => What::Deletes { at_once: true },
        7 => What::Fails,
        _ => What::TakesNodeOut,
    }
}

/// A version of a manifest. Its pod takes its time to end, and nothing of its node that others could lack.
fn manifest_of(name: &str, version: u32) -> Value {
    let env = json!([{"name": "STOPS_IN_S", "value": "5"}, {"name": "VERSION", "value": version.to_string()}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name},
        "spec": {"terminationGracePeriodSeconds": 6, "containers": [
            {"name": "main", "image": "sim/run", "imagePullPolicy": "IfNotPresent", "env": env}]}})
}

/// A node's manifests' pods, each with its UID and its mirror's name.
fn pods(node: &Node) -> impl Iterator<Item = (&str, String)> {
    node.manifests.pods().map(|pod| {
        let meta = &pod.metadata;
        let (namespace, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        (meta.uid.as_deref().unwrap_or_default(), format!("{namespace}/{name}"))
    })
}

/// A pod whose manifest is there and that does not run, by its mirror's name. One that has ended with the machine, which then stayed
/// after all, comes back with its kubelet, as upstream's does.
fn idle(node: &Node) -> Option<(String, String)> {
    let is_idle = |uid: &str| node.runtime.alive_of(uid).is_none() && !node.runtime.is_shut_down();
    let found = pods(node).find(|(uid, _)| is_idle(uid));
    found.map(|(_, name)| (name, "does not run, and its manifest is there".to_owned()))
}

/// The container that a pod's status tells to run.
fn told(pod: &Value) -> Option<&str> {
    let container = &pod["status"]["containerStatuses"][0];
    let id = container["containerID"].as_str().filter(|_| !container["state"]["running"].is_null())?;
    Some(id.strip_prefix("containerd://").unwrap_or(id))
}

/// Which mirrors of a node are not as they are to be, and why.
fn wrong(node: &Node, observer: &Observer) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut of_manifests = BTreeSet::new();
    for (uid, name) in pods(node) {
        let runs = node.runtime.alive_of(uid);
        let why = match observer.get("pod", &name) {
            None => Some("has no mirror".to_owned()),
            Some(mirror) if label(mirror, "annotations", MIRROR_ANNOTATION) != uid => {
                Some("has the mirror of another one".to_owned())
            }
            Some(mirror) if deleting(mirror) => Some("has a mirror that is to go".to_owned()),
            Some(mirror) if told(mirror) != runs || runs.is_some() && text(mirror, "/status/phase") != "Running" => {
                let (phase, told) = (text(mirror, "/status/phase"), told(mirror));
                Some(format!("runs in {runs:?}, and its mirror is told to be {phase:?} in {told:?}"))
            }
            // Clients show that in the place of its phase.
            Some(mirror) if runs.is_some() && !text(mirror, "/status/reason").is_empty() => {
                let reason = text(mirror, "/status/reason");
                Some(format!("runs, and its mirror is told to have ended: {reason:?}"))
            }
            Some(_) => None,
        };
        found.extend(why.map(|why| (name.clone(), why)));
        of_manifests.insert(name);
    }
    let here = node_name(node.number);
    let is_left =
        |pod: &&Value| is_mirror(pod) && text(pod, "/spec/nodeName") == here && !of_manifests.contains(&key_of(pod));
    found.extend(observer.all("pod").filter(is_left).map(|pod| (key_of(pod), "is the mirror of nothing".to_owned())));
    found
}

/// The nodes after a step: what a manifest is, and what it was, do not run at the same time.
pub(crate) fn once(nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    for node in nodes.values().filter(|node| node.manifests.are_read()) {
        let mut running: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
        for container in node.runtime.running().filter(|c| c.record.pod.name.starts_with(NAME)) {
            let (pod, id) = (&container.record.pod, container.record.id.as_str());
            let uid: &str = &pod.uid;
            if let Some((_, other)) = running.insert(&pod.name, (uid, id)).filter(|(other, _)| *other != uid) {
                let what = format!("{} runs twice on node{}: in {other} and in {id}", pod.name, node.number);
                breaches.push(Breach::new(ONCE, what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    fn node() -> Node {
        let mut node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        node.write_manifest("static0", &manifest_of("static0", 1).to_string());
        node
    }

    fn uid_of(node: &Node) -> String {
        pods(node).next().expect("a pod").0.to_owned()
    }

    fn mirror(name: &str, of: &str, status: &Value) -> Value {
        let metadata = json!({"namespace": "default", "name": name, "annotations": {MIRROR_ANNOTATION: of}});
        json!({"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status})
    }

    #[test]
    fn a_mirror_is_held_against_its_manifest() {
        let node = node();
        let (uid, name) = (uid_of(&node), "static0-node1");
        let (waits, runs) = (
            json!({"phase": "Pending"}),
            json!({"phase": "Running", "containerStatuses": [
            {"containerID": "containerd://container-1-2", "state": {"running": {}}}]}),
        );
        let mut going = mirror(name, &uid, &waits);
        going["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z".into();
        for (mirrors, expected) in [
            (vec![], Some("has no mirror")),
            (vec![mirror(name, &uid, &waits)], None),
            (vec![mirror(name, "another", &waits)], Some("of another one")),
            (vec![going], Some("is to go")),
            (vec![mirror(name, &uid, &runs)], Some("runs in None")),
            (vec![mirror(name, &uid, &waits), mirror("static1-node1", "gone", &waits)], Some("mirror of nothing")),
        ] {
            let observer = Observer::of(mirrors.into_iter().map(|mirror| ("pod", mirror)));
            let found: Vec<String> = wrong(&node, &observer).into_values().collect();
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            assert!(found.iter().all(|why| why.contains(expected.unwrap_or_default())), "{found:?}, {expected:?}");
        }
    }

    #[test]
    fn a_mirror_that_stays_wrong_is_found_in_time() {
        let (node, observer) = (node(), Observer::of([]));
        let at = Time::from_unix_s;
        for (are_there, expected) in [(true, 1), (false, 0)] {
            let mut statics = Statics { are_there, ..Statics::default() };
            let mut breaches = Vec::new();
            statics.look(at(100), std::iter::once(&node), &observer, &mut breaches);
            statics.look(at(190), std::iter::once(&node), &observer, &mut breaches);
            assert!(breaches.is_empty(), "{breaches:?}");
            statics.look(at(191), std::iter::once(&node), &observer, &mut breaches);
            assert_eq!(breaches.len(), expected, "{breaches:?}");
            // Who has no kubelet tells nothing.
            statics.look(at(192), std::iter::empty(), &observer, &mut breaches);
            statics.look(at(193), std::iter::once(&node), &observer, &mut breaches);
            assert_eq!(breaches.len(), expected, "{breaches:?}");
        }
    }

    #[test]
    fn what_is_to_be_done_waits_for_its_node() {
        let at = Time::from_unix_s;
        let act = |s: i64, what: What| Act { at: at(s), number: 1, manifest: 0, what };
        for (up, gone, seconds, expected, left) in
            [(true, false, 5, 2, 1), (true, false, 2, 1, 2), (false, false, 5, 0, 3), (false, true, 5, 0, 1)]
        {
            let mut node = node();
            (node.up, node.gone) = (up, gone);
            let acts = vec![act(1, What::Writes), act(5, What::Removes), act(9, What::PutsBack)];
            let mut statics = Statics { acts, are_there: true, ..Statics::default() };
            let deeds = statics.due(at(seconds), &BTreeMap::from([(1, node)]), &Observer::of([]));
            assert_eq!((deeds.len(), statics.acts.len()), (expected, left), "up: {up}, gone: {gone}");
        }
    }

    #[test]
    fn whose_node_was_deleted_is_started_anew_until_it_is_back() {
        let at = Time::from_unix_s;
        let acts = vec![Act { at: at(1), number: 1, manifest: 0, what: What::TakesNodeOut }];
        let mut statics = Statics { acts, are_there: true, ..Statics::default() };
        let is_there = || Observer::of([("node", json!({"metadata": {"name": "node1", "uid": "n"}}))]);
        let nodes = BTreeMap::from([(1, node())]);
        for (seconds, there, restarts, asks) in
            [(1, true, 0, 1), (2, true, 0, 0), (3, false, 1, 0), (4, false, 0, 0), (33, false, 1, 0), (70, true, 0, 0)]
        {
            let observer = if there { is_there() } else { Observer::of([]) };
            let deeds = statics.due(at(seconds), &nodes, &observer);
            let count =
                |restarts: bool| deeds.iter().filter(|d| matches!(d, Deed::Restarts { .. }) == restarts).count();
            assert_eq!((count(true), count(false)), (restarts, asks), "after {seconds} s: {deeds:?}");
        }
    }

    #[test]
    fn what_is_put_back_is_what_was_there() {
        let mut statics = Statics::default();
        let observer = Observer::of([]);
        let act = |what: What| Act { at: Time::default(), number: 1, manifest: 0, what };
        let mut text = |what: What| match statics.deed(act(what), &observer) {
            Some(Deed::Writes { text, .. }) => text,
            other => panic!("{other:?}"),
        };
        let (first, again, other) = (text(What::Writes), text(What::PutsBack), text(What::Writes));
        assert_eq!(first, again);
        assert_ne!(first, other);
    }
}
