//! What pods do that copy disks, and guests that copy their own for such a pod.
//!
//! ```text
//!   copies:   starts ─▶ reads its sources, writes its targets, for a while ─┬─▶ all is written: it ends well
//!   receives: starts ─▶ waits ─ a guest is asked ─▶ that writes the targets ┼─▶ it fails, or hangs until somebody ends it
//!                                                                           └─▶ killed, or the guest ends: half of it is there
//! ```
//!
//! A target holds what its source held when the copy was begun ([`super::contents`]), once all of it is written. There are none of
//! QEMU's locks here, nor of the launcher's: whoever opens what somebody else writes was let do so by the control plane, as where
//! nodes only pretend ([`crate::clones`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::runtime::Mount;
use carrack_storage::DRIVER;
use carrack_types::volume::csi_unique_name;
use serde_json::Value;

use super::contents::Content;
use super::{Follow, Node, NodeEvent};
use crate::clones::{opens, takes};
use crate::invariants::Breach;
use crate::observer::{Observer, beside, text};

/// Where such a container has its volumes.
const DIRECTORY: &str = "/disks";
/// One copy in so many that a guest makes hangs, where anything does.
const HANGS_ONE_IN: u64 = 6;
/// With what a process ends that somebody kills.
const KILLED: i32 = 137;

/// What a container is to do, by where its volumes are on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It copies each of these to its target.
    Copy(Vec<(String, String)>),
    /// It waits until the guest of this instance has copied its disks to these.
    Receive(String, Vec<String>),
}

/// What a container with these arguments and mounts does, if it copies disks.
pub(super) fn work_of(args: &[String], mounts: &[Mount]) -> Option<Work> {
    let side = |side: &str| -> Vec<String> {
        let at = |number: usize| {
            let path = format!("{DIRECTORY}/{side}-{number}");
            mounts.iter().find(|mount| mount.container_path == path).map(|mount| mount.host_path.clone())
        };
        (0..).map_while(at).collect()
    };
    match args.first()?.as_str() {
        "copy" => Some(Work::Copy(side("source").into_iter().zip(side("target")).collect())),
        "receive" => {
            let instance = args.iter().skip_while(|arg| *arg != "--uid").nth(1)?;
            Some(Work::Receive(instance.clone(), side("target")))
        }
        _ => None,
    }
}

/// A volume that is copied to another one, by the driver's handles.
#[derive(Debug)]
struct Pair {
    source: String,
    target: String,
    /// What the target is to hold.
    held: Content,
}

/// A copy that is under way.
#[derive(Debug)]
struct Copy {
    pairs: Vec<Pair>,
    /// The container of the guest that makes it, if one does.
    guest: Option<String>,
    /// It does not come to its end by itself.
    hangs: bool,
}

/// The copies that are made on a node.
#[derive(Debug)]
pub(crate) struct Copies {
    rng: Rng,
    /// They may fail, and hang.
    pub fails: bool,
    /// A planted bug: a guest begins to copy a disk when it has copied the one before.
    pub one_by_one: bool,
    /// By the containers that make them, or wait for them.
    under_way: BTreeMap<String, Copy>,
    /// Containers for which a guest has begun: it does so once for each.
    served: BTreeSet<String>,
    /// UIDs of pods that somebody has made sure of that nothing of them runs.
    ended: BTreeSet<String>,
    /// The guests that ran at the last look, and how often they had changed by then.
    guests: (BTreeSet<String>, u64),
}

impl Copies {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            rng,
            fails: false,
            one_by_one: false,
            under_way: BTreeMap::new(),
            served: BTreeSet::new(),
            ended: BTreeSet::new(),
            guests: (BTreeSet::new(), 0),
        }
    }

    /// Draws other chances from here on.
    pub(super) fn reseed(&mut self, rng: Rng) {
        self.rng = rng;
    }

    /// Who copies from a volume, or to it, and whether to write.
    fn users(&self, volume: &str) -> BTreeSet<(String, bool)> {
        let mut users = BTreeSet::new();
        for (container, copy) in &self.under_way {
            for pair in &copy.pairs {
                // What a guest copies it has open anyway.
                if pair.source == volume && copy.guest.is_none() {
                    users.insert((copy_of(container), false));
                }
                if pair.target == volume {
                    users.insert((copy_of(container), true));
                }
            }
        }
        users
    }
}

fn copy_of(container: &str) -> String {
    format!("the copy of {container}")
}

