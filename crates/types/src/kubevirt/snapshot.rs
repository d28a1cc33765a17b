//! `snapshot.kubevirt.io`: machines as they were, and the way back.
//!
//! ```text
//!   VirtualMachineSnapshot ──▶ VirtualMachineSnapshotContent ──▶ VolumeSnapshot of each disk
//!          ▲                          ▲ the machine's spec and its claims, as they were
//!   VirtualMachineRestore ────────────┘
//! ```
//!
//! Shapes are those of KubeVirt's `snapshot.kubevirt.io/v1beta1`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{api, kind};
use super::embedded;
use super::schema::structural;
use super::vm::{VirtualMachineSpec, VirtualMachineStatus};
use super::vmi::Condition;

/// The kinds' group.
pub const GROUP: &str = "snapshot.kubevirt.io";

/// A wish for a snapshot of a machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineSnapshot {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VirtualMachineSnapshotSpec,
    /// What is.
    pub status: Option<VirtualMachineSnapshotStatus>,
}

kind!(VirtualMachineSnapshot, "snapshot.kubevirt.io", "v1beta1", "VirtualMachineSnapshot",
    "virtualmachinesnapshots", NamespaceResourceScope, {spec: "spec"; status: "status"});

/// What a snapshot holds: the machine, its claims, and the names of the snapshots of their volumes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineSnapshotContent {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What it holds.
    pub spec: VirtualMachineSnapshotContentSpec,
    /// How far it is.
    pub status: Option<VirtualMachineSnapshotContentStatus>,
}

kind!(VirtualMachineSnapshotContent, "snapshot.kubevirt.io", "v1beta1", "VirtualMachineSnapshotContent",
    "virtualmachinesnapshotcontents", NamespaceResourceScope, {spec: "spec"; status: "status"});

/// A wish to make a machine what it was when a snapshot was taken, or to make another one so.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineRestore {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VirtualMachineRestoreSpec,
    /// What is.
    pub status: Option<VirtualMachineRestoreStatus>,
}

kind!(VirtualMachineRestore, "snapshot.kubevirt.io", "v1beta1", "VirtualMachineRestore",
    "virtualmachinerestores", NamespaceResourceScope, {spec: "spec"; status: "status"});

