//! The devices of a guest: disks, interfaces, inputs, watchdog and the rest of `spec.domain.devices`.

use super::api::api;
use super::quantity::Quantity;

api! {
    /// All devices of a guest.
    pub struct Devices {
        /// Fall back to virtio 0.9 for old guests.
        pub use_virtio_transitional: Option<bool>,
        /// Forbid to hotplug disks.
        pub disable_hotplug: bool,
        /// Disks, CD drives and LUNs; each belongs to the volume of the same name.
        #[schemars(length(max = 256))]
        pub disks: Vec<Disk>,
        /// A watchdog device.
        pub watchdog: Option<Watchdog>,
        /// Network interfaces; each belongs to the network of the same name.
        #[schemars(length(max = 256))]
        pub interfaces: Vec<Interface>,
        /// Input devices.
        pub inputs: Vec<Input>,
        /// Give the guest an interface on the pod network when none is named. Default true.
        pub autoattach_pod_interface: Option<bool>,
        /// Give the guest a graphics device (VNC). Default true.
        pub autoattach_graphics_device: Option<bool>,
        /// Give the guest a serial console. Default true.
        pub autoattach_serial_console: Option<bool>,
        /// Log the serial console into container `guest-console-log`.
        pub log_serial_console: Option<bool>,
        /// Give the guest a memory balloon. Default true.
        pub autoattach_mem_balloon: Option<bool>,
        /// Give the guest an input device. Default false.
        pub autoattach_input_device: Option<bool>,
        /// Give the guest a VSOCK device. Default false.
        #[serde(rename = "autoattachVSOCK")]
        pub autoattach_vsock: Option<bool>,
        /// A random number generator fed by the host.
        pub rng: Option<Rng>,
        /// Several queues for block devices.
        pub block_multi_queue: Option<bool>,
        /// Several queues for network devices.
        pub network_interface_multiqueue: Option<bool>,
        /// GPUs.
        pub gpus: Vec<HostDevice>,
        /// A virtio port with host metrics.
        pub downward_metrics: Option<DownwardMetrics>,
        /// Devices over which a guest reports that it crashed.
        pub panic_devices: Vec<PanicDevice>,
        /// Shared filesystems.
        pub filesystems: Vec<Filesystem>,
        /// Devices of the host.
        pub host_devices: Vec<HostDevice>,
        /// Redirection of a client's USB devices.
        pub client_passthrough: Option<ClientPassthroughDevices>,
        /// A sound card.
        pub sound: Option<SoundDevice>,
        /// A trusted platform module.
        pub tpm: Option<TpmDevice>,
        /// The video device.
        pub video: Option<VideoDevice>,
    }

    /// A disk; its contents come from the volume of the same name. Of `disk`, `lun` and `cdrom` at most one.
    pub struct Disk {
        /// Name of the disk and of its volume.
        #[required]
        pub name: String,
        /// Attach as a disk.
        pub disk: Option<DiskTarget>,
        /// Attach as a LUN.
        pub lun: Option<LunTarget>,
        /// Attach as a CD drive.
        pub cdrom: Option<CdRomTarget>,
        /// Place in the boot order, from 1.
        pub boot_order: Option<u32>,
        /// Serial number that the guest sees.
        pub serial: Option<String>,
        /// An I/O thread for this disk alone.
        #[serde(rename = "dedicatedIOThread")]
        pub dedicated_io_thread: Option<bool>,
        /// Cache mode: none, writethrough, writeback.
        pub cache: Option<String>,
        /// I/O mode: native, default, threads.
        pub io: Option<String>,
        /// Tag passed to the guest by config drive.
        pub tag: Option<String>,
        /// Block sizes that the guest sees.
        pub block_size: Option<BlockSize>,
        /// Whether several guests may write to it.
        pub shareable: Option<bool>,
        /// What to do on an I/O error: stop, ignore, report, enospace.
        pub error_policy: Option<String>,
        /// Track changed blocks for backups.
        pub changed_block_tracking: Option<bool>,
    }

    /// Block sizes: given, or those of the volume.
    pub struct BlockSize {
        /// Sizes as given.
        pub custom: Option<CustomBlockSize>,
        /// The volume's own sizes.
        pub match_volume: Option<FeatureState>,
    }

    /// Block sizes in bytes.
    pub struct CustomBlockSize {
        /// Logical block size, bytes.
        pub logical: u32,
        /// Physical block size, bytes.
        pub physical: u32,
        /// Granularity of discards, bytes.
        pub discard_granularity: Option<u32>,
    }

    /// How a disk is attached.
    pub struct DiskTarget {
        /// Bus: virtio, sata, scsi, usb.
        pub bus: Option<String>,
        /// Read-only.
        pub readonly: bool,
        /// PCI address in the guest.
        pub pci_address: Option<String>,
    }

    /// How a LUN is attached.
    pub struct LunTarget {
        /// Bus: virtio, sata, scsi.
        pub bus: Option<String>,
        /// Read-only.
        pub readonly: bool,
        /// SCSI persistent reservations.
        pub reservation: bool,
    }

    /// How a CD drive is attached.
    pub struct CdRomTarget {
        /// Bus: virtio, sata, scsi.
        pub bus: Option<String>,
        /// Read-only. Default true.
        pub readonly: Option<bool>,
        /// State of the tray: open, closed.
        pub tray: Option<String>,
    }

    /// Whether a feature is on. Default true.
    pub struct FeatureState {
        /// On or off.
        pub enabled: Option<bool>,
    }

    /// A watchdog device.
    pub struct Watchdog {
        /// Name of the device.
        #[required]
        pub name: String,
        /// The i6300esb device.
        pub i6300esb: Option<WatchdogModel>,
        /// The diag288 device of s390x.
        pub diag288: Option<WatchdogModel>,
    }

    /// What a watchdog does when it fires.
    pub struct WatchdogModel {
        /// Action: poweroff, reset, shutdown. Default reset.
        pub action: Option<String>,
    }

    /// A random number generator.
    pub struct Rng {}

    /// A virtio port with host metrics.
    pub struct DownwardMetrics {}

    /// Redirection of a client's USB devices.
    pub struct ClientPassthroughDevices {}

    /// A device over which a guest reports that it crashed.
    pub struct PanicDevice {
        /// Model: hyperv, isa, pvpanic.
        pub model: Option<String>,
    }

    /// A filesystem shared with the guest.
    pub struct Filesystem {
        /// Name of the filesystem and of its volume.
        #[required]
        pub name: String,
        /// Shared by virtiofs.
        #[required]
        pub virtiofs: Option<FilesystemVirtiofs>,
    }

    /// Sharing by virtiofs.
    pub struct FilesystemVirtiofs {}

    /// A device of the host, or a GPU.
    pub struct HostDevice {
        /// Name of the device in the guest.
        #[required]
        pub name: String,
        /// Resource name of its device plugin.
        pub device_name: Option<String>,
        /// Resource claim that it comes from.
        pub claim_name: Option<String>,
        /// Request in that claim.
        pub request_name: Option<String>,
        /// Options of a virtual GPU.
        #[serde(rename = "virtualGPUOptions")]
        pub virtual_gpu_options: Option<VgpuOptions>,
        /// Tag passed to the guest by config drive.
        pub tag: Option<String>,
    }

    /// Options of a virtual GPU.
    pub struct VgpuOptions {
        /// Its display.
        pub display: Option<VgpuDisplayOptions>,
    }

    /// The display of a virtual GPU.
    pub struct VgpuDisplayOptions {
        /// On or off. Default true.
        pub enabled: Option<bool>,
        /// A boot framebuffer until the guest's driver runs.
        #[serde(rename = "ramFB")]
        pub ram_fb: Option<FeatureState>,
    }

    /// An input device.
    pub struct Input {
        /// Bus: virtio, usb.
        pub bus: Option<String>,
        /// Type: tablet, keyboard.
        #[required]
        pub r#type: String,
        /// Name of the device.
        #[required]
        pub name: String,
    }

    /// A sound card.
    pub struct SoundDevice {
        /// Name of the device.
        #[required]
        pub name: String,
        /// Model: ich9, ac97. Default ich9.
        pub model: Option<String>,
    }

    /// A trusted platform module.
    pub struct TpmDevice {
        /// On or off. Default true.
        pub enabled: Option<bool>,
        /// Whether its state outlives a restart.
        pub persistent: Option<bool>,
    }

    /// The video device.
    pub struct VideoDevice {
        /// Type: virtio, vga, cirrus, bochs, ramfb.
        pub r#type: Option<String>,
    }

    /// A network interface of the guest. Of the bindings at most one.
    pub struct Interface {
        /// Name of the interface and of its network.
        #[required]
        pub name: String,
        /// Model: e1000, e1000e, igb, ne2k_pci, pcnet, rtl8139, virtio. Default virtio.
        pub model: Option<String>,
        /// Binding by a Linux bridge.
        pub bridge: Option<Binding>,
        /// Binding by QEMU's user network; removed upstream.
        pub slirp: Option<Binding>,
        /// Binding by address translation.
        pub masquerade: Option<Binding>,
        /// Binding by passing a virtual function through.
        pub sriov: Option<Binding>,
        /// Binding by macvtap; removed upstream.
        pub macvtap: Option<Binding>,
        /// Binding by passt; removed upstream.
        pub passt: Option<Binding>,
        /// Binding by passt.
        pub passt_binding: Option<Binding>,
        /// Binding by a plugin.
        pub binding: Option<PluginBinding>,
        /// Ports forwarded to the guest; all when empty.
        pub ports: Vec<Port>,
        /// MAC address.
        pub mac_address: Option<String>,
        /// Place in the boot order, from 1.
        pub boot_order: Option<u32>,
        /// PCI address in the guest.
        pub pci_address: Option<String>,
        /// Further DHCP options.
        pub dhcp_options: Option<DhcpOptions>,
        /// Tag passed to the guest by config drive.
        pub tag: Option<String>,
        /// ACPI index, by which the guest names the interface.
        pub acpi_index: Option<i32>,
        /// Wanted state: up, down, absent.
        pub state: Option<String>,
    }

    /// A binding without parameters.
    pub struct Binding {}

    /// A binding by a plugin.
    pub struct PluginBinding {
        /// Name of the plugin in the KubeVirt object.
        #[required]
        pub name: String,
    }

    /// A port of the guest.
    pub struct Port {
        /// Name of the port.
        pub name: Option<String>,
        /// TCP or UDP. Default TCP.
        pub protocol: Option<String>,
        /// Port number.
        #[required]
        pub port: i32,
    }

    /// Further DHCP options.
    pub struct DhcpOptions {
        /// Option 67.
        pub boot_file_name: Option<String>,
        /// Option 66.
        pub tftp_server_name: Option<String>,
        /// Option 42.
        pub ntp_servers: Vec<String>,
        /// Options 224 to 254.
        pub private_options: Vec<DhcpPrivateOption>,
    }

    /// A private DHCP option.
    pub struct DhcpPrivateOption {
        /// Number, 224 to 254.
        #[required]
        pub option: i32,
        /// Value.
        #[required]
        pub value: String,
    }

    /// A network that an interface is connected to. Of `pod` and `multus` at most one; `pod` by default.
    pub struct Network {
        /// Name of the network.
        #[required]
        pub name: String,
        /// The pod network.
        pub pod: Option<PodNetwork>,
        /// A network of Multus.
        pub multus: Option<MultusNetwork>,
        /// A network that comes from a resource claim.
        pub resource_claim: Option<ResourceClaimNetwork>,
    }

    /// The pod network.
    pub struct PodNetwork {
        /// IPv4 network of the guest. Default 10.0.2.0/24.
        #[serde(rename = "vmNetworkCIDR")]
        pub vm_network_cidr: Option<String>,
        /// IPv6 network of the guest. Default `fd10:0:2::/120`.
        #[serde(rename = "vmIPv6NetworkCIDR")]
        pub vm_ipv6_network_cidr: Option<String>,
    }

    /// A network of Multus.
    pub struct MultusNetwork {
        /// `<name>` or `<namespace>/<name>` of a NetworkAttachmentDefinition.
        #[required]
        pub network_name: String,
        /// Whether it takes the pod network's place.
        pub default: bool,
    }

    /// A network that comes from a resource claim.
    pub struct ResourceClaimNetwork {
        /// Resource claim of the instance.
        pub claim_name: Option<String>,
        /// Request in that claim.
        pub request_name: Option<String>,
    }

    /// A size with which a disk is created.
    pub struct EmptyDiskSource {
        /// Capacity of the sparse disk.
        #[required]
        pub capacity: Quantity,
    }
}
