//! Memory manager: which containers have memory of NUMA nodes kept for them
//! (<https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/>, kubelet `cm/memorymanager`).
//!
//! ```text
//!  a NUMA node's memory ─┬─ huge pages, by their sizes; of each kind the same:
//!                        ├─ reserved: no pod's
//!                        ├─ kept: some container's, from the pod's admission until its containers are over
//!                        └─ free
//! ```
//!
//! With the policy `Static` a container of a Guaranteed pod is bound to NUMA nodes on which what it asks for is kept for it: on
//! one, or on a group. A node is either of those that have containers of their own, or of one group: who is bound to several
//! nodes may take all of it from any of them. What is kept is on disk before the container is made.
//!
//! Who has how much is all that is remembered. What nodes have left is reckoned from that and from the machine as it is: so
//! nothing is lost in sums that are kept up. What is kept stays so: a restart reads it, and a policy, a reservation or a machine
//! that has become another one meanwhile is told, and changes nothing for who runs (upstream's kubelet does not start then,
//! until the node was drained).
//!
//! This says which nodes a container is to have; who brings it about is `core/memory.rs`.

mod checkpoint;
mod hints;
mod options;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use checkpoint::{State, StateError, decode, encode};
pub use options::{MemoryConfig, Policy, reserve};
pub use tables::{NodeTables, Table, Tables};

use crate::runtime::Uid;
use crate::topology::{Hint, Nodes};

/// The kind of memory that is not huge pages. These are called as their resources are, such as `hugepages-2Mi`.
pub const MEMORY: &str = "memory";

/// Most NUMA nodes whose sets are tried, one by one: more than the topology manager takes, and few enough for that to take
/// milliseconds. Upstream tries them however many there are.
pub const MAX_NODES: usize = 12;

/// Bytes by kind of memory.
pub type Sizes = BTreeMap<String, u64>;

/// What each NUMA node has; of huge pages also the kinds of which it has none.
pub type Machine = BTreeMap<u32, Sizes>;

/// Memory of one kind that is kept for a container on some nodes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The nodes.
    pub nodes: Nodes,
    /// The kind.
    pub kind: String,
    /// How many bytes. Of an init container, what no later container has taken over.
    pub bytes: u64,
}

impl Block {
    /// Hands up to so many bytes over to a later container of its pod on the same nodes. Returns how many.
    fn hand_over(&mut self, nodes: Nodes, kind: &str, most: u64) -> u64 {
        let part = if self.nodes == nodes && self.kind == kind { self.bytes.min(most) } else { 0 };
        self.bytes -= part;
        part
    }
}

/// What is kept for whom: pod, container.
pub type Assignments = BTreeMap<Uid, BTreeMap<String, Vec<Block>>>;

/// Why no memory can be kept for a container, in upstream's words: clients look for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No nodes have enough.
    #[error("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")]
    Nowhere,
    /// Only more nodes than should be needed have.
    #[error("[memorymanager] failed to find the default preferred hint")]
    Apart,
    /// The nodes on which all else lies have too little, and so has what could be added to them.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    TooFew,
    /// The same, if no more nodes are to be added than should be needed.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    TooWide,
    /// The nodes on which all else lies are not for a group, or are of another one.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Mixed,
}

impl Refusal {
    /// Reason of a pod that is rejected for it, and what is said.
    #[must_use]
    pub fn rejection(&self) -> (&'static str, String) {
        ("UnexpectedAdmissionError", format!("Allocate failed due to {self}, which is unexpected"))
    }
}

/// What those who ask are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryView {
    /// What is kept for whom.
    pub assigned: Assignments,
    /// What can be kept at all on each node; nothing where the policy keeps none.
    pub allocatable: Machine,
    /// For how many containers some was to be kept, and for how many in vain.
    pub asked: (u64, u64),
}

/// The memory manager's state.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    config: MemoryConfig,
    machine: Machine,
    assigned: Assignments,
    /// What the state on disk said of the machine, until the machine is known.
    told: Tables,
    asked: (u64, u64),
}

impl Memory {
    /// A manager of a machine that is not known yet.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Takes over what was on disk. Returns whether that has to be written anew, since another policy wrote it.
    ///
    /// # Errors
    /// When it cannot be read: then nothing is kept, as far as anybody knows.
    pub fn load(&mut self, bytes: Option<&[u8]>) -> Result<bool, StateError> {
        let Some(bytes) = bytes else { return Ok(false) };
        let state = decode(bytes)?;
        if !state.intact {
            tracing::warn!("the checksum of the memory manager's state is wrong; what it says is believed");
        }
        if self.assigns() {
            (self.assigned, self.told) = (state.assigned, state.tables);
        }
        let is_anothers = state.policy != self.config.policy.name();
        if is_anothers {
            tracing::info!(
                from = state.policy,
                to = self.config.policy.name(),
                "the memory manager's policy has changed; containers that run stay on the NUMA nodes that they are on"
            );
        }
        Ok(is_anothers)
    }

