//! What a machine boots with.

use carrack_types::kubevirt::DomainSpec;
use carrack_types::kubevirt::domain::{Features, Firmware, KernelBoot};

use super::{Faults, MAX_STRING, check_path, is_plain};

/// What is wrong with it in a machine.
pub(super) fn check(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    let Some(firmware) = &domain.firmware else { return };
    let at = format!("{field}.firmware");
    check_alone(&at, firmware, faults);
    if wants_secure_boot(firmware) && !has_smm(domain.features.as_ref()) {
        let message =
            format!("{field} has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled.");
        faults.invalid(field, message);
    }
    let shows = domain.devices.autoattach_graphics_device != Some(false);
    let bios = firmware.bootloader.as_ref().and_then(|loader| loader.bios.as_ref());
    if shows && bios.is_some_and(|bios| bios.use_serial == Some(true)) {
        let what = "the firmware writes to the serial console only where there is no graphics device";
        faults.unsupported(format!("{at}.bootloader.bios.useSerial"), what);
    }
}

/// What is wrong with it whatever else the machine has. (Upstream: `validateFirmware`.)
pub(super) fn check_alone(at: &str, firmware: &Firmware, faults: &mut Faults) {
    let serial = firmware.serial.as_deref().unwrap_or_default();
    if serial.len() > MAX_STRING {
        let message = format!("{at}.serial must be less than or equal to {MAX_STRING} in length, if specified");
        faults.invalid(format!("{at}.serial"), message);
    }
    if !is_plain(serial) {
        let message = format!("{at}.serial must be made up of the following characters [A-Za-z0-9_.+-], if specified");
        faults.invalid(format!("{at}.serial"), message);
    }
    if let Some(loader) = &firmware.bootloader
        && loader.efi.is_some()
        && loader.bios.is_some()
    {
        let at = format!("{at}.bootloader");
        let message = format!("{at} has both EFI and BIOS configured, but they are mutually exclusive.");
        faults.invalid(&at, message);
    }
    if firmware.acpi.is_some() {
        faults.unsupported(format!("{at}.acpi"), "ACPI tables are not supported");
    }
    if let Some(boot) = &firmware.kernel_boot {
        kernel_boot(&format!("{at}.kernelBoot"), boot, faults);
    }
}

fn wants_secure_boot(firmware: &Firmware) -> bool {
    let efi = firmware.bootloader.as_ref().and_then(|loader| loader.efi.as_ref());
    efi.is_some_and(|efi| efi.secure_boot != Some(false))
}

fn has_smm(features: Option<&Features>) -> bool {
    features.and_then(|features| features.smm.as_ref()).is_some_and(|smm| smm.enabled != Some(false))
}

fn kernel_boot(at: &str, boot: &KernelBoot, faults: &mut Faults) {
    let text = |value: &Option<String>| value.as_deref().is_some_and(|value| !value.is_empty());
    let Some(container) = &boot.container else {
        if text(&boot.kernel_args) {
            let message = "kernel arguments cannot be provided without an external kernel";
            faults.invalid(format!("{at}.kernelArgs"), message);
        }
        return;
    };
    let at = format!("{at}.container");
    if container.image.is_empty() {
        faults.required(format!("{at}.image"), format!("{at} must be defined with an image"));
    }
    if !text(&container.kernel_path) && !text(&container.initrd_path) {
        let message = format!("{at} must be defined with at least one of the following: kernelPath, initrdPath");
        faults.required(&at, message);
    }
    for (name, path) in [("kernelPath", &container.kernel_path), ("initrdPath", &container.initrd_path)] {
        if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
            check_path(&format!("{at}.{name}"), path, faults);
        }
    }
}
