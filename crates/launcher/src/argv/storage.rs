//! Disks: their buses, the order in which they boot, and the files behind them.

use super::{Backing, Line, MachineError, NodeKind, invalid, path};
use crate::image::ImageFormat;
use crate::spec::{CacheMode, DiskBus, DiskSpec, DiskTuning, MachineSpec, MachineType, OnError};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Ports of an AHCI controller.
const SATA_PORTS: usize = 6;

pub(super) fn disks(line: &mut Line, spec: &MachineSpec, backings: &[Backing]) -> Result<(), MachineError> {
    if backings.len() != spec.disks.len() {
        return Err(invalid("disks", "not every disk has its files"));
    }
    let count = |bus: DiskBus| spec.disks.iter().filter(|disk| disk.bus == bus).count();
    if count(DiskBus::Scsi) > 0 {
        line.device(json!({ "driver": "virtio-scsi-pci", "id": "scsi0" }));
    }
    // q35 has an AHCI controller of its own, with the buses ide.0 to ide.5.
    if count(DiskBus::Sata) > 0 && spec.machine == MachineType::Pc {
        line.device(json!({ "driver": "ich9-ahci", "id": "sata" }));
    }
    // Without an order of the user's, disks boot in the order in which they are given.
    let ordered =
        spec.disks.iter().any(|disk| disk.boot_order.is_some()) || spec.nics.iter().any(|nic| nic.boot_order.is_some());
    for thread in spec.disks.iter().filter_map(shared_thread).collect::<BTreeSet<_>>() {
        line.option("-object", json!({ "qom-type": "iothread", "id": thread }).to_string());
    }
    let mut sata_ports = 0;
    for (index, (disk, backing)) in spec.disks.iter().zip(backings).enumerate() {
        let node = format!("disk-{index}");
        line.option("-blockdev", blockdev(&node, backing, disk).to_string());
        let mut device = match (disk.bus, disk.cdrom) {
            (DiskBus::Virtio, true) => {
                return Err(invalid(format!("disks[{index}].bus"), "a CD-ROM needs the bus sata, scsi or usb"));
            }
            (DiskBus::Virtio, false) => json!({ "driver": "virtio-blk-pci" }),
            (DiskBus::Scsi, cdrom) => {
                json!({ "driver": if cdrom { "scsi-cd" } else { "scsi-hd" }, "bus": "scsi0.0" })
            }
            (DiskBus::Usb, true) => {
                return Err(invalid(format!("disks[{index}].bus"), "a CD-ROM needs the bus sata or scsi"));
            }
            (DiskBus::Usb, false) => json!({ "driver": "usb-storage", "bus": "usb.0" }),
            (DiskBus::Sata, cdrom) => {
                let controller = if spec.machine == MachineType::Q35 { "ide" } else { "sata" };
                let port = sata_ports;
                sata_ports += 1;
                if port >= SATA_PORTS {
                    return Err(invalid(format!("disks[{index}].bus"), "more than six disks on the bus sata"));
                }
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
