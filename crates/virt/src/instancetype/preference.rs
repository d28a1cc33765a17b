//! A preference: it fills what a template leaves open.

use std::collections::BTreeSet;

use carrack_types::kubevirt::devices::{Binding, DiskTarget, Input, PanicDevice};
use carrack_types::kubevirt::domain::{Bios, Clock, Cpu, CpuFeature, Efi, FeatureHyperv};
use carrack_types::kubevirt::instancetype::{
    ClockPreferences, DevicePreferences, FeaturePreferences, FirmwarePreferences, PreferenceSpec,
};
use carrack_types::kubevirt::{DomainSpec, Quantity, VirtualMachineInstanceSpec};

use super::Conflict;

/// Applies a preference. What is set stays.
pub(super) fn apply(preference: &PreferenceSpec, spec: &mut VirtualMachineInstanceSpec) {
    let domain = &mut spec.domain;
    if let Some(cpu) = &preference.cpu {
        let features = &mut domain.cpu.get_or_insert_with(Cpu::default).features;
        let mut named: BTreeSet<&str> = features.iter().map(|own| own.name.as_str()).collect();
        let liked = cpu.preferred_cpu_features.iter().filter(|feature| named.insert(&feature.name));
        let liked: Vec<CpuFeature> = liked.cloned().collect();
        features.extend(liked);
    }
    if let Some(wanted) = &preference.clock {
        clock(wanted, domain);
    }
    if let Some(wanted) = &preference.features {
        features(wanted, domain);
    }
    if let Some(wanted) = &preference.firmware {
        firmware(wanted, domain);
    }
    if let Some(machine) = preference.machine.as_ref().filter(|machine| !machine.preferred_machine_type.is_empty()) {
        fill_text(&mut domain.machine.get_or_insert_default().r#type, &machine.preferred_machine_type);
    }
    if let Some(wanted) = &preference.devices {
        devices(wanted, spec);
    }
    if spec.subdomain.is_none() {
        spec.subdomain.clone_from(&preference.preferred_subdomain);
    }
    if spec.termination_grace_period_seconds.is_none() {
        spec.termination_grace_period_seconds = preference.preferred_termination_grace_period_seconds;
    }
    if spec.architecture.is_none() {
        spec.architecture.clone_from(&preference.preferred_architecture);
    }
}

fn fill<T: Clone>(own: &mut Option<T>, wanted: &Option<T>) {
    if own.is_none() {
        own.clone_from(wanted);
    }
}

fn fill_text(own: &mut Option<String>, wanted: &str) {
    if !wanted.is_empty() {
        crate::admission::fill(own, || wanted.to_owned());
    }
}

fn clock(wanted: &ClockPreferences, domain: &mut DomainSpec) {
    let own = domain.clock.get_or_insert_with(Clock::default);
    if let Some(offset) = &wanted.preferred_clock_offset
        && own.utc.is_none()
        && own.timezone.is_none()
    {
        own.utc.clone_from(&offset.utc);
        own.timezone.clone_from(&offset.timezone);
    }
    fill(&mut own.timer, &wanted.preferred_timer);
}

fn features(wanted: &FeaturePreferences, domain: &mut DomainSpec) {
    let own = domain.features.get_or_insert_default();
    fill(&mut own.acpi, &wanted.preferred_acpi);
    fill(&mut own.apic, &wanted.preferred_apic);
    // Who has all that the host has needs no list.
    let has_all = own.hyperv_passthrough.as_ref().is_some_and(|state| state.enabled == Some(true));
    if let Some(wanted) = wanted.preferred_hyperv.as_ref().filter(|_| !has_all) {
        hyperv(wanted, own.hyperv.get_or_insert_default());
    }
    fill(&mut own.kvm, &wanted.preferred_kvm);
    fill(&mut own.pvspinlock, &wanted.preferred_pvspinlock);
    fill(&mut own.smm, &wanted.preferred_smm);
}

/// Feature by feature: who sets one himself does not lose the others.
fn hyperv(wanted: &FeatureHyperv, own: &mut FeatureHyperv) {
    fill(&mut own.relaxed, &wanted.relaxed);
    fill(&mut own.vapic, &wanted.vapic);
    fill(&mut own.spinlocks, &wanted.spinlocks);
    fill(&mut own.vpindex, &wanted.vpindex);
    fill(&mut own.runtime, &wanted.runtime);
    fill(&mut own.synic, &wanted.synic);
    fill(&mut own.synictimer, &wanted.synictimer);
    fill(&mut own.reset, &wanted.reset);
    fill(&mut own.vendorid, &wanted.vendorid);
    fill(&mut own.frequencies, &wanted.frequencies);
    fill(&mut own.reenlightenment, &wanted.reenlightenment);
    fill(&mut own.tlbflush, &wanted.tlbflush);
    fill(&mut own.ipi, &wanted.ipi);
    fill(&mut own.evmcs, &wanted.evmcs);
}

fn firmware(wanted: &FirmwarePreferences, domain: &mut DomainSpec) {
    let loader = domain.firmware.get_or_insert_default().bootloader.get_or_insert_default();
    if loader.bios.is_some() || loader.efi.is_some() {
        return;
    }
    if wanted.preferred_efi.is_some() {
        loader.efi.clone_from(&wanted.preferred_efi);
    } else if wanted.preferred_use_efi == Some(true) {
        loader.efi = Some(Efi { secure_boot: Some(wanted.preferred_use_secure_boot == Some(true)), ..Efi::default() });
    } else if wanted.preferred_use_bios == Some(true) {
        loader.bios = Some(Bios { use_serial: wanted.preferred_use_bios_serial });
    }
}

fn devices(wanted: &DevicePreferences, spec: &mut VirtualMachineInstanceSpec) {
    let own = &mut spec.domain.devices;
    fill(&mut own.autoattach_graphics_device, &wanted.preferred_autoattach_graphics_device);
    fill(&mut own.autoattach_mem_balloon, &wanted.preferred_autoattach_mem_balloon);
    fill(&mut own.autoattach_pod_interface, &wanted.preferred_autoattach_pod_interface);
    fill(&mut own.autoattach_serial_console, &wanted.preferred_autoattach_serial_console);
    fill(&mut own.autoattach_input_device, &wanted.preferred_autoattach_input_device);
    fill(&mut own.use_virtio_transitional, &wanted.preferred_use_virtio_transitional);
    fill(&mut own.rng, &wanted.preferred_rng);
    fill(&mut own.block_multi_queue, &wanted.preferred_block_multi_queue);
    fill(&mut own.network_interface_multiqueue, &wanted.preferred_network_interface_multi_queue);
    fill(&mut own.tpm, &wanted.preferred_tpm);
    own.disable_hotplug |= wanted.preferred_disable_hotplug == Some(true);
    if let Some(sound) = &mut own.sound {
        fill_text(&mut sound.model, &wanted.preferred_sound_model);
    }
    if wanted.preferred_panic_device_model.is_some() {
        if own.panic_devices.is_empty() {
            own.panic_devices.push(PanicDevice::default());
        }
        own.panic_devices.iter_mut().for_each(|device| fill(&mut device.model, &wanted.preferred_panic_device_model));
    }
    inputs(wanted, &mut own.inputs, own.autoattach_input_device);
    // A volume that no disk names becomes a disk by its defaults; the preference has its say in them.
    crate::admission::attach_volumes(&mut own.disks, &spec.volumes);
    for disk in &mut own.disks {
        if disk.disk.is_none() && disk.lun.is_none() && disk.cdrom.is_none() {
            disk.disk = Some(DiskTarget::default());
        }
        if let Some(target) = &mut disk.disk {
            fill_text(&mut target.bus, &wanted.preferred_disk_bus);
        }
        if let Some(target) = &mut disk.cdrom {
            fill_text(&mut target.bus, &wanted.preferred_cdrom_bus);
        }
        if let Some(target) = &mut disk.lun {
            fill_text(&mut target.bus, &wanted.preferred_lun_bus);
        }
        // The rest is liked of disks alone: QEMU starts no machine whose CD drive has blocks as large as a disk's.
        if disk.cdrom.is_some() || disk.lun.is_some() {
            continue;
        }
        fill_text(&mut disk.cache, &wanted.preferred_disk_cache);
        fill_text(&mut disk.io, &wanted.preferred_disk_io);
        fill(&mut disk.block_size, &wanted.preferred_disk_block_size);
        // What names no bus is not on virtio.
        let on_virtio = disk.disk.as_ref().is_some_and(|target| target.bus.as_deref() == Some("virtio"));
        if on_virtio {
            fill(&mut disk.dedicated_io_thread, &wanted.preferred_disk_dedicated_io_thread);
        }
    }
    // So does the interface to the pod network of a machine that says nothing of networks.
    crate::admission::attach_to_pod_network(spec);
    let pod_networks = spec.networks.iter().filter(|network| network.pod.is_some());
    let pod_networks: BTreeSet<&str> = pod_networks.map(|network| network.name.as_str()).collect();
    for interface in &mut spec.domain.devices.interfaces {
        fill_text(&mut interface.model, &wanted.preferred_interface_model);
        let bound = interface.bridge.is_some() || interface.masquerade.is_some() || interface.sriov.is_some();
        let on_pod = pod_networks.contains(interface.name.as_str());
        if !bound && on_pod && wanted.preferred_interface_masquerade.is_some() {
            interface.masquerade = Some(Binding::default());
        }
    }
}

fn inputs(wanted: &DevicePreferences, own: &mut Vec<Input>, attach: Option<bool>) {
    let likes = !wanted.preferred_input_bus.is_empty() || !wanted.preferred_input_type.is_empty();
    if own.is_empty() && attach == Some(true) && likes {
        own.push(Input { name: "default-0".to_owned(), ..Input::default() });
    }
    for input in own {
        fill_text(&mut input.bus, &wanted.preferred_input_bus);
        if input.r#type.is_empty() {
            input.r#type.clone_from(&wanted.preferred_input_type);
        }
    }
}

