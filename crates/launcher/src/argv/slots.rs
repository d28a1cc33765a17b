//! Places on the PCI bus: which slots root ports have, and what is behind ports because there are no slots left.
//!
//! QEMU chooses the places of all devices that name no bus, one slot for each, the lowest one first. A machine whose devices have
//! all places so stays as it is. Where they are too many, the last disks are behind root ports, of which a slot has eight (libvirt
//! packs them so, too). These ports follow those of the interfaces, in order and in number, so no interface gets another name by
//! them; and they are made before whatever comes behind the interfaces, so that is in none of their slots.

use super::storage::VIRTIO_DISK;
use super::{Line, MachineError, invalid};
use crate::spec::{MachineSpec, MachineType};
use serde_json::{Value, json};

/// The slots of the root ports; the first fifteen are for all else, and the last one is the chip set's.
const FIRST_SLOT: usize = 0x10;
const LAST_SLOT: usize = 0x1e;
/// Ports in a slot.
const FUNCTIONS: usize = 8;
/// As many ports have room.
const MOST_PORTS: usize = (LAST_SLOT + 1 - FIRST_SLOT) * FUNCTIONS;
/// The slots that either chip set leaves to devices: it has two of thirty-two for itself.
const SLOTS: usize = 30;
/// Devices that name no bus, and are none of the PCI bus.
const ELSEWHERE: [&str; 4] = ["isa-serial", "pvpanic", "ramfb", "tpm-tis"];

/// Whether QEMU gives a device a slot.
pub(super) fn is_given_one(device: &Value) -> bool {
    device.get("bus").is_none() && device["driver"].as_str().is_some_and(|driver| !ELSEWHERE.contains(&driver))
}

/// The root port of this number, with the name of the bus behind it, if there is room for it.
pub(super) fn port(number: usize) -> Option<(String, Value)> {
    if number >= MOST_PORTS {
        return None;
    }
    let (slot, function) = (FIRST_SLOT + number / FUNCTIONS, number % FUNCTIONS);
    let id = format!("pci.{}", number + 1);
    let device = json!({
        "driver": "pcie-root-port", "id": id, "bus": "pcie.0", "addr": format!("{slot:#x}.{function:#x}"),
        "chassis": number + 1, "multifunction": true,
    });
    Some((id, device))
}

/// Puts as many disks behind ports as have no slots, the last ones. There are `ports` already, and the further ones are made at
/// the place `at` of the command line.
pub(super) fn spread(line: &mut Line, spec: &MachineSpec, ports: usize, at: usize) -> Result<(), MachineError> {
    let mut disks: Vec<(usize, Value)> =
        line.given_slots.iter().filter(|(_, device)| device["driver"] == VIRTIO_DISK).cloned().collect();
    // Behind a port a device is what virtio 1.0 says, and nothing older.
    let movable = if spec.machine == MachineType::Q35 && !spec.board.transitional { disks.len() } else { 0 };
    let moved = how_many(line.given_slots.len(), movable, ports)
        .ok_or(invalid("disks", "the machine has no slots left for so many devices: some may be on the bus scsi"))?;
    let mut made = Vec::new();
    for (number, (place, mut device)) in (ports..).zip(disks.split_off(disks.len() - moved)) {
        // It has room, by how many there are.
        let Some((bus, port)) = port(number) else { continue };
        (device["bus"], device["addr"]) = (json!(bus), json!("0x0"));
        line.words[place] = device.to_string();
        made.extend(["-device".to_owned(), port.to_string()]);
    }
    line.words.splice(at..at, made);
    Ok(())
}

/// How many of the devices to put behind further ports, as few as possible; none where they do not fit even so.
fn how_many(devices: usize, movable: usize, ports: usize) -> Option<usize> {
    let fits = |moved: usize| {
        let all_ports = ports + moved;
        all_ports <= MOST_PORTS && devices - moved + all_ports.div_ceil(FUNCTIONS) <= SLOTS
    };
    (0..=movable).find(|moved| fits(*moved))
}
