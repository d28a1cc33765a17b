//! Volumes: their names and sources.

use base64::Engine as _;
use std::collections::BTreeMap;

use carrack_types::kubevirt::volumes::CloudInitSource;
use carrack_types::kubevirt::{VirtualMachineInstanceSpec, Volume};

use super::{Faults, check_path, is_dns_label, is_one_of};

/// Longest inline cloud-init document, bytes; longer ones belong into a Secret.
const MAX_INLINE: usize = 2048;
/// Sources that are served.
const SERVED: [&str; 11] = [
    "containerDisk",
    "cloudInitNoCloud",
    "cloudInitConfigDrive",
    "emptyDisk",
    "persistentVolumeClaim",
    "dataVolume",
    "ephemeral",
    "configMap",
    "secret",
    "downwardAPI",
    "serviceAccount",
];

pub(super) fn check(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let field = format!("{field}.volumes");
    let mut seen = BTreeMap::new();
    let mut accounts = 0;
    for (index, volume) in spec.volumes.iter().enumerate() {
        let at = format!("{field}[{index}]");
        if let Some(first) = seen.insert(volume.name.as_str(), index) {
            let message = format!("{at} and {field}[{first}] must not have the same Name.");
            faults.invalid(format!("{at}.name"), message);
        }
        if !is_dns_label(&volume.name) {
            let message = format!("'{}' does not conform to the kubernetes DNS_LABEL rules", volume.name);
            faults.invalid(format!("{at}.name"), message);
        }
        match volume.sources()[..] {
            [source] => check_source(&at, volume, source, faults),
            _ => faults.invalid(&at, format!("{at} must have exactly one source type set")),
        }
        accounts += usize::from(volume.service_account.is_some());
    }
    if accounts > 1 {
        faults.invalid(&field, format!("{field} must have max one serviceAccount volume set"));
    }
}

fn check_source(at: &str, volume: &Volume, source: &str, faults: &mut Faults) {
    if !SERVED.contains(&source) {
        faults.unsupported(format!("{at}.{source}"), format!("volumes of type {source} are not supported"));
        return;
    }
    if let Some(disk) = &volume.container_disk {
        if disk.image.is_empty() {
            faults.required(format!("{at}.containerDisk.image"), "an image is required");
        }
        if !is_one_of(disk.image_pull_policy.as_deref(), &["", "Always", "Never", "IfNotPresent"]) {
            let message = "must be one of Always, Never, IfNotPresent";
            faults.invalid(format!("{at}.containerDisk.imagePullPolicy"), message);
        }
        if let Some(path) = disk.path.as_deref().filter(|path| !path.is_empty()) {
            check_path(&format!("{at}.containerDisk"), path, faults);
        }
    }
    if let Some(disk) = &volume.empty_disk
        && disk.capacity.units().is_none_or(|bytes| bytes <= 0)
    {
        faults.invalid(format!("{at}.emptyDisk.capacity"), "must be a quantity greater than zero");
    }
    if let Some(data) = volume.cloud_init_no_cloud.as_ref().or(volume.cloud_init_config_drive.as_ref()) {
        check_cloud_init(&format!("{at}.{source}"), data, faults);
    }
    for (name, value) in [
        ("configMap.name", volume.config_map.as_ref().map(|of| of.name.as_deref())),
        ("secret.secretName", volume.secret.as_ref().map(|of| of.secret_name.as_deref())),
        (
            "serviceAccount.serviceAccountName",
            volume.service_account.as_ref().map(|of| of.service_account_name.as_deref()),
        ),
    ] {
        if value.is_some_and(|value| value.unwrap_or_default().is_empty()) {
            faults.invalid(format!("{at}.{name}"), format!("{at}.{name} is a required field"));
        }
    }
    if volume.data_volume.as_ref().is_some_and(|of| of.name.is_empty()) {
        faults.required(format!("{at}.name"), "DataVolume 'name' must be set");
    } else if volume.claim_name() == Some("") {
        faults.required(format!("{at}.{source}"), "the name of a claim is required");
    }
}

fn check_cloud_init(at: &str, source: &CloudInitSource, faults: &mut Faults) {
    let secret = |of: &Option<k8s_openapi::api::core::v1::LocalObjectReference>| {
        of.as_ref().is_some_and(|secret| !secret.name.is_empty())
    };
    let user = (secret(&source.user_data_secret_ref), &source.user_data_base64, &source.user_data);
    let network = (secret(&source.network_data_secret_ref), &source.network_data_base64, &source.network_data);
    let mut total = 0;
    for (kind, only, larger, (secret, base64, plain)) in [
        ("userData", "userdatasource", "UserDataSecretRef", user),
        ("networkData", "networkdata source", "NetworkDataSecretRef", network),
    ] {
        let lower = kind.to_lowercase();
        let base64 = base64.as_deref().filter(|text| !text.is_empty());
        let plain = plain.as_deref().filter(|text| !text.is_empty());
        let count = usize::from(secret) + usize::from(base64.is_some()) + usize::from(plain.is_some());
        total += count;
        if count > 1 {
            faults.invalid(at, format!("{at} must have only one {only} set."));
        }
        let mut length = plain.map_or(0, str::len);
        if let Some(encoded) = base64 {
            match base64::engine::general_purpose::STANDARD.decode(encoded) {
                Ok(decoded) => length = length.max(decoded.len()),
                Err(_) => faults
                    .invalid(format!("{at}.{kind}Base64"), format!("{at}.{kind}Base64 is not a valid base64 value.")),
            }
        }
        if length > MAX_INLINE {
            let message = format!("{at} {lower} exceeds {MAX_INLINE} byte limit. Should use {larger} for larger data.");
            faults.invalid(at, message);
        }
    }
    if total == 0 {
        faults.invalid(at, format!("{at} must have at least one userdatasource or one networkdatasource set."));
    }
}
