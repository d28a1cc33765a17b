//! What must hold of clones at every step, read from the API alone, but for what is on volumes of whole nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::kubevirt::clone::{restore_name, snapshot_name};
use carrack_types::kubevirt::snapshot::names::{LAST_RESTORE_ANNOTATION, LEFT_OUT_ANNOTATION, SOURCE_FINALIZER};
use carrack_types::kubevirt::snapshot::{content_name, copy_name};
use carrack_types::well_known::kubevirt::STATE_CLAIM_ANNOTATION;
use carrack_types::well_known::storage::DEFAULT_CLASS;
use carrack_virt::identity::{STATE_CLAIM_PREFIX, state_claim_name};
use serde_json::Value;

use super::ends::{data, volume_of};
use super::host::MUTE;
use super::room::INSTANT;
use crate::invariants::Breach;
use crate::node::{Node, content_of};
use crate::observer::{
    Change, Observer, beside, controller, deleting, is_true, key_of, owner_kind, ready_to_use, text, uid,
};

/// For how long a reason to fail may be over when the failure is written: as long as a write may be on its way.
const STALE: Duration = Duration::from_secs(60);
/// How long a claim of a whole node has its volume before everybody knows that: watches are late there, and each by itself.
const KNOWN: Duration = Duration::from_secs(100);
/// The invariant of disks that are kept of a machine that runs.
pub(crate) const ONE_INSTANT: &str = "copies-are-of-one-instant";
/// The invariant of what a machine keeps beside its disks.
pub(crate) const RESTORED_STATE: &str = "restored-machines-have-their-state";
/// The invariant of what a snapshot has of that.
pub(crate) const KEPT_STATE: &str = "snapshots-have-their-machines-state";
/// The invariant of what a clone has of that.
pub(crate) const CLONED_STATE: &str = "clones-have-their-sources-state";
/// The kinds of children, by the field that names them.
const CHILDREN: [(&str, &str); 2] = [("snapshotName", "vmsnapshot"), ("restoreName", "vmrestore")];

/// What is remembered of clones.
#[derive(Default)]
pub(crate) struct Clones {
    /// How many children of a kind each clone has had, by UID and kind.
    made: BTreeMap<(String, &'static str), u32>,
    /// All children that there were: kind, place, UID of the clone.
    children: BTreeSet<(&'static str, String, String)>,
    /// When there was last a reason for a clone to fail.
    reasons: BTreeMap<String, Time>,
    /// Claims that some machine has had.
    used: BTreeSet<String>,
    /// Since when claims have their volumes, by UID.
    bound: BTreeMap<String, Time>,
    /// Machines that kept something beside their disks when they were last held for a snapshot, by UID: from then on it is known.
    keepers: BTreeSet<String>,
    /// Contents of snapshots without what their machines keep, as nothing can keep it. Their names follow from snapshots' UIDs.
    bereft: BTreeSet<String>,
}

/// Whether a clone made it.
pub(super) fn is_of_clone(object: &Value) -> bool {
    owner_kind(object) == "VirtualMachineClone"
}

/// The children of a clone that are there.
pub(super) fn children<'a>(clone: &'a Value, observer: &'a Observer) -> impl Iterator<Item = &'a Value> {
    let kinds = CHILDREN.iter().flat_map(|(_, kind)| observer.all(kind));
    kinds.filter(move |child| controller(child) == uid(clone))
}

/// Names of the claims of a machine.
pub(super) fn claims(machine: &Value) -> impl Iterator<Item = (&str, &str)> {
    let volumes = machine.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
    volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| Some((volume["name"].as_str()?, volume["persistentVolumeClaim"]["claimName"].as_str()?)))
}

impl Clones {
    /// Changes that were just committed. `nodes`: the whole ones, if there are any.
    pub(crate) fn changed(
        &mut self,
        now: Time,
        changes: &[Change],
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        for change in changes {
            match change.resource {
                "vmsnapshot" | "vmrestore" if change.before.is_none() => self.made(change, breaches),
                "vm" => {
                    let machine = change.object();
                    self.used.extend(claims(machine).map(|(_, claim)| beside(machine, claim)));
                    self.used.extend(state_claim(machine).map(|claim| beside(machine, claim)));
                    self.held(now, change, observer, nodes);
                    state(change, observer, nodes, breaches);
                }
                "claim" => self.bound(now, change),
                "vmcontent" if change.before.is_none() => self.kept(change.object(), observer, breaches),
                _ => {}
            }
        }
        if changes.iter().any(|change| change.resource.starts_with("vm") || change.resource == "clone") {
            let targets = Targets::of(observer);
            // What has come to its end will not fail any more.
            let is_over = |clone: &&Value| matches!(text(clone, "/status/phase"), "Succeeded" | "Failed");
            let going = observer.all("clone").filter(|clone| !is_over(clone));
            for clone in going.filter(|clone| has_reason(clone, &targets, observer)) {
                self.reasons.insert(uid(clone).to_owned(), now);
            }
        }
        for change in changes.iter().filter(|change| change.resource == "vmcontent") {
            copies(change, observer, nodes, breaches);
        }
        for change in changes.iter().filter(|change| change.resource == "clone") {
            self.clone(now, change, observer, breaches);
        }
    }

