//! What is filled in where a user said nothing.

use carrack_types::kubevirt::devices::{Binding, DiskTarget, PodNetwork};
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::vm::VirtualMachineInstanceTemplateSpec;
use carrack_types::kubevirt::{Disk, Interface, Network, VirtualMachine, VirtualMachineInstanceSpec};

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
    complete_cpu(spec, settings);
    complete_memory(spec);
    complete_disks(spec);
    complete_networks(spec, settings);
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
    if cpu.cores.is_none() && cpu.sockets.is_none() && cpu.threads.is_none() {
        cpu.cores = Some(vcpus);
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

fn complete_memory(spec: &mut VirtualMachineInstanceSpec) {
    let resources = &spec.domain.resources;
    let given = resources.requests.get("memory").or_else(|| resources.limits.get("memory")).cloned();
    if let Some(amount) = given {
        spec.domain.memory.get_or_insert_default().guest.get_or_insert(amount);
    }
}

/// A volume that no disk names becomes a disk of its own.
fn complete_disks(spec: &mut VirtualMachineInstanceSpec) {
    let disks = &mut spec.domain.devices.disks;
    for volume in &spec.volumes {
        if !disks.iter().any(|disk| disk.name == volume.name) {
            disks.push(Disk { name: volume.name.clone(), ..Disk::default() });
        }
    }
    for disk in disks {
        match (&mut disk.disk, &mut disk.cdrom, &disk.lun) {
            (None, None, None) => {
                disk.disk = Some(DiskTarget { bus: Some("virtio".to_owned()), ..DiskTarget::default() });
            }
            (Some(target), None, None) => {
                fill(&mut target.bus, || "virtio".to_owned());
            }
            (None, Some(target), None) => {
                fill(&mut target.bus, || "sata".to_owned());
            }
            _ => {}
        }
    }
}

/// An instance that says nothing of networks is on the pod network. Upstream binds it by a bridge there, unless its
/// settings say otherwise; here, as in nearly every manifest, by masquerade.
fn complete_networks(spec: &mut VirtualMachineInstanceSpec, settings: &KubeVirtConfiguration) {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_pod_interface != Some(false) && devices.interfaces.is_empty() && spec.networks.is_empty() {
        devices.interfaces.push(Interface { name: "default".to_owned(), ..Interface::default() });
        spec.networks.push(Network {
            name: "default".to_owned(),
            pod: Some(PodNetwork::default()),
            ..Network::default()
        });
    }
    let wanted = settings.network.as_ref().and_then(|network| network.default_network_interface.as_deref());
    for interface in &mut devices.interfaces {
        let bound = interface.bridge.is_some()
            || interface.masquerade.is_some()
            || interface.sriov.is_some()
            || interface.slirp.is_some()
            || interface.macvtap.is_some()
            || interface.passt.is_some()
            || interface.passt_binding.is_some()
            || interface.binding.is_some();
        let network = spec.networks.iter().find(|network| network.name == interface.name);
        let on_pod = network.is_none_or(|network| network.pod.is_some());
        match (bound, on_pod && wanted != Some("bridge")) {
            (true, _) => {}
            (false, true) => interface.masquerade = Some(Binding::default()),
            (false, false) => interface.bridge = Some(Binding::default()),
        }
        fill(&mut interface.model, || "virtio".to_owned());
    }
}
