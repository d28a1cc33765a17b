//! What must hold of machines and of nodes that fall silent: the second incident, seen from outside.
//!
//! What is promised for a time counts only while nothing fails: a control plane that is away itself can do nothing in
//! time. A node that has lost its power does not come back by that, though, so there is somebody to be silent.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::well_known::kubevirt::{FAILOVER_ANNOTATION, HEARTBEAT_ANNOTATION, VM_NAME_LABEL};
use serde_json::Value;

use crate::invariants::Breach;
use crate::node::Node;
use crate::observer::{Change, Observer, controller, deleting, is_launcher, key_of, label, terminal, text, uid};
use crate::wants::{Want, guests_of};

/// After how long without a renewal a node is suspected, and fenced; and without a heartbeat, where there is no Lease.
const SUSPECTED: Duration = Duration::from_secs(6);
const FENCED: Duration = Duration::from_secs(13);
const WITHOUT_LEASE: Duration = Duration::from_secs(300);
/// How late that may be noticed: one interval at which nodes are looked at again, and what a new leader takes to begin.
const NOTICED: Duration = Duration::from_secs(60 + 60);
/// What is then still to be done about a disk: its node is told, the attachment is deleted, and who does it may begin anew.
const DETACHED: Duration = Duration::from_secs(30);
/// How long a machine may be down: the longest wait after failed starts, and a start with plugins that are late.
const BACK_WITHIN: Duration = Duration::from_secs(600);

/// What was seen of machines and their nodes.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    /// When each node's virt-handler was last heard.
    heard: BTreeMap<String, Time>,
    /// Since when machines that should run do not.
    down: BTreeMap<String, Time>,
    /// When each machine and each claim was made, by UID: servers' clocks differ.
    made: BTreeMap<String, Time>,
    imports: crate::imports::Imports,
    backups: crate::backups::Backups,
}

impl Machines {
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
            self.imports.changed(change, observer, breaches);
            self.backups.changed(now, change, observer, nodes, breaches);
            if matches!(change.resource, "vm" | "claim") && change.before.is_none() {
                self.made.insert(uid(change.object()).to_owned(), now);
            }
            if change.resource == "claim" {
                crate::keepers::changed(change, observer, &self.made, breaches);
            }
            if change.resource == "pod" {
                crate::evictions::changed(change, observer, breaches);
            }
            let (before, after) = (change.before.as_ref(), change.after.as_ref());
            let Some(object) = after else { continue };
            let is_news = |said: fn(&Value) -> &str| before.map(said) != Some(said(object));
            let heard = match change.resource {
                // A mark leaves it as it is.
                "guests' lease" => is_news(|lease| text(lease, "/spec/renewTime")),
                "node" => is_news(|node| label(node, "annotations", HEARTBEAT_ANNOTATION)),
                _ => false,
            };
            if heard {
                self.heard.insert(text(object, "/metadata/name").to_owned(), now);
            }
            if change.resource == "pod" && before.is_none() {
                after_the_old(object, observer, breaches);
            }
        }
    }

    /// For how long a node's handler has not been heard, since then at most.
    fn silent(&self, node: &str, since: Time, now: Time) -> Duration {
        now.since(self.heard.get(node).copied().unwrap_or_default().max(since))
    }

    /// Whether a node's handler has not been heard for so long that everything of its machines has gone from it.
    pub(crate) fn has_left(&self, node: &str, since: Time, now: Time) -> bool {
        self.silent(node, since, now) > FENCED + NOTICED + DETACHED
    }

    /// Looked at from time to time, while nothing has failed since then.
    pub(crate) fn look(
        &mut self,
        now: Time,
        healed: Time,
        wants: &BTreeMap<(&'static str, String), Want>,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        for node in observer.all("node").filter(|node| is_offered(node)) {
            let name = text(node, "/metadata/name");
            let silence = if observer.get("guests' lease", name).is_some() { SUSPECTED } else { WITHOUT_LEASE };
            let silent = self.silent(name, healed, now);
            if silent > silence + NOTICED {
                let what = format!("{name} was not heard for {} s, and machines may be placed there", silent.as_secs());
                breaches.push(Breach::new("silent-nodes-take-no-machines", what));
            }
        }
        for vmi in observer.all("vmi").filter(|vmi| label(vmi, "annotations", FAILOVER_ANNOTATION) == "true") {
            let (phase, node) = (text(vmi, "/status/phase"), text(vmi, "/status/nodeName"));
            let silent = self.silent(node, healed, now);
            if matches!(phase, "Scheduled" | "Running") && silent > FENCED + NOTICED {
                let what = format!("{} is {phase} on {node}, not heard for {} s", key_of(vmi), silent.as_secs());
                breaches.push(Breach::new("machines-leave-silent-nodes", what));
            }
            let is_over = matches!(phase, "Succeeded" | "Failed");
            // One that has ended stays as long as its instance, to be looked at.
            let has_to_go = |pod: &Value| !terminal(pod) || deleting(pod) || deleting(vmi);
            for pod in observer.all("pod").filter(|pod| is_over && controller(pod) == uid(vmi) && has_to_go(pod)) {
                let node = text(pod, "/spec/nodeName");
                let silent = self.silent(node, healed, now);
                if is_launcher(pod) && !node.is_empty() && silent > FENCED + NOTICED {
                    let (vmi, pod) = (key_of(vmi), key_of(pod));
                    let what = format!("{vmi} is {phase}, and {pod} on {node}, not heard for {} s", silent.as_secs());
                    breaches.push(Breach::new("machines-leave-silent-nodes", what));
                }
            }
        }
        self.backups.look(now, healed, observer, nodes, breaches);
        let up = wants.iter().filter(|((kind, _), want)| *kind == "vm" && **want == Want::Up);
        let down: Vec<&str> =
            up.map(|((_, name), _)| name.as_str()).filter(|name| guests_of(name, nodes) == 0).collect();
        self.down.retain(|name, _| down.contains(&name.as_str()));
        for name in down {
            let since = *self.down.entry(name.to_owned()).or_insert(now);
            if now.since(since) > BACK_WITHIN {
                let what = format!("{name} is to run, and no guest of it has for {} s", now.since(since).as_secs());
                breaches.push(Breach::new("liveness", what));
            }
        }
    }
}

/// Whether machines may be placed on a node.
pub(crate) fn is_offered(node: &Value) -> bool {
    label(node, "labels", carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL) == "true"
}

/// A pod was just made: if it is a launcher, none of an instance that was there before under this name is left.
fn after_the_old(pod: &Value, observer: &Observer, breaches: &mut Vec<Breach>) {
    if !is_launcher(pod) {
        return;
    }
    let of =
        |pod: &Value| (text(pod, "/metadata/namespace").to_owned(), label(pod, "labels", VM_NAME_LABEL).to_owned());
    let old = observer
        .all("pod")
        .find(|other| is_launcher(other) && of(other) == of(pod) && controller(other) != controller(pod));
    if let Some(old) = old {
        let what = format!("{} ({}) is made while {} ({}) is there", key_of(pod), uid(pod), key_of(old), uid(old));
        breaches.push(Breach::new("no-child-made-twice", what));
    }
}
