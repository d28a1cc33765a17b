//! Security contexts of pods and of their containers.

use std::collections::BTreeSet;

use carrack_types::well_known::APPARMOR_PREFIX;
use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check, unique};
use super::names;
use crate::error::FieldError;

const PROFILES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
/// Longest name of an AppArmor profile, in bytes: a path's (`PATH_MAX`).
const MAX_PROFILE: usize = 4095;
/// Profiles of a node's own are named there after this.
const LOCALHOST: &str = "localhost/";
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

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
    if spec.value.get("hostUsers").and_then(Value::as_bool) == Some(false) {
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
    let escalates = context.value.get("allowPrivilegeEscalation").and_then(Value::as_bool);
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

/// What annotations, of a pod or of a template, say of AppArmor profiles.
pub(super) fn annotations(annotations: &Place<'_>, spec: &Place<'_>, errors: &mut Errors) {
    let named = annotations.map().into_iter().flatten();
    let profiles: Vec<_> =
        named.filter_map(|(key, value)| Some((key, key.strip_prefix(APPARMOR_PREFIX)?, value))).collect();
    if profiles.is_empty() {
        return;
    }
    let containers: BTreeSet<&str> =
        CONTAINERS.into_iter().flat_map(|list| spec.items(list)).map(|container| container.text("name")).collect();
    for (key, container, profile) in profiles {
        let path = format!("{}[{key}]", annotations.path);
        if !containers.contains(container) {
            errors.push(FieldError::invalid(path.clone(), container, "container not found"));
        }
        let profile = profile.as_str().unwrap_or_default();
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with(LOCALHOST) {
            errors.push(FieldError::invalid(path, profile, format!("invalid AppArmor profile name: {profile:?}")));
        }
    }
}

/// A new pod whose annotations and fields both name an AppArmor profile names the same one.
pub(super) fn annotations_agree(object: &Place<'_>, errors: &mut Errors) {
    let (annotations, spec) = (object.at(&["metadata", "annotations"]), object.field("spec"));
    let says_something = annotations.map().is_some_and(|all| all.keys().any(|key| key.starts_with(APPARMOR_PREFIX)));
    if !says_something || spec.field("os").text("name") == "windows" {
        return;
    }
    let of_pod = spec.at(&["securityContext", "appArmorProfile"]);
    for container in CONTAINERS.into_iter().flat_map(|list| spec.items(list)) {
        let key = format!("{APPARMOR_PREFIX}{}", container.text("name"));
        let Some(said) = annotations.value.get(&key).and_then(Value::as_str) else { continue };
        let own = container.at(&["securityContext", "appArmorProfile"]);
        let profile = if own.exists() { &own } else { &of_pod };
        let fits = match profile.text("type") {
            "Unconfined" => said == "unconfined",
            "RuntimeDefault" => said == "runtime/default",
            "Localhost" => said.starts_with(LOCALHOST),
            _ => true,
        };
        if !fits {
            let text = "apparmor type in annotation and field must match";
            errors.push(FieldError::forbidden(own.path_of("type"), text));
        } else if profile.text("type") == "Localhost"
            && said.strip_prefix(LOCALHOST) != Some(profile.text("localhostProfile"))
        {
            let text = "apparmor profile in annotation and field must match";
            errors.push(FieldError::forbidden(own.path_of("localhostProfile"), text));
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
                } else if text.len() > MAX_PROFILE {
                    errors.push(FieldError::too_long(profile.path_of("localhostProfile"), MAX_PROFILE as u64));
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
