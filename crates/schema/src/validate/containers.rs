//! Containers of pods, of all roles.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{Demand, NOT_POSITIVE, Row, check, has_backsteps, unique};
use super::{affinity, environment, names, resources, security};
use crate::error::FieldError;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const SCHEMES: &[&str] = &["HTTP", "HTTPS"];

const EVERY_CONTAINER: &[Row] = &[
    ("name", Demand::Required),
    ("name", Demand::Form(names::dns1123_label)),
    ("image", Demand::Required),
    ("imagePullPolicy", Demand::OneOf(PULL_POLICIES)),
    ("terminationMessagePolicy", Demand::OneOf(&["File", "FallbackToLogsOnError"])),
    ("ports[].name", Demand::Form(names::port_name)),
    ("ports[].hostPort", Demand::Between(0, 65_535)),
    ("ports[].protocol", Demand::OneOf(PROTOCOLS)),
    ("ports[].hostIP", Demand::Address),
    ("volumeMounts[].name", Demand::Required),
    ("volumeMounts[].mountPath", Demand::Required),
    ("volumeMounts[].subPath", Demand::Relative),
    ("volumeMounts[].subPathExpr", Demand::Relative),
    ("volumeMounts[].mountPropagation", Demand::OneOf(&["Bidirectional", "HostToContainer", "None"])),
    ("volumeMounts[].recursiveReadOnly", Demand::OneOf(&["Disabled", "Enabled", "IfPossible"])),
    ("volumeDevices[].name", Demand::Required),
    ("volumeDevices[].devicePath", Demand::Required),
    ("resizePolicy[].resourceName", Demand::OneOf(&["cpu", "memory"])),
    ("resizePolicy[].restartPolicy", Demand::OneOf(&["NotRequired", "RestartContainer"])),
];

const PROBE: &[Row] = &[
    ("initialDelaySeconds", Demand::NotNegative),
    ("timeoutSeconds", Demand::NotNegative),
    ("periodSeconds", Demand::NotNegative),
    ("successThreshold", Demand::NotNegative),
    ("failureThreshold", Demand::NotNegative),
    ("terminationGracePeriodSeconds", Demand::AtLeast(1, "must be greater than 0")),
];

const HANDLER: &[Row] = &[
    ("exec.command", Demand::Required),
    ("httpGet.path", Demand::Required),
    ("httpGet.port", Demand::Required),
    ("httpGet.port", Demand::Port),
    ("httpGet.scheme", Demand::OneOf(SCHEMES)),
    ("tcpSocket.port", Demand::Required),
    ("tcpSocket.port", Demand::Port),
    ("grpc.port", Demand::Required),
    ("grpc.port", Demand::Port),
];

/// Fields that an ephemeral container may not have.
const NOT_EPHEMERAL: [&str; 7] =
    ["lifecycle", "livenessProbe", "ports", "readinessProbe", "startupProbe", "restartPolicy", "restartPolicyRules"];

/// After which ends a container is started again.
const RESTARTS: &[&str] = &["Always", "Never", "OnFailure"];
/// What becomes of a container whose end fits a rule.
const RULE_ACTIONS: &[&str] = &["Restart", "RestartAllContainers"];
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Main,
    Init,
    Sidecar,
    Ephemeral,
}

/// What containers know of their pod.
struct Containers<'a> {
    names: BTreeSet<&'a str>,
    volumes: BTreeMap<&'a str, &'a Value>,
    claims: BTreeSet<&'a str>,
    host_ports: BTreeSet<String>,
    grace_s: Option<i64>,
    never_restarts: bool,
    /// The pod's users are the node's.
    host_users: bool,
}

/// Checks the containers of a pod's spec, which has these volumes.
pub(super) fn of_pod<'a>(spec: &Place<'a>, volumes: Vec<(&'a str, &'a Value)>, errors: &mut Errors) {
    let mut containers = Containers {
        names: BTreeSet::new(),
        // Of two with one name, the first counts.
        volumes: volumes.into_iter().rev().collect(),
        claims: spec.items("resourceClaims").map(|claim| claim.text("name")).collect(),
        host_ports: BTreeSet::new(),
        grace_s: spec.number("terminationGracePeriodSeconds"),
        never_restarts: spec.text("restartPolicy") == "Never",
        host_users: spec.value.get("hostUsers").and_then(Value::as_bool) != Some(false),
    };
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
    let targets = containers.names.clone();
    for container in spec.items("ephemeralContainers") {
        containers.check(&container, Role::Ephemeral, errors);
        let target = container.text("targetContainerName");
        if !target.is_empty() && !targets.contains(&target) {
            errors.push(FieldError::not_found(container.path_of("targetContainerName"), target));
        }
    }
    if spec.flag("hostNetwork") {
        for port in spec.items("containers").flat_map(|container| container.items("ports")) {
            let (host, own) = (port.number("hostPort").unwrap_or(0), port.number("containerPort").unwrap_or(0));
            if host != own && host != 0 {
                let text = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(port.path_of("hostPort"), host, text));
            }
        }
    }
}

