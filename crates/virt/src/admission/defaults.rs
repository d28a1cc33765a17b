//! What is filled in where a user said nothing.

use std::collections::{BTreeMap, BTreeSet};

use carrack_types::kubevirt::devices::{Binding, DiskTarget, Input, PodNetwork};
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::vm::VirtualMachineInstanceTemplateSpec;
use carrack_types::kubevirt::{
    Disk, DomainSpec, Interface, Network, Quantity, VirtualMachine, VirtualMachineInstanceSpec, Volume,
};

use super::networks::parse_address;

/// What a disk, a CD drive or a LUN is attached to that names no bus.
pub(crate) const DEFAULT_BUS: &str = "sata";

/// Completes a machine. Little is written into its template, so that what a user keeps in a repository and what the
/// cluster shows stay alike. What a preference may choose is left open.
pub fn complete_machine(vm: &mut VirtualMachine, settings: &KubeVirtConfiguration) {
    super::instancetype::complete_matchers(&mut vm.spec);
    let chosen_elsewhere = vm.spec.preference.is_some();
    let Some(VirtualMachineInstanceTemplateSpec { spec, .. }) = &mut vm.spec.template else { return };
    fill(&mut spec.architecture, || "amd64".to_owned());
    if !chosen_elsewhere {
        fill(&mut spec.domain.machine.get_or_insert_default().r#type, || machine_type(settings));
    }
}

/// Sets what is not set. An empty text is none, as in upstream's types: manifests that were written out whole have many.
pub(crate) fn fill(text: &mut Option<String>, default: impl FnOnce() -> String) {
    if text.as_deref().is_none_or(str::is_empty) {
        *text = Some(default());
    }
}

/// Completes an instance's spec. `uuid` is for the firmware of an instance that belongs to no machine.
pub fn complete_instance(
    spec: &mut VirtualMachineInstanceSpec,
    settings: &KubeVirtConfiguration,
    uuid: impl FnOnce() -> String,
) {
    fill(&mut spec.architecture, || "amd64".to_owned());
    if spec.eviction_strategy.is_none() {
        spec.eviction_strategy.clone_from(&settings.eviction_strategy);
    }
    let domain = &mut spec.domain;
    fill(&mut domain.machine.get_or_insert_default().r#type, || machine_type(settings));
    fill(&mut domain.firmware.get_or_insert_default().uuid, uuid);
    domain.features.get_or_insert_default().acpi.get_or_insert_default().enabled.get_or_insert(true);
    if let Some(dog) = domain.devices.watchdog.as_mut().filter(|dog| dog.diag288.is_none()) {
        fill(&mut dog.i6300esb.get_or_insert_default().action, || "reset".to_owned());
    }
    // A video device of no kind is the one that a guest has anyway, and machines are stored with such.
    if domain.devices.video.as_ref().is_some_and(|video| video.r#type.as_deref().is_none_or(str::is_empty)) {
        domain.devices.video = None;
    }
    complete_inputs(&mut domain.devices.inputs);
    complete_requests(domain);
    complete_memory(domain);
    complete_cpu(spec, settings);
    spec.volumes.iter_mut().for_each(complete_image);
    complete_disks(spec);
    complete_networks(spec, settings);
    complete_addresses(spec);
}

/// The machine type that the cluster's settings choose: by architecture, or for all.
fn machine_type(settings: &KubeVirtConfiguration) -> String {
    let of = settings.architecture_configuration.as_ref().and_then(|of| of.amd64.as_ref());
    let chosen = of.and_then(|amd64| amd64.machine_type.clone()).or_else(|| settings.machine_type.clone());
    chosen.filter(|name| !name.is_empty()).unwrap_or_else(|| "q35".to_owned())
}

fn complete_cpu(spec: &mut VirtualMachineInstanceSpec, settings: &KubeVirtConfiguration) {
    // None of something is not said of it.
    if let Some(cpu) = &mut spec.domain.cpu {
        for count in [&mut cpu.cores, &mut cpu.sockets, &mut cpu.threads] {
            *count = count.filter(|count| *count > 0);
        }
    }
    let vcpus = spec.domain.vcpus();
    let cpu = spec.domain.cpu.get_or_insert_default();
    // As upstream: a processor each, of what is asked for in amounts alone.
    if cpu.cores.is_none() && cpu.sockets.is_none() && cpu.threads.is_none() {
        cpu.sockets = Some(vcpus);
    }
    cpu.cores.get_or_insert(1);
    cpu.sockets.get_or_insert(1);
    cpu.threads.get_or_insert(1);
    let model = settings.cpu_model.clone().filter(|model| !model.is_empty());
    fill(&mut cpu.model, || model.unwrap_or_else(|| "host-model".to_owned()));
    for feature in &mut cpu.features {
        fill(&mut feature.policy, || "require".to_owned());
    }
}

/// CPUs that are limited and not asked for are asked for as they are limited.
fn complete_requests(domain: &mut DomainSpec) {
    let resources = &mut domain.resources;
    if let Some(limit) = amount(&resources.limits, "cpu")
        && amount(&resources.requests, "cpu").is_none()
    {
        resources.requests.insert("cpu".to_owned(), limit);
    }
}

/// An amount that is given, and is not none.
fn amount(amounts: &BTreeMap<String, Quantity>, name: &str) -> Option<Quantity> {
    amounts.get(name).filter(|amount| amount.units().is_some_and(|units| units != 0)).cloned()
}

/// A guest has the memory that is asked for, or else the one that it is limited to, or else one huge page.
fn complete_memory(domain: &mut DomainSpec) {
    let resources = &domain.resources;
    let pages = domain.memory.as_ref().and_then(|memory| memory.hugepages.as_ref());
    let page = pages.and_then(|pages| pages.page_size.clone()).map(Quantity).filter(|size| size.units().is_some());
    let given = amount(&resources.requests, "memory").or_else(|| amount(&resources.limits, "memory")).or(page);
    if let Some(amount) = given {
        domain.memory.get_or_insert_default().guest.get_or_insert(amount);
    }
}

fn complete_inputs(inputs: &mut [Input]) {
    for input in inputs {
        fill(&mut input.bus, || "usb".to_owned());
        if input.r#type.is_empty() {
            "tablet".clone_into(&mut input.r#type);
        }
    }
}

/// When the image of a container disk is pulled: each time where its tag is the newest, or there is neither a tag nor a digest.
/// (Upstream: `setDefaultPullPoliciesOnContainerDisks`, which takes the port of a registry for a tag.)
fn complete_image(volume: &mut Volume) {
    if let Some(disk) = &mut volume.container_disk {
        let newest = disk.image.ends_with(":latest") || !disk.image.contains([':', '@']);
        let policy = if newest { "Always" } else { "IfNotPresent" };
        fill(&mut disk.image_pull_policy, || policy.to_owned());
    }
}

/// A volume that no disk names becomes a disk of its own.
pub(crate) fn attach_volumes(disks: &mut Vec<Disk>, volumes: &[Volume]) {
    let mut named: BTreeSet<&str> = disks.iter().map(|disk| disk.name.as_str()).collect();
    let unnamed = volumes.iter().filter(|volume| named.insert(&volume.name));
    let own: Vec<Disk> = unnamed.map(|volume| Disk { name: volume.name.clone(), ..Disk::default() }).collect();
    disks.extend(own);
}

/// A volume that no disk names becomes a disk of its own. What is attached by no bus that anybody named is attached by
/// SATA, whose driver every system has. (Upstream: `setDefaultAmd64DisksBus`.)
fn complete_disks(spec: &mut VirtualMachineInstanceSpec) {
    let disks = &mut spec.domain.devices.disks;
    attach_volumes(disks, &spec.volumes);
    for disk in disks {
        if disk.disk.is_none() && disk.cdrom.is_none() && disk.lun.is_none() {
            disk.disk = Some(DiskTarget::default());
        }
        if let Some(drive) = &mut disk.cdrom {
            drive.readonly.get_or_insert(true);
            fill(&mut drive.tray, || "closed".to_owned());
        }
        let buses = [
            disk.disk.as_mut().map(|target| &mut target.bus),
            disk.cdrom.as_mut().map(|target| &mut target.bus),
            disk.lun.as_mut().map(|target| &mut target.bus),
        ];
        for bus in buses.into_iter().flatten() {
            fill(bus, || DEFAULT_BUS.to_owned());
        }
    }
}

/// Writes addresses as everybody reads them, who may be the pod's runtime and the guest.
fn complete_addresses(spec: &mut VirtualMachineInstanceSpec) {
    let plain = |address: &mut String| {
        if let Some(parsed) = parse_address(address) {
            *address = parsed.to_string();
        }
    };
    if let Some(config) = &mut spec.dns_config {
        config.nameservers.iter_mut().flatten().for_each(plain);
    }
    for interface in &mut spec.domain.devices.interfaces {
        if let Some(options) = &mut interface.dhcp_options {
            options.ntp_servers.iter_mut().for_each(plain);
        }
    }
    for network in &mut spec.networks {
        if let Some(cidr) = network.pod.as_mut().and_then(|pod| pod.vm_network_cidr.as_mut())
            && let Some((address, bits)) = cidr.split_once('/')
            && let Some(address) = parse_address(address)
        {
            *cidr = format!("{address}/{bits}");
        }
    }
}

/// An instance that says nothing of networks is on the pod network.
pub(crate) fn attach_to_pod_network(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_pod_interface != Some(false) && devices.interfaces.is_empty() && spec.networks.is_empty() {
        devices.interfaces.push(Interface { name: "default".to_owned(), ..Interface::default() });
        spec.networks.push(Network {
            name: "default".to_owned(),
            pod: Some(PodNetwork::default()),
            ..Network::default()
        });
    }
}

/// Upstream binds what nobody bound by a bridge on the pod network, unless its settings say otherwise; here, as in nearly
/// every manifest, it is bound by masquerade.
fn complete_networks(spec: &mut VirtualMachineInstanceSpec, settings: &KubeVirtConfiguration) {
    attach_to_pod_network(spec);
    let wanted = settings.network.as_ref().and_then(|network| network.default_network_interface.as_deref());
    // Where two have one name, the first counts.
    let networks: BTreeMap<&str, &Network> =
        spec.networks.iter().rev().map(|network| (network.name.as_str(), network)).collect();
    for interface in &mut spec.domain.devices.interfaces {
        let bound = interface.bridge.is_some()
            || interface.masquerade.is_some()
            || interface.sriov.is_some()
            || interface.slirp.is_some()
            || interface.macvtap.is_some()
            || interface.passt.is_some()
            || interface.passt_binding.is_some()
            || interface.binding.is_some();
        let on_pod = networks.get(interface.name.as_str()).is_none_or(|network| network.pod.is_some());
        match (bound, on_pod && wanted != Some("bridge")) {
            (true, _) => {}
            (false, true) => interface.masquerade = Some(Binding::default()),
            (false, false) => interface.bridge = Some(Binding::default()),
        }
        fill(&mut interface.model, || "virtio".to_owned());
    }
}
