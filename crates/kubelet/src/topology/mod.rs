//! Topology manager: whether what a container gets can lie together on NUMA nodes
//! (<https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/>, kubelet `cm/topologymanager`).
//!
//! Who hands something out gives hints: sets of NUMA nodes that would do, and whether a set is as small as it could be.
//! [`merge`] takes one hint of each and looks for nodes that all of them have in common; the policy says whether the
//! best of these is good enough. Upstream tries every combination; here what combinations come to is kept as a set of
//! nodes and a flag, of which there are few.

mod hints;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use hints::{choose, hints};

use crate::cpus::CpuSet;

/// Most NUMA nodes for which sets of nodes are tried, as upstream has it.
pub const MAX_NODES: usize = 8;

/// A set of NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nodes(u64);

impl Nodes {
    /// These; numbers that no node has are left out.
    #[must_use]
    pub fn of(nodes: impl IntoIterator<Item = i64>) -> Self {
        let bit = |n: i64| u32::try_from(n).ok().and_then(|n| 1_u64.checked_shl(n)).unwrap_or(0);
        Self(nodes.into_iter().map(bit).fold(0, |all, bit| all | bit))
    }
    /// How many.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
    /// Those in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Whether both have one in common.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// Whether this has only nodes of the other.
    #[must_use]
    pub fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }
    /// Their numbers, in ascending order.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |number| (self.0 >> number) & 1 == 1)
    }
    /// As the kernel writes them: `0-1,4`.
    #[must_use]
    pub fn list(self) -> String {
        self.numbers().collect::<CpuSet>().to_string()
    }
    /// All sets of these nodes that are not empty.
    pub(crate) fn subsets(self) -> impl Iterator<Item = Self> {
        // Counts through the bits of the set alone; after the whole set comes the empty one.
        let mut next = Some(self.0 & self.0.wrapping_neg()).filter(|bits| *bits != 0);
        std::iter::from_fn(move || {
            let bits = next?;
            next = Some(bits.wrapping_sub(self.0) & self.0).filter(|bits| *bits != 0);
            Some(Self(bits))
        })
    }
}

impl FromIterator<Nodes> for Nodes {
    fn from_iter<T: IntoIterator<Item = Self>>(all: T) -> Self {
        Self(all.into_iter().fold(0, |sum, nodes| sum | nodes.0))
    }
}

/// Nodes that would do for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The nodes; none where it does not matter.
    pub nodes: Option<Nodes>,
    /// Whether fewer nodes could never do.
    pub preferred: bool,
}

impl Hint {
    /// Any nodes will do.
    pub const ANY: Self = Self { nodes: None, preferred: true };
    /// None will do well.
    pub const NOWHERE: Self = Self { nodes: None, preferred: false };
}

/// What a node insists on (`topologyManagerPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nothing.
    #[default]
    None,
    /// The best there is.
    BestEffort,
    /// As few nodes as the machine allows.
    Restricted,
    /// One node.
    SingleNumaNode,
}

/// What is laid together (`topologyManagerScope`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each container for itself.
    #[default]
    Container,
    /// The whole pod.
    Pod,
}

impl Policy {
    /// By its name in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "" | "none" => Self::None,
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            _ => return None,
        })
    }
    /// Its name there.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleNumaNode => "single-numa-node",
        }
    }
}

impl Scope {
    /// By its name in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "" | "container" => Self::Container,
            "pod" => Self::Pod,
            _ => return None,
        })
    }
    /// Its name there.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }
}

/// How good a hint is: the smallest is the best.
fn rank(hint: (Nodes, bool), least: u32) -> (bool, u8, u32, Nodes) {
    let (nodes, preferred) = hint;
    let count = nodes.count();
    if preferred {
        return (false, 0, count, nodes);
    }
    // Where nothing is preferred, those are best that are as wide as the widest of the smallest hints, then narrower
    // ones, the wider the better, then wider ones, the narrower the better (upstream's `HintMerger.compare`).
    match count.cmp(&least) {
        std::cmp::Ordering::Equal => (true, 0, 0, nodes),
        std::cmp::Ordering::Less => (true, 1, u32::MAX - count, nodes),
        std::cmp::Ordering::Greater => (true, 2, count, nodes),
    }
}

/// The best hint for all resources together, each with the hints given for it, and whether the policy is content.
#[must_use]
pub fn merge(policy: Policy, all: Nodes, resources: &[Vec<Hint>]) -> (Hint, bool) {
    if policy == Policy::None {
        return (Hint::ANY, true);
    }
    let alone = |hint: &&Hint| {
        policy != Policy::SingleNumaNode || (hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1))
    };
    let resources: Vec<Vec<Hint>> =
        resources.iter().map(|hints| hints.iter().filter(alone).copied().collect()).collect();
    let smallest = |hints: &Vec<Hint>| hints.iter().filter_map(|hint| hint.nodes).map(Nodes::count).min();
    let least = resources.iter().filter_map(smallest).max().unwrap_or(0);
    // What combinations come to so far: nodes in common, whether any resource named nodes, whether all were preferred
    // and named the same.
    let mut sums = BTreeSet::from([(all, false, true)]);
    for hints in &resources {
        let mut next = BTreeSet::new();
        for (nodes, named, preferred) in sums {
            for hint in hints {
                next.insert(match hint.nodes {
                    None => (nodes, named, preferred && hint.preferred),
                    // Equal sets have themselves in common.
                    Some(other) => {
                        let same = !named || other.and(all) == nodes;
                        (nodes.and(other), true, preferred && hint.preferred && same)
                    }
                });
            }
        }
        sums = next;
    }
    let sums = sums.into_iter().filter(|(nodes, ..)| nodes.count() > 0);
    let best = sums.map(|(nodes, _, preferred)| (nodes, preferred)).min_by_key(|hint| rank(*hint, least));
    let (nodes, preferred) = best.unwrap_or((all, false));
    let nodes = Some(nodes).filter(|nodes| policy != Policy::SingleNumaNode || *nodes != all);
    (Hint { nodes, preferred }, preferred || policy == Policy::BestEffort)
}