impl<'a> Containers<'a> {
    fn check(&mut self, container: &Place<'a>, role: Role, errors: &mut Errors) {
        check(container, EVERY_CONTAINER, errors);
        let name = container.text("name");
        if !name.is_empty() && !self.names.insert(name) {
            errors.push(FieldError::duplicate(container.path_of("name"), name));
        }
        let image = container.text("image");
        if image.trim() != image {
            container.invalid("image", "must not have leading or trailing whitespace", errors);
        }
        self.ports(container, role, errors);
        environment::of_container(container, errors);
        self.files(container, errors);
        self.mounts(container, errors);
        self.devices(container, errors);
        resources::check(&container.field("resources"), errors);
        self.claimed(&container.field("resources"), errors);
        self.resizing(container, errors);
        security::of_container(&container.field("securityContext"), self.host_users, errors);
        if role != Role::Ephemeral {
            restarting(container, errors);
        }
        match role {
            Role::Main | Role::Sidecar => self.life(container, errors),
            Role::Init => {
                forbid(
                    container,
                    &["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"],
                    "may not be set for init containers without restartPolicy=Always",
                    errors,
                );
            }
            Role::Ephemeral => {
                forbid(container, &NOT_EPHEMERAL, "cannot be set for an Ephemeral Container", errors);
                let resources = container.field("resources");
                if resources.map().is_some_and(|map| !map.is_empty()) {
                    errors.push(FieldError::forbidden(resources.path, "cannot be set for an Ephemeral Container"));
                }
                for mount in container.items("volumeMounts") {
                    forbid(&mount, &["subPath", "subPathExpr"], "cannot be set for an Ephemeral Container", errors);
                }
            }
        }
    }

