//! The control groups that the pods' own are in, with what each may have of the machine.
//!
//! Guaranteed pods lie right below the root, the others in a group for their class. Under contention a group has its share
//! of the CPUs by what its pods request: those that request nothing have next to nothing together, however many they are
//! (kubelet `cm/qos_container_manager_linux.go`). All pods together have no more memory and processes than
//! what is not kept back, unless nobody wants that enforced (`enforceNodeAllocatable: [none]`); a bound that was set before goes then.

use carrack_engine::Time;

use super::{Fx, KubeletCore, Owner, Wake};
use crate::amount::Amounts;
use crate::effects::{Op, OpId, Outcome};
use crate::runtime::PodCgroup;
use crate::spec::{pod, resources};

/// What is known of these groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// As they were written last.
    written: Option<Vec<PodCgroup>>,
    busy: Option<(OpId, Vec<PodCgroup>)>,
    retry_at: Time,
    /// Pods came or went since it was looked at, or the machine has become another.
    pub due: bool,
}

impl KubeletCore {
    /// Writes the groups if they are to be other ones.
    pub(super) fn write_groups(&mut self, now: Time, fx: &mut Fx) {
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
