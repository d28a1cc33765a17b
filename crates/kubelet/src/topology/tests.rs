//! Hints and their merge against all combinations, tried one by one.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Hint, Nodes, Policy, Scope, choose, hints, merge};
use crate::devices::Device;

fn hint(nodes: &[i64], preferred: bool) -> Hint {
    Hint { nodes: Some(Nodes::of(nodes.iter().copied())), preferred }
}

#[test]
fn policies_and_scopes_by_name() {
    for (name, want) in [
        ("", Some(Policy::None)),
        ("none", Some(Policy::None)),
        ("best-effort", Some(Policy::BestEffort)),
        ("restricted", Some(Policy::Restricted)),
        ("single-numa-node", Some(Policy::SingleNumaNode)),
        ("best", None),
    ] {
        assert_eq!(Policy::named(name), want, "{name}");
    }
    for (name, want) in [("", Some(Scope::Container)), ("pod", Some(Scope::Pod)), ("node", None)] {
        assert_eq!(Scope::named(name), want, "{name}");
    }
}

/// The cases of upstream's tests of its policies that concern two and four nodes.
#[test]
fn hints_are_merged_as_upstream_merges_them() {
    let two = &[0, 1][..];
    let check = |policy: Policy, all: &[i64], resources: &[Vec<Hint>], want: (Hint, bool)| {
        assert_eq!(merge(policy, Nodes::of(all.iter().copied()), resources), want, "{policy:?} {resources:?}");
    };
    let (best, strict, single) = (Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode);
    // Nobody cares.
    check(strict, two, &[], (hint(&[0, 1], true), true));
    check(single, two, &[vec![Hint::ANY]], (Hint::ANY, true));
    // Nobody can.
    check(best, two, &[vec![Hint::NOWHERE]], (hint(&[0, 1], false), true));
    check(strict, two, &[vec![Hint::NOWHERE]], (hint(&[0, 1], false), false));
    check(single, two, &[vec![Hint::NOWHERE]], (Hint::NOWHERE, false));
    // One resource, one node.
    let free = vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
    for policy in [best, strict, single] {
        check(policy, two, std::slice::from_ref(&free), (hint(&[0], true), true));
        check(policy, two, &[free.clone(), vec![hint(&[1], true), hint(&[0, 1], false)]], (hint(&[1], true), true));
        check(policy, two, &[free.clone(), vec![Hint::ANY]], (hint(&[0], true), true));
    }
    // Two resources on different nodes.
    let apart = [vec![hint(&[0], true), hint(&[0, 1], false)], vec![hint(&[1], true), hint(&[0, 1], false)]];
    check(best, two, &apart, (hint(&[0], false), true));
    check(strict, two, &apart, (hint(&[0], false), false));
    check(single, two, &apart, (Hint::NOWHERE, false));
    // So many that they take two nodes: restricted is content, a single node is not.
    let wide = [vec![hint(&[0, 1], true)]];
    check(strict, two, &wide, (hint(&[0, 1], true), true));
    check(single, two, &wide, (Hint::NOWHERE, false));
    // Preferred of different width are not the same place.
    let mixed = [vec![hint(&[0, 1], true)], vec![hint(&[0], true), hint(&[1], true)]];
    check(strict, two, &mixed, (hint(&[0], false), false));
    // Nothing preferred: as wide as the widest of the smallest, where that can be had.
    let four = &[0, 1, 2, 3][..];
    let odd = [
        vec![hint(&[0, 1], false), hint(&[0, 1, 2, 3], false)],
        vec![hint(&[0, 1, 2, 3], false), hint(&[2, 3], false)],
    ];
    check(best, four, &odd, (hint(&[0, 1], false), true));
}

/// Every combination, one by one, compared pairwise as upstream compares.
fn literal(policy: Policy, all: Nodes, resources: &[Vec<Hint>]) -> (Hint, bool) {
    let single = policy == Policy::SingleNumaNode;
    let resources: Vec<Vec<Hint>> = resources
        .iter()
        .map(|hints| {
            let fits = |h: &&Hint| !single || (h.preferred && h.nodes.is_none_or(|n| n.count() == 1));
            hints.iter().filter(fits).copied().collect()
        })
        .collect();
    let mut widest = 0;
    for hints in &resources {
        widest = widest.max(hints.iter().filter_map(|h| h.nodes).map(Nodes::count).min().unwrap_or(0));
    }
    let mut combinations: Vec<Vec<Hint>> = vec![Vec::new()];
    for hints in &resources {
        combinations = combinations.iter().flat_map(|c| hints.iter().map(|h| [c.as_slice(), &[*h]].concat())).collect();
    }
    let mut best: Option<(Nodes, bool)> = None;
    for combination in combinations {
        let named: Vec<Nodes> = combination.iter().filter_map(|h| h.nodes).collect();
        let preferred = combination.iter().all(|h| h.preferred) && named.windows(2).all(|w| w[0] == w[1]);
        let nodes = named.iter().fold(all, |sum, n| sum.and(*n));
        if nodes.count() == 0 {
            continue;
        }
        let candidate = (nodes, preferred);
        let Some(current) = best else {
            best = Some(candidate);
            continue;
        };
        let narrower = |a: Nodes, b: Nodes| (a.count(), a) < (b.count(), b);
        let (is, was) = (candidate.0.count(), current.0.count());
        let better = match (candidate.1, current.1) {
            (true, false) => true,
            (false, true) => false,
            (true, true) => narrower(candidate.0, current.0),
            (false, false) if was > widest => narrower(candidate.0, current.0),
            (false, false) if was == widest => is == widest && candidate.0 < current.0,
            (false, false) => is <= widest && (is > was || (is == was && candidate.0 < current.0)),
        };
        if better {
            best = Some(candidate);
        }
    }
    let (nodes, preferred) = best.unwrap_or((all, false));
    let nodes = if single && nodes == all { None } else { Some(nodes) };
    (Hint { nodes, preferred }, preferred || policy == Policy::BestEffort)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::BestEffort), Just(Policy::Restricted), Just(Policy::SingleNumaNode)]
}

