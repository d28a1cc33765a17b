//! Disks: what they are attached by, and where their contents come from.

use base64::Engine as _;
use carrack_launcher::spec::{
    CacheMode, ConfigDriveSpec, DiskBus, DiskSource, DiskSpec, DiskTuning, NoCloudSpec, OnError,
};
use carrack_types::kubevirt::vmi::{SshKeyPropagation, VolumeStatus};
use carrack_types::kubevirt::volumes::CloudInitSource;
use carrack_types::kubevirt::{Disk, DomainSpec, Quantity, VirtualMachineInstance, Volume};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{COMPUTE_CONTAINER, LESS_SPACE_ANNOTATION};
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{host_name, ssh_keys};
use crate::admission::DEFAULT_BUS;
use crate::handler::effects::Prepared;
use crate::paths;

/// Label of a volume made from a ConfigMap or the like, unless the spec says otherwise.
const DEFAULT_LABEL: &str = "cfgdata";

/// The disks of an instance.
///
/// # Errors
/// What cannot be made into a disk, for people.
pub(super) fn all(vmi: &VirtualMachineInstance, pod: &Pod, prepared: &Prepared) -> Result<Vec<DiskSpec>, String> {
    let mut disks = Vec::new();
    let mut threads = shared_threads(&vmi.spec.domain);
    for disk in &vmi.spec.domain.devices.disks {
        let index = vmi.spec.volumes.iter().position(|volume| volume.name == disk.name);
        let index = index.ok_or_else(|| format!("disk {} has no volume", disk.name))?;
        let mut spec = attached(disk, source(vmi, pod, index, prepared)?)?;
        // QEMU opens no image to write to it where the claim is only to be read.
        let is_kept = matches!(spec.source, DiskSource::Persistent { .. });
        spec.read_only |= is_kept && vmi.spec.volumes[index].has_read_only_claim();
        if spec.bus == DiskBus::Virtio && !spec.tuning.own_thread {
            spec.tuning.shared_thread = threads.next();
        }
        disks.push(spec);
    }
    Ok(disks)
}

/// What a guest that speaks Linux calls its disks, by their names: letters by the kind of driver, in their order. (Upstream:
/// `makeDeviceName` in virt-launcher's converter.)
pub(in crate::handler) fn targets(disks: &[Disk]) -> BTreeMap<String, String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let target = |disk: &Disk| {
        let prefix = if bus_of(disk) == "virtio" { "vd" } else { "sd" };
        let count = counts.entry(prefix).or_default();
        let name = format!("{prefix}{}", letters(*count));
        *count += 1;
        (disk.name.clone(), name)
    };
    disks.iter().map(target).collect()
}

/// `a` to `z`, then `aa` and so on.
fn letters(mut index: usize) -> String {
    let mut name = Vec::new();
    loop {
        name.push(char::from(b'a' + u8::try_from(index % 26).unwrap_or(0)));
        match (index / 26).checked_sub(1) {
            Some(left) => index = left,
            None => return name.into_iter().rev().collect(),
        }
    }
}

/// The numbers of the threads that virtio disks share in turns: none where I/O threads were not asked for. (Upstream:
/// `GetIOThreadsCountType` in virt-launcher's converter.)
fn shared_threads(domain: &DomainSpec) -> impl Iterator<Item = u32> + use<> {
    let disks = &domain.devices.disks;
    let own = disks.iter().filter(|disk| disk.dedicated_io_thread == Some(true)).count();
    let most = match domain.io_threads_policy.as_deref() {
        Some("auto") => {
            let amount = domain.resources.requests.get("cpu").or_else(|| domain.resources.limits.get("cpu"));
            let cpus = amount.and_then(Quantity::units).and_then(|cpus| usize::try_from(cpus).ok());
            cpus.unwrap_or(1).max(1).saturating_mul(2)
        }
        Some(_) => 1,
        None if own > 0 => 1,
        None => 0,
    };
    let count = if most == 0 { 0 } else { (disks.len() - own).min(most.saturating_sub(own)).max(1) };
    (1..=u32::try_from(count).unwrap_or(1)).cycle()
}

/// What a disk's drive is attached to.
fn bus_of(disk: &Disk) -> &str {
    let named = match &disk.cdrom {
        Some(drive) => drive.bus.as_deref(),
        None => disk.disk.as_ref().and_then(|target| target.bus.as_deref()),
    };
    named.filter(|bus| !bus.is_empty()).unwrap_or(DEFAULT_BUS)
}

fn attached(disk: &Disk, source: DiskSource) -> Result<DiskSpec, String> {
    let (cdrom, read_only) = match (&disk.disk, &disk.cdrom) {
        (_, Some(target)) => (true, target.readonly.unwrap_or(true)),
        (Some(target), None) => (false, target.readonly),
        (None, None) => (false, false),
    };
    let bus = match bus_of(disk) {
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
        tuning: tuning(disk),
    })
}

