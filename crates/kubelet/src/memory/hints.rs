//! Sets of NUMA nodes that would do for a container or a whole pod, and which of them is taken (`calculateHints` and `Allocate`
//! of `policy_static.go` upstream).

use super::{Memory, Refusal, Sizes, Tables, tables};
use crate::runtime::Uid;
use crate::topology::{Hint, Nodes};

impl Memory {
    /// Sets of nodes that have as much for a container; none where none have. `over` is as for [`Self::assign`].
    #[must_use]
    pub fn hints(&self, uid: &str, asks: &Sizes, over: &[String]) -> Vec<Hint> {
        self.hints_in(&self.tables(), uid, asks, over)
    }

    fn hints_in(&self, tables: &Tables, uid: &str, asks: &Sizes, over: &[String]) -> Vec<Hint> {
        let all = Nodes::of(tables.keys().map(|number| i64::from(*number)));
        let mut least = all.count();
        let mut out = Vec::new();
        for nodes in all.subsets() {
            let ever = |kind: &str| tables::sum(tables, nodes, kind, |table| table.allocatable);
            if asks.iter().any(|(kind, bytes)| ever(kind) < *bytes) {
                continue;
            }
            least = least.min(nodes.count());
            let free = |kind: &str| tables::sum(tables, nodes, kind, |table| table.free);
            let has = |kind: &str| free(kind).saturating_add(self.again(uid, over, nodes, kind));
            if tables::go_together(tables, nodes) && asks.iter().all(|(kind, bytes)| has(kind) >= *bytes) {
                out.push(nodes);
            }
        }
        out.into_iter().map(|nodes| Hint { nodes: Some(nodes), preferred: nodes.count() == least }).collect()
    }

    /// What is kept on exactly these nodes for containers of the pod that are over before this one starts.
    fn again(&self, uid: &str, over: &[String], nodes: Nodes, kind: &str) -> u64 {
        let of_pod = self.assigned.get(uid);
        let blocks = over.iter().filter_map(|name| of_pod?.get(name)).flatten();
        blocks
            .filter(|block| block.nodes == nodes && block.kind == kind)
            .map(|block| block.bytes)
            .fold(0, u64::saturating_add)
    }

    /// The nodes to bind a container to. What the topology manager came to may be a part of what is needed: then others are
    /// added. It may also be a part of a group, from which upstream takes memory all the same; here the whole group is taken.
    pub(super) fn choose(&self, uid: &Uid, asks: &Sizes, hint: Hint, over: &[String]) -> Result<Nodes, Refusal> {
        let tables = self.tables();
        let (nodes, preferred) = match hint.nodes {
            Some(nodes) => (nodes, hint.preferred),
            None => {
                let found = best(self.hints_in(&tables, uid, asks, over), Nodes::default()).ok_or(Refusal::Nowhere)?;
                if hint.preferred && !found.1 {
                    return Err(Refusal::Apart);
                }
                found
            }
        };
        let go_together = tables::go_together(&tables, nodes);
        let has = |kind: &str| tables::sum(&tables, nodes, kind, |table| table.free);
        if go_together && asks.iter().all(|(kind, bytes)| has(kind) >= *bytes) {
            return Ok(nodes);
        }
        let wider = best(self.hints_in(&tables, uid, asks, over), nodes);
        let lacking = if go_together { Refusal::TooFew } else { Refusal::Mixed };
        let (wider, is_preferred) = wider.ok_or(lacking)?;
        if preferred && !is_preferred {
            return Err(Refusal::TooWide);
        }
        Ok(wider)
    }
}

/// The best hint that has all of these nodes, and whether it is preferred: a preferred one before others, then the one of the
/// fewest nodes.
fn best(hints: Vec<Hint>, nodes: Nodes) -> Option<(Nodes, bool)> {
    let named = hints.into_iter().filter_map(|hint| Some((hint.nodes?, hint.preferred)));
    let wide = named.filter(|(of_hint, _)| nodes.within(*of_hint));
    wide.min_by_key(|(of_hint, preferred)| (!preferred, of_hint.count(), *of_hint))
}
