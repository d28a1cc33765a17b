//! What is on the volumes of a node's own driver, and in its snapshots of them.
//!
//! ```text
//!   claim ─▶ volume, blank ─▶ a guest has it: writes all the time, unless it is frozen
//!                                  ├─▶ snapshot: what is there now ─▶ volume that is made from it
//!                                  └─▶ copy: what is there when it begins ─▶ volume that it is written to ([`super::copying`])
//! ```
//!
//! Nobody looks at what is written, but at whose disk it is and when a guest last wrote to it. That is brought up to date when it
//! is looked at, and when a guest is frozen.

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_storage::DRIVER;
use carrack_storage::provision::calls::{From as Origin, NewVolume};
use carrack_types::volume::csi_unique_name;
use serde_json::Value;

use super::Node;
use crate::observer::{Observer, text, uid};

/// What a volume holds to which something was copied in part.
pub(super) const HALF: &str = "half of a copy";

/// What is on a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// Name of the claim for which it was blank.
    pub claim: String,
    /// When a guest last wrote to it.
    pub wrote: Option<Time>,
}

/// What is on a volume of the driver's, as the API has that, if it is there on some node.
pub(crate) fn content_of<'a>(volume: &Value, nodes: &'a BTreeMap<u8, Node>) -> Option<&'a Content> {
    let handle = text(volume, "/spec/csi/volumeHandle");
    nodes.values().find_map(|node| node.storage.contents.on(handle))
}

/// What is in a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub content: Content,
    /// When a guest of the volume that was frozen was last thawed by itself, or by somebody who had given that up.
    pub disturbed: Option<Time>,
}

/// All of it on a node, by handles of the driver.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    volumes: BTreeMap<String, Content>,
    /// What was on each volume when it was made.
    made: BTreeMap<String, Content>,
    snapshots: BTreeMap<String, Taken>,
    /// When guests of volumes were last thawed unasked.
    disturbed: BTreeMap<String, Time>,
}

/// A blank volume.
fn blank(volume: &str, observer: &Observer) -> Content {
    let is_its = |claim: &&Value| volume.strip_prefix("pvc-") == Some(uid(claim));
    let claim = observer.all("claim").find(is_its).map_or("", |claim| text(claim, "/metadata/name"));
    Content { claim: claim.to_owned(), wrote: None }
}

impl Contents {
    /// Whether that is not there from which a volume is to be made.
    pub(super) fn lacks_origin(&self, volume: &NewVolume) -> bool {
        let is_there = match &volume.from {
            _ if self.volumes.contains_key(&volume.name) => true,
            Some(Origin::Snapshot(of)) => self.snapshots.contains_key(of),
            Some(Origin::Volume(of)) => self.volumes.contains_key(of),
            None => true,
        };
        !is_there
    }

    /// A volume is made. One that is there stays as it is.
    pub(crate) fn make(&mut self, volume: &NewVolume, observer: &Observer) {
        if self.volumes.contains_key(&volume.name) {
            return;
        }
        let found = match &volume.from {
            Some(Origin::Snapshot(of)) => self.snapshots.get(of).map(|taken| taken.content.clone()),
            Some(Origin::Volume(of)) => self.volumes.get(of).cloned(),
            None => None,
        };
        let content = found.unwrap_or_else(|| blank(&volume.name, observer));
        self.made.insert(volume.name.clone(), content.clone());
        self.volumes.insert(volume.name.clone(), content);
    }

    /// A volume is deleted.
    pub(super) fn delete(&mut self, volume: &str) {
        self.volumes.remove(volume);
        self.made.remove(volume);
        self.disturbed.remove(volume);
    }

    /// A snapshot of a volume is taken. One that is there stays as it is.
    pub(crate) fn take(&mut self, snapshot: &str, volume: &str) {
        let content = self.volumes.get(volume).cloned().unwrap_or_default();
        let disturbed = self.disturbed.get(volume).copied();
        self.snapshots.entry(snapshot.to_owned()).or_insert(Taken { content, disturbed });
    }

    /// A snapshot is deleted.
    pub(super) fn delete_snapshot(&mut self, snapshot: &str) {
        self.snapshots.remove(snapshot);
    }

    /// A guest writes to a volume.
    pub(crate) fn write(&mut self, volume: &str, now: Time) {
        if let Some(content) = self.volumes.get_mut(volume) {
            content.wrote = Some(now);
        }
    }

    /// Something is copied to a volume: all of it, or in part.
    pub(crate) fn overwrite(&mut self, volume: &str, all: Option<Content>) {
        if let Some(content) = self.volumes.get_mut(volume) {
            *content = all.unwrap_or_else(|| Content { claim: HALF.to_owned(), wrote: None });
        }
    }

