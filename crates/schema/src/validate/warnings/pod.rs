//! What is said about pods and the templates that they are made from.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use carrack_types::well_known::APPARMOR_PREFIX;
use serde_json::Value;

use super::{
    Caution, FRACTIONAL, FRACTIONAL_STORAGE, GONE_IN_1_16, GONE_IN_1_22, GONE_IN_1_25, GONE_IN_1_26, GONE_IN_1_31,
    MAX_OTHERS, MAX_WARNINGS, Row, check, files, list, text,
};

const MATCHES_NONE: Caution = Caution::Missing("a null labelSelector results in matching no pod");
const SYSCTLS: &str = "non-functional in v1.11+; use the \"sysctls\" field instead";
const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const APPARMOR: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

const ROWS: &[Row] = &[
    (
        "metadata.annotations",
        Caution::Key(
            "scheduler.alpha.kubernetes.io/critical-pod",
            "non-functional in v1.16+; use the \"priorityClassName\" field instead",
        ),
    ),
    ("metadata.annotations", Caution::Key("security.alpha.kubernetes.io/sysctls", SYSCTLS)),
    ("metadata.annotations", Caution::Key("security.alpha.kubernetes.io/unsafe-sysctls", SYSCTLS)),
    ("spec.nodeSelector", Caution::NodeLabels),
    (
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[].key",
        Caution::NodeLabel,
    ),
    (
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchExpressions[].key",
        Caution::NodeLabel,
    ),
    (
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchExpressions[].values[]",
        Caution::NoLabelValue,
    ),
    ("spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector", MATCHES_NONE),
    (
        "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector",
        MATCHES_NONE,
    ),
    ("spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector", MATCHES_NONE),
    (
        "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector",
        MATCHES_NONE,
    ),
    ("spec.topologySpreadConstraints[].topologyKey", Caution::NodeLabel),
    ("spec.topologySpreadConstraints[].labelSelector", MATCHES_NONE),
    (
        "spec.terminationGracePeriodSeconds",
        Caution::Negative("must be >= 0; negative values are invalid and will be treated as 1"),
    ),
    ("spec.overhead", FRACTIONAL),
    ("spec.initContainers[].resources.limits", FRACTIONAL),
    ("spec.initContainers[].resources.requests", FRACTIONAL),
    ("spec.containers[].resources.limits", FRACTIONAL),
    ("spec.containers[].resources.requests", FRACTIONAL),
    ("spec.imagePullSecrets[].name", Caution::Missing("invalid empty name \"\"")),
    ("spec.dnsConfig.nameservers[]", Caution::Address),
    ("spec.hostAliases[].ip", Caution::Address),
    ("spec.volumes[].cephfs", GONE_IN_1_31),
    ("spec.volumes[].flocker", GONE_IN_1_25),
    ("spec.volumes[].gitRepo", Caution::Given("deprecated in v1.11, and disabled by default in v1.33+")),
    ("spec.volumes[].glusterfs", GONE_IN_1_26),
    ("spec.volumes[].photonPersistentDisk", GONE_IN_1_16),
    ("spec.volumes[].quobyte", GONE_IN_1_25),
    ("spec.volumes[].rbd", GONE_IN_1_31),
    ("spec.volumes[].scaleIO", GONE_IN_1_22),
    ("spec.volumes[].storageos", GONE_IN_1_25),
    ("spec.volumes[].ephemeral.volumeClaimTemplate.spec.resources.limits", FRACTIONAL_STORAGE),
    ("spec.volumes[].ephemeral.volumeClaimTemplate.spec.resources.requests", FRACTIONAL_STORAGE),
];

/// A container, and where it is.
#[derive(Clone, Copy)]
struct Container<'a> {
    value: &'a Value,
    list: &'static str,
    index: usize,
}

impl Container<'_> {
    fn path(&self, base: &str) -> String {
        format!("{}[{}]", within(base, &format!("spec.{}", self.list)), self.index)
    }
}

fn containers(spec: &Value) -> impl Iterator<Item = Container<'_>> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |name| {
        let all = list(spec, name).iter().enumerate();
        all.map(move |(index, value)| Container { value, list: name, index })
    })
}

/// The path of a part of what is at `base`.
fn within(base: &str, path: &str) -> String {
    if base.is_empty() { path.to_owned() } else { format!("{base}.{path}") }
}

/// What to say about a pod, or about a template that is at `base`.
pub(super) fn of(pod: &Value, base: &str, warnings: &mut Vec<String>) {
    check(pod, base, ROWS, warnings);
    let spec = &pod["spec"];
    annotations(pod, base, warnings);
    files::of_volumes(spec, warnings);
    repeated(spec, ("hostAliases", "ip"), base, warnings);
    repeated(spec, ("imagePullSecrets", "name"), base, warnings);
    for container in containers(spec) {
        variables(&container, base, warnings);
    }
    ports(spec, base, warnings);
}