api! {
    /// An object of the same namespace.
    pub struct TypedLocalReference {
        /// Its group.
        pub api_group: Option<String>,
        /// Its kind.
        #[required]
        pub kind: String,
        /// Its name.
        #[required]
        pub name: String,
    }

    /// What a snapshot should be.
    pub struct VirtualMachineSnapshotSpec {
        /// Of what.
        #[required]
        pub source: TypedLocalReference,
        /// What becomes of its content when it is deleted: Delete (the default), Retain.
        pub deletion_policy: Option<String>,
        /// How long it may take, in Go's notation. Default 5m; 0 for as long as it takes.
        pub failure_deadline: Option<String>,
    }

    /// What a snapshot is.
    pub struct VirtualMachineSnapshotStatus {
        /// UID of the machine.
        #[serde(rename = "sourceUID")]
        pub source_uid: Option<String>,
        /// Name of its content.
        pub virtual_machine_snapshot_content_name: Option<String>,
        /// When the snapshots of all volumes were taken.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub creation_time: Option<Time>,
        /// InProgress, Succeeded, Failed, Deleting, Unknown.
        pub phase: String,
        /// Whether a machine can be made of it.
        pub ready_to_use: Option<bool>,
        /// What went wrong last.
        pub error: Option<Error>,
        /// Ready, Progressing, Failure.
        pub conditions: Vec<Condition>,
        /// How it was taken; deprecated in favour of `sourceIndications`.
        pub indications: Vec<String>,
        /// How it was taken.
        pub source_indications: Vec<SourceIndication>,
        /// Volumes that are in it, and volumes that are not.
        pub snapshot_volumes: Option<SnapshotVolumes>,
    }

    /// How a snapshot was taken.
    pub struct SourceIndication {
        /// Online, GuestAgent, NoGuestAgent, QuiesceTimeout, Paused, PartialSnapshot.
        #[required]
        pub indication: String,
        /// What that means.
        #[required]
        pub message: String,
    }

    /// Volumes that are in a snapshot, and volumes that are not.
    pub struct SnapshotVolumes {
        /// Names of volumes that are in it.
        pub included_volumes: Vec<String>,
        /// Names of volumes that are not.
        pub excluded_volumes: Vec<String>,
    }

    /// What went wrong last.
    pub struct Error {
        /// When.
        #[schemars(schema_with = "embedded::time")]
        pub time: Option<Time>,
        /// What.
        pub message: Option<String>,
    }

    /// What a content holds.
    pub struct VirtualMachineSnapshotContentSpec {
        /// The snapshot that it belongs to.
        pub virtual_machine_snapshot_name: Option<String>,
        /// The machine as it was.
        #[required]
        pub source: SourceSpec,
        /// Its claims, and the snapshots of their volumes.
        pub volume_backups: Vec<VolumeBackup>,
    }

    /// What was snapshotted, as it was.
    pub struct SourceSpec {
        /// A machine.
        pub virtual_machine: Option<SourceVirtualMachine>,
    }

    /// A machine as it was.
    pub struct SourceVirtualMachine {
        /// Metadata.
        #[schemars(schema_with = "embedded::template_metadata")]
        pub metadata: Option<ObjectMeta>,
        /// What it should be.
        #[written]
        pub spec: VirtualMachineSpec,
        /// What it was.
        pub status: Option<VirtualMachineStatus>,
    }

    /// A claim, and the snapshot of its volume.
    pub struct VolumeBackup {
        /// Name of the volume in the machine.
        #[required]
        pub volume_name: String,
        /// The claim as it was.
        #[required]
        pub persistent_volume_claim: SourceClaim,
        /// The snapshot.
        pub volume_snapshot_name: Option<String>,
    }

    /// A claim as it was.
    pub struct SourceClaim {
        /// Metadata.
        #[schemars(schema_with = "embedded::open_object")]
        pub metadata: ObjectMeta,
        /// What was wanted.
        #[schemars(with = "embedded::PersistentVolumeClaimSpec")]
        pub spec: PersistentVolumeClaimSpec,
    }

    /// How far a content is.
    pub struct VirtualMachineSnapshotContentStatus {
        /// When the snapshots of all volumes were taken.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub creation_time: Option<Time>,
        /// Whether volumes can be made of all of them.
        pub ready_to_use: Option<bool>,
        /// What went wrong last.
        pub error: Option<Error>,
        /// How far they are.
        pub volume_snapshot_status: Vec<ContentVolumeStatus>,
    }

    /// How far the snapshot of a volume is.
    pub struct ContentVolumeStatus {
        /// Its name.
        #[required]
        pub volume_snapshot_name: String,
        /// When it was taken.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub creation_time: Option<Time>,
        /// Whether a volume can be made of it.
        pub ready_to_use: Option<bool>,
        /// What went wrong last.
        pub error: Option<Error>,
    }

    /// What a restore should do.
    pub struct VirtualMachineRestoreSpec {
        /// The machine that becomes what the snapshot holds; one that is not there is made.
        #[required]
        pub target: TypedLocalReference,
        /// The snapshot.
        #[required]
        pub virtual_machine_snapshot_name: String,
        /// What happens when the target runs: StopTarget, WaitGracePeriod (the default), FailImmediate, WaitEventually.
        pub target_readiness_policy: Option<String>,
        /// How restored claims are named: RandomizeNames (the default), InPlace, PrefixTargetName.
        pub volume_restore_policy: Option<String>,
        /// What owns restored claims: Vm (the default), None.
        pub volume_ownership_policy: Option<String>,
        /// What is to be different of single restored claims.
        pub volume_restore_overrides: Vec<VolumeRestoreOverride>,
        /// JSON patches of a machine that is made; each is one operation.
        pub patches: Vec<String>,
    }

    /// What is to be different of a restored claim.
    pub struct VolumeRestoreOverride {
        /// Name of the volume.
        pub volume_name: String,
        /// Name of the claim.
        pub restore_name: String,
        /// Further labels.
        pub labels: BTreeMap<String, String>,
        /// Further annotations.
        pub annotations: BTreeMap<String, String>,
    }

    /// How far a restore is.
    pub struct VirtualMachineRestoreStatus {
        /// Claims that are made.
        pub restores: Vec<VolumeRestore>,
        /// When it was done.
        #[schemars(schema_with = "embedded::time")]
        pub restore_time: Option<Time>,
        /// DataVolumes that it took away.
        pub deleted_data_volumes: Vec<String>,
        /// Whether it is done.
        pub complete: Option<bool>,
        /// Ready, Progressing, Failure.
        pub conditions: Vec<Condition>,
    }

    /// A claim that is made for a volume.
    pub struct VolumeRestore {
        /// Name of the volume.
        #[required]
        pub volume_name: String,
        /// Name of the claim.
        #[required]
        #[serde(rename = "persistentVolumeClaim")]
        pub persistent_volume_claim_name: String,
        /// What it is made from.
        #[required]
        pub volume_snapshot_name: String,
        /// Name of the DataVolume that owns it.
        pub data_volume_name: Option<String>,
    }
}