    fn made(&mut self, change: &Change, breaches: &mut Vec<Breach>) {
        let child = change.object();
        if !is_of_clone(child) {
            return;
        }
        let owner = controller(child).to_owned();
        self.children.insert((change.resource, key_of(child), owner.clone()));
        let made = self.made.entry((owner.clone(), change.resource)).or_default();
        *made += 1;
        if *made > 1 {
            let what = format!("the clone {owner} has had {made} of {}: {}", change.resource, key_of(child));
            breaches.push(Breach::new("clones-make-once", what));
        }
    }

    fn clone(&self, now: Time, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        let Some(clone) = &change.after else {
            let gone = change.object();
            if let Some(left) = children(gone, observer).next() {
                let what = format!("{} is gone, and its {} is there", key_of(gone), key_of(left));
                breaches.push(Breach::new("clones-forget-what-is-gone", what));
            }
            return;
        };
        let before = change.before.as_ref().unwrap_or(&Value::Null);
        for (field, kind) in CHILDREN {
            let (was, is) = (text(before, &format!("/status/{field}")), text(clone, &format!("/status/{field}")));
            let own = (kind, beside(clone, is), uid(clone).to_owned());
            if !is.is_empty() && was != is && !self.children.contains(&own) {
                let what = format!("{} names {kind} {is}, which it has never had", key_of(clone));
                breaches.push(Breach::new("clones-name-their-own", what));
            }
            if !was.is_empty()
                && is.is_empty()
                && let Some(left) = children(clone, observer).next()
            {
                let what = format!("{} names its {kind} no more, and {} is there", key_of(clone), key_of(left));
                breaches.push(Breach::new("clones-forget-what-is-gone", what));
            }
        }
        let failed = |clone: &Value| text(clone, "/status/phase") == "Failed";
        let succeeded = |clone: &Value| text(clone, "/status/phase") == "Succeeded";
        if succeeded(clone) && !succeeded(before) {
            let of_snapshot = text(clone, "/spec/source/kind") == "VirtualMachineSnapshot";
            let derived = snapshot_name(uid(clone));
            let snapshot = if of_snapshot { text(clone, "/spec/source/name") } else { &derived };
            let content = observer.get("vmsnapshot", &beside(clone, snapshot)).map(|s| content_name(uid(s)));
            if content.is_some_and(|content| self.bereft.contains(&beside(clone, &content))) {
                let what = format!("{} has succeeded without what its source keeps beside its disks", key_of(clone));
                breaches.push(Breach::new(CLONED_STATE, what));
            }
        }
        if failed(clone) && !failed(before) {
            let was = || self.reasons.get(uid(clone)).is_some_and(|last| now.since(*last) <= STALE);
            if !was() && !has_reason(clone, &Targets::of(observer), observer) {
                let what = format!("{} fails, and nothing in the API says why: {}", key_of(clone), clone["status"]);
                breaches.push(Breach::new("clones-fail-on-proof", what));
            }
        }
    }

