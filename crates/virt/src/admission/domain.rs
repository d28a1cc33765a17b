//! The guest's machine: memory, CPUs, and what this version cannot give it.

use std::collections::BTreeMap;

use carrack_types::glob::glob;
use carrack_types::kubevirt::domain::{Clock, Cpu, Memory};
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::{DomainSpec, Quantity};

use super::{Faults, firmware, is_one_of};

/// Most virtual CPUs that QEMU's q35 takes without further settings.
const MAX_VCPUS: u32 = 255;
/// Least memory that can be asked for, bytes.
const MIN_MEMORY: i64 = 1_000_000;

pub(super) fn check(field: &str, domain: &DomainSpec, settings: &KubeVirtConfiguration, faults: &mut Faults) {
    let field = format!("{field}.domain");
    amounts(&field, domain, faults);
    memory(&field, domain, faults);
    cpu(&field, domain, faults);
    firmware::check(&field, domain, faults);
    if let Some(machine) = domain.machine.as_ref().and_then(|machine| machine.r#type.as_deref()) {
        let allowed = allowed_machines(settings);
        // One that is not given becomes the default.
        let is_allowed = machine.is_empty() || allowed.iter().any(|pattern| glob(pattern, machine));
        if machine_type(machine).is_none() || !is_allowed {
            let message = format!("is not supported: {machine} (allowed values: [{}])", allowed.join(" "));
            faults.invalid(format!("{field}.machine.type"), format!("{field}.machine.type {message}"));
        }
    }
    devices(&field, domain, faults);
    unsupported(&field, domain, faults);
}

/// What only an instance must have: templates of machines get it from elsewhere, an instance type for example.
pub(super) fn check_mandatory(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    if domain.guest_memory_bytes().unwrap_or(0) == 0 {
        let at = |name: &str| format!("{field}.domain.{name}");
        let message = format!(
            "no memory requested, at least one of '{}', '{}' or '{}' must be set",
            at("memory.guest"),
            at("memory.hugepages.size"),
            at("resources.requests.memory")
        );
        // Upstream names no field here.
        faults.required(at("memory.guest"), message);
    }
}

/// The machine types that the cluster's settings allow, or else those that there are. (Upstream: `GetEmulatedMachines` in
/// pkg/virt-config; its own defaults leave out the older chip set, which is served here.)
fn allowed_machines(settings: &KubeVirtConfiguration) -> Vec<&str> {
    let of = settings.architecture_configuration.as_ref().and_then(|of| of.amd64.as_ref());
    let lists = [Some(&settings.emulated_machines), of.map(|amd64| &amd64.emulated_machines)];
    match lists.into_iter().flatten().find(|list| !list.is_empty()) {
        Some(list) => list.iter().map(String::as_str).collect(),
        None => vec!["q35", "pc-q35-*", "pc", "pc-i440fx-*"],
    }
}

/// Whether a machine type is one of PCI Express (true) or the older i440FX (false). Which versions there are QEMU knows.
pub(crate) fn machine_type(name: &str) -> Option<bool> {
    match name {
        "" | "q35" => Some(true),
        "pc" => Some(false),
        _ if !is_name(name) => None,
        _ if name.starts_with("pc-q35-") => Some(true),
        _ if name.starts_with("pc-i440fx-") => Some(false),
        _ => None,
    }
}

/// Whether a text can be a name of QEMU's: none of them begins another option.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Requests and limits are amounts, and none is negative.
fn amounts(field: &str, domain: &DomainSpec, faults: &mut Faults) {
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
}

