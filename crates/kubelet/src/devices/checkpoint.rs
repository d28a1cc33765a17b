//! The device manager's checkpoint, in the format of upstream's `kubelet_internal_checkpoint`
//! (kubernetes pkg/kubelet/cm/devicemanager/checkpoint).
//!
//! Upstream's checksum is a hash of a Go debug print of the data, type names included; [`checksum`] makes the same
//! text, so that either kubelet takes over from the other. In a file whose checksum is wrong the
//! holdings are believed (a device given twice is worse than one kept too long), the grants are not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

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
    device_ids: Option<BTreeMap<String, Option<Vec<String>>>>,
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
                let mut ids: BTreeMap<String, Option<Vec<String>>> = BTreeMap::new();
                for id in &allocation.ids {
                    let node = ids.entry(numa_of(resource, id).to_string()).or_default();
                    node.get_or_insert_default().push(id.clone());
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
    let data = Data {
        entries: Some(entries),
        registered: Some(registered.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect()),
    };
    let file = File { checksum: checksum(&data), data };
    // Strings and numbers alone: this cannot fail.
    serde_json::to_vec(&file).unwrap_or_default()
}

/// Upstream's checksum: FNV-1a, 32 bits, of what go-spew prints for the data with `%#v` and sorted keys.
fn checksum(data: &Data) -> u64 {
    let mut text = String::from("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)");
    match &data.entries {
        None => text.push_str("<nil>"),
        Some(entries) => spaced(&mut text, "[", entries, entry_text),
    }
    text.push_str(" RegisteredDevices:(map[string][]string)");
    match &data.registered {
        None => text.push_str("<nil>"),
        Some(lists) => spaced(&mut text, "map[", lists, |text, (name, ids)| {
            text.push_str(name);
            text.push(':');
            list_text(text, ids.as_deref());
        }),
    }
    text.push('}');
    hash_of_print(&text)
}

/// FNV-1a, 32 bits: what upstream makes of such a print.
pub(crate) fn hash_of_print(text: &str) -> u64 {
    u64::from(text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
}

/// A map as it is in such a print.
pub(crate) fn printed_map<K: Display, V: Display>(entries: impl IntoIterator<Item = (K, V)>) -> String {
    let pairs: Vec<String> = entries.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("map[{}]", pairs.join(" "))
}

fn entry_text(text: &mut String, e: &Entry) {
    for (field, value) in
        [("{PodUID", &e.pod_uid), (" ContainerName", &e.container_name), (" ResourceName", &e.resource_name)]
    {
        text.push_str(field);
        text.push_str(":(string)");
        text.push_str(value);
    }
    text.push_str(" DeviceIDs:(checkpoint.DevicesPerNUMA)");
    match &e.device_ids {
        None => text.push_str("<nil>"),
        Some(nodes) => {
            // The keys are numbers in Go, and sorted as such.
            let mut nodes: Vec<_> = nodes.iter().collect();
            nodes.sort_by_key(|(node, _)| node.parse::<i64>().unwrap_or(i64::MAX));
            spaced(text, "map[", nodes, |text, (node, ids)| {
                text.push_str(node);
                text.push(':');
                list_text(text, ids.as_deref());
            });
        }
    }
    text.push_str(" AllocResp:([]uint8)");
    match e.alloc_resp.as_ref().and_then(|r| STANDARD.decode(r).ok()) {
        None => text.push_str("<nil>"),
        Some(bytes) => spaced(text, "[", bytes, |text, byte| text.push_str(&byte.to_string())),
    }
    text.push('}');
}

fn list_text(text: &mut String, ids: Option<&[String]>) {
    match ids {
        None => text.push_str("<nil>"),
        Some(ids) => spaced(text, "[", ids, |text, id| text.push_str(id)),
    }
}

fn spaced<T>(text: &mut String, open: &str, all: impl IntoIterator<Item = T>, each: impl Fn(&mut String, T)) {
    text.push_str(open);
    for (n, one) in all.into_iter().enumerate() {
        if n > 0 {
            text.push(' ');
        }
        each(text, one);
    }
    text.push(']');
}

/// Reads holdings and the names of resources that were registered.
///
/// # Errors
/// [`CheckpointError::Json`] when the file is something else.
pub fn decode(bytes: &[u8]) -> Result<(Allocations, BTreeSet<String>), CheckpointError> {
    let file: File = serde_json::from_slice(bytes)?;
    let intact = file.checksum == checksum(&file.data);
    if !intact {
        tracing::error!("the device checkpoint's checksum is wrong: what plugins granted is asked for again");
    }
    let mut allocations = Allocations::new();
    for e in file.data.entries.into_iter().flatten() {
        // An answer that does not decode is as good as none: the plugin is asked again.
        let reply = e
            .alloc_resp
            .filter(|text| intact && !text.is_empty())
            .and_then(|text| STANDARD.decode(text).ok())
            .and_then(|bytes| proto::ContainerAllocateResponse::decode(bytes.as_slice()).ok())
            .map(from_proto);
        allocations.entry(e.pod_uid.into()).or_default().entry(e.container_name).or_default().insert(
            e.resource_name,
            Allocation {
                ids: e.device_ids.into_iter().flatten().filter_map(|(_, v)| v).flatten().collect(),
                reply,
                on: None,
            },
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that upstream kubelets wrote, as found in public manuals.
    const WRITTEN_UPSTREAM: [&str; 2] = [
        r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}"#,
    ];

    #[test]
    fn upstream_files_verify_and_are_written_the_same() {
        for text in WRITTEN_UPSTREAM {
            let file: File = serde_json::from_str(text).unwrap();
            assert_eq!(checksum(&file.data), file.checksum, "{text}");
        }
        let (allocations, advertised) = decode(WRITTEN_UPSTREAM[1].as_bytes()).unwrap();
        let env = &allocations["bf52b2cd-b611-4e79-86b1-280b283185c3"]["check"]["nvidia.com/gpu"];
        assert_eq!(env.reply.as_ref().unwrap().env["NVIDIA_VISIBLE_DEVICES"], "tegra");
        assert_eq!(advertised, BTreeSet::from(["nvidia.com/gpu".to_owned()]));
        let registered = BTreeMap::from([("nvidia.com/gpu".to_owned(), vec!["tegra".to_owned()])]);
        let again = encode(&allocations, &registered, |_, _| -1);
        assert_eq!(String::from_utf8(again).unwrap(), WRITTEN_UPSTREAM[1]);
    }

    #[test]
    fn a_wrong_checksum_keeps_holdings_and_voids_grants() {
        let text = WRITTEN_UPSTREAM[1].replace("3660592824", "1");
        let (allocations, _) = decode(text.as_bytes()).unwrap();
        let held = &allocations["bf52b2cd-b611-4e79-86b1-280b283185c3"]["check"]["nvidia.com/gpu"];
        assert_eq!((held.ids.len(), &held.reply), (1, &None));
    }
}
