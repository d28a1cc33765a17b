//! Hints for devices, and which devices to take for them (kubelet `cm/devicemanager/topology_hints.go`).

use std::collections::{BTreeMap, BTreeSet};

use super::{Hint, Nodes};
use crate::devices::Device;

fn nodes_of(device: &Device) -> Nodes {
    Nodes::of(device.numa_nodes.iter().copied())
}

/// Sets of nodes that have `count` devices: all of `reusable` and enough of `available`. None where the devices are
/// nowhere in particular.
#[must_use]
pub fn hints(
    all: Nodes,
    devices: &BTreeMap<String, Device>,
    available: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    count: usize,
) -> Option<Vec<Hint>> {
    let place = |id: &String| devices.get(id).map(nodes_of).unwrap_or_default().and(all);
    if devices.keys().all(|id| place(id).count() == 0) {
        return None;
    }
    let mut out = Vec::new();
    let mut least = all.count();
    for nodes in all.subsets() {
        if devices.keys().filter(|id| place(id).meets(nodes)).count() >= count {
            least = least.min(nodes.count());
        }
        let again = reusable.iter().filter(|id| place(id).meets(nodes)).count();
        let elsewhere = reusable.iter().any(|id| place(id).count() > 0 && !place(id).meets(nodes));
        let more = available.difference(reusable).filter(|id| place(id).meets(nodes)).count();
        if !elsewhere && again + more >= count {
            out.push(nodes);
        }
    }
    Some(out.into_iter().map(|nodes| Hint { nodes: Some(nodes), preferred: nodes.count() == least }).collect())
}

/// Takes `count` devices: those that can be used again, then those on the wanted nodes, then others. Where there is a
/// choice, nodes with fewer of them are emptied first.
#[must_use]
pub fn choose(
    wanted: Option<Nodes>,
    devices: &BTreeMap<String, Device>,
    available: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    count: usize,
) -> BTreeSet<String> {
    let place = |id: &String| devices.get(id).map(nodes_of).unwrap_or_default();
    let crowd = |nodes: Nodes| available.iter().filter(|id| place(id) == nodes).count();
    let mut rest: Vec<&String> = available.difference(reusable).collect();
    rest.sort_by_cached_key(|id| {
        let nodes = place(id);
        let away = wanted.is_some_and(|wanted| !nodes.meets(wanted));
        (away, nodes.count() == 0, wanted.map_or(0, |_| crowd(nodes)), (*id).clone())
    });
    reusable.iter().filter(|id| available.contains(*id)).chain(rest).take(count).cloned().collect()
}
