//! Volumes of the node as a whole: what [`StagedVolumes`](crate::volumes::StagedVolumes) asks for is started here.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;
use carrack_types::resource::Object as _;
use carrack_types::volume::{Users, VOLUME_USERS, digest, users};

use super::worker::Worker;
use super::{Fx, KubeletCore, Owner, Wake};
use crate::effects::{Loaded, Op, OpId, Outcome};
use crate::planted::Planted;
use crate::records::{DEVICES, DevicesRecord, POD_PREFIX, PodRecord, VOLUME_PREFIX};
use crate::runtime::Uid;
use crate::volumes::{Found, StageAction, Staging, Told, Use};

/// How [`Said`](super::node::Said) names a user of a volume.
pub(super) fn user_name(id: &str, user: &str) -> String {
    format!("{id}\n{user}")
}

fn record_name(id: &str) -> String {
    format!("{VOLUME_PREFIX}{}", digest(id))
}

impl KubeletCore {
    /// A record that cannot be read and holds nothing: one of a pod of which the disk shows nothing, or one of an earlier boot, whose
    /// mounts ended with it. The boot is recorded once a kubelet has taken over what it found, so what is mounted below its directory
    /// may be this boot's whatever is recorded; where the mounts cannot be read, the record of the boot alone tells.
    pub(super) fn void_record(&self, loaded: &Loaded) -> Option<String> {
        let found = loaded.found.as_ref();
        let recorded = loaded.records.get(DEVICES).and_then(|body| serde_json::from_slice::<DevicesRecord>(body).ok());
        let is_new_boot = recorded.is_some_and(|record| record.boot_id != loaded.host.boot_id);
        let is_void = |name: &str, body: &[u8]| {
            if let Some(uid) = name.strip_prefix(POD_PREFIX) {
                let dir = self.config.pod_dir(uid);
                self.planted != Some(Planted::UnreadPodsHold)
                    && found.map_or(is_new_boot, |found| !found.has_any_below(&dir))
                    && serde_json::from_slice::<PodRecord>(body).is_err()
            } else {
                self.planted != Some(Planted::UnreadVolumesHold)
                    && name.starts_with(VOLUME_PREFIX)
                    && is_new_boot
                    && found.is_none_or(|found| !found.has_mount_below(&self.config.root_dir))
                    && serde_json::from_slice::<Staging>(body).is_err()
            }
        };
        loaded.records.iter().find(|(name, body)| is_void(name, body)).map(|(name, _)| name.clone())
    }

    /// Takes over the records of the node's volumes.
    pub(super) fn restore_staged(&mut self, records: &BTreeMap<String, Vec<u8>>, found: Option<&Found>) {
        for (name, body) in records.iter().filter(|(name, _)| name.starts_with(VOLUME_PREFIX)) {
            match serde_json::from_slice::<Staging>(body) {
                Ok(staging) => {
                    let is_there = found.is_some_and(|found| found.is_staged(&staging, &self.host.boot_id));
                    self.volumes.node.restore(staging, is_there);
                }
                // Without its record it stays as it is, and where it is: the Node may name it.
                Err(error) => {
                    tracing::error!(record = name, %error, "a volume's record cannot be read: it stays in use");
                    self.unread_volumes.insert(name.clone());
                }
            }
        }
        self.staged_due = true;
    }

    /// The record of a pod cannot be read, or takes the place of such a one. Where the disk shows nothing of the pod's volumes there
    /// is nothing that it could name; else the node's volumes stay where they are until that is so, or all of the pod is known again.
    pub(super) fn pod_unread(&mut self, uid: Uid, found: Option<&Found>) {
        let dir = self.config.pod_dir(&uid);
        let holds = self.planted == Some(Planted::UnreadPodsHold);
        if holds || found.is_none_or(|found| found.has_any_below(&dir)) {
            tracing::error!(pod = %uid, dir, "what a pod has is not known: all volumes of the node stay staged");
            self.unread_pods.insert(uid);
        }
    }

    /// Forgets that the record of a pod could not be read, once what its containers have is there and was written down anew.
    /// All that is ever mounted for a pod is in its spec, which does not change. Until then the new record says that it lacks
    /// something, or a kubelet that is killed meanwhile would believe it.
    fn settle_unread(&mut self) {
        if self.planted == Some(Planted::UnreadPodsHold) {
            return;
        }
        let is_known = |uid: &&Uid| {
            let runs = self.workers.get(*uid).filter(|w| w.stopping.is_none() && w.record_saved.is_some());
            runs.is_some_and(|w| self.volumes.ready(&w.pod).is_ok())
        };
        let known: Vec<Uid> = self.unread_pods.iter().filter(is_known).cloned().collect();
        for uid in known {
            self.unread_pods.remove(&uid);
            self.dirty.insert(uid);
        }
    }

    /// What is told of records that could not be read, for whoever looks why a volume is not given free.
    pub(super) fn unread_told(&self) -> Vec<String> {
        let of_pod = |uid: &Uid| {
            let dir = self.config.pod_dir(uid);
            format!(
                "The record of pod {uid} cannot be read, and {dir} is not empty: volumes of this node stay staged and in use \
                 until the pod runs or is gone. If it is gone, unmount what is below {dir}, remove that, and restart the kubelet"
            )
        };
        let of_volume =
            |name: &String| format!("The record {name} cannot be read: its volume stays in use on this node");
        self.unread_pods.iter().map(of_pod).chain(self.unread_volumes.iter().map(of_volume)).collect()
    }