    /// A claim has its volume, or is gone.
    fn bound(&mut self, now: Time, change: &Change) {
        let claim = change.object();
        if change.after.is_none() {
            self.bound.remove(uid(claim));
        } else if text(claim, "/status/phase") == "Bound" {
            self.bound.entry(uid(claim).to_owned()).or_insert(now);
        }
    }

    /// A machine is held for a snapshot, or is not any more.
    fn held(&mut self, now: Time, change: &Change, observer: &Observer, nodes: &BTreeMap<u8, Node>) {
        let is_held = |machine: &Value| {
            let finalizers = machine.pointer("/metadata/finalizers").and_then(Value::as_array);
            finalizers.into_iter().flatten().any(|name| name == SOURCE_FINALIZER)
        };
        if change.after.is_none() {
            self.keepers.remove(uid(change.object()));
        }
        let Some(machine) = change.after.as_ref().filter(|machine| is_held(machine)) else { return };
        if change.before.as_ref().is_some_and(is_held) {
            return;
        }
        let id = uid(machine);
        let own = state_claim_name(text(machine, "/metadata/name"), id);
        let claim = observer.get("claim", &beside(machine, state_claim(machine).unwrap_or(&own)));
        let since = |claim: &Value| self.bound.get(uid(claim)).copied();
        let is_known = |claim: &Value| nodes.is_empty() || since(claim).is_some_and(|since| now.since(since) >= KNOWN);
        let claim = claim.filter(|claim| !deleting(claim) && is_known(claim));
        let holds = claim.and_then(|claim| on_volume(claim, observer, nodes));
        if holds.is_some_and(|data| data.starts_with(STATE_CLAIM_PREFIX)) {
            self.keepers.insert(id.to_owned());
        } else {
            self.keepers.remove(id);
        }
    }

    /// A content has what its machine keeps beside its disks.
    fn kept(&mut self, content: &Value, observer: &Observer, breaches: &mut Vec<Breach>) {
        let backups = content.pointer("/spec/volumeBackups").and_then(Value::as_array);
        let has = backups.into_iter().flatten().any(|b| text(b, "/volumeName").starts_with(STATE_CLAIM_PREFIX));
        if has || !self.keepers.contains(text(content, "/spec/source/virtualMachine/metadata/uid")) {
            return;
        }
        // It is on a volume of the default class.
        if observer.all("class").any(|class| class["metadata"]["annotations"][DEFAULT_CLASS] == "true") {
            let what = format!("{} is without what its machine keeps beside its disks", key_of(content));
            breaches.push(Breach::new(KEPT_STATE, what));
        } else {
            self.bereft.insert(key_of(content));
        }
    }