    fn life(&self, container: &Place<'_>, errors: &mut Errors) {
        for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
            let Some(probe) = container.some(kind) else { continue };
            self.handler(&probe, &["exec", "httpGet", "tcpSocket", "grpc"], errors);
            check(&probe, PROBE, errors);
            if kind == "readinessProbe" {
                if probe.some("terminationGracePeriodSeconds").is_some() {
                    probe.invalid("terminationGracePeriodSeconds", "must not be set for readinessProbes", errors);
                }
            } else if let Some(number) = probe.number("successThreshold").filter(|number| *number != 1) {
                errors.push(FieldError::invalid(probe.path_of("successThreshold"), number, "must be 1"));
            }
        }
        for kind in ["postStart", "preStop"] {
            if let Some(handler) = container.field("lifecycle").some(kind) {
                self.handler(&handler, &["exec", "httpGet", "tcpSocket", "sleep"], errors);
            }
        }
    }

    fn handler(&self, place: &Place<'_>, kinds: &[&str], errors: &mut Errors) {
        let found: Vec<&&str> = kinds.iter().filter(|kind| place.some(kind).is_some()).collect();
        match found.as_slice() {
            [] => errors.push(FieldError::required(place.path.clone(), "must specify a handler type")),
            [_, more @ ..] => {
                for kind in more {
                    errors.push(FieldError::forbidden(place.path_of(kind), "may not specify more than 1 handler type"));
                }
            }
        }
        check(place, HANDLER, errors);
        for header in place.field("httpGet").items("httpHeaders") {
            let name = header.text("name");
            let problem = names::http_header(name);
            let path = format!("{}.httpGet.httpHeaders", place.path);
            errors.extend(problem.map(|problem| FieldError::invalid(path, name, problem)));
        }
        if let (Some(sleep), Some(grace_s)) = (place.some("sleep"), self.grace_s) {
            let seconds = sleep.number("seconds").unwrap_or(0);
            if seconds < 0 || seconds > grace_s {
                let text = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace_s})");
                errors.push(FieldError::invalid(sleep.path, seconds, text));
            }
        }
    }

    fn ports(&mut self, container: &Place<'_>, role: Role, errors: &mut Errors) {
        unique(
            container.items("ports"),
            |port| Some(port.text("name")).filter(|name| !name.is_empty()),
            |port| FieldError::duplicate(port.path_of("name"), port.text("name")),
            errors,
        );
        // Init containers run one after the other, so that each may have the ports of the others.
        let mut own = BTreeSet::new();
        let taken_ports = if role == Role::Main { &mut self.host_ports } else { &mut own };
        for port in container.items("ports") {
            match port.number("containerPort").unwrap_or(0) {
                0 => errors.push(FieldError::required(port.path_of("containerPort"), "")),
                number => errors.extend(
                    names::port_number(number).map(|p| FieldError::invalid(port.path_of("containerPort"), number, p)),
                ),
            }
            if let Some(number) = port.number("hostPort").filter(|n| *n != 0) {
                let taken = format!("{}/{}/{number}", port.text("protocol"), port.text("hostIP"));
                if !taken_ports.insert(taken.clone()) {
                    errors.push(FieldError::duplicate(port.path_of("hostPort"), taken));
                }
            }
        }
    }

    fn volume(&self, name: &str) -> Option<&'a Value> {
        self.volumes.get(name).copied()
    }

    /// Files with variables are in emptyDirs of the pod, whether the container mounts them or not
    /// (`validateFileKeyRefVolumes`; EnvFiles, on by default since v1.35).
    fn files(&self, container: &Place<'_>, errors: &mut Errors) {
        for variable in container.items("env") {
            let Some(reference) = variable.field("valueFrom").some("fileKeyRef") else { continue };
            let name = reference.text("volumeName");
            match self.volume(name) {
                _ if name.is_empty() => {}
                None => errors.push(FieldError::not_found(reference.path_of("volumeName"), name)),
                Some(volume) if volume.get("emptyDir").is_none_or(Value::is_null) => {
                    reference.invalid("volumeName", "referenced volume must be of type emptyDir", errors);
                }
                Some(_) => {}
            }
        }
    }

    fn mounts(&self, container: &Place<'_>, errors: &mut Errors) {
        let of_devices = |field: &'static str| -> BTreeSet<&str> {
            container.items("volumeDevices").map(|device| device.text(field)).collect()
        };
        let (devices, device_paths) = (of_devices("name"), of_devices("devicePath"));
        unique(
            container.items("volumeMounts"),
            |mount| Some(mount.text("mountPath")).filter(|path| !path.is_empty()),
            |mount| FieldError::invalid(mount.path_of("mountPath"), mount.text("mountPath"), "must be unique"),
            errors,
        );
        for mount in container.items("volumeMounts") {
            let (name, path) = (mount.text("name"), mount.text("mountPath"));
            if !name.is_empty() {
                match self.volume(name) {
                    None => errors.push(FieldError::not_found(mount.path_of("name"), name)),
                    Some(volume) if volume.get("image").is_some_and(|image| !image.is_null()) => {
                        for field in ["subPath", "subPathExpr"].into_iter().filter(|f| !mount.text(f).is_empty()) {
                            mount.invalid(field, "not allowed in image volume sources", errors);
                        }
                    }
                    Some(_) => {}
                }
            }
            if devices.contains(name) {
                mount.invalid("name", "must not already exist in volumeDevices", errors);
            }
            if device_paths.contains(path) {
                mount.invalid("mountPath", "must not already exist as a path in volumeDevices", errors);
            }
            if !mount.text("subPath").is_empty() && !mount.text("subPathExpr").is_empty() {
                mount.invalid("subPathExpr", "subPathExpr and subPath are mutually exclusive", errors);
            }
            let privileged = container.at(&["securityContext"]).flag("privileged");
            if mount.text("mountPropagation") == "Bidirectional" && !privileged {
                let path = mount.path_of("mountPropagation");
                let text = "Bidirectional mount propagation is available only to privileged containers";
                errors.push(FieldError::forbidden(path, text));
            }
            if !matches!(mount.text("recursiveReadOnly"), "" | "Disabled") {
                if !mount.flag("readOnly") {
                    let path = mount.path_of("recursiveReadOnly");
                    errors.push(FieldError::forbidden(path, "may only be specified when readOnly is true"));
                }
                if !matches!(mount.text("mountPropagation"), "" | "None") {
                    let path = mount.path_of("recursiveReadOnly");
                    let text = "may only be specified when mountPropagation is None or not specified";
                    errors.push(FieldError::forbidden(path, text));
                }
            }
        }
    }

    fn devices(&self, container: &Place<'_>, errors: &mut Errors) {
        for field in ["name", "devicePath"] {
            unique(
                container.items("volumeDevices"),
                |device| Some(device.text(field)).filter(|text| !text.is_empty()),
                |device| FieldError::invalid(device.path_of(field), device.text(field), "must be unique"),
                errors,
            );
        }
        for device in container.items("volumeDevices") {
            let name = device.text("name");
            let of_claim = |volume: &Value| {
                ["persistentVolumeClaim", "ephemeral"].iter().any(|kind| volume.get(kind).is_some_and(|v| !v.is_null()))
            };
            match self.volume(name) {
                _ if name.is_empty() => {}
                None => errors.push(FieldError::not_found(device.path_of("name"), name)),
                Some(volume) if !of_claim(volume) => {
                    let text = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                    device.invalid("name", text, errors);
                }
                Some(_) => {}
            }
            if has_backsteps(device.text("devicePath")) {
                device.invalid("devicePath", "can not contain backsteps ('..')", errors);
            }
        }
    }

    /// Claims of devices that the container says it uses are the pod's.
    fn claimed(&self, resources: &Place<'_>, errors: &mut Errors) {
        for claim in resources.items("claims") {
            if let Some(name) = claim.needs_text("name", errors)
                && !self.claims.contains(&name)
            {
                errors.push(FieldError::not_found(claim.path_of("name"), name));
            }
        }
        unique(
            resources.items("claims"),
            |claim| Some((claim.text("name"), claim.text("request"))),
            |claim| FieldError::duplicate(claim.path.clone(), claim.value.clone()),
            errors,
        );
    }

    fn resizing(&self, container: &Place<'_>, errors: &mut Errors) {
        unique(
            container.items("resizePolicy"),
            |policy| Some(policy.text("resourceName")),
            |policy| FieldError::duplicate(policy.path.clone(), policy.text("resourceName")),
            errors,
        );
        if self.never_restarts && container.items("resizePolicy").any(|p| p.text("restartPolicy") != "NotRequired") {
            let policy = container.field("resizePolicy");
            let text = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(policy.path, policy.value.clone(), text));
        }
    }
}

