//! The device manager's checkpoint, in the format of upstream's `kubelet_internal_checkpoint`
//! (kubernetes pkg/kubelet/cm/devicemanager/checkpoint).
//!
//! Upstream's checksum hashes a Go debug print of the data, type names included. It is written here
//! as 0 and not checked when read: the file is renamed into place whole, so it cannot be half there,
//! and an upstream kubelet that takes over reads 0 as corrupt and starts with no allocations.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::{AllocateReply, Allocation, Allocations, PluginMount};
use crate::runtime::DeviceNode;
use carrack_deviceplugin as proto;

/// Why a checkpoint could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is not the JSON that it should be.
    #[error("the device checkpoint is not readable: {0}")]
    Json(#[from] serde_json::Error),
}

#[derive(Serialize, Deserialize)]
struct File {
    #[serde(rename = "Data")]
    data: Data,
    #[serde(rename = "Checksum")]
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
    #[serde(rename = "RegisteredDevices")]
    registered: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<String, Vec<String>>>,
    alloc_resp: Option<String>,
}

/// Writes holdings and registered devices. `numa_of` gives the NUMA node of a device, -1 for none.
#[must_use]
pub fn encode(
    allocations: &Allocations,
    registered: &BTreeMap<String, Vec<String>>,
    numa_of: impl Fn(&str, &str) -> i64,
) -> Vec<u8> {
    let mut entries = Vec::new();
    for (uid, containers) in allocations {
        for (container, resources) in containers {
            for (resource, allocation) in resources {
                let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for id in &allocation.ids {
                    ids.entry(numa_of(resource, id).to_string()).or_default().push(id.clone());
                }
                entries.push(Entry {
                    pod_uid: uid.to_string(),
                    container_name: container.clone(),
                    resource_name: resource.clone(),
                    device_ids: Some(ids),
                    alloc_resp: allocation.reply.as_ref().map(|r| STANDARD.encode(to_proto(r).encode_to_vec())),
                });
            }
        }
    }
    let file = File {
        data: Data {
            entries: Some(entries),
            registered: Some(registered.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect()),
        },
        checksum: 0,
    };
    // Strings and numbers alone: this cannot fail.
    serde_json::to_vec(&file).unwrap_or_default()
}

/// Reads holdings and the names of resources that were registered.
///
/// # Errors
/// [`CheckpointError::Json`] when the file is something else.
pub fn decode(bytes: &[u8]) -> Result<(Allocations, BTreeSet<String>), CheckpointError> {
    let file: File = serde_json::from_slice(bytes)?;
    let mut allocations = Allocations::new();
    for e in file.data.entries.into_iter().flatten() {
        // An answer that does not decode is as good as none: the plugin is asked again.
        let reply = e
            .alloc_resp
            .filter(|text| !text.is_empty())
            .and_then(|text| STANDARD.decode(text).ok())
            .and_then(|bytes| proto::ContainerAllocateResponse::decode(bytes.as_slice()).ok())
            .map(from_proto);
        allocations.entry(e.pod_uid.into()).or_default().entry(e.container_name).or_default().insert(
            e.resource_name,
            Allocation { ids: e.device_ids.into_iter().flatten().flat_map(|(_, v)| v).collect(), reply },
        );
    }
    Ok((allocations, file.data.registered.into_iter().flatten().map(|(k, _)| k).collect()))
}

/// To the wire's form.
#[must_use]
pub(crate) fn to_proto(r: &AllocateReply) -> proto::ContainerAllocateResponse {
    proto::ContainerAllocateResponse {
        envs: r.env.clone(),
        mounts: r
            .mounts
            .iter()
            .map(|m| proto::Mount {
                container_path: m.container_path.clone(),
                host_path: m.host_path.clone(),
                read_only: m.read_only,
            })
            .collect(),
        devices: r
            .devices
            .iter()
            .map(|d| proto::DeviceSpec {
                container_path: d.container_path.clone(),
                host_path: d.host_path.clone(),
                permissions: d.permissions.clone(),
            })
            .collect(),
        annotations: r.annotations.clone(),
        cdi_devices: r.cdi_devices.iter().map(|name| proto::CdiDevice { name: name.clone() }).collect(),
    }
}

/// From the wire's form.
#[must_use]
pub(crate) fn from_proto(r: proto::ContainerAllocateResponse) -> AllocateReply {
    AllocateReply {
        env: r.envs,
        mounts: r
            .mounts
            .into_iter()
            .map(|m| PluginMount { container_path: m.container_path, host_path: m.host_path, read_only: m.read_only })
            .collect(),
        devices: r
            .devices
            .into_iter()
            .map(|d| DeviceNode {
                container_path: d.container_path,
                host_path: d.host_path,
                permissions: d.permissions,
            })
            .collect(),
        annotations: r.annotations,
        cdi_devices: r.cdi_devices.into_iter().map(|d| d.name).collect(),
    }
}
