//! Snapshots of volumes: `snapshot.storage.k8s.io/v1`, and the definitions of its kinds.
//!
//! Names, fields and printer columns are those of <https://github.com/kubernetes-csi/external-snapshotter>: its
//! controllers and tools find what they know.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::kubevirt::api::kind;

/// The kinds' group.
pub const GROUP: &str = "snapshot.storage.k8s.io";

/// A wish for a snapshot of a claim's volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshot {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VolumeSnapshotSpec,
    /// What is.
    pub status: Option<VolumeSnapshotStatus>,
}

kind!(VolumeSnapshot, "snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots",
    NamespaceResourceScope, {spec: "spec"; status: "status"});

/// What is to be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSpec {
    /// Of what.
    pub source: VolumeSnapshotSource,
    /// Its class; the default one of the volume's driver without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// Of what a snapshot is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSource {
    /// A claim, of whose volume one is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    /// A content that is there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

/// How far a snapshot is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    /// Its content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    /// When it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Whether a volume can be made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// How large such a volume must be at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<String>,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotError {
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// What.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A snapshot as a driver has it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshotContent {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What it is.
    pub spec: VolumeSnapshotContentSpec,
    /// How far it is.
    pub status: Option<VolumeSnapshotContentStatus>,
}

kind!(VolumeSnapshotContent, "snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", "volumesnapshotcontents",
    ClusterResourceScope, {spec: "spec"; status: "status"});

/// What a snapshot's content is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentSpec {
    /// The snapshot that it belongs to.
    pub volume_snapshot_ref: ObjectReference,
    /// What becomes of the data: Delete, Retain.
    pub deletion_policy: String,
    /// Its driver.
    pub driver: String,
    /// Its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    /// Of what it is.
    pub source: VolumeSnapshotContentSource,
    /// Mode of the volume that it is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_volume_mode: Option<String>,
}

/// Of what a content is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentSource {
    /// A volume, by its driver's handle: one is to be taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// A snapshot that is there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
}

/// How far a content is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentStatus {
    /// The driver's handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// When it was taken, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<i64>,
    /// How large a volume of it must be at least, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    /// Whether a volume can be made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

/// How snapshots are taken.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// By which driver.
    pub driver: String,
    /// What becomes of the data when the snapshot is deleted: Delete, Retain.
    pub deletion_policy: String,
    /// For the driver.
    pub parameters: BTreeMap<String, String>,
}

kind!(VolumeSnapshotClass, "snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses",
    ClusterResourceScope, {driver: "driver", deletion_policy: "deletionPolicy"; parameters: "parameters"});

fn text() -> Value {
    json!({"type": "string"})
}

fn error() -> Value {
    json!({"type": "object", "properties": {"message": text(), "time": {"type": "string", "format": "date-time"}}})
}

fn one_of(fields: [&str; 2]) -> Value {
    json!({"type": "object", "properties": {fields[0]: text(), fields[1]: text()},
        "oneOf": [{"required": [fields[0]]}, {"required": [fields[1]]}],
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "the source is immutable"}]})
}

fn definition(kind: &str, plural: &str, short: [&str; 2], scope: &str, columns: Value, schema: Value) -> Value {
    let mut schema = schema;
    schema["type"] = "object".into();
    for (field, kind) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        schema["properties"][field] = json!({"type": kind});
    }
    let status = schema["properties"].get("status").is_some();
    let mut version = json!({"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema}});
    if status {
        version["subresources"] = json!({"status": {}});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}"), "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"}},
        "spec": {"group": GROUP, "scope": scope, "versions": [version],
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                "singular": kind.to_lowercase(), "shortNames": short}},
    })
}

fn columns(all: &[(&str, &str, &str)]) -> Value {
    let column = |(name, kind, path): &(&str, &str, &str)| json!({"name": name, "type": kind, "jsonPath": path});
    all.iter().map(column).collect::<Vec<_>>().into()
}