/// A container's own policy and the rules beside it (`validateContainerRestartPolicy`). A sidecar is started again after any end,
/// and may have rules all the same, since one may start all containers of its pod again.
fn restarting(container: &Place<'_>, errors: &mut Errors) {
    let rules = container.items("restartPolicyRules").count();
    match container.text("restartPolicy") {
        "" if rules > 0 => {
            let text = "must be set where there are restartPolicyRules";
            errors.push(FieldError::required(container.path_of("restartPolicy"), text));
        }
        "" => {}
        _ => container.one_of("restartPolicy", RESTARTS, errors),
    }
    if rules > MAX_RULES {
        errors.push(FieldError::too_many(container.path_of("restartPolicyRules"), rules, MAX_RULES as u64));
    }
    for rule in container.items("restartPolicyRules") {
        rule.one_of("action", RULE_ACTIONS, errors);
        let Some(codes) = rule.some("exitCodes") else {
            errors.push(FieldError::required(rule.path_of("exitCodes"), ""));
            continue;
        };
        codes.one_of("operator", &["In", "NotIn"], errors);
        let values = codes.value.get("values").and_then(Value::as_array).map_or(0, Vec::len);
        if values > MAX_EXIT_CODES {
            errors.push(FieldError::too_many(codes.path_of("values"), values, MAX_EXIT_CODES as u64));
        }
    }
}

fn forbid(place: &Place<'_>, fields: &[&str], text: &str, errors: &mut Errors) {
    for field in fields.iter().filter(|field| place.some(field).is_some()) {
        errors.push(FieldError::forbidden(place.path_of(field), text));
    }
}

/// Constraints on how pods spread.
pub(super) fn spreading(spec: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("topologySpreadConstraints[].maxSkew", Demand::AtLeast(1, NOT_POSITIVE)),
        ("topologySpreadConstraints[].topologyKey", Demand::Needed("can not be empty")),
        ("topologySpreadConstraints[].whenUnsatisfiable", Demand::Required),
        ("topologySpreadConstraints[].whenUnsatisfiable", Demand::OneOf(&["DoNotSchedule", "ScheduleAnyway"])),
        ("topologySpreadConstraints[].minDomains", Demand::AtLeast(1, NOT_POSITIVE)),
        ("topologySpreadConstraints[].nodeAffinityPolicy", Demand::OneOf(&["Honor", "Ignore"])),
        ("topologySpreadConstraints[].nodeTaintsPolicy", Demand::OneOf(&["Honor", "Ignore"])),
        ("topologySpreadConstraints[].labelSelector", Demand::Selector),
    ];
    check(spec, ROWS, errors);
    let constraints = "topologySpreadConstraints";
    unique(
        spec.items(constraints),
        |constraint| Some((constraint.text("topologyKey"), constraint.text("whenUnsatisfiable"))),
        |constraint| {
            let value = format!("{{{}, {}}}", constraint.text("topologyKey"), constraint.text("whenUnsatisfiable"));
            FieldError::duplicate(constraint.path_of("{topologyKey, whenUnsatisfiable}"), value)
        },
        errors,
    );
    for constraint in spec.items(constraints) {
        let action = constraint.text("whenUnsatisfiable");
        if constraint.some("minDomains").is_some() && action != "DoNotSchedule" {
            let text = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
            constraint.invalid("minDomains", text, errors);
        }
        affinity::label_keys(&constraint, errors);
    }
}
