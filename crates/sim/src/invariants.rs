//! What must hold at every step.
//!
//! Some are checked where it happens (a volume is unmounted, a container is killed), some on each
//! change that is committed, some on the state of the nodes after each step.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_kubelet::devices;
use carrack_store::Revision;
use carrack_types::quantity::Quantity;
use carrack_virt::identity::CONSUMER;
use serde_json::Value;

use crate::controllers::Bounds;
use crate::node::{Node, named};
use crate::observer::{
    Change, Made, Observer, conditions, controller, deleting, key_of, owner_kind, terminal, text, uid,
};
use crate::replicas;
use crate::resizes::Grants;
use crate::statics::is_mirror;
pub use table::{INVARIANTS, Invariant};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    pub invariant: &'static str,
    pub message: String,
}

impl Breach {
    pub(crate) fn new(invariant: &'static str, message: String) -> Self {
        debug_assert!(INVARIANTS.iter().any(|i| i.name == invariant), "an invariant without a name: {invariant}");
        Self { invariant, message }
    }
}

/// Looks at the changes that are committed, and at the nodes.
#[derive(Default)]
pub(crate) struct Checker {
    /// The most that a node has ever offered of a resource.
    offered: BTreeMap<String, BTreeMap<String, Quantity>>,
    /// UIDs of pods that somebody deleted by force: their objects go before they have stopped.
    pub forced: BTreeSet<String>,
    bounds: Bounds,
    grants: Grants,
    /// Since when nothing is left of a pod that is to go.
    leaving: BTreeMap<String, Time>,
    /// Since when a pod's mounts are all that is left of it, by node and UID.
    mounted: BTreeMap<(u8, String), Time>,
    unread: crate::unread::Unread,
    /// How the nodes were when they were last looked at.
    looked_at: Option<State>,
    /// When each node last renewed its Lease.
    renewed: BTreeMap<String, Time>,
    /// When the API server was away: from when to when, if it came back.
    pub outages: Vec<(Time, Option<Time>)>,
}

/// What decides what there is to be seen of nodes: when pods last changed, and how often containers and guests of each node may have.
type State = (Revision, Vec<(u8, u64, u64)>);

/// How long a node must have been silent, at the least, before its pods are to go: its Lease's period and a retry less than
/// the grace period.
const SILENT: Duration = Duration::from_secs(30);
/// For how long no node at all must have renewed its Lease for it to be the control plane that is cut off: longer than what
/// the controllers hear may lag.
const ALL_SILENT: Duration = Duration::from_secs(75);

/// How long a pod of which nothing is left may stay once nothing fails: what unmounting and three writes may take, with
/// the slowest of delays.
const LEAVES_WITHIN: Duration = Duration::from_secs(60);
/// How long what is mounted for it may stay: as long as a kubelet waits at the most before it asks once more a driver that was away,
/// and as long again as above.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(64 + 60);

/// What a pod holds of its node. What it wishes beside that may have come while another pod was on its way there, and so may what it
/// was granted lately ([`Grants`]).
pub(crate) struct Requests(pub BTreeMap<String, Quantity>);

impl Made for Requests {
    fn of(pod: &Value) -> Self {
        let granted = serde_json::from_value(crate::resizes::as_granted(pod));
        Self(granted.map(|pod| carrack_types::held::requests(&pod)).unwrap_or_default())
    }
}

impl Checker {
    /// Changes that were just committed.
    pub(crate) fn changed(
        &mut self,
        now: Time,
        changes: &[Change],
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        for change in changes {
            self.bounds.changed(now, change, observer, breaches);
            self.grants.changed(now, change);
            // What is left of an instance whose node is known to be dead waits for nothing, and a mirror is nothing that runs.
            let waits = |pod: &Value| !self.forced.contains(uid(pod)) && !is_of_lost(pod, observer) && !is_mirror(pod);
            if change.resource == "pod" && waits(change.object()) {
                self.bounds.orphan(now, change, breaches);
            }
            match change.resource {
                "pod" => self.pod(now, change, observer, nodes, breaches),
                "node" => {
                    self.node(change.object());
                    self.evicts(now, change, breaches);
                }
                "lease" => {
                    self.renewed.insert(text(change.object(), "/metadata/name").to_owned(), now);
                }
                "vmi" if change.before.is_some() && change.after.is_some() => {
                    lost(change, nodes, breaches);
                    succeeded(change, nodes, breaches);
                }
                "vmi" | "secret" | "datavolume" if change.before.is_none() => children(change, observer, breaches),
                _ => {}
            }
        }
    }

