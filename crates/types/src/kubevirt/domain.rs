//! The guest's machine: CPU, memory, firmware, clock and features (`spec.domain`).

use std::collections::BTreeMap;

use super::api::api;
use super::devices::{Devices, FeatureState};
use super::quantity::Quantity;

api! {
    /// The guest's machine.
    pub struct DomainSpec {
        /// Requests and limits of memory and CPU.
        pub resources: ResourceRequirements,
        /// CPU topology and model.
        pub cpu: Option<Cpu>,
        /// Memory.
        pub memory: Option<Memory>,
        /// Machine type.
        pub machine: Option<Machine>,
        /// Firmware.
        pub firmware: Option<Firmware>,
        /// Clock and timers.
        pub clock: Option<Clock>,
        /// ACPI, APIC, Hyper-V, SMM and others.
        pub features: Option<Features>,
        /// Devices.
        #[required]
        pub devices: Devices,
        /// I/O threads: shared, auto, supplementalPool.
        pub io_threads_policy: Option<String>,
        /// How many I/O threads.
        pub io_threads: Option<DiskIoThreads>,
        /// Chassis strings of SMBIOS.
        pub chassis: Option<Chassis>,
        /// Confidential computing.
        pub launch_security: Option<LaunchSecurity>,
        /// What a reboot inside the guest does: Reboot, Terminate.
        pub reboot_policy: Option<String>,
    }

    /// Requests and limits of memory and CPU.
    pub struct ResourceRequirements {
        /// What is reserved.
        pub requests: BTreeMap<String, Quantity>,
        /// What may be used.
        pub limits: BTreeMap<String, Quantity>,
        /// Leave the launcher's own memory out of the request.
        pub overcommit_guest_overhead: bool,
    }

    /// CPU topology and model.
    pub struct Cpu {
        /// Cores in a socket. Default 1.
        pub cores: Option<u32>,
        /// Sockets. Default 1.
        pub sockets: Option<u32>,
        /// Sockets that can be reached by hotplug.
        pub max_sockets: Option<u32>,
        /// Threads in a core. Default 1.
        pub threads: Option<u32>,
        /// Model: host-model (default), host-passthrough, or a name.
        pub model: Option<String>,
        /// Single features.
        pub features: Vec<CpuFeature>,
        /// CPUs of its own.
        pub dedicated_cpu_placement: bool,
        /// NUMA topology.
        pub numa: Option<Numa>,
        /// One more CPU for the emulator.
        pub isolate_emulator_thread: bool,
        /// Real-time settings.
        pub realtime: Option<Realtime>,
    }

    /// One CPU feature.
    pub struct CpuFeature {
        /// Name.
        #[required]
        pub name: String,
        /// force, require (default), optional, disable, forbid.
        pub policy: Option<String>,
    }

    /// NUMA topology.
    pub struct Numa {
        /// Pass the host's topology through.
        pub guest_mapping_passthrough: Option<NumaGuestMappingPassthrough>,
    }

    /// Passing the host's NUMA topology through.
    pub struct NumaGuestMappingPassthrough {}

    /// Real-time settings.
    pub struct Realtime {
        /// Virtual CPUs that are real-time, such as `0-3,^1`.
        pub mask: Option<String>,
    }

    /// Memory of the guest.
    pub struct Memory {
        /// Huge pages.
        pub hugepages: Option<Hugepages>,
        /// What the guest sees. Default: the memory request.
        pub guest: Option<Quantity>,
        /// What can be reached by hotplug.
        pub max_guest: Option<Quantity>,
    }

    /// Huge pages.
    pub struct Hugepages {
        /// Page size, such as 2Mi or 1Gi.
        pub page_size: Option<String>,
    }

    /// Machine type.
    pub struct Machine {
        /// QEMU's machine type, such as q35.
        pub r#type: Option<String>,
    }

    /// Firmware.
    pub struct Firmware {
        /// UUID in SMBIOS.
        pub uuid: Option<String>,
        /// BIOS or EFI.
        pub bootloader: Option<Bootloader>,
        /// Serial number in SMBIOS.
        pub serial: Option<String>,
        /// Boot a kernel directly.
        pub kernel_boot: Option<KernelBoot>,
        /// ACPI tables.
        pub acpi: Option<Acpi>,
    }

    /// BIOS (default) or EFI.
    pub struct Bootloader {
        /// BIOS.
        pub bios: Option<Bios>,
        /// EFI.
        pub efi: Option<Efi>,
    }

    /// BIOS.
    pub struct Bios {
        /// Write its output to the serial console.
        pub use_serial: Option<bool>,
    }

    /// EFI.
    pub struct Efi {
        /// Secure boot. Default true.
        pub secure_boot: Option<bool>,
        /// Keep its variables.
        pub persistent: Option<bool>,
    }

    /// Booting a kernel directly.
    pub struct KernelBoot {
        /// Kernel command line.
        pub kernel_args: Option<String>,
        /// The image that holds kernel and initrd.
        pub container: Option<KernelBootContainer>,
    }

    /// An image that holds a kernel and an initrd.
    pub struct KernelBootContainer {
        /// Image.
        #[required]
        pub image: String,
        /// Secret with credentials for the image's registry.
        pub image_pull_secret: Option<String>,
        /// When to pull.
        pub image_pull_policy: Option<String>,
        /// Path of the kernel in the image.
        pub kernel_path: Option<String>,
        /// Path of the initrd in the image.
        pub initrd_path: Option<String>,
    }

    /// ACPI tables from volumes.
    pub struct Acpi {
        /// Volume with the SLIC table.
        pub slic_name_ref: Option<String>,
        /// Volume with the MSDM table.
        pub msdm_name_ref: Option<String>,
    }

    /// Clock and timers.
    pub struct Clock {
        /// UTC, with an offset.
        pub utc: Option<ClockOffsetUtc>,
        /// A time zone's name.
        pub timezone: Option<String>,
        /// Timers.
        pub timer: Option<Timers>,
    }

    /// A clock in UTC.
    pub struct ClockOffsetUtc {
        /// Seconds from UTC.
        pub offset_seconds: Option<i64>,
    }

    /// Timers.
    pub struct Timers {
        /// High precision event timer.
        pub hpet: Option<Timer>,
        /// KVM's clock.
        pub kvm: Option<Timer>,
        /// Programmable interval timer.
        pub pit: Option<Timer>,
        /// Real-time clock.
        pub rtc: Option<Timer>,
        /// Hyper-V's clock.
        pub hyperv: Option<Timer>,
    }

    /// A timer.
    pub struct Timer {
        /// What happens to a missed tick: delay, catchup, merge, discard.
        pub tick_policy: Option<String>,
        /// On or off. Default true.
        pub present: Option<bool>,
        /// What the real-time clock follows: guest, wall.
        pub track: Option<String>,
    }

    /// Features of the machine.
    pub struct Features {
        /// ACPI. Default on.
        pub acpi: Option<FeatureState>,
        /// APIC.
        pub apic: Option<FeatureApic>,
        /// All of Hyper-V that the host has.
        pub hyperv_passthrough: Option<FeatureState>,
        /// Hyper-V.
        pub hyperv: Option<FeatureHyperv>,
        /// System management mode.
        pub smm: Option<FeatureState>,
        /// KVM's presence.
        pub kvm: Option<FeatureKvm>,
        /// Paravirtual spinlocks.
        pub pvspinlock: Option<FeatureState>,
    }

    /// APIC.
    pub struct FeatureApic {
        /// On or off. Default true.
        pub enabled: Option<bool>,
        /// Notice of the end of an interrupt.
        pub end_of_interrupt: bool,
    }

    /// KVM's presence.
    pub struct FeatureKvm {
        /// Hide it.
        pub hidden: bool,
    }

    /// Hyper-V.
    pub struct FeatureHyperv {
        /// No watchdog timeouts.
        pub relaxed: Option<FeatureState>,
        /// Paravirtual interrupts.
        pub vapic: Option<FeatureState>,
        /// Spinlock retries.
        pub spinlocks: Option<FeatureSpinlocks>,
        /// Virtual processor index.
        pub vpindex: Option<FeatureState>,
        /// Time accounting.
        pub runtime: Option<FeatureState>,
        /// Synthetic interrupt controller.
        pub synic: Option<FeatureState>,
        /// Its timers.
        pub synictimer: Option<SyNicTimer>,
        /// Reset.
        pub reset: Option<FeatureState>,
        /// Vendor id.
        pub vendorid: Option<FeatureVendorId>,
        /// Frequencies of clock sources.
        pub frequencies: Option<FeatureState>,
        /// Notice of changed frequencies.
        pub reenlightenment: Option<FeatureState>,
        /// TLB flushes.
        pub tlbflush: Option<TlbFlush>,
        /// Interprocessor interrupts.
        pub ipi: Option<FeatureState>,
        /// Enlightened VMCS.
        pub evmcs: Option<FeatureState>,
    }

    /// Spinlock retries.
    pub struct FeatureSpinlocks {
        /// On or off. Default true.
        pub enabled: Option<bool>,
        /// Number of retries, at least 4096.
        #[serde(rename = "spinlocks")]
        pub retries: Option<u32>,
    }

    /// Timers of the synthetic interrupt controller.
    pub struct SyNicTimer {
        /// On or off. Default true.
        pub enabled: Option<bool>,
        /// Direct mode.
        pub direct: Option<FeatureState>,
    }

    /// Vendor id.
    pub struct FeatureVendorId {
        /// On or off. Default true.
        pub enabled: Option<bool>,
        /// Up to twelve characters.
        pub vendorid: Option<String>,
    }

    /// TLB flushes.
    pub struct TlbFlush {
        /// On or off. Default true.
        pub enabled: Option<bool>,
        /// Direct mode.
        pub direct: Option<FeatureState>,
        /// Extended mode.
        pub extended: Option<FeatureState>,
    }

    /// How many I/O threads.
    pub struct DiskIoThreads {
        /// For policy supplementalPool.
        pub supplemental_pool_thread_count: Option<u32>,
    }

    /// Chassis strings of SMBIOS.
    pub struct Chassis {
        /// Manufacturer.
        pub manufacturer: Option<String>,
        /// Version.
        pub version: Option<String>,
        /// Serial number.
        pub serial: Option<String>,
        /// Asset tag.
        pub asset: Option<String>,
        /// Stock keeping unit.
        pub sku: Option<String>,
    }

    /// Confidential computing.
    pub struct LaunchSecurity {
        /// AMD SEV.
        pub sev: Option<Sev>,
        /// AMD SEV-SNP.
        pub snp: Option<SevSnp>,
        /// Intel TDX.
        pub tdx: Option<Tdx>,
    }

    /// AMD SEV.
    pub struct Sev {
        /// Guest policy.
        pub policy: Option<SevPolicy>,
        /// Run attestation.
        pub attestation: Option<SevAttestation>,
        /// Session blob in base64.
        pub session: Option<String>,
        /// Diffie-Hellman key in base64.
        pub dh_cert: Option<String>,
    }

    /// Guest policy of SEV.
    pub struct SevPolicy {
        /// SEV-ES is required.
        pub encrypted_state: Option<bool>,
    }

    /// Attestation of SEV.
    pub struct SevAttestation {}

    /// AMD SEV-SNP.
    pub struct SevSnp {
        /// Policy bits.
        pub policy: Option<String>,
        /// Chip endorsement key.
        pub vcek: Option<String>,
        /// Author key.
        pub author_key: Option<String>,
        /// Kernel hashes.
        pub kernel_hashes: Option<String>,
        /// Position of the C-bit.
        pub cbitpos: Option<String>,
        /// Identity block.
        pub id_block: Option<String>,
        /// Identity authentication.
        pub id_auth: Option<String>,
        /// Physical address bits lost.
        pub reduced_phys_bits: Option<String>,
    }

    /// Intel TDX.
    pub struct Tdx {}

    /// CPU topology as it is.
    pub struct CpuTopology {
        /// Cores in a socket.
        pub cores: Option<u32>,
        /// Sockets.
        pub sockets: Option<u32>,
        /// Threads in a core.
        pub threads: Option<u32>,
    }
}

impl Cpu {
    /// How many virtual CPUs this makes.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        let count = |n: Option<u32>| n.unwrap_or(1).max(1);
        count(self.cores).saturating_mul(count(self.sockets)).saturating_mul(count(self.threads))
    }
}

impl DomainSpec {
    /// How many virtual CPUs the guest has: its topology, or else its CPU limit or request, rounded up.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        if let Some(cpu) = &self.cpu
            && (cpu.cores.is_some() || cpu.sockets.is_some() || cpu.threads.is_some())
        {
            return cpu.vcpus();
        }
        let amount = self.resources.limits.get("cpu").or_else(|| self.resources.requests.get("cpu"));
        amount.and_then(Quantity::units).and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1)
    }

    /// Memory that the guest sees, in bytes: `memory.guest`, or else the request, or else the limit, or else the
    /// size of the huge pages' request. Nothing when none is given or it cannot be read.
    #[must_use]
    pub fn guest_memory_bytes(&self) -> Option<u64> {
        let amount = self
            .memory
            .as_ref()
            .and_then(|memory| memory.guest.as_ref())
            .or_else(|| self.resources.requests.get("memory"))
            .or_else(|| self.resources.limits.get("memory"))?;
        u64::try_from(amount.units()?).ok()
    }
}