fn guest_of(name: &str) -> String {
    format!("the guest of {name}")
}

impl Node {
    /// A container was started, if it runs: one that copies begins.
    pub(super) fn begins_copy(&mut self, id: &str, breaches: &mut Vec<Breach>) -> Vec<Follow> {
        let work = self.runtime.copies(id).filter(|_| self.runtime.is_running(id));
        let Some(Work::Copy(directories)) = work else { return Vec::new() };
        if self.copies.under_way.contains_key(id) {
            return Vec::new();
        }
        let pod = self.runtime.pod_of(id).unwrap_or_default().to_owned();
        let volumes: Option<Vec<(String, String)>> = directories
            .iter()
            .map(|(source, target)| Some((self.volume_at(&pod, source)?, self.volume_at(&pod, target)?)))
            .collect();
        let Some(volumes) = volumes.filter(|_| !self.copies.ended.contains(&pod)) else {
            return vec![ends(id, Duration::ZERO, false)];
        };
        let (length, fails) = takes(&mut self.copies.rng, self.copies.fails);
        let who = copy_of(id);
        for (volume, writes) in volumes.iter().flat_map(|(source, target)| [(source, false), (target, true)]) {
            breaches.extend(opens(&who, volume, writes, &self.users(volume)));
        }
        let said = Follow::Say(format!("node{} {id} begins to copy {volumes:?}", self.number));
        // What a pod copies is at rest, all of it: when it was written last does not matter.
        self.begins(id, volumes, None, false);
        vec![said, ends(id, length, !fails)]
    }