    /// Every pod that may use a volume of the node is known: by a complete list, by readable records, and
    /// nothing runs here that has no record. Volumes wait for the record, so that who has stopped without one has none.
    pub(super) fn users_known(&self) -> bool {
        let is_known = |w: &Worker| w.record_saved.is_some() || w.stopped_all;
        self.pods.synced()
            && self.listed.is_some()
            && self.unread_pods.is_empty()
            && self.runtime.keys().all(|uid| self.workers.get(uid).is_some_and(is_known))
    }

    /// Whether a volume is one whose record cannot be read: its record is named after it.
    fn is_unread(&self, id: &str) -> bool {
        !self.unread_volumes.is_empty() && self.unread_volumes.contains(&record_name(id))
    }

    /// What the Node is to name in use. What it names and cannot be looked up here stays: whoever takes it for free would pull
    /// the disk away under its mount.
    pub(super) fn volumes_in_use(&self) -> Vec<String> {
        let status = self.node.seen.as_ref().and_then(|node| node.status.as_ref());
        let told = status.and_then(|status| status.volumes_in_use.as_ref());
        let unread = told.into_iter().flatten().map(String::as_str).filter(|id| self.is_unread(id));
        let all: BTreeSet<&str> = self.volumes.node.in_use().chain(unread).collect();
        all.into_iter().map(str::to_owned).collect()
    }

    /// What the Node is to say of who may have its volumes. What it says of pods that may be unknown here stays.
    pub(super) fn volume_users(&self) -> Users {
        let mut all = self.volumes.users_in_use();
        let known = self.users_known();
        if !known || !self.unread_volumes.is_empty() {
            let said = self.node.seen.as_ref().and_then(|node| users(node.annotation(VOLUME_USERS)));
            for (id, users) in said.into_iter().flatten() {
                if self.is_unread(&id) {
                    all.entry(id).or_default().extend(users);
                } else if let Some(of) = all.get_mut(&id).filter(|_| !known) {
                    of.extend(users);
                }
            }
        }
        all
    }

    /// Starts what is to be done about the node's volumes.
    pub(super) fn step_staged(&mut self, now: Time, fx: &mut Fx) {
        if !self.loaded || !std::mem::take(&mut self.staged_due) {
            return;
        }
        self.settle_unread();
        let known = self.users_known();
        let status = self.node.seen.as_ref().and_then(|n| n.status.as_ref());
        let told = status.and_then(|s| s.volumes_in_use.clone()).unwrap_or_default();
        let attached = status.iter().flat_map(|s| s.volumes_attached.iter().flatten());
        let attached: BTreeMap<String, String> = attached.map(|a| (a.name.clone(), a.device_path.clone())).collect();
        let named = self.node.seen.as_ref().and_then(|node| users(node.annotation(VOLUME_USERS)));
        let as_told = (self.planted == Some(Planted::MountsUntold)).then(|| self.volume_users());
        let mut node = std::mem::take(&mut self.volumes.node);
        let said = &self.node.said;
        let users_of = |id: &str| -> BTreeSet<String> {
            let of = named.as_ref().and_then(|named| named.get(id)).into_iter().flatten();
            of.filter(|user| said.stands(&user_name(id, user))).cloned().collect()
        };
        let uses = self.volumes.uses();
        let of = |id: &str| uses.get(id).copied().unwrap_or_default();
        let (actions, newly_told) = node.step(
            now,
            known,
            |id| Use { there: of(id).there && self.planted != Some(Planted::DesiredStateAlone), ..of(id) },
            |id| match &as_told {
                Some(is_to_name) => {
                    let attached = Some(attached.get(id).cloned().unwrap_or_default());
                    Told { in_use: true, attached, users: is_to_name.get(id).cloned().unwrap_or_default() }
                }
                None => Told {
                    in_use: told.iter().any(|t| t == id) && said.stands(id),
                    attached: attached.get(id).cloned(),
                    users: users_of(id),
                },
            },
        );
        self.dirty.extend(newly_told.iter().flat_map(|id| self.volumes.users(id)));
        for action in actions {
            let (id, op) = match action.clone() {
                StageAction::Record(s) => {
                    // Strings and maps of strings: this cannot fail.
                    let body = serde_json::to_vec(&s).unwrap_or_default();
                    let name = record_name(&s.id);
                    // It is known again.
                    self.unread_volumes.remove(&name);
                    (s.id.clone(), Op::SaveRecord { name, body })
                }
                StageAction::Stage(s, inputs) => (s.id.clone(), Op::StageVolume(s, inputs)),
                StageAction::Unstage(s) => (s.id.clone(), Op::UnstageVolume(s)),
                StageAction::Drop(id) => (id.clone(), Op::DropRecord(record_name(&id))),
            };
            let op = self.op(Owner::Staged(id), op, fx);
            node.started(&action, op);
        }
        if let Some(at) = node.next_retry(now) {
            self.wake(at, Wake::Staged);
        }
        self.volumes.node = node;
        if self.volumes_in_use() != told || named.unwrap_or_default() != self.volume_users() {
            self.node.dirty = true;
        }
    }

    /// Something about a volume of the node ended.
    pub(super) fn staged_done(&mut self, now: Time, volume: &str, op: OpId, outcome: &Outcome) {
        self.staged_due = true;
        if let Some(error) = self.volumes.node.done(now, volume, op, outcome) {
            tracing::warn!(volume, error, "a volume of the node is not as it should be");
        }
        self.dirty.extend(self.volumes.users(volume));
    }
}
