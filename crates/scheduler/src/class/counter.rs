//! How many pods of some kind are in each domain of a topology, kept as nodes change.

use std::collections::BTreeMap;

use crate::tables::{NO_VALUE, PodMatcher, Tables, TopologyId, ValueId};
use crate::{NodeId, NodeInfo};

/// The node is not in any domain that counts.
const OUTSIDE: u32 = u32::MAX;

/// A domain: how many pods count in it, on how many nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Pods.
    pub pods: i64,
    /// Nodes that count.
    pub nodes: u32,
}

/// Counts pods by domain.
#[derive(Debug)]
pub struct Counter {
    /// The label whose values are the domains.
    pub topology: TopologyId,
    /// Each node is a domain of its own.
    pub unique: bool,
    /// A pod counts that all of these mean.
    matchers: Vec<PodMatcher>,
    /// Pods that are being deleted don't count.
    staying_only: bool,
    /// Whether a kind counts, as far as it was asked: 0 unknown, 1 no, 2 yes.
    memo: Vec<u8>,
    per_node: Vec<u32>,
    values: Vec<ValueId>,
    domains: BTreeMap<ValueId, Domain>,
    /// How many domains have each count.
    histogram: BTreeMap<i64, u32>,
    total: i64,
}

impl Counter {
    pub fn new(topology: TopologyId, unique: bool, matchers: Vec<PodMatcher>, staying_only: bool) -> Self {
        Self {
            topology,
            unique,
            matchers,
            staying_only,
            memo: Vec::new(),
            per_node: Vec::new(),
            values: Vec::new(),
            domains: BTreeMap::new(),
            histogram: BTreeMap::new(),
            total: 0,
        }
    }

    /// Whether pods of a kind count.
    pub fn counts(&mut self, kind: u32, tables: &Tables) -> bool {
        let at = kind as usize;
        if self.memo.len() <= at {
            self.memo.resize(tables.kinds.len().max(at + 1), 0);
        }
        match self.memo.get(at) {
            Some(1) => false,
            Some(2) => true,
            _ => {
                let yes = self.counts_slowly(kind, tables);
                if let Some(slot) = self.memo.get_mut(at) {
                    *slot = 1 + u8::from(yes);
                }
                yes
            }
        }
    }
    /// The same without remembering.
    pub fn counts_slowly(&self, kind: u32, tables: &Tables) -> bool {
        tables.kind(kind).is_some_and(|k| self.matchers.iter().all(|m| m.matches(k, &tables.namespaces)))
    }

    /// A node changed; `within` says whether it is one that counts at all.
    pub fn refresh(&mut self, id: NodeId, node: &NodeInfo, within: bool, tables: &Tables) {
        let at = id as usize;
        if self.per_node.len() <= at {
            self.per_node.resize(at + 1, OUTSIDE);
            self.values.resize(at + 1, NO_VALUE);
        }
        let value = node.value(self.topology);
        let pods = if within && value != NO_VALUE && node.exists() {
            let mut pods = 0;
            for (kind, count) in &node.kinds {
                if self.counts(*kind, tables) {
                    pods += if self.staying_only { count.staying } else { count.all };
                }
            }
            pods
        } else {
            OUTSIDE
        };
        let (old, old_value) = (self.per_node[at], self.values[at]);
        if (old, old_value) == (pods, value) {
            return;
        }
        self.per_node[at] = pods;
        self.values[at] = value;
        if old != OUTSIDE {
            self.change(old_value, -i64::from(old), false, pods == OUTSIDE || value != old_value);
        }
        if pods != OUTSIDE {
            self.change(value, i64::from(pods), true, old == OUTSIDE || value != old_value);
        }
    }
    fn change(&mut self, value: ValueId, by: i64, add: bool, node: bool) {
        self.total += by;
        let domain = self.domains.entry(value).or_default();
        if domain.nodes > 0 {
            forget(&mut self.histogram, domain.pods);
        }
        domain.pods += by;
        if node {
            domain.nodes = if add { domain.nodes + 1 } else { domain.nodes.saturating_sub(1) };
        }
        if domain.nodes > 0 {
            *self.histogram.entry(domain.pods).or_default() += 1;
        } else {
            self.domains.remove(&value);
        }
    }

    /// Pods on one node; none where it does not count.
    #[must_use]
    pub fn on(&self, id: NodeId) -> Option<i64> {
        self.per_node.get(id as usize).copied().filter(|n| *n != OUTSIDE).map(i64::from)
    }
    /// Pods in a domain; 0 in one that does not count.
    #[must_use]
    pub fn within(&self, value: ValueId) -> i64 {
        self.domains.get(&value).map_or(0, |d| d.pods)
    }
    /// The least that a domain has; 0 with fewer than `min_domains` domains.
    #[must_use]
    pub fn least(&self, min_domains: i64) -> i64 {
        if i64::try_from(self.domains.len()).unwrap_or(i64::MAX) < min_domains {
            return 0;
        }
        self.histogram.keys().next().copied().unwrap_or(0)
    }
    /// The least, were one domain's count another one.
    #[must_use]
    pub fn least_with(&self, value: ValueId, by: i64, min_domains: i64) -> i64 {
        let Some(domain) = self.domains.get(&value).filter(|_| by != 0) else { return self.least(min_domains) };
        if i64::try_from(self.domains.len()).unwrap_or(i64::MAX) < min_domains {
            return 0;
        }
        let mut others =
            self.histogram.iter().filter(|(pods, n)| **pods != domain.pods || **n > 1).map(|(pods, _)| *pods);
        others.next().map_or(domain.pods + by, |least| least.min(domain.pods + by))
    }
    /// Pods in all domains.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.total
    }
}

fn forget(histogram: &mut BTreeMap<i64, u32>, pods: i64) {
    if let Some(domains) = histogram.get_mut(&pods) {
        *domains -= 1;
        if *domains == 0 {
            histogram.remove(&pods);
        }
    }
}
