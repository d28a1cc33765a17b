//! The other kinds of `kubevirt.io/v1`: replica sets, migrations, presets, and the KubeVirt object with the
//! cluster's settings.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use serde::Deserialize;

use super::api::{api, kind};
use super::domain::DomainSpec;
use super::embedded;
use super::quantity::Quantity;
use super::vm::VirtualMachineInstanceTemplateSpec;
use super::vmi::{Condition, MigrationState, PhaseTransition};

/// A number of equal virtual machine instances.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineInstanceReplicaSet {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: ReplicaSetSpec,
    /// What is.
    pub status: Option<ReplicaSetStatus>,
}

kind!(VirtualMachineInstanceReplicaSet, "kubevirt.io", "v1", "VirtualMachineInstanceReplicaSet",
    "virtualmachineinstancereplicasets", NamespaceResourceScope, {spec: "spec"; status: "status"});

/// A wish to move an instance to another node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineInstanceMigration {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: MigrationSpec,
    /// What is.
    pub status: Option<MigrationStatus>,
}

kind!(VirtualMachineInstanceMigration, "kubevirt.io", "v1", "VirtualMachineInstanceMigration",
    "virtualmachineinstancemigrations", NamespaceResourceScope, {spec: "spec"; status: "status"});

/// Settings applied to matching instances; deprecated in favour of instance types.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineInstancePreset {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: PresetSpec,
}

kind!(VirtualMachineInstancePreset, "kubevirt.io", "v1", "VirtualMachineInstancePreset",
    "virtualmachineinstancepresets", NamespaceResourceScope, {spec: "spec"});

/// The cluster's settings for virtual machines, and the state of their machinery.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct KubeVirt {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Settings.
    pub spec: KubeVirtSpec,
    /// State.
    pub status: Option<KubeVirtStatus>,
}

kind!(KubeVirt, "kubevirt.io", "v1", "KubeVirt", "kubevirts", NamespaceResourceScope, {spec: "spec"; status: "status"});

