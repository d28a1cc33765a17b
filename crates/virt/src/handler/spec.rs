//! From an instance to the machine that its launcher runs.

use std::net::Ipv4Addr;

use base64::Engine as _;
use carrack_launcher::MachineSpec;
use carrack_launcher::accel::Accel;
use carrack_launcher::spec::{
    CpuSpec, DhcpSpec, DiskBus, DiskSource, DiskSpec, MachineType, NicModel, NicSpec, NoCloudSpec, Smbios,
};
use carrack_types::kubevirt::volumes::CloudInitSource;
use carrack_types::kubevirt::{Disk, Interface, VirtualMachineInstance, Volume};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{COMPUTE_CONTAINER, KVM_RESOURCE, VHOST_NET_RESOURCE};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::effects::{ContainerDisk, Masquerade, Place, Preparation, Prepared};
use crate::identity::mac_address;
use crate::paths;

/// The bridge between the guest's tap device and the pod.
pub const BRIDGE: &str = "k6t-eth0";
/// The guest's tap device.
pub const TAP: &str = "tap0";
/// The pod's interface.
pub const POD_INTERFACE: &str = "eth0";

/// Network that guests get when their spec names none; KubeVirt's choice.
const DEFAULT_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 2, 0), 24);

/// Id of a container as the kubelet reports it, without the runtime's name.
fn container_id(status: &ContainerStatus) -> Option<String> {
    let id = status.container_id.as_deref()?;
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    (!id.is_empty()).then(|| id.to_owned())
}

fn status_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|status| status.name == name)
}

/// Where an instance is, once its compute container runs.
#[must_use]
pub fn place(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<Place> {
    let status = status_of(pod, COMPUTE_CONTAINER)?;
    status.state.as_ref()?.running.as_ref()?;
    Some(Place { uid: vmi.uid().to_owned(), pod_uid: pod.uid().to_owned(), compute_id: container_id(status)? })
}

/// What must be made ready before the guest starts.
///
/// # Errors
/// Why it cannot be told.
pub fn preparation(vmi: &VirtualMachineInstance, pod: &Pod, place: &Place) -> Result<Preparation, String> {
    let mut disks = Vec::new();
    let mut secrets = Vec::new();
    for (index, volume) in vmi.spec.volumes.iter().enumerate() {
        if let Some(source) = &volume.container_disk {
            let name = paths::disk_container(&volume.name);
            let id = status_of(pod, &name).and_then(container_id);
            disks.push(ContainerDisk {
                container_id: id.ok_or_else(|| format!("container {name} is not reported to run"))?,
                path: source.path.clone(),
                target: paths::container_disk(index),
            });
        }
        if let Some(source) = &volume.cloud_init_no_cloud {
            secrets.extend(source.user_data_secret_ref.as_ref().map(|_| user_data_volume(volume)));
            secrets.extend(source.network_data_secret_ref.as_ref().map(|_| network_data_volume(volume)));
        }
    }
    let network = vmi.spec.domain.devices.interfaces.first().map(|nic| masquerade(vmi, nic)).transpose()?;
    Ok(Preparation { place: place.clone(), disks, network, secrets })
}

fn user_data_volume(volume: &Volume) -> String {
    format!("{}-udata", volume.name)
}

fn network_data_volume(volume: &Volume) -> String {
    format!("{}-ndata", volume.name)
}

/// The guest's network: the first address is its router's, the second its own.
fn masquerade(vmi: &VirtualMachineInstance, nic: &Interface) -> Result<Masquerade, String> {
    let pod_network = vmi.spec.networks.iter().find(|network| network.name == nic.name).and_then(|n| n.pod.as_ref());
    let (network, prefix_bits) = match pod_network.and_then(|pod| pod.vm_network_cidr.as_deref()) {
        Some(cidr) => {
            parse_cidr(cidr).ok_or_else(|| format!("vmNetworkCIDR {cidr} is no network of at least 4 addresses"))?
        }
        None => DEFAULT_NETWORK,
    };
    let base = u32::from(network);
    let mut ports = Vec::new();
    for port in &nic.ports {
        let number = u16::try_from(port.port).map_err(|_| format!("port {} is out of range", port.port))?;
        ports.push((port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()).to_lowercase(), number));
    }
    Ok(Masquerade { guest: Ipv4Addr::from(base + 2), gateway: Ipv4Addr::from(base + 1), prefix_bits, ports })
}

