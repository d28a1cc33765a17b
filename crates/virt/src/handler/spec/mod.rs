//! From an instance to the machine that its launcher runs.

mod board;
mod disks;
mod network;

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_launcher::MachineSpec;
use carrack_launcher::accel::Accel;
use carrack_launcher::spec::{CpuSpec, Dedicated, MachineType, Smbios};
use carrack_types::kubevirt::others::SmBiosConfiguration;
use carrack_types::kubevirt::vmi::CredentialSource;
use carrack_types::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceSpec};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{COMPUTE_CONTAINER, KVM_RESOURCE, SMBIOS_ANNOTATION};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::effects::{ContainerDisk, Credential, Place, Preparation, Prepared};
use crate::paths;

pub(super) use disks::targets;
pub use network::{POD_INTERFACE, mac_of};
pub(super) use network::{pod_interface, queues, taps};

/// Id of a container as the kubelet reports it, without the runtime's name.
fn container_id(status: &ContainerStatus) -> Option<String> {
    let id = status.container_id.as_deref()?;
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    (!id.is_empty()).then(|| id.to_owned())
}

/// What a pod tells of a container.
pub(super) fn status_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|status| status.name == name)
}

/// Whether the kubelet reports that a pod's launcher has ended.
pub(super) fn launcher_has_ended(pod: &Pod) -> bool {
    let state = status_of(pod, COMPUTE_CONTAINER).and_then(|status| status.state.as_ref());
    state.is_some_and(|state| state.terminated.is_some())
}

/// Where an instance is, once its compute container runs.
#[must_use]
pub fn place(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<Place> {
    let status = status_of(pod, COMPUTE_CONTAINER)?;
    status.state.as_ref()?.running.as_ref()?;
    Some(Place { uid: vmi.uid().to_owned(), pod_uid: pod.uid().to_owned(), compute_id: container_id(status)? })
}

/// Why nothing can be made ready.
#[derive(Debug)]
pub enum Unready {
    /// Something is not as it must be, and may be so later.
    Yet(String),
    /// The container of a disk, or of the kernel, has ended: nothing starts it again.
    Ended(String),
}

/// What is told of a disk's container, or the kernel's, that has ended while the guest had not begun.
pub(super) fn ended_before(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<String> {
    let disks = vmi.spec.volumes.iter().filter(|volume| volume.container_disk.is_some());
    let names = disks.map(|volume| paths::disk_container(&volume.name));
    let mut names = names.chain([paths::disk_container(paths::KERNEL_BOOT_VOLUME)]);
    names.find_map(|name| {
        let code = status_of(pod, &name)?.state.as_ref()?.terminated.as_ref()?.exit_code;
        Some(format!("container {name} ended with exit code {code} before the guest started"))
    })
}

/// What must be made ready before the guest starts.
///
/// # Errors
/// Why it cannot be told.
pub fn preparation(vmi: &VirtualMachineInstance, pod: &Pod, place: &Place) -> Result<Preparation, Unready> {
    if let Some(why) = ended_before(vmi, pod) {
        return Err(Unready::Ended(why));
    }
    let running = |name: &str| {
        let id = status_of(pod, name).and_then(container_id);
        id.ok_or_else(|| Unready::Yet(format!("container {name} is not reported to run")))
    };
    let mut disks = Vec::new();
    let mut secrets = Vec::new();
    for (index, volume) in vmi.spec.volumes.iter().enumerate() {
        if let Some(source) = &volume.container_disk {
            disks.push(ContainerDisk {
                container_id: running(&paths::disk_container(&volume.name))?,
                path: source.path.clone(),
                target: paths::container_disk(index),
            });
        }
        if let Some(source) = volume.cloud_init_no_cloud.as_ref().or(volume.cloud_init_config_drive.as_ref()) {
            secrets.extend(source.user_data_secret_ref.as_ref().map(|_| disks::user_data_volume(volume)));
            secrets.extend(source.network_data_secret_ref.as_ref().map(|_| disks::network_data_volume(volume)));
        }
    }
    secrets.extend(paths::access_credential_secrets(&vmi.spec).map(paths::access_credential_volume));
    let boot = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
    if let Some(container) = boot.and_then(|boot| boot.container.as_ref()) {
        let container_id = running(&paths::disk_container(paths::KERNEL_BOOT_VOLUME))?;
        for (path, target) in [(&container.kernel_path, paths::KERNEL), (&container.initrd_path, paths::INITRD)] {
            disks.extend(path.clone().map(|path| ContainerDisk {
                container_id: container_id.clone(),
                path: Some(path),
                target: target.to_owned(),
            }));
        }
    }
    let links = network::links(vmi).map_err(Unready::Yet)?;
    Ok(Preparation { place: place.clone(), disks, links, secrets })
}

/// The SSH keys in the files of a secret: a line each, comments left out.
pub(super) fn ssh_keys(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let texts = files.values().map(|bytes| String::from_utf8_lossy(bytes));
    let lines = texts.flat_map(|text| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>());
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// The SSH keys of each user, from the files of all secrets. Several credentials may name one, and what an agent is told of a user takes
/// the place of all that he had.
pub(super) fn keys_by_user<'a>(
    wanted: &'a [(&'a Credential, BTreeMap<String, Vec<u8>>)],
) -> BTreeMap<&'a str, Vec<String>> {
    let mut keys: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (credential, files) in wanted {
        if let Credential::Keys { users, .. } = credential {
            for user in users {
                keys.entry(user.as_str()).or_default().extend(ssh_keys(files));
            }
        }
    }
    keys
}

