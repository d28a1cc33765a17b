//! What a pod demands, and what may change in one.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{Errors, Place};
use super::{metadata, names, resources, volumes};
use crate::error::FieldError;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];

/// Checks the spec of a pod or of a template.
pub(super) fn spec(spec: &Place<'_>, errors: &mut Errors) {
    let volume_names = volumes::check(spec, errors);
    let mut containers = Containers { names: Vec::new(), volume_names, host_ports: BTreeSet::new() };
    if spec.items("containers").next().is_none() {
        errors.push(FieldError::required(spec.path_of("containers"), ""));
    }
    for container in spec.items("containers") {
        containers.check(&container, Role::Main, errors);
    }
    for container in spec.items("initContainers") {
        let role = if container.text("restartPolicy") == "Always" { Role::Sidecar } else { Role::Init };
        containers.check(&container, role, errors);
    }
    for container in spec.items("ephemeralContainers") {
        containers.check(&container, Role::Ephemeral, errors);
    }
    spec.one_of("restartPolicy", &RESTART_POLICIES, errors);
    spec.one_of("dnsPolicy", &DNS_POLICIES, errors);
    spec.not_negative("terminationGracePeriodSeconds", errors);
    if let Some(seconds) = spec.number("activeDeadlineSeconds").filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        errors.push(FieldError::invalid(
            spec.path_of("activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    metadata::labels(spec, "nodeSelector", errors);
    spec.has_form("serviceAccountName", names::dns1123_subdomain, errors);
    spec.has_form("nodeName", names::dns1123_subdomain, errors);
    spec.has_form("hostname", names::dns1123_label, errors);
    spec.has_form("subdomain", names::dns1123_label, errors);
    for secret in spec.items("imagePullSecrets") {
        secret.needs_text("name", errors);
    }
    for alias in spec.items("hostAliases") {
        if alias.text("ip").parse::<std::net::IpAddr>().is_err() {
            errors.push(FieldError::invalid(
                alias.path_of("ip"),
                alias.text("ip"),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ));
        }
    }
    for toleration in spec.items("tolerations") {
        self::toleration(&toleration, errors);
    }
}

/// Checks that a new pod brings nothing that only an existing one may have.
pub(super) fn create(object: &Place<'_>, errors: &mut Errors) {
    let spec_place = object.field("spec");
    spec(&spec_place, errors);
    if spec_place.items("ephemeralContainers").next().is_some() {
        errors.push(FieldError::forbidden(spec_place.path_of("ephemeralContainers"), "cannot be set on create"));
    }
}

fn toleration(toleration: &Place<'_>, errors: &mut Errors) {
    let (key, operator, value) = (toleration.text("key"), toleration.text("operator"), toleration.text("value"));
    toleration.has_form("key", names::qualified_name, errors);
    if key.is_empty() && operator != "Exists" {
        errors.push(FieldError::invalid(
            toleration.path_of("operator"),
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    match operator {
        "" | "Equal" => toleration.has_form("value", names::label_value, errors),
        "Exists" if !value.is_empty() => {
            errors.push(FieldError::invalid(
                toleration.path_of("operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            ));
        }
        "Exists" | "Lt" | "Gt" => {}
        other => errors.push(FieldError::not_supported(toleration.path_of("operator"), other, &["Equal", "Exists"])),
    }
    let effect = toleration.text("effect");
    if !effect.is_empty() {
        toleration.one_of("effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
    }
    if toleration.number("tolerationSeconds").is_some() && effect != "NoExecute" {
        errors.push(FieldError::invalid(
            toleration.path_of("effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        ));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Main,
    Init,
    Sidecar,
    Ephemeral,
}

struct Containers<'a> {
    names: Vec<&'a str>,
    volume_names: Vec<&'a str>,
    host_ports: BTreeSet<String>,
}

impl<'a> Containers<'a> {
    fn check(&mut self, container: &Place<'a>, role: Role, errors: &mut Errors) {
        if let Some(name) = container.needs_text("name", errors) {
            container.has_form("name", names::dns1123_label, errors);
            if self.names.contains(&name) {
                errors.push(FieldError::duplicate(container.path_of("name"), name));
            }
            self.names.push(name);
        }
        if let Some(image) = container.needs_text("image", errors)
            && image.trim() != image
        {
            errors.push(FieldError::invalid(
                container.path_of("image"),
                image,
                "must not have leading or trailing whitespace",
            ));
        }
        container.one_of("imagePullPolicy", &PULL_POLICIES, errors);
        container.one_of("terminationMessagePolicy", &["File", "FallbackToLogsOnError"], errors);
        self.ports(container, errors);
        for variable in container.items("env") {
            environment(&variable, errors);
        }
        for source in container.items("envFrom") {
            let count = ["configMapRef", "secretRef"].iter().filter(|kind| source.some(kind).is_some()).count();
            if count != 1 {
                let text = if count == 0 {
                    "must specify one of: `configMapRef` or `secretRef`"
                } else {
                    "may not have more than one field specified at a time"
                };
                errors.push(FieldError::invalid(source.path.clone(), "", text));
            }
        }
        self.mounts(container, errors);
        resources::check(&container.field("resources"), errors);
        match role {
            Role::Main | Role::Sidecar => {
                for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
                    if let Some(found) = container.some(kind) {
                        probe(&found, kind != "readinessProbe", errors);
                    }
                }
                for kind in ["postStart", "preStop"] {
                    if let Some(found) = container.field("lifecycle").some(kind) {
                        handler(&found, &["exec", "httpGet", "tcpSocket", "sleep"], errors);
                    }
                }
            }
            Role::Init => forbid(container, "may not be set for init containers without restartPolicy=Always", errors),
            Role::Ephemeral => forbid(container, "cannot be set for an Ephemeral Container", errors),
        }
    }

    fn ports(&mut self, container: &Place<'_>, errors: &mut Errors) {
        let mut port_names: Vec<&str> = Vec::new();
        for port in container.items("ports") {
            let name = port.text("name");
            port.has_form("name", names::port_name, errors);
            if !name.is_empty() && port_names.contains(&name) {
                errors.push(FieldError::duplicate(port.path_of("name"), name));
            }
            port_names.push(name);
            match port.number("containerPort").unwrap_or(0) {
                0 => errors.push(FieldError::required(port.path_of("containerPort"), "")),
                number => errors.extend(
                    names::port_number(number).map(|p| FieldError::invalid(port.path_of("containerPort"), number, p)),
                ),
            }
            let protocol = port.text("protocol");
            port.one_of("protocol", &PROTOCOLS, errors);
            if let Some(number) = port.number("hostPort").filter(|n| *n != 0) {
                errors.extend(
                    names::port_number(number).map(|p| FieldError::invalid(port.path_of("hostPort"), number, p)),
                );
                let taken = format!("{protocol}/{}/{number}", port.text("hostIP"));
                if !self.host_ports.insert(taken.clone()) {
                    errors.push(FieldError::duplicate(port.path_of("hostPort"), taken));
                }
            }
        }
    }

    fn mounts(&self, container: &Place<'_>, errors: &mut Errors) {
        let mut paths: Vec<&str> = Vec::new();
        for mount in container.items("volumeMounts") {
            if let Some(name) = mount.needs_text("name", errors)
                && !self.volume_names.contains(&name)
            {
                errors.push(FieldError::not_found(mount.path_of("name"), name));
            }
            if let Some(path) = mount.needs_text("mountPath", errors) {
                if paths.contains(&path) {
                    errors.push(FieldError::invalid(mount.path_of("mountPath"), path, "must be unique"));
                }
                paths.push(path);
            }
            volumes::relative_path(&mount, "subPath", mount.text("subPath"), errors);
        }
        for device in container.items("volumeDevices") {
            if let Some(name) = device.needs_text("name", errors)
                && !self.volume_names.contains(&name)
            {
                errors.push(FieldError::not_found(device.path_of("name"), name));
            }
            device.needs_text("devicePath", errors);
        }
    }
}

fn forbid(container: &Place<'_>, text: &str, errors: &mut Errors) {
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if container.some(field).is_some() {
            errors.push(FieldError::forbidden(container.path_of(field), text));
        }
    }
}

fn environment(variable: &Place<'_>, errors: &mut Errors) {
    if variable.needs_text("name", errors).is_some() {
        variable.has_form("name", names::environment_variable, errors);
    }
    let Some(from) = variable.some("valueFrom") else { return };
    if !variable.text("value").is_empty() {
        errors.push(FieldError::invalid(from.path.clone(), "", "may not be specified when `value` is not empty"));
    }
    let kinds = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    match kinds.iter().filter(|kind| from.some(kind).is_some()).count() {
        1 => {}
        0 => errors.push(FieldError::invalid(
            from.path.clone(),
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        )),
        _ => errors.push(FieldError::invalid(
            from.path.clone(),
            "",
            "may not have more than one field specified at a time",
        )),
    }
    if let Some(reference) = from.some("fieldRef") {
        field_path(&reference, errors);
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = from.some(kind) {
            reference.needs_text("name", errors);
            if reference.needs_text("key", errors).is_some() {
                reference.has_form("key", names::config_key, errors);
            }
        }
    }
}

fn field_path(reference: &Place<'_>, errors: &mut Errors) {
    const PATHS: [&str; 9] = [
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
    let Some(path) = reference.needs_text("fieldPath", errors) else { return };
    let subscripted = ["metadata.labels['", "metadata.annotations['"]
        .iter()
        .any(|prefix| path.starts_with(prefix) && path.ends_with("']"));
    if !subscripted && !PATHS.contains(&path) {
        let text = format!("error converting fieldPath: field label not supported: {path}");
        errors.push(FieldError::invalid(reference.path_of("fieldPath"), path, text));
    }
}

fn probe(probe: &Place<'_>, only_one_success: bool, errors: &mut Errors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], errors);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        probe.not_negative(field, errors);
    }
    if let Some(number) = probe.number("successThreshold").filter(|n| only_one_success && *n != 1) {
        errors.push(FieldError::invalid(probe.path_of("successThreshold"), number, "must be 1"));
    }
}

fn handler(place: &Place<'_>, kinds: &[&str], errors: &mut Errors) {
    let found: Vec<_> = kinds.iter().filter(|kind| place.some(kind).is_some()).collect();
    match found.as_slice() {
        [] => errors.push(FieldError::required(place.path.clone(), "must specify a handler type")),
        [_, more @ ..] => {
            for kind in more {
                errors.push(FieldError::forbidden(place.path_of(kind), "may not specify more than 1 handler type"));
            }
        }
    }
    if let Some(exec) = place.some("exec")
        && exec.items("command").next().is_none()
    {
        errors.push(FieldError::required(exec.path_of("command"), ""));
    }
    for kind in ["httpGet", "tcpSocket"] {
        let Some(get) = place.some(kind) else { continue };
        match get.value.get("port") {
            Some(Value::Number(number)) => {
                errors.extend(
                    names::port_number(number.as_i64().unwrap_or(0))
                        .map(|p| FieldError::invalid(get.path_of("port"), number.clone(), p)),
                );
            }
            Some(Value::String(name)) => errors
                .extend(names::port_name(name).map(|p| FieldError::invalid(get.path_of("port"), name.as_str(), p))),
            _ => errors.push(FieldError::required(get.path_of("port"), "")),
        }
    }
}

const UPDATE_FORBIDDEN: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks what changed in an existing pod.
pub(super) fn update(object: &Place<'_>, old: &Place<'_>, subresource: &str, errors: &mut Errors) {
    let (new, old) = (object.field("spec"), old.field("spec"));
    match subresource {
        // The binding sets the node; the API server itself is the one who does it.
        "binding" => return,
        "ephemeralcontainers" => {
            spec(&new, errors);
            let kept =
                old.items("ephemeralContainers").all(|c| new.items("ephemeralContainers").any(|n| n.value == c.value));
            if !kept {
                errors.push(FieldError::forbidden(
                    new.path_of("ephemeralContainers"),
                    "existing ephemeral containers may not be removed or changed",
                ));
            }
            only_changes(
                &new,
                &old,
                &["ephemeralContainers"],
                "Pod updates may not change fields other than ephemeralContainers",
                errors,
            );
            return;
        }
        "resize" => {
            spec(&new, errors);
            resized(&new, &old, errors);
            return;
        }
        _ => {}
    }
    spec(&new, errors);
    for list in ["containers", "initContainers"] {
        if new.items(list).count() != old.items(list).count() {
            errors.push(FieldError::forbidden(new.path_of(list), "pod updates may not add or remove containers"));
            return;
        }
    }
    deadline(&new, &old, errors);
    let kept = old.items("tolerations").all(|toleration| {
        new.items("tolerations").any(|candidate| {
            without(candidate.value, &["tolerationSeconds"]) == without(toleration.value, &["tolerationSeconds"])
        })
    });
    if !kept {
        errors.push(FieldError::forbidden(
            new.path_of("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    let gated = old.items("schedulingGates").next().is_some();
    let mut allowed = vec!["activeDeadlineSeconds", "tolerations"];
    if gated {
        // What is not scheduled yet may be narrowed, and its gates taken away.
        allowed.extend(["schedulingGates", "nodeSelector", "affinity"]);
        let added =
            new.items("schedulingGates").any(|gate| !old.items("schedulingGates").any(|o| o.value == gate.value));
        if added {
            errors.push(FieldError::forbidden(
                new.path_of("schedulingGates"),
                "only deletion is allowed, but found new scheduling gates",
            ));
        }
    }
    if old.number("terminationGracePeriodSeconds").is_some_and(|s| s < 0)
        && new.number("terminationGracePeriodSeconds") == Some(1)
    {
        allowed.push("terminationGracePeriodSeconds");
    }
    let strip = |spec: &Value| {
        let mut spec = without(spec, &allowed);
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                *container = without(container, &["image"]);
            }
        }
        spec
    };
    let changed = changed_fields(&strip(new.value), &strip(old.value));
    if !changed.is_empty() {
        errors.push(FieldError::forbidden(
            new.path.clone(),
            format!("{UPDATE_FORBIDDEN}\nchanged: {}", changed.join(", ")),
        ));
    }
}

fn deadline(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let field = "activeDeadlineSeconds";
    if let Some(before) = old.number(field) {
        match new.number(field) {
            None => errors.push(FieldError::invalid(
                new.path_of(field),
                Value::Null,
                "must not update from a positive integer to nil value",
            )),
            Some(now) if now > before => {
                errors.push(FieldError::invalid(
                    new.path_of(field),
                    now,
                    "must be less than or equal to previous value",
                ));
            }
            Some(_) => {}
        }
    }
}

fn resized(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let strip = |spec: &Value| {
        let mut spec = without(spec, &["resources"]);
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                *container = without(container, &["resources", "resizePolicy"]);
            }
        }
        spec
    };
    let changed = changed_fields(&strip(new.value), &strip(old.value));
    if !changed.is_empty() {
        let text = format!("only cpu and memory resources are mutable\nchanged: {}", changed.join(", "));
        errors.push(FieldError::forbidden(new.path.clone(), text));
    }
}

fn only_changes(new: &Place<'_>, old: &Place<'_>, allowed: &[&str], text: &str, errors: &mut Errors) {
    let changed = changed_fields(&without(new.value, allowed), &without(old.value, allowed));
    if !changed.is_empty() {
        errors.push(FieldError::forbidden(new.path.clone(), format!("{text}\nchanged: {}", changed.join(", "))));
    }
}

fn without(value: &Value, fields: &[&str]) -> Value {
    let mut value = value.clone();
    if let Value::Object(map) = &mut value {
        map.retain(|key, _| !fields.contains(&key.as_str()));
    }
    value
}

/// Names of the fields in which two objects differ.
fn changed_fields(new: &Value, old: &Value) -> Vec<String> {
    let empty = serde_json::Map::new();
    let (new, old) = (new.as_object().unwrap_or(&empty), old.as_object().unwrap_or(&empty));
    let keys: BTreeSet<&String> = new.keys().chain(old.keys()).collect();
    keys.into_iter().filter(|key| new.get(*key) != old.get(*key)).cloned().collect()
}
