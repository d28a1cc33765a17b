//! PersistentVolumes, claims, classes, attachments, and what drivers say of themselves.

use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::access::{Errors, Place};
use super::alike::plain;
use super::demand::{Change, Demand, Fixed, Row, changes as held_to, check, unique};
use super::{affinity, names, volumes};
use crate::error::FieldError;

const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
/// Most parameters of a class, and most bytes of them.
const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 << 10;
/// Most bytes of what a driver says of an attachment.
const MAX_ATTACHED_BYTES: usize = 256 << 10;

fn access_modes(spec: &Place<'_>, none: &str, errors: &mut Errors) {
    let path = spec.path_of("accessModes");
    let modes = spec.texts("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(path.clone(), none));
    }
    for mode in modes.iter().filter(|mode| !MODES.contains(mode)) {
        errors.push(FieldError::not_supported(path.clone(), *mode, MODES));
    }
    if modes.contains(&"ReadWriteOncePod") && modes.iter().any(|mode| *mode != "ReadWriteOncePod") {
        errors.push(FieldError::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}

pub(super) fn volume(spec: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("capacity", Demand::Required),
        ("capacity.storage", Demand::PositiveAmount),
        ("persistentVolumeReclaimPolicy", Demand::OneOf(&["Delete", "Recycle", "Retain"])),
        ("volumeMode", Demand::OneOf(VOLUME_MODES)),
        ("storageClassName", Demand::Form(names::dns1123_subdomain)),
        ("volumeAttributesClassName", Demand::Form(names::dns1123_subdomain)),
        ("nodeAffinity.required", Demand::Needed("must specify required node constraints")),
    ];
    access_modes(spec, "", errors);
    let before = errors.len();
    check(spec, ROWS, errors);
    for error in errors.iter_mut().skip(before) {
        // Keys of maps stand in brackets.
        error.path = error.path.replace(".capacity.storage", ".capacity[storage]");
    }
    let capacity = spec.field("capacity");
    let only_storage = capacity.map().is_some_and(|map| map.len() == 1 && map.contains_key("storage"));
    if !only_storage {
        errors.push(FieldError::not_supported(capacity.path, capacity.value.clone(), &["storage"]));
    }
    volumes::of_volume(spec, errors);
    if let Some(required) = spec.at(&["nodeAffinity"]).some("required") {
        affinity::node_selector(&required, errors);
    }
    if spec.some("local").is_some() && spec.some("nodeAffinity").is_none() {
        errors.push(FieldError::required(spec.path_of("nodeAffinity"), "Local volume requires node affinity"));
    }
    let root = spec.at(&["hostPath"]).text("path");
    let is_root = !root.is_empty() && root.split('/').all(|part| matches!(part, "" | "."));
    if is_root && spec.text("persistentVolumeReclaimPolicy") == "Recycle" {
        let path = spec.path_of("persistentVolumeReclaimPolicy");
        errors.push(FieldError::forbidden(path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    if spec.value.get("volumeAttributesClassName").is_some_and(|name| name == "") {
        let path = spec.path_of("volumeAttributesClassName");
        errors.push(FieldError::required(path, "an empty string is disallowed"));
    }
    if spec.some("volumeAttributesClassName").is_some() && spec.some("csi").is_none() {
        let text = "has to be specified when using volumeAttributesClassName";
        errors.push(FieldError::required(spec.path_of("csi"), text));
    }
}

pub(super) fn claim(spec: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("selector", Demand::Selector),
        ("volumeMode", Demand::OneOf(VOLUME_MODES)),
        ("storageClassName", Demand::Form(names::dns1123_subdomain)),
        ("volumeAttributesClassName", Demand::Form(names::dns1123_subdomain)),
        ("dataSource.name", Demand::Required),
        ("dataSource.kind", Demand::Required),
        ("dataSource.apiGroup", Demand::Form(names::dns1123_subdomain)),
        ("dataSourceRef.name", Demand::Required),
        ("dataSourceRef.kind", Demand::Required),
        ("dataSourceRef.apiGroup", Demand::Form(names::dns1123_subdomain)),
        ("dataSourceRef.namespace", Demand::Form(names::dns1123_label)),
    ];
    access_modes(spec, "at least 1 access mode is required", errors);
    check(spec, ROWS, errors);
    // Upstream leaves `requests` out of this path.
    let path = format!("{}[storage]", spec.path_of("resources"));
    let storage = spec.at(&["resources", "requests", "storage"]);
    match super::demand::quantity(storage.value) {
        None => errors.push(FieldError::required(path, "")),
        Some(amount) if amount.is_negative() || amount.is_zero() => {
            errors.push(FieldError::invalid(path, storage.value.clone(), super::demand::NOT_POSITIVE));
        }
        Some(_) => {}
    }
    let (source, reference) = (spec.some("dataSource"), spec.some("dataSourceRef"));
    for place in [&source, &reference].into_iter().flatten() {
        if place.text("apiGroup").is_empty() && !matches!(place.text("kind"), "" | "PersistentVolumeClaim") {
            let text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(place.path.clone(), place.text("kind"), text));
        }
    }
    if let (Some(source), Some(reference)) = (&source, &reference) {
        let same = ["apiGroup", "kind", "name"].iter().all(|field| source.text(field) == reference.text(field));
        let text = if !reference.text("namespace").is_empty() {
            "may not be specified when dataSourceRef.namespace is specified"
        } else if !same {
            "must match dataSourceRef"
        } else {
            return;
        };
        errors.push(FieldError::invalid(spec.path.clone(), source.path.clone(), text));
    }
}

pub(super) fn claim_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new_spec, old_spec) = (new.field("spec"), old.field("spec"));
    let bound = new.field("status").text("phase") == "Bound";
    let named = !old_spec.text("volumeName").is_empty();
    let classed = old_spec.value.get("storageClassName").is_some_and(|class| !class.is_null());
    let strip = |spec: &Value| {
        let mut spec = plain(spec);
        if let Value::Object(map) = &mut spec {
            if bound {
                if let Some(Value::Object(requests)) = map.get_mut("resources").and_then(|r| r.get_mut("requests")) {
                    requests.remove("storage");
                }
                map.remove("volumeAttributesClassName");
            }
            // These are set once, by the binder and by whoever makes a class the default.
            if !named {
                map.remove("volumeName");
            }
            if !classed {
                map.remove("storageClassName");
            }
        }
        spec
    };
    if strip(new_spec.value) != strip(old_spec.value) {
        errors.push(FieldError::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
    let amount = |text: &str| Quantity::parse(text).ok();
    let asked = |spec: &Place<'_>| amount(spec.at(&["resources", "requests"]).text("storage"));
    if let (Some(now), Some(before)) = (asked(&new_spec), asked(&old_spec))
        && now < before
    {
        // What was asked for and not given may be asked for no more.
        let given = amount(old.at(&["status", "capacity"]).text("storage")).unwrap_or_default();
        if now <= given {
            let path = "spec.resources.requests.storage";
            errors.push(FieldError::forbidden(path, "field can not be less than status.capacity"));
        }
    }
    let (before, now) = (old_spec.text("volumeAttributesClassName"), new_spec.text("volumeAttributesClassName"));
    if !before.is_empty() && now.is_empty() {
        let what = if new_spec.some("volumeAttributesClassName").is_some() { "an empty string" } else { "nil" };
        let path = "spec.volumeAttributesClassName";
        errors.push(FieldError::forbidden(path, format!("update from non-nil value to {what} is forbidden")));
    }
}

pub(super) fn volume_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    let source = |spec: &Place<'_>| {
        let fields = spec.map().into_iter().flatten().filter(|(key, _)| volumes::is_source(key));
        let mut source: Vec<(String, Value)> = fields.map(|(key, value)| (key.clone(), plain(value))).collect();
        // The secret for expansion may come later.
        let could_expand = old.at(&["csi"]).some("controllerExpandSecretRef").is_some();
        for (_, driver) in source.iter_mut().filter(|(key, _)| key == "csi" && !could_expand) {
            if let Value::Object(driver) = driver {
                driver.remove("controllerExpandSecretRef");
            }
        }
        source
    };
    if source(&new) != source(&old) {
        errors.push(FieldError::forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        ));
    }
    const FIXED: &[Fixed] = &[
        ("volumeMode", Change::Never),
        ("nodeAffinity", Change::Once("field is immutable, except for updating from beta label to GA")),
    ];
    let before = errors.len();
    held_to(&new, &old, FIXED, errors);
    for error in errors.iter_mut().skip(before) {
        // Upstream names these without the spec that they are in.
        error.path = error.path.trim_start_matches("spec.").to_owned();
    }
    if !old.text("volumeAttributesClassName").is_empty() && new.text("volumeAttributesClassName").is_empty() {
        let path = "spec.volumeAttributesClassName";
        errors.push(FieldError::forbidden(path, "update from non-nil value to nil is forbidden"));
    }
}

