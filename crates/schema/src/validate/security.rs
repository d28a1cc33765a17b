//! Security contexts of pods and of their containers.

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check, unique};
use super::names;
use crate::error::FieldError;

const PROFILES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];

const OF_POD: &[Row] = &[
    ("fsGroup", Demand::Id),
    ("runAsUser", Demand::Id),
    ("runAsGroup", Demand::Id),
    ("supplementalGroups[]", Demand::Id),
    ("fsGroupChangePolicy", Demand::OneOf(&["Always", "OnRootMismatch"])),
    ("supplementalGroupsPolicy", Demand::OneOf(&["Merge", "Strict"])),
    ("seLinuxChangePolicy", Demand::OneOf(&["MountOption", "Recursive"])),
    ("sysctls[].name", Demand::Required),
    ("sysctls[].name", Demand::Form(names::sysctl)),
];

const OF_CONTAINER: &[Row] =
    &[("runAsUser", Demand::Id), ("runAsGroup", Demand::Id), ("procMount", Demand::OneOf(&["Default", "Unmasked"]))];

/// The context of a pod, whose spec it is in.
pub(super) fn of_pod(context: &Place<'_>, spec: &Place<'_>, errors: &mut Errors) {
    if spec.flag("shareProcessNamespace") && spec.flag("hostPID") {
        let path = context.path_of("shareProcessNamespace");
        errors.push(FieldError::invalid(path, true, "ShareProcessNamespace and HostPID cannot both be enabled"));
    }
    if spec.value.get("hostUsers").and_then(serde_json::Value::as_bool) == Some(false) {
        // Upstream writes two of the three with a capital letter.
        for (flag, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
            if spec.flag(flag) {
                errors.push(FieldError::forbidden(spec.path_of(shown), "when `pod.Spec.HostUsers` is false"));
            }
        }
    }
    check(context, OF_POD, errors);
    profiles(context, errors);
    unique(
        context.items("sysctls"),
        |sysctl| Some(sysctl.text("name")),
        |sysctl| FieldError::duplicate(sysctl.path_of("name"), sysctl.text("name")),
        errors,
    );
    for sysctl in context.items("sysctls") {
        let name = sysctl.text("name").replace('/', ".");
        let of_ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix))
            || name == "kernel.sem";
        if spec.flag("hostNetwork") && name.starts_with("net.") {
            sysctl.invalid("name", "may not be specified when 'hostNetwork' is true", errors);
        } else if spec.flag("hostIPC") && of_ipc {
            sysctl.invalid("name", "may not be specified when 'hostIPC' is true", errors);
        }
    }
}

/// The context of a container. Where its pod's users are the node's, nobody is shown more of `/proc` than others are, but who is
/// privileged.
pub(super) fn of_container(context: &Place<'_>, host_users: bool, errors: &mut Errors) {
    if !context.exists() {
        return;
    }
    check(context, OF_CONTAINER, errors);
    if host_users && context.text("procMount") == "Unmasked" {
        context.invalid("procMount", "may be `Unmasked` only where `hostUsers` is false", errors);
    }
    profiles(context, errors);
    let escalates = context.value.get("allowPrivilegeEscalation").and_then(serde_json::Value::as_bool);
    if escalates == Some(false) {
        if context.flag("privileged") {
            let text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(context.path.clone(), context.value.clone(), text));
        }
        if context.field("capabilities").texts("add").contains(&"CAP_SYS_ADMIN") {
            let text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(context.path.clone(), context.value.clone(), text));
        }
    }
}

fn profiles(context: &Place<'_>, errors: &mut Errors) {
    for (field, short) in [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")] {
        let Some(profile) = context.some(field) else { continue };
        let given = profile.some("localhostProfile");
        match profile.text("type") {
            "" => {
                let text = format!("type is required when {field} is set");
                errors.push(FieldError::required(profile.path_of("type"), text));
            }
            "Localhost" => {
                let text = profile.text("localhostProfile");
                if given.is_none() || (field == "appArmorProfile" && text.trim().is_empty()) {
                    let why = format!("must be set when {short} type is Localhost");
                    errors.push(FieldError::required(profile.path_of("localhostProfile"), why));
                } else if field == "seccompProfile" {
                    check(&profile, &[("localhostProfile", Demand::Relative)], errors);
                } else if text.trim() != text {
                    profile.invalid("localhostProfile", "must not be padded with whitespace", errors);
                }
            }
            "RuntimeDefault" | "Unconfined" if given.is_some() => {
                let why = format!("can only be set when {short} type is Localhost");
                profile.invalid("localhostProfile", why, errors);
            }
            "RuntimeDefault" | "Unconfined" => {}
            _ => profile.one_of("type", PROFILES, errors),
        }
    }
}