/// Phases of a snapshot.
pub mod phase {
    /// It is being taken.
    pub const IN_PROGRESS: &str = "InProgress";
    /// It was taken.
    pub const SUCCEEDED: &str = "Succeeded";
    /// It was not taken in time, or cannot be.
    pub const FAILED: &str = "Failed";
    /// It is being deleted, and was never taken.
    pub const DELETING: &str = "Deleting";
}

/// Types of conditions.
pub mod condition {
    /// It can be used, or is done.
    pub const READY: &str = "Ready";
    /// Something is being done.
    pub const PROGRESSING: &str = "Progressing";
    /// It is over, and failed.
    pub const FAILURE: &str = "Failure";
}

/// How a snapshot was taken.
pub mod indication {
    /// The machine was running.
    pub const ONLINE: &str = "Online";
    /// The guest's agent was asked to freeze its file systems.
    pub const GUEST_AGENT: &str = "GuestAgent";
    /// There was no agent to ask.
    pub const NO_GUEST_AGENT: &str = "NoGuestAgent";
    /// The guest could not stay frozen for long enough.
    pub const QUIESCE_TIMEOUT: &str = "QuiesceTimeout";
    /// The machine was paused.
    pub const PAUSED: &str = "Paused";
    /// Volumes that could be in it are not.
    pub const PARTIAL_SNAPSHOT: &str = "PartialSnapshot";
}

/// What becomes of a content when its snapshot is deleted.
pub mod deletion_policy {
    /// It is deleted, too.
    pub const DELETE: &str = "Delete";
    /// It stays.
    pub const RETAIN: &str = "Retain";
    /// All of them.
    pub const ALL: [&str; 2] = [DELETE, RETAIN];
}

/// What a restore does about a target that runs.
pub mod target_readiness {
    /// Stops it.
    pub const STOP_TARGET: &str = "StopTarget";
    /// Waits five minutes for somebody to stop it.
    pub const WAIT_GRACE_PERIOD: &str = "WaitGracePeriod";
    /// Fails.
    pub const FAIL_IMMEDIATE: &str = "FailImmediate";
    /// Waits.
    pub const WAIT_EVENTUALLY: &str = "WaitEventually";
    /// All of them.
    pub const ALL: [&str; 4] = [STOP_TARGET, WAIT_GRACE_PERIOD, FAIL_IMMEDIATE, WAIT_EVENTUALLY];
}

/// How restored claims are named.
pub mod volume_restore {
    /// After the restore's UID.
    pub const RANDOMIZE_NAMES: &str = "RandomizeNames";
    /// As those that they replace.
    pub const IN_PLACE: &str = "InPlace";
    /// After target and volume.
    pub const PREFIX_TARGET_NAME: &str = "PrefixTargetName";
    /// All of them.
    pub const ALL: [&str; 3] = [RANDOMIZE_NAMES, IN_PLACE, PREFIX_TARGET_NAME];
}

/// What owns restored claims.
pub mod volume_ownership {
    /// The machine.
    pub const VM: &str = "Vm";
    /// Nothing.
    pub const NONE: &str = "None";
    /// All of them.
    pub const ALL: [&str; 2] = [VM, NONE];
}

