//! LimitRanger: containers that do not say what they need get the namespace's defaults, and nobody
//! asks for less or more than its limit ranges allow.
//!
//! <https://kubernetes.io/docs/concepts/policy/limit-range/>; texts as upstream `plugin/pkg/admission/limitranger`.

use std::collections::BTreeMap;

use carrack_types::pod::{self, ResourceList};
use carrack_types::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, at, child_mut, metadata_mut};
use crate::status::Status;

/// Says what was filled in.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

pub(super) struct LimitRanger;

/// Whether limit ranges apply: to new pods and claims, to claims that grow, and to pods that are resized.
fn concerns(attributes: &Attributes<'_>) -> bool {
    let (group, plural) = (&*attributes.row.group, &*attributes.row.plural);
    match (group, plural, attributes.operation, attributes.subresource) {
        ("", "pods", Operation::Create, "") => true,
        ("", "pods", Operation::Update, "resize") => true,
        ("", "persistentvolumeclaims", Operation::Create, "") => true,
        ("", "persistentvolumeclaims", Operation::Update, "") => attributes
            .old
            .is_none_or(|old| at(old, &["spec", "resources"]) != at(&attributes.object, &["spec", "resources"])),
        _ => false,
    }
}

impl AdmissionPlugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if concerns(attributes) { vec![Needed::all("", "limitranges", attributes.namespace)] } else { Vec::new() }
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if concerns(attributes) && attributes.is("", "pods") {
            for range in lookup.list("", "limitranges", attributes.namespace) {
                fill_in(&mut attributes.object, range);
            }
        }
        Ok(())
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !concerns(attributes) {
            return Ok(());
        }
        let mut faults = Vec::new();
        for range in lookup.list("", "limitranges", attributes.namespace) {
            if &*attributes.row.plural == "pods" {
                check_pod(&attributes.object, range, &mut faults);
            } else {
                check_claim(&attributes.object, range, &mut faults);
            }
        }
        match faults.as_slice() {
            [] => Ok(()),
            [one] => Err(attributes.forbidden(one)),
            many => Err(attributes.forbidden(&format!("[{}]", many.join(", ")))),
        }
    }
}

fn items(range: &Object) -> &[Value] {
    at(range, &["spec", "limits"]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn amount(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

fn amounts(value: &Value) -> BTreeMap<String, Quantity> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), amount(value)?))).collect()
}

fn fill_in(pod: &mut Object, range: &Object) {
    let (mut requests, mut limits) = (Map::new(), Map::new());
    for item in items(range).iter().filter(|item| item["type"] == "Container") {
        limits.extend(item["default"].as_object().cloned().unwrap_or_default());
        requests.extend(item["defaultRequest"].as_object().cloned().unwrap_or_default());
    }
    if requests.is_empty() && limits.is_empty() {
        return;
    }
    let mut notes = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let spec = child_mut(pod, "spec");
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let resources = child_mut(container, "resources");
            for (part, defaults, word) in [("requests", &requests, "request"), ("limits", &limits, "limit")] {
                let own = child_mut(resources, part);
                let missing: Vec<_> = defaults.iter().filter(|(name, _)| !own.contains_key(*name)).collect();
                let set: Vec<String> = missing.iter().map(|(name, _)| (*name).clone()).collect();
                own.extend(missing.into_iter().map(|(name, value)| (name.clone(), value.clone())));
                if !set.is_empty() {
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
            resources.retain(|_, list| list.as_object().is_none_or(|list| !list.is_empty()));
        }
    }
    if !notes.is_empty() {
        let annotations = child_mut(metadata_mut(pod), "annotations");
        annotations.insert(ANNOTATION.to_owned(), json!(format!("LimitRanger plugin set: {}", notes.join("; "))));
    }
}

/// What is asked for and granted at most, of one thing that a limit range is about.
struct Asked<'a> {
    kind: &'a str,
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
}