/// How what a preference demands in vain is told.
const UNMET: &str = "failure checking preference requirements";

/// What the guest needs at least, against what it gets.
pub(super) fn check_requirements(
    field: &str,
    preference: &PreferenceSpec,
    by_instancetype: bool,
    spec: &VirtualMachineInstanceSpec,
) -> Result<(), Vec<Conflict>> {
    let Some(wanted) = &preference.requirements else { return Ok(()) };
    let of = if by_instancetype { "instance type" } else { "VM" };
    let at = |path: &str| if by_instancetype { "spec.instancetype".to_owned() } else { format!("{field}.{path}") };
    let mut unmet = Vec::new();
    if let Some(cpu) = wanted.cpu.as_ref().filter(|cpu| spec.domain.vcpus() < cpu.guest) {
        let message = format!(
            "{UNMET}: insufficient CPU resources of {} vCPU provided by {of}, preference requires {} vCPU",
            spec.domain.vcpus(),
            cpu.guest
        );
        unmet.push(Conflict { field: at("domain.cpu"), message });
    }
    let bytes = |amount: &Quantity| amount.units().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
    let given = spec.domain.guest_memory_bytes().unwrap_or(0);
    if let Some(memory) = wanted.memory.as_ref().filter(|memory| given < bytes(&memory.guest)) {
        let guest = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
        let given = guest.map_or_else(|| given.to_string(), Quantity::to_string);
        let message = format!(
            "{UNMET}: insufficient Memory resources of {given} provided by {of}, preference requires {}",
            memory.guest
        );
        unmet.push(Conflict { field: at("domain.memory"), message });
    }
    let architecture = spec.architecture.as_deref().unwrap_or("amd64");
    if let Some(needed) = wanted.architecture.as_deref().filter(|needed| *needed != architecture) {
        let message =
            format!("{UNMET}: preference requires architecture {needed} but {architecture} is being requested");
        unmet.push(Conflict { field: format!("{field}.architecture"), message });
    }
    if unmet.is_empty() { Ok(()) } else { Err(unmet) }
}
