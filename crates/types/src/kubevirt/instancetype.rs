//! `instancetype.kubevirt.io`: sizes of machines (instance types) and how guests of a kind like their devices
//! (preferences), each for one namespace or for all.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::api::{api, kind};
use super::devices::{BlockSize, FeatureState, HostDevice, Rng, TpmDevice, VgpuOptions};
use super::domain::{
    ClockOffsetUtc, CpuFeature, DiskIoThreads, Efi, FeatureApic, FeatureHyperv, FeatureKvm, Hugepages, LaunchSecurity,
    Numa, Realtime, Timers,
};
use super::quantity::Quantity;

macro_rules! kinds {
    ($($(#[$meta:meta])* $name:ident: $spec:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Metadata.
            pub metadata: ObjectMeta,
            /// What it sets.
            pub spec: $spec,
        }
    )*};
}

kinds! {
    /// A size of machines, for one namespace.
    VirtualMachineInstancetype: InstancetypeSpec;
    /// A size of machines, for all namespaces.
    VirtualMachineClusterInstancetype: InstancetypeSpec;
    /// How guests of a kind like their devices, for one namespace.
    VirtualMachinePreference: PreferenceSpec;
    /// How guests of a kind like their devices, for all namespaces.
    VirtualMachineClusterPreference: PreferenceSpec;
}

kind!(VirtualMachineInstancetype, "instancetype.kubevirt.io", "v1beta1", "VirtualMachineInstancetype",
    "virtualmachineinstancetypes", NamespaceResourceScope, {spec: "spec"});
kind!(VirtualMachineClusterInstancetype, "instancetype.kubevirt.io", "v1beta1", "VirtualMachineClusterInstancetype",
    "virtualmachineclusterinstancetypes", ClusterResourceScope, {spec: "spec"});
kind!(VirtualMachinePreference, "instancetype.kubevirt.io", "v1beta1", "VirtualMachinePreference",
    "virtualmachinepreferences", NamespaceResourceScope, {spec: "spec"});
kind!(VirtualMachineClusterPreference, "instancetype.kubevirt.io", "v1beta1", "VirtualMachineClusterPreference",
    "virtualmachineclusterpreferences", ClusterResourceScope, {spec: "spec"});

