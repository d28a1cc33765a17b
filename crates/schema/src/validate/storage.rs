//! Volumes, claims and classes.

use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::access::{Errors, Place};
use super::names;
use crate::error::FieldError;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(spec: &Place<'_>, errors: &mut Errors) {
    let path = spec.path_of("accessModes");
    let modes = spec.texts("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(path.clone(), "at least 1 access mode is required"));
    }
    for mode in &modes {
        if !MODES.contains(mode) {
            errors.push(FieldError::not_supported(path.clone(), *mode, &MODES));
        }
    }
    if modes.contains(&"ReadWriteOncePod") && modes.len() > 1 {
        errors.push(FieldError::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}

fn positive(value: Option<&Value>, path: String, errors: &mut Errors) {
    match value.and_then(Value::as_str).map(Quantity::parse) {
        None => errors.push(FieldError::required(path, "")),
        Some(Ok(amount)) if !amount.is_negative() && !amount.is_zero() => {}
        Some(_) => {
            errors.push(FieldError::invalid(path, value.cloned().unwrap_or_default(), "must be greater than zero"))
        }
    }
}

pub(super) fn volume(spec: &Place<'_>, errors: &mut Errors) {
    access_modes(spec, errors);
    if spec.field("capacity").exists() {
        positive(spec.field("capacity").value.get("storage"), spec.path_of("capacity[storage]"), errors);
    } else {
        errors.push(FieldError::required(spec.path_of("capacity"), ""));
    }
    const OTHERS: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeMode",
        "volumeAttributesClassName",
    ];
    let sources = spec
        .map()
        .map_or(0, |map| map.iter().filter(|(key, v)| !OTHERS.contains(&key.as_str()) && !v.is_null()).count());
    match sources {
        0 => errors.push(FieldError::required(spec.path.clone(), "must specify a volume type")),
        1 => {}
        _ => errors.push(FieldError::forbidden(spec.path.clone(), "may not specify more than 1 volume type")),
    }
    spec.one_of("persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"], errors);
    spec.one_of("volumeMode", &["Block", "Filesystem"], errors);
    spec.has_form("storageClassName", names::dns1123_subdomain, errors);
}

pub(super) fn claim(spec: &Place<'_>, errors: &mut Errors) {
    access_modes(spec, errors);
    let requests = spec.at(&["resources", "requests"]);
    positive(requests.value.get("storage"), format!("{}[storage]", requests.path), errors);
    spec.one_of("volumeMode", &["Block", "Filesystem"], errors);
    spec.has_form("storageClassName", names::dns1123_subdomain, errors);
}

pub(super) fn claim_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let strip = |spec: &Value, bound: bool| {
        let mut spec = spec.clone();
        if let Value::Object(map) = &mut spec {
            if let Some(Value::Object(resources)) = map.get_mut("resources") {
                resources.remove("requests");
            }
            map.remove("volumeAttributesClassName");
            if !bound {
                // The binder sets these once.
                map.remove("volumeName");
                map.remove("storageClassName");
            }
        }
        spec
    };
    let (new_spec, old_spec) = (new.field("spec"), old.field("spec"));
    let bound = !old_spec.text("volumeName").is_empty();
    if strip(new_spec.value, bound) != strip(old_spec.value, bound) {
        errors.push(FieldError::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
    let amount = |spec: &Place<'_>| {
        let requests = spec.at(&["resources", "requests"]);
        Quantity::parse(requests.text("storage")).ok()
    };
    if let (Some(now), Some(before)) = (amount(&new_spec), amount(&old_spec))
        && now < before
    {
        errors.push(FieldError::forbidden(
            "spec.resources.requests.storage",
            "field can not be less than status.capacity",
        ));
    }
}

pub(super) fn volume_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    const FREE: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeMode",
        "volumeAttributesClassName",
    ];
    let source = |spec: &Place<'_>| {
        spec.map()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !FREE.contains(&key.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    if source(&new) != source(&old) {
        errors.push(FieldError::forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        ));
    }
    if new.field("volumeMode").value != old.field("volumeMode").value {
        new.invalid("volumeMode", "field is immutable", errors);
    }
}

pub(super) fn class(object: &Place<'_>, errors: &mut Errors) {
    if object.needs_text("provisioner", errors).is_some() {
        object.has_form("provisioner", |name| names::qualified_name(&name.to_lowercase()), errors);
    }
    object.one_of("reclaimPolicy", &["Delete", "Retain"], errors);
    object.one_of("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], errors);
}

pub(super) fn class_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        if new.field(field).value != old.field(field).value {
            let text = match field {
                "volumeBindingMode" => {
                    new.invalid(field, "field is immutable", errors);
                    continue;
                }
                _ => format!("updates to {field} are forbidden."),
            };
            errors.push(FieldError::forbidden(field, text));
        }
    }
}