/// The definitions of the three kinds.
#[must_use]
pub fn crds() -> Vec<Value> {
    let time = json!({"type": "string", "format": "date-time"});
    let int = json!({"type": "integer", "format": "int64", "minimum": 0});
    let policy = json!({"type": "string", "enum": ["Delete", "Retain"]});
    let bool = json!({"type": "boolean"});
    vec![
        definition(
            "VolumeSnapshotClass",
            "volumesnapshotclasses",
            ["vsclass", "vsclasses"],
            "Cluster",
            columns(&[
                ("Driver", "string", ".driver"),
                ("DeletionPolicy", "string", ".deletionPolicy"),
                ("Age", "date", ".metadata.creationTimestamp"),
            ]),
            json!({"description": "How snapshots that name it are taken: by which driver, and what becomes of them.",
                "required": ["deletionPolicy", "driver"], "properties": {"driver": text(), "deletionPolicy": policy,
                "parameters": {"type": "object", "additionalProperties": text()}}}),
        ),
        definition(
            "VolumeSnapshot",
            "volumesnapshots",
            ["vs", "vss"],
            "Namespaced",
            columns(&[
                ("ReadyToUse", "boolean", ".status.readyToUse"),
                ("SourcePVC", "string", ".spec.source.persistentVolumeClaimName"),
                ("SourceSnapshotContent", "string", ".spec.source.volumeSnapshotContentName"),
                ("RestoreSize", "string", ".status.restoreSize"),
                ("SnapshotClass", "string", ".spec.volumeSnapshotClassName"),
                ("SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"),
                ("CreationTime", "date", ".status.creationTime"),
                ("Age", "date", ".metadata.creationTimestamp"),
            ]),
            json!({"description": "The wish to keep a claim's volume as it is now, or the name of a snapshot that is there.",
                "required": ["spec"], "properties": {
                "spec": {"type": "object", "required": ["source"], "properties": {
                    "source": one_of(["persistentVolumeClaimName", "volumeSnapshotContentName"]),
                    "volumeSnapshotClassName": text()}},
                "status": {"type": "object", "properties": {"boundVolumeSnapshotContentName": text(),
                    "creationTime": time, "readyToUse": bool, "restoreSize": text(), "error": error()}}}}),
        ),
        definition(
            "VolumeSnapshotContent",
            "volumesnapshotcontents",
            ["vsc", "vscs"],
            "Cluster",
            columns(&[
                ("ReadyToUse", "boolean", ".status.readyToUse"),
                ("RestoreSize", "integer", ".status.restoreSize"),
                ("DeletionPolicy", "string", ".spec.deletionPolicy"),
                ("Driver", "string", ".spec.driver"),
                ("VolumeSnapshotClass", "string", ".spec.volumeSnapshotClassName"),
                ("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
                ("VolumeSnapshotNamespace", "string", ".spec.volumeSnapshotRef.namespace"),
                ("Age", "date", ".metadata.creationTimestamp"),
            ]),
            json!({"description": "A snapshot where it is kept: what the driver has taken of a volume.",
                "required": ["spec"], "properties": {
                "spec": {"type": "object",
                    "required": ["deletionPolicy", "driver", "source", "volumeSnapshotRef"], "properties": {
                    "deletionPolicy": policy, "driver": text(), "sourceVolumeMode": text(),
                    "volumeSnapshotClassName": text(),
                    "source": one_of(["volumeHandle", "snapshotHandle"]),
                    "volumeSnapshotRef": {"type": "object", "properties": {"apiVersion": text(), "fieldPath": text(),
                        "kind": text(), "name": text(), "namespace": text(), "resourceVersion": text(), "uid": text()}}}},
                "status": {"type": "object", "properties": {"snapshotHandle": text(), "creationTime":
                    {"type": "integer", "format": "int64"}, "restoreSize": int, "readyToUse": bool, "error": error()}}}}),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::crds;

    #[test]
    fn each_kind_says_what_it_is() {
        for crd in crds() {
            let about = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"];
            assert!(about.as_str().is_some_and(|text| text.ends_with('.')), "{}", crd["metadata"]["name"]);
        }
    }
}
