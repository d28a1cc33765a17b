//! The node's own volumes: a driver that keeps them on its disk, and is asked by the provisioner.

use std::collections::{BTreeMap, BTreeSet};

use carrack_kubelet::OpError;
use carrack_kubelet::volumes::{Driver, Origin, Staging};
use carrack_storage::provision::calls::{Answer, Call, CallError, Outcome};
use carrack_storage::provision::{In, Out, PROVISIONING};
use carrack_storage::{DRIVER, TOPOLOGY};
use serde_json::Value;

use super::contents::Contents;
use super::{Fate, Follow};
use crate::invariants::Breach;
use crate::observer::{Observer, text, uid};
use crate::role::node_name;

/// How the driver takes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Honest,
    /// What it makes is smaller than it was asked for.
    Lies,
    Away,
}

/// The driver's volumes, which outlive everything but their deletion.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// Size of each, in bytes.
    pub volumes: BTreeMap<String, u64>,
    /// Size of the file system in each that has been mounted, in bytes.
    systems: BTreeMap<String, u64>,
    /// Those that are mounted.
    pub staged: BTreeSet<String>,
    /// What is on its volumes and in its snapshots.
    pub contents: Contents,
    /// The kernel cannot let a file system grow that is mounted.
    grows_at_rest: bool,
    /// A planted bug: a volume is deleted before another one is made.
    pub makes_room: bool,
    pending: BTreeMap<u64, (u32, Out, Fate)>,
    next: u64,
}

/// The driver's handle of a volume, if it is one of this driver's.
fn own(origin: &Origin) -> Option<&String> {
    match &origin.driver {
        Driver::Csi { driver, handle, .. } if driver == DRIVER => Some(handle),
        _ => None,
    }
}

/// The snapshot that a call is about.
fn snapshot_of(call: &Call) -> Option<&str> {
    match call {
        Call::Snapshot(name, _) | Call::DeleteSnapshot(name) => Some(name),
        _ => None,
    }
}

fn failed(message: String) -> OpError {
    OpError::Failed(message)
}

impl Storage {
    /// A driver without volumes. The kernel may be able to let file systems grow at rest alone.
    pub(super) fn new(grows_at_rest: bool) -> Self {
        Self { grows_at_rest, ..Self::default() }
    }

    /// Whether its kernel may let file systems grow at rest alone.
    pub(super) fn has_kernel(&mut self, grows_at_rest: bool) {
        self.grows_at_rest = grows_at_rest;
    }

    /// A volume is mounted, if it is there. Its file system takes all of it then, if it was not mounted.
    pub(super) fn stage(&mut self, staging: &Staging) -> Result<(), OpError> {
        if let Some(handle) = own(&staging.origin) {
            let bytes = *self.volumes.get(handle).ok_or_else(|| failed(format!("{handle} does not exist")))?;
            if self.staged.insert(handle.clone()) {
                self.systems.insert(handle.clone(), bytes);
            }
        }
        Ok(())
    }

    /// The file system of a volume that is mounted takes all of it, if the kernel can do that.
    pub(super) fn expand(&mut self, origin: &Origin) -> Result<(), OpError> {
        let Some(handle) = own(origin) else { return Ok(()) };
        let bytes = *self.volumes.get(handle).ok_or_else(|| failed(format!("{handle} does not exist")))?;
        if !self.staged.contains(handle) {
            return Err(failed(format!("{handle} is not mounted")));
        }
        let has = self.systems.entry(handle.clone()).or_default();
        if *has < bytes && self.grows_at_rest {
            return Err(failed(format!("the kernel cannot let the file system of {handle} grow while it is mounted")));
        }
        *has = bytes;
        Ok(())
    }

    /// How much the file system of a volume holds, if it has one.
    pub(crate) fn holds(&self, handle: &str) -> Option<u64> {
        self.systems.get(handle).copied()
    }

    /// Whether the file system of a volume that is mounted holds so much, or comes to.
    pub(crate) fn may_hold(&self, handle: &str, bytes: u64) -> bool {
        !self.grows_at_rest || self.systems.get(handle).is_some_and(|has| *has >= bytes)
    }

    pub(super) fn unstage(&mut self, staging: &Staging) {
        if let Some(handle) = own(&staging.origin) {
            self.staged.remove(handle);
        }
    }

    /// Whether nothing is kept here: no volume and no snapshot.
    pub(crate) fn is_bare(&self) -> bool {
        self.volumes.is_empty() && !self.has_snapshots()
    }

    /// Whether it has a snapshot.
    pub(crate) fn has_snapshots(&self) -> bool {
        self.contents.snapshots().next().is_some()
    }

    /// All that was on its disk is gone. Numbers of calls go on: what comes of an earlier one is nobody's.
    pub(super) fn blank(&mut self) {
        self.power_off();
        self.volumes.clear();
        self.systems.clear();
        self.contents = Contents::default();
    }