    /// The guest of a volume was thawed unasked.
    pub(crate) fn disturb(&mut self, volume: &str, now: Time) {
        self.disturbed.insert(volume.to_owned(), now);
    }

    /// What is on a volume, if it is there.
    pub(crate) fn on(&self, volume: &str) -> Option<&Content> {
        self.volumes.get(volume)
    }

    /// What was on a volume when it was made, if it is there.
    pub(crate) fn made(&self, volume: &str) -> Option<&Content> {
        self.made.get(volume)
    }

    /// What is in a snapshot, if it is there.
    pub(crate) fn taken(&self, snapshot: &str) -> Option<&Taken> {
        self.snapshots.get(snapshot)
    }

    /// All snapshots.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &str> {
        self.snapshots.keys().map(String::as_str)
    }
}

impl Node {
    /// The driver's volumes that a guest has.
    pub(super) fn volumes_of(&self, compute: &str) -> Vec<String> {
        let launcher = self.runtime.running().find(|container| container.record.id == compute);
        let Some(pod) = launcher.map(|container| &*container.record.pod.uid) else { return Vec::new() };
        let has = |volume: &&String| self.disk.part_of(pod, &csi_unique_name(DRIVER, volume));
        self.storage.volumes.keys().filter(has).cloned().collect()
    }

    /// All guests have written until now but those that are frozen.
    pub(super) fn write(&mut self, now: Time) {
        for compute in self.guests.frozen.over(now) {
            self.disturb(&compute, now);
        }
        let is_free = |compute: &str| self.guests.frozen.since(compute, now).is_none();
        let free = self.guests.alive().map(|(compute, _)| compute).filter(|compute| is_free(compute));
        let volumes: Vec<String> = free.flat_map(|compute| self.volumes_of(compute)).collect();
        for volume in volumes {
            self.storage.contents.write(&volume, now);
        }
    }

    /// A guest was thawed unasked: its disks are of several instants, and nobody can know it.
    pub(super) fn disturb(&mut self, compute: &str, now: Time) {
        for volume in self.volumes_of(compute) {
            self.storage.contents.disturb(&volume, now);
        }
    }
}

/// A volume that is to be made.
#[cfg(test)]
pub(crate) fn new_volume(name: &str, from: Option<Origin>) -> NewVolume {
    let (fs_type, mount_options, access) = ("ext4".to_owned(), Vec::new(), Vec::new());
    let (name, parameters) = (name.to_owned(), BTreeMap::new());
    NewVolume { name, bytes: 1, block: false, fs_type, mount_options, access, parameters, from }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_made_from_a_snapshot_has_what_was_there_then() {
        let claim = json!({"metadata": {"namespace": "default", "name": "disk", "uid": "u"}});
        let observer = Observer::of([("claim", claim)]);
        let mut contents = Contents::default();
        let at = |s: i64| Some(Time::from_unix_s(s));
        let of = |contents: &Contents, name: &str| contents.made(name).cloned().map(|made| (made.claim, made.wrote));
        contents.make(&new_volume("pvc-u", None), &observer);
        assert_eq!(of(&contents, "pvc-u"), Some(("disk".to_owned(), None)));
        contents.write("pvc-u", Time::from_unix_s(1));
        contents.take("snapshot-1", "pvc-u");
        contents.write("pvc-u", Time::from_unix_s(2));
        // Who asks once more has what was taken.
        contents.take("snapshot-1", "pvc-u");
        contents.disturb("pvc-u", Time::from_unix_s(3));
        contents.take("snapshot-2", "pvc-u");
        let disturbed = ["snapshot-1", "snapshot-2"].map(|name| contents.taken(name).map(|taken| taken.disturbed));
        assert_eq!(disturbed, [Some(None), Some(at(3))]);
        let snapshot = |name: &str| Some(Origin::Snapshot(name.to_owned()));
        for (name, from, expected) in [
            ("a", snapshot("snapshot-1"), at(1)),
            ("b", snapshot("snapshot-2"), at(2)),
            ("c", Some(Origin::Volume("pvc-u".to_owned())), at(2)),
        ] {
            let new = new_volume(name, from);
            assert!(!contents.lacks_origin(&new), "{name}");
            contents.make(&new, &observer);
            assert_eq!(of(&contents, name), Some(("disk".to_owned(), expected)), "{name}");
        }
        contents.delete_snapshot("snapshot-1");
        assert!(contents.lacks_origin(&new_volume("d", snapshot("snapshot-1"))));
        assert!(!contents.lacks_origin(&new_volume("a", snapshot("snapshot-1"))), "it is there already");
        contents.delete("a");
        assert_eq!(of(&contents, "a"), None);
    }
}