fn parse_cidr(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let (address, bits): (Ipv4Addr, u8) = (address.parse().ok()?, bits.parse().ok()?);
    if bits > 30 {
        return None;
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    Some((Ipv4Addr::from(u32::from(address) & mask), bits))
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
) -> Result<MachineSpec, String> {
    let spec = &vmi.spec;
    let domain = &spec.domain;
    let cpu = domain.cpu.clone().unwrap_or_default();
    let firmware = domain.firmware.clone().unwrap_or_default();
    let chassis = domain.chassis.clone().unwrap_or_default();
    let mut disks = Vec::new();
    for disk in &domain.devices.disks {
        let index = spec.volumes.iter().position(|volume| volume.name == disk.name);
        let index = index.ok_or_else(|| format!("disk {} has no volume", disk.name))?;
        disks.push(disk_spec(disk, source(vmi, index, prepared)?)?);
    }
    let topology = if cpu.cores.is_none() && cpu.sockets.is_none() && cpu.threads.is_none() {
        (1, domain.vcpus(), 1)
    } else {
        (cpu.sockets.unwrap_or(1).max(1), cpu.cores.unwrap_or(1).max(1), cpu.threads.unwrap_or(1).max(1))
    };
    let pc =
        domain.machine.as_ref().and_then(|machine| machine.r#type.as_deref()).and_then(crate::admission::machine_type)
            == Some(false);
    let nics = domain.devices.interfaces.iter().take(1).map(|nic| nic_spec(vmi, pod, nic, prepared));
    Ok(MachineSpec {
        name: vmi.name().to_owned(),
        namespace: vmi.namespace().to_owned(),
        uid: vmi.uid().to_owned(),
        machine: if pc { MachineType::Pc } else { MachineType::Q35 },
        accel,
        cpu: CpuSpec { sockets: topology.0, cores: topology.1, threads: topology.2, model: cpu.model },
        memory_bytes: domain.guest_memory_bytes().ok_or("the guest's memory is not given")?,
        smbios: Smbios {
            uuid: Some(firmware.uuid.unwrap_or_else(|| vmi.uid().to_owned())),
            serial: firmware.serial,
            manufacturer: chassis.manufacturer,
            version: chassis.version,
            sku: chassis.sku,
            ..Smbios::default()
        },
        disks,
        nics: nics.collect::<Result<_, _>>()?,
        graphics: domain.devices.autoattach_graphics_device != Some(false),
        serial_console: domain.devices.autoattach_serial_console != Some(false),
        balloon: domain.devices.autoattach_mem_balloon != Some(false),
        rng: true,
        start_paused: spec.start_strategy.as_deref() == Some("Paused"),
    })
}

fn disk_spec(disk: &Disk, source: DiskSource) -> Result<DiskSpec, String> {
    let (cdrom, bus, read_only) = match (&disk.disk, &disk.cdrom) {
        (_, Some(target)) => (true, target.bus.as_deref().unwrap_or("sata"), target.readonly.unwrap_or(true)),
        (Some(target), None) => (false, target.bus.as_deref().unwrap_or("virtio"), target.readonly),
        (None, None) => (false, "virtio", false),
    };
    let bus = match bus {
        "virtio" => DiskBus::Virtio,
        "sata" => DiskBus::Sata,
        "scsi" => DiskBus::Scsi,
        "usb" => DiskBus::Usb,
        other => return Err(format!("disk {}: bus {other} is not supported", disk.name)),
    };
    Ok(DiskSpec {
        name: disk.name.clone(),
        source,
        cdrom,
        bus,
        read_only,
        serial: disk.serial.clone(),
        boot_order: disk.boot_order,
    })
}

fn source(vmi: &VirtualMachineInstance, index: usize, prepared: &Prepared) -> Result<DiskSource, String> {
    let volume = &vmi.spec.volumes[index];
    let in_claim = |name: &str| format!("{}/disk.img", paths::claim_dir(name)).into();
    if volume.container_disk.is_some() {
        return Ok(DiskSource::Ephemeral { path: paths::container_disk(index).into() });
    }
    if let Some(empty) = &volume.empty_disk {
        let bytes = empty.capacity.units().and_then(|bytes| u64::try_from(bytes).ok());
        let capacity_bytes = bytes.ok_or_else(|| format!("volume {}: bad capacity", volume.name))?;
        return Ok(DiskSource::Empty { capacity_bytes });
    }
    if let Some(cloud_init) = &volume.cloud_init_no_cloud {
        return no_cloud(vmi, volume, cloud_init, prepared).map(DiskSource::NoCloud);
    }
    if volume.ephemeral.is_some() {
        return Ok(DiskSource::Ephemeral { path: in_claim(&volume.name) });
    }
    if volume.claim_name().is_some() {
        return Ok(DiskSource::Persistent { path: in_claim(&volume.name) });
    }
    Err(format!("volume {}: its type is not supported", volume.name))
}

fn no_cloud(
    vmi: &VirtualMachineInstance,
    volume: &Volume,
    source: &CloudInitSource,
    prepared: &Prepared,
) -> Result<NoCloudSpec, String> {
    let decode = |text: &str| -> Result<String, String> {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_err(|error| format!("volume {}: bad base64: {error}", volume.name))?;
        String::from_utf8(bytes).map_err(|_| format!("volume {}: cloud-init data is not UTF-8", volume.name))
    };
    let secret = |pod_volume: &str, keys: [&str; 2]| -> Result<String, String> {
        let files = prepared.secrets.get(pod_volume);
        keys.iter()
            .find_map(|key| files?.get(*key).cloned())
            .ok_or_else(|| format!("volume {}: its secret has no key {} or {}", volume.name, keys[0], keys[1]))
    };
    let user_data = match (&source.user_data_secret_ref, &source.user_data_base64, &source.user_data) {
        (Some(_), _, _) => secret(&user_data_volume(volume), ["userdata", "userData"])?,
        (_, Some(encoded), _) => decode(encoded)?,
        (_, _, Some(plain)) => plain.clone(),
        _ => String::new(),
    };
    let network_data = match (&source.network_data_secret_ref, &source.network_data_base64, &source.network_data) {
        (Some(_), _, _) => Some(secret(&network_data_volume(volume), ["networkdata", "networkData"])?),
        (_, Some(encoded), _) => Some(decode(encoded)?),
        (_, _, plain) => plain.clone(),
    };
    Ok(NoCloudSpec {
        user_data,
        network_data,
        // As upstream: derived from name and namespace, so that a restart is no new instance to cloud-init.
        instance_id: format!("{}.{}", vmi.name(), vmi.namespace()),
        local_hostname: host_name(vmi),
    })
}

fn host_name(vmi: &VirtualMachineInstance) -> String {
    vmi.spec.hostname.clone().unwrap_or_else(|| vmi.name().split('.').next().unwrap_or_default().to_owned())
}

/// The MAC address of an interface: the spec's, or one derived from the instance.
#[must_use]
pub fn mac_of(vmi: &VirtualMachineInstance, nic: &Interface) -> String {
    nic.mac_address
        .clone()
        .map_or_else(|| mac_address(vmi.uid(), &nic.name), |mac| mac.to_lowercase().replace('-', ":"))
}

fn nic_spec(vmi: &VirtualMachineInstance, pod: &Pod, nic: &Interface, prepared: &Prepared) -> Result<NicSpec, String> {
    let network = masquerade(vmi, nic)?;
    let model = match nic.model.as_deref().unwrap_or("virtio") {
        "virtio" => NicModel::Virtio,
        "e1000" => NicModel::E1000,
        "e1000e" => NicModel::E1000e,
        "ne2k_pci" => NicModel::Ne2kPci,
        "pcnet" => NicModel::Pcnet,
        "rtl8139" => NicModel::Rtl8139,
        other => return Err(format!("interface {}: model {other} is not supported", nic.name)),
    };
    Ok(NicSpec {
        name: nic.name.clone(),
        tap: TAP.to_owned(),
        mac: mac_of(vmi, nic),
        vhost: model == NicModel::Virtio && has_device(pod, VHOST_NET_RESOURCE),
        model,
        mtu: prepared.mtu,
        boot_order: nic.boot_order,
        dhcp: Some(DhcpSpec {
            interface: BRIDGE.to_owned(),
            server: network.gateway,
            address: network.guest,
            prefix_bits: network.prefix_bits,
            router: Some(network.gateway),
            dns: prepared.dns.clone(),
            search: prepared.search.clone(),
            mtu: prepared.mtu,
            hostname: Some(host_name(vmi)),
        }),
    })
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
