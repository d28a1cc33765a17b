//! Memory of NUMA nodes, brought about: it is on disk what is kept for a container before the container is made and bound to the
//! nodes.
//!
//! A container that runs is not moved: what it has is where it took it, and the kernel would have to carry it over. What is
//! assigned to one that began without (the policy was another one, or the disk has forgotten) is kept from then on, and binds the
//! container when it starts again.

use carrack_engine::{EventRecord, Time};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::checkpoint::Checkpoint;
use super::worker::{Worker, in_order};
use super::{Fx, KubeletCore, Owner, Wake};
use crate::config::NodeConfig;
use crate::effects::{Op, Outcome};
use crate::eviction::Signal;
use crate::memory::{MEMORY, Memory, Sizes};
use crate::planted::Planted;
use crate::runtime::{HostFacts, Uid};
use crate::spec::pod;
use crate::topology::Hint;

/// The memory manager, and how far its state on disk is behind.
#[derive(Debug, Default)]
pub(super) struct Numa {
    pub memory: Memory,
    pub checkpoint: Checkpoint,
}

/// How much memory the node keeps back from pods in all: what is reserved, and what the hard threshold leaves free.
pub(super) fn kept_back(config: &NodeConfig, host: &HostFacts) -> Sizes {
    let reserved = config.reserved.get(MEMORY).copied().unwrap_or(0) / 1000;
    let threshold = config.eviction.hard.get(&Signal::MemoryAvailable);
    let threshold = threshold.map_or(0, |least| least.of(host.memory_bytes));
    let all = u64::try_from(reserved).unwrap_or(0).saturating_add(threshold);
    Sizes::from([(MEMORY.to_owned(), all)])
}

impl KubeletCore {
    /// What memory is kept for whom, for those who check invariants.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.numa.memory
    }

    /// Takes over what was on disk, and the machine's memory.
    pub(super) fn load_memory(&mut self, state: Option<&[u8]>, fx: &mut Fx) {
        let state = state.filter(|_| self.planted != Some(Planted::ForgottenMemory));
        let is_anothers = self.numa.memory.load(state).unwrap_or_else(|error| {
            tracing::error!(%error, "starting with no memory kept for containers");
            true
        });
        let kept_back = kept_back(&self.config, &self.host);
        if let Err(why) = self.numa.memory.set_machine(&self.host.numa_memory, &kept_back) {
            fx.exit(why);
        }
        let is_behind = self.numa.memory.assigns() && state != Some(self.numa.memory.checkpoint().as_slice());
        if is_anothers || is_behind {
            self.memory_changed();
        }
    }

    /// For whom memory is kept has changed, or the machine.
    pub(super) fn memory_changed(&mut self) {
        self.numa.checkpoint.touch();
    }

    /// The machine's memory may have become another: huge pages were reserved, or a part was put in.
    pub(super) fn see_memory(&mut self) {
        let kept_back = kept_back(&self.config, &self.host);
        match self.numa.memory.set_machine(&self.host.numa_memory, &kept_back) {
            Ok(true) => self.memory_changed(),
            Ok(false) => {}
            Err(why) => tracing::error!(why, "the memory manager does not follow the machine"),
        }
    }

    /// What memory is to be kept for a container.
    pub(super) fn own_memory(&self, pod: &Pod, c: &Container) -> Sizes {
        if self.numa.memory.assigns() { pod::own_memory(pod, c) } else { Sizes::new() }
    }

    /// Counts a pod for which the node as a whole has too little. Upstream asks the memory manager before it looks at that, and its
    /// tests look for the counts (`test/e2e_node/memory_manager_metrics_test.go`).
    pub(super) fn memory_refused(&mut self, pod: &Pod) {
        if in_order(pod).any(|c| !self.own_memory(pod, c).is_empty()) {
            self.numa.memory.refused();
            self.show_counts();
        }
    }

    /// Shows what is counted, though nothing is held by anybody that was not before.
    pub(super) fn show_counts(&mut self) {
        self.published_devices = u64::MAX;
    }

    /// Keeps memory for containers of a pod that began here before and has none. Nothing of it is rejected for that.
    pub(super) fn adopt_memory(&mut self, now: Time, uid: &Uid, w: &Worker, fx: &mut Fx) {
        if !self.numa.memory.assigns() || self.planted == Some(Planted::ForgottenMemory) {
            return;
        }
        for need in self.needs(&w.pod).into_iter().filter(|need| !need.memory.is_empty()) {
            if self.numa.memory.own(uid, &need.container).is_some() {
                continue;
            }
            // Where its CPUs are, if that can be.
            let near = Hint { nodes: self.cpus.nodes_of(uid, &need.container), preferred: false };
            let memory = &mut self.numa.memory;
            let assigned = memory.assign(uid, &need.container, &need.memory, near, &need.over);
            match assigned.or_else(|_| memory.assign(uid, &need.container, &need.memory, Hint::NOWHERE, &need.over)) {
                Ok(()) => self.memory_changed(),
                Err(refusal) => {
                    let message = format!("Container {} may have memory of all nodes: {refusal}", need.container);
                    self.event(now, EventRecord::warning(w.pod.as_ref(), "NoExclusiveMemory", message), fx);
                }
            }
        }
    }

    /// Whether a container may be made, as far as its memory goes: what is kept for it is on disk.
    pub(super) fn may_have_memory(&self, uid: &Uid, name: &str) -> bool {
        self.numa.memory.own(uid, name).is_none() || !self.numa.checkpoint.is_behind()
    }

    /// Writes the memory manager's state if it is behind.
    pub(super) fn save_memory(&mut self, now: Time, fx: &mut Fx) {
        if self.loaded && self.numa.checkpoint.may_save(now) {
            let id = self.op(Owner::MemoryState, Op::SaveMemory(self.numa.memory.checkpoint()), fx);
            self.numa.checkpoint.saving(id);
        }
    }

    pub(super) fn memory_saved(&mut self, now: Time, outcome: &Outcome) {
        match self.numa.checkpoint.saved(now, outcome.is_ok()) {
            Some(at) => {
                tracing::error!(?outcome, "the memory manager's state was not written");
                self.wake(at, Wake::Cpus);
            }
            None => self.wake_those_who_wait_for_cpus(),
        }
    }
}
