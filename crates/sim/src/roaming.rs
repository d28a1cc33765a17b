//! Machines whose disk can be attached to any node, and what becomes of it when theirs dies.
//!
//! A node names the users of each volume that it has (`carrack.io/volume-users`). Launchers have their disks as their instance;
//! when that is proved to run no more, it is written on the attachment, and the disk is taken from a node that has never said
//! that it has done with it. So here is looked after what is written (nobody who lives is called dead), what is taken (only what
//! nobody has but the dead) and what is not (a dead node lets its disks go).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_types::resource::Kind as _;
use carrack_types::volume::{DEAD_USERS, VOLUME_USERS, csi_unique_name, dead_users, flex_unique_name, users_of};
use carrack_types::well_known::kubevirt::{APP_LABEL, LAUNCHER};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use crate::attacher::{DRIVER, Rack};
use crate::controllers::about;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Change, Observer, deleting, key_of, label, terminal, text, uid};
use crate::workload::{Act, What, disk};

/// Nobody who lives is called dead.
pub(crate) const DEAD: &str = "dead-users-are-dead";
/// A dead node lets its disks go.
pub(crate) const LEFT: &str = "disks-leave-dead-nodes";

/// A machine's disk that every node can have, one at a time; what makes it, and the machine with it.
pub(crate) fn with_disk(at: Duration, machine: Value, acts: &mut Vec<Act>) -> Value {
    let name = format!("{}-roams", text(&machine, "/metadata/name"));
    let (mut volume, claim) = disk(&name, &name, &name);
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": name});
    for (resource, object) in [(PersistentVolume::resource(), volume), (PersistentVolumeClaim::resource(), claim)] {
        acts.push(Act { at, what: What::Create { resource, object, want: None } });
    }
    with_volume(machine, "roams", "persistentVolumeClaim", json!({"claimName": name}))
}

/// A machine with one more disk, which is on this volume.
pub(crate) fn with_volume(mut machine: Value, name: &str, kind: &str, source: Value) -> Value {
    let mut volume = json!({"name": name});
    volume[kind] = source;
    let spec = &mut machine["spec"]["template"]["spec"];
    let mut add = |pointer: &str, value: Value| {
        if let Some(Value::Array(list)) = spec.pointer_mut(pointer) {
            list.push(value);
        }
    };
    add("/domain/devices/disks", json!({"name": name, "disk": {"bus": "virtio"}}));
    add("/volumes", volume);
    machine
}

/// Who has been seen.
#[derive(Debug, Default)]
pub(crate) struct Roaming {
    instances: BTreeSet<String>,
    launchers: BTreeSet<String>,
}

impl Roaming {
    /// Changes that were just committed.
    pub(crate) fn changed(
        &mut self,
        changes: &[Change],
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        for change in changes {
            let Some(object) = &change.after else { continue };
            match change.resource {
                "vmi" => _ = self.instances.insert(uid(object).to_owned()),
                "pod" if label(object, "labels", APP_LABEL) == LAUNCHER => {
                    self.launchers.insert(uid(object).to_owned());
                }
                "attachment" => called_dead(change, object, observer, nodes, breaches),
                _ => {}
            }
        }
    }

    /// What was detached from nodes that had it mounted: only of such whose machines are dead.
    pub(crate) fn taken(&self, rack: &Rack, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
        for (disk, at) in rack.taken() {
            let Some(node) = named(nodes, &at) else { continue };
            let ids = [csi_unique_name(DRIVER, &disk), flex_unique_name(crate::flex::DRIVER, &disk)];
            let pods: Vec<&str> = node.disk.pods_of(&ids).collect();
            let writes = |pod: &&str| {
                !self.launchers.contains(*pod)
                    || node
                        .guests
                        .alive()
                        .any(|(id, _)| node.runtime.running().any(|c| c.record.id == id && &*c.record.pod.uid == *pod))
            };
            let by = match (pods.iter().copied().find(|pod| writes(pod)), pods.is_empty()) {
                (Some(pod), _) => format!("where pod {pod} has it mounted"),
                (None, true) => "which has it mounted".to_owned(),
                (None, false) => continue,
            };
            breaches.push(Breach::new("disk-in-use-stays", format!("{disk} is detached from {at}, {by}")));
        }
    }

    /// Looked at from time to time: attachments to nodes that were not heard for so long that their machines are surely dead.
    pub(crate) fn look(&self, is_dead: impl Fn(&str) -> bool, observer: &Observer, breaches: &mut Vec<Breach>) {
        for attachment in observer.all("attachment").filter(|attachment| !deleting(attachment)) {
            let Some((unique, name)) = about(attachment, observer).filter(|(_, name)| is_dead(name)) else { continue };
            let Some(node) = observer.get("node", name) else { continue };
            let named = users_of(Some(label(node, "annotations", VOLUME_USERS)), &unique);
            let lives = |user: &String| observer.all("vmi").any(|vmi| uid(vmi) == user && !terminal(vmi));
            let is_left = |user: &String| self.instances.contains(user) && !lives(user);
            if !named.is_empty() && named.iter().all(is_left) {
                let what = format!("{unique} is attached to {name}, where {named:?} had it, which are over");
                breaches.push(Breach::new(LEFT, what));
            }
        }
    }
}

/// An attachment says newly of somebody that it is dead on its node.
fn called_dead(
    change: &Change,
    attachment: &Value,
    observer: &Observer,
    nodes: &BTreeMap<u8, Node>,
    breaches: &mut Vec<Breach>,
) {
    let said = |object: &Value| -> BTreeSet<String> {
        dead_users(Some(label(object, "annotations", DEAD_USERS))).map(str::to_owned).collect()
    };
    let before = change.before.as_ref().map(said).unwrap_or_default();
    let Some((unique, at)) = about(attachment, observer) else { return };
    let Some(node) = named(nodes, at) else { return };
    for user in said(attachment).difference(&before) {
        if node.guests.alive().any(|(_, guest)| guest.domain.uid == *user) {
            let what =
                format!("{} says that {user} does not have {unique} any more, and its guest runs", key_of(attachment));
            breaches.push(Breach::new(DEAD, what));
        }
    }
}