    /// A claim that was restored for a machine that never came.
    pub(crate) fn stray(&self, observer: &Observer) -> Option<String> {
        let restored = |claim: &&Value| claim.pointer("/metadata/annotations/restore.kubevirt.io~1name").is_some();
        let stray = observer.all("claim").filter(restored).find(|claim| !self.used.contains(&key_of(claim)));
        stray.map(|claim| format!("claim {} was restored for a machine that never came", key_of(claim)))
    }
}

/// The claim that a machine names for what it keeps beside its disks.
fn state_claim(machine: &Value) -> Option<&str> {
    machine["metadata"]["annotations"][STATE_CLAIM_ANNOTATION].as_str()
}

/// What a claim's volume holds: a word, which is told by whoever has made it, or is known on its node.
fn on_volume<'a>(claim: &Value, observer: &'a Observer, nodes: &'a BTreeMap<u8, Node>) -> Option<&'a str> {
    let on_node = || content_of(volume_of(claim, observer)?, nodes).map(|content| content.claim.as_str());
    data(claim, observer).or_else(on_node)
}

/// A machine that has become what a snapshot holds names the claim with what that has of its state. On a whole node the volume of
/// that is made when the machine starts.
fn state(change: &Change, observer: &Observer, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    let by = |machine: &Value| machine["metadata"]["annotations"][LAST_RESTORE_ANNOTATION].clone();
    let Some(machine) = &change.after else { return };
    if by(machine).is_null() || change.before.as_ref().map(by) == Some(by(machine)) {
        return;
    }
    let mark = |restore: &&Value| by(machine) == format!("{}-{}", text(restore, "/metadata/name"), uid(restore));
    let restores = observer.all("vmrestore").find(mark).map(|restore| restore["status"]["restores"].clone());
    let restores = restores.iter().filter_map(Value::as_array).flatten();
    for volume in restores.filter(|volume| text(volume, "/volumeName").starts_with(STATE_CLAIM_PREFIX)) {
        let claim = text(volume, "/persistentVolumeClaim");
        let holds = observer.get("claim", &beside(machine, claim)).and_then(|claim| on_volume(claim, observer, nodes));
        let named = state_claim(machine);
        let is_its = holds.map_or(!nodes.is_empty(), |data| data.starts_with(STATE_CLAIM_PREFIX));
        if named != Some(claim) || !is_its {
            let what = format!("{} is restored, names {named:?}, and {claim} holds {holds:?}", key_of(machine));
            breaches.push(Breach::new(RESTORED_STATE, what));
        }
    }
}

/// A content that says it can be used has copies that hold what their sources do, which nobody writes to meanwhile.
fn copies(change: &Change, observer: &Observer, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    let Some(content) = change.after.as_ref().filter(|content| ready_to_use(content)) else { return };
    if change.before.as_ref().is_some_and(ready_to_use) {
        return;
    }
    instants(content, observer, nodes, breaches);
    breaches.extend(copies_lack(content, observer, nodes).map(|what| Breach::new("copies-are-whole", what)));
}

/// Whether a volume of a content is kept as a copy.
pub(crate) fn is_copy(content: &Value, backup: &Value) -> bool {
    text(backup, "/volumeSnapshotName") == copy_name(text(content, "/metadata/name"), text(backup, "/volumeName"))
}

/// Which copy of a content that can be used does not hold what its source does.
pub(crate) fn copies_lack(content: &Value, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    let find = |claim: &str| observer.get("claim", &beside(content, claim));
    let holds = |claim: &Value| on_volume(claim, observer, nodes);
    let backups = content.pointer("/spec/volumeBackups").and_then(Value::as_array);
    let mut copies = backups.into_iter().flatten().filter(|backup| is_copy(content, backup));
    copies.find_map(|backup| {
        let copy = find(text(backup, "/volumeSnapshotName")).and_then(holds);
        // It may have gone with its machine since.
        let source = find(text(backup, "/persistentVolumeClaim/metadata/name")).map(holds);
        let is_whole = copy.is_some() && source.is_none_or(|source| copy == source);
        let (name, volume) = (key_of(content), text(backup, "/volumeName"));
        (!is_whole).then(|| format!("{name} is ready, and its copy of {volume} holds {copy:?}, not {source:?}"))
    })
}

/// A content that says it can be used has all disks as they were at one instant: those that the machine copied in any case,
/// those that storage took, too, where the guest has an agent that freezes it. Of whole nodes, [`crate::backups`] looks at those.
fn instants(content: &Value, observer: &Observer, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    let backups = content.pointer("/spec/volumeBackups").and_then(Value::as_array);
    let machine = text(content, "/spec/source/virtualMachine/metadata/name");
    let said = |holder: &Value| Time::parse(holder["metadata"]["annotations"][INSTANT].as_str()?);
    let mut instants = BTreeMap::new();
    for backup in backups.into_iter().flatten() {
        let (volume, name) = (text(backup, "/volumeName"), text(backup, "/volumeSnapshotName"));
        let instant = if is_copy(content, backup) {
            let claim = observer.get("claim", &beside(content, name));
            let holder = claim.and_then(|claim| observer.get("volume", text(claim, "/spec/volumeName")));
            // Of whole nodes it is known when a guest had last written what is there.
            holder.and_then(|holder| said(holder).or_else(|| content_of(holder, nodes)?.wrote))
        } else if machine.starts_with(MUTE) || !nodes.is_empty() {
            continue;
        } else {
            let taken = observer.get("volumesnapshot", &beside(content, name));
            let name = taken.map(|taken| text(taken, "/status/boundVolumeSnapshotContentName"));
            name.and_then(|name| observer.get("volumesnapshotcontent", name)).and_then(said)
        };
        instants.insert(volume, instant);
    }
    one_instant(content, &instants, breaches);
}

/// A content that can be used has disks of one instant: this is when each was last written to, by volume.
pub(crate) fn one_instant<T: PartialEq + Debug>(
    content: &Value,
    instants: &BTreeMap<&str, T>,
    breaches: &mut Vec<Breach>,
) {
    let mut all = instants.values();
    let first = all.next();
    if all.any(|instant| Some(instant) != first) {
        let what = format!("{} is ready, and its disks are of several instants: {instants:?}", key_of(content));
        breaches.push(Breach::new(ONE_INSTANT, what));
    }
}

/// Which machines restores are to make, and for whom.
struct Targets<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Targets<'a> {
    fn of(observer: &'a Observer) -> Self {
        let mut targets = BTreeMap::<_, BTreeSet<_>>::new();
        for restore in observer.all("vmrestore") {
            targets.entry(text(restore, "/spec/target/name")).or_default().insert(controller(restore));
        }
        Self(targets)
    }
    /// Whether somebody else than this clone makes a machine of this name.
    fn are_others(&self, target: &str, clone: &str) -> bool {
        !target.is_empty() && self.0.get(target).is_some_and(|makers| makers.iter().any(|maker| *maker != clone))
    }
}

