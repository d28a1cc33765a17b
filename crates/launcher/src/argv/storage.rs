//! Disks: their buses, the order in which they boot, and the files behind them.

use super::{Backing, Line, MachineError, NodeKind, invalid, path};
use crate::image::ImageFormat;
use crate::spec::{CacheMode, DiskBus, DiskSpec, DiskTuning, MachineSpec, MachineType, OnError};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// The driver of a disk on the bus virtio.
pub(super) const VIRTIO_DISK: &str = "virtio-blk-pci";
/// Ports of an AHCI controller.
const SATA_PORTS: usize = 6;
/// The controller that q35 has of its own.
const Q35_SATA: &str = "ide";
/// The one block size of a disk on the bus sata, in bytes.
const SATA_BLOCK_BYTES: u32 = 512;

pub(super) fn disks(line: &mut Line, spec: &MachineSpec, backings: &[Backing]) -> Result<(), MachineError> {
    if backings.len() != spec.disks.len() {
        return Err(invalid("disks", "not every disk has its files"));
    }
    let count = |bus: DiskBus| spec.disks.iter().filter(|disk| disk.bus == bus).count();
    if count(DiskBus::Scsi) > 0 {
        line.device(json!({ "driver": "virtio-scsi-pci", "id": "scsi0" }));
    }
    for number in 0..count(DiskBus::Sata).div_ceil(SATA_PORTS) {
        let name = sata_controller(spec.machine, number);
        if name != Q35_SATA {
            line.device(json!({ "driver": "ich9-ahci", "id": name }));
        }
    }
    // Without an order of the user's, disks boot in the order in which they are given.
    let ordered =
        spec.disks.iter().any(|disk| disk.boot_order.is_some()) || spec.nics.iter().any(|nic| nic.boot_order.is_some());
    for thread in spec.disks.iter().filter_map(shared_thread).collect::<BTreeSet<_>>() {
        line.option("-object", json!({ "qom-type": "iothread", "id": thread }).to_string());
    }
    let mut sata_disks = 0;
    for (index, (disk, backing)) in spec.disks.iter().zip(backings).enumerate() {
        let node = format!("disk-{index}");
        line.option("-blockdev", blockdev(&node, backing, disk).to_string());
        let mut device = match (disk.bus, disk.cdrom) {
            (DiskBus::Virtio, true) => {
                return Err(invalid(format!("disks[{index}].bus"), "a CD-ROM needs the bus sata, scsi or usb"));
            }
            (DiskBus::Virtio, false) => json!({ "driver": VIRTIO_DISK }),
            (DiskBus::Scsi, cdrom) => {
                json!({ "driver": if cdrom { "scsi-cd" } else { "scsi-hd" }, "bus": "scsi0.0" })
            }
            (DiskBus::Usb, true) => {
                return Err(invalid(format!("disks[{index}].bus"), "a CD-ROM needs the bus sata or scsi"));
            }
            (DiskBus::Usb, false) => json!({ "driver": "usb-storage", "bus": "usb.0" }),
            (DiskBus::Sata, cdrom) => {
                fits_sata(index, disk)?;
                let controller = sata_controller(spec.machine, sata_disks / SATA_PORTS);
                let port = sata_disks % SATA_PORTS;
                sata_disks += 1;
                json!({ "driver": if cdrom { "ide-cd" } else { "ide-hd" }, "bus": format!("{controller}.{port}") })
            }
        };
        device["id"] = json!(format!("dev-{node}"));
        device["drive"] = json!(node);
        if let Some(serial) = &disk.serial {
            device["serial"] = json!(serial);
        }
        let boots = if ordered { disk.boot_order } else { u32::try_from(index + 1).ok() };
        if let Some(order) = boots {
            device["bootindex"] = json!(order);
        }
        tune(line, &mut device, disk, backing, &node);
        line.device(device);
    }
    Ok(())
}

/// The name of an AHCI controller by its number, one for each six disks: q35 has the first of its own, with the buses
/// ide.0 to ide.5. (Upstream: libvirt adds them so.)
fn sata_controller(machine: MachineType, number: usize) -> String {
    match (machine, number) {
        (MachineType::Q35, 0) => Q35_SATA.to_owned(),
        (MachineType::Pc, 0) => "sata".to_owned(),
        _ => format!("sata{number}"),
    }
}

/// Whether a disk can be on the bus sata as it is asked for. (Upstream: `ide_dev_initfn` in QEMU's hw/ide/qdev.c.)
fn fits_sata(index: usize, disk: &DiskSpec) -> Result<(), MachineError> {
    if disk.read_only && !disk.cdrom {
        return Err(invalid(format!("disks[{index}].read_only"), "a disk on the bus sata is not read-only"));
    }
    if disk.tuning.logical_block_bytes.is_some_and(|bytes| bytes != SATA_BLOCK_BYTES) {
        let field = format!("disks[{index}].tuning.logical_block_bytes");
        return Err(invalid(field, "a disk on the bus sata has blocks of 512 bytes"));
    }
    Ok(())
}

