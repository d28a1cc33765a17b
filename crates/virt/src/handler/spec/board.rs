//! Firmware, clock, features, screen: what an instance says about its machine beside disks and networks.

use carrack_engine::Time;
use carrack_launcher::accel::Accel;
use carrack_launcher::board::{Board, Chassis, Firmware, InputDevice, Kernel, Sound, Video, WatchdogAction};
use carrack_types::kubevirt::DomainSpec;
use carrack_types::kubevirt::devices::FeatureState;
use carrack_types::kubevirt::domain::{FeatureHyperv, KernelBoot, Timer};
use std::time::Duration;

use crate::identity::{has_acpi, has_tpm, keeps_state};
use crate::paths;

/// Hyper-V's spinlock retries, unless the spec says otherwise.
const SPINLOCKS: u32 = 8191;

/// The board.
///
/// # Errors
/// What cannot be had, for people.
pub(super) fn of(domain: &DomainSpec, now: Time) -> Result<Board, String> {
    let devices = &domain.devices;
    let firmware = domain.firmware.clone().unwrap_or_default();
    let features = domain.features.clone().unwrap_or_default();
    let clock = domain.clock.clone().unwrap_or_default();
    let timers = clock.timer.clone().unwrap_or_default();
    let chassis = domain.chassis.clone().unwrap_or_default();
    let loader = firmware.bootloader.unwrap_or_default();
    let boots = match (&loader.efi, &loader.bios) {
        (Some(efi), _) if efi.secure_boot == Some(false) => Firmware::Efi,
        (Some(_), _) => Firmware::EfiSecure,
        (None, Some(bios)) if bios.use_serial == Some(true) => Firmware::BiosSerial,
        (None, _) => Firmware::Bios,
    };
    let watchdog =
        devices.watchdog.as_ref().map(|dog| match dog.i6300esb.as_ref().and_then(|model| model.action.as_deref()) {
            Some("poweroff") => WatchdogAction::Poweroff,
            Some("shutdown") => WatchdogAction::Shutdown,
            _ => WatchdogAction::Reset,
        });
    let video = match devices.video.as_ref().and_then(|video| video.r#type.as_deref()) {
        // As under KubeVirt, what boots by UEFI has no use for VGA.
        None if matches!(boots, Firmware::Efi | Firmware::EfiSecure) => Video::Bochs,
        None | Some("vga") => Video::Vga,
        Some("virtio") => Video::Virtio,
        Some("bochs") => Video::Bochs,
        Some("ramfb") => Video::Ramfb,
        Some("cirrus") => Video::Cirrus,
        Some(other) => return Err(format!("video device {other} is not supported")),
    };
    let mut inputs = Vec::new();
    for input in &devices.inputs {
        inputs.push(match (input.r#type.as_str(), input.bus.as_deref().unwrap_or("usb")) {
            ("tablet", "usb") => InputDevice::UsbTablet,
            ("keyboard", "usb") => InputDevice::UsbKeyboard,
            ("tablet", "virtio") => InputDevice::VirtioTablet,
            ("keyboard", "virtio") => InputDevice::VirtioKeyboard,
            (kind, bus) => return Err(format!("input device {}: {kind} on bus {bus} is not supported", input.name)),
        });
    }
    if devices.autoattach_input_device == Some(true) && inputs.is_empty() {
        inputs.push(InputDevice::UsbTablet);
    }
    let offset_s = clock.utc.as_ref().and_then(|utc| utc.offset_seconds).unwrap_or(0);
    let huge = domain.memory.as_ref().is_some_and(|memory| memory.hugepages.is_some());
    Ok(Board {
        firmware: boots,
        nvram: keeps_state(domain).then(|| paths::nvram(boots == Firmware::EfiSecure).into()),
        kernel: firmware.kernel_boot.as_ref().map(kernel),
        no_acpi: !has_acpi(domain),
        smm: features.smm.as_ref().map(is_on),
        hpet: timers.hpet.as_ref().map(|timer| timer.present != Some(false)),
        clock: (offset_s != 0).then(|| shifted(now, offset_s)),
        clock_follows_guest: timers.rtc.as_ref().is_some_and(|rtc| rtc.track.as_deref() == Some("guest")),
        drop_missed_pit_ticks: timers.pit.as_ref().is_some_and(|pit| pit.tick_policy.as_deref() == Some("discard")),
        ends_with_reboot: domain.reboot_policy.as_deref() == Some("Terminate"),
        pci_panic_device: devices.panic_devices.iter().any(|device| device.model.as_deref() == Some("pvpanic")),
        transitional: devices.use_virtio_transitional == Some(true),
        tpm: has_tpm(domain),
        sound: devices.sound.as_ref().map(|sound| match sound.model.as_deref() {
            Some("ac97") => Sound::Ac97,
            _ => Sound::Ich9,
        }),
        drop_missed_ticks: timers.rtc.as_ref().is_some_and(|rtc| rtc.tick_policy.as_deref() == Some("delay")),
        watchdog,
        video,
        inputs,
        chassis: Chassis {
            manufacturer: chassis.manufacturer,
            version: chassis.version,
            serial: chassis.serial,
            asset: chassis.asset,
            sku: chassis.sku,
        },
        hugepages: huge.then(|| paths::HUGEPAGES_DIR.into()),
    })
}

fn is_on(state: &FeatureState) -> bool {
    state.enabled != Some(false)
}

