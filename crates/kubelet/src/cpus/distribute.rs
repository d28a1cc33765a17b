//! The same number of CPUs from each of several NUMA nodes (upstream's option `distribute-cpus-across-numa`, KEP 2902).
//!
//! Sets of nodes are tried from the smallest that can do. Of those of one size, and of the ways to spread what does not
//! divide, the one is best that leaves the machine's nodes most alike.

use std::collections::BTreeMap;

use super::take::packed;
use super::topology::{Level, Topology};
use super::{CpuSet, Options};

/// Most sets of nodes that are looked at, before CPUs are packed after all.
const MOST_TRIED: usize = 1 << 10;

const NUMA: Level = |place| place.numa;

/// How unlike numbers are: grows with their standard deviation.
fn unlikeness(numbers: impl Iterator<Item = usize> + Clone) -> u64 {
    let n = numbers.clone().count() as u64;
    let sum = numbers.clone().sum::<usize>() as u64;
    let squares = numbers.map(|x| (x as u64).saturating_mul(x as u64)).sum::<u64>();
    n.saturating_mul(squares).saturating_sub(sum.saturating_mul(sum))
}

/// All sets of `size` of these, in order.
fn combinations(of: &[u32], size: usize) -> Vec<Vec<u32>> {
    let mut out = vec![(0, Vec::new())];
    for _ in 0..size {
        let longer = |(from, some): (usize, Vec<u32>)| {
            (from..of.len()).map(move |i| (i + 1, some.iter().copied().chain([of[i]]).collect::<Vec<u32>>()))
        };
        out = out.into_iter().flat_map(longer).take(MOST_TRIED).collect();
    }
    out.into_iter().map(|(_, some)| some).collect()
}

/// A way to share the CPUs out: how many groups of each node.
struct Way {
    left_unlike: u64,
    groups: BTreeMap<u32, usize>,
}

/// Takes CPUs in groups of `group`.
pub(super) fn distributed(
    topology: &Topology,
    free: &CpuSet,
    count: usize,
    group: usize,
    options: Options,
) -> Option<CpuSet> {
    let pack = |free: &CpuSet, count| packed(topology, free, count, options.prefer_one_cache);
    let by_node = topology.groups(free, NUMA);
    if !count.is_multiple_of(group) || by_node.is_empty() {
        return pack(free, count);
    }
    let needed = count / group;
    // What is emptier comes first, as when CPUs are packed.
    let mut nodes: Vec<u32> = by_node.keys().copied().collect();
    nodes.sort_by_key(|node| (by_node[node].len(), *node));
    let each = topology.all().len().div_ceil(group).div_ceil(topology.count(NUMA).max(1)).max(1);
    for size in needed.div_ceil(each)..=needed.min(nodes.len()) {
        let ways =
            combinations(&nodes, size).into_iter().filter_map(|some| share(&by_node, &nodes, &some, needed, group));
        let mut best: Option<Way> = None;
        for way in ways {
            if best.as_ref().is_none_or(|best| way.left_unlike < best.left_unlike) {
                best = Some(way);
            }
        }
        let Some(best) = best else { continue };
        let mut taken = CpuSet::default();
        for (node, groups) in best.groups {
            taken.add(&pack(&by_node[&node], groups * group)?);
        }
        return Some(taken);
    }
    pack(free, count)
}

/// The best way to have `needed` groups of these nodes; none where they cannot be shared out evenly.
fn share(by_node: &BTreeMap<u32, CpuSet>, all: &[u32], some: &[u32], needed: usize, group: usize) -> Option<Way> {
    let has = |node: &u32| by_node.get(node).map_or(0, |cpus| cpus.len() / group);
    let even = needed / some.len().max(1);
    if some.iter().map(has).sum::<usize>() < needed || some.iter().any(|node| has(node) < even) {
        return None;
    }
    let with_more: Vec<u32> = some.iter().copied().filter(|node| has(node) > even).collect();
    let rest = needed - even * some.len();
    let mut best: Option<Way> = None;
    // What is left over goes to as many nodes as possible.
    let sizes = if rest == 0 { 0..=0 } else { 1..=with_more.len() };
    for subset in sizes.rev().flat_map(|size| combinations(&with_more, size)) {
        let mut groups: BTreeMap<u32, usize> = some.iter().map(|node| (*node, even)).collect();
        let mut left = rest;
        while left > 0 {
            let before = left;
            for node in &subset {
                if let Some(taken) = groups.get_mut(node)
                    && left > 0
                    && has(node) > *taken
                {
                    *taken += 1;
                    left -= 1;
                }
            }
            if left == before {
                break;
            }
        }
        if left > 0 {
            continue;
        }
        let stays = |node: &u32| {
            let free = by_node.get(node).map_or(0, CpuSet::len);
            free.saturating_sub(groups.get(node).copied().unwrap_or(0) * group)
        };
        let left_unlike = unlikeness(all.iter().map(stays));
        if best.as_ref().is_none_or(|best| left_unlike < best.left_unlike) {
            best = Some(Way { left_unlike, groups });
        }
    }
    best
}
