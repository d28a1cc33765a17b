//! What NUMA nodes have, what of it is kept, and what is left (`NUMANodeState` upstream).

use std::collections::{BTreeMap, BTreeSet};

use super::{Block, MEMORY, Machine, Sizes};
use crate::topology::Nodes;

/// Memory of one kind on one node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Table {
    /// All of it.
    pub total: u64,
    /// What no pod has.
    pub system_reserved: u64,
    /// What can be kept for containers at all.
    pub allocatable: u64,
    /// What is.
    pub reserved: u64,
    /// What is left.
    pub free: u64,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTables {
    /// How many blocks are on it.
    pub blocks: u64,
    /// By kind.
    pub kinds: BTreeMap<String, Table>,
    /// The group that it is of; itself where it is of none.
    pub cells: Nodes,
}

/// By the nodes' numbers.
pub type Tables = BTreeMap<u32, NodeTables>;

/// Nodes of which nothing is kept. What huge pages take is no memory of the other kind (`getDefaultMachineState` upstream).
pub(super) fn empty(machine: &Machine, reserved: &BTreeMap<u32, Sizes>) -> Tables {
    let of_node = |(number, sizes): (&u32, &Sizes)| {
        let huge: u64 = sizes.iter().filter(|(kind, _)| *kind != MEMORY).map(|(_, bytes)| bytes).sum();
        let of_kind = |(kind, total): (&String, &u64)| {
            let system_reserved = reserved.get(number).and_then(|of| of.get(kind)).copied().unwrap_or(0);
            let of_others = if kind == MEMORY { huge } else { 0 };
            let allocatable = total.saturating_sub(system_reserved).saturating_sub(of_others);
            let table = Table { total: *total, system_reserved, allocatable, reserved: 0, free: allocatable };
            (kind.clone(), table)
        };
        let cells = Nodes::of([i64::from(*number)]);
        (*number, NodeTables { blocks: 0, kinds: sizes.iter().map(of_kind).collect(), cells })
    };
    machine.iter().map(of_node).collect()
}

/// Notes what is kept: of each of its nodes as much as there is, from the first on.
pub(super) fn hold(tables: &mut Tables, block: &Block) {
    let mut left = block.bytes;
    for number in block.nodes.numbers() {
        let Some(node) = tables.get_mut(&number) else { continue };
        node.blocks += 1;
        node.cells = block.nodes;
        if let Some(table) = node.kinds.get_mut(&block.kind) {
            let part = left.min(table.free);
            table.free -= part;
            table.reserved += part;
            left -= part;
        }
    }
}

/// The sum over some nodes, of one kind.
pub(super) fn sum(tables: &Tables, nodes: Nodes, kind: &str, of: fn(&Table) -> u64) -> u64 {
    let on = nodes.numbers().filter_map(|number| tables.get(&number)?.kinds.get(kind));
    on.map(of).fold(0, u64::saturating_add)
}

/// Whether these nodes can be bound to together, by what is on them already: a single one that is of no group, or nodes that
/// are this group, or of which nothing is kept.
pub(super) fn go_together(tables: &Tables, nodes: Nodes) -> bool {
    let is_single = nodes.count() == 1;
    nodes.numbers().filter_map(|number| tables.get(&number)).all(|node| match is_single {
        true => node.cells.count() <= 1,
        false => node.blocks == 0 || node.cells == nodes,
    })
}

/// What the state on disk had otherwise, for people; nothing where it said nothing.
pub(super) fn differences(told: &Tables, found: &Tables) -> Vec<String> {
    let mut out = Vec::new();
    if told.is_empty() {
        return out;
    }
    let numbers: BTreeSet<&u32> = told.keys().chain(found.keys()).collect();
    for number in numbers {
        let (before, now) = match (told.get(number), found.get(number)) {
            (Some(before), Some(now)) => (before, now),
            (before, _) => {
                let what = if before.is_some() { "is gone" } else { "is new" };
                out.push(format!("NUMA node {number} {what}"));
                continue;
            }
        };
        let kinds: BTreeSet<&String> = before.kinds.keys().chain(now.kinds.keys()).collect();
        for kind in kinds {
            let of = |node: &NodeTables| node.kinds.get(kind).copied().unwrap_or_default();
            let (before, now) = (of(before), of(now));
            for (what, before, now) in [
                ("in all", before.total, now.total),
                ("reserved", before.system_reserved, now.system_reserved),
                ("for containers", before.allocatable, now.allocatable),
                ("kept for them", before.reserved, now.reserved),
            ] {
                if before != now {
                    out.push(format!("{kind} of NUMA node {number} {what}: {before} bytes then, {now} now"));
                }
            }
        }
    }
    out
}