    /// Mounts and calls are gone; what is on the disk stays.
    pub(super) fn power_off(&mut self) {
        self.staged.clear();
        self.pending.clear();
    }

    /// A provisioner of a life asks; under which number.
    pub(super) fn ask(&mut self, life: u32, out: Out, fate: Fate) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, (life, out, fate));
        self.next
    }

    /// Whether the driver is busy with the snapshot of a call: with an earlier one, whose caller is dead. What one caller asks
    /// for at the same time comes in any order.
    fn is_busy(&self, number: u64, life: u32, call: &Call) -> bool {
        let Some(name) = snapshot_of(call) else { return false };
        let is_about = |out: &Out| matches!(out, Out::Call { call, .. } if snapshot_of(call) == Some(name));
        self.pending.range(..number).any(|(_, (caller, out, _))| *caller != life && is_about(out))
    }

    /// A call takes effect. Returns what is answered, to which life.
    pub(super) fn carry_out(
        &mut self,
        number: u64,
        node: u8,
        mood: Mood,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
        follow: &mut Vec<Follow>,
    ) -> Option<(u32, In)> {
        let (life, Out::Call { id, call }, fate) = self.pending.remove(&number)? else { return None };
        let failed = |message: &str| Err(CallError { no_room: false, message: message.to_owned() });
        let outcome = match fate {
            _ if self.is_busy(number, life, &call) => failed("the driver is busy with this snapshot"),
            _ if mood == Mood::Away => failed("connecting to the driver: connection refused"),
            Fate::FailsBefore => failed("the driver hiccups"),
            Fate::Works | Fate::FailsAfter => self.make(&call, node, mood, observer, breaches),
        };
        let outcome = if fate == Fate::FailsAfter { failed("the driver's answer is lost") } else { outcome };
        follow.push(Follow::Say(format!("node{node} {call:?}: {outcome:?}")));
        Some((life, In { id, outcome }))
    }

    fn make(&mut self, call: &Call, node: u8, mood: Mood, observer: &Observer, breaches: &mut Vec<Breach>) -> Outcome {
        match call {
            Call::Create(v) if self.contents.lacks_origin(v) => {
                Err(CallError { no_room: false, message: format!("what {} is to be made from is not there", v.name) })
            }
            Call::Create(v) => {
                let other = self.volumes.keys().find(|id| **id != v.name).cloned();
                if let Some(other) = other.filter(|_| self.makes_room) {
                    self.delete(&other, observer, breaches);
                }
                let made = if mood == Mood::Lies { v.bytes / 2 } else { v.bytes };
                let bytes = *self.volumes.entry(v.name.clone()).or_insert(made);
                self.contents.make(v, observer);
                traces(node, self, observer, breaches);
                Ok(Answer::Created {
                    handle: v.name.clone(),
                    bytes,
                    context: BTreeMap::new(),
                    topologies: vec![BTreeMap::from([(TOPOLOGY.to_owned(), node_name(node))])],
                })
            }
            Call::Delete(id) if self.staged.contains(id) => {
                Err(CallError { no_room: false, message: format!("{id} is mounted") })
            }
            Call::Delete(id) => {
                self.delete(id, observer, breaches);
                Ok(Answer::Deleted)
            }
            Call::Snapshot(name, of) if self.volumes.contains_key(of) => {
                self.contents.take(name, of);
                Ok(Answer::Taken { handle: name.clone(), bytes: 1 << 30, made_unix_ns: 0 })
            }
            Call::Snapshot(_, of) => Err(CallError { no_room: false, message: format!("{of} does not exist") }),
            Call::DeleteSnapshot(name) => {
                self.contents.delete_snapshot(name);
                Ok(Answer::Deleted)
            }
            Call::Expand(id, bytes) => match self.volumes.get_mut(id) {
                Some(has) => {
                    *has = (*has).max(*bytes);
                    Ok(Answer::Expanded { bytes: *has, on_node: true })
                }
                None => Err(CallError { no_room: false, message: format!("{id} does not exist") }),
            },
        }
    }
}

impl Storage {
    fn delete(&mut self, id: &str, observer: &Observer, breaches: &mut Vec<Breach>) {
        self.systems.remove(id);
        self.contents.delete(id);
        if self.volumes.remove(id).is_some()
            && let Some(claim) = bound_to(id, observer)
        {
            let what = format!("the data of {id} is deleted, and claim {claim} is bound to it");
            breaches.push(Breach::new("claimed-data-stays", what));
        }
    }
}

/// The claim that is bound to a volume of the driver, and is not going.
fn bound_to(handle: &str, observer: &Observer) -> Option<String> {
    let of =
        |v: &&serde_json::Value| v["spec"]["csi"]["driver"] == DRIVER && v["spec"]["csi"]["volumeHandle"] == handle;
    let volume = observer.all("volume").find(of)?;
    let name = crate::observer::text(volume, "/metadata/name");
    let mut claims = observer.all("claim");
    let bound = claims.find(|c| c["spec"]["volumeName"] == name && !crate::observer::deleting(c))?;
    Some(crate::observer::key_of(bound))
}

