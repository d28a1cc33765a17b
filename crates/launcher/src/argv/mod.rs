//! The QEMU command line of a machine: a pure function of the specification, the layout and the disks' files.
//!
//! Nothing is left to QEMU's defaults (`-nodefaults`), and block devices and devices are given in the JSON
//! form, in which no value needs quoting: names that come from users cannot turn into options. The old forms
//! are used only where QEMU has no other, with values that are checked or doubled.

mod board;
mod network;
mod slots;
mod storage;

use crate::board::Sound;
use crate::image::ImageFormat;
use crate::layout::Layout;
use crate::spec::{DiskBus, MachineSpec, Smbios};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(crate) use network::is_mac;

/// QEMU's name.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// The guest agent's channel, as the character device that the host has and as the port that the guest has.
pub(crate) const AGENT_CHARDEV: &str = "charagent";
pub(crate) const AGENT_PORT: &str = "channel0";

/// The files behind a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Writes go to `overlay`, a qcow2 file; the rest is read from `base`.
    Overlay {
        /// The file that is gone with the machine.
        overlay: PathBuf,
        /// The image that stays as it is.
        base: PathBuf,
        /// The format of `base`.
        format: ImageFormat,
    },
    /// The guest uses the file itself.
    Direct {
        /// The image.
        path: PathBuf,
        /// Its format.
        format: ImageFormat,
        /// What kind of file it is.
        node: NodeKind,
    },
}

/// What kind of file an image lies in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeKind {
    /// A block device.
    pub device: bool,
    /// It can be read and written past the host's cache.
    pub direct: bool,
    /// QEMU locks it: others may open it at the same time.
    pub locked: bool,
    /// All of its blocks are there already.
    pub allocated: bool,
}

/// Why there is no command line for a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// A value that QEMU's command line cannot carry.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field of the specification.
        field: String,
        /// What is wrong with its value.
        reason: &'static str,
    },
}

fn invalid(field: impl Into<String>, reason: &'static str) -> MachineError {
    MachineError::Invalid { field: field.into(), reason }
}

/// The command line, program first. `backings` has one entry for each disk of `spec`, in the same order.
///
/// # Errors
/// A value of the specification that QEMU cannot be given.
pub fn argv(spec: &MachineSpec, layout: &Layout, backings: &[Backing]) -> Result<Vec<String>, MachineError> {
    let mut line = Line { words: vec![PROGRAM.to_owned()], given_slots: Vec::new() };
    board::machine(&mut line, spec, layout)?;
    line.option("-smbios", smbios(&spec.smbios));
    line.option("-smbios", board::chassis(&spec.board.chassis));
    if let Some(uuid) = &spec.smbios.uuid {
        if uuid.len() != 36 || !uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(invalid("smbios.uuid", "not a UUID"));
        }
        line.option("-uuid", uuid);
    }
    let ports = network::nics(&mut line, spec)?;
    let further_ports = line.words.len();
    channels(&mut line, spec, layout);
    storage::disks(&mut line, spec, backings)?;
    helpers(&mut line, spec);
    if spec.board.tpm {
        line.option("-chardev", format!("socket,id=chartpm,path={}", doubled(&path(&layout.tpm_socket()))));
        line.option("-tpmdev", "emulator,id=tpm0,chardev=chartpm");
        line.device(json!({ "driver": "tpm-tis", "id": "tpm-tis0", "tpmdev": "tpm0" }));
    }
    slots::spread(&mut line, spec, ports, further_ports)?;
    Ok(line.words)
}

struct Line {
    words: Vec<String>,
    /// The devices of which QEMU chooses the slots, each with its place among the words.
    given_slots: Vec<(usize, Value)>,
}

impl Line {
    fn flag(&mut self, flag: &str) {
        self.words.push(flag.to_owned());
    }

    fn option(&mut self, flag: &str, value: impl Into<String>) {
        self.words.push(flag.to_owned());
        self.words.push(value.into());
    }

    fn device(&mut self, value: Value) {
        self.option("-device", value.to_string());
        if slots::is_given_one(&value) {
            self.given_slots.push((self.words.len() - 1, value));
        }
    }
}

/// In QEMU's comma-separated options a comma in a value is written twice.
fn doubled(value: &str) -> String {
    value.replace(',', ",,")
}

fn path(value: &Path) -> String {
    value.to_string_lossy().into_owned()
}