fn memory(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    let of = |amount: Option<&Quantity>| amount.and_then(Quantity::units);
    let request = domain.resources.requests.get("memory");
    let requested = of(request);
    let limit = of(domain.resources.limits.get("memory"));
    let at = format!("{field}.resources.requests.memory");
    if let (Some(requested), Some(limit)) = (requested, limit)
        && limit > 0
        && requested > limit
    {
        let [requested, limit] =
            [&domain.resources.requests, &domain.resources.limits].map(|amounts| &amounts["memory"]);
        let message = format!("{at} '{requested}' is greater than {field}.resources.limits.memory '{limit}'");
        faults.invalid(&at, message);
    }
    if let (Some(amount), Some(1..MIN_MEMORY)) = (request, requested) {
        faults.invalid(&at, format!("{at} '{amount}': must be greater than or equal to 1M."));
    }
    let memory = domain.memory.clone().unwrap_or_default();
    let guest = format!("{field}.memory.guest");
    if let Some(amount) = &memory.guest {
        match amount.units() {
            Some(bytes) if bytes >= 1 => {
                if limit.is_some_and(|limit| limit > 0 && bytes > limit) {
                    let of = format!("{field}.resources.limits.memory");
                    let limit = &domain.resources.limits["memory"];
                    let message =
                        format!("{guest} '{amount}' must be equal to or less than the memory limit {of} '{limit}'");
                    faults.invalid(&guest, message);
                }
            }
            _ => faults.invalid(&guest, format!("{guest} '{amount}' must be greater than 0")),
        }
    }
    if memory.max_guest.is_some() {
        faults.unsupported(format!("{field}.memory.maxGuest"), "memory hotplug is not supported");
    }
    huge_pages(field, &memory, domain.guest_memory_bytes(), faults);
}

fn huge_pages(field: &str, memory: &Memory, guest: Option<u64>, faults: &mut Faults) {
    let Some(pages) = &memory.hugepages else { return };
    let text = pages.page_size.clone().unwrap_or_default();
    let at = format!("{field}.hugepages.size");
    let size = Quantity(text.clone()).units().and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
    let Some(size) = size else {
        faults.invalid(&at, format!("{at} '{text}': is not a quantity"));
        return;
    };
    let of = format!("{field}.resources.requests.memory");
    match guest {
        None => {}
        Some(bytes) if bytes < size => {
            faults.invalid(&of, format!("{of} '{bytes}' must be equal to or larger than page size {at} '{text}'"));
        }
        Some(bytes) if bytes % size != 0 => {
            faults.invalid(&of, format!("{of} '{bytes}' is not a multiple of the page size {at} '{text}'"));
        }
        Some(_) => {}
    }
}

fn cpu(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    if domain.vcpus() > MAX_VCPUS {
        faults.invalid(format!("{field}.cpu"), format!("at most {MAX_VCPUS} virtual CPUs are supported"));
    }
    let (requests, limits) = (&domain.resources.requests, &domain.resources.limits);
    if let (Some(request), Some(limit)) =
        (requests.get("cpu").and_then(Quantity::millis), limits.get("cpu").and_then(Quantity::millis))
        && limit > 0
        && request > limit
    {
        let at = format!("{field}.resources.requests.cpu");
        let message =
            format!("{at} '{}' is greater than {field}.resources.limits.cpu '{}'", requests["cpu"], limits["cpu"]);
        faults.invalid(&at, message);
    }
    let Some(cpu) = &domain.cpu else { return };
    let at = format!("{field}.cpu");
    if cpu.model.as_deref().is_some_and(|model| !model.is_empty() && !is_name(model)) {
        faults.invalid(format!("{at}.model"), "not a processor model");
    }
    for (index, feature) in cpu.features.iter().enumerate() {
        let at = format!("{at}.features[{index}]");
        let policy = feature.policy.as_deref();
        if !is_one_of(policy, &["", "force", "require", "optional", "disable", "forbid"]) {
            let policy = policy.unwrap_or_default();
            let message = format!("CPU feature {} uses policy {policy} that is not supported.", feature.name);
            faults.unsupported(format!("{at}.policy"), message);
        }
        if !is_name(&feature.name) {
            faults.invalid(format!("{at}.name"), "not a processor feature");
        }
    }
    if cpu.dedicated_cpu_placement {
        dedicated(field, domain, cpu, faults);
    }
    if cpu.isolate_emulator_thread && !cpu.dedicated_cpu_placement {
        let message = "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement";
        faults.invalid(format!("{at}.isolateEmulatorThread"), message);
    }
    if let Some(max) = cpu.max_sockets.filter(|max| *max != 0)
        && cpu.sockets.unwrap_or(1) > max
    {
        let message = "Number of sockets in CPU topology is greater than the maximum sockets allowed";
        faults.invalid(format!("{at}.sockets"), message);
    }
}