fn tuning(disk: &Disk) -> DiskTuning {
    let custom = disk.block_size.as_ref().and_then(|size| size.custom.as_ref());
    DiskTuning {
        cache: match disk.cache.as_deref() {
            Some("none") => Some(CacheMode::None),
            Some("writethrough") => Some(CacheMode::Writethrough),
            Some("writeback") => Some(CacheMode::Writeback),
            _ => None,
        },
        native_io: disk.io.as_deref() == Some("native"),
        threaded_io: disk.io.as_deref() == Some("threads"),
        on_error: match disk.error_policy.as_deref() {
            Some("stop") => Some(OnError::Stop),
            Some("ignore") => Some(OnError::Ignore),
            Some("report") => Some(OnError::Report),
            Some("enospace") => Some(OnError::Enospace),
            _ => None,
        },
        logical_block_bytes: custom.map(|size| size.logical),
        physical_block_bytes: custom.map(|size| size.physical),
        shared: disk.shareable == Some(true),
        own_thread: disk.dedicated_io_thread == Some(true),
        shared_thread: None,
    }
}

fn source(vmi: &VirtualMachineInstance, pod: &Pod, index: usize, prepared: &Prepared) -> Result<DiskSource, String> {
    let volume = &vmi.spec.volumes[index];
    let files = |directory: String, label: Option<&String>| DiskSource::Files {
        directory: directory.into(),
        label: label.map_or(DEFAULT_LABEL, String::as_str).to_owned(),
    };
    if volume.container_disk.is_some() {
        return Ok(DiskSource::Ephemeral { path: paths::container_disk(index).into() });
    }
    if let Some(empty) = &volume.empty_disk {
        let bytes = empty.capacity.units().and_then(|bytes| u64::try_from(bytes).ok());
        let capacity_bytes = bytes.ok_or_else(|| format!("volume {}: bad capacity", volume.name))?;
        return Ok(DiskSource::Empty { capacity_bytes });
    }
    if let Some(data) = &volume.cloud_init_no_cloud {
        return no_cloud(vmi, volume, data, prepared).map(DiskSource::NoCloud);
    }
    if let Some(data) = &volume.cloud_init_config_drive {
        return config_drive(vmi, volume, data, prepared).map(DiskSource::ConfigDrive);
    }
    if let Some(config_map) = &volume.config_map {
        return Ok(files(paths::config_map_dir(&volume.name), config_map.volume_label.as_ref()));
    }
    if let Some(secret) = &volume.secret {
        return Ok(files(paths::secret_dir(&volume.name), secret.volume_label.as_ref()));
    }
    if let Some(fields) = &volume.downward_api {
        return Ok(files(paths::downward_api_dir(&volume.name), fields.volume_label.as_ref()));
    }
    if volume.service_account.is_some() {
        return Ok(files(paths::SERVICE_ACCOUNT_DIR.to_owned(), None));
    }
    let path = in_claim(pod, &volume.name);
    if volume.ephemeral.is_some() {
        return Ok(DiskSource::Ephemeral { path });
    }
    if volume.claim_name().is_some() {
        let create_bytes = claim_bytes(vmi, &volume.name).filter(|_| !volume.has_read_only_claim());
        let tolerance_percent = pod.annotation(LESS_SPACE_ANNOTATION).and_then(|percent| percent.parse().ok());
        return Ok(DiskSource::Persistent { path, create_bytes, tolerance_percent });
    }
    Err(format!("volume {}: its type is not supported", volume.name))
}

/// The image in a claim's file system, or the device that the claim is.
fn in_claim(pod: &Pod, volume: &str) -> PathBuf {
    let devices = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .filter(|container| container.name == COMPUTE_CONTAINER)
        .flat_map(|container| container.volume_devices.iter().flatten());
    for device in devices {
        if device.name == volume {
            return device.device_path.clone().into();
        }
    }
    format!("{}/disk.img", paths::claim_dir(volume)).into()
}

/// How large a claim is, as the controller wrote it down.
fn claim_bytes(vmi: &VirtualMachineInstance, volume: &str) -> Option<u64> {
    let statuses = vmi.status.as_ref().map_or(&[][..], |status| &status.volume_status);
    let info = |status: &VolumeStatus| status.persistent_volume_claim_info.clone();
    let info = statuses.iter().find(|status| status.name == volume).and_then(info)?;
    let of = |key: &str| info.pointer(&format!("/{key}/storage"))?.as_str().map(str::to_owned);
    let text = of("capacity").or_else(|| of("requests"))?;
    carrack_types::kubevirt::Quantity(text).units().and_then(|bytes| u64::try_from(bytes).ok())
}