/// Checks that the API tells of each volume of a node's driver.
pub(crate) fn traces(node: u8, storage: &Storage, observer: &Observer, breaches: &mut Vec<Breach>) {
    let named = |id: &str| observer.all("volume").any(|v| v["spec"]["csi"]["volumeHandle"] == id);
    let asked_for = |id: &str| {
        let made_for = |c: &&Value| id.strip_prefix("pvc-") == Some(uid(c));
        let finalizers = |c: &Value| c.pointer("/metadata/finalizers").and_then(Value::as_array).cloned();
        let claim = observer.all("claim").find(made_for);
        claim.and_then(finalizers).into_iter().flatten().any(|f| f == PROVISIONING)
    };
    for id in storage.volumes.keys().filter(|id| !named(id) && !asked_for(id)) {
        let what = format!("node{node} has {id}, and no volume names it, nor does a claim tell of it");
        breaches.push(Breach::new("volumes-leave-a-trace", what));
    }
}

/// A volume of a driver that no PersistentVolume names, and for which none is on its way.
pub(crate) fn orphan(storage: &Storage, observer: &Observer) -> Option<String> {
    let named = |id: &str| observer.all("volume").any(|v| v["spec"]["csi"]["volumeHandle"] == id);
    storage.volumes.keys().find(|id| !named(id)).cloned()
}

/// A snapshot of a driver of which no VolumeSnapshotContent is left.
pub(crate) fn lost_snapshot(storage: &Storage, observer: &Observer) -> Option<String> {
    let named = |id: &str| {
        let of = |content: &Value| id.strip_prefix("snapshot-") == Some(text(content, "/spec/volumeSnapshotRef/uid"));
        observer.all("volumesnapshotcontent").any(of)
    };
    storage.contents.snapshots().find(|id| !named(id)).map(str::to_owned)
}

/// A content of this driver that is to go with its snapshot, and whose snapshot has gone.
pub(crate) fn orphaned_content(observer: &Observer) -> Option<String> {
    let is_there = |of: &str| observer.all("volumesnapshot").any(|snapshot| uid(snapshot) == of);
    let is_left = |content: &&Value| {
        let (spec, of) = (&content["spec"], text(content, "/spec/volumeSnapshotRef/uid"));
        spec["driver"] == DRIVER && spec["deletionPolicy"] == "Delete" && !of.is_empty() && !is_there(of)
    };
    observer.all("volumesnapshotcontent").find(is_left).map(crate::observer::key_of)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_go_with_their_snapshots() {
        let content = |driver: &str, policy: &str, of: &str| {
            json!({"metadata": {"name": "c"}, "spec": {"driver": driver, "deletionPolicy": policy,
                "volumeSnapshotRef": {"uid": of}}})
        };
        let snapshot = || json!({"metadata": {"namespace": "default", "name": "s", "uid": "there"}});
        for (content, expected) in [
            (content(DRIVER, "Delete", "there"), None),
            (content(DRIVER, "Delete", "gone"), Some("c")),
            (content(DRIVER, "Retain", "gone"), None),
            (content("else", "Delete", "gone"), None),
            (content(DRIVER, "Delete", ""), None),
        ] {
            let shown = content.to_string();
            let observer = Observer::of([("volumesnapshot", snapshot()), ("volumesnapshotcontent", content)]);
            assert_eq!(orphaned_content(&observer).as_deref(), expected, "{shown}");
        }
    }

    /// Who asks for both at the same time may have them in any order; who comes after a dead caller waits for what that has
    /// asked for.
    #[test]
    fn a_snapshot_is_deleted_after_a_dead_caller_has_taken_it() {
        for (life, deleted) in [(1, true), (2, false)] {
            let (observer, mut breaches, mut follow) = (Observer::of([]), Vec::new(), Vec::new());
            let mut storage = Storage::new(false);
            storage.volumes.insert("v".into(), 1);
            let mut ask = |life, id, call| storage.ask(life, Out::Call { id, call }, Fate::Works);
            let take = ask(1, 1, Call::Snapshot("snapshot-s".into(), "v".into()));
            let delete = ask(life, 2, Call::DeleteSnapshot("snapshot-s".into()));
            let mut ends = |number| storage.carry_out(number, 1, Mood::Honest, &observer, &mut breaches, &mut follow);
            let outcomes = [delete, take].map(|number| ends(number).is_some_and(|(_, answer)| answer.outcome.is_ok()));
            assert_eq!(outcomes, [deleted, true]);
            assert_eq!(lost_snapshot(&storage, &observer).as_deref(), Some("snapshot-s"));
        }
    }
}
