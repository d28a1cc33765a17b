//! Volumes: their names and sources.

use base64::Engine as _;
use std::collections::BTreeMap;

use carrack_types::kubevirt::volumes::CloudInitSource;
use carrack_types::kubevirt::{VirtualMachineInstanceSpec, Volume};

use super::{Faults, is_dns_label, is_one_of};

/// Longest inline cloud-init document, bytes; longer ones belong into a Secret.
const MAX_INLINE: usize = 2048;
/// Sources that are served.
const SERVED: [&str; 6] =
    ["containerDisk", "cloudInitNoCloud", "emptyDisk", "persistentVolumeClaim", "dataVolume", "ephemeral"];

pub(super) fn check(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let field = format!("{field}.volumes");
    let mut seen = BTreeMap::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let at = format!("{field}[{index}]");
        if let Some(first) = seen.insert(volume.name.as_str(), index) {
            let message = format!("{at} and {field}[{first}] must not have the same Name.");
            faults.duplicate(format!("{at}.name"), message);
        }
        if !is_dns_label(&volume.name) {
            let message = format!("'{}' does not conform to the kubernetes DNS_LABEL rules", volume.name);
            faults.invalid(format!("{at}.name"), message);
        }
        match volume.sources()[..] {
            [source] => check_source(&at, volume, source, faults),
            _ => faults.invalid(&at, format!("{at} must have exactly one source type set")),
        }
    }
}

fn check_source(at: &str, volume: &Volume, source: &str, faults: &mut Faults) {
    if !SERVED.contains(&source) {
        faults.unsupported(format!("{at}.{source}"), format!("volumes of type {source} are not supported"));
    }
    if let Some(disk) = &volume.container_disk {
        if disk.image.is_empty() {
            faults.required(format!("{at}.containerDisk.image"), "an image is required");
        }
        if !is_one_of(disk.image_pull_policy.as_deref(), &["Always", "Never", "IfNotPresent"]) {
            let message = "must be one of Always, Never, IfNotPresent";
            faults.invalid(format!("{at}.containerDisk.imagePullPolicy"), message);
        }
        if disk.path.as_deref().is_some_and(|path| !path.starts_with('/') || path.split('/').any(|part| part == "..")) {
            faults.invalid(format!("{at}.containerDisk.path"), "must be an absolute path without '..'");
        }
    }
    if let Some(disk) = &volume.empty_disk
        && disk.capacity.units().is_none_or(|bytes| bytes <= 0)
    {
        faults.invalid(format!("{at}.emptyDisk.capacity"), "must be a quantity greater than zero");
    }
    if let Some(cloud_init) = &volume.cloud_init_no_cloud {
        check_cloud_init(&format!("{at}.cloudInitNoCloud"), cloud_init, faults);
    }
    if volume.claim_name() == Some("") {
        faults.required(format!("{at}.{source}"), "the name of a claim is required");
    }
}

fn check_cloud_init(at: &str, source: &CloudInitSource, faults: &mut Faults) {
    let user = (source.user_data_secret_ref.is_some(), &source.user_data_base64, &source.user_data);
    let network = (source.network_data_secret_ref.is_some(), &source.network_data_base64, &source.network_data);
    let mut total = 0;
    for (kind, (secret, base64, plain)) in [("userData", user), ("networkData", network)] {
        let lower = kind.to_lowercase();
        let count = usize::from(secret) + usize::from(base64.is_some()) + usize::from(plain.is_some());
        total += count;
        if count > 1 {
            faults.invalid(at, format!("{at} must have only one {lower} source set."));
        }
        if let Some(encoded) = base64 {
            match base64::engine::general_purpose::STANDARD.decode(encoded) {
                Ok(decoded) if decoded.len() > MAX_INLINE => too_long(at, &format!("{kind}Base64"), &lower, faults),
                Ok(_) => {}
                Err(_) => faults
                    .invalid(format!("{at}.{kind}Base64"), format!("{at}.{kind}Base64 is not a valid base64 value.")),
            }
        }
        if plain.as_deref().unwrap_or_default().len() > MAX_INLINE {
            too_long(at, kind, &lower, faults);
        }
    }
    if total == 0 {
        faults.invalid(at, format!("{at} must have at least one userdatasource or one networkdatasource set."));
    }
}

fn too_long(at: &str, name: &str, lower: &str, faults: &mut Faults) {
    let message = format!("{lower} exceeds {MAX_INLINE} byte limit. Should use a Secret for larger data.");
    faults.invalid(format!("{at}.{name}"), message);
}
