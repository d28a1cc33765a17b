//! What is filled in where a user said nothing.

use carrack_types::kubevirt::devices::{Binding, DiskTarget, PodNetwork};
use carrack_types::kubevirt::vm::VirtualMachineInstanceTemplateSpec;
use carrack_types::kubevirt::{Disk, Interface, Network, VirtualMachine, VirtualMachineInstanceSpec};

/// Completes a machine. Little is written into its template, so that what a user keeps in a repository and what the
/// cluster shows stay alike.
pub fn complete_machine(vm: &mut VirtualMachine) {
    let Some(VirtualMachineInstanceTemplateSpec { spec, .. }) = &mut vm.spec.template else { return };
    spec.architecture.get_or_insert_with(|| "amd64".to_owned());
    spec.domain.machine.get_or_insert_default().r#type.get_or_insert_with(|| "q35".to_owned());
}

/// Completes an instance's spec. `uuid` is for the firmware of an instance that belongs to no machine.
pub fn complete_instance(spec: &mut VirtualMachineInstanceSpec, uuid: impl FnOnce() -> String) {
    spec.architecture.get_or_insert_with(|| "amd64".to_owned());
    let domain = &mut spec.domain;
    domain.machine.get_or_insert_default().r#type.get_or_insert_with(|| "q35".to_owned());
    domain.firmware.get_or_insert_default().uuid.get_or_insert_with(uuid);
    domain.features.get_or_insert_default().acpi.get_or_insert_default().enabled.get_or_insert(true);
    complete_cpu(spec);
    complete_memory(spec);
    complete_disks(spec);
    complete_networks(spec);
}

fn complete_cpu(spec: &mut VirtualMachineInstanceSpec) {
    let vcpus = spec.domain.vcpus();
    let cpu = spec.domain.cpu.get_or_insert_default();
    if cpu.cores.is_none() && cpu.sockets.is_none() && cpu.threads.is_none() {
        cpu.cores = Some(vcpus);
    }
    cpu.cores.get_or_insert(1);
    cpu.sockets.get_or_insert(1);
    cpu.threads.get_or_insert(1);
    cpu.model.get_or_insert_with(|| "host-model".to_owned());
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
                target.bus.get_or_insert_with(|| "virtio".to_owned());
            }
            (None, Some(target), None) => {
                target.bus.get_or_insert_with(|| "sata".to_owned());
            }
            _ => {}
        }
    }
}

/// An instance that says nothing of networks is on the pod network. Upstream binds it by a bridge there; here, as in
/// nearly every manifest, by masquerade.
fn complete_networks(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_pod_interface != Some(false) && devices.interfaces.is_empty() && spec.networks.is_empty() {
        devices.interfaces.push(Interface { name: "default".to_owned(), ..Interface::default() });
        spec.networks.push(Network {
            name: "default".to_owned(),
            pod: Some(PodNetwork::default()),
            ..Network::default()
        });
    }
    for interface in &mut devices.interfaces {
        let bound = interface.bridge.is_some()
            || interface.masquerade.is_some()
            || interface.sriov.is_some()
            || interface.slirp.is_some()
            || interface.macvtap.is_some()
            || interface.passt.is_some()
            || interface.passt_binding.is_some()
            || interface.binding.is_some();
        if !bound {
            interface.masquerade = Some(Binding::default());
        }
        interface.model.get_or_insert_with(|| "virtio".to_owned());
    }
}
