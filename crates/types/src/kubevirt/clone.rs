//! `clone.kubevirt.io`: a machine made after another one.
//!
//! Shapes are those of KubeVirt's `clone.kubevirt.io/v1beta1`; `v1alpha1` is served with the same ones.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde_json::Value;

use super::api::{api, kind};
use super::embedded;
use super::schema::structural;
use super::snapshot::TypedLocalReference;
use super::vmi::Condition;

/// The kind's group.
pub const GROUP: &str = "clone.kubevirt.io";

/// A wish for a machine like another one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineClone {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VirtualMachineCloneSpec,
    /// What is.
    pub status: Option<VirtualMachineCloneStatus>,
}

kind!(VirtualMachineClone, "clone.kubevirt.io", "v1beta1", "VirtualMachineClone", "virtualmachineclones",
    NamespaceResourceScope, {spec: "spec"; status: "status"});

api! {
    /// What a clone should be.
    pub struct VirtualMachineCloneSpec {
        /// What is cloned: a VirtualMachine or a VirtualMachineSnapshot.
        #[required]
        pub source: Option<TypedLocalReference>,
        /// The machine that is made. Without it, a machine whose name is chosen.
        pub target: Option<TypedLocalReference>,
        /// Which annotations the target gets; see `label_filters`.
        pub annotation_filters: Option<Vec<String>>,
        /// Which labels the target gets: keys, or beginnings of keys with a `*` behind; with a `!` in front, those that it
        /// does not get after all. Without filters, all.
        pub label_filters: Option<Vec<String>>,
        /// Filters of the labels and annotations of the target's template.
        pub template: TemplateFilters,
        /// MAC addresses by interface. All others are taken away.
        pub new_mac_addresses: BTreeMap<String, String>,
        /// The target's serial number in SMBIOS. Without it, the target has none of the source's.
        #[serde(rename = "newSMBiosSerial")]
        pub new_smbios_serial: Option<String>,
        /// JSON patches of the target; each is an operation or a list of them.
        pub patches: Vec<String>,
        /// How the target's claims are named: RandomizeNames (the default), PrefixTargetName.
        pub volume_name_policy: Option<String>,
    }

    /// Filters of a template's labels and annotations.
    pub struct TemplateFilters {
        /// Which annotations it gets.
        pub annotation_filters: Option<Vec<String>>,
        /// Which labels it gets.
        pub label_filters: Option<Vec<String>>,
    }

    /// How far a clone is.
    pub struct VirtualMachineCloneStatus {
        /// When the target was made.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub creation_time: Option<Time>,
        /// SnapshotInProgress, RestoreInProgress, CreatingTargetVM, Succeeded, Failed, Unknown.
        pub phase: String,
        /// Ready, Progressing.
        pub conditions: Vec<Condition>,
        /// Name of the snapshot that was taken for it, until that is gone.
        #[schemars(extend("nullable" = true))]
        pub snapshot_name: Option<String>,
        /// Name of the restore that was made for it, until that is gone.
        #[schemars(extend("nullable" = true))]
        pub restore_name: Option<String>,
        /// Name of the target.
        #[schemars(extend("nullable" = true))]
        pub target_name: Option<String>,
    }
}

/// Phases of a clone.
pub mod phase {
    /// Nobody has looked at it, or its source is not there yet.
    pub const UNSET: &str = "";
    /// A snapshot of the source is being taken.
    pub const SNAPSHOT_IN_PROGRESS: &str = "SnapshotInProgress";
    /// The snapshot is being restored to the target.
    pub const RESTORE_IN_PROGRESS: &str = "RestoreInProgress";
    /// The target is about to be there.
    pub const CREATING_TARGET_VM: &str = "CreatingTargetVM";
    /// The target is there.
    pub const SUCCEEDED: &str = "Succeeded";
    /// There will be no target.
    pub const FAILED: &str = "Failed";
    /// Nothing can be said.
    pub const UNKNOWN: &str = "Unknown";
}

/// How a target's claims are named.
pub mod volume_name {
    /// After the restore's UID.
    pub const RANDOMIZE_NAMES: &str = "RandomizeNames";
    /// After target and volume.
    pub const PREFIX_TARGET_NAME: &str = "PrefixTargetName";
    /// All of them.
    pub const ALL: [&str; 2] = [RANDOMIZE_NAMES, PREFIX_TARGET_NAME];
}

/// Names of annotations and finalizers, and the kinds that references name.
pub mod names {
    /// Finalizer of a clone: what was made for it is not known to be gone yet. Our own.
    pub const FINALIZER: &str = "clone.kubevirt.io/vmclone-protection";
    /// Annotation of a clone's snapshot or restore: what it was made to be. Our own.
    pub const SPEC_DIGEST_ANNOTATION: &str = "clone.kubevirt.io/spec-digest";
    /// Kind of a machine.
    pub const MACHINE: &str = "VirtualMachine";
    /// Kind of a snapshot.
    pub const SNAPSHOT: &str = "VirtualMachineSnapshot";
}

/// Name of the snapshot that is taken for a clone.
#[must_use]
pub fn snapshot_name(clone_uid: &str) -> String {
    format!("tmp-snapshot-{clone_uid}")
}

/// Name of the restore that is made for a clone.
#[must_use]
pub fn restore_name(clone_uid: &str) -> String {
    format!("tmp-restore-{clone_uid}")
}

/// Schemas of spec and status.
pub(super) fn schemas() -> (Value, Option<Value>) {
    (structural::<VirtualMachineCloneSpec>(), Some(structural::<VirtualMachineCloneStatus>()))
}

impl VirtualMachineClone {
    /// Its phase.
    #[must_use]
    pub fn phase(&self) -> &str {
        self.status.as_ref().map_or(phase::UNSET, |status| &status.phase)
    }
    /// Name of its source, if that is of this kind.
    #[must_use]
    pub fn source_of(&self, kind: &str) -> Option<&str> {
        self.spec.source.as_ref().filter(|source| source.kind == kind).map(|source| source.name.as_str())
    }
}
