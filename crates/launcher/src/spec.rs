//! The machine that virt-handler asks for, in the launcher's own terms.
//!
//! virt-handler maps a VirtualMachineInstance onto this once everything outside the launcher's reach is
//! settled: secrets are read, container disks are mounted, tap devices exist. Paths are those inside the
//! container.

use crate::accel::Accel;
use crate::board::{Board, is_false};
use crate::writer::Writer;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// A virtual machine to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// The VirtualMachineInstance's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID. The machine's sockets lie in a directory of this name.
    pub uid: String,
    /// The chip set.
    #[serde(default)]
    pub machine: MachineType,
    /// Its machine type by QEMU's name, where a version is asked for, such as `pc-q35-7.2`; absent, QEMU's newest. A launcher of
    /// the version before knows no such word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// How guest code is executed.
    pub accel: Accel,
    /// Virtual processors.
    #[serde(default)]
    pub cpu: CpuSpec,
    /// The guest's memory in bytes.
    pub memory_bytes: u64,
    /// What the firmware tells the guest about the machine.
    #[serde(default)]
    pub smbios: Smbios,
    /// Disks, in the order of the VirtualMachineInstance.
    #[serde(default)]
    pub disks: Vec<DiskSpec>,
    /// Network interfaces, in the order of the VirtualMachineInstance.
    #[serde(default)]
    pub nics: Vec<NicSpec>,
    /// A screen behind a VNC socket, with a tablet (KubeVirt's `autoattachGraphicsDevice`, on by default).
    #[serde(default = "yes")]
    pub graphics: bool,
    /// A first serial port (KubeVirt's `autoattachSerialConsole`, on by default).
    #[serde(default = "yes")]
    pub serial_console: bool,
    /// A memory balloon (KubeVirt's `autoattachMemBalloon`, on by default).
    #[serde(default = "yes")]
    pub balloon: bool,
    /// An entropy device.
    #[serde(default = "yes")]
    pub rng: bool,
    /// Start with the processors stopped (KubeVirt's `startStrategy: Paused`).
    #[serde(default)]
    pub start_paused: bool,
    /// Firmware, clock, watchdog and what else a machine is built on.
    #[serde(default)]
    pub board: Board,
    /// Which run of the machine this is, for the records of its disks; absent, there are none.
    #[serde(default)]
    pub run: Option<Run>,
}

/// A run of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Its number: greater than that of every run before it.
    pub epoch: u64,
    /// The node that it is on.
    pub node: String,
}

impl MachineSpec {
    /// What the records of its disks say.
    #[must_use]
    pub fn writer(&self) -> Option<Writer> {
        let run = self.run.as_ref()?;
        Some(Writer {
            epoch: run.epoch,
            uid: self.uid.clone(),
            machine: format!("{}/{}", self.namespace, self.name),
            node: run.node.clone(),
            left: false,
        })
    }
}

impl DiskSpec {
    /// Which caches its writes go through. A writer that is ended must leave nothing behind that the kernel would still write
    /// when somebody else has the disk. (KubeVirt's choice, too: `SetDriverCacheMode` in virt-launcher's converter.)
    #[must_use]
    pub fn cache(&self) -> CacheMode {
        let outlives = matches!(self.source, DiskSource::Persistent { .. });
        self.tuning.cache.unwrap_or(if outlives { CacheMode::None } else { CacheMode::Writeback })
    }

    /// The image that has a record of who writes it: one that outlives the machine and has one writer at a time.
    #[must_use]
    pub fn exclusive_image(&self) -> Option<&Path> {
        match &self.source {
            DiskSource::Persistent { path, .. } if !self.read_only && !self.cdrom && !self.tuning.shared => Some(path),
            _ => None,
        }
    }
}

fn yes() -> bool {
    true
}

/// The chip set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineType {
    /// PCI Express, KubeVirt's default.
    #[default]
    Q35,
    /// The older i440FX.
    Pc,
}

/// Virtual processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuSpec {
    /// Sockets, at least 1.
    pub sockets: u32,
    /// Cores in a socket, at least 1.
    pub cores: u32,
    /// Threads in a core, at least 1.
    pub threads: u32,
    /// A processor model by QEMU's name; absent, `host-model` and `host-passthrough` mean all the accelerator has.
    #[serde(default)]
    pub model: Option<String>,
    /// Features switched on and off, in QEMU's form: `+name`, `-name` or `name=value`.
    #[serde(default)]
    pub features: Vec<String>,
    /// Each virtual processor has a CPU of the container's to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated: Option<Dedicated>,
}