fn kernel(boot: &KernelBoot) -> Kernel {
    let container = boot.container.clone().unwrap_or_default();
    Kernel {
        kernel: container.kernel_path.map(|_| paths::KERNEL.into()),
        initrd: container.initrd_path.map(|_| paths::INITRD.into()),
        args: boot.kernel_args.clone(),
    }
}

/// `2026-01-31T12:00:00`, so many seconds from now.
fn shifted(now: Time, offset_s: i64) -> String {
    let by = Duration::from_secs(offset_s.unsigned_abs());
    let at = if offset_s < 0 { now - by } else { now + by };
    at.rfc3339().chars().take("2026-01-31T12:00:00".len()).collect()
}

/// The processor's features, in QEMU's words.
pub(super) fn cpu_features(domain: &DomainSpec, accel: Accel) -> Vec<String> {
    let cpu = domain.cpu.clone().unwrap_or_default();
    let mut features: Vec<String> = cpu
        .features
        .iter()
        .map(|feature| {
            let off = matches!(feature.policy.as_deref(), Some("disable" | "forbid"));
            format!("{}={}", feature.name, if off { "off" } else { "on" })
        })
        .collect();
    // What only KVM has, the emulator does not know.
    if accel == Accel::Kvm {
        let of = domain.features.clone().unwrap_or_default();
        if of.kvm.is_some_and(|kvm| kvm.hidden) {
            features.push("kvm=off".to_owned());
        }
        if of.pvspinlock.as_ref().is_some_and(|state| !is_on(state)) {
            features.push("kvm-pv-unhalt=off".to_owned());
        }
        if of.hyperv_passthrough.as_ref().is_some_and(is_on) {
            features.push("hv-passthrough=on".to_owned());
        }
        features.extend(of.hyperv.iter().flat_map(hyperv));
        let timers = domain.clock.clone().and_then(|clock| clock.timer).unwrap_or_default();
        let has = |timer: &Option<Timer>| timer.as_ref().is_some_and(|timer| timer.present != Some(false));
        if has(&timers.hyperv) {
            features.push("hv-time=on".to_owned());
        }
        complete_hyperv(&mut features);
        if timers.kvm.is_some() && !has(&timers.kvm) {
            features.push("kvmclock=off".to_owned());
        }
        if cpu.dedicated_cpu_placement {
            // The guest need not give way to others.
            features.push("kvm-hint-dedicated=on".to_owned());
        }
        if domain.devices.panic_devices.iter().any(|device| device.model.as_deref() == Some("hyperv")) {
            features.push("hv-crash=on".to_owned());
        }
    }
    features
}

/// What each of Hyper-V's features rests on: QEMU starts no machine that has one without the other. Those that nothing was said
/// of come along (upstream: `SetHypervFeatureDependencies` in pkg/hypervisor; QEMU: `kvm_hyperv_properties`).
const HYPERV_NEEDS: [(&str, &str); 7] = [
    ("hv-stimer-direct", "hv-stimer"),
    ("hv-stimer", "hv-synic"),
    ("hv-stimer", "hv-time"),
    ("hv-evmcs", "hv-vapic"),
    ("hv-synic", "hv-vpindex"),
    ("hv-tlbflush", "hv-vpindex"),
    ("hv-ipi", "hv-vpindex"),
];

fn complete_hyperv(features: &mut Vec<String>) {
    for (feature, needed) in HYPERV_NEEDS {
        let is_on = features.iter().any(|known| known.strip_suffix("=on") == Some(feature));
        let is_said = features.iter().any(|known| known.split('=').next() == Some(needed));
        if is_on && !is_said {
            features.push(format!("{needed}=on"));
        }
    }
}

fn hyperv(of: &FeatureHyperv) -> Vec<String> {
    let plain = [
        ("relaxed", &of.relaxed),
        ("vapic", &of.vapic),
        ("vpindex", &of.vpindex),
        ("runtime", &of.runtime),
        ("synic", &of.synic),
        ("reset", &of.reset),
        ("frequencies", &of.frequencies),
        ("reenlightenment", &of.reenlightenment),
        ("ipi", &of.ipi),
        ("evmcs", &of.evmcs),
    ];
    let mut features: Vec<String> = plain
        .into_iter()
        .filter_map(|(name, state)| Some(format!("hv-{name}={}", if is_on(state.as_ref()?) { "on" } else { "off" })))
        .collect();
    if let Some(locks) = of.spinlocks.as_ref().filter(|locks| locks.enabled != Some(false)) {
        features.push(format!("hv-spinlocks={}", locks.retries.unwrap_or(SPINLOCKS)));
    }
    if let Some(timer) = of.synictimer.as_ref().filter(|timer| timer.enabled != Some(false)) {
        features.push("hv-stimer=on".to_owned());
        if timer.direct.as_ref().is_some_and(is_on) {
            features.push("hv-stimer-direct=on".to_owned());
        }
    }
    if of.tlbflush.as_ref().is_some_and(|flush| flush.enabled != Some(false)) {
        features.push("hv-tlbflush=on".to_owned());
    }
    if let Some(vendor) = of.vendorid.as_ref().filter(|vendor| vendor.enabled != Some(false)) {
        features.extend(vendor.vendorid.as_ref().map(|id| format!("hv-vendor-id={id}")));
    }
    features
}
