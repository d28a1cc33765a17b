//! `VirtualMachine`: a machine that is kept, running or not.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

use super::api::{api, kind};
use super::embedded;
use super::vmi::{Condition, OpenObject, VirtualMachineInstanceSpec};

/// A machine that is kept, running or not.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachine {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VirtualMachineSpec,
    /// What is.
    pub status: Option<VirtualMachineStatus>,
}

kind!(VirtualMachine, "kubevirt.io", "v1", "VirtualMachine", "virtualmachines",
    NamespaceResourceScope, {spec: "spec"; status: "status"});

api! {
    /// What a virtual machine should be.
    pub struct VirtualMachineSpec {
        /// Whether it runs; deprecated in favour of `runStrategy`, and not beside it.
        pub running: Option<bool>,
        /// When it runs: Always, RerunOnFailure, Manual, Halted or Once.
        pub run_strategy: Option<String>,
        /// Instance type to apply.
        pub instancetype: Option<InstancetypeMatcher>,
        /// Preference to apply.
        pub preference: Option<InstancetypeMatcher>,
        /// The instance that is made to run it.
        #[required]
        pub template: Option<VirtualMachineInstanceTemplateSpec>,
        /// DataVolumes made for it.
        #[schemars(with = "Vec<OpenObject>")]
        pub data_volume_templates: Vec<serde_json::Value>,
        /// What a change of volumes does: Replacement, Migration.
        pub update_volumes_strategy: Option<String>,
    }

    /// The instance that is made to run a machine.
    pub struct VirtualMachineInstanceTemplateSpec {
        /// Labels and annotations of the instance.
        #[schemars(schema_with = "embedded::template_metadata")]
        pub metadata: Option<ObjectMeta>,
        /// Its spec.
        #[written]
        pub spec: VirtualMachineInstanceSpec,
    }

    /// Which instance type or preference to apply.
    pub struct InstancetypeMatcher {
        /// Name.
        pub name: Option<String>,
        /// Kind.
        pub kind: Option<String>,
        /// Revision that is kept.
        pub revision_name: Option<String>,
        /// Volume whose labels name it; they are those of what it comes from.
        pub infer_from_volume: Option<String>,
        /// What happens when they do not: Reject, Ignore.
        pub infer_from_volume_failure_policy: Option<String>,
    }

    /// What a virtual machine is.
    pub struct VirtualMachineStatus {
        /// Snapshot in progress.
        pub snapshot_in_progress: Option<String>,
        /// Restore in progress.
        pub restore_in_progress: Option<String>,
        /// An instance exists.
        pub created: bool,
        /// The instance is ready.
        pub ready: bool,
        /// State for people, such as Running.
        pub printable_status: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
        /// Start and stop requests not yet carried out.
        pub state_change_requests: Vec<StateChangeRequest>,
        /// Volumes to add or remove.
        #[schemars(with = "Vec<OpenObject>")]
        pub volume_requests: Vec<serde_json::Value>,
        /// Which volumes can be snapshotted.
        pub volume_snapshot_statuses: Vec<VolumeSnapshotStatus>,
        /// Failed starts in a row.
        #[schemars(extend("nullable" = true))]
        pub start_failure: Option<StartFailure>,
        /// Memory dump.
        #[schemars(schema_with = "embedded::open_object")]
        pub memory_dump_request: Option<serde_json::Value>,
        /// Generation that the instance was started from.
        pub observed_generation: i64,
        /// Generation of the spec.
        pub desired_generation: i64,
        /// Run strategy last seen.
        pub run_strategy: String,
        /// Volumes that change.
        #[schemars(schema_with = "embedded::open_object")]
        pub volume_update_state: Option<serde_json::Value>,
        /// Tracking of changed blocks.
        #[schemars(schema_with = "embedded::open_object")]
        pub changed_block_tracking: Option<serde_json::Value>,
        /// Instance type as applied.
        #[schemars(schema_with = "embedded::open_object")]
        pub instancetype_ref: Option<serde_json::Value>,
        /// Preference as applied.
        #[schemars(schema_with = "embedded::open_object")]
        pub preference_ref: Option<serde_json::Value>,
    }

    /// A request to start or stop.
    pub struct StateChangeRequest {
        /// Start or Stop.
        #[required]
        pub action: String,
        /// Parameters.
        pub data: BTreeMap<String, String>,
        /// UID of the instance that is meant.
        pub uid: Option<String>,
    }

    /// Failed starts in a row.
    pub struct StartFailure {
        /// How many.
        pub consecutive_fail_count: i64,
        /// UID of the instance that failed last.
        #[serde(rename = "lastFailedVMIUID")]
        pub last_failed_vmi_uid: String,
        /// When the next start may be tried.
        #[schemars(schema_with = "embedded::time")]
        pub retry_after_timestamp: Option<Time>,
    }

    /// Whether a volume can be snapshotted.
    pub struct VolumeSnapshotStatus {
        /// Name of the volume.
        #[required]
        pub name: String,
        /// Whether it can.
        #[written]
        pub enabled: bool,
        /// Why not.
        pub reason: Option<String>,
    }
}