/// How CPUs of the container's are given to the machine's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dedicated {
    /// What else QEMU does has a CPU of its own, too.
    pub isolate_emulator: bool,
}

impl CpuSpec {
    /// How many virtual processors there are, if that is a number.
    #[must_use]
    pub fn count(&self) -> Option<u32> {
        self.sockets.checked_mul(self.cores)?.checked_mul(self.threads)
    }
}

impl Default for CpuSpec {
    fn default() -> Self {
        Self { sockets: 1, cores: 1, threads: 1, model: None, features: Vec::new(), dedicated: None }
    }
}

/// SMBIOS type 1 strings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Smbios {
    /// The machine's UUID; guests such as cloud-init take it for the machine's identity.
    pub uuid: Option<String>,
    /// The serial number.
    pub serial: Option<String>,
    /// `KubeVirt` when absent, as under KubeVirt.
    pub manufacturer: Option<String>,
    /// `None` when absent, as under KubeVirt.
    pub product: Option<String>,
    /// `KubeVirt` when absent, as under KubeVirt.
    pub family: Option<String>,
    /// The version.
    pub version: Option<String>,
    /// The stock keeping unit.
    pub sku: Option<String>,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// The disk's name in the VirtualMachineInstance.
    pub name: String,
    /// Where its contents come from.
    pub source: DiskSource,
    /// Presented as a disk or as a CD-ROM.
    #[serde(default)]
    pub cdrom: bool,
    /// The bus that it is attached to.
    #[serde(default)]
    pub bus: DiskBus,
    /// Whether the guest can write to it.
    #[serde(default)]
    pub read_only: bool,
    /// The serial number that the guest sees.
    #[serde(default)]
    pub serial: Option<String>,
    /// Its place in the boot order, from 1. Where no device has one, disks boot in their order.
    #[serde(default)]
    pub boot_order: Option<u32>,
    /// How it is read and written.
    #[serde(default)]
    pub tuning: DiskTuning,
}

/// How a disk is read and written. All of it may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiskTuning {
    /// Which caches writes go through. Absent, a disk that outlives the machine is written past the host's cache where that
    /// can be, and else through it; others into it.
    pub cache: Option<CacheMode>,
    /// The kernel's asynchronous I/O in place of threads; only without the host's cache.
    pub native_io: bool,
    /// Threads, also where the kernel's would do better.
    #[serde(skip_serializing_if = "is_false")]
    pub threaded_io: bool,
    /// What an I/O error does; absent, it stops the machine, as under KubeVirt.
    pub on_error: Option<OnError>,
    /// Logical block size in bytes.
    pub logical_block_bytes: Option<u32>,
    /// Physical block size in bytes.
    pub physical_block_bytes: Option<u32>,
    /// Other machines may have the disk open for writing, too.
    pub shared: bool,
    /// An I/O thread of its own (virtio only).
    pub own_thread: bool,
    /// The I/O thread of this number, which disks share (virtio only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_thread: Option<u32>,
}

/// Which caches writes go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheMode {
    /// Past the host's cache. Where the file system cannot, as `Writethrough`.
    None,
    /// Every write is on the disk when the guest hears of it.
    Writethrough,
    /// Into the host's cache; on the disk when the guest asks for it.
    Writeback,
}

/// What an I/O error does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The machine is paused.
    Stop,
    /// Nothing.
    Ignore,
    /// The guest is told.
    Report,
    /// A full disk pauses the machine; the guest is told of everything else.
    Enospace,
}

/// Where a disk's contents come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum DiskSource {
    /// An image that stays as it is; what the guest writes is gone with the machine (containerDisk, ephemeral).
    Ephemeral {
        /// The image: raw or qcow2 without a backing file.
        path: PathBuf,
    },
    /// An image or a block device that the guest writes to (PersistentVolumeClaim, hostDisk).
    Persistent {
        /// The image or device, always raw: a guest that can write a header must not be believed.
        path: PathBuf,
        /// Where there is no image yet, an empty one of this size is made, in bytes.
        #[serde(default)]
        create_bytes: Option<u64>,
        /// How much smaller that may be where there is less room, in percent; absent, as KubeVirt has it. A launcher of the version
        /// before knows no such word.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tolerance_percent: Option<u64>,
    },
    /// An empty disk that is gone with the machine (emptyDisk).
    Empty {
        /// Its size in bytes.
        capacity_bytes: u64,
    },
    /// NoCloud data for cloud-init.
    NoCloud(NoCloudSpec),
    /// A config drive for cloud-init.
    ConfigDrive(ConfigDriveSpec),
    /// The files of a directory, as they are when the machine starts (configMap, secret, downwardAPI, serviceAccount).
    Files {
        /// The directory. Names that begin with two dots are the kubelet's own and left out.
        directory: PathBuf,
        /// Label of the volume in the guest.
        label: String,
    },
}

