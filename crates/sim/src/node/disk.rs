//! What a node keeps when its agents die, and what of it when the power goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::pulled::{PULLED_PREFIX, PULLING_PREFIX};
use carrack_kubelet::records::{POD_PREFIX, VOLUME_PREFIX};
use carrack_kubelet::volumes::staged::{Attached, StageInputs};
use carrack_kubelet::volumes::{Driver, Found, Staging, VolumeSetup};
use carrack_kubelet::{Op, OpError, Outcome, Reply};
use carrack_types::volume::DEVICE_PATH;

use super::moods::NOTED;
use super::{Follow, NodeEvent};
use crate::attacher::{DEVICE, DRIVER, Rack};
use crate::flex;
use crate::invariants::Breach;
use crate::settings::Files;

/// What is said where there is no room.
pub(super) const NO_ROOM: &str = "no space left on device";
/// How names of records begin, with their kinds. An intent to pull is dropped once there is a record of what was pulled, and what
/// was written is on disk when what comes after it is: the two are of one kind.
const RECORDS: [(&str, &str); 4] =
    [(POD_PREFIX, "pods"), (VOLUME_PREFIX, "volumes"), (PULLED_PREFIX, "images"), (PULLING_PREFIX, "images")];
/// Number of every device.
const DEVICE_NUMBER: &str = "7:1";

/// What is said of a volume that was there before, where what it is made from cannot be read.
fn unfound() -> OpError {
    OpError::Failed("it is not found again, and what it is made from cannot be read".into())
}

/// A volume that is mounted for a pod.
#[derive(Debug)]
struct Mount {
    /// No other mount ever has it: what is mounted anew, or over this one, has another one.
    id: u64,
    /// The kubelet that has seen to it last, by its life.
    by: u32,
    /// The volume of the node that it is a part of.
    part_of: Option<String>,
}

/// The disk, and the mounts on it.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// Number of the node.
    node: u8,
    /// Disks that are attached from outside.
    rack: Rack,
    /// The kubelet's local record.
    pub records: BTreeMap<String, Vec<u8>>,
    /// The record of each kind that was written or dropped last, with what was there before.
    last: BTreeMap<&'static str, (String, Option<Vec<u8>>)>,
    /// Names of records that a loss of power took, or what was last written of them.
    lost: BTreeSet<String>,
    /// The device manager's checkpoint.
    pub checkpoint: Option<Vec<u8>>,
    /// The CPU manager's state.
    pub cpus: Option<Vec<u8>>,
    /// The memory manager's state.
    pub memory: Option<Vec<u8>>,
    /// What is allocated to pods.
    pub allocated: Option<Vec<u8>>,
    /// What of it was brought about.
    pub actuated: Option<Vec<u8>>,
    /// Volumes by pod UID and path.
    mounts: BTreeMap<(String, String), Mount>,
    /// The id that the newest mount was given.
    newest: u64,
    /// Files of config maps, by pod UID and path.
    files: BTreeMap<(String, String), Files>,
    /// Volumes that are mounted for the node, by unique name, with where.
    staged: BTreeMap<String, String>,
    /// Parts of volumes of the node that pods have got since the last look, by pod UID and volume.
    given: Vec<(String, String)>,
    /// A planted bug: records of what was pulled are lost on their way here.
    pub loses_pulls: bool,
    /// A planted bug: a kubelet that has started anew mounts what it finds mounted.
    pub mounts_anew: bool,
    /// Until when nothing more fits on it, if that is so.
    full_until: Option<Time>,
    /// The device checkpoint that the present kubelet has written last, with the kubelet's life.
    pub(super) noted: Option<(u32, Vec<u8>)>,
}

/// Whether an operation makes a file or a directory, or takes room otherwise. What is there already is read, and removed, on a
/// full disk as well; the machine's own facts do not change with it, so that nobody is evicted.
pub(super) fn needs_room(op: &Op) -> bool {
    matches!(
        op,
        Op::SaveRecord { .. }
            | Op::SaveCheckpoint(_)
            | Op::SaveCpus(_)
            | Op::SaveMemory(_)
            | Op::SaveAllocated(_)
            | Op::SaveActuated(_)
            | Op::SetUpVolume(_)
            | Op::StageVolume(..)
            | Op::PullImage { .. }
            | Op::RunSandbox(_)
            | Op::CreateContainer(..)
    )
}

