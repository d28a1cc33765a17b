//! What a launcher pod needs beside its guest's memory.

use carrack_types::kubevirt::DomainSpec;

const MIB: u64 = 1 << 20;

/// The launcher itself, and QEMU's code, heap and device state.
const FIXED: u64 = 96 * MIB;
/// Stack and emulation state of a virtual CPU.
const PER_VCPU: u64 = 8 * MIB;
/// Frame buffer of the graphics device.
const GRAPHICS: u64 = 32 * MIB;
/// Page tables: 8 bytes for each 4 KiB page.
const PAGE_TABLES_DIVISOR: u64 = 512;

/// Memory that the launcher's pod needs beside the guest's, in bytes. KubeVirt counts 220 MiB for its fixed part,
/// most of it for libvirt's daemons, which do not exist here.
#[must_use]
pub fn memory_overhead_bytes(domain: &DomainSpec) -> u64 {
    let guest = domain.guest_memory_bytes().unwrap_or(0);
    let graphics = if domain.devices.autoattach_graphics_device == Some(false) { 0 } else { GRAPHICS };
    FIXED + graphics + PER_VCPU.saturating_mul(u64::from(domain.vcpus())) + guest / PAGE_TABLES_DIVISOR
}
