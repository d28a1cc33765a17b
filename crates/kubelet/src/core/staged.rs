//! Volumes of the node as a whole: what [`StagedVolumes`](crate::volumes::StagedVolumes) asks for is started here.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;
use carrack_types::resource::Object as _;
use carrack_types::volume::{Users, VOLUME_USERS, digest, users};

use super::{Fx, KubeletCore, Owner, Wake};
use crate::effects::{Op, OpId, Outcome};
use crate::planted::Planted;
use crate::records::VOLUME_PREFIX;
use crate::volumes::{Found, StageAction, Staging, Told, Use};

/// How [`Said`](super::node::Said) names a user of a volume.
pub(super) fn user_name(id: &str, user: &str) -> String {
    format!("{id}\n{user}")
}

fn record_name(id: &str) -> String {
    format!("{VOLUME_PREFIX}{}", digest(id))
}

impl KubeletCore {
    /// Takes over the records of the node's volumes.
    pub(super) fn restore_staged(&mut self, records: &BTreeMap<String, Vec<u8>>, found: Option<&Found>) {
        for (name, body) in records.iter().filter(|(name, _)| name.starts_with(VOLUME_PREFIX)) {
            match serde_json::from_slice::<Staging>(body) {
                Ok(staging) => {
                    let is_there = found.is_some_and(|found| found.is_staged(&staging, &self.host.boot_id));
                    self.volumes.node.restore(staging, is_there);
                }
                // Without its record it stays as it is: nothing here can name it.
                Err(error) => tracing::error!(record = name, %error, "a volume's record cannot be read"),
            }
        }
        self.staged_due = true;
    }

    /// Every pod that may use a volume of the node is known: by a complete list, by readable records, and
    /// nothing runs here that has no record.
    fn users_known(&self) -> bool {
        self.pods.synced()
            && self.listed.is_some()
            && !self.records_broken
            && self.runtime.keys().all(|uid| self.workers.get(uid).is_some_and(|w| w.record_saved.is_some()))
    }

    /// What the Node is to say of who may have its volumes. What it says of pods that may be unknown here stays.
    pub(super) fn volume_users(&self) -> Users {
        let mut all = self.volumes.users_in_use();
        if !self.users_known() {
            let said = self.node.seen.as_ref().and_then(|node| users(node.annotation(VOLUME_USERS)));
            for (id, users) in said.into_iter().flatten() {
                if let Some(of) = all.get_mut(&id) {
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
                    (s.id.clone(), Op::SaveRecord { name: record_name(&s.id), body })
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
        let in_use = self.volumes.node.in_use();
        if !in_use.eq(told.iter().map(String::as_str)) || named.unwrap_or_default() != self.volume_users() {
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