impl Disk {
    pub(super) fn new(node: u8, rack: Rack) -> Self {
        Self { node, rack, ..Self::default() }
    }
    /// That of another machine in the same place: nothing is on it.
    pub(super) fn blank(&self) -> Self {
        let (loses_pulls, mounts_anew, newest) = (self.loses_pulls, self.mounts_anew, self.newest);
        Self { loses_pulls, mounts_anew, newest, ..Self::new(self.node, self.rack.clone()) }
    }
    /// Nothing more fits on it for so long.
    pub(crate) fn fill(&mut self, now: Time, lasts: Duration) -> Follow {
        self.full_until = self.full_until.max(Some(now + lasts));
        Follow::Later(lasts, NodeEvent::Room)
    }
    pub(crate) fn is_full(&self) -> bool {
        self.full_until.is_some()
    }
    /// Somebody has made room by now, unless it was filled again since.
    pub(super) fn may_have_room(&mut self, now: Time) -> Vec<Follow> {
        let freed = self.full_until.take_if(|until| *until <= now);
        freed.map(|_| Follow::Say(format!("the disk of node{} has room again", self.node))).into_iter().collect()
    }
    /// There is room from now on.
    pub(crate) fn heal(&mut self) {
        self.full_until = None;
    }
    /// A plugin is asked for devices: that they are meant for a container is on disk by then, or a kubelet that starts anew could
    /// mean them for another one.
    pub(super) fn check_noted(&self, by: u32, resource: &str, ids: &BTreeSet<String>, breaches: &mut Vec<Breach>) {
        let written = self.noted.as_ref().filter(|(life, _)| *life == by).map(|(_, body)| body.as_slice());
        let (held, _) = written.and_then(|body| carrack_kubelet::devices::decode(body).ok()).unwrap_or_default();
        let mut of_containers = held.values().flat_map(|pod| pod.values());
        if !of_containers.any(|holdings| holdings.get(resource).is_some_and(|holding| holding.ids == *ids)) {
            let by = format!("node{}'s kubelet", self.node);
            let what = format!("{by} asks for {ids:?} of {resource} and has not written down for whom");
            breaches.push(Breach::new(NOTED, what));
        }
    }
    /// A kubelet of this life has a volume made ready.
    pub(super) fn mount(&mut self, setup: &VolumeSetup, by: u32, breaches: &mut Vec<Breach>) -> Outcome {
        let place = (setup.uid.to_string(), setup.path.clone());
        let publishing = setup.publishing();
        if publishing.is_some_and(|p| p.confirm_only) && !self.mounts.contains_key(&place) {
            return Err(unfound());
        }
        let part_of = publishing.and_then(|p| p.published.id.clone());
        if let Some(id) = part_of.as_ref().filter(|id| !self.staged.contains_key(*id)) {
            return Err(OpError::Failed(format!("{id} is not mounted on the node")));
        }
        flex::opened(self.node, setup, breaches);
        if let Some(files) = crate::settings::files(setup) {
            crate::settings::written(setup, &files, breaches);
            self.files.insert(place.clone(), files);
        }
        self.put(place, by, part_of);
        Ok(Reply::Done)
    }
    /// What is mounted already stays as it is.
    fn put(&mut self, place: (String, String), by: u32, part_of: Option<String>) {
        let there = self.mounts.get(&place).map(|mount| (mount.id, mount.by));
        let stays = there.filter(|(_, before)| !self.mounts_anew || *before == by);
        let id = stays.map_or(self.newest + 1, |(id, _)| id);
        self.newest = self.newest.max(id);
        if there.is_none() {
            self.given.extend(part_of.clone().map(|id| (place.0.clone(), id)));
        }
        self.mounts.insert(place, Mount { id, by, part_of });
    }
    /// The mounts of a pod, by their paths, with their ids.
    pub(crate) fn ids_of(&self, uid: &str) -> BTreeMap<String, u64> {
        let of_pod = self.mounts.iter().filter(|((pod, _), _)| pod == uid);
        of_pod.map(|((_, path), mount)| (path.clone(), mount.id)).collect()
    }
    /// A planted bug: a pod has a part of a volume, whatever its kubelet knows of that.
    pub(crate) fn give(&mut self, uid: &str, id: &str) {
        let path = format!("/var/lib/kubelet/pods/{uid}/volumes/ahead");
        self.put((uid.to_owned(), path), 0, Some(id.to_owned()));
    }
    /// Parts of volumes of the node that pods have got since the last look, by pod UID and volume.
    pub(crate) fn given(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.given)
    }
    /// Nothing is made of what is only to be found again.
    pub(super) fn confirm(&self, staging: &Staging, inputs: &StageInputs) -> Result<(), OpError> {
        let may_make = !inputs.confirm_only || matches!(staging.origin.driver, Driver::Local { .. });
        if may_make || self.staged.contains_key(&staging.id) { Ok(()) } else { Err(unfound()) }
    }
    pub(super) fn stage(&mut self, staging: &Staging, inputs: &StageInputs, boot_id: &str) -> Outcome {
        let of_rack = match &staging.origin.driver {
            Driver::Csi { handle, driver, .. } if driver == DRIVER => Some((handle, DEVICE)),
            Driver::Flex { driver, .. } if driver == flex::DRIVER => Some((&staging.origin.spec_name, DEVICE_PATH)),
            _ => None,
        };
        if let Some((disk, key)) = of_rack
            && !self.staged.contains_key(&staging.id)
        {
            let device = match &inputs.attached {
                Attached::With { context, .. } => context.get(key),
                Attached::NotNeeded | Attached::Waiting(_) | Attached::ByNode => None,
            };
            self.rack.stage(disk, self.node, device).map_err(OpError::Failed)?;
        }
        self.staged.insert(staging.id.clone(), staging.path.clone());
        let identity = Some(format!("{boot_id} {DEVICE_NUMBER}"));
        Ok(Reply::Staged { device: Some("/dev/loop1".into()), identity })
    }
    pub(super) fn unstage(&mut self, staging: &Staging, breaches: &mut Vec<Breach>) -> Outcome {
        let is_part = |mount: &Mount| mount.part_of.as_ref() == Some(&staging.id);
        if let Some(((uid, path), _)) = self.mounts.iter().find(|(_, mount)| is_part(mount)) {
            let what = format!("{} is unmounted from the node while {path} of pod {uid} is a part of it", staging.id);
            breaches.push(Breach::new("disk-in-use-stays", what));
        }
        self.staged.remove(&staging.id);
        match &staging.origin.driver {
            Driver::Csi { handle, .. } => self.rack.unstage(handle, self.node),
            Driver::Flex { .. } => self.rack.unstage(&staging.origin.spec_name, self.node),
            Driver::Local { .. } | Driver::HostPath { .. } | Driver::Nfs { .. } => {}
        }
        Ok(Reply::Done)
    }
    /// What a kubelet that starts finds.
    pub(super) fn found(&self) -> Found {
        let of_pods = self.mounts.keys().map(|(_, path)| path);
        let all = of_pods.chain(self.staged.values()).map(|path| (path.clone(), DEVICE_NUMBER.to_owned()));
        Found { mounts: all.collect(), ..Found::default() }
    }
    /// UIDs of pods with what is mounted for them, in their own directories.
    pub(crate) fn mounted(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.mounts.keys().filter(|(_, path)| path.contains("/volumes/"));
        own.map(|(uid, path)| (uid.as_str(), path.as_str()))
    }
    /// Whether a volume of a pod is mounted.
    pub(crate) fn has(&self, uid: &str, path: &str) -> bool {
        self.mounts.contains_key(&(uid.to_owned(), path.to_owned()))
    }
    /// Whether a volume is mounted for the node.
    pub(super) fn is_staged(&self, id: &str) -> bool {
        self.staged.contains_key(id)
    }
    /// UIDs of the pods that have a part of one of these volumes of the node.
    pub(crate) fn pods_of<'a>(&'a self, ids: &'a [String]) -> impl Iterator<Item = &'a str> {
        let is_part = |mount: &Mount| mount.part_of.as_ref().is_some_and(|id| ids.contains(id));
        self.mounts.iter().filter(move |(_, mount)| is_part(mount)).map(|((pod, _), _)| pod.as_str())
    }
    /// Whether a pod has a part of a volume of the node.
    pub(crate) fn part_of(&self, uid: &str, id: &str) -> bool {
        self.mounts.iter().any(|((pod, _), mount)| pod == uid && mount.part_of.as_deref() == Some(id))
    }
    /// The volume of the node of which a pod has a part at this path.
    pub(super) fn part_at(&self, uid: &str, path: &str) -> Option<&str> {
        self.mounts.get(&(uid.to_owned(), path.to_owned()))?.part_of.as_deref()
    }
    /// The files of a pod's volume, if it is made of a config map.
    pub(crate) fn files_of(&self, uid: &str, volume: &str) -> Option<&Files> {
        let ends = format!("/{volume}");
        self.files.iter().find(|((pod, path), _)| pod == uid && path.ends_with(&ends)).map(|(_, files)| files)
    }
    /// A volume that is mounted for the node and for no pod.
    pub(crate) fn idle(&self) -> Option<&String> {
        self.staged.keys().find(|id| !self.mounts.values().any(|mount| mount.part_of.as_ref() == Some(*id)))
    }
    /// Where a pod's volumes are mounted.
    pub(super) fn paths_of(&self, uid: &str) -> Vec<String> {
        self.mounts.keys().filter(|(pod, _)| pod == uid).map(|(_, path)| path.clone()).collect()
    }
    pub(super) fn unmount(&mut self, uid: &str, path: &str) -> Outcome {
        let place = (uid.to_owned(), path.to_owned());
        self.mounts.remove(&place);
        self.files.remove(&place);
        Ok(Reply::Done)
    }
    pub(super) fn remove_pod(&mut self, uid: &str) -> Outcome {
        match self.mounts.keys().find(|(pod, path)| pod == uid && path.contains("/volumes/")) {
            Some((_, path)) => Err(OpError::Failed(format!("{path} is still mounted"))),
            None => Ok(Reply::Done),
        }
    }
    pub(super) fn save(&mut self, name: String, body: Vec<u8>) -> Outcome {
        if !self.loses_pulls || !name.starts_with(PULLED_PREFIX) {
            self.write(name, body);
        }
        Ok(Reply::Done)
    }
    /// A record is there from now on.
    pub(crate) fn write(&mut self, name: String, body: Vec<u8>) {
        let before = self.records.insert(name.clone(), body);
        self.changed(name, before);
    }
    fn changed(&mut self, name: String, before: Option<Vec<u8>>) {
        if let Some((_, kind)) = RECORDS.into_iter().find(|(begin, _)| name.starts_with(*begin)) {
            self.last.insert(kind, (name, before));
        }
    }
    /// The records that were written last are empty, half there, or as before; what was dropped last is there again.
    pub(super) fn lose(&mut self, rng: &mut Rng) {
        for (name, before) in std::mem::take(&mut self.last).into_values() {
            let Some(record) = self.records.get_mut(&name) else {
                self.records.extend(before.map(|before| (name.clone(), before)));
                self.lost.insert(name);
                continue;
            };
            let length = record.len();
            match (rng.below(3), before) {
                (0, _) => record.clear(),
                (1, _) => record.truncate(length / 2),
                (_, Some(before)) => *record = before,
                (_, None) => _ = self.records.remove(&name),
            }
            self.lost.insert(name);
        }
    }
    /// What is there now of records that a loss of power took, by name.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.lost.iter().filter_map(|name| Some((name.as_str(), self.records.get(name)?.as_slice())))
    }
    pub(super) fn drop_record(&mut self, name: &str) -> Outcome {
        if let Some(before) = self.records.remove(name) {
            self.changed(name.to_owned(), Some(before));
        }
        Ok(Reply::Done)
    }
    /// The device checkpoint is not what was written any more, and each other state may not be: nothing is there, or nothing but
    /// zeros, or a part of it.
    pub(super) fn tear(&mut self, rng: &mut Rng) {
        let others = [&mut self.cpus, &mut self.memory, &mut self.allocated, &mut self.actuated];
        let others = others.into_iter().filter(|_| rng.one_in(2)).flatten().collect::<Vec<_>>();
        for state in self.checkpoint.iter_mut().chain(others) {
            let length = state.len();
            match rng.below(3) {
                0 => state.clear(),
                1 => *state = vec![0; length],
                _ => state.truncate(length / 2),
            }
        }
    }
    pub(super) fn power_off(&mut self) {
        self.mounts.clear();
        self.files.clear();
        self.staged.clear();
        self.rack.power_off(self.node);
    }
}