pub(super) fn class(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("provisioner", Demand::Required),
        ("provisioner", Demand::LowerForm(names::qualified_name)),
        ("reclaimPolicy", Demand::OneOf(&["Delete", "Retain"])),
        ("volumeBindingMode", Demand::Required),
        ("volumeBindingMode", Demand::OneOf(&["Immediate", "WaitForFirstConsumer"])),
        ("allowedTopologies[].matchLabelExpressions[].values", Demand::Required),
        ("allowedTopologies[].matchLabelExpressions[].key", Demand::Required),
        ("allowedTopologies[].matchLabelExpressions[].key", Demand::Form(names::qualified_name)),
    ];
    check(object, ROWS, errors);
    parameters(object, "parameters", errors);
    for term in object.items("allowedTopologies") {
        unique(
            term.items("matchLabelExpressions"),
            |expression| Some(expression.text("key")),
            |expression| FieldError::duplicate(expression.path_of("key"), expression.text("key")),
            errors,
        );
        for expression in term.items("matchLabelExpressions") {
            unique(
                expression.items("values"),
                |value| Some(value.value.to_string()),
                |value| FieldError::duplicate(value.path.clone(), value.value.clone()),
                errors,
            );
        }
    }
    unique(
        object.items("allowedTopologies"),
        |term| Some(term.value.to_string()),
        |term| FieldError::duplicate(term.path_of("matchLabelExpressions"), ""),
        errors,
    );
}