/// KubeVirt's strings where the machine has none of its own.
fn smbios(strings: &Smbios) -> String {
    let default = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_owned());
    let mut text = format!(
        "type=1,manufacturer={},product={},family={}",
        doubled(&default(&strings.manufacturer, "KubeVirt")),
        doubled(&default(&strings.product, "None")),
        doubled(&default(&strings.family, "KubeVirt")),
    );
    let others =
        [("version", &strings.version), ("sku", &strings.sku), ("serial", &strings.serial), ("uuid", &strings.uuid)];
    for (name, value) in others {
        if let Some(value) = value {
            text.push_str(&format!(",{name}={}", doubled(value)));
        }
    }
    text
}

/// The sockets: QMP three times, the serial port, the guest agent's channel, the screen.
fn channels(line: &mut Line, spec: &MachineSpec, layout: &Layout) {
    let socket = |id: &str, at: &Path| format!("socket,id={id},path={},server=on,wait=off", doubled(&path(at)));
    let controls = [
        ("monitor", layout.monitor_qmp_socket()),
        ("spare", layout.spare_qmp_socket()),
        ("copy", layout.copy_qmp_socket()),
    ];
    for (id, at) in controls {
        line.option("-chardev", socket(&format!("char{id}"), &at));
        line.option("-mon", format!("chardev=char{id},id={id},mode=control"));
    }
    if spec.serial_console {
        let log = doubled(&path(&layout.serial_log()));
        line.option(
            "-chardev",
            // Appending lets the monitor cut the log short while QEMU has it open.
            format!("{},logfile={log},logappend=on", socket("charserial0", &layout.serial_socket())),
        );
        line.device(json!({ "driver": "isa-serial", "id": "serial0", "chardev": "charserial0", "index": 0 }));
    }
    line.device(json!({ "driver": "virtio-serial-pci", "id": "virtio-serial0" }));
    line.option("-chardev", socket(AGENT_CHARDEV, &layout.agent_socket()));
    line.device(json!({
        "driver": "virtserialport", "id": AGENT_PORT, "bus": "virtio-serial0.0", "chardev": AGENT_CHARDEV,
        "name": "org.qemu.guest_agent.0",
    }));
    if spec.graphics {
        line.option("-vnc", format!("unix:{}", doubled(&path(&layout.vnc_socket()))));
        line.device(spec.board.video.device());
    } else {
        line.option("-display", "none");
    }
    let inputs: Vec<_> = spec.board.inputs.iter().map(|input| input.driver()).collect();
    let usb_disks = spec.disks.iter().any(|disk| disk.bus == DiskBus::Usb);
    if spec.graphics || usb_disks || inputs.iter().any(|(_, usb)| *usb) {
        line.device(json!({ "driver": "qemu-xhci", "id": "usb" }));
    }
    if spec.graphics {
        line.device(json!({ "driver": "usb-tablet", "id": "input0", "bus": "usb.0" }));
    }
    for (index, (driver, usb)) in inputs.into_iter().enumerate() {
        let mut device = json!({ "driver": driver, "id": format!("input{}", index + 1) });
        if usb {
            device["bus"] = json!("usb.0");
        }
        line.device(device);
    }
}

fn helpers(line: &mut Line, spec: &MachineSpec) {
    if spec.balloon {
        // Pages that the guest frees go back to the host by themselves, unless the machine's memory or time is its own.
        let reports = spec.board.hugepages.is_none() && spec.cpu.dedicated.is_none();
        line.device(json!({ "driver": "virtio-balloon-pci", "id": "balloon0", "free-page-reporting": reports }));
    }
    if spec.rng {
        line.option("-object", json!({ "qom-type": "rng-builtin", "id": "rng0" }).to_string());
        line.device(json!({ "driver": "virtio-rng-pci", "id": "virtio-rng0", "rng": "rng0" }));
    }
    line.device(json!({ "driver": "pvpanic", "id": "panic0" }));
    if spec.board.pci_panic_device {
        line.device(json!({ "driver": "pvpanic-pci", "id": "panic1" }));
    }
    if let Some(sound) = spec.board.sound {
        line.option("-audiodev", json!({ "driver": "none", "id": "audio0" }).to_string());
        match sound {
            Sound::Ich9 => {
                line.device(json!({ "driver": "ich9-intel-hda", "id": "sound0" }));
                line.device(json!({ "driver": "hda-duplex", "bus": "sound0.0", "audiodev": "audio0" }));
            }
            Sound::Ac97 => line.device(json!({ "driver": "AC97", "id": "sound0", "audiodev": "audio0" })),
        }
    }
    if spec.board.watchdog.is_some() {
        line.device(json!({ "driver": "i6300esb", "id": "watchdog0" }));
    }
}

#[cfg(test)]
mod tests;
