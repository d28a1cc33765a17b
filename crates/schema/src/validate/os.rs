//! What belongs to one operating system and cannot be asked for on another one (upstream's `validateLinux` and
//! `validateWindows`).

use serde_json::Value;

use super::access::{Errors, Place};
use crate::error::FieldError;

/// What pods for Windows do not have: in their spec, in their security context and in those of their containers.
const NOT_OF_WINDOWS: [&str; 2] = ["hostUsers", "shareProcessNamespace"];
const NOT_OF_WINDOWS_PODS: [&str; 11] = [
    "appArmorProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsUser",
    "seLinuxChangePolicy",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
];
const NOT_OF_WINDOWS_CONTAINERS: [&str; 10] = [
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
];

/// Holds the spec of a pod against the system that it says it is for.
pub(super) fn check(spec: &Place<'_>, errors: &mut Errors) {
    let of_pod = spec.field("securityContext");
    let of_containers = ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| spec.items(list))
        .map(|container| container.field("securityContext"));
    match spec.field("os").text("name") {
        "linux" => {
            for context in std::iter::once(of_pod).chain(of_containers) {
                forbid(&context, &["windowsOptions"], "windows options cannot be set for a linux pod", errors);
            }
        }
        "windows" => {
            const WHY: &str = "cannot be set for a windows pod";
            for flag in ["hostPID", "hostIPC"].into_iter().filter(|flag| spec.flag(flag)) {
                errors.push(FieldError::forbidden(spec.path_of(flag), WHY));
            }
            forbid(spec, &NOT_OF_WINDOWS, WHY, errors);
            forbid(&of_pod, &NOT_OF_WINDOWS_PODS, WHY, errors);
            for context in of_containers {
                forbid(&context, &NOT_OF_WINDOWS_CONTAINERS, WHY, errors);
            }
        }
        _ => {}
    }
}

fn forbid(place: &Place<'_>, fields: &[&str], why: &str, errors: &mut Errors) {
    let is_said = |value: &Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
    for field in fields.iter().map(|name| place.field(name)).filter(|field| is_said(field.value)) {
        errors.push(FieldError::forbidden(field.path, why));
    }
}
