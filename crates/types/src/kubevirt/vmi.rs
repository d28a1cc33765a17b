//! `VirtualMachineInstance`: one run of a virtual machine.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

use super::api::{api, kind};
use super::devices::Network;
use super::domain::{CpuTopology, DomainSpec, Machine};
use super::embedded;
use super::quantity::Quantity;
use super::volumes::{UtilityVolume, Volume};

/// One run of a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineInstance {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VirtualMachineInstanceSpec,
    /// What is.
    pub status: Option<VirtualMachineInstanceStatus>,
}

kind!(VirtualMachineInstance, "kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances",
    NamespaceResourceScope, {spec: "spec"; status: "status"});

api! {
    /// What a virtual machine instance should be.
    pub struct VirtualMachineInstanceSpec {
        /// Priority class of its pod.
        pub priority_class_name: Option<String>,
        /// The guest's machine.
        #[required]
        pub domain: DomainSpec,
        /// Labels that its node must have.
        pub node_selector: BTreeMap<String, String>,
        /// Affinity of its pod.
        #[schemars(with = "Option<embedded::Affinity>")]
        pub affinity: Option<core::Affinity>,
        /// Scheduler of its pod.
        pub scheduler_name: Option<String>,
        /// Service account of its pod.
        pub service_account_name: Option<String>,
        /// Taints that it tolerates.
        #[schemars(with = "Vec<embedded::Toleration>")]
        pub tolerations: Vec<core::Toleration>,
        /// Spread over the nodes.
        #[schemars(with = "Vec<embedded::TopologySpreadConstraint>")]
        pub topology_spread_constraints: Vec<core::TopologySpreadConstraint>,
        /// What a drain does: None, LiveMigrate, LiveMigrateIfPossible, External.
        pub eviction_strategy: Option<String>,
        /// `Paused`: start with the CPUs stopped.
        pub start_strategy: Option<String>,
        /// How long a guest may take to shut down, seconds.
        pub termination_grace_period_seconds: Option<i64>,
        /// Volumes for its disks.
        #[schemars(length(max = 256))]
        pub volumes: Vec<Volume>,
        /// When it is stopped as unhealthy.
        pub liveness_probe: Option<Probe>,
        /// When it is ready to serve.
        pub readiness_probe: Option<Probe>,
        /// Host name. Default: the instance's name.
        pub hostname: Option<String>,
        /// Subdomain of its host name.
        pub subdomain: Option<String>,
        /// Networks for its interfaces.
        #[schemars(length(max = 256))]
        pub networks: Vec<Network>,
        /// DNS policy of its pod.
        pub dns_policy: Option<String>,
        /// DNS settings of its pod.
        #[schemars(with = "Option<embedded::PodDnsConfig>")]
        pub dns_config: Option<core::PodDNSConfig>,
        /// SSH keys and passwords put into the guest.
        #[schemars(length(max = 256))]
        pub access_credentials: Vec<AccessCredential>,
        /// CPU architecture.
        pub architecture: Option<String>,
        /// Resource claims of its pod.
        pub resource_claims: Vec<ResourceClaim>,
        /// Claims in its pod without a disk.
        #[schemars(length(max = 256))]
        pub utility_volumes: Vec<UtilityVolume>,
    }

    /// A resource claim of the pod.
    pub struct ResourceClaim {
        /// Name within the instance.
        #[required]
        pub name: String,
        /// An existing claim.
        pub resource_claim_name: Option<String>,
        /// A template to make one.
        pub resource_claim_template_name: Option<String>,
    }

    /// A probe of the guest. Exactly one of the actions is set.
    pub struct Probe {
        /// The guest agent answers.
        pub guest_agent_ping: Option<GuestAgentPing>,
        /// A command in the guest succeeds.
        #[schemars(with = "Option<embedded::ExecAction>")]
        pub exec: Option<core::ExecAction>,
        /// An HTTP request succeeds.
        #[schemars(with = "Option<embedded::HttpGetAction>")]
        pub http_get: Option<core::HTTPGetAction>,
        /// A TCP connection succeeds.
        #[schemars(with = "Option<embedded::TcpSocketAction>")]
        pub tcp_socket: Option<core::TCPSocketAction>,
        /// Delay of the first try, seconds.
        pub initial_delay_seconds: Option<i32>,
        /// Timeout of a try, seconds. Default 1.
        pub timeout_seconds: Option<i32>,
        /// Interval, seconds. Default 10.
        pub period_seconds: Option<i32>,
        /// Successes in a row. Default 1.
        pub success_threshold: Option<i32>,
        /// Failures in a row. Default 3.
        pub failure_threshold: Option<i32>,
    }

    /// The guest agent answers.
    pub struct GuestAgentPing {}

    /// A credential put into the guest.
    pub struct AccessCredential {
        /// SSH public keys.
        pub ssh_public_key: Option<SshPublicKeyCredential>,
        /// Passwords of users.
        pub user_password: Option<UserPasswordCredential>,
    }

    /// SSH public keys.
    pub struct SshPublicKeyCredential {
        /// Where they are.
        #[required]
        pub source: CredentialSource,
        /// How they get into the guest.
        #[required]
        pub propagation_method: SshKeyPropagation,
    }

    /// Passwords of users.
    pub struct UserPasswordCredential {
        /// Where they are.
        #[required]
        pub source: CredentialSource,
        /// How they get into the guest.
        #[required]
        pub propagation_method: PasswordPropagation,
    }

    /// Where a credential is.
    pub struct CredentialSource {
        /// In a Secret.
        pub secret: Option<CredentialSecret>,
    }

    /// A Secret with a credential.
    pub struct CredentialSecret {
        /// Its name.
        #[required]
        pub secret_name: String,
    }

    /// How SSH keys get into the guest.
    pub struct SshKeyPropagation {
        /// In the config drive's metadata.
        pub config_drive: Option<EmptyPropagation>,
        /// In NoCloud's metadata.
        pub no_cloud: Option<EmptyPropagation>,
        /// By the guest agent.
        pub qemu_guest_agent: Option<AgentUsers>,
    }

    /// How passwords get into the guest.
    pub struct PasswordPropagation {
        /// By the guest agent.
        pub qemu_guest_agent: Option<EmptyPropagation>,
    }

    /// A way without parameters.
    pub struct EmptyPropagation {}

    /// Users that get a key.
    pub struct AgentUsers {
        /// Their names.
        #[required]
        pub users: Vec<String>,
    }

    /// What a virtual machine instance is.
    pub struct VirtualMachineInstanceStatus {
        /// Node that it runs on.
        pub node_name: String,
        /// Why it is in this phase, in one word.
        pub reason: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
        /// Phase, such as Scheduling or Running.
        pub phase: String,
        /// When each phase was entered.
        pub phase_transition_timestamps: Vec<PhaseTransition>,
        /// Network interfaces.
        pub interfaces: Vec<NetworkInterfaceStatus>,
        /// What the guest agent says of the operating system.
        #[serde(rename = "guestOSInfo")]
        pub guest_os_info: GuestOsInfo,
        /// Live migration.
        pub migration_state: Option<MigrationState>,
        /// BlockMigration or LiveMigration.
        pub migration_method: String,
        /// Unix.
        pub migration_transport: String,
        /// Quality of service class of the pod.
        pub qos_class: Option<String>,
        /// Image of the launcher.
        pub launcher_container_image_version: String,
        /// Node that it should leave.
        pub evacuation_node_name: String,
        /// UIDs of its pods that are not finished, and their nodes.
        pub active_pods: BTreeMap<String, String>,
        /// Volumes.
        pub volume_status: Vec<VolumeStatus>,
        /// Direct kernel boot.
        #[schemars(schema_with = "embedded::open_object")]
        pub kernel_boot_status: Option<serde_json::Value>,
        /// `frozen` when the guest's filesystems were asked to freeze.
        pub fs_freeze_status: String,
        /// Topology that the guest depends on.
        pub topology_hints: Option<TopologyHints>,
        /// ControllerRevision of the VirtualMachine that it was started from.
        pub virtual_machine_revision_name: String,
        /// User that the launcher runs as.
        #[schemars(schema_with = "int64")]
        pub runtime_user: u64,
        /// VSOCK address.
        #[serde(rename = "VSOCKCID")]
        pub vsock_cid: Option<u32>,
        /// SELinux context of the pod.
        pub selinux_context: String,
        /// Machine type as QEMU resolved it.
        pub machine: Option<Machine>,
        /// CPU topology as it is.
        #[serde(rename = "currentCPUTopology")]
        pub current_cpu_topology: Option<CpuTopology>,
        /// Memory as it is.
        pub memory: Option<MemoryStatus>,
        /// Volumes that migrate.
        #[schemars(with = "Vec<OpenObject>")]
        pub migrated_volumes: Vec<serde_json::Value>,
        /// Tracking of changed blocks.
        #[schemars(schema_with = "embedded::open_object")]
        pub changed_block_tracking: Option<serde_json::Value>,
    }

    /// A condition.
    pub struct Condition {
        /// Type.
        #[required]
        pub r#type: String,
        /// True, False, Unknown.
        #[required]
        pub status: String,
        /// When it was last looked at.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub last_probe_time: Option<Time>,
        /// When the status last changed.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub last_transition_time: Option<Time>,
        /// Why, in one word.
        pub reason: String,
        /// Why, in a sentence.
        pub message: String,
    }

    /// When a phase was entered.
    pub struct PhaseTransition {
        /// The phase.
        pub phase: String,
        /// The time.
        #[schemars(schema_with = "embedded::time")]
        pub phase_transition_timestamp: Option<Time>,
    }

    /// A network interface as it is.
    pub struct NetworkInterfaceStatus {
        /// First address.
        pub ip_address: String,
        /// MAC address.
        pub mac: String,
        /// Name of the interface in the spec.
        pub name: String,
        /// All addresses.
        pub ip_addresses: Vec<String>,
        /// Name of the interface in the pod.
        pub pod_interface_name: String,
        /// Name of the interface in the guest.
        pub interface_name: String,
        /// Who says so: domain, guest-agent, multus-status.
        pub info_source: String,
        /// Number of queues.
        pub queue_count: i32,
        /// up or down.
        pub link_state: String,
    }

    /// What the guest agent says of the operating system.
    pub struct GuestOsInfo {
        /// Name.
        pub name: String,
        /// Kernel release.
        pub kernel_release: String,
        /// Version.
        pub version: String,
        /// Name for people.
        pub pretty_name: String,
        /// Version id.
        pub version_id: String,
        /// Kernel version.
        pub kernel_version: String,
        /// Machine type.
        pub machine: String,
        /// Id.
        pub id: String,
    }

    /// A volume as it is.
    pub struct VolumeStatus {
        /// Name of the volume.
        #[required]
        pub name: String,
        /// Device in the guest, such as vda.
        #[written]
        pub target: String,
        /// Phase of a hotplug.
        pub phase: String,
        /// Why, in one word.
        pub reason: String,
        /// Why, in a sentence.
        pub message: String,
        /// The claim underneath.
        #[schemars(schema_with = "embedded::open_object")]
        pub persistent_volume_claim_info: Option<serde_json::Value>,
        /// Hotplug.
        #[schemars(schema_with = "embedded::open_object")]
        pub hotplug_volume: Option<serde_json::Value>,
        /// Size in bytes.
        pub size: i64,
        /// Memory dump.
        #[schemars(schema_with = "embedded::open_object")]
        pub memory_dump_volume: Option<serde_json::Value>,
        /// Container disk.
        #[schemars(schema_with = "embedded::open_object")]
        pub container_disk_volume: Option<serde_json::Value>,
    }

    /// Topology that the guest depends on.
    pub struct TopologyHints {
        /// Frequency of the time stamp counter, Hz.
        pub tsc_frequency: Option<i64>,
    }

    /// Memory as it is.
    pub struct MemoryStatus {
        /// At boot.
        pub guest_at_boot: Option<Quantity>,
        /// Now.
        pub guest_current: Option<Quantity>,
        /// Asked for.
        pub guest_requested: Option<Quantity>,
        /// What the launcher needs beside the guest.
        pub memory_overhead: Option<Quantity>,
    }

    /// A live migration as it is.
    pub struct MigrationState {
        /// Begin.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub start_timestamp: Option<Time>,
        /// End.
        #[schemars(schema_with = "embedded::nullable_time")]
        pub end_timestamp: Option<Time>,
        /// When the target saw the guest active.
        #[schemars(schema_with = "embedded::time")]
        pub target_node_domain_ready_timestamp: Option<Time>,
        /// The target has seen the guest.
        pub target_node_domain_detected: bool,
        /// Address of the target.
        pub target_node_address: String,
        /// Ports of the target.
        pub target_direct_migration_node_ports: BTreeMap<String, i32>,
        /// Target node.
        pub target_node: String,
        /// Target pod.
        pub target_pod: String,
        /// UID of the target's attachment pod.
        #[serde(rename = "targetAttachmentPodUID")]
        pub target_attachment_pod_uid: String,
        /// Source node.
        pub source_node: String,
        /// Source pod.
        pub source_pod: String,
        /// It is over.
        pub completed: bool,
        /// It failed.
        pub failed: bool,
        /// It should be aborted.
        pub abort_requested: bool,
        /// How the abort went.
        pub abort_status: String,
        /// Why it failed.
        pub failure_reason: String,
        /// UID of its VirtualMachineInstanceMigration.
        pub migration_uid: String,
        /// PreCopy, PostCopy, Paused.
        pub mode: String,
        /// Policy that it follows.
        pub migration_policy_name: Option<String>,
        /// Settings that it follows.
        #[schemars(schema_with = "embedded::open_object")]
        pub migration_configuration: Option<serde_json::Value>,
        /// CPUs on the target.
        #[serde(rename = "targetCPUSet")]
        pub target_cpu_set: Vec<i32>,
        /// NUMA topology on the target.
        pub target_node_topology: String,
        /// Claim of the persistent state at the source.
        #[serde(rename = "sourcePersistentStatePVCName")]
        pub source_persistent_state_pvc_name: String,
        /// Claim of the persistent state at the target.
        #[serde(rename = "targetPersistentStatePVCName")]
        pub target_persistent_state_pvc_name: String,
        /// What the source's handler says.
        #[schemars(schema_with = "embedded::open_object")]
        pub source_state: Option<serde_json::Value>,
        /// What the target's handler says.
        #[schemars(schema_with = "embedded::open_object")]
        pub target_state: Option<serde_json::Value>,
        /// pod or migration.
        pub migration_network_type: String,
        /// What the target's launcher needs beside the guest.
        pub target_memory_overhead: Option<Quantity>,
    }
}

