//! The CPU manager's state on disk, in the format of upstream's `cpu_manager_state`
//! (kubernetes pkg/kubelet/cm/cpumanager/state/checkpoint.go, version 2, which later ones read and write beside their own).
//!
//! As for the device manager, the checksum is a hash of a Go debug print, made again here, and holdings are believed
//! whatever it says: a CPU given twice is worse than one kept too long.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Assignments, CpuSet};
use crate::devices::{hash_of_print, printed_map};

/// What is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The policy that wrote it.
    pub policy: String,
    /// CPUs that containers shared.
    pub shared: CpuSet,
    /// Who had which for himself.
    pub assigned: Assignments,
    /// Whether the checksum is right.
    pub intact: bool,
}

/// Why a state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is not the JSON that it should be.
    #[error("the CPU manager's state is not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// A set of CPUs is none.
    #[error("the CPU manager's state is not readable: {0}")]
    Cpus(#[from] super::NoCpuSet),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    policy_name: String,
    // Upstream's decoder does not mind the case, and its own examples have another one.
    #[serde(alias = "defaultCPUSet")]
    default_cpu_set: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    checksum: u64,
}

/// FNV-1a, 32 bits, of what go-spew prints for the data with `%#v` and sorted keys.
fn checksum(file: &File, type_name: &str) -> u64 {
    let text = format!(
        "(*state.{type_name}){{PolicyName:(string){} DefaultCPUSet:(string){} \
         Entries:(map[string]map[string]string){} Checksum:(checksum.Checksum)0}}",
        file.policy_name,
        file.default_cpu_set,
        printed_map(file.entries.iter().map(|(uid, cpus)| (uid, printed_map(cpus))))
    );
    hash_of_print(&text)
}

/// Writes the state.
#[must_use]
pub fn encode(policy: &str, shared: &CpuSet, assigned: &Assignments) -> Vec<u8> {
    let of_pod =
        |cpus: &BTreeMap<String, CpuSet>| cpus.iter().map(|(name, set)| (name.clone(), set.to_string())).collect();
    let mut file = File {
        policy_name: policy.to_owned(),
        default_cpu_set: shared.to_string(),
        entries: assigned.iter().map(|(uid, cpus)| (uid.to_string(), of_pod(cpus))).collect(),
        checksum: 0,
    };
    file.checksum = checksum(&file, "CPUManagerCheckpoint");
    // Strings and numbers alone: this cannot fail.
    serde_json::to_vec(&file).unwrap_or_default()
}

/// Reads the state.
///
/// # Errors
/// When it is not JSON, or names no CPUs.
pub fn decode(bytes: &[u8]) -> Result<State, StateError> {
    let file: File = serde_json::from_slice(bytes)?;
    let mut assigned = Assignments::new();
    for (uid, cpus) in &file.entries {
        for (container, set) in cpus {
            assigned.entry(uid.as_str().into()).or_default().insert(container.clone(), set.parse()?);
        }
    }
    // Without one it is accepted, as upstream accepts it.
    let intact = file.checksum == 0
        || ["CPUManagerCheckpoint", "CPUManagerCheckpointV2"].iter().any(|name| checksum(&file, name) == file.checksum);
    Ok(State { policy: file.policy_name, shared: file.default_cpu_set.parse()?, assigned, intact })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States with checksums as upstream's kubelet writes them.
    const WRITTEN_UPSTREAM: [&str; 2] = [
        r#"{"policyName":"none","defaultCPUSet":"4-6","entries":{},"checksum":354655845}"#,
        r#"{"policyName":"none","defaultCPUSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499}"#,
    ];

    #[test]
    fn upstream_states_verify_and_are_written_the_same() {
        for text in WRITTEN_UPSTREAM {
            let state = decode(text.as_bytes()).unwrap();
            assert!(state.intact, "{text}");
            let again = String::from_utf8(encode(&state.policy, &state.shared, &state.assigned)).unwrap();
            let expected = text.replace("CPUSet", "CpuSet").replace("\"entries\":{},", "");
            assert_eq!(again, expected);
        }
        let state = decode(WRITTEN_UPSTREAM[1].as_bytes()).unwrap();
        assert_eq!(state.assigned["pod"]["container1"].to_string(), "4-6");
    }

    #[test]
    fn holdings_are_believed_whatever_the_checksum() {
        for (from, to, intact) in [("3610638499", "1", false), ("3610638499", "0", true), ("", "", true)] {
            let text = WRITTEN_UPSTREAM[1].replace(from, to);
            let text = if from.is_empty() { WRITTEN_UPSTREAM[1].to_owned() } else { text };
            let state = decode(text.as_bytes()).unwrap();
            assert_eq!((state.intact, state.assigned["pod"].len()), (intact, 2), "{text}");
        }
        for text in ["{", "7", &WRITTEN_UPSTREAM[1].replace("4-6", "asd")] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }
}
