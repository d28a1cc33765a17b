//! What an object counts for in a quota.
//!
//! <https://kubernetes.io/docs/concepts/policy/resource-quotas/>; upstream `pkg/quota/v1/evaluator/core`.

use std::collections::BTreeMap;

use carrack_types::held::{self, says_infeasible};
use carrack_types::pod::{self, ResourceList};
use carrack_types::quantity::{Form, Quantity};
use carrack_types::well_known::storage::CLASS_ANNOTATION;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::object::{Object, at, meta, str_at};

/// Resources that are counted under their plain name too, not only as `count/…`.
const PLAIN: [&str; 6] =
    ["configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"];
/// What stands between a storage class and a resource in the name of a quota for that class.
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

/// The same of a class of devices.
const OF_DEVICES: &str = ".deviceclass.resource.k8s.io/devices";

/// The name under which objects of any resource are counted.
fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") }
}

/// The resource whose objects a name in `spec.hard` counts; none for a name that nothing is charged to.
pub(super) fn counted(name: &str) -> Option<(String, String)> {
    let core = |plural: &str| Some((String::new(), plural.to_owned()));
    if let Some(counted) = name.strip_prefix("count/") {
        return match counted.split_once('.') {
            Some((plural, group)) => Some((group.to_owned(), plural.to_owned())),
            None => core(counted),
        };
    }
    if name.ends_with(OF_DEVICES) {
        return Some(("resource.k8s.io".to_owned(), "resourceclaims".to_owned()));
    }
    if name.contains(OF_CLASS) || name == "requests.storage" {
        return core("persistentvolumeclaims");
    }
    if name.starts_with("services.") {
        return core("services");
    }
    if PLAIN.contains(&name) {
        return core(name);
    }
    let computed = matches!(name, "pods" | "cpu" | "memory" | "ephemeral-storage")
        || name.starts_with("hugepages-")
        || name.starts_with("requests.")
        || name.starts_with("limits.");
    if computed { core("pods") } else { None }
}

fn one() -> Quantity {
    Quantity::from_units(1, Form::DecimalSi)
}

fn amount(value: Option<&Value>) -> Quantity {
    match value {
        Some(Value::String(text)) => Quantity::parse(text).unwrap_or_default(),
        Some(Value::Number(number)) => Quantity::parse(&number.to_string()).unwrap_or_default(),
        _ => Quantity::ZERO,
    }
}

/// A list of amounts, such as `spec.hard`.
pub(super) fn amounts(value: Option<&Value>) -> ResourceList {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), amount(Some(value)))).collect()
}