/// Names of labels, annotations and finalizers.
pub mod names {
    /// Finalizer of a snapshot.
    pub const SNAPSHOT_FINALIZER: &str = "snapshot.kubevirt.io/vmsnapshot-protection";
    /// Finalizer of a content.
    pub const CONTENT_FINALIZER: &str = "snapshot.kubevirt.io/vmsnapshotcontent-protection";
    /// Finalizer of a restore.
    pub const RESTORE_FINALIZER: &str = "snapshot.kubevirt.io/vmrestore-protection";
    /// Annotation of a content whose machine may keep something beside its volumes: name of the volume that stands for that, where
    /// nothing could keep it; empty where nothing was left out. A content without it is older than it.
    pub const LEFT_OUT_ANNOTATION: &str = "snapshot.kubevirt.io/left-out";
    /// Finalizer of a machine of which a snapshot is being taken.
    pub const SOURCE_FINALIZER: &str = "snapshot.kubevirt.io/snapshot-source-protection";
    /// Label of a VolumeSnapshot: the machine.
    pub const SNAPSHOT_SOURCE_NAME_LABEL: &str = "snapshot.kubevirt.io/source-vm-name";
    /// Label of a VolumeSnapshot: the machine's namespace.
    pub const SNAPSHOT_SOURCE_NAMESPACE_LABEL: &str = "snapshot.kubevirt.io/source-vm-namespace";
    /// Label of a restored claim: the machine.
    pub const RESTORE_SOURCE_NAME_LABEL: &str = "restore.kubevirt.io/source-vm-name";
    /// Label of a restored claim: the machine's namespace.
    pub const RESTORE_SOURCE_NAMESPACE_LABEL: &str = "restore.kubevirt.io/source-vm-namespace";
    /// Annotation of a restored claim: the restore.
    pub const RESTORE_NAME_ANNOTATION: &str = "restore.kubevirt.io/name";
    /// Annotation of restored machines and claims: name and UID of the restore that they are as they are by.
    pub const LAST_RESTORE_ANNOTATION: &str = "restore.kubevirt.io/lastRestoreUID";
    /// Annotation of a claim that was restored before its machine: the machine is to own it.
    pub const RESTORE_OWNED_BY_VM_ANNOTATION: &str = "restore.kubevirt.io/owned-by-vm";
    /// Annotation of a restored claim that its machine names and that was filled from a copy: as
    /// [`LAST_RESTORE_ANNOTATION`]. It is written where a restore ends between that and the machine's change. Our own.
    pub const FILLED_ANNOTATION: &str = "restore.kubevirt.io/filled";
    /// Annotation of a claim with a copy, and of a pod that copies: what it was made to be. Our own.
    pub const SPEC_DIGEST_ANNOTATION: &str = "snapshot.kubevirt.io/spec-digest";
    /// Annotation of a claim with a copy: how large the volume was that it is a copy of. Our own.
    pub const VOLUME_SIZE_ANNOTATION: &str = "snapshot.kubevirt.io/volume-size";
    /// Label of a pod that copies: what for, `keep` or `restore`. Our own.
    pub const COPYING_LABEL: &str = "snapshot.kubevirt.io/copying";
}

/// Name of a snapshot's content.
#[must_use]
pub fn content_name(snapshot_uid: &str) -> String {
    format!("vmsnapshot-content-{snapshot_uid}")
}

/// Name of the snapshot of one of the machine's volumes.
#[must_use]
pub fn volume_snapshot_name(snapshot_uid: &str, volume: &str) -> String {
    format!("vmsnapshot-{snapshot_uid}-volume-{volume}")
}

/// Name of the claim with the copy of one of the machine's volumes, where storage can take no snapshot. It stands where the name
/// of a VolumeSnapshot would; no VolumeSnapshot of a content has a name like this.
#[must_use]
pub fn copy_name(content: &str, volume: &str) -> String {
    format!("{content}-copy-{volume}")
}

/// Name of the ControllerRevision in which a content keeps the machine's instance type or preference; `field` is the field of
/// the machine's spec that names it.
#[must_use]
pub fn kept_revision_name(content: &str, field: &str) -> String {
    format!("{content}-{field}")
}

/// Name of the pod that copies a machine's disks, by the machine's UID; for a machine that is yet to come, by the UID of the
/// restore that makes it. While it is there, the machine does not start.
#[must_use]
pub fn copying_pod_name(uid: &str) -> String {
    format!("virt-copying-{uid}")
}