/// An object whose fields are kept as they are.
pub(crate) struct OpenObject;

impl schemars::JsonSchema for OpenObject {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OpenObject".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        embedded::open_object(generator)
    }
}

fn int64(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "integer", "format": "int64"})
}

/// Phases of a virtual machine instance.
pub mod phase {
    /// Not yet seen by a controller.
    pub const UNSET: &str = "";
    /// Accepted; no pod yet.
    pub const PENDING: &str = "Pending";
    /// The pod exists and does not run yet.
    pub const SCHEDULING: &str = "Scheduling";
    /// The pod runs; the node's handler takes over.
    pub const SCHEDULED: &str = "Scheduled";
    /// The guest runs.
    pub const RUNNING: &str = "Running";
    /// The guest shut down.
    pub const SUCCEEDED: &str = "Succeeded";
    /// The guest crashed, or was deleted before it ran.
    pub const FAILED: &str = "Failed";
    /// Waits for another instance's state.
    pub const WAITING_FOR_SYNC: &str = "WaitingForSync";
    /// The node cannot be asked.
    pub const UNKNOWN: &str = "Unknown";
}

impl VirtualMachineInstance {
    /// Its phase; empty before any controller has seen it.
    #[must_use]
    pub fn phase(&self) -> &str {
        self.status.as_ref().map_or("", |status| status.phase.as_str())
    }

