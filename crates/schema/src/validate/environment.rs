//! Environment variables of containers, and references to fields of the pod.

use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check, quantity};
use super::names;
use crate::error::FieldError;

/// Fields of a pod that a variable may show.
const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];

const ROWS: &[Row] = &[
    ("env[].name", Demand::Required),
    ("env[].name", Demand::Form(names::environment_variable)),
    ("env[].valueFrom.configMapKeyRef.name", Demand::Required),
    ("env[].valueFrom.configMapKeyRef.name", Demand::Form(names::dns1123_subdomain)),
    ("env[].valueFrom.configMapKeyRef.key", Demand::Required),
    ("env[].valueFrom.configMapKeyRef.key", Demand::Form(names::config_key)),
    ("env[].valueFrom.secretKeyRef.name", Demand::Required),
    ("env[].valueFrom.secretKeyRef.name", Demand::Form(names::dns1123_subdomain)),
    ("env[].valueFrom.secretKeyRef.key", Demand::Required),
    ("env[].valueFrom.secretKeyRef.key", Demand::Form(names::config_key)),
    ("env[].valueFrom.fileKeyRef.key", Demand::Required),
    ("env[].valueFrom.fileKeyRef.key", Demand::Form(names::environment_variable)),
    ("env[].valueFrom.fileKeyRef.volumeName", Demand::Required),
    ("env[].valueFrom.fileKeyRef.volumeName", Demand::Form(names::dns1123_label)),
    ("env[].valueFrom.fileKeyRef.path", Demand::Required),
    ("env[].valueFrom.fileKeyRef.path", Demand::NotReserved),
    ("envFrom[].prefix", Demand::Form(names::environment_variable)),
    ("envFrom[].configMapRef.name", Demand::Required),
    ("envFrom[].configMapRef.name", Demand::Form(names::dns1123_subdomain)),
    ("envFrom[].secretRef.name", Demand::Required),
    ("envFrom[].secretRef.name", Demand::Form(names::dns1123_subdomain)),
];

pub(super) fn of_container(container: &Place<'_>, errors: &mut Errors) {
    check(container, ROWS, errors);
    for variable in container.items("env") {
        let Some(from) = variable.some("valueFrom") else { continue };
        let problem = match SOURCES.iter().filter(|kind| from.some(kind).is_some()).count() {
            0 => Some(
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ),
            _ if !variable.text("value").is_empty() => Some("may not be specified when `value` is not empty"),
            1 => None,
            _ => Some("may not have more than one field specified at a time"),
        };
        errors.extend(problem.map(|problem| FieldError::invalid(from.path.clone(), "", problem)));
        if let Some(reference) = from.some("fieldRef") {
            field_reference(&reference, FIELDS, errors);
        }
        if let Some(reference) = from.some("resourceFieldRef") {
            resource_reference(&reference, false, errors);
        }
    }
    for source in container.items("envFrom") {
        let problem = match ["configMapRef", "secretRef"].iter().filter(|kind| source.some(kind).is_some()).count() {
            0 => Some("must specify one of: `configMapRef` or `secretRef`"),
            1 => None,
            _ => Some("may not have more than one field specified at a time"),
        };
        errors.extend(problem.map(|problem| FieldError::invalid(source.path.clone(), "", problem)));
    }
}

/// Checks a `fieldRef` that may name these fields of its pod.
pub(super) fn field_reference(reference: &Place<'_>, allowed: &[&str], errors: &mut Errors) {
    let Some(path) = reference.needs_text("fieldPath", errors) else { return };
    let subscript = path.split_once("['").and_then(|(map, rest)| Some((map, rest.strip_suffix("']")?)));
    match subscript {
        Some((map @ ("metadata.labels" | "metadata.annotations"), key)) => {
            let lower = key.to_lowercase();
            let key_form = if map == "metadata.labels" { key } else { &lower };
            let problem = names::qualified_name(key_form);
            errors.extend(problem.map(|problem| FieldError::invalid(reference.path.clone(), key, problem)));
        }
        Some((other, _)) => {
            errors.push(FieldError::invalid(reference.path.clone(), other, "does not support subscript"));
        }
        None if allowed.contains(&path) => {}
        // What can be shown somewhere is a wrong choice here, and all else no field at all.
        None if FIELDS.contains(&path) || matches!(path, "metadata.labels" | "metadata.annotations") => {
            errors.push(FieldError::not_supported(reference.path_of("fieldPath"), path, allowed));
        }
        None => {
            let text = format!("error converting fieldPath: field label not supported: {path}");
            errors.push(FieldError::invalid(reference.path_of("fieldPath"), path, text));
        }
    }
}

/// Checks a `resourceFieldRef`. In a volume it names its container.
pub(super) fn resource_reference(reference: &Place<'_>, in_volume: bool, errors: &mut Errors) {
    if in_volume && reference.needs_text("containerName", errors).is_none() {
        return;
    }
    let Some(resource) = reference.needs_text("resource", errors) else { return };
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.starts_with(prefix));
    if !huge && !RESOURCES.contains(&resource) {
        errors.push(FieldError::not_supported(reference.path_of("resource"), resource, RESOURCES));
        return;
    }
    const OF_CPU: [&str; 2] = ["1m", "1"];
    const OF_BYTES: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let (allowed, text): (&[&str], _) = if resource.ends_with(".cpu") {
        (&OF_CPU, "only divisor's values 1m and 1 are supported with the cpu resource")
    } else {
        (
            &OF_BYTES,
            "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource",
        )
    };
    let divisor = reference.value.get("divisor").filter(|divisor| !divisor.is_null());
    let good = divisor
        .and_then(quantity)
        .is_none_or(|amount| amount.is_zero() || allowed.contains(&amount.to_string().as_str()));
    if !good {
        errors.push(FieldError::invalid(reference.path_of("divisor"), divisor.cloned().unwrap_or(Value::Null), text));
    }
}