    /// Whether a pod that its kubelet has found no room for had a binding that crossed what was granted to another one.
    pub(crate) fn crossed(&self, pod: &Value) -> bool {
        self.grants.crossed(pod)
    }

    /// For how long a node could have been heard and was not.
    fn silent(&self, node: &str, now: Time) -> Duration {
        let since = self.renewed.get(node).copied().unwrap_or_default();
        let deaf: Duration = self
            .outages
            .iter()
            .map(|(from, to)| to.unwrap_or(now).since((*from).max(since)))
            .fold(Duration::ZERO, |sum, time| sum + time);
        now.since(since).saturating_sub(deaf)
    }

    /// A node's pods are to be evicted from now on, because it is not heard.
    fn evicts(&self, now: Time, change: &Change, breaches: &mut Vec<Breach>) {
        let tainted = |node: &Option<Value>| {
            let taints = node.as_ref().and_then(|n| n.pointer("/spec/taints")).and_then(Value::as_array);
            taints
                .into_iter()
                .flatten()
                .any(|t| t["key"] == "node.kubernetes.io/unreachable" && t["effect"] == "NoExecute")
        };
        if tainted(&change.before) || !tainted(&change.after) {
            return;
        }
        let name = text(change.object(), "/metadata/name");
        let silent = self.silent(name, now);
        if silent < SILENT {
            let what = format!(
                "{name} is tainted for eviction though it could have been heard for {} s alone",
                silent.as_secs()
            );
            breaches.push(Breach::new("eviction-needs-a-silent-node", what));
        }
        if self.renewed.keys().all(|other| self.silent(other, now) >= ALL_SILENT) {
            let what = format!("{name} is tainted for eviction while no node is heard");
            breaches.push(Breach::new("eviction-needs-a-silent-node", what));
        }
    }

