//! Disks: their names, targets, buses and boot order.

use std::collections::{BTreeMap, BTreeSet};

use carrack_types::kubevirt::devices::CustomBlockSize;
use carrack_types::kubevirt::{Disk, VirtualMachineInstanceSpec, Volume};

use super::{DEFAULT_BUS, Faults, MAX_STRING, is_dns_label, is_one_of, is_plain};

/// Block sizes that a guest can be shown, bytes.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=2_097_152;
/// The one size of a block on the bus sata, bytes.
const SATA_BLOCK: u32 = 512;

pub(super) fn check(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let field = format!("{field}.domain.devices.disks");
    let volumes: BTreeMap<&str, _> = spec.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
    let mut seen = BTreeMap::new();
    for (index, disk) in spec.domain.devices.disks.iter().enumerate() {
        let at = format!("{field}[{index}]");
        if let Some(first) = seen.insert(disk.name.as_str(), index) {
            let message = format!("{at} and {field}[{first}] must not have the same Name.");
            faults.invalid(format!("{at}.name"), message);
        }
        match volumes.get(disk.name.as_str()) {
            Some(volume) => read_only_claim(&at, disk, volume, faults),
            None if disk.cdrom.is_some() => {
                faults.unsupported(format!("{at}.name"), "CD-ROM drives without a volume are not supported");
            }
            None => faults.invalid(format!("{at}.name"), format!("{at}.Name '{}' not found.", disk.name)),
        }
        // Its volume's name becomes the name of a container.
        if !is_dns_label(&disk.name) {
            faults.invalid(format!("{at}.name"), format!("'{}' is no DNS label (RFC 1123)", disk.name));
        }
        target(&at, disk, faults);
        bus(&at, disk, faults);
        attributes(&at, disk, faults);
        block_size(&at, disk, faults);
    }
}

fn target(at: &str, disk: &Disk, faults: &mut Faults) {
    let count = [disk.disk.is_some(), disk.lun.is_some(), disk.cdrom.is_some()].iter().filter(|set| **set).count();
    if count > 1 {
        faults.invalid(at, format!("{at} can only have a single target type defined"));
    }
    if disk.lun.is_some() {
        faults.unsupported(format!("{at}.lun"), "LUNs are not supported");
    }
    if disk.cdrom.as_ref().is_some_and(|drive| drive.readonly == Some(false)) {
        faults.unsupported(format!("{at}.cdrom.readonly"), "CD-ROMs that can be written to are not supported");
    }
    if disk.disk.as_ref().is_some_and(|disk| disk.pci_address.is_some()) {
        faults.unsupported(format!("{at}.disk.pciAddress"), "PCI addresses are not supported");
    }
}

fn bus(at: &str, disk: &Disk, faults: &mut Faults) {
    let (kind, name) = match (&disk.disk, &disk.lun, &disk.cdrom) {
        (Some(target), _, _) => ("disk", target.bus.as_deref()),
        (None, Some(target), _) => ("lun", target.bus.as_deref()),
        (None, None, Some(target)) => ("cdrom", target.bus.as_deref()),
        (None, None, None) => return,
    };
    let field = format!("{at}.{kind}.bus");
    let name = name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_BUS);
    match name {
        "ide" => faults.invalid(&field, "IDE bus is not supported"),
        "virtio" if kind == "cdrom" => faults.invalid(&field, "Bus type virtio is invalid for CD-ROM device"),
        "usb" if kind == "cdrom" => faults.unsupported(&field, "CD-ROMs on bus usb are not supported"),
        "sata" if disk.disk.as_ref().is_some_and(|target| target.readonly) => {
            faults.invalid(&field, "sata hard-disks do not support read-only.");
        }
        "virtio" | "sata" | "scsi" | "usb" => {}
        other => {
            let known = "[virtio scsi sata usb]";
            faults.invalid(&field, format!("{at} is set with an unrecognized bus {other}, must be one of: {known}"));
        }
    }
    // QEMU starts no machine with another.
    let custom = disk.block_size.as_ref().and_then(|size| size.custom.as_ref());
    if name == "sata" && custom.is_some_and(|size| BLOCK_SIZES.contains(&size.logical) && size.logical != SATA_BLOCK) {
        let message = format!("devices on bus sata have blocks of {SATA_BLOCK} bytes");
        faults.unsupported(format!("{at}.blockSize.custom.logical"), message);
    }
    if disk.dedicated_io_thread == Some(true) && name != "virtio" {
        faults.unsupported(at, format!("IOThreads are not supported for disks on a {name} bus"));
    }
}