api! {
    /// What a replica set should be.
    pub struct ReplicaSetSpec {
        /// How many. Default 1.
        pub replicas: Option<i32>,
        /// Labels of its instances.
        #[required]
        #[schemars(with = "embedded::LabelSelector")]
        pub selector: LabelSelector,
        /// The instance.
        #[required]
        pub template: Option<VirtualMachineInstanceTemplateSpec>,
        /// Do nothing for now.
        pub paused: bool,
    }

    /// What a replica set is.
    pub struct ReplicaSetStatus {
        /// Instances that are not finished.
        pub replicas: i32,
        /// Instances that are ready.
        pub ready_replicas: i32,
        /// Conditions.
        pub conditions: Vec<Condition>,
        /// The selector as text, for `/scale`.
        pub label_selector: String,
    }

    /// What a migration should be.
    pub struct MigrationSpec {
        /// Name of the instance.
        pub vmi_name: String,
        /// Further labels that the target must have.
        pub added_node_selector: BTreeMap<String, String>,
        /// Send to another cluster.
        pub send_to: Option<MigrationSource>,
        /// Receive from another cluster.
        pub receive: Option<MigrationTarget>,
        /// system-critical, user-triggered, system-maintenance.
        pub priority: Option<String>,
    }

    /// Where to send to.
    pub struct MigrationSource {
        /// Id of the migration.
        #[required]
        #[serde(rename = "migrationID")]
        pub migration_id: String,
        /// URL to connect to.
        #[required]
        #[serde(rename = "connectURL")]
        pub connect_url: String,
    }

    /// What to receive.
    pub struct MigrationTarget {
        /// Id of the migration.
        #[required]
        #[serde(rename = "migrationID")]
        pub migration_id: String,
    }

    /// What a migration is.
    pub struct MigrationStatus {
        /// Phase.
        pub phase: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
        /// When each phase was entered.
        pub phase_transition_timestamps: Vec<PhaseTransition>,
        /// State as the instance shows it.
        pub migration_state: Option<MigrationState>,
        /// Addresses of the synchronisation controller.
        pub synchronization_addresses: Vec<String>,
    }

    /// What a preset sets.
    pub struct PresetSpec {
        /// Labels of the instances that it applies to.
        #[required]
        #[schemars(with = "embedded::LabelSelector")]
        pub selector: LabelSelector,
        /// Settings.
        pub domain: Option<DomainSpec>,
    }

    /// Settings for virtual machines. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct KubeVirtSpec {
        /// Settings.
        pub configuration: KubeVirtConfiguration,
        /// When to pull images.
        pub image_pull_policy: Option<String>,
        /// What deleting this object does to running machines.
        pub uninstall_strategy: Option<String>,
    }

    /// Settings for virtual machines. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct KubeVirtConfiguration {
        /// Feature gates, emulation, overcommit.
        pub developer_configuration: DeveloperConfiguration,
        /// Default machine type.
        pub machine_type: Option<String>,
        /// Default CPU model.
        pub cpu_model: Option<String>,
        /// Default eviction strategy.
        pub eviction_strategy: Option<String>,
        /// When a launcher's image is pulled.
        pub image_pull_policy: Option<String>,
        /// How changes reach running machines: Stage, LiveUpdate.
        #[schemars(extend("enum" = ["Stage", "LiveUpdate"]))]
        pub vm_rollout_strategy: Option<String>,
        /// TLS between KubeVirt's components and with their clients.
        pub tls_configuration: Option<TlsConfiguration>,
        /// Defaults of networks.
        pub network: Option<NetworkConfiguration>,
        /// Defaults by architecture.
        pub architecture_configuration: Option<ArchitectureConfiguration>,
        /// Class of the claims that keep what machines keep beside their disks; absent, the default class.
        pub vm_state_storage_class: Option<String>,
        /// What all machines have or do without.
        pub virtual_machine_options: Option<VirtualMachineOptions>,
        /// What firmware tells guests of their machines; KubeVirt's own strings where nothing is said.
        pub smbios: Option<SmBiosConfiguration>,
        /// Machine types that may be had, `*` being anything; none said, all that there are.
        pub emulated_machines: Vec<String>,
        /// Runtime class of launchers.
        pub default_runtime_class: Option<String>,
        /// By what is multiplied what a launcher is reckoned to need beside its guest: a number of 1 at least.
        pub additional_guest_memory_overhead_ratio: Option<String>,
        /// What the containers beside the launcher's ask for.
        pub support_container_resources: Vec<SupportContainerResources>,
    }

    /// What the containers of a kind ask for. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct SupportContainerResources {
        /// Their kind: container-disk, guest-console-log; of others there are none.
        #[required]
        pub r#type: String,
        /// The amounts.
        #[required]
        pub resources: ContainerAmounts,
    }

    /// What a container asks for, and may use. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct ContainerAmounts {
        /// What is reserved.
        pub requests: BTreeMap<String, Quantity>,
        /// What may be used.
        pub limits: BTreeMap<String, Quantity>,
    }

    /// TLS between KubeVirt's components and with their clients.
    pub struct TlsConfiguration {
        /// The oldest version that is spoken.
        #[schemars(extend("enum" = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"]))]
        #[serde(rename = "minTLSVersion")]
        pub min_tls_version: Option<String>,
        /// What may be chosen of, by the names of Go's library; not from TLS 1.3 on, where nothing is chosen.
        pub ciphers: Vec<String>,
    }

    /// Strings of SMBIOS type 1. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct SmBiosConfiguration {
        /// Default KubeVirt.
        pub manufacturer: Option<String>,
        /// Default None.
        pub product: Option<String>,
        /// Version.
        pub version: Option<String>,
        /// SKU number.
        pub sku: Option<String>,
        /// Default KubeVirt.
        pub family: Option<String>,
    }

    /// Defaults of networks. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct NetworkConfiguration {
        /// Binding of interfaces that name none: masquerade, bridge.
        pub default_network_interface: Option<String>,
        /// Whether guests may take their pod's address by a bridge. Default true.
        pub permit_bridge_interface_on_pod_network: Option<bool>,
    }

    /// Defaults by architecture. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct ArchitectureConfiguration {
        /// Of amd64.
        pub amd64: Option<ArchitectureDefaults>,
    }

    /// Defaults of an architecture. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct ArchitectureDefaults {
        /// Default machine type.
        pub machine_type: Option<String>,
        /// Machine types that may be had, `*` being anything; none said, all that there are.
        pub emulated_machines: Vec<String>,
    }

    /// What all machines have or do without. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct VirtualMachineOptions {
        /// There: consoles are not logged unless an instance asks for it.
        #[schemars(schema_with = "embedded::open_object")]
        pub disable_serial_console_log: Option<serde_json::Value>,
    }

    /// Feature gates, emulation, overcommit. Fields that nothing reads yet are kept as they are.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct DeveloperConfiguration {
        /// Features to switch on.
        pub feature_gates: Vec<String>,
        /// Features to switch off.
        pub disabled_feature_gates: Vec<String>,
        /// Emulate the CPU where there is no KVM.
        pub use_emulation: Option<bool>,
        /// Virtual CPUs for each requested CPU. Default 10.
        pub cpu_allocation_ratio: Option<i64>,
        /// Guest memory in percent of the request. Default 100.
        pub memory_overcommit: Option<i64>,
        /// How much smaller than its claim an image that is made there may be, in percent. Default 10.
        pub pvc_tolerate_less_space_up_to_percent: Option<i64>,
        /// Labels that every node with guests must have.
        pub node_selectors: BTreeMap<String, String>,
    }

    /// State of the machinery.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub struct KubeVirtStatus {
        /// Deploying, Deployed, Deleting, Deleted.
        pub phase: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
        /// Version that runs.
        pub observed_kube_virt_version: String,
        /// Version that is wanted.
        pub target_kube_virt_version: String,
        /// Generation last seen.
        pub observed_generation: i64,
        /// Version of the operator.
        pub operator_version: String,
        /// When it was made.
        #[schemars(schema_with = "embedded::time")]
        pub created_timestamp: Option<Time>,
    }
}