    /// Pods that are to go, looked at from time to time while nothing fails.
    pub(crate) fn leaving(
        &mut self,
        now: Time,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        self.mounted(now, observer, nodes, breaches);
        self.unread.look(now, nodes, breaches);
        let left = |pod: &Value| {
            let node = named(nodes, text(pod, "/spec/nodeName"));
            let finalizers =
                pod.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty());
            finalizers
                || node.is_none_or(|n| {
                    let runs = n.runtime.alive_of(uid(pod)).is_some() || n.runtime.sandbox_of(uid(pod)).is_some();
                    !n.up || runs || n.disk.mounted().any(|(pod_uid, _)| pod_uid == uid(pod))
                })
        };
        let going: BTreeMap<String, String> = observer
            .all("pod")
            .filter(|pod| deleting(pod) && !left(pod))
            .map(|pod| (uid(pod).to_owned(), key_of(pod)))
            .collect();
        self.leaving.retain(|id, _| going.contains_key(id));
        for (id, name) in going {
            let since = *self.leaving.entry(id).or_insert(now);
            if now.since(since) > LEAVES_WITHIN {
                let what =
                    format!("nothing is left of {name} for {} s, and it is still there", now.since(since).as_secs());
                breaches.push(Breach::new("deleted-pods-go", what));
            }
        }
    }

    /// What is still mounted for pods that are gone or to go.
    fn mounted(&mut self, now: Time, observer: &Observer, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
        let stays = |id: &str| observer.all("pod").any(|pod| uid(pod) == id && !deleting(pod));
        let mut left: BTreeMap<(u8, String), String> = BTreeMap::new();
        for node in nodes.values().filter(|n| n.up) {
            let runs = |id: &str| node.runtime.alive_of(id).is_some() || node.runtime.sandbox_of(id).is_some();
            for (id, path) in node.disk.mounted().filter(|(id, _)| !stays(id) && !runs(id)) {
                left.insert((node.number, id.to_owned()), path.to_owned());
            }
        }
        self.mounted.retain(|place, _| left.contains_key(place));
        for (place, path) in left {
            let (number, since) = (place.0, *self.mounted.entry(place).or_insert(now));
            if now.since(since) > UNMOUNTED_WITHIN {
                let seconds = now.since(since).as_secs();
                let what = format!("{path} on node{number} is all that is left of its pod for {seconds} s");
                breaches.push(Breach::new("volumes-go-with-their-pods", what));
            }
        }
    }

    fn node(&mut self, node: &Value) {
        let offered = self.offered.entry(text(node, "/metadata/name").to_owned()).or_default();
        for (resource, amount) in node.pointer("/status/allocatable").and_then(Value::as_object).into_iter().flatten() {
            let Some(amount) = amount.as_str().and_then(|a| a.parse::<Quantity>().ok()) else { continue };
            let most = offered.entry(resource.clone()).or_default();
            *most = (*most).max(amount);
        }
    }

    fn pod(
        &self,
        now: Time,
        change: &Change,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        let Change { before, after, .. } = change;
        let (name, id) = (key_of(change.object()), uid(change.object()));
        let bound = |pod: &Option<Value>| pod.as_ref().map_or("", |p| text(p, "/spec/nodeName")).to_owned();
        match (before, after) {
            (Some(old), Some(new)) => {
                let (from, to) = (bound(before), bound(after));
                if !from.is_empty() && from != to {
                    breaches.push(Breach::new("pod-bound-once", format!("{name} moves from {from} to {to:?}")));
                }
                if from.is_empty() && !to.is_empty() {
                    self.placed(now, &to, observer, breaches);
                }
                // Of a mirror others may say so, and it is not so.
                let is_over = terminal(old) && !is_mirror(old);
                if is_over && text(old, "/status/phase") != text(new, "/status/phase") {
                    let (was, is) = (text(old, "/status/phase"), text(new, "/status/phase"));
                    breaches.push(Breach::new("pod-end-is-final", format!("{name} was {was} and is {is:?}")));
                }
                let is_rejected = |pod: &Value| text(pod, "/status/message").starts_with("Pod was rejected");
                let tells = |pod: &Value| !pod["status"]["containerStatuses"].is_null();
                if is_over && is_rejected(old) && !tells(old) && tells(new) {
                    let what = format!("{name} was rejected, and is told to have had containers");
                    breaches.push(Breach::new("pod-end-is-final", what));
                }
                let fails = text(new, "/status/phase") == "Failed" && !terminal(old);
                if fails && is_rejected(new) {
                    for node in nodes.values() {
                        if let Some(alive) = node.runtime.alive_of(id) {
                            let what = format!("{name} is rejected while {alive} of it runs on node{}", node.number);
                            breaches.push(Breach::new("wanted-containers-are-not-killed", what));
                        }
                    }
                }
                let reason = text(new, "/status/reason");
                let admission = reason.starts_with("OutOf") || reason == "UnexpectedAdmissionError";
                if text(new, "/status/phase") == "Failed" && !terminal(old) && admission {
                    let holds = nodes.values().any(|n| checkpoint(n).contains_key(id));
                    if holds {
                        let what = format!("{name} holds devices and is rejected: {reason}");
                        breaches.push(Breach::new("plugin-absence-never-fails-a-pod", what));
                    }
                }
            }
            (None, Some(new)) => {
                if !bound(after).is_empty() {
                    self.placed(now, &bound(after), observer, breaches);
                }
                if !controller(new).is_empty() {
                    children(change, observer, breaches);
                }
            }
            (Some(_), None) if self.forced.contains(id) => {}
            // Its node was taken out, with what it had.
            (Some(old), None) if observer.get("node", text(old, "/spec/nodeName")).is_none() => {}
            // On a node that cannot be reached a sandbox is left, but no guest.
            (Some(old), None) if is_of_lost(old, observer) => {
                for node in nodes.values() {
                    for (compute, _) in node.guests.alive().filter(|(c, _)| node.runtime.alive_of(id) == Some(c)) {
                        let what =
                            format!("{name} ({id}) is cleared up, and {compute} still runs on node{}", node.number);
                        breaches.push(Breach::new("gone-means-stopped", what));
                    }
                }
            }
            (Some(old), None) => {
                for node in nodes.values() {
                    let left = node.runtime.alive_of(id).or_else(|| node.runtime.sandbox_of(id));
                    if let Some(left) = left {
                        let what =
                            format!("{name} ({id}) is gone from the API, and {left} still runs on node{}", node.number);
                        breaches.push(Breach::new("gone-means-stopped", what));
                    } else if let Some(left) = node.runtime.connected(id) {
                        let what = format!(
                            "{name} ({id}) is gone from the API, and nobody knows that {left} on node{} gave its addresses back",
                            node.number
                        );
                        breaches.push(Breach::new("gone-means-disconnected", what));
                    }
                }
                // Of a launcher whose node is lost nobody hears any more; how its guest ended is told of its instance.
                if !is_of_instance(old) {
                    crate::told::gone(old, nodes, breaches);
                }
            }
            (None, None) => {}
        }
    }

    /// A pod was just bound to a node.
    fn placed(&self, now: Time, node: &str, observer: &Observer, breaches: &mut Vec<Breach>) {
        let Some(offered) = self.offered.get(node) else { return };
        let mut asked = BTreeMap::new();
        let is_unasked = |p: &Value| crate::critical::is_ours(p) || crate::gpu::is_outsider(p);
        let is_placed = |p: &Value| text(p, "/spec/nodeName") == node && !terminal(p) && !is_unasked(p);
        for pod in observer.seen("pod").filter(|pod| is_placed(&pod.object)) {
            let least = self.grants.least(now, uid(&pod.object), &pod.made::<Requests>().0);
            carrack_types::pod::add(&mut asked, &least);
        }
        for (resource, amount) in asked {
            let most = offered.get(&resource).copied().unwrap_or_default();
            if amount > most {
                let what = format!("pods on {node} ask for {amount} of {resource}, and it never had more than {most}");
                breaches.push(Breach::new("nodes-are-not-overcommitted", what));
            }
        }
    }

    /// The nodes after a step.
    pub(crate) fn nodes(&mut self, nodes: &BTreeMap<u8, Node>, observer: &Observer, breaches: &mut Vec<Breach>) {
        let changes = nodes.values().map(|node| (node.number, node.runtime.changes(), node.guests.changes()));
        let state: State = (observer.changed("pod"), changes.collect());
        if self.looked_at.as_ref() == Some(&state) {
            return;
        }
        self.looked_at = Some(state);
        let mut guests: BTreeMap<&str, &str> = BTreeMap::new();
        for node in nodes.values() {
            for (compute, guest) in node.guests.alive() {
                if let Some(other) = guests.insert(&guest.name, compute) {
                    let what = format!("two guests of {} run: in {other} and in {compute}", guest.name);
                    breaches.push(Breach::new("one-guest-per-vm", what));
                }
            }
            let on = node.runtime.running().map(|c| (&c.record.pod, c.limits.cpus.as_str()));
            crate::cpus::shared(node.number, on, observer, breaches);
            let on = node.runtime.running().map(|c| (&c.record.pod, &c.limits));
            crate::memory::bound(node.number, on, breaches);
            let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
            for container in node.runtime.running() {
                let pod = &*container.record.pod.uid;
                for device in &container.devices {
                    if let Some(other) = holders.insert(device, pod).filter(|other| *other != pod) {
                        let what =
                            format!("{device} on node{} is in running containers of {other} and {pod}", node.number);
                        breaches.push(Breach::new("device-held-once", what));
                    }
                }
            }
        }
    }
}