    /// The guest of an instance is asked to copy its disks for a container, as its handler and its monitor have it: once for each,
    /// and only while that waits for this very instance.
    ///
    /// # Errors
    /// Why it was not done.
    pub(crate) fn copy_for(
        &mut self,
        now: Time,
        instance: &str,
        body: &Value,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) -> Result<Vec<Follow>, String> {
        let id = text(body, "/container");
        let work = self.runtime.copies(id).filter(|_| self.runtime.is_running(id));
        let Some(Work::Receive(wanted, directories)) = work else {
            return Err(format!("container {id} does not run, or waits for nothing"));
        };
        if wanted != instance {
            return Err(format!("container {id} does not wait for {instance}"));
        }
        if self.copies.served.contains(id) {
            return Ok(Vec::new());
        }
        let pod = self.runtime.pod_of(id).unwrap_or_default().to_owned();
        let found = self.guests.alive().find(|(_, guest)| guest.domain.uid == instance);
        let Some(compute) = found.map(|(compute, _)| compute.to_owned()) else {
            return Err(format!("no guest of {instance} runs"));
        };
        let names = body["volumes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let sources: Option<Vec<String>> = names.map(|name| self.disk_of(&compute, name, observer)).collect();
        let targets: Option<Vec<String>> = directories.iter().map(|path| self.volume_at(&pod, path)).collect();
        let (Some(sources), Some(targets), false) = (sources, targets, self.copies.ended.contains(&pod)) else {
            return Err("the machine, or the pod, has no such disk".to_owned());
        };
        let who = copy_of(id);
        for target in &targets {
            breaches.extend(opens(&who, target, true, &self.users(target)));
        }
        // All of them as they are now: one transaction.
        self.write(now);
        let hangs = self.copies.fails && self.copies.rng.one_in(HANGS_ONE_IN);
        let (length, fails) = takes(&mut self.copies.rng, self.copies.fails);
        let said = Follow::Say(format!("the guest in {compute} begins to copy {sources:?} to {targets:?} for {id}"));
        self.begins(id, sources.into_iter().zip(targets).collect(), Some(compute), hangs);
        self.copies.served.insert(id.to_owned());
        let ends = (!hangs).then(|| ends(id, length, !fails));
        Ok([said].into_iter().chain(ends).collect())
    }

    fn begins(&mut self, id: &str, volumes: Vec<(String, String)>, guest: Option<String>, hangs: bool) {
        let pair = |(source, target): (String, String)| {
            let found = self.storage.contents.on(&source).cloned().unwrap_or_default();
            let held = Content { wrote: found.wrote.filter(|_| guest.is_some()), ..found };
            Pair { source, target, held }
        };
        let pairs = volumes.into_iter().map(pair).collect();
        self.copies.under_way.insert(id.to_owned(), Copy { pairs, guest, hangs });
    }

    /// A copy has come to its end, unless it was ended before.
    pub(super) fn copied(&mut self, now: Time, id: &str, whole: bool) -> Vec<Follow> {
        let copy = self.copies.under_way.remove(id);
        let whole = whole && copy.is_some();
        let one_by_one = self.copies.one_by_one && copy.as_ref().is_some_and(|copy| copy.guest.is_some());
        for (number, pair) in copy.into_iter().flat_map(|copy| copy.pairs).enumerate() {
            let mut held = pair.held;
            if one_by_one && number > 0 {
                self.write(now);
                held.wrote = self.storage.contents.on(&pair.source).and_then(|content| content.wrote);
            }
            self.storage.contents.overwrite(&pair.target, whole.then_some(held));
        }
        let ran = self.runtime.exit(now, id, i32::from(!whole));
        let word = if whole { "all" } else { "not all" };
        let said = ran.then(|| Follow::Say(format!("node{} {id} ends, and {word} is copied", self.number)));
        said.into_iter().collect()
    }

    /// Copies end with the containers that make them or wait for them, and with the guests that make them.
    pub(super) fn reap_copies(&mut self, now: Time, follow: &mut Vec<Follow>) {
        let is_over = |(id, copy): &(&String, &Copy)| {
            let runs = |compute: &String| self.guests.alive().any(|(alive, _)| alive == compute);
            !self.runtime.is_running(id) || copy.guest.as_ref().is_some_and(|compute| !runs(compute))
        };
        let over: Vec<String> = self.copies.under_way.iter().filter(is_over).map(|(id, _)| id.clone()).collect();
        for id in over {
            follow.extend(self.copied(now, &id, false));
        }
    }

    /// Guests that have just begun open their disks.
    pub(super) fn guests_open(&mut self, breaches: &mut Vec<Breach>) {
        let changes = self.guests.changes();
        if self.copies.guests.1 == changes {
            return;
        }
        let mut alive = BTreeSet::new();
        for (compute, guest) in self.guests.alive() {
            alive.insert(compute.to_owned());
            if self.copies.under_way.is_empty() || self.copies.guests.0.contains(compute) {
                continue;
            }
            for volume in self.volumes_of(compute) {
                breaches.extend(opens(&guest_of(&guest.name), &volume, true, &self.copies.users(&volume)));
            }
        }
        self.copies.guests = (alive, changes);
    }

    /// Somebody has made sure that nothing of a pod runs that copies, now or later.
    pub(crate) fn ends_copies_of(&mut self, now: Time, pod: &str) -> Vec<Follow> {
        self.copies.ended.insert(pod.to_owned());
        let is_one = |id: &String| self.runtime.copies(id).is_some();
        let own: Vec<String> = self.runtime.records_of(pod).map(|record| record.id.clone()).filter(is_one).collect();
        for id in own {
            self.runtime.exit(now, &id, KILLED);
        }
        let mut follow = Vec::new();
        self.reap_copies(now, &mut follow);
        follow
    }

    /// Nothing fails any more; what hangs comes to its end.
    pub(crate) fn heals_copies(&mut self) -> Vec<Follow> {
        self.copies.fails = false;
        let hung = self.copies.under_way.iter().filter(|(_, copy)| copy.hangs);
        hung.map(|(id, _)| ends(id, Duration::ZERO, false)).collect()
    }

    /// Who has a volume open, and whether to write.
    fn users(&self, volume: &str) -> BTreeSet<(String, bool)> {
        let mut users = self.copies.users(volume);
        for (compute, guest) in self.guests.alive() {
            if self.volumes_of(compute).iter().any(|own| own == volume) {
                users.insert((guest_of(&guest.name), true));
            }
        }
        users
    }

    /// The driver's volume that a pod has at a path.
    fn volume_at(&self, pod: &str, path: &str) -> Option<String> {
        let part = self.disk.part_at(pod, path)?;
        self.storage.volumes.keys().find(|volume| csi_unique_name(DRIVER, volume) == part).cloned()
    }

    /// The driver's volume that a guest has as this disk.
    fn disk_of(&self, compute: &str, name: &str, observer: &Observer) -> Option<String> {
        let pod = observer.pod(&self.runtime.record(compute)?.pod)?;
        let disk = pod.pointer("/spec/volumes")?.as_array()?.iter().find(|volume| volume["name"] == name)?;
        let claim = observer.get("claim", &beside(pod, text(disk, "/persistentVolumeClaim/claimName")))?;
        let volume = observer.get("volume", text(claim, "/spec/volumeName"))?;
        let handle = text(volume, "/spec/csi/volumeHandle");
        self.volumes_of(compute).into_iter().find(|own| own == handle)
    }
}

/// A copy comes to its end after so long.
fn ends(id: &str, after: Duration, whole: bool) -> Follow {
    Follow::Later(after, NodeEvent::Copied { container: id.to_owned(), whole })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::contents::HALF;
    use super::*;
    use crate::attacher::Rack;
    use crate::node::new_volume;
    use crate::options::NodeFaults;

    #[test]
    fn what_a_pod_copies_is_said_by_its_arguments_and_volumes() {
        let mount = |name: &str| Mount {
            container_path: format!("/disks/{name}"),
            host_path: format!("/pods/{name}"),
            ..Mount::default()
        };
        let mounts = ["source-0", "target-1", "target-0", "source-1", "else"].map(mount);
        let source = |number: u8| format!("/pods/source-{number}");
        let target = |number: u8| format!("/pods/target-{number}");
        let copies = || Some(Work::Copy(vec![(source(0), target(0)), (source(1), target(1))]));
        let receives = Work::Receive("u".to_owned(), vec![target(0), target(1)]);
        for (args, expected) in [
            (vec!["copy", "keep", "/disks/source-0/disk.img"], copies()),
            (vec!["copy", "restore", "/disks/source-0/disk.qcow2"], copies()),
            (vec!["receive", "--uid", "u", "/disks/target-0"], Some(receives)),
            (vec!["receive", "/disks/target-0"], None),
            (vec!["--name", "copy"], None),
            (Vec::new(), None),
        ] {
            let words: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            assert_eq!(work_of(&words, &mounts), expected, "{args:?}");
        }
    }

    #[test]
    fn a_target_holds_what_its_source_did_or_half_of_it() {
        let at = Time::from_unix_s;
        // Whether all is written, which guest copies, and what the target holds then.
        for (whole, guest, claim, wrote) in [
            (true, None, "disk", None),
            (true, Some("launcher"), "disk", Some(at(1))),
            (false, None, HALF, None),
            (false, Some("launcher"), HALF, None),
        ] {
            let what = format!("whole: {whole}, {guest:?}");
            let of = json!({"metadata": {"namespace": "default", "name": "disk", "uid": "u"}});
            let observer = Observer::of([("claim", of)]);
            let mut node = Node::new(1, at(0), Rng::new(1), NodeFaults::none(), Rack::default());
            for volume in ["pvc-u", "target"] {
                node.storage.contents.make(&new_volume(volume, None), &observer);
            }
            node.storage.contents.write("pvc-u", at(1));
            let volumes = vec![("pvc-u".to_owned(), "target".to_owned())];
            node.begins("c", volumes, guest.map(str::to_owned), false);
            // What is written since is not in it.
            node.storage.contents.write("pvc-u", at(2));
            let writer: BTreeSet<(String, bool)> = [(copy_of("c"), true)].into();
            assert_eq!(node.users("target"), writer, "{what}");
            assert_eq!(node.users("pvc-u").is_empty(), guest.is_some(), "{what}");
            node.copied(at(3), "c", whole);
            let held = node.storage.contents.on("target").cloned().unwrap_or_default();
            assert_eq!((held.claim.as_str(), held.wrote), (claim, wrote), "{what}");
            assert!(node.users("target").is_empty(), "{what}");
        }
    }

    /// Its container is not there any more.
    #[test]
    fn a_copy_ends_with_its_container() {
        let (mut node, observer) =
            (Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default()), Observer::of([]));
        node.storage.contents.make(&new_volume("target", None), &observer);
        node.begins("c", vec![("source".to_owned(), "target".to_owned())], None, true);
        assert_eq!(node.heals_copies().len(), 1, "it hangs");
        node.reap_copies(Time::default(), &mut Vec::new());
        assert_eq!(node.storage.contents.on("target").map(|content| content.claim.as_str()), Some(HALF));
        assert!(node.heals_copies().is_empty());
    }

    #[test]
    fn who_writes_a_disk_has_it_alone() {
        for (theirs, writes, expected) in
            [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
        {
            let users: BTreeSet<(String, bool)> = [("me".to_owned(), true), ("other".to_owned(), theirs)].into();
            assert_eq!(opens("me", "v", writes, &users).is_some(), expected, "{theirs} {writes}");
        }
    }
}
