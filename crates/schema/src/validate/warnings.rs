//! Warnings: what a client is told about an object that is taken as it is. Fields that do nothing any more, values that hide one
//! another, forms that mean different things to different readers.
//!
//! Rows say where and what, as demands do ([`super::demand`]); what compares several places is a function. The texts are
//! upstream's, since people search for them. No text is made unless there is something to say.

mod addresses;
mod files;
mod pod;

use std::collections::BTreeSet;

use carrack_types::well_known::storage::CLASS_ANNOTATION;
use serde_json::{Map, Value};

use super::alike::same;
use super::demand::{Trail, quantity, walk};
use super::{formats, names};
use crate::table::ResourceInfo;

/// More than these are told to nobody: a request has room for a hundred thousand of what one is about, its answer for few.
const MAX_WARNINGS: usize = 1000;
/// Against how many others each of many is held, so that the work does not grow with their square.
const MAX_OTHERS: usize = 256;

/// What a warning is about.
#[derive(Clone, Copy)]
enum Caution {
    /// Anything that is there.
    Given(&'static str),
    /// That there is nothing, or an empty text.
    Missing(&'static str),
    /// A key of a map, and why.
    Key(&'static str, &'static str),
    /// A text that is this one, and why.
    Is(&'static str, &'static str),
    /// A number that is less than nothing.
    Negative(&'static str),
    /// A label of nodes that has another name by now.
    NodeLabel,
    /// The same, as keys of a map.
    NodeLabels,
    /// A value that no label has.
    NoLabelValue,
    /// Amounts of these resources that are no whole bytes.
    PartsOfBytes(&'static [&'static str]),
    /// An IP address in an unusual form.
    Address,
    /// A CIDR in an unusual form.
    Range,
}

/// A path and what to be wary of there.
type Row = (&'static str, Caution);

const FRACTIONAL: Caution = Caution::PartsOfBytes(&["memory", "ephemeral-storage"]);
const FRACTIONAL_STORAGE: Caution = Caution::PartsOfBytes(&["storage"]);
const STORAGE_CLASS: Caution =
    Caution::Key(CLASS_ANNOTATION, "deprecated since v1.8; use \"storageClassName\" attribute instead");
const GONE_IN_1_16: Caution = Caution::Given("deprecated in v1.11, non-functional in v1.16+");
const GONE_IN_1_22: Caution = Caution::Given("deprecated in v1.16, non-functional in v1.22+");
const GONE_IN_1_25: Caution = Caution::Given("deprecated in v1.22, non-functional in v1.25+");
const GONE_IN_1_26: Caution = Caution::Given("deprecated in v1.25, non-functional in v1.26+");
const GONE_IN_1_31: Caution = Caution::Given("deprecated in v1.28, non-functional in v1.31+");

/// Group, kind, and rows for new and changed objects.
const TABLE: &[(&str, &str, &[Row])] = &[
    (
        "",
        "Endpoints",
        &[("subsets[].addresses[].ip", Caution::Address), ("subsets[].notReadyAddresses[].ip", Caution::Address)],
    ),
    (
        "",
        "Node",
        &[
            ("spec.configSource", Caution::Given("the feature is removed")),
            ("spec.externalID", Caution::Given("this field is deprecated, and is unused by Kubernetes")),
        ],
    ),
    (
        "",
        "PersistentVolume",
        &[
            ("metadata.annotations", STORAGE_CLASS),
            (
                "spec.persistentVolumeReclaimPolicy",
                Caution::Is(
                    "Recycle",
                    "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                ),
            ),
            ("spec.nodeAffinity.required.nodeSelectorTerms[].matchExpressions[].key", Caution::NodeLabel),
            ("spec.cephfs", GONE_IN_1_31),
            ("spec.glusterfs", GONE_IN_1_26),
            ("spec.photonPersistentDisk", GONE_IN_1_16),
            ("spec.rbd", GONE_IN_1_31),
            ("spec.scaleIO", GONE_IN_1_22),
            ("spec.storageos", GONE_IN_1_25),
        ],
    ),
    (
        "",
        "PersistentVolumeClaim",
        &[
            ("metadata.annotations", STORAGE_CLASS),
            ("spec.resources.requests", FRACTIONAL_STORAGE),
            ("spec.resources.limits", FRACTIONAL_STORAGE),
        ],
    ),
    (
        "",
        "Service",
        &[
            ("spec.clusterIPs[]", Caution::Address),
            ("spec.externalIPs[]", Caution::Address),
            ("spec.loadBalancerIP", Caution::Address),
            ("spec.loadBalancerSourceRanges[]", Caution::Range),
            (
                "spec.trafficDistribution",
                Caution::Is("PreferClose", "\"PreferClose\" is deprecated; use \"PreferSameZone\""),
            ),
        ],
    ),
    (
        "apps",
        "StatefulSet",
        &[
            (
                "spec.revisionHistoryLimit",
                Caution::Negative("a negative value retains all historical revisions; a value >= 0 is recommended"),
            ),
            ("spec.volumeClaimTemplates[].spec.resources.requests", FRACTIONAL_STORAGE),
            ("spec.volumeClaimTemplates[].spec.resources.limits", FRACTIONAL_STORAGE),
        ],
    ),
    ("discovery.k8s.io", "EndpointSlice", &[("endpoints[].addresses[]", Caution::Address)]),
    (
        "networking.k8s.io",
        "NetworkPolicy",
        &[
            ("spec.ingress[].from[].ipBlock.cidr", Caution::Range),
            ("spec.ingress[].from[].ipBlock.except[]", Caution::Range),
            ("spec.egress[].to[].ipBlock.cidr", Caution::Range),
            ("spec.egress[].to[].ipBlock.except[]", Caution::Range),
        ],
    ),
    ("node.k8s.io", "RuntimeClass", &[("scheduling.nodeSelector", Caution::NodeLabels)]),
    (
        "storage.k8s.io",
        "CSIStorageCapacity",
        &[
            ("nodeTopology.matchExpressions[].key", Caution::NodeLabel),
            ("nodeTopology.matchLabels", Caution::NodeLabels),
        ],
    ),
    ("storage.k8s.io", "StorageClass", &[("allowedTopologies[].matchLabelExpressions[].key", Caution::NodeLabel)]),
];

/// Group, kind, the field that says what it makes, and the path of the template that pods are made from.
const TEMPLATES: &[(&str, &str, &str, &str)] = &[
    ("", "PodTemplate", "template", "template"),
    ("", "ReplicationController", "spec", "spec.template"),
    ("apps", "DaemonSet", "spec", "spec.template"),
    ("apps", "Deployment", "spec", "spec.template"),
    ("apps", "ReplicaSet", "spec", "spec.template"),
    ("apps", "StatefulSet", "spec", "spec.template"),
    ("batch", "CronJob", "spec", "spec.jobTemplate.spec.template"),
    ("batch", "Job", "spec", "spec.template"),
];

/// What is to be said about a new object, or one that is changed from the `old` one. It is complete, and good.
#[must_use]
pub fn warnings(info: &ResourceInfo, object: &Value, old: Option<&Map<String, Value>>) -> Vec<String> {
    let mut warnings = Vec::new();
    let is = |group: &str, kind: &str| info.group == group && info.kind == kind;
    if let Some((.., rows)) = TABLE.iter().find(|(group, kind, _)| is(group, kind)) {
        check(object, "", rows, &mut warnings);
    }
    if let Some((.., field, path)) = TEMPLATES.iter().find(|(group, kind, ..)| is(group, kind)) {
        // Who changes a label, or writes back what he read, is not told what was said before.
        if old.is_none_or(|old| !same(field, old.get(*field).unwrap_or(&Value::Null), &object[*field])) {
            made(object, path, &mut warnings);
        }
    }
    match (info.group.as_ref(), info.kind.as_ref(), old.is_none()) {
        // Changes of pods are many, and made by programs.
        ("", "Pod", true) => {
            host_name(object, "the Pod's hostname", &mut warnings);
            pod::of(object, "", &mut warnings);
        }
        ("", "ReplicationController", true)
        | ("apps", "Deployment" | "ReplicaSet", true)
        | ("batch", "CronJob" | "Job", true) => host_name(object, "Pod names and hostnames", &mut warnings),
        ("", "Service", _) => service(object, &mut warnings),
        ("discovery.k8s.io", "EndpointSlice", true) if object["addressType"] == "FQDN" => {
            warnings.push("addressType: FQDN endpoints are deprecated".to_owned());
        }
        ("networking.k8s.io", "Ingress", true) => ingress(object, &mut warnings),
        ("apiextensions.k8s.io", "CustomResourceDefinition", _) => {
            let before = old.and_then(|old| old.get("spec")).map(unknown_formats).unwrap_or_default();
            let now = unknown_formats(&object["spec"]);
            warnings.extend(now.difference(&before).map(|format| format!("unrecognized format {format:?}")));
        }
        _ => {}
    }
    warnings.truncate(MAX_WARNINGS);
    warnings
}

/// Holds an object against rows. `base` is where it is in another.
fn check(object: &Value, base: &str, rows: &[Row], warnings: &mut Vec<String>) {
    for (path, caution) in rows {
        walk(object, base, path, &mut |found, trail| warn(found, trail, *caution, warnings));
    }
}

fn warn(found: Option<&Value>, trail: &Trail<'_>, caution: Caution, warnings: &mut Vec<String>) {
    let Some(value) = found.filter(|value| value.as_str() != Some("")) else {
        if let Caution::Missing(why) = caution {
            warnings.push(format!("{}: {why}", trail.text()));
        }
        return;
    };
    let text = value.as_str().unwrap_or_default();
    let why = match caution {
        Caution::Missing(_) => None,
        Caution::Given(why) => Some(why.to_owned()),
        Caution::Is(wanted, why) => (text == wanted).then(|| why.to_owned()),
        Caution::Negative(why) => value.as_i64().filter(|number| *number < 0).map(|_| why.to_owned()),
        Caution::NodeLabel => renamed(text).map(|why| format!("{text} is {why}")),
        Caution::NoLabelValue => names::label_value(text).map(|problem| format!("{text} is invalid, {problem}")),
        Caution::Address => addresses::address(text),
        Caution::Range => {
            warnings.extend(addresses::range(text).into_iter().map(|why| format!("{}: {why}", trail.text())));
            None
        }
        Caution::Key(key, why) => {
            if value.get(key).is_some() {
                warnings.push(format!("{}[{key}]: {why}", trail.text()));
            }
            None
        }
        Caution::NodeLabels => {
            let labels = value.as_object().into_iter().flat_map(Map::keys);
            let known = labels.filter_map(|label| Some((label, renamed(label)?)));
            warnings.extend(known.map(|(label, why)| format!("{}[{label}]: {why}", trail.text())));
            None
        }
        Caution::PartsOfBytes(resources) => {
            let amounts = resources.iter().filter_map(|name| Some((name, value.get(name).and_then(quantity)?)));
            warnings.extend(amounts.filter(|(_, amount)| !amount.is_whole()).map(|(name, amount)| {
                let path = trail.text();
                format!("{path}[{name}]: fractional byte value \"{amount}\" is invalid, must be an integer")
            }));
            None
        }
    };
    warnings.extend(why.map(|why| format!("{}: {why}", trail.text())));
}

/// What to use in place of a label of nodes.
fn renamed(label: &str) -> Option<&'static str> {
    Some(match label {
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => "deprecated since v1.22; use Taints and Tolerations instead",
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => return None,
    })
}

/// What pods are made from, and what a Job makes of it.
fn made(object: &Value, path: &str, warnings: &mut Vec<String>) {
    /// Beyond both, what is noted of indexes that are done may not fit into the Job's status.
    const MANY_COMPLETIONS: i64 = 100_000;
    const MANY_AT_A_TIME: i64 = 10_000;
    let at = |path: &str| path.split('.').fold(object, |value, step| &value[step]);
    if let Some(base) = path.strip_suffix(".template") {
        let spec = at(base);
        let number = |field: &str| spec[field].as_i64().unwrap_or(0);
        let is_large = number("completions") > MANY_COMPLETIONS && number("parallelism") > MANY_AT_A_TIME;
        if spec["completionMode"] == "Indexed" && is_large {
            warnings.push(format!(
                "{base}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
                 Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
            ));
        }
    }
    pod::of(at(path), path, warnings);
}

/// A name from which those of hosts are made.
fn host_name(object: &Value, of_what: &str, warnings: &mut Vec<String>) {
    if let Some(problem) = names::dns1123_label(text(&object["metadata"], "name")) {
        warnings.push(format!(
            "metadata.name: this is used in {of_what}, which can result in surprising behavior; a DNS label is recommended: \
             [{problem}]"
        ));
    }
}

/// What has no effect in a service of its type.
fn service(object: &Value, warnings: &mut Vec<String>) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let spec = &object["spec"];
    let (is_external, has_addresses) = (spec["type"] == "ExternalName", !list(spec, "externalIPs").is_empty());
    let is_headless = spec["type"] == "ClusterIP" && spec["clusterIP"] == "None";
    let mut told = |is_so: bool, text: &str| {
        if is_so {
            warnings.push(text.to_owned());
        }
    };
    told(
        !object["metadata"]["annotations"][HINTS].is_null(),
        "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
    );
    if is_headless {
        told(!text(spec, "loadBalancerIP").is_empty(), "spec.loadBalancerIP is ignored for headless services");
        told(has_addresses, "spec.externalIPs is ignored for headless services");
        told(spec["sessionAffinity"] != "None", "spec.SessionAffinity is ignored for headless services");
    }
    told(
        has_addresses && !is_headless && !is_external,
        "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
    );
    told(has_addresses && is_external, "spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    told(
        !is_external && !text(spec, "externalName").is_empty(),
        "spec.externalName is ignored when spec.type is not \"ExternalName\"",
    );
}

fn ingress(object: &Value, warnings: &mut Vec<String>) {
    const CLASS: &str = "kubernetes.io/ingress.class";
    if !object["metadata"]["annotations"][CLASS].is_null() && object["spec"]["ingressClassName"].is_null() {
        warnings.push(format!("annotation \"{CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"));
    }
}

/// The formats in the schemas of a definition that no value is held against.
fn unknown_formats(spec: &Value) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for version in list(spec, "versions") {
        formats_in(&version["schema"]["openAPIV3Schema"], &mut found);
    }
    found
}

fn formats_in<'a>(schema: &'a Value, found: &mut BTreeSet<&'a str>) {
    let format = text(schema, "format");
    if !format.is_empty() && !formats::is_known(text(schema, "type"), format) {
        found.insert(format);
    }
    let single = ["additionalProperties", "items", "not"].map(|field| &schema[field]);
    let many = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|field| list(schema, field));
    let properties = schema["properties"].as_object().into_iter().flat_map(Map::values);
    for part in single.into_iter().filter(|part| part.is_object()).chain(many).chain(properties) {
        formats_in(part, found);
    }
}

/// A text; empty where there is none.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The items of a list; none where there is no list.
fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[][..], Vec::as_slice)
}