/// Whether a pod's kubelet has said that it ends the pod, since the machine goes down or lacks something. That it has ended is told
/// in a later write, which may take longer than to take its volumes away.
fn is_ended_by_its_node(pod: &Value) -> bool {
    let said =
        |c: &Value| c["type"] == "DisruptionTarget" && c["status"] == "True" && c["reason"] == "TerminationByKubelet";
    conditions(pod).any(said)
}

/// A volume of a pod is unmounted: not while the pod is to go on.
pub(crate) fn unmounted(id: &str, path: &str, observer: &Observer, breaches: &mut Vec<Breach>) {
    // One that is not restarted may have ended before anybody was told.
    let goes_on = |pod: &&Value| {
        text(pod, "/spec/restartPolicy") == "Always" && !deleting(pod) && !terminal(pod) && !is_ended_by_its_node(pod)
    };
    if let Some(pod) = observer.all("pod").find(|pod| uid(pod) == id).filter(goes_on) {
        let what = format!("{path} is unmounted, and {} has not ended and is not to go", key_of(pod));
        breaches.push(Breach::new("unmounted-on-proof", what));
    }
}

/// A container of a pod is forgotten that was the newest of its name: not while the pod is to go on.
pub(crate) fn forgotten(id: &str, pod_uid: &str, observer: &Observer, breaches: &mut Vec<Breach>) {
    let goes_on = |pod: &&Value| !deleting(pod) && !terminal(pod);
    if let Some(pod) = observer.all("pod").find(|pod| uid(pod) == pod_uid).filter(goes_on) {
        let what = format!("{id} is forgotten, and nothing else tells how it ended; {} goes on", key_of(pod));
        breaches.push(Breach::new("ends-are-remembered", what));
    }
}

/// Whether a pod's instance failed because its node is dead, or was over when its node fell silent.
fn is_of_lost(pod: &Value, observer: &Observer) -> bool {
    let owner = controller(pod);
    let node = observer.get("node", text(pod, "/spec/nodeName"));
    let is_silent = node.is_some_and(|node| text(node, "/metadata/labels/kubevirt.io~1schedulable") == "false");
    let is_over = |vmi: &Value| matches!(text(vmi, "/status/phase"), "Succeeded" | "Failed");
    let is_lost = |vmi: &Value| text(vmi, "/status/reason") == "NodeUnresponsive" || is_silent && is_over(vmi);
    observer.all("vmi").any(|vmi| uid(vmi) == owner && is_lost(vmi))
}