/// Whether the API says that a clone cannot succeed.
fn has_reason(clone: &Value, targets: &Targets<'_>, observer: &Observer) -> bool {
    let id = uid(clone);
    let find = |kind: &'static str, name: &str| observer.get(kind, &beside(clone, name));
    let (snapshot_name, restore_name) = (snapshot_name(id), restore_name(id));
    let own_restore = find("vmrestore", &restore_name);
    let squatted =
        [find("vmsnapshot", &snapshot_name), own_restore].into_iter().flatten().any(|found| controller(found) != id);
    let named = |field: &str| !text(clone, &format!("/status/{field}")).is_empty();
    let of_snapshot = text(clone, "/spec/source/kind") == "VirtualMachineSnapshot";
    let name = if of_snapshot { text(clone, "/spec/source/name") } else { &snapshot_name };
    let snapshot = find("vmsnapshot", name);
    let begun = named("snapshotName") || named("restoreName");
    let lost = begun && snapshot.is_none() || named("restoreName") && own_restore.is_none();
    let failed = snapshot.is_some_and(|s| text(s, "/status/phase") == "Failed")
        || own_restore.is_some_and(|restore| is_true(restore, "Failure"));
    squatted
        || lost
        || failed
        || content_lacks(snapshot, observer)
        || is_taken(clone, own_restore, snapshot, targets, observer)
}

fn content<'a>(snapshot: &Value, observer: &'a Observer) -> Option<&'a Value> {
    observer.get("vmcontent", &beside(snapshot, text(snapshot, "/status/virtualMachineSnapshotContentName")))
}