/// CPUs of its own come in whole numbers, and memory and CPUs are limited to what is asked for. (Upstream: `validateCpuPinning`
/// in the admitter of instances; the words are its own, with their faults.)
fn dedicated(field: &str, domain: &DomainSpec, cpu: &Cpu, faults: &mut Faults) {
    let (requests, limits) = (&domain.resources.requests, &domain.resources.limits);
    let at = |list: &str, name: &str| format!("{field}.resources.{list}.{name}");
    let of =
        |amounts: &BTreeMap<String, Quantity>, name: &str| amounts.get(name).and_then(Quantity::units).unwrap_or(0);
    let memory = [of(requests, "memory"), of(limits, "memory")];
    let given = domain.memory.as_ref().is_some_and(|memory| memory.guest.is_some() || memory.hugepages.is_some());
    let [asked, most] = [at("requests", "memory"), at("limits", "memory")];
    if memory == [0, 0] && !given {
        let [pages, guest] = ["hugepages", "guest"].map(|name| format!("{field}.memory.{name}"));
        faults.invalid(&most, format!("{asked}, {most}, {pages} or {guest} should be provided"));
    }
    for (list, amounts) in [("requests", requests), ("limits", limits)] {
        if amounts.get("cpu").and_then(Quantity::millis).is_some_and(|millis| millis > 0 && millis % 1000 != 0) {
            faults.invalid(at(list, "cpu"), format!("provided resources CPU {list} must be an interger"));
        }
    }
    if memory[0] > 0 && memory[1] > 0 && memory[0] != memory[1] {
        faults.invalid(&asked, format!("{asked} must be equal to {most}"));
    }
    let here = format!("{field}.cpu.dedicatedCpuPlacement");
    let [asked, most, cores] = [at("requests", "cpu"), at("limits", "cpu"), format!("{field}.cpu.cores")];
    let cpus = [of(requests, "cpu"), of(limits, "cpu")];
    let has_topology = [cpu.cores, cpu.sockets, cpu.threads].iter().any(|count| count.is_some_and(|count| count > 0));
    let vcpus = if has_topology { i64::from(cpu.vcpus()) } else { 0 };
    if cpus == [0, 0] && vcpus == 0 {
        let message =
            format!("either {asked} or {most} or {cores} must be provided when DedicatedCPUPlacement is true ");
        faults.invalid(&here, message);
    }
    if cpus[0] > 0 && cpus[1] > 0 && cpus[0] != cpus[1] {
        faults.invalid(&here, format!("{asked} or {most} must be equal when DedicatedCPUPlacement is true "));
    }
    if cpus != [0, 0] && vcpus > 0 && !cpus.contains(&vcpus) {
        let message = format!(
            "{asked} or {most} must not be provided at the same time with {cores} when DedicatedCPUPlacement is true "
        );
        faults.invalid(&here, message);
    }
    if let Some(threads) = cpu.threads.filter(|threads| *threads > 2) {
        let message = format!(
            "Not more than two threads must be provided at {field}.cpu.threads (got {threads}) when DedicatedCPUPlacement is true"
        );
        faults.invalid(here, message);
    }
}

fn devices(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    let devices = &domain.devices;
    let at = format!("{field}.devices");
    for (index, input) in devices.inputs.iter().enumerate() {
        if !is_one_of(input.bus.as_deref(), &["", "virtio", "usb"]) {
            let message = "Input device can have only virtio or usb bus.";
            faults.invalid(format!("{at}.inputs[{index}].bus"), message);
        }
        if input.r#type != "tablet" {
            let message = "Input device can have only tablet type.";
            faults.invalid(format!("{at}.inputs[{index}].type"), message);
        }
    }
    if let Some(video) = &devices.video {
        // Upstream's path: it stands beside the domain there.
        let of = format!("{}.video", field.trim_end_matches(".domain"));
        if devices.autoattach_graphics_device == Some(false) {
            let message = "Video configuration is not allowed when autoattachGraphicsDevice is set to false";
            faults.invalid(&of, message);
        }
        let model = video.r#type.as_deref().unwrap_or_default();
        if !["vga", "cirrus", "virtio", "bochs", "ramfb"].contains(&model) {
            let message = format!("video model '{model}' is not supported on amd64 architecture");
            faults.unsupported(format!("{at}.video.type"), message);
        }
    }
    if let Some(dog) = &devices.watchdog {
        let at = format!("{at}.watchdog");
        match &dog.i6300esb {
            Some(model) if !is_one_of(model.action.as_deref(), &["", "poweroff", "reset", "shutdown"]) => {
                faults.invalid(format!("{at}.i6300esb.action"), "must be one of poweroff, reset, shutdown");
            }
            Some(_) => {}
            None => faults.invalid(&at, "amd64 machines have the watchdog i6300esb"),
        }
    }
    for (index, device) in devices.panic_devices.iter().enumerate() {
        if !is_one_of(device.model.as_deref(), &["isa", "pvpanic", "hyperv"]) {
            faults.invalid(format!("{at}.panicDevices[{index}].model"), "must be one of hyperv, isa, pvpanic");
        }
    }
    if let Some(sound) = &devices.sound {
        // Upstream's path and name of it.
        let of = format!("{}.Sound", field.trim_end_matches(".domain"));
        if !is_one_of(sound.model.as_deref(), &["", "ich9", "ac97"]) {
            faults.invalid(&of, "Sound device type is not supported. Options: 'ich9' or 'ac97'");
        }
        if sound.name.is_empty() {
            faults.invalid(&of, "Sound device requires a name field.");
        }
    }
    let policy = domain.io_threads_policy.as_deref();
    if !is_one_of(policy, &["shared", "auto", "supplementalPool"]) {
        let message = format!("Invalid IOThreadsPolicy ({})", policy.unwrap_or_default());
        faults.invalid(format!("{field}.ioThreadsPolicy"), message);
    }
    let threads = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    if policy == Some("supplementalPool") && threads.unwrap_or(0) < 1 {
        let message = "the number of iothreads needs to be set and positive for the dedicated policy";
        faults.invalid(format!("{field}.ioThreads.count"), message);
    }
}

