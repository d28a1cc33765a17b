//! The memory manager's state on disk, in the format of upstream's `memory_manager_state`
//! (kubernetes pkg/kubelet/cm/memorymanager/state/checkpoint.go, version 1, which later ones read).
//!
//! As for the CPU manager, the checksum is a hash of a Go debug print, made again here, and what is kept is believed whatever it
//! says: memory given twice is worse than memory kept too long.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Assignments, Block, NodeTables, Table, Tables};
use crate::devices::{hash_of_print, printed_map};
use crate::topology::Nodes;

/// What is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The policy that wrote it.
    pub policy: String,
    /// What it found of the machine, and what was left then.
    pub tables: Tables,
    /// What was kept for whom.
    pub assigned: Assignments,
    /// Whether the checksum is right.
    pub intact: bool,
}

/// Why a state could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the memory manager's state is not readable: {0}")]
pub struct StateError(#[from] serde_json::Error);

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    policy_name: String,
    machine_state: Option<BTreeMap<u32, FileNode>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<FileBlock>>>,
    checksum: u64,
    /// The same once more, as later versions have it, which go by that.
    #[serde(skip_serializing)]
    data: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FileNode {
    number_of_assignments: u64,
    memory_map: Option<BTreeMap<String, Table>>,
    cells: Option<Vec<u32>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FileBlock {
    numa_affinity: Vec<u32>,
    #[serde(rename = "type")]
    kind: String,
    size: u64,
}

fn numbers(nodes: Nodes) -> Vec<u32> {
    nodes.numbers().collect()
}

fn nodes(numbers: &[u32]) -> Nodes {
    Nodes::of(numbers.iter().map(|number| i64::from(*number)))
}

fn printed_list(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("[{}]", numbers.join(" "))
}

fn printed_table(t: &Table) -> String {
    format!(
        "<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} Free:(uint64){}}}",
        t.total, t.system_reserved, t.allocatable, t.reserved, t.free
    )
}

fn printed_node(node: &FileNode) -> String {
    let map = |map: &BTreeMap<String, Table>| printed_map(map.iter().map(|(kind, table)| (kind, printed_table(table))));
    format!(
        "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){} Cells:([]int){}}}",
        node.number_of_assignments,
        node.memory_map.as_ref().map_or_else(|| "<nil>".to_owned(), map),
        node.cells.as_deref().map_or_else(|| "<nil>".to_owned(), printed_list)
    )
}

fn printed_blocks(blocks: &[FileBlock]) -> String {
    let block = |b: &FileBlock| {
        let nodes = printed_list(&b.numa_affinity);
        format!("{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){} Size:(uint64){}}}", b.kind, b.size)
    };
    let blocks: Vec<String> = blocks.iter().map(block).collect();
    format!("[{}]", blocks.join(" "))
}

/// FNV-1a, 32 bits, of what go-spew prints for the data with `%#v` and sorted keys. Version 2 has whole pods' memory between the
/// containers' and the checksum, of which there is none unless a gate is open.
fn checksum(file: &File, with_pods: bool) -> u64 {
    let of_pod = |containers: &BTreeMap<String, Vec<FileBlock>>| {
        printed_map(containers.iter().map(|(name, blocks)| (name, printed_blocks(blocks))))
    };
    let machine = file.machine_state.iter().flatten().map(|(number, node)| (number, printed_node(node)));
    let mut text = format!(
        "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap){} \
         Entries:(state.ContainerMemoryAssignments){}",
        file.policy_name,
        printed_map(machine),
        printed_map(file.entries.iter().map(|(uid, containers)| (uid, of_pod(containers))))
    );
    if with_pods {
        text.push_str(" PodEntries:(state.PodMemoryAssignments)map[]");
    }
    text.push_str(" Checksum:(checksum.Checksum)0}");
    hash_of_print(&text)
}

/// Writes the state.
#[must_use]
pub fn encode(policy: &str, tables: &Tables, assigned: &Assignments) -> Vec<u8> {
    let node = |node: &NodeTables| FileNode {
        number_of_assignments: node.blocks,
        memory_map: Some(node.kinds.clone()),
        cells: Some(numbers(node.cells)),
    };
    let block = |b: &Block| FileBlock { numa_affinity: numbers(b.nodes), kind: b.kind.clone(), size: b.bytes };
    let of_pod = |containers: &BTreeMap<String, Vec<Block>>| {
        containers.iter().map(|(name, blocks)| (name.clone(), blocks.iter().map(block).collect())).collect()
    };
    let mut file = File {
        policy_name: policy.to_owned(),
        machine_state: Some(tables.iter().map(|(number, of)| (*number, node(of))).collect()),
        entries: assigned.iter().map(|(uid, containers)| (uid.to_string(), of_pod(containers))).collect(),
        ..File::default()
    };
    file.checksum = checksum(&file, false);
    // Strings and numbers alone: this cannot fail.
    serde_json::to_vec(&file).unwrap_or_default()
}

/// Reads the state.
///
/// # Errors
/// When it is not the JSON that it should be.
pub fn decode(bytes: &[u8]) -> Result<State, StateError> {
    let file: File = serde_json::from_slice(bytes)?;
    if !file.data.is_empty() {
        return Ok(State { intact: true, ..state(&serde_json::from_str(&file.data)?) });
    }
    // Without one it is accepted, as upstream accepts it.
    let intact = file.checksum == 0 || [false, true].iter().any(|pods| checksum(&file, *pods) == file.checksum);
    Ok(State { intact, ..state(&file) })
}

fn state(file: &File) -> State {
    let node = |of: &FileNode| NodeTables {
        blocks: of.number_of_assignments,
        kinds: of.memory_map.clone().unwrap_or_default(),
        cells: nodes(of.cells.as_deref().unwrap_or_default()),
    };
    let block = |b: &FileBlock| Block { nodes: nodes(&b.numa_affinity), kind: b.kind.clone(), bytes: b.size };
    let of_pod = |containers: &BTreeMap<String, Vec<FileBlock>>| {
        containers.iter().map(|(name, blocks)| (name.clone(), blocks.iter().map(block).collect())).collect()
    };
    State {
        policy: file.policy_name.clone(),
        tables: file.machine_state.iter().flatten().map(|(number, of)| (*number, node(of))).collect(),
        assigned: file.entries.iter().map(|(uid, containers)| (uid.as_str().into(), of_pod(containers))).collect(),
        intact: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with a checksum as upstream's kubelet writes it.
    const WRITTEN_UPSTREAM: &str = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;

    #[test]
    fn upstream_states_verify_and_are_written_the_same() {
        let state = decode(WRITTEN_UPSTREAM.as_bytes()).unwrap();
        assert!(state.intact);
        let block = &state.assigned["pod"]["container1"][0];
        assert_eq!((block.nodes, block.kind.as_str(), block.bytes), (Nodes::of([0]), "memory", 512));
        assert_eq!(state.tables[&0].kinds["memory"].free, 1024);
        let again = encode(&state.policy, &state.tables, &state.assigned);
        assert_eq!(String::from_utf8(again).unwrap(), WRITTEN_UPSTREAM);
    }

    #[test]
    fn what_is_kept_is_believed_whatever_the_checksum() {
        let later = serde_json::json!({"policyName": "other", "checksum": 7, "data": WRITTEN_UPSTREAM});
        for (text, intact) in [
            (WRITTEN_UPSTREAM.replace("4215593881", "1"), false),
            (WRITTEN_UPSTREAM.replace("4215593881", "0"), true),
            (WRITTEN_UPSTREAM.replace("\"cells\":[]", "\"cells\":null"), false),
            (later.to_string(), true),
        ] {
            let state = decode(text.as_bytes()).unwrap();
            let blocks = &state.assigned["pod"]["container1"];
            assert_eq!((state.policy.as_str(), state.intact, blocks.len()), ("static", intact, 1), "{text}");
        }
        // None is kept, and nothing is known of the machine.
        let state = decode(br#"{"policyName":"None","machineState":{},"checksum":0}"#).unwrap();
        assert_eq!(state, State { policy: "None".into(), intact: true, ..State::default() });
        for text in ["{", "7", &WRITTEN_UPSTREAM.replace("[0]", "null"), r#"{"data":"{"}"#] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }
}