/// Profiles of security that only annotations name.
fn annotations(pod: &Value, base: &str, warnings: &mut Vec<String>) {
    let (spec, annotations) = (&pod["spec"], &pod["metadata"]["annotations"]);
    if annotations.as_object().is_none_or(serde_json::Map::is_empty) {
        return;
    }
    let has = |holder: &Value, field: &str| !holder["securityContext"][field].is_null();
    let mut told = |key: String, why: &str| {
        if !annotations[&key].is_null() {
            warnings.push(format!("{}[{key}]: {why}", within(base, "metadata.annotations")));
        }
    };
    if !has(spec, "seccompProfile") {
        told("seccomp.security.alpha.kubernetes.io/pod".to_owned(), SECCOMP);
    }
    for container in containers(spec) {
        let name = text(container.value, "name");
        if !has(container.value, "seccompProfile") {
            told(format!("container.seccomp.security.alpha.kubernetes.io/{name}"), SECCOMP);
        }
        // Who makes a pod is told when its field is filled in from there.
        if !base.is_empty() && !has(container.value, "appArmorProfile") && !has(spec, "appArmorProfile") {
            told(format!("{APPARMOR_PREFIX}{name}"), APPARMOR);
        }
    }
}

/// Items of a list that are told apart by a field, and have the same there.
fn repeated(spec: &Value, (name, field): (&str, &str), base: &str, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (index, item) in list(spec, name).iter().enumerate() {
        let value = text(item, field);
        if !seen.insert(value) {
            let path = within(base, &format!("spec.{name}[{index}].{field}"));
            warnings.push(format!("{path}: duplicate {field} \"{value}\""));
        }
    }
}

/// Variables that are given once more, unless they add to what they were.
fn variables(container: &Container<'_>, base: &str, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (index, variable) in list(container.value, "env").iter().enumerate() {
        let name = text(variable, "name");
        if seen.insert(name) {
            continue;
        }
        let (value, before) = (text(variable, "value"), format!("$({name})"));
        if !variable["valueFrom"].is_null() || value == before || !value.contains(&before) {
            warnings.push(format!(
                "{}.env[{index}]: hides previous definition of \"{name}\", which may be dropped when using apply",
                container.path(base)
            ));
        }
    }
}

/// A port of a container, and where it is.
#[derive(Clone, Copy)]
struct Port<'a> {
    value: &'a Value,
    container: Container<'a>,
    index: usize,
}

impl<'a> Port<'a> {
    fn path(&self, base: &str) -> String {
        format!("{}.ports[{}]", self.container.path(base), self.index)
    }

    fn on_host(&self) -> (i64, &'a str) {
        (self.value["hostPort"].as_i64().unwrap_or(0), text(self.value, "hostIP"))
    }

    /// How it gets into the way of another with its number and protocol.
    fn conflict(&self, other: &Port<'_>) -> Option<&'static str> {
        let ((own, address), (others, other_address)) = (self.on_host(), other.on_host());
        if (own, address) == (others, other_address) {
            Some("duplicate port definition")
        } else if own == 0 || others == 0 {
            Some("overlapping port definition")
        } else if own == others && address.is_empty() != other_address.is_empty() {
            Some("dangerously ambiguous port definition")
        } else {
            None
        }
    }
}

/// Ports that are given twice, by number or by name, in any of the containers.
fn ports(spec: &Value, base: &str, warnings: &mut Vec<String>) {
    let mut numbered: BTreeMap<(Option<i64>, &str), Vec<Port<'_>>> = BTreeMap::new();
    let mut named: BTreeMap<&str, Port<'_>> = BTreeMap::new();
    for container in containers(spec) {
        for (index, value) in list(container.value, "ports").iter().enumerate() {
            if warnings.len() > MAX_WARNINGS {
                return;
            }
            let port = Port { value, container, index };
            let (on_host, address) = port.on_host();
            if on_host == 0 && !address.is_empty() {
                warnings.push(format!("{}: hostIP set without hostPort: {address}", port.path(base)));
            }
            let others = numbered.entry((value["containerPort"].as_i64(), text(value, "protocol"))).or_default();
            for other in others.iter() {
                if let Some(conflict) = port.conflict(other) {
                    warnings.push(format!("{}: {conflict} with {}", port.path(base), other.path(base)));
                }
            }
            if others.len() < MAX_OTHERS {
                others.push(port);
            }
            let name = text(value, "name");
            if name.is_empty() {
                continue;
            }
            match named.entry(name) {
                Entry::Vacant(entry) => {
                    entry.insert(port);
                }
                Entry::Occupied(entry) => {
                    let (path, taken) = (port.path(base), entry.get().path(base));
                    warnings.push(format!(
                        "{path}: duplicate port name \"{name}\" with {taken}, services and probes that select ports by name \
                         will use {taken}"
                    ));
                }
            }
        }
    }
}