/// The pod's volume with a volume's user data.
pub(super) fn user_data_volume(volume: &Volume) -> String {
    format!("{}-udata", volume.name)
}

/// The pod's volume with a volume's network data.
pub(super) fn network_data_volume(volume: &Volume) -> String {
    format!("{}-ndata", volume.name)
}

/// What cloud-init is given.
struct Data {
    user: String,
    /// User data that is no text, in base64, in place of the other.
    user_base64: Option<String>,
    network: Option<String>,
}

/// User data and network data, from where they are. What is empty is not there.
fn data(volume: &Volume, source: &CloudInitSource, prepared: &Prepared) -> Result<Data, String> {
    let base64 = base64::engine::general_purpose::STANDARD;
    let decode = |text: &str| -> Result<Vec<u8>, String> {
        base64.decode(text).map_err(|error| format!("volume {}: bad base64: {error}", volume.name))
    };
    let secret = |pod_volume: &str, keys: [&str; 2]| -> Result<Vec<u8>, String> {
        let files = prepared.secrets.get(pod_volume);
        keys.iter()
            .find_map(|key| files?.get(*key).cloned())
            .ok_or_else(|| format!("volume {}: its secret has no key {} or {}", volume.name, keys[0], keys[1]))
    };
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let user = match (&source.user_data_secret_ref, given(&source.user_data_base64), &source.user_data) {
        (Some(_), _, _) => secret(&user_data_volume(volume), ["userdata", "userData"])?,
        (_, Some(encoded), _) => decode(&encoded)?,
        (_, _, plain) => plain.clone().unwrap_or_default().into_bytes(),
    };
    let network = match (&source.network_data_secret_ref, given(&source.network_data_base64), &source.network_data) {
        (Some(_), _, _) => Some(secret(&network_data_volume(volume), ["networkdata", "networkData"])?),
        (_, Some(encoded), _) => Some(decode(&encoded)?),
        (_, _, plain) => plain.clone().map(String::into_bytes),
    };
    let network = network.map(String::from_utf8).transpose();
    let network = network.map_err(|_| format!("volume {}: cloud-init's network data is not UTF-8", volume.name))?;
    // What is compressed is cloud-init's to unpack.
    let (user, user_base64) = match String::from_utf8(user) {
        Ok(text) => (text, None),
        Err(error) => (String::new(), Some(base64.encode(error.into_bytes()))),
    };
    Ok(Data { user, user_base64, network })
}

fn no_cloud(
    vmi: &VirtualMachineInstance,
    volume: &Volume,
    source: &CloudInitSource,
    prepared: &Prepared,
) -> Result<NoCloudSpec, String> {
    let Data { user, user_base64, network } = data(volume, source, prepared)?;
    Ok(NoCloudSpec {
        user_data: user,
        user_data_base64: user_base64,
        network_data: network,
        instance_id: instance_id(vmi),
        local_hostname: host_name(vmi),
        public_keys: public_keys(vmi, prepared, |way| way.no_cloud.is_some()),
    })
}

fn config_drive(
    vmi: &VirtualMachineInstance,
    volume: &Volume,
    source: &CloudInitSource,
    prepared: &Prepared,
) -> Result<ConfigDriveSpec, String> {
    let Data { user, user_base64, network } = data(volume, source, prepared)?;
    Ok(ConfigDriveSpec {
        user_data: user,
        user_data_base64: user_base64,
        network_data: network,
        instance_id: instance_id(vmi),
        hostname: host_name(vmi),
        public_keys: public_keys(vmi, prepared, |way| way.config_drive.is_some()),
    })
}

/// As upstream: derived from name and namespace, so that a restart is no new instance to cloud-init.
fn instance_id(vmi: &VirtualMachineInstance) -> String {
    format!("{}.{}", vmi.name(), vmi.namespace())
}

/// The SSH keys that go into a guest by this way, numbered.
fn public_keys(
    vmi: &VirtualMachineInstance,
    prepared: &Prepared,
    by: impl Fn(&SshKeyPropagation) -> bool,
) -> BTreeMap<String, String> {
    vmi.spec
        .access_credentials
        .iter()
        .filter_map(|credential| credential.ssh_public_key.as_ref())
        .filter(|credential| by(&credential.propagation_method))
        .filter_map(|credential| credential.source.secret.as_ref())
        .filter_map(|secret| prepared.secrets.get(&paths::access_credential_volume(&secret.secret_name)))
        .flat_map(ssh_keys)
        .enumerate()
        .map(|(index, key)| (index.to_string(), key))
        .collect()
}