/// A config drive for cloud-init, in OpenStack's form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigDriveSpec {
    /// `user_data`, decoded.
    pub user_data: String,
    /// `user_data` that is no text, such as what is compressed, in base64; in place of the other.
    #[serde(skip_serializing_if = "Option::is_none")] // A launcher of the version before knows no such word.
    pub user_data_base64: Option<String>,
    /// `network_data.json`, decoded.
    pub network_data: Option<String>,
    /// `uuid` and `instance_id` of `meta_data.json`.
    pub instance_id: String,
    /// `hostname` and `local_hostname`.
    pub hostname: String,
    /// Public keys by name.
    pub public_keys: std::collections::BTreeMap<String, String>,
}

/// NoCloud data for cloud-init.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoCloudSpec {
    /// `user-data`, decoded.
    pub user_data: String,
    /// `user-data` that is no text, such as what is compressed, in base64; in place of the other.
    #[serde(skip_serializing_if = "Option::is_none")] // A launcher of the version before knows no such word.
    pub user_data_base64: Option<String>,
    /// `network-config`, decoded.
    pub network_data: Option<String>,
    /// `instance-id` of `meta-data`.
    pub instance_id: String,
    /// `local-hostname` of `meta-data`.
    pub local_hostname: String,
    /// `public-keys` of `meta-data`, by name.
    pub public_keys: std::collections::BTreeMap<String, String>,
}

/// The bus that a disk is attached to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskBus {
    /// virtio-blk.
    #[default]
    Virtio,
    /// AHCI.
    Sata,
    /// virtio-scsi.
    Scsi,
    /// USB storage.
    Usb,
}

/// A network interface on a tap device that exists already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// The interface's name in the VirtualMachineInstance.
    pub name: String,
    /// The persistent tap device in the pod's network namespace.
    pub tap: String,
    /// The guest's hardware address.
    pub mac: String,
    /// The device model, one of KubeVirt's: virtio, e1000, e1000e, ne2k_pci, pcnet, rtl8139.
    #[serde(default)]
    pub model: NicModel,
    /// Packets are moved by the kernel (`/dev/vhost-net`) and not by QEMU.
    #[serde(default)]
    pub vhost: bool,
    /// In how many queues the guest has its packets, where that is more than one (virtio only). The tap device was made for
    /// several then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    /// The MTU that the guest is told, where the model can.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Its place in the boot order, from 1.
    #[serde(default)]
    pub boot_order: Option<u32>,
    /// The number by which the guest's firmware tells it from others, and many guests name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acpi_index: Option<u32>,
    /// What the guest gets by DHCP; absent, no server runs.
    #[serde(default)]
    pub dhcp: Option<DhcpSpec>,
}

/// The device model of a network interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants are the names of the devices")]
pub enum NicModel {
    #[default]
    Virtio,
    E1000,
    E1000e,
    Ne2kPci,
    Pcnet,
    Rtl8139,
}

/// The one lease of an interface's DHCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DhcpSpec {
    /// The interface in the pod's network namespace on which the server listens, such as the bridge.
    pub interface: String,
    /// The server's own address there.
    pub server: Ipv4Addr,
    /// The guest's address.
    pub address: Ipv4Addr,
    /// The length of the network prefix in bits.
    pub prefix_bits: u8,
    /// The default router.
    #[serde(default)]
    pub router: Option<Ipv4Addr>,
    /// Name servers.
    #[serde(default)]
    pub dns: Vec<Ipv4Addr>,
    /// Search domains; the first is also the domain name.
    #[serde(default)]
    pub search: Vec<String>,
    /// The interface's MTU.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// The guest's host name.
    #[serde(default)]
    pub hostname: Option<String>,
    /// What the guest is told besides: numbers of options, and their values as they are sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<(u8, Vec<u8>)>,
}
