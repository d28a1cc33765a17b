//! The control groups that the pods' own are in, with what each may have of the machine.
//!
//! Guaranteed pods lie right below the root, the others in a group for their class. Under contention a group has its share
//! of the CPUs by what its pods request: those that request nothing have next to nothing together, however many they are
//! (kubelet `cm/qos_container_manager_linux.go`). All pods together have no more memory and processes than
//! what is not kept back, unless nobody wants that enforced (`enforceNodeAllocatable: [none]`); a bound that was set before goes then.
//!
//! ```text
//!  a pod is gone, or the kubelet starts ─▶ groups of pods that are not here are removed ─▶ one stays: again after a while
//! ```
//!
//! A pod's own group goes with the pod, but not if something in it has yet to end, and an orphan's class is not known. So what is
//! there is held against who is here (kubelet `cleanupOrphanedPodCgroups`). While that goes on nobody who came meanwhile is given a
//! group: it would be taken from him.

use std::collections::BTreeSet;

use carrack_engine::Time;

use super::{Fx, KubeletCore, Owner, Wake};
use crate::amount::Amounts;
use crate::effects::{Op, OpId, Outcome};
use crate::runtime::{PodCgroup, Uid};
use crate::spec::{pod, resources};

/// What is known of these groups.
#[derive(Debug)]
pub(super) struct Groups {
    /// As they were written last.
    written: Option<Vec<PodCgroup>>,
    busy: Option<(OpId, Vec<PodCgroup>)>,
    retry_at: Time,
    /// Pods came or went since it was looked at, or the machine has become another.
    pub due: bool,
    /// A pod may have left its group behind.
    pub sweep_due: bool,
    /// Those are being removed, but for the groups of these pods.
    sweep: Option<(OpId, BTreeSet<Uid>)>,
    sweep_at: Time,
}

impl Default for Groups {
    /// An earlier life of the kubelet may have left some.
    fn default() -> Self {
        let at = Time::default();
        Self { written: None, busy: None, retry_at: at, due: false, sweep_due: true, sweep: None, sweep_at: at }
    }
}

impl KubeletCore {
    /// Removes what pods have left behind. Who is here has to be known for it.
    fn sweep_groups(&mut self, now: Time, fx: &mut Fx) {
        let knows = self.loaded && self.listed.is_some() && self.pods.synced() && self.statics.read();
        if !self.groups.sweep_due || !knows || self.groups.sweep.is_some() || now < self.groups.sweep_at {
            return;
        }
        self.groups.sweep_due = false;
        let keep: BTreeSet<Uid> =
            self.workers.keys().chain(self.runtime.keys()).chain(&self.unread_pods).cloned().collect();
        let op = Op::SweepGroups { root: self.config.cgroup_root.clone(), keep: keep.clone() };
        self.groups.sweep = Some((self.op(Owner::Groups, op, fx), keep));
    }

    /// Whether a pod's group would be taken from it if it was made now.
    pub(super) fn is_swept(&self, uid: &Uid) -> bool {
        self.groups.sweep.as_ref().is_some_and(|(_, keep)| !keep.contains(uid))
    }

    fn groups_swept(&mut self, now: Time, keep: &BTreeSet<Uid>, outcome: &Outcome) {
        // Who was made to wait.
        self.dirty.extend(self.workers.keys().filter(|uid| !keep.contains(*uid)).cloned());
        match outcome {
            Ok(_) => self.groups.sweep_at = Time::default(),
            Err(error) => {
                if self.groups.sweep_at == Time::default() {
                    tracing::warn!(%error, "control groups of pods that are gone stay for now");
                }
                (self.groups.sweep_due, self.groups.sweep_at) = (true, now + self.config.status_period);
                self.wake(self.groups.sweep_at, Wake::Groups);
            }
        }
    }

    /// Writes the groups if they are to be other ones.
    pub(super) fn write_groups(&mut self, now: Time, fx: &mut Fx) {
        self.sweep_groups(now, fx);
        if !self.groups.due || !self.loaded || self.groups.busy.is_some() || now < self.groups.retry_at {
            return;
        }
        self.groups.due = false;
        let mut burstable = Amounts::new();
        for w in self.workers.values().filter(|w| w.counts() && pod::qos_class(&w.pod) == "Burstable") {
            pod::add(&mut burstable, &pod::requests(&w.pod));
        }
        let wanted = resources::groups(&self.config, &self.host, burstable.get("cpu").copied().unwrap_or(0));
        if self.groups.written.as_ref() != Some(&wanted) {
            let id = self.op(Owner::Groups, Op::WriteGroups(wanted.clone()), fx);
            self.groups.busy = Some((id, wanted));
        }
    }

    pub(super) fn groups_written(&mut self, now: Time, id: OpId, outcome: &Outcome) {
        if let Some((_, keep)) = self.groups.sweep.take_if(|(op, _)| *op == id) {
            self.groups_swept(now, &keep, outcome);
            return;
        }
        let Some((_, groups)) = self.groups.busy.take_if(|(op, _)| *op == id) else { return };
        self.groups.due = true;
        match outcome {
            Ok(_) => {
                self.groups.written = Some(groups);
                self.groups.retry_at = Time::default();
            }
            Err(error) => {
                if self.groups.retry_at == Time::default() {
                    tracing::warn!(%error, "the control groups of the pods' classes were not written");
                }
                self.groups.retry_at = now + self.config.status_period;
                self.wake(self.groups.retry_at, Wake::Groups);
            }
        }
    }
}
