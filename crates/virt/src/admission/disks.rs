//! Disks: their names, targets, buses and boot order.

use std::collections::{BTreeMap, BTreeSet};

use carrack_types::kubevirt::{Disk, VirtualMachineInstanceSpec};

use super::{Faults, is_one_of};

/// Most disks, as the schema has it; every list is bounded again here, where work is done for each of its items.
const MAX_SERIAL: usize = 256;

pub(super) fn check(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let field = format!("{field}.domain.devices.disks");
    let volumes: BTreeSet<&str> = spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let mut seen = BTreeMap::new();
    for (index, disk) in spec.domain.devices.disks.iter().enumerate() {
        let at = format!("{field}[{index}]");
        if let Some(first) = seen.insert(disk.name.as_str(), index) {
            let message = format!("{at} and {field}[{first}] must not have the same Name.");
            faults.duplicate(format!("{at}.name"), message);
        }
        if !volumes.contains(disk.name.as_str()) {
            faults.invalid(format!("{at}.name"), format!("{at}.Name '{}' not found.", disk.name));
        }
        target(&at, disk, faults);
        attributes(&at, disk, faults);
    }
}

fn target(at: &str, disk: &Disk, faults: &mut Faults) {
    let count = [disk.disk.is_some(), disk.lun.is_some(), disk.cdrom.is_some()].iter().filter(|set| **set).count();
    if count > 1 {
        faults.invalid(at, format!("{at} can only have a single target type defined"));
        return;
    }
    if disk.lun.is_some() {
        faults.unsupported(format!("{at}.lun"), "LUNs are not supported");
    }
    let mut bus = |name: &str, bus: Option<&str>, known: &[&str]| {
        if !is_one_of(bus, known) {
            let bus = bus.unwrap_or_default();
            let message = format!("{at} is set with an unrecognized bus {bus}, must be one of: {known:?}");
            faults.invalid(format!("{at}.{name}.bus"), message);
        }
    };
    if let Some(target) = &disk.disk {
        bus("disk", target.bus.as_deref(), &["virtio", "sata", "scsi", "usb"]);
    }
    if let Some(target) = &disk.cdrom {
        if target.bus.as_deref() == Some("virtio") {
            faults.invalid(format!("{at}.cdrom.bus"), "Bus type virtio is invalid for CD-ROM device");
        } else {
            bus("cdrom", target.bus.as_deref(), &["sata", "scsi", "usb"]);
        }
    }
}

fn attributes(at: &str, disk: &Disk, faults: &mut Faults) {
    let serial = disk.serial.as_deref().unwrap_or_default();
    if serial.len() > MAX_SERIAL {
        faults.invalid(format!("{at}.serial"), format!("{at} must be less than or equal to {MAX_SERIAL} in length"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
    if !serial.chars().all(allowed) {
        faults.invalid(format!("{at}.serial"), "must be made up of the following characters [A-Za-z0-9_.+-]");
    }
    if !is_one_of(disk.cache.as_deref(), &["none", "writethrough", "writeback"]) {
        faults.invalid(format!("{at}.cache"), format!("{at}.cache has an invalid value"));
    }
    if !is_one_of(disk.io.as_deref(), &["native", "default", "threads"]) {
        faults.invalid(format!("{at}.io"), format!("{at}.io has an invalid value"));
    }
    if !is_one_of(disk.error_policy.as_deref(), &["stop", "ignore", "report", "enospace"]) {
        faults.invalid(format!("{at}.errorPolicy"), format!("{at}.errorPolicy has an invalid value"));
    }
}

/// Places in the boot order start at 1 and are given once, over disks and interfaces.
pub(super) fn check_boot_order(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let devices = &spec.domain.devices;
    let disks = devices.disks.iter().enumerate().map(|(i, disk)| (format!("disks[{i}]"), disk.boot_order));
    let interfaces = devices.interfaces.iter().enumerate().map(|(i, nic)| (format!("interfaces[{i}]"), nic.boot_order));
    let mut taken = BTreeSet::new();
    for (device, order) in disks.chain(interfaces) {
        let at = format!("{field}.domain.devices.{device}.bootOrder");
        match order {
            None => {}
            Some(0) => faults.invalid(&at, format!("{at} must have a boot order > 0, if supplied")),
            Some(order) if !taken.insert(order) => {
                faults.duplicate(&at, format!("Boot order for {at} already set for a different device."));
            }
            Some(_) => {}
        }
    }
}
