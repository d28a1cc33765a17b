//! The guest's machine: memory, CPUs, and what this version cannot give it.

use carrack_types::kubevirt::{DomainSpec, Quantity};

use super::{Faults, is_one_of};

/// Most virtual CPUs that QEMU's q35 takes without further settings.
const MAX_VCPUS: u32 = 255;

pub(super) fn check(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    let field = format!("{field}.domain");
    memory(&field, domain, faults);
    cpu(&field, domain, faults);
    if let Some(machine) = domain.machine.as_ref().and_then(|machine| machine.r#type.as_deref())
        && machine_type(machine).is_none()
    {
        faults.unsupported(
            format!("{field}.machine.type"),
            format!("{field}.machine.type is not supported: {machine} (allowed values: [q35* pc-q35* pc pc-i440fx*])"),
        );
    }
    unsupported(&field, domain, faults);
}

/// Whether a machine type is one of PCI Express (true) or the older i440FX (false).
pub(crate) fn machine_type(name: &str) -> Option<bool> {
    if name.is_empty() || name.starts_with("q35") || name.starts_with("pc-q35") {
        Some(true)
    } else if name == "pc" || name.starts_with("pc-i440fx") {
        Some(false)
    } else {
        None
    }
}

fn memory(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    for (list, amounts) in [("requests", &domain.resources.requests), ("limits", &domain.resources.limits)] {
        for (name, amount) in amounts {
            let at = format!("{field}.resources.{list}.{name}");
            match amount.units() {
                None => faults.invalid(&at, format!("'{amount}' is not a quantity")),
                Some(units) if units < 0 => {
                    faults.invalid(&at, format!("{at} '{amount}': must be greater than or equal to 0."));
                }
                Some(_) => {}
            }
        }
    }
    let of = |amount: Option<&Quantity>| amount.and_then(Quantity::units);
    let requested = of(domain.resources.requests.get("memory"));
    let limit = of(domain.resources.limits.get("memory"));
    if let (Some(requested), Some(limit)) = (requested, limit)
        && requested > limit
    {
        let at = format!("{field}.resources.requests.memory");
        faults.invalid(&at, format!("{at} must be less than or equal to {field}.resources.limits.memory"));
    }
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let at = format!("{field}.memory.guest");
    match guest {
        Some(amount) => match amount.units() {
            Some(bytes) if bytes >= 1 => {
                if limit.is_some_and(|limit| limit > 0 && bytes > limit) {
                    faults.invalid(&at, format!("{at} '{amount}' must be equal to or less than the memory limit"));
                }
            }
            _ => faults.invalid(&at, format!("{at} '{amount}' must be greater than 0")),
        },
        None if requested.or(limit).unwrap_or(0) < 1 => {
            faults.required(
                &at,
                "no memory requested, at least one of memory.guest, resources.requests.memory or \
                resources.limits.memory must be set",
            );
        }
        None => {}
    }
}

fn cpu(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    if domain.vcpus() > MAX_VCPUS {
        faults.invalid(format!("{field}.cpu"), format!("at most {MAX_VCPUS} virtual CPUs are supported"));
    }
    let (requests, limits) = (&domain.resources.requests, &domain.resources.limits);
    if let (Some(request), Some(limit)) =
        (requests.get("cpu").and_then(Quantity::millis), limits.get("cpu").and_then(Quantity::millis))
        && request > limit
    {
        let at = format!("{field}.resources.requests.cpu");
        faults.invalid(&at, format!("{at} must be less than or equal to {field}.resources.limits.cpu"));
    }
}

fn unsupported(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    let devices = &domain.devices;
    let firmware = domain.firmware.clone().unwrap_or_default();
    let cpu = domain.cpu.clone().unwrap_or_default();
    let memory = domain.memory.clone().unwrap_or_default();
    let asked = [
        ("firmware.bootloader.efi", firmware.bootloader.as_ref().is_some_and(|loader| loader.efi.is_some())),
        ("firmware.kernelBoot", firmware.kernel_boot.is_some()),
        ("firmware.acpi", firmware.acpi.is_some()),
        ("launchSecurity", domain.launch_security.is_some()),
        ("rebootPolicy", !is_one_of(domain.reboot_policy.as_deref(), &["Reboot"])),
        ("cpu.dedicatedCpuPlacement", cpu.dedicated_cpu_placement),
        ("cpu.isolateEmulatorThread", cpu.isolate_emulator_thread),
        ("cpu.numa", cpu.numa.is_some()),
        ("cpu.realtime", cpu.realtime.is_some()),
        ("cpu.features", !cpu.features.is_empty()),
        ("memory.hugepages", memory.hugepages.is_some()),
        ("devices.watchdog", devices.watchdog.is_some()),
        ("devices.tpm", devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled != Some(false))),
        ("devices.sound", devices.sound.is_some()),
        ("devices.gpus", !devices.gpus.is_empty()),
        ("devices.hostDevices", !devices.host_devices.is_empty()),
        ("devices.filesystems", !devices.filesystems.is_empty()),
        ("devices.downwardMetrics", devices.downward_metrics.is_some()),
        ("devices.clientPassthrough", devices.client_passthrough.is_some()),
        ("devices.autoattachVSOCK", devices.autoattach_vsock == Some(true)),
    ];
    for (name, _) in asked.iter().filter(|(_, is_asked)| *is_asked) {
        faults.unsupported(format!("{field}.{name}"), "is not supported");
    }
}