/// An instance that just failed because its node is dead: that is a fact, and it was there.
fn lost(change: &Change, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    let (Some(old), Some(new)) = (&change.before, &change.after) else { return };
    let is_lost = |vmi: &Value| text(vmi, "/status/reason") == "NodeUnresponsive";
    if is_lost(old) || !is_lost(new) {
        return;
    }
    let (name, id, was) = (key_of(new), uid(new), text(old, "/status/phase"));
    if !matches!(was, "Scheduling" | "Scheduled" | "Running") {
        breaches.push(Breach::new("failed-on-proof", format!("{name} was {was:?} when it was failed")));
    }
    let (from, to) = (text(old, "/status/nodeName"), text(new, "/status/nodeName"));
    if from != to || from.is_empty() && was != "Scheduling" {
        let what = format!("{name} was on {from:?} and is failed on {to:?}");
        breaches.push(Breach::new("failed-on-proof", what));
    }
    for node in nodes.values() {
        for (compute, _) in node.guests.alive().filter(|(_, guest)| guest.domain.uid == id) {
            let what = format!("{name} is failed while its guest runs in {compute} on node{}", node.number);
            breaches.push(Breach::new("failed-on-proof", what));
        }
    }
}

/// An instance that has just succeeded: it ran, or nobody wanted it any more.
fn succeeded(change: &Change, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    let (Some(old), Some(new)) = (&change.before, &change.after) else { return };
    let is_over = |vmi: &Value| text(vmi, "/status/phase") == "Succeeded";
    // Where no whole node is, guests only pretend.
    let has_begun = || nodes.is_empty() || nodes.values().any(|node| node.guests.has_begun(uid(new)));
    if is_over(new) && !is_over(old) && !deleting(new) && !has_begun() {
        let what = format!("{} has succeeded, and its guest has never begun", key_of(new));
        breaches.push(Breach::new("success-takes-a-run", what));
    }
}

/// Holdings by pod UID, as the node's checkpoint says.
fn checkpoint(node: &Node) -> devices::Allocations {
    let bytes = node.disk.checkpoint.as_deref().unwrap_or_default();
    devices::decode(bytes).map(|(allocations, _)| allocations).unwrap_or_default()
}

/// Checks holdings: the kubelet's books, or its checkpoint.
pub(crate) fn holdings(place: &str, allocations: &devices::Allocations, breaches: &mut Vec<Breach>) {
    let mut holders: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (pod, containers) in allocations {
        for (resource, allocation) in containers.values().flatten() {
            for id in &allocation.ids {
                if let Some(other) = holders.insert((resource, id), pod).filter(|other| *other != &**pod) {
                    let what = format!("{resource} {id} is given to {other} and {pod} in {place}");
                    breaches.push(Breach::new("device-held-once", what));
                }
            }
        }
    }
}

/// Whether a pod belongs to a virtual machine's instance.
fn is_of_instance(pod: &Value) -> bool {
    owner_kind(pod) == "VirtualMachineInstance"
}

/// An owned object was just made.
fn children(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let owner = controller(change.object());
    // What uses an instance's claims before they are filled is beside its launcher.
    let is_consumer = |object: &Value| text(object, "/metadata/name").starts_with(CONSUMER);
    // Workloads have bounds of their own.
    let is_pod_of_others = change.resource == "pod" && !is_of_instance(change.object());
    if owner.is_empty() || is_pod_of_others || is_consumer(change.object()) {
        return;
    }
    let in_a_set = observer.all("vmirs").any(|set| uid(set) == owner);
    let most = match change.resource {
        "secret" => replicas::WANTED,
        "vmi" if in_a_set => crate::workload::MOST_INSTANCES,
        _ => 1,
    };
    // What has ended or is going has a successor in these.
    let succeeded = change.resource == "pod" || in_a_set;
    let alive: BTreeSet<String> = observer
        .all(change.resource)
        .filter(|o| controller(o) == owner && !is_consumer(o) && !(succeeded && (terminal(o) || deleting(o))))
        .map(key_of)
        .collect();
    if alive.len() > most {
        let what = format!("{owner} has {} children where {most} may be: {alive:?}", alive.len());
        breaches.push(Breach::new("no-child-made-twice", what));
    }
}