/// Run strategies.
pub mod run_strategy {
    /// It runs, and is started again whenever it stops.
    pub const ALWAYS: &str = "Always";
    /// It does not run.
    pub const HALTED: &str = "Halted";
    /// It runs when asked.
    pub const MANUAL: &str = "Manual";
    /// It runs, and is started again when it fails.
    pub const RERUN_ON_FAILURE: &str = "RerunOnFailure";
    /// It runs once.
    pub const ONCE: &str = "Once";
    /// It waits for a migration.
    pub const WAIT_AS_RECEIVER: &str = "WaitAsReceiver";
    /// All of them.
    pub const ALL: [&str; 6] = [ALWAYS, RERUN_ON_FAILURE, MANUAL, HALTED, ONCE, WAIT_AS_RECEIVER];
}

/// Values of `status.printableStatus`.
pub mod printable_status {
    /// Not running, and not expected to.
    pub const STOPPED: &str = "Stopped";
    /// Its volumes are being made.
    pub const PROVISIONING: &str = "Provisioning";
    /// It is being started.
    pub const STARTING: &str = "Starting";
    /// It runs.
    pub const RUNNING: &str = "Running";
    /// Its CPUs are stopped.
    pub const PAUSED: &str = "Paused";
    /// It is being stopped.
    pub const STOPPING: &str = "Stopping";
    /// It is being deleted.
    pub const TERMINATING: &str = "Terminating";
    /// It failed to start and waits for the next try.
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
    /// It moves to another node.
    pub const MIGRATING: &str = "Migrating";
    /// Its node cannot be asked.
    pub const UNKNOWN: &str = "Unknown";
    /// No node takes it.
    pub const UNSCHEDULABLE: &str = "ErrorUnschedulable";
    /// An image cannot be pulled.
    pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
    /// An image cannot be pulled, and the next try is delayed.
    pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
    /// A claim does not exist.
    pub const PVC_NOT_FOUND: &str = "ErrorPvcNotFound";
    /// A DataVolume failed.
    pub const DATA_VOLUME_ERROR: &str = "DataVolumeError";
    /// A claim is not bound.
    pub const WAITING_FOR_VOLUME_BINDING: &str = "WaitingForVolumeBinding";
    /// It waits for a migration.
    pub const WAITING_FOR_RECEIVER: &str = "WaitingForReceiver";
}

impl VirtualMachine {
    /// Its run strategy. `running: true` is Always, `running: false` and nothing at all are Halted. Admission
    /// refuses both fields at once; should both be there, `runStrategy` counts.
    #[must_use]
    pub fn run_strategy(&self) -> &str {
        match (&self.spec.run_strategy, self.spec.running) {
            (Some(strategy), _) => strategy,
            (None, Some(true)) => run_strategy::ALWAYS,
            (None, _) => run_strategy::HALTED,
        }
    }
}