/// The credentials that go into a guest by its agent.
#[must_use]
pub fn credentials(spec: &VirtualMachineInstanceSpec) -> Vec<Credential> {
    let mut found = Vec::new();
    for access in &spec.access_credentials {
        let volume = |source: &CredentialSource| {
            source.secret.as_ref().map(|secret| paths::access_credential_volume(&secret.secret_name))
        };
        if let Some(key) = &access.ssh_public_key
            && let (Some(agent), Some(volume)) = (&key.propagation_method.qemu_guest_agent, volume(&key.source))
        {
            found.push(Credential::Keys { volume, users: agent.users.clone() });
        }
        if let Some(password) = &access.user_password
            && let (Some(_), Some(volume)) = (&password.propagation_method.qemu_guest_agent, volume(&password.source))
        {
            found.push(Credential::Passwords { volume });
        }
    }
    found
}

/// The machine.
///
/// # Errors
/// What of the instance cannot be made into a machine, for people.
pub fn machine(
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    prepared: &Prepared,
    accel: Accel,
    now: Time,
) -> Result<MachineSpec, String> {
    let spec = &vmi.spec;
    let domain = &spec.domain;
    let cpu = domain.cpu.clone().unwrap_or_default();
    let firmware = domain.firmware.clone().unwrap_or_default();
    let topology = if cpu.cores.is_none() && cpu.sockets.is_none() && cpu.threads.is_none() {
        (domain.vcpus(), 1, 1)
    } else {
        (cpu.sockets.unwrap_or(1).max(1), cpu.cores.unwrap_or(1).max(1), cpu.threads.unwrap_or(1).max(1))
    };
    let strings = pod.annotation(SMBIOS_ANNOTATION).and_then(|text| serde_json::from_str(text).ok());
    let strings: SmBiosConfiguration = strings.unwrap_or_default();
    let machine_type = domain.machine.as_ref().and_then(|machine| machine.r#type.as_deref()).unwrap_or_default();
    let pc = crate::admission::machine_type(machine_type) == Some(false);
    Ok(MachineSpec {
        name: vmi.name().to_owned(),
        namespace: vmi.namespace().to_owned(),
        uid: vmi.uid().to_owned(),
        machine: if pc { MachineType::Pc } else { MachineType::Q35 },
        // A chip set's plain name is that of its newest version.
        machine_type: (!matches!(machine_type, "" | "q35" | "pc")).then(|| machine_type.to_owned()),
        accel,
        cpu: CpuSpec {
            sockets: topology.0,
            cores: topology.1,
            threads: topology.2,
            model: cpu.model,
            features: board::cpu_features(domain, accel),
            dedicated: cpu
                .dedicated_cpu_placement
                .then_some(Dedicated { isolate_emulator: cpu.isolate_emulator_thread }),
        },
        memory_bytes: domain.guest_memory_bytes().ok_or("the guest's memory is not given")?,
        smbios: Smbios {
            uuid: Some(firmware.uuid.unwrap_or_else(|| vmi.uid().to_owned())),
            serial: firmware.serial,
            manufacturer: strings.manufacturer,
            product: strings.product,
            family: strings.family,
            version: strings.version,
            sku: strings.sku,
        },
        disks: disks::all(vmi, pod, prepared)?,
        nics: network::nics(vmi, pod, prepared)?,
        graphics: domain.devices.autoattach_graphics_device != Some(false),
        serial_console: domain.devices.autoattach_serial_console != Some(false),
        balloon: domain.devices.autoattach_mem_balloon != Some(false),
        // As a matter of course: without it, a guest waits for chance at its first boot.
        rng: true,
        start_paused: spec.start_strategy.as_deref() == Some("Paused"),
        board: board::of(domain, now)?,
        run: None,
    })
}

fn host_name(vmi: &VirtualMachineInstance) -> String {
    let given = vmi.spec.hostname.clone().filter(|name| !name.is_empty());
    given.unwrap_or_else(|| vmi.name().split('.').next().unwrap_or_default().to_owned())
}

/// Whether the compute container was given a device.
fn has_device(pod: &Pod, resource: &str) -> bool {
    pod.spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .filter(|container| container.name == COMPUTE_CONTAINER)
        .filter_map(|container| container.resources.as_ref()?.limits.as_ref())
        .any(|limits| limits.contains_key(resource))
}

/// How a pod's guest is executed: by KVM where it works on this node and the pod has it.
#[must_use]
pub fn accel(pod: &Pod, works: Accel) -> Accel {
    if works == Accel::Kvm && has_device(pod, KVM_RESOURCE) { Accel::Kvm } else { Accel::Tcg }
}

#[cfg(test)]
mod tests;