/// A disk on the bus sata can be written to, which one of a claim that is only read cannot. (Upstream takes it, and its machine does
/// not start.)
fn read_only_claim(at: &str, disk: &Disk, volume: &Volume, faults: &mut Faults) {
    let is_kept = volume.persistent_volume_claim.is_some() && volume.has_read_only_claim();
    let target = disk.disk.as_ref().filter(|target| is_kept && !target.readonly);
    if target.is_some_and(|target| matches!(target.bus.as_deref().unwrap_or_default(), "" | DEFAULT_BUS)) {
        faults.invalid(format!("{at}.disk.bus"), "sata hard-disks do not support read-only.");
    }
}

fn attributes(at: &str, disk: &Disk, faults: &mut Faults) {
    let serial = disk.serial.as_deref().unwrap_or_default();
    if serial.chars().count() > MAX_STRING {
        let message = format!("{at} must be less than or equal to {MAX_STRING} in length, if specified");
        faults.invalid(format!("{at}.serial"), message);
    }
    if !is_plain(serial) {
        let message = format!("{at} must be made up of the following characters [A-Za-z0-9_.+-], if specified");
        faults.invalid(format!("{at}.serial"), message);
    }
    if !is_one_of(disk.cache.as_deref(), &["", "none", "writethrough", "writeback"]) {
        let value = disk.cache.as_deref().unwrap_or_default();
        faults.invalid(format!("{at}.cache"), format!("{at}.cache has invalid value {value}"));
    }
    if !is_one_of(disk.io.as_deref(), &["", "native", "threads"]) {
        let message = "Disk IO mode is not supported. Supported modes are: native, threads.";
        faults.unsupported(format!("{at}.io"), message);
    }
    if !is_one_of(disk.error_policy.as_deref(), &["stop", "ignore", "report", "enospace"]) {
        let value = disk.error_policy.as_deref().unwrap_or_default();
        faults.invalid(format!("{at}.errorPolicy"), format!("{at}.errorPolicy has invalid value \"{value}\""));
    }
}

fn block_size(at: &str, disk: &Disk, faults: &mut Faults) {
    let Some(size) = &disk.block_size else { return };
    let matches_volume = size.match_volume.as_ref().is_some_and(|state| state.enabled != Some(false));
    let Some(CustomBlockSize { logical, physical, discard_granularity }) = size.custom.clone() else {
        if matches_volume {
            faults.unsupported(format!("{at}.blockSize.matchVolume"), "matching the volume is not supported");
        }
        return;
    };
    if matches_volume {
        let message = "Block size matching can't be enabled together with a custom value";
        faults.invalid(format!("{at}.blockSize"), message);
        return;
    }
    let custom = format!("{at}.blockSize.custom");
    if discard_granularity.is_some() {
        faults.unsupported(format!("{custom}.discardGranularity"), "is not supported");
    }
    if logical > physical {
        let message = format!("Logical size {logical} must be the same or less than the physical size of {physical}");
        faults.invalid(format!("{custom}.logical"), message);
        return;
    }
    for (name, bytes) in [("logical", logical), ("physical", physical)] {
        let why = if bytes < *BLOCK_SIZES.start() {
            format!("less than the supported minimum size of {}", BLOCK_SIZES.start())
        } else if bytes > *BLOCK_SIZES.end() {
            format!("greater than the supported maximum size of {}", BLOCK_SIZES.end())
        } else if !bytes.is_power_of_two() {
            "not a power of 2".to_owned()
        } else {
            continue;
        };
        faults.invalid(format!("{custom}.{name}"), format!("Provided size of {bytes} is {why}"));
    }
}

/// Places in the boot order start at 1 and are given once, over disks and interfaces.
pub(super) fn check_boot_order(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let devices = &spec.domain.devices;
    let disks = devices.disks.iter().enumerate().map(|(i, disk)| (format!("disks[{i}]"), disk.boot_order));
    let interfaces = devices.interfaces.iter().enumerate().map(|(i, nic)| (format!("interfaces[{i}]"), nic.boot_order));
    let mut taken = BTreeSet::new();
    for (device, order) in disks.chain(interfaces) {
        let of = format!("{field}.domain.devices.{device}");
        let at = format!("{of}.bootOrder");
        match order {
            None => {}
            Some(0) => faults.invalid(&at, format!("{of} must have a boot order > 0, if supplied")),
            Some(order) if !taken.insert(order) => {
                faults.invalid(&at, format!("Boot order for {at} already set for a different device."));
            }
            Some(_) => {}
        }
    }
}