fn parameters(object: &Place<'_>, field: &str, errors: &mut Errors) {
    let path = object.path_of(field);
    let entries: Vec<(&String, &Value)> = object.entries(field).collect();
    if entries.len() > MAX_PARAMETERS {
        errors.push(FieldError::too_long(path, MAX_PARAMETERS as u64));
        return;
    }
    if entries.iter().any(|(key, _)| key.is_empty()) {
        errors.push(FieldError::invalid(path.clone(), "", "field can not be empty."));
    }
    let size: usize = entries.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_PARAMETER_BYTES {
        errors.push(FieldError::too_long(path, MAX_PARAMETER_BYTES as u64));
    }
}

pub(super) fn class_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    const FIXED: &[Fixed] = &[
        ("parameters", Change::Forbidden("updates to parameters are forbidden.")),
        ("provisioner", Change::Forbidden("updates to provisioner are forbidden.")),
        ("reclaimPolicy", Change::Forbidden("updates to reclaimPolicy are forbidden.")),
        ("volumeBindingMode", Change::Never),
    ];
    held_to(new, old, FIXED, errors);
}

pub(super) fn attributes_class(object: &Place<'_>, errors: &mut Errors) {
    check(object, &[("driverName", Demand::Required), ("driverName", Demand::Form(names::csi_driver))], errors);
    if object.entries("parameters").next().is_none() {
        errors.push(FieldError::required("parameters", "must contain at least one key/value pair"));
    }
    parameters(object, "parameters", errors);
}

pub(super) fn attributes_class_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    const FIXED: &[Fixed] = &[
        ("driverName", Change::Forbidden("updates to driverName are forbidden.")),
        ("parameters", Change::Forbidden("updates to parameters are forbidden.")),
    ];
    held_to(new, old, FIXED, errors);
}