/// Whether a snapshot is said to be ready, and lacks a volume.
fn content_lacks(snapshot: Option<&Value>, observer: &Observer) -> bool {
    let ready = |s: &&Value| ready_to_use(s);
    let Some(snapshot) = snapshot.filter(ready) else { return false };
    let Some(content) = content(snapshot, observer) else { return true };
    let Some(machine) = content.pointer("/spec/source/virtualMachine") else { return true };
    let backups = content.pointer("/spec/volumeBackups").and_then(Value::as_array);
    let is_in = |name: &str| backups.into_iter().flatten().any(|backup| backup["volumeName"] == name);
    let left_out =
        content["metadata"]["annotations"][LEFT_OUT_ANNOTATION].as_str().is_some_and(|name| !name.is_empty());
    left_out || claims(machine).any(|(volume, _)| !is_in(volume))
}

/// Whether another machine has the target's name, or another restore is making one.
fn is_taken(
    clone: &Value,
    restore: Option<&Value>,
    snapshot: Option<&Value>,
    targets: &Targets<'_>,
    observer: &Observer,
) -> bool {
    let target = restore.map_or_else(|| text(clone, "/spec/target/name"), |restore| text(restore, "/spec/target/name"));
    let by_own = format!("{}-", restore_name(uid(clone)));
    let machine = observer.get("vm", &beside(clone, target)).is_some_and(|vm| {
        let by = text(vm, "/metadata/annotations/restore.kubevirt.io~1lastRestoreUID");
        let source = snapshot.and_then(|s| content(s, observer));
        let source = source.map_or("", |content| text(content, "/spec/source/virtualMachine/metadata/uid"));
        !by.starts_with(&by_own) && uid(vm) != source
    });
    machine || targets.are_others(target, uid(clone))
}

#[cfg(test)]
mod tests {
    use carrack_engine::Rng;
    use serde_json::json;

    use super::*;
    use crate::attacher::Rack;
    use crate::node::new_volume;
    use crate::options::NodeFaults;

    const OWN: &str = "persistent-state-for-a-1";
    const RESTORED: &str = "restore-r-persistent-state-for-a";

    fn named(name: &str, rest: Value) -> Value {
        let mut object = rest;
        object["metadata"]["namespace"] = "default".into();
        object["metadata"]["name"] = name.into();
        object["metadata"]["uid"] = name.into();
        object
    }

    /// A claim with a volume of a node's own, or none yet.
    fn claim(name: &str, is_bound: bool) -> Vec<(&'static str, Value)> {
        let phase = if is_bound { "Bound" } else { "Pending" };
        let claim = named(name, json!({"spec": {"volumeName": name}, "status": {"phase": phase}}));
        let csi = json!({"volumeHandle": format!("pvc-{name}")});
        let volume = json!({"metadata": {"name": name}, "spec": {"claimRef": {"uid": name}, "csi": csi}});
        let mut all = vec![("claim", claim)];
        all.extend(is_bound.then_some(("volume", volume)));
        all
    }

    /// A whole node on which the volumes of these claims are blank.
    fn nodes(claims: &[&str], observer: &Observer) -> BTreeMap<u8, Node> {
        let mut node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        for claim in claims {
            node.storage.contents.make(&new_volume(&format!("pvc-{claim}"), None), observer);
        }
        BTreeMap::from([(1, node)])
    }

    #[test]
    fn a_restored_machine_has_its_state_on_a_whole_node() {
        // Which claim the machine names, which one the restore says, whether that has a volume; and whether it is a breach.
        for (names, says, is_bound, expected) in [
            (Some(OWN), OWN, true, 0),
            (Some(OWN), OWN, false, 0),
            (None, OWN, true, 1),
            (Some("another"), OWN, false, 1),
            // What is blank is called as its claim is.
            (Some(RESTORED), RESTORED, true, 1),
        ] {
            let volume = json!({"volumeName": "persistent-state-for-a", "persistentVolumeClaim": says});
            let restore = named("r", json!({"status": {"restores": [volume]}}));
            let mut vm = named("a", json!({"metadata": {"annotations": {LAST_RESTORE_ANNOTATION: "r-r"}}}));
            if let Some(names) = names {
                vm["metadata"]["annotations"][STATE_CLAIM_ANNOTATION] = names.into();
            }
            let objects = claim(says, is_bound).into_iter().chain([("vmrestore", restore), ("vm", vm.clone())]);
            let observer = Observer::of(objects);
            let nodes = nodes(&[says], &observer);
            let change = Change { resource: "vm", before: None, after: Some(vm) };
            let mut breaches = Vec::new();
            state(&change, &observer, &nodes, &mut breaches);
            assert_eq!(breaches.len(), expected, "{names:?} {says} {is_bound}: {breaches:?}");
        }
    }