    /// What the machine's NUMA nodes have, as it is now, and how much of it the node keeps back in all. Returns whether it has
    /// changed. A machine that tells nothing later on is what it was.
    ///
    /// # Errors
    /// What of the configuration does not go with it, for people. Asked at the start alone.
    pub fn set_machine(&mut self, machine: &Machine, kept_back: &Sizes) -> Result<bool, String> {
        if !self.assigns() {
            return Ok(false);
        }
        if self.machine.is_empty() {
            self.config.check(machine, kept_back)?;
        } else if machine.is_empty() || self.machine == *machine {
            return Ok(false);
        }
        self.machine.clone_from(machine);
        let told = std::mem::take(&mut self.told);
        for difference in tables::differences(&told, &self.tables()) {
            tracing::warn!(difference, "the memory manager's state is of another machine or reservation");
        }
        let is_gone = |block: &Block| block.nodes.numbers().any(|number| !machine.contains_key(&number));
        for (uid, container, block) in self.blocks().filter(|(_, _, block)| is_gone(block)) {
            let nodes = block.nodes.list();
            tracing::error!(pod = %uid, container, nodes, "not all NUMA nodes of a container are there any more");
        }
        Ok(true)
    }

    /// Whether memory is kept for containers.
    #[must_use]
    pub fn assigns(&self) -> bool {
        self.config.policy == Policy::Static
    }

    fn blocks(&self) -> impl Iterator<Item = (&Uid, &String, &Block)> {
        let containers =
            self.assigned.iter().flat_map(|(uid, of)| of.iter().map(move |(name, list)| (uid, name, list)));
        containers.flat_map(|(uid, name, list)| list.iter().map(move |block| (uid, name, block)))
    }

    /// What each node has, and has left.
    #[must_use]
    pub fn tables(&self) -> Tables {
        let mut tables = tables::empty(&self.machine, &self.config.reserved);
        for (_, _, block) in self.blocks() {
            tables::hold(&mut tables, block);
        }
        tables
    }

    /// What is kept for a container.
    #[must_use]
    pub fn own(&self, uid: &str, container: &str) -> Option<&[Block]> {
        self.assigned.get(uid)?.get(container).map(Vec::as_slice)
    }

    /// The NUMA nodes that a container is bound to; none where it may have memory of all. Nodes that are gone bind nobody.
    #[must_use]
    pub fn nodes_of(&self, uid: &str, container: &str) -> Option<Nodes> {
        let there = Nodes::of(self.machine.keys().map(|n| i64::from(*n)));
        let nodes: Nodes = self.own(uid, container)?.iter().map(|block| block.nodes.and(there)).collect();
        Some(nodes).filter(|nodes| nodes.count() > 0)
    }

    /// Pods for which some is kept.
    pub fn holders(&self) -> impl Iterator<Item = &Uid> {
        self.assigned.keys()
    }

    /// Keeps for a container what it asks for, on the nodes on which all else of it lies, or on others if these are none. `over`
    /// names the init containers of its pod that are over before it starts: what was kept for them on the same nodes is its own
    /// from now on.
    ///
    /// # Errors
    /// Why nothing is kept.
    pub fn assign(
        &mut self,
        uid: &Uid,
        container: &str,
        asks: &Sizes,
        hint: Hint,
        over: &[String],
    ) -> Result<(), Refusal> {
        self.asked.0 += 1;
        let chosen = self.choose(uid, asks, hint, over);
        if chosen.is_err() {
            self.asked.1 += 1;
        }
        let nodes = chosen?;
        let of_pod = self.assigned.entry(uid.clone()).or_default();
        for (kind, bytes) in asks {
            let mut left = *bytes;
            for name in over {
                for block in of_pod.get_mut(name).into_iter().flatten() {
                    left -= block.hand_over(nodes, kind, left);
                }
            }
        }
        let blocks = asks.iter().map(|(kind, bytes)| Block { nodes, kind: kind.clone(), bytes: *bytes }).collect();
        of_pod.insert(container.to_owned(), blocks);
        Ok(())
    }

    /// Counts a container for which nothing is kept, since the node as a whole has too little for its pod.
    pub fn refused(&mut self) {
        self.asked = (self.asked.0 + 1, self.asked.1 + 1);
    }

    /// The pod's containers are over: what was kept for them is free. Returns whether there was anything.
    pub fn release(&mut self, uid: &str) -> bool {
        self.assigned.remove(uid).is_some()
    }

    /// What is kept for a pod's containers, to be put back by [`Self::put_back`].
    pub(crate) fn held(&self, uid: &str) -> Option<BTreeMap<String, Vec<Block>>> {
        self.assigned.get(uid).cloned()
    }

    /// Takes back what was kept for a pod since.
    pub(crate) fn put_back(&mut self, uid: &Uid, held: Option<BTreeMap<String, Vec<Block>>>) {
        match held {
            Some(held) => drop(self.assigned.insert(uid.clone(), held)),
            None => drop(self.assigned.remove(uid)),
        }
    }

    /// Whether all of these could be had, each for itself, if these pods were gone.
    #[must_use]
    pub fn could_without<'a>(&self, gone: impl Fn(&Uid) -> bool, mut asks: impl Iterator<Item = &'a Sizes>) -> bool {
        let mut without = self.clone();
        without.assigned.retain(|uid, _| !gone(uid));
        without.assigned.len() < self.assigned.len() && asks.all(|sizes| !without.hints("", sizes, &[]).is_empty())
    }

    /// The state as it is kept on disk.
    #[must_use]
    pub fn checkpoint(&self) -> Vec<u8> {
        encode(self.config.policy.name(), &self.tables(), &self.assigned)
    }

    /// A copy for those who ask.
    #[must_use]
    pub fn view(&self) -> MemoryView {
        let of_node = |node: NodeTables| node.kinds.into_iter().map(|(kind, t)| (kind, t.allocatable)).collect();
        MemoryView {
            assigned: self.assigned.clone(),
            allocatable: self.tables().into_iter().map(|(number, node)| (number, of_node(node))).collect(),
            asked: self.asked,
        }
    }
}
