//! The kubelet's checkpoint of devices, as far as it says which container has which.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_deviceplugin::ContainerAllocateResponse;
use prost::Message as _;
use serde::Deserialize;

/// Name of the file in the directory of plugin sockets.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Devices of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// UID of the pod.
    pub uid: String,
    /// Name of the container.
    pub container: String,
    /// The devices.
    pub ids: BTreeSet<String>,
    /// The environment that the plugin granted; none while it has not granted anything.
    pub env: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
}
#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
}
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    ids: Option<BTreeMap<String, Option<Vec<String>>>>,
    #[serde(rename = "AllocResp")]
    reply: Option<String>,
}

/// Reads who holds what of a resource.
///
/// # Errors
/// It is no such file.
pub fn read(bytes: &[u8], resource: &str) -> Result<Vec<Held>, String> {
    let file: File = serde_json::from_slice(bytes).map_err(|e| format!("the kubelet's checkpoint: {e}"))?;
    let entries = file.data.entries.into_iter().flatten().filter(|e| e.resource == resource);
    let held = |e: Entry| {
        let reply = e.reply.filter(|text| !text.is_empty()).and_then(|text| STANDARD.decode(text).ok());
        let reply = reply.and_then(|bytes| ContainerAllocateResponse::decode(bytes.as_slice()).ok());
        Held {
            uid: e.uid,
            container: e.container,
            ids: e.ids.into_iter().flatten().filter_map(|(_, ids)| ids).flatten().collect(),
            env: reply.map(|reply| reply.envs.into_iter().collect()),
        }
    };
    Ok(entries.map(held).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_file_is_read() {
        let text = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"check","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"},{"PodUID":"v","ContainerName":"c","ResourceName":"x","DeviceIDs":null,"AllocResp":null}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}"#;
        let held = read(text.as_bytes(), "nvidia.com/gpu").expect("a checkpoint");
        assert_eq!(held.len(), 1);
        assert_eq!((held[0].uid.as_str(), held[0].ids.len()), ("u", 1));
        assert_eq!(held[0].env.as_ref().expect("granted")["NVIDIA_VISIBLE_DEVICES"], "tegra");
        assert_eq!(read(text.as_bytes(), "x").expect("a checkpoint")[0].env, None);
        assert_eq!(read(br#"{"Data":{"PodDeviceEntries":null}}"#, "x"), Ok(vec![]));
        assert!(read(b"", "x").is_err());
    }
}