/// Schemas of spec and status of a snapshot.
pub(super) fn snapshot_schemas() -> (Value, Option<Value>) {
    (structural::<VirtualMachineSnapshotSpec>(), Some(structural::<VirtualMachineSnapshotStatus>()))
}

/// Schemas of spec and status of a content.
pub(super) fn content_schemas() -> (Value, Option<Value>) {
    (structural::<VirtualMachineSnapshotContentSpec>(), Some(structural::<VirtualMachineSnapshotContentStatus>()))
}

/// Schemas of spec and status of a restore.
pub(super) fn restore_schemas() -> (Value, Option<Value>) {
    let mut spec = structural::<VirtualMachineRestoreSpec>();
    if let Some(policy) = spec.pointer_mut("/properties/targetReadinessPolicy").and_then(Value::as_object_mut) {
        policy.insert("default".to_owned(), json!(target_readiness::WAIT_GRACE_PERIOD));
        policy.insert("enum".to_owned(), json!(target_readiness::ALL));
    }
    (spec, Some(structural::<VirtualMachineRestoreStatus>()))
}

impl VirtualMachineSnapshot {
    fn phase_is(&self, phase: &str) -> bool {
        self.status.as_ref().is_some_and(|status| status.phase == phase)
    }
    /// Whether a machine can be made of it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }
    /// Whether it is over, and failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.phase_is(phase::FAILED)
    }
    /// Whether it was taken.
    #[must_use]
    pub fn has_succeeded(&self) -> bool {
        self.phase_is(phase::SUCCEEDED)
    }
    /// Whether it is neither taken nor failed.
    #[must_use]
    pub fn is_progressing(&self) -> bool {
        !self.has_failed() && !self.has_succeeded()
    }
}

impl VirtualMachineSnapshotContent {
    /// Whether the snapshots of all volumes were taken.
    #[must_use]
    pub fn is_created(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.creation_time.is_some())
    }
    /// Whether volumes can be made of all of them.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }
}

impl VirtualMachineRestore {
    /// Whether it is done.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().and_then(|status| status.complete) == Some(true)
    }
    /// Whether it is over, and failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|found| found.r#type == condition::FAILURE && found.is_true())
    }
    /// Whether it is neither done nor failed.
    #[must_use]
    pub fn is_progressing(&self) -> bool {
        !self.is_complete() && !self.has_failed()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{VirtualMachineSnapshotContent, content_schemas, restore_schemas, snapshot_schemas};

    #[test]
    fn schemas_say_what_upstream_says() {
        let check = |schema: &Value, path: &str, wanted: Value| {
            assert_eq!(schema.pointer(path).cloned().unwrap_or(Value::Null), wanted, "{path}");
        };
        let (snapshot, status) = snapshot_schemas();
        check(&snapshot, "/required", json!(["source"]));
        check(&snapshot, "/properties/source/required", json!(["kind", "name"]));
        check(&status.unwrap_or_default(), "/properties/creationTime/nullable", json!(true));
        let (restore, _) = restore_schemas();
        check(&restore, "/required", json!(["target", "virtualMachineSnapshotName"]));
        check(&restore, "/properties/targetReadinessPolicy/default", json!("WaitGracePeriod"));
        let (content, _) = content_schemas();
        let claim = "/properties/volumeBackups/items/properties/persistentVolumeClaim/properties";
        check(&content, &format!("{claim}/metadata/x-kubernetes-preserve-unknown-fields"), json!(true));
        check(&content, &format!("{claim}/spec/properties/dataSource/required"), json!(["kind", "name"]));
        check(&content, "/properties/source/properties/virtualMachine/properties/spec/required", json!(["template"]));
    }

    #[test]
    fn contents_keep_what_they_were_given() {
        let object = json!({"apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": "VirtualMachineSnapshotContent",
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {"virtualMachineSnapshotName": "s",
                "source": {"virtualMachine": {"metadata": {"name": "vm", "uid": "u"},
                    "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {"devices": {}}}}}}},
                "volumeBackups": [{"volumeName": "d", "volumeSnapshotName": "x", "persistentVolumeClaim": {
                    "metadata": {"name": "d"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}]},
            "status": {"readyToUse": false, "creationTime": "2026-01-01T00:00:00Z"}});
        let read: VirtualMachineSnapshotContent = crate::json::from_value(object.clone()).unwrap();
        assert_eq!(json!(read), object);
    }
}
