//! Parts of disks that pods get on a node: only of such that their Node has named attached.
//!
//! A kubelet goes by the Node as it has heard of it last, however long ago that was. But it gives a pod its part only
//! when the Node names the pod among the disk's users and the disk attached, both in one revision: one that is newer
//! than the pod. So what counts is what the Node has said at any time since the pod is there.

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_types::volume::csi_unique_name;
use serde_json::Value;

use crate::attacher::DRIVER;
use crate::invariants::Breach;
use crate::node::Node;
use crate::observer::{Change, Observer, controller, text, uid};
use crate::plants::Bug;
use crate::role::node_name;

/// Its name.
pub(crate) const NAME: &str = "parts-are-of-attached-disks";

/// Whether this is looked after, given what is planted: other bugs show first in what comes of it.
pub(crate) fn is_looked_after(planted: Option<Bug>) -> bool {
    planted.is_none_or(|bug| bug == Bug::PartsAhead)
}

/// The disks that a Node names attached.
fn attached(node: &Value) -> impl Iterator<Item = &str> {
    let volumes = node.pointer("/status/volumesAttached").and_then(Value::as_array);
    volumes.into_iter().flatten().map(|volume| text(volume, "/name"))
}

/// The attacher's disks that a pod has, by the names that they have on Nodes.
pub(crate) fn disks_of(pod: &Value, observer: &Observer) -> Vec<String> {
    let namespace = text(pod, "/metadata/namespace");
    let disk = |volume: &Value| {
        let claim = text(volume, "/persistentVolumeClaim/claimName");
        let claim = observer.get("claim", &format!("{namespace}/{claim}"))?;
        let volume = observer.get("volume", text(claim, "/spec/volumeName"))?;
        let is_disk = text(volume, "/spec/csi/driver") == DRIVER;
        is_disk.then(|| csi_unique_name(DRIVER, text(volume, "/spec/csi/volumeHandle")))
    };
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().filter_map(disk).collect()
}

/// What Nodes have said, and since when there are whom it concerns.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// Since when each pod is there, by UID; without those that have a controller, as which they have their disks.
    born: BTreeMap<String, Time>,
    /// When each Node last named each disk attached.
    named: BTreeMap<(String, String), Time>,
}

impl Given {
    /// Changes that were just committed.
    pub(crate) fn changed(&mut self, now: Time, changes: &[Change]) {
        for change in changes {
            match (change.resource, &change.before, &change.after) {
                ("pod", None, Some(pod)) if controller(pod).is_empty() => {
                    self.born.insert(uid(pod).to_owned(), now);
                }
                ("pod", Some(pod), None) => {
                    self.born.remove(uid(pod));
                }
                ("node", before, after) => {
                    // What is not named any more was until now.
                    for node in before.iter().chain(after) {
                        let name = text(node, "/metadata/name");
                        for disk in attached(node) {
                            self.named.insert((name.to_owned(), disk.to_owned()), now);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Looks at the parts that pods have been given since the last look.
    pub(crate) fn look(&self, nodes: &mut BTreeMap<u8, Node>, observer: &Observer, breaches: &mut Vec<Breach>) {
        let disks = csi_unique_name(DRIVER, "");
        for node in nodes.values_mut() {
            for (pod, disk) in node.disk.given().into_iter().filter(|(_, disk)| disk.starts_with(&disks)) {
                let Some(born) = self.born.get(&pod) else { continue };
                let name = node_name(node.number);
                let is_named = observer.get("node", &name).is_some_and(|node| attached(node).any(|d| d == disk));
                let was_named = || self.named.get(&(name.clone(), disk.clone())).is_some_and(|last| last >= born);
                if !is_named && !was_named() {
                    let what = format!("pod {pod} gets a part of {disk}, which {name} never named attached meanwhile");
                    breaches.push(Breach::new(NAME, what));
                }
            }
        }
    }
}