api! {
    /// A size of machines.
    pub struct InstancetypeSpec {
        /// Labels that nodes must have.
        pub node_selector: BTreeMap<String, String>,
        /// Scheduler of the pods.
        pub scheduler_name: String,
        /// CPUs.
        #[required]
        pub cpu: InstancetypeCpu,
        /// Memory.
        #[required]
        pub memory: InstancetypeMemory,
        /// GPUs.
        #[serde(rename = "gpus")]
        pub gpus: Vec<HostDevice>,
        /// Devices of the host.
        pub host_devices: Vec<HostDevice>,
        /// I/O threads: shared, auto, supplementalPool.
        pub io_threads_policy: Option<String>,
        /// How many I/O threads.
        pub io_threads: Option<DiskIoThreads>,
        /// Confidential computing.
        pub launch_security: Option<LaunchSecurity>,
        /// Annotations of the instances.
        pub annotations: BTreeMap<String, String>,
    }

    /// CPUs of an instance type.
    pub struct InstancetypeCpu {
        /// How many virtual CPUs the guest has.
        #[required]
        pub guest: u32,
        /// Model.
        pub model: Option<String>,
        /// CPUs of its own.
        #[serde(rename = "dedicatedCPUPlacement")]
        pub dedicated_cpu_placement: Option<bool>,
        /// NUMA topology.
        pub numa: Option<Numa>,
        /// One more CPU for the emulator.
        pub isolate_emulator_thread: Option<bool>,
        /// Real-time settings.
        pub realtime: Option<Realtime>,
        /// Sockets that can be reached by hotplug.
        pub max_sockets: Option<u32>,
    }

    /// Memory of an instance type.
    pub struct InstancetypeMemory {
        /// What the guest sees.
        #[required]
        pub guest: Quantity,
        /// Huge pages.
        pub hugepages: Option<Hugepages>,
        /// By how much less than that is asked for, in percent.
        pub overcommit_percent: u32,
        /// What can be reached by hotplug.
        pub max_guest: Option<Quantity>,
    }

    /// How guests of a kind like their devices. What a spec says itself stands.
    pub struct PreferenceSpec {
        /// Clock and timers.
        pub clock: Option<ClockPreferences>,
        /// CPUs.
        pub cpu: Option<CpuPreferences>,
        /// Devices.
        pub devices: Option<DevicePreferences>,
        /// Features.
        pub features: Option<FeaturePreferences>,
        /// Firmware.
        pub firmware: Option<FirmwarePreferences>,
        /// Machine type.
        pub machine: Option<MachinePreferences>,
        /// Volumes.
        pub volumes: Option<VolumePreferences>,
        /// Subdomain of the host name.
        pub preferred_subdomain: Option<String>,
        /// How long the guest may take to shut down, seconds.
        pub preferred_termination_grace_period_seconds: Option<i64>,
        /// What the guest needs at least.
        pub requirements: Option<PreferenceRequirements>,
        /// Annotations of the instances.
        pub annotations: BTreeMap<String, String>,
        /// Cores for each socket where CPUs are spread; deprecated.
        pub prefer_spread_socket_to_core_ratio: u32,
        /// CPU architecture.
        pub preferred_architecture: Option<String>,
    }

    /// Clock and timers.
    pub struct ClockPreferences {
        /// Where the clock stands.
        pub preferred_clock_offset: Option<ClockOffset>,
        /// Timers.
        pub preferred_timer: Option<Timers>,
    }

    /// Where a clock stands.
    pub struct ClockOffset {
        /// UTC, with an offset.
        pub utc: Option<ClockOffsetUtc>,
        /// A time zone's name.
        pub timezone: Option<String>,
    }

    /// CPUs.
    pub struct CpuPreferences {
        /// What an instance type's CPUs are shown as: sockets (default), cores, threads, spread, any, and the same with
        /// `prefer` before them.
        #[serde(rename = "preferredCPUTopology")]
        pub preferred_cpu_topology: Option<String>,
        /// How CPUs are spread.
        pub spread_options: Option<SpreadOptions>,
        /// Features.
        #[serde(rename = "preferredCPUFeatures")]
        pub preferred_cpu_features: Vec<CpuFeature>,
    }

    /// How CPUs are spread.
    pub struct SpreadOptions {
        /// Over what: SocketsCores (default), CoresThreads, SocketsCoresThreads.
        pub across: Option<String>,
        /// How many of the inner for each of the outer. Default 2.
        pub ratio: Option<u32>,
    }

    /// Devices.
    pub struct DevicePreferences {
        /// A graphics device.
        pub preferred_autoattach_graphics_device: Option<bool>,
        /// A memory balloon.
        pub preferred_autoattach_mem_balloon: Option<bool>,
        /// An interface on the pod network.
        pub preferred_autoattach_pod_interface: Option<bool>,
        /// A serial console.
        pub preferred_autoattach_serial_console: Option<bool>,
        /// An input device.
        pub preferred_autoattach_input_device: Option<bool>,
        /// Forbid to hotplug disks.
        pub preferred_disable_hotplug: Option<bool>,
        /// Options of virtual GPUs.
        #[serde(rename = "preferredVirtualGPUOptions")]
        pub preferred_virtual_gpu_options: Option<VgpuOptions>,
        /// Model of the sound card.
        pub preferred_sound_model: String,
        /// Virtio 0.9.
        pub preferred_use_virtio_transitional: Option<bool>,
        /// Bus of input devices.
        pub preferred_input_bus: String,
        /// Type of input devices.
        pub preferred_input_type: String,
        /// Bus of disks.
        pub preferred_disk_bus: String,
        /// Bus of LUNs.
        pub preferred_lun_bus: String,
        /// Bus of CD drives.
        pub preferred_cdrom_bus: String,
        /// An I/O thread for each disk.
        pub preferred_disk_dedicated_io_thread: Option<bool>,
        /// Cache mode of disks.
        pub preferred_disk_cache: String,
        /// I/O mode of disks.
        #[serde(rename = "preferredDiskIO")]
        pub preferred_disk_io: String,
        /// Block sizes of disks.
        pub preferred_disk_block_size: Option<BlockSize>,
        /// Model of interfaces.
        pub preferred_interface_model: String,
        /// A random number generator.
        pub preferred_rng: Option<Rng>,
        /// Several queues for block devices.
        pub preferred_block_multi_queue: Option<bool>,
        /// Several queues for network devices.
        pub preferred_network_interface_multi_queue: Option<bool>,
        /// A trusted platform module.
        #[serde(rename = "preferredTPM")]
        pub preferred_tpm: Option<TpmDevice>,
        /// Address translation for interfaces.
        pub preferred_interface_masquerade: Option<super::devices::Binding>,
        /// Model of the panic device.
        pub preferred_panic_device_model: Option<String>,
    }

    /// Features.
    pub struct FeaturePreferences {
        /// ACPI.
        pub preferred_acpi: Option<FeatureState>,
        /// APIC.
        pub preferred_apic: Option<FeatureApic>,
        /// Hyper-V.
        pub preferred_hyperv: Option<FeatureHyperv>,
        /// KVM's presence.
        pub preferred_kvm: Option<FeatureKvm>,
        /// Paravirtual spinlocks.
        pub preferred_pvspinlock: Option<FeatureState>,
        /// System management mode.
        pub preferred_smm: Option<FeatureState>,
    }

    /// Firmware.
    pub struct FirmwarePreferences {
        /// BIOS.
        pub preferred_use_bios: Option<bool>,
        /// BIOS that writes to the serial console.
        pub preferred_use_bios_serial: Option<bool>,
        /// EFI; deprecated.
        pub preferred_use_efi: Option<bool>,
        /// Secure boot; deprecated.
        pub preferred_use_secure_boot: Option<bool>,
        /// EFI.
        pub preferred_efi: Option<Efi>,
    }

    /// Machine type.
    pub struct MachinePreferences {
        /// QEMU's machine type.
        pub preferred_machine_type: String,
    }

    /// Volumes.
    pub struct VolumePreferences {
        /// Storage class of DataVolumes.
        pub preferred_storage_class_name: String,
    }

    /// What a guest needs at least.
    pub struct PreferenceRequirements {
        /// CPUs.
        pub cpu: Option<CpuRequirement>,
        /// Memory.
        pub memory: Option<MemoryRequirement>,
        /// CPU architecture.
        pub architecture: Option<String>,
    }

    /// CPUs that a guest needs.
    pub struct CpuRequirement {
        /// How many.
        #[required]
        pub guest: u32,
    }

    /// Memory that a guest needs.
    pub struct MemoryRequirement {
        /// How much.
        #[required]
        pub guest: Quantity,
    }
}