    #[test]
    fn a_copy_on_a_whole_node_is_what_lies_there() {
        let copy = copy_name("content", "one");
        // Whether all of it was copied, whether its source is there still; and whether that is a breach.
        for (whole, is_there, expected) in [(true, true, 0), (true, false, 0), (false, true, 1), (false, false, 0)] {
            let observer = Observer::of(claim(&copy, true).into_iter().chain(claim("source", true)));
            let mut nodes = nodes(&["source", &copy], &observer);
            for node in nodes.values_mut() {
                let held = node.storage.contents.on("pvc-source").cloned().filter(|_| whole);
                node.storage.contents.overwrite(&format!("pvc-{copy}"), held);
            }
            let source = if is_there { claim("source", true) } else { Vec::new() };
            let observer = Observer::of(claim(&copy, true).into_iter().chain(source));
            let of = json!({"metadata": {"name": "source"}});
            let backups = json!([{"volumeName": "one", "volumeSnapshotName": copy, "persistentVolumeClaim": of}]);
            let content = |ready: bool| {
                named("content", json!({"spec": {"volumeBackups": backups}, "status": {"readyToUse": ready}}))
            };
            let change = Change { resource: "vmcontent", before: Some(content(false)), after: Some(content(true)) };
            let mut breaches = Vec::new();
            copies(&change, &observer, &nodes, &mut breaches);
            assert_eq!(breaches.len(), expected, "whole: {whole}, there: {is_there}: {breaches:?}");
        }
    }

    #[test]
    fn a_snapshot_has_the_state_that_everybody_knows_of() {
        let id = "a";
        let own = state_claim_name("a", id);
        for (known, is_backed_up, expected) in
            [(KNOWN, false, 1), (KNOWN, true, 0), (KNOWN.saturating_sub(STALE), false, 0)]
        {
            let class = json!({"metadata": {"name": "state", "annotations": {DEFAULT_CLASS: "true"}}});
            let vm = |finalizers: Value| named(id, json!({"metadata": {"finalizers": finalizers}}));
            let observer = Observer::of(claim(&own, true).into_iter().chain([("class", class)]));
            let nodes = nodes(&[&own], &observer);
            let backups = if is_backed_up { json!([{"volumeName": "persistent-state-for-a"}]) } else { json!([]) };
            let machine = json!({"virtualMachine": {"metadata": {"name": "a", "uid": id}}});
            let content = named("content", json!({"spec": {"source": machine, "volumeBackups": backups}}));
            let (mut clones, mut breaches) = (Clones::default(), Vec::new());
            let mut see = |at: Time, resource: &'static str, before: Option<Value>, after: Value| {
                let change = Change { resource, before, after: Some(after) };
                clones.changed(at, &[change], &observer, &nodes, &mut breaches);
            };
            let begun = Time::from_unix_s(1000);
            let bound = observer.get("claim", &format!("default/{own}")).cloned().unwrap_or_default();
            see(begun, "claim", None, bound);
            see(begun + known, "vm", Some(vm(json!([]))), vm(json!([SOURCE_FINALIZER])));
            see(begun + known, "vmcontent", None, content);
            assert_eq!(breaches.len(), expected, "{known:?} {is_backed_up}: {breaches:?}");
        }
    }
}