fn unsupported(field: &str, domain: &DomainSpec, faults: &mut Faults) {
    let devices = &domain.devices;
    let Cpu { numa, realtime, .. } = domain.cpu.clone().unwrap_or_default();
    let Clock { timezone, .. } = domain.clock.clone().unwrap_or_default();
    let asked = [
        ("launchSecurity", domain.launch_security.is_some()),
        ("rebootPolicy", !is_one_of(domain.reboot_policy.as_deref(), &["Reboot", "Terminate"])),
        ("clock.timezone", timezone.is_some()),
        ("cpu.numa", numa.is_some()),
        ("cpu.realtime", realtime.is_some()),
        ("ioThreadsPolicy", domain.io_threads_policy.as_deref() == Some("supplementalPool")),
        ("devices.tpm.persistent", devices.tpm.as_ref().is_some_and(|tpm| tpm.persistent == Some(true))),
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

#[cfg(test)]
mod tests {
    use carrack_types::kubevirt::DomainSpec;
    use serde_json::{Value, json};

    use super::{Faults, check};

    #[test]
    fn machine_types_are_those_that_the_cluster_allows() {
        let told = |settings: Value, machine: &str| {
            let domain: DomainSpec = serde_json::from_value(json!({"machine": {"type": machine}})).expect("a domain");
            let mut faults = Faults::default();
            check("spec", &domain, &serde_json::from_value(settings).expect("settings"), &mut faults);
            let faults = faults.into_vec();
            faults.into_iter().find(|fault| fault.field == "spec.domain.machine.type").map(|fault| fault.message)
        };
        let is_allowed = |settings: &Value, machine: &str, wanted: bool| {
            assert_eq!(told(settings.clone(), machine).is_none(), wanted, "{settings} {machine}");
        };
        let refused = "spec.domain.machine.type is not supported: pc (allowed values: [q35* pc-q35*])";
        let theirs = json!({"emulatedMachines": ["q35*", "pc-q35*"]});
        assert_eq!(told(theirs.clone(), "pc").as_deref(), Some(refused));
        for machine in ["", "q35", "pc-q35-7.2"] {
            is_allowed(&json!({}), machine, true);
            is_allowed(&theirs, machine, true);
        }
        let by_architecture = json!({"architectureConfiguration": {"amd64": {"emulatedMachines": ["pc-*-*.2", "pc"]}}});
        for (machine, wanted) in
            [("pc", true), ("pc-q35-7.2", true), ("pc-q35-7.1", false), ("pc-i440fx-8.2", true), ("q35", false)]
        {
            is_allowed(&by_architecture, machine, wanted);
        }
        // What is allowed and is not there is still not there.
        is_allowed(&json!({"emulatedMachines": ["*"]}), "microvm", false);
        is_allowed(&json!({"emulatedMachines": ["*"]}), "pc", true);
    }
}