/// What the device, rather than the file, is told.
fn tune(line: &mut Line, device: &mut Value, disk: &DiskSpec, backing: &Backing, node: &str) {
    let tuning = &disk.tuning;
    if disk.bus != DiskBus::Usb {
        let (on_write, on_read) = match tuning.on_error {
            // KubeVirt's choice: a guest that meets an error on its disk is stopped, and goes on when told to.
            None | Some(OnError::Stop) => ("stop", "stop"),
            Some(OnError::Ignore) => ("ignore", "ignore"),
            Some(OnError::Report) => ("report", "report"),
            Some(OnError::Enospace) => ("enospc", "report"),
        };
        device["werror"] = json!(on_write);
        device["rerror"] = json!(on_read);
    }
    // What cannot be had past the host's cache is at least written through it.
    let through = match disk.cache() {
        CacheMode::Writethrough => true,
        CacheMode::None => matches!(backing, Backing::Direct { node, .. } if !node.direct),
        CacheMode::Writeback => false,
    };
    if through && !disk.read_only && !disk.cdrom {
        device["write-cache"] = json!("off");
    }
    for (name, bytes) in
        [("logical_block_size", tuning.logical_block_bytes), ("physical_block_size", tuning.physical_block_bytes)]
    {
        if let Some(bytes) = bytes {
            device[name] = json!(bytes);
        }
    }
    if tuning.shared {
        device["share-rw"] = json!(true);
    }
    if tuning.own_thread && disk.bus == DiskBus::Virtio {
        let id = format!("thread-{node}");
        line.option("-object", json!({ "qom-type": "iothread", "id": id }).to_string());
        device["iothread"] = json!(id);
    } else if let Some(thread) = shared_thread(disk) {
        device["iothread"] = json!(thread);
    }
}

/// The thread that a disk shares with others.
fn shared_thread(disk: &DiskSpec) -> Option<String> {
    let shares = disk.bus == DiskBus::Virtio && !disk.tuning.own_thread;
    disk.tuning.shared_thread.filter(|_| shares).map(|number| format!("thread-{number}"))
}

fn blockdev(node: &str, backing: &Backing, disk: &DiskSpec) -> Value {
    let read_only = disk.read_only || disk.cdrom;
    let mut value = match backing {
        Backing::Overlay { overlay, base, format: base_format } => {
            let mut value = layer(ImageFormat::Qcow2, overlay, read_only, NodeKind::default(), None);
            value["backing"] = layer(*base_format, base, true, NodeKind::default(), None);
            value
        }
        Backing::Direct { path, format, node } => layer(*format, path, read_only, *node, past_cache(disk, *node)),
    };
    value["discard"] = json!("unmap");
    value["node-name"] = json!(node);
    value
}

/// Who moves a disk's data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Io {
    /// Threads of QEMU's.
    Threads,
    /// The kernel. It must wait for nothing meanwhile, such as for room to be found in a file system: as KubeVirt, by
    /// itself only for what has all its room already (`SetOptimalIOMode` in virt-launcher's converter).
    Native,
}

/// How a disk is read and written that is past the host's cache; `None` if it is not.
fn past_cache(disk: &DiskSpec, kind: NodeKind) -> Option<Io> {
    let DiskTuning { native_io, threaded_io, .. } = disk.tuning;
    let native = native_io || !threaded_io && (kind.device || kind.allocated);
    (disk.cache() == CacheMode::None && kind.direct).then_some(if native { Io::Native } else { Io::Threads })
}

/// A format over its file. Every node below the first is given in full, so that nothing is opened because a header says
/// so.
fn layer(format: ImageFormat, file: &Path, read_only: bool, kind: NodeKind, past_cache: Option<Io>) -> Value {
    let driver = if kind.device { "host_device" } else { "file" };
    let mut below = json!({ "driver": driver, "filename": path(file), "read-only": read_only });
    if kind.locked {
        // QEMU's own lock on the image; it would be left out silently where the host has none.
        below["locking"] = json!("on");
    }
    let mut value = json!({ "driver": format.driver(), "read-only": read_only });
    if let Some(io) = past_cache {
        let cache = json!({ "direct": true, "no-flush": false });
        below["cache"] = cache.clone();
        value["cache"] = cache;
        if io == Io::Native {
            below["aio"] = json!("native");
        }
    }
    value["file"] = below;
    if format == ImageFormat::Qcow2 {
        value["backing"] = Value::Null;
    }
    value
}