impl Asked<'_> {
    fn check(&self, item: &Value, faults: &mut Vec<String>) {
        let kind = self.kind;
        for (name, min) in amounts(&item["min"]) {
            match (self.requests.get(&name), self.limits.get(&name)) {
                (None, _) => faults.push(format!("minimum {name} usage per {kind} is {min}.  No request is specified")),
                (Some(asked), _) if *asked < min => {
                    faults.push(format!("minimum {name} usage per {kind} is {min}, but request is {asked}"));
                }
                (_, Some(limit)) if *limit < min => {
                    faults.push(format!("minimum {name} usage per {kind} is {min}, but limit is {limit}"));
                }
                _ => {}
            }
        }
        for (name, max) in amounts(&item["max"]) {
            // A claim has no limit: what it asks for is what it gets.
            if kind == "PersistentVolumeClaim" {
                match self.requests.get(&name) {
                    None => faults.push(format!("maximum {name} usage per {kind} is {max}.  No request is specified")),
                    Some(asked) if *asked > max => {
                        faults.push(format!("maximum {name} usage per {kind} is {max}, but request is {asked}"));
                    }
                    Some(_) => {}
                }
                continue;
            }
            match (self.limits.get(&name), self.requests.get(&name)) {
                (None, _) => faults.push(format!("maximum {name} usage per {kind} is {max}.  No limit is specified")),
                (Some(limit), _) if *limit > max => {
                    faults.push(format!("maximum {name} usage per {kind} is {max}, but limit is {limit}"));
                }
                (_, Some(asked)) if *asked > max => {
                    faults.push(format!("maximum {name} usage per {kind} is {max}, but request is {asked}"));
                }
                _ => {}
            }
        }
        for (name, most) in amounts(&item["maxLimitRequestRatio"]) {
            let (request, limit) = (self.requests.get(&name), self.limits.get(&name));
            let text = format!("{name} max limit to request ratio per {kind} is {most}, but");
            match (request.filter(|r| !r.is_zero()), limit.filter(|l| !l.is_zero())) {
                (None, None) => faults.push(format!(
                    "{text} no request is specified or request is 0, and no limit is specified or limit is 0"
                )),
                (None, Some(_)) => faults.push(format!("{text} no request is specified or request is 0")),
                (Some(_), None) => faults.push(format!("{text} no limit is specified or limit is 0")),
                (Some(request), Some(limit)) => {
                    // In billionths: limit / request > most, without losing digits.
                    let over =
                        limit.nanos().saturating_mul(1_000_000_000) > most.nanos().saturating_mul(request.nanos());
                    if over {
                        faults.push(format!("{text} provided ratio is {}", ratio(*limit, *request)));
                    }
                }
            }
        }
    }
}

/// With six places, as upstream prints it.
fn ratio(limit: Quantity, request: Quantity) -> String {
    let millionths = limit.nanos().saturating_mul(1_000_000) / request.nanos().max(1);
    format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000)
}

fn check_pod(pod: &Object, range: &Object, faults: &mut Vec<String>) {
    for item in items(range) {
        match item["type"].as_str().unwrap_or_default() {
            kind @ "Container" => {
                for list in ["containers", "initContainers"] {
                    for container in at(pod, &["spec", list]).and_then(Value::as_array).into_iter().flatten() {
                        let resources = &container["resources"];
                        let asked = Asked {
                            kind,
                            requests: amounts(&resources["requests"]),
                            limits: amounts(&resources["limits"]),
                        };
                        asked.check(item, faults);
                    }
                }
            }
            kind @ "Pod" => {
                let (requests, limits) = totals(pod);
                Asked { kind, requests, limits }.check(item, faults);
            }
            _ => {}
        }
    }
}

fn totals(pod: &Object) -> (ResourceList, ResourceList) {
    match carrack_types::json::from_value::<k8s_openapi::api::core::v1::Pod>(Value::Object(pod.clone())) {
        Ok(typed) => (pod::requests(&typed), pod::limits(&typed)),
        // The schema has been checked; what is no pod asks for nothing.
        Err(_) => Default::default(),
    }
}

fn check_claim(claim: &Object, range: &Object, faults: &mut Vec<String>) {
    let requests = at(claim, &["spec", "resources", "requests"]).map(amounts).unwrap_or_default();
    let asked = Asked { kind: "PersistentVolumeClaim", requests, limits: BTreeMap::new() };
    for item in items(range).iter().filter(|item| item["type"] == "PersistentVolumeClaim") {
        asked.check(item, faults);
    }
}