/// What an object counts for; `now_unix_s` tells whether a pod is overdue to be gone.
pub(super) fn of(group: &str, plural: &str, object: &Object, now_unix_s: i64) -> ResourceList {
    let mut used = ResourceList::from([(count_name(group, plural), one())]);
    if (group, plural) == ("resource.k8s.io", "resourceclaims") {
        used.extend(of_devices(object));
    }
    if !group.is_empty() {
        return used;
    }
    if PLAIN.contains(&plural) {
        used.insert(plural.to_owned(), one());
    }
    match plural {
        "pods" if !has_ended(object, now_unix_s) => used.extend(of_pod(object)),
        "services" => {
            let kind = str_at(object, &["spec", "type"]);
            let ports = at(object, &["spec", "ports"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let allocates = at(object, &["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
            let node_ports = match kind {
                "NodePort" => ports.len(),
                "LoadBalancer" if allocates => ports.len(),
                "LoadBalancer" => ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count(),
                _ => 0,
            };
            let count = |n: usize| Quantity::from_units(i64::try_from(n).unwrap_or(i64::MAX), Form::DecimalSi);
            used.insert("services.nodeports".to_owned(), count(node_ports));
            used.insert("services.loadbalancers".to_owned(), count(usize::from(kind == "LoadBalancer")));
        }
        "persistentvolumeclaims" => {
            let asked = amount(at(object, &["spec", "resources", "requests", "storage"]));
            let given = amount(at(object, &["status", "allocatedResources", "storage"]));
            // Whole bytes are counted.
            let storage = match asked.max(given) {
                part if part.is_whole() => part,
                part => Quantity::from_units(part.units(), part.form()),
            };
            used.insert("requests.storage".to_owned(), storage);
            let class = storage_class(object);
            if !class.is_empty() {
                used.insert(format!("{class}{OF_CLASS}persistentvolumeclaims"), one());
                used.insert(format!("{class}{OF_CLASS}requests.storage"), storage);
            }
        }
        _ => {}
    }
    used
}

fn storage_class(claim: &Object) -> &str {
    match meta(claim, "annotations").and_then(|a| a.get(CLASS_ANNOTATION)) {
        Some(class) => class.as_str().unwrap_or_default(),
        None => str_at(claim, &["spec", "storageClassName"]),
    }
}

/// Whether a pod takes nothing any more: it has ended, or should long be gone and cannot be reached.
fn has_ended(pod: &Object, now_unix_s: i64) -> bool {
    if matches!(str_at(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        return true;
    }
    let deletion = crate::object::meta_str(pod, "deletionTimestamp").parse::<jiff::Timestamp>();
    let grace_s = meta(pod, "deletionGracePeriodSeconds").and_then(Value::as_i64);
    matches!((deletion, grace_s), (Ok(at), Some(grace_s)) if now_unix_s > at.as_second().saturating_add(grace_s))
}

/// Counts what a container is bounded to for what it is to be, where that is more: one that is resized keeps what it had until its
/// node has done it, and one that its node cannot resize keeps just that (k8s.io/component-helpers/resource
/// `determineContainerLimits`).
fn as_held(pod: &mut Pod) {
    let (Some(spec), Some(status)) = (&mut pod.spec, &pod.status) else { return };
    let stays = status.conditions.iter().flatten().any(|c| says_infeasible(&c.type_, c.reason.as_deref()));
    let statuses = || status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let Some(told) = statuses().find(|told| told.name == container.name) else { continue };
        let Some(has) = &told.resources else { continue };
        let asked = container.resources.get_or_insert_default();
        let limits = asked.limits.take().filter(|_| !stays);
        let mut most = pod::resource_list(limits.as_ref());
        pod::raise(&mut most, &pod::resource_list(has.limits.as_ref()));
        asked.limits = Some(most.into_iter().map(|(name, amount)| (name, amount.into())).collect());
    }
}

/// How many devices of each class a claim may be given (upstream's `claimEvaluator`, resource_claims.go).
fn of_devices(claim: &Object) -> ResourceList {
    /// The most devices that a claim is ever given.
    const MOST: i64 = 32;
    let asked = |request: &Value| {
        let class = request["deviceClassName"].as_str().unwrap_or_default();
        let count = match request["allocationMode"].as_str() {
            Some("All") => MOST,
            _ => request["count"].as_i64().unwrap_or(1),
        };
        (class.to_owned(), count)
    };
    let mut all: BTreeMap<String, i64> = BTreeMap::new();
    for request in at(claim, &["spec", "devices", "requests"]).and_then(Value::as_array).into_iter().flatten() {
        // Of alternatives it gets one: at most the largest of a class.
        let mut of_request: BTreeMap<String, i64> = BTreeMap::new();
        let others = request["firstAvailable"].as_array().into_iter().flatten();
        for (class, count) in request.get("exactly").into_iter().chain(others).map(asked) {
            let most = of_request.entry(class).or_default();
            *most = count.max(*most);
        }
        for (class, count) in of_request {
            let sum = all.entry(class).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    let named = all.into_iter().filter(|(class, _)| !class.is_empty());
    named.map(|(class, count)| (format!("{class}{OF_DEVICES}"), Quantity::from_units(count, Form::DecimalSi))).collect()
}

fn of_pod(pod: &Object) -> ResourceList {
    let mut used = ResourceList::from([("pods".to_owned(), one())]);
    let Ok(mut typed) = carrack_types::json::from_value::<Pod>(Value::Object(pod.clone())) else {
        return used;
    };
    for (name, quantity) in held::requests(&typed) {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if plain {
            used.insert(name.clone(), quantity);
        }
        // Of other resources only those with a domain are counted, as upstream.
        if plain || name.contains('/') {
            used.insert(format!("requests.{name}"), quantity);
        }
    }
    as_held(&mut typed);
    let overhead = typed.spec.as_ref().map(|spec| pod::resource_list(spec.overhead.as_ref())).unwrap_or_default();
    for (name, quantity) in pod::limits(&typed) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            // What is limited is limited with what its sandbox takes.
            let beside = overhead.get(&name).copied().unwrap_or_default();
            used.insert(format!("limits.{name}"), quantity + beside);
        }
    }
    used
}

/// What a quota demands of each container: who has cpu or memory counted has to say how much.
/// `hard` are the names in the quota. None when all is said.
pub(super) fn unsaid<'a>(hard: impl Iterator<Item = &'a String>, pod: &Object) -> Option<String> {
    let containers: Vec<&Value> = ["containers", "initContainers"]
        .into_iter()
        .filter_map(|list| at(pod, &["spec", list]).and_then(Value::as_array))
        .flatten()
        .collect();
    let mut missing = Vec::new();
    for name in hard {
        let (list, resource) = match name.as_str() {
            "cpu" | "memory" => ("requests", name.as_str()),
            "requests.cpu" | "limits.cpu" | "requests.memory" | "limits.memory" => {
                name.split_once('.').unwrap_or_default()
            }
            _ => continue,
        };
        if at(pod, &["spec", "resources", list, resource]).is_some() {
            continue;
        }
        let mut without: Vec<&str> = containers
            .iter()
            .filter(|container| container["resources"][list].get(resource).is_none())
            .filter_map(|container| container["name"].as_str())
            .collect();
        without.sort_unstable();
        if !without.is_empty() {
            missing.push(format!("{name} for: {}", without.join(",")));
        }
    }
    (!missing.is_empty()).then(|| format!("must specify {}", missing.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(group: &str, plural: &str, object: Value) -> String {
        let object = object.as_object().cloned().unwrap_or_default();
        let used = of(group, plural, &object, 1_000);
        used.iter().map(|(name, quantity)| format!("{name}={quantity}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn objects_count() {
        let container = json!({"name": "c", "resources": {
            "requests": {"cpu": "100m", "example.com/gpu": "1"}, "limits": {"memory": "1Gi"}}});
        for (group, plural, object, want) in [
            ("apps", "deployments", json!({}), "count/deployments.apps=1"),
            ("", "secrets", json!({}), "count/secrets=1 secrets=1"),
            (
                "",
                "pods",
                json!({"spec": {"containers": [container]}}),
                "count/pods=1 cpu=100m limits.memory=1Gi memory=1Gi pods=1 requests.cpu=100m requests.example.com/gpu=1 requests.memory=1Gi",
            ),
            ("", "pods", json!({"spec": {"containers": []}, "status": {"phase": "Failed"}}), "count/pods=1"),
            (
                "",
                "pods",
                json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}}),
                "count/pods=1",
            ),
            (
                "",
                "services",
                json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}}),
                "count/services=1 services=1 services.loadbalancers=1 services.nodeports=2",
            ),
            (
                "",
                "persistentvolumeclaims",
                json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "2Gi"}}}}),
                "count/persistentvolumeclaims=1 fast.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
                 fast.storageclass.storage.k8s.io/requests.storage=2Gi persistentvolumeclaims=1 requests.storage=2Gi",
            ),
            (
                "",
                "persistentvolumeclaims",
                json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}}),
                "count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=2",
            ),
            (
                "resource.k8s.io",
                "resourceclaims",
                json!({"spec": {"devices": {"requests": [
                    {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
                    {"name": "b", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}},
                    {"name": "c", "firstAvailable": [{"name": "x", "deviceClassName": "gpu", "count": 4},
                        {"name": "y", "deviceClassName": "gpu"}, {"name": "z", "deviceClassName": "nic"}]}]}}}),
                "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=6 \
                 nic.deviceclass.resource.k8s.io/devices=33",
            ),
        ] {
            assert_eq!(shown(group, plural, object), want);
        }
    }

    /// A container that is resized counts for the more of what it has and what it asks for.
    #[test]
    fn what_is_resized_counts_as_long_as_it_is_held() {
        let check = |asked: &str, granted: &str, has: &str, refused: bool, want: &str| {
            let condition = json!([{"type": "PodResizePending", "status": "True", "reason": if refused { "Infeasible" } else { "Deferred" }}]);
            let pod = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": asked}, "limits": {"cpu": "9"}}}]},
                "status": {"conditions": condition, "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                    "restartCount": 0, "allocatedResources": {"cpu": granted}, "resources": {"requests": {"cpu": has}, "limits": {"cpu": "8"}}}]}});
            let limit = if refused { 8 } else { 9 };
            let want = format!("count/pods=1 cpu={want} limits.cpu={limit} pods=1 requests.cpu={want}");
            assert_eq!(shown("", "pods", pod), want);
        };
        check("1", "1", "1", false, "1");
        check("2", "1", "1", false, "2");
        check("1", "2", "2", false, "2");
        check("1", "1", "2", false, "2");
        check("1", "2", "1", false, "2");
        check("7", "2", "1", true, "2");

        // So does a pod as a whole. What it runs with has its overhead in it.
        let whole = json!({"spec": {"containers": [{"name": "c"}], "overhead": {"cpu": "1"},
                "resources": {"requests": {"cpu": "2"}}},
            "status": {"allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "5"}}}});
        assert_eq!(shown("", "pods", whole), "count/pods=1 cpu=5 pods=1 requests.cpu=5");
    }

    #[test]
    fn names_tell_what_they_count() {
        for (name, want) in [
            ("pods", Some(("", "pods"))),
            ("limits.cpu", Some(("", "pods"))),
            ("requests.example.com/gpu", Some(("", "pods"))),
            ("requests.storage", Some(("", "persistentvolumeclaims"))),
            ("x.storageclass.storage.k8s.io/requests.storage", Some(("", "persistentvolumeclaims"))),
            ("services.nodeports", Some(("", "services"))),
            ("count/deployments.apps", Some(("apps", "deployments"))),
            ("count/widgets.example.com", Some(("example.com", "widgets"))),
            ("count/pods", Some(("", "pods"))),
            ("gpu.deviceclass.resource.k8s.io/devices", Some(("resource.k8s.io", "resourceclaims"))),
            ("nothing", None),
        ] {
            let want = want.map(|(group, plural)| (group.to_owned(), plural.to_owned()));
            assert_eq!(counted(name), want, "{name}");
        }
    }
}