    /// Whether it will never run again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.phase(), phase::SUCCEEDED | phase::FAILED)
    }

    /// The condition of this type.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.as_ref().and_then(|status| find_condition(&status.conditions, kind))
    }

    /// Whether the condition of this type is there and true.
    #[must_use]
    pub fn is_true(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(Condition::is_true)
    }

    /// Whether the guest's CPUs are stopped.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.is_true("Paused")
    }
}

/// The condition of this type among others.
#[must_use]
pub fn find_condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.r#type == kind)
}

/// Sets a condition; its transition time moves only when its status does. Tells whether anything but the time of
/// the probe changed.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition, now: &Time) -> bool {
    let Some(old) = conditions.iter_mut().find(|condition| condition.r#type == new.r#type) else {
        new.last_transition_time = Some(now.clone());
        conditions.push(new);
        return true;
    };
    new.last_transition_time =
        if old.status == new.status { old.last_transition_time.clone() } else { Some(now.clone()) };
    new.last_probe_time = old.last_probe_time.clone();
    if *old == new {
        return false;
    }
    *old = new;
    true
}

impl Condition {
    /// A condition without times.
    #[must_use]
    pub fn new(kind: &str, status: &str, reason: &str, message: &str) -> Self {
        Self {
            r#type: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..Self::default()
        }
    }

    /// Whether it is true.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}
