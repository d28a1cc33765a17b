//! Both records on disk, in the format of upstream's `allocated_pods_state` and `actuated_pods_state`
//! (`pkg/kubelet/allocation/state/checkpoint.go`), so that either kubelet takes over from the other.
//!
//! Beside upstream's fields, which it reads alone, an entry of what was actuated says which container had it, how the
//! pod's own group is limited, what is being started again, and what was about to be given. As of the other states of this kind, the
//! checksum is a hash of a Go debug print; what is set aside is believed whatever it says.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};

use super::{Actuated, Allocation, Given, GroupLimits};
use crate::devices::hash_of_print;
use crate::runtime::Uid;

/// Why a state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is not the JSON that it should be.
    #[error("the state of the pods' resources is not readable: {0}")]
    Json(#[from] serde_json::Error),
}

#[derive(Serialize, Deserialize)]
struct File {
    data: String,
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Data {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entries: Option<BTreeMap<String, Entry>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    #[serde(rename = "ContainerResources")]
    containers: Option<BTreeMap<String, ResourceRequirements>>,
    #[serde(rename = "PodLevelResources")]
    pod: Option<ResourceRequirements>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    container_ids: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<GroupLimits>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    restarting: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    unsure: BTreeSet<String>,
}

fn encode(entries: BTreeMap<String, Entry>) -> Vec<u8> {
    let entries = Some(entries).filter(|entries| !entries.is_empty());
    // Strings and numbers alone: neither can fail.
    let data = serde_json::to_string(&Data { entries }).unwrap_or_default();
    let checksum = hash_of_print(&format!("(string){data}"));
    serde_json::to_vec(&File { data, checksum }).unwrap_or_default()
}

fn decode(bytes: &[u8]) -> Result<BTreeMap<String, Entry>, StateError> {
    let file: File = serde_json::from_slice(bytes)?;
    if file.checksum != hash_of_print(&format!("(string){}", file.data)) {
        tracing::warn!(
            "the state of the pods' resources has a checksum that is not its own; it is believed all the same"
        );
    }
    let data: Data = serde_json::from_str(&file.data)?;
    Ok(data.entries.unwrap_or_default())
}

/// Writes what is allocated.
#[must_use]
pub fn encode_allocated(all: &BTreeMap<Uid, Allocation>) -> Vec<u8> {
    let entry =
        |a: &Allocation| Entry { containers: Some(a.containers.clone()), pod: a.pod.clone(), ..Entry::default() };
    encode(all.iter().map(|(uid, a)| (uid.to_string(), entry(a))).collect())
}

/// Reads it.
///
/// # Errors
/// When it is not what it should be.
pub fn decode_allocated(bytes: &[u8]) -> Result<BTreeMap<Uid, Allocation>, StateError> {
    let of = |e: Entry| Allocation { containers: e.containers.unwrap_or_default(), pod: e.pod };
    Ok(decode(bytes)?.into_iter().map(|(uid, e)| (uid.into(), of(e))).collect())
}

/// Writes what was actuated.
#[must_use]
pub fn encode_actuated(all: &BTreeMap<Uid, Actuated>) -> Vec<u8> {
    let entry = |a: &Actuated| {
        let ids = a.containers.iter().filter(|(_, given)| !given.id.is_empty());
        Entry {
            containers: Some(
                a.containers.iter().map(|(name, given)| (name.clone(), given.resources.clone())).collect(),
            ),
            pod: a.pod.clone(),
            container_ids: ids.map(|(name, given)| (name.clone(), given.id.clone())).collect(),
            group: a.group,
            restarting: a.restarting.clone(),
            unsure: a.unsure.clone(),
        }
    };
    encode(all.iter().map(|(uid, a)| (uid.to_string(), entry(a))).collect())
}

/// Reads it.
///
/// # Errors
/// When it is not what it should be.
pub fn decode_actuated(bytes: &[u8]) -> Result<BTreeMap<Uid, Actuated>, StateError> {
    let of = |e: Entry| {
        let mut ids = e.container_ids;
        let given = |(name, resources): (String, ResourceRequirements)| {
            let id = ids.remove(&name).unwrap_or_default();
            (name, Given { id, resources })
        };
        let containers = e.containers.unwrap_or_default().into_iter().map(given).collect();
        Actuated { containers, pod: e.pod, group: e.group, restarting: e.restarting, unsure: e.unsure }
    };
    Ok(decode(bytes)?.into_iter().map(|(uid, e)| (uid.into(), of(e))).collect())
}