fn any_hint(nodes: u32) -> impl Strategy<Value = Hint> {
    let set = (1_u64..1 << nodes).prop_map(|bits| Some(Nodes(bits)));
    (prop_oneof![9 => set, 1 => Just(None)], any::<bool>()).prop_map(|(nodes, preferred)| Hint { nodes, preferred })
}

/// Devices on up to four nodes, some nowhere, some on two; which are free, and which can be used again.
fn machine() -> impl Strategy<Value = (BTreeMap<String, Device>, BTreeSet<String>, BTreeSet<String>, usize)> {
    let device = (prop::collection::btree_set(0_i64..4, 0..3), 0_u8..4);
    (prop::collection::vec(device, 1..9), 1_usize..5).prop_map(|(list, count)| {
        let (mut devices, mut free, mut again) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for (i, (nodes, state)) in list.into_iter().enumerate() {
            let id = format!("d{i}");
            let device = Device { id: id.clone(), healthy: true, numa_nodes: nodes.into_iter().collect() };
            devices.insert(id.clone(), device);
            if state > 0 {
                free.insert(id.clone());
            }
            if state == 1 && again.len() < count {
                again.insert(id);
            }
        }
        (devices, free, again, count)
    })
}

proptest! {
    #[test]
    fn merging_finds_what_all_combinations_have(
        policy in policies(),
        resources in prop::collection::vec(prop::collection::vec(any_hint(4), 0..6), 0..4),
    ) {
        let all = Nodes::of(0..4);
        prop_assert_eq!(merge(policy, all, &resources), literal(policy, all, &resources));
    }

    #[test]
    fn what_is_hinted_can_be_had((devices, free, again, count) in machine()) {
        let all = Nodes::of(0..4);
        let place = |id: &String| Nodes::of(devices[id].numa_nodes.iter().copied());
        let Some(found) = hints(all, &devices, &free, &again, count) else {
            prop_assert!(devices.keys().all(|id| place(id).count() == 0));
            return Ok(());
        };
        // Every set of nodes, one by one.
        let enough = |nodes: Nodes, ids: &mut dyn Iterator<Item = &String>| ids.filter(|id| place(id).meets(nodes)).count() >= count;
        let least = (1..16).map(Nodes).filter(|n| enough(*n, &mut devices.keys())).map(Nodes::count).min().unwrap_or(4);
        for nodes in (1..16).map(Nodes) {
            let stranded = again.iter().any(|id| place(id).count() > 0 && !place(id).meets(nodes));
            let can = enough(nodes, &mut free.iter()) && !stranded;
            let got = found.iter().find(|h| h.nodes == Some(nodes));
            prop_assert_eq!(got.map(|h| h.preferred), can.then_some(nodes.count() == least), "{:?}", nodes);
            if can {
                // Whoever goes by the hint gets devices on these nodes alone, but for those used again that are nowhere.
                let ids = choose(Some(nodes), &devices, &free, &again, count);
                prop_assert_eq!(ids.len(), count);
                prop_assert!(ids.iter().all(|id| place(id).meets(nodes) || again.contains(id)), "{:?} {:?}", nodes, ids);
            }
        }
    }

    /// A pod of one container is admitted on a single node exactly if some node has enough of everything.
    #[test]
    fn a_single_node_is_found_where_there_is_one(
        (a, a_free, _, a_count) in machine(),
        (b, b_free, _, b_count) in machine(),
    ) {
        let all = Nodes::of(0..4);
        let none = BTreeSet::new();
        let resources: Vec<Vec<Hint>> = [(&a, &a_free, a_count), (&b, &b_free, b_count)]
            .into_iter()
            .map(|(devices, free, count)| hints(all, devices, free, &none, count).unwrap_or_else(|| vec![Hint::ANY]))
            .collect();
        let (hint, content) = merge(Policy::SingleNumaNode, all, &resources);
        let on = |devices: &BTreeMap<String, Device>, ids: &BTreeSet<String>, n: i64| {
            ids.iter().filter(|id| devices[*id].numa_nodes.contains(&n)).count()
        };
        let nowhere = |devices: &BTreeMap<String, Device>| devices.values().all(|d| d.numa_nodes.is_empty());
        let fits = |devices, ids, count, n| nowhere(devices) || on(devices, ids, n) >= count;
        let some = (0..4).any(|n| fits(&a, &a_free, a_count, n) && fits(&b, &b_free, b_count, n));
        prop_assert_eq!(content, some, "{:?} {:?}", hint, resources);
    }
}
