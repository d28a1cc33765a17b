//! What a machine is built on: firmware, clock, watchdog, screen and input devices.
//!
//! Everything here has a default that makes the machine which a spec without a word about it gets.

use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a machine keeps beside its disks goes by this name, as the pod's volume does; KubeVirt's word.
pub const STATE_VOLUME: &str = "vm-state";
/// The directory of a claim that holds the firmware's variables.
pub const NVRAM_SUBDIRECTORY: &str = "nvram";

/// The parts of a machine that most specs say nothing about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Board {
    /// What the machine boots with.
    pub firmware: Firmware,
    /// Where UEFI's variables are kept from one run to the next; absent, they go with the machine.
    #[serde(skip_serializing_if = "Option::is_none")] // A launcher of the version before knows no such word.
    pub nvram: Option<PathBuf>,
    /// A kernel that is booted in place of what the disks hold.
    pub kernel: Option<Kernel>,
    /// The machine has no ACPI: no power button either.
    pub no_acpi: bool,
    /// System management mode on or off; absent, as the machine type has it. Secure boot switches it on.
    pub smm: Option<bool>,
    /// The high precision event timer on or off; absent, as the machine type has it.
    pub hpet: Option<bool>,
    /// What the real-time clock shows at the start, `2026-01-31T12:00:00`; absent, the time in UTC.
    pub clock: Option<String>,
    /// Ticks of the real-time clock that the guest missed are dropped and not made up for.
    pub drop_missed_ticks: bool,
    /// The real-time clock stands while the guest does.
    #[serde(skip_serializing_if = "is_false")] // As all that follows for which it stands.
    pub clock_follows_guest: bool,
    /// Ticks of the interval timer that the guest missed are dropped.
    #[serde(skip_serializing_if = "is_false")]
    pub drop_missed_pit_ticks: bool,
    /// A guest that restarts itself has ended.
    #[serde(skip_serializing_if = "is_false")]
    pub ends_with_reboot: bool,
    /// By what the guest can tell that it has panicked, beside the ISA port that each machine has for it.
    #[serde(skip_serializing_if = "is_false")]
    pub pci_panic_device: bool,
    /// Guests that are older than virtio 1.0 can have virtio's devices, too.
    #[serde(skip_serializing_if = "is_false")]
    pub transitional: bool,
    /// A trusted platform module, whose state goes with the machine.
    #[serde(skip_serializing_if = "is_false")]
    pub tpm: bool,
    /// A sound card, which nobody hears.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sound: Option<Sound>,
    /// What a watchdog does that the guest has not fed; absent, there is none.
    pub watchdog: Option<WatchdogAction>,
    /// The screen's device.
    pub video: Video,
    /// Input devices beside the tablet that a screen brings along.
    pub inputs: Vec<InputDevice>,
    /// SMBIOS type 3 strings.
    pub chassis: Chassis,
    /// The guest's memory lies in huge pages, in this directory of a mounted hugetlbfs.
    pub hugepages: Option<PathBuf>,
}

/// Whether a setting is as machines have it that say nothing of it: a launcher of the version before knows no other.
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}

/// A sound card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the variants are the names of the devices")]
pub enum Sound {
    Ich9,
    Ac97,
}

impl Board {
    /// Where UEFI's variables are.
    #[must_use]
    pub fn variables(&self, layout: &Layout) -> PathBuf {
        self.nvram.clone().unwrap_or_else(|| layout.firmware_vars())
    }
}

/// What the machine boots with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Firmware {
    /// SeaBIOS.
    #[default]
    Bios,
    /// SeaBIOS, which also writes to the serial port. Only for machines without a screen: SeaBIOS chooses one.
    BiosSerial,
    /// UEFI without secure boot.
    Efi,
    /// UEFI with secure boot and the keys that Linux distributions and Windows are signed for.
    EfiSecure,
}

impl Firmware {
    /// Code and template of the variables, as Debian's package ovmf has them; nothing for a BIOS.
    #[must_use]
    pub fn files(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Bios | Self::BiosSerial => None,
            Self::Efi => Some(("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd")),
            Self::EfiSecure => Some(("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd")),
        }
    }
}

/// A kernel that is booted directly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kernel {
    /// The kernel.
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub args: Option<String>,
}

/// What a watchdog does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchdogAction {
    /// Ends the guest at once.
    Poweroff,
    /// Presses the reset button.
    Reset,
    /// Presses the power button.
    Shutdown,
}

impl WatchdogAction {
    /// QEMU's word for it. Of itself it would exit at once, and with the status of success: nobody would come to hear
    /// why. So it stops, and the monitor ends it.
    #[must_use]
    pub fn qemu(self) -> &'static str {
        match self {
            Self::Poweroff => "pause",
            Self::Reset => "reset",
            Self::Shutdown => "shutdown",
        }
    }
}

/// The screen's device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the variants are the names of the devices")]
pub enum Video {
    #[default]
    Vga,
    Virtio,
    Bochs,
    Ramfb,
    Cirrus,
}

impl Video {
    /// QEMU's device.
    pub(crate) fn device(self) -> serde_json::Value {
        use serde_json::json;
        match self {
            Self::Vga => json!({ "driver": "VGA", "id": "video0", "vgamem_mb": 16 }),
            Self::Virtio => json!({ "driver": "virtio-vga", "id": "video0" }),
            Self::Bochs => json!({ "driver": "bochs-display", "id": "video0" }),
            Self::Ramfb => json!({ "driver": "ramfb", "id": "video0" }),
            Self::Cirrus => json!({ "driver": "cirrus-vga", "id": "video0" }),
        }
    }
}

/// An input device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the variants are the names of the devices")]
pub enum InputDevice {
    UsbTablet,
    UsbKeyboard,
    VirtioTablet,
    VirtioKeyboard,
}

impl InputDevice {
    /// QEMU's driver, and whether it sits on the USB bus.
    pub(crate) fn driver(self) -> (&'static str, bool) {
        match self {
            Self::UsbTablet => ("usb-tablet", true),
            Self::UsbKeyboard => ("usb-kbd", true),
            Self::VirtioTablet => ("virtio-tablet-pci", false),
            Self::VirtioKeyboard => ("virtio-keyboard-pci", false),
        }
    }
}

/// SMBIOS type 3 strings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the fields are the names of the strings")]
pub struct Chassis {
    pub manufacturer: Option<String>,
    pub version: Option<String>,
    pub serial: Option<String>,
    pub asset: Option<String>,
    pub sku: Option<String>,
}
