//! Documents of the local record: what the kubelet must still know after a restart, without the API.

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::volumes::JournalEntry;

/// Prefix of the names of pod records; the UID follows.
pub const POD_PREFIX: &str = "pod-";
/// Prefix of the names of records of the node's volumes; a digest of the volume's name follows.
pub const VOLUME_PREFIX: &str = "volume-";
/// Name of the device manager's own record.
pub const DEVICES: &str = "devices";

/// What is known of a pod. It is written before anything is done for the pod, and dropped after
/// everything of it is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// The pod as last read from the API when this was written.
    pub pod: Pod,
    /// It was admitted here; its placement is not judged again.
    pub admitted: bool,
    /// It is known to have to stop.
    pub terminating: bool,
    /// It is known to be gone from the API.
    pub deleted: bool,
    /// What may be mounted for it.
    pub volumes: Vec<JournalEntry>,
    /// An earlier record of it could not be read, and it may have more than these since then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_have_more: bool,
    /// Why the kubelet itself ends it, and by when: else a restart would let it go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<EndedRecord>,
}

/// Why the kubelet itself ends a pod ([`crate::status::pod::Ended`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedRecord {
    /// In a word.
    pub reason: String,
    /// For those who read it.
    pub message: String,
    /// It goes for the sake of others.
    pub disrupts: bool,
    /// When what still runs of it is killed, in nanoseconds since the Unix epoch.
    pub deadline_ns: i64,
}

/// The boot in which the grants in the device checkpoint were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DevicesRecord {
    /// Boot id.
    pub boot_id: String,
}