/// A driver as it is registered with the cluster.
pub(super) fn csi_driver(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("metadata.name", Demand::Form(names::csi_driver)),
        ("spec.attachRequired", Demand::Required),
        ("spec.podInfoOnMount", Demand::Required),
        ("spec.storageCapacity", Demand::Required),
        ("spec.fsGroupPolicy", Demand::OneOf(&["File", "None", "ReadWriteOnceWithFSType"])),
        ("spec.volumeLifecycleModes[]", Demand::OneOf(&["Ephemeral", "Persistent"])),
        ("spec.tokenRequests[].expirationSeconds", Demand::Between(600, 1 << 32)),
        ("spec.nodeAllocatableUpdatePeriodSeconds", Demand::AtLeast(10, "must be greater than or equal to 10 seconds")),
    ];
    check(object, ROWS, errors);
    unique(
        object.field("spec").items("tokenRequests"),
        |request| Some(request.text("audience")),
        |request| FieldError::duplicate(request.path_of("audience"), request.text("audience")),
        errors,
    );
}

pub(super) fn csi_driver_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    const FIXED: &[Fixed] = &[("spec.attachRequired", Change::Never), ("spec.volumeLifecycleModes", Change::Never)];
    held_to(new, old, FIXED, errors);
}

/// The drivers of a node.
pub(super) fn csi_node(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("spec.drivers[].name", Demand::Required),
        ("spec.drivers[].name", Demand::Form(names::csi_driver)),
        ("spec.drivers[].nodeID", Demand::Required),
        ("spec.drivers[].allocatable.count", Demand::NotNegative),
    ];
    check(object, ROWS, errors);
    for driver in object.field("spec").items("drivers") {
        if driver.text("nodeID").len() > 256 {
            driver.invalid("nodeID", "must be 256 characters or less", errors);
        }
        unique(
            driver.items("topologyKeys"),
            |key| Some(key.value.to_string()),
            |key| FieldError::duplicate(driver.path_of("topologyKeys"), key.value.clone()),
            errors,
        );
        for key in driver.texts("topologyKeys") {
            if key.is_empty() {
                errors.push(FieldError::required(driver.path_of("topologyKeys"), ""));
            } else {
                let problem = names::qualified_name(key);
                errors.extend(problem.map(|p| FieldError::invalid(driver.path_of("topologyKeys"), key, p)));
            }
        }
    }
    unique(
        object.field("spec").items("drivers"),
        |driver| Some(driver.text("name")),
        |driver| FieldError::duplicate(driver.path_of("name"), driver.text("name")),
        errors,
    );
}

pub(super) fn csi_node_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    for before in old.field("spec").items("drivers") {
        let path = "spec.drivers";
        for now in new.field("spec").items("drivers").filter(|now| now.text("name") == before.text("name")) {
            let fixed =
                |driver: &Place<'_>| (driver.text("nodeID").to_owned(), driver.field("topologyKeys").value.clone());
            if fixed(&now) != fixed(&before) {
                let text = "field is immutable";
                errors.push(FieldError::invalid(path, now.value.clone(), text));
            }
        }
    }
}

pub(super) fn attachment(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("spec.attacher", Demand::Required),
        ("spec.attacher", Demand::LowerForm(names::qualified_name)),
        ("spec.nodeName", Demand::Required),
        ("spec.nodeName", Demand::Form(names::dns1123_subdomain)),
    ];
    check(object, ROWS, errors);
    let source = object.at(&["spec", "source"]);
    match (source.some("persistentVolumeName").is_some(), source.some("inlineVolumeSpec").is_some()) {
        (false, false) => {
            let text = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::required(source.path, text));
        }
        (true, true) => {
            let text = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::invalid(source.path, source.value.clone(), text));
        }
        (true, false) if source.text("persistentVolumeName").is_empty() => {
            let text = "must specify non empty persistentVolumeName";
            errors.push(FieldError::invalid(source.path_of("persistentVolumeName"), "", text));
        }
        _ => {}
    }
    let status = object.field("status");
    let size: usize =
        status.entries("attachmentMetadata").map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_ATTACHED_BYTES {
        errors.push(FieldError::too_long(status.path_of("attachmentMetadata"), MAX_ATTACHED_BYTES as u64));
    }
}

pub(super) fn attachment_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    held_to(new, old, &[("spec", Change::Never)], errors);
}
