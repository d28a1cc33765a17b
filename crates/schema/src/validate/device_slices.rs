//! What drivers tell of the devices that they have.
//!
//! Upstream: `k8s.io/kubernetes/pkg/apis/resource/validation`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{NOT_POSITIVE, check};
use super::devices::{self, MAX_ATTRIBUTES, duplicates, items, name_of, needs};
use super::{affinity, names};
use crate::error::FieldError;

/// Most devices of a slice, and most of them when they are tainted or count on others.
const MAX_DEVICES: u64 = 128;
const MAX_LONG_DEVICES: u64 = 64;
/// Most sets of counters of a slice, and of those that a device draws on.
const MAX_COUNTER_SETS: u64 = 8;
const MAX_CONSUMED_SETS: u64 = 2;
/// Most counters of a set.
const MAX_COUNTERS: usize = 32;
/// Longest value of an attribute.
const MAX_VALUE_BYTES: usize = 64;
const MAX_TAINTS: u64 = 16;
const MAX_CONDITIONS: u64 = 4;

/// The ways to say where a slice's devices are, and where one device is.
const PLACES: [&str; 4] = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
const PLACES_OF_ONE: [&str; 3] = ["nodeName", "nodeSelector", "allNodes"];
/// The types of an attribute's value.
const TYPES: [&str; 8] = ["bool", "bools", "int", "ints", "string", "strings", "version", "versions"];

const ONE_PLACE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

pub(super) fn slice(spec: &Place<'_>, errors: &mut Errors) {
    needs(spec, "driver", names::csi_driver, errors);
    let pool = spec.field("pool");
    needs(&pool, "name", devices::pool_name, errors);
    let count = pool.number("resourceSliceCount").unwrap_or(0);
    if count <= 0 {
        errors.push(FieldError::invalid(pool.path_of("resourceSliceCount"), count, NOT_POSITIVE));
    }
    if pool.number("generation").is_some_and(|generation| generation < 0) {
        pool.invalid("generation", "must be greater than or equal to zero", errors);
    }
    match said(spec, &PLACES, errors).as_slice() {
        [] => errors.push(FieldError::required(spec.path.clone(), ONE_PLACE)),
        [_] => {}
        several => {
            let shown = format!("{{{}}}", several.join(", "));
            let text = format!("{ONE_PLACE}, but multiple fields are set");
            errors.push(FieldError::invalid(spec.path.clone(), shown, text));
        }
    }
    let terms = spec.at(&["nodeSelector", "nodeSelectorTerms"]);
    if terms.value.as_array().is_some_and(|terms| terms.len() > 1) {
        let text = "must have exactly one node selector term";
        errors.push(FieldError::invalid(terms.path, terms.value.clone(), text));
    }
    if has_some(spec, "sharedCounters") && has_some(spec, "devices") {
        let text = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(FieldError::invalid(spec.path.clone(), "", text));
    }
    let is_long = spec.items("devices").any(|one| has_some(&one, "taints") || has_some(&one, "consumesCounters"));
    let all = items(spec, "devices", if is_long { MAX_LONG_DEVICES } else { MAX_DEVICES }, errors);
    for one in &all {
        device(one, spec.flag("perDeviceNodeSelection"), errors);
    }
    duplicates(&all, name_of, errors);
    let sets = items(spec, "sharedCounters", MAX_COUNTER_SETS, errors);
    for set in &sets {
        needs(set, "name", names::dns1123_label, errors);
        counters(set, errors);
    }
    duplicates(&sets, name_of, errors);
}

fn has_some(place: &Place<'_>, list: &str) -> bool {
    place.items(list).next().is_some()
}

/// In which of the ways something is said; a flag that says no says nothing.
fn said(place: &Place<'_>, ways: &[&str], errors: &mut Errors) -> Vec<String> {
    let mut said = Vec::new();
    for way in ways.iter().filter(|way| place.some(way).is_some()) {
        match *way {
            "nodeName" if place.text(way).is_empty() => {
                place.invalid(way, "must be either unset or set to a non-empty string", errors);
                continue;
            }
            "nodeName" => place.has_form(way, names::dns1123_subdomain, errors),
            "nodeSelector" => affinity::node_selector(&place.field(way), errors),
            _ if !place.flag(way) => {
                place.invalid(way, "must be either unset or set to true", errors);
                continue;
            }
            _ => {}
        }
        said.push(format!("`{way}`"));
    }
    said
}

fn device(device: &Place<'_>, says_where: bool, errors: &mut Errors) {
    needs(device, "name", names::dns1123_label, errors);
    let count = device.entries("attributes").count() + device.entries("capacity").count();
    if count > MAX_ATTRIBUTES {
        let text = format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}");
        errors.push(FieldError::invalid(device.path.clone(), count, text));
    }
    for (name, value) in device.entries("attributes") {
        attribute(&entry(device, "attributes", name, value), name, errors);
    }
    for (name, value) in device.entries("capacity") {
        let place = entry(device, "capacity", name, value);
        qualified(&place, name, errors);
        if let Some(policy) = place.some("requestPolicy") {
            request_policy(&policy, device.flag("allowMultipleAllocations"), errors);
        }
    }
    for taint in items(device, "taints", MAX_TAINTS, errors) {
        check(&taint, devices::TAINT, errors);
    }
    let consumed = items(device, "consumesCounters", MAX_CONSUMED_SETS, errors);
    for set in &consumed {
        needs(set, "counterSet", names::dns1123_label, errors);
        counters(set, errors);
    }
    duplicates(&consumed, |set| set.text("counterSet").into(), errors);
    whereabouts(device, says_where, errors);
    conditions(device, errors);
}

fn whereabouts(device: &Place<'_>, says_where: bool, errors: &mut Errors) {
    const ONE_OF: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    const NONE: &str = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    if !says_where {
        if PLACES_OF_ONE.iter().any(|way| device.some(way).is_some()) {
            errors.push(FieldError::invalid(device.path.clone(), Value::Null, NONE));
        }
        return;
    }
    match said(device, &PLACES_OF_ONE, errors).as_slice() {
        [] => errors.push(FieldError::required(device.path.clone(), ONE_OF)),
        [_] => {}
        several => {
            errors.push(FieldError::invalid(device.path.clone(), format!("{{{}}}", several.join(", ")), ONE_OF));
        }
    }
}

/// An entry of a map, whose key stands in brackets.
fn entry<'a>(place: &Place<'_>, map: &str, key: &str, value: &'a Value) -> Place<'a> {
    Place { value, path: format!("{}[{key}]", place.path_of(map)) }
}

fn qualified(place: &Place<'_>, name: &str, errors: &mut Errors) {
    errors.extend(devices::qualified(name).map(|why| FieldError::invalid(place.path.clone(), name, why)));
}

fn attribute(place: &Place<'_>, name: &str, errors: &mut Errors) {
    qualified(place, name, errors);
    if TYPES.iter().filter(|type_| place.some(type_).is_some()).count() != 1 {
        let text = "exactly one value must be specified";
        errors.push(FieldError::invalid(place.path.clone(), place.value.clone(), text));
    }
    let one = ["string", "version"].into_iter().filter_map(|type_| place.some(type_));
    let many = ["strings", "versions"].into_iter().flat_map(|type_| place.items(type_));
    for text in one.chain(many).filter(|text| text.value.as_str().is_some_and(|text| text.len() > MAX_VALUE_BYTES)) {
        errors.push(FieldError::too_long(text.path, MAX_VALUE_BYTES as u64));
    }
    for version in place.some("version").into_iter().chain(place.items("versions")) {
        if !version.value.as_str().is_some_and(is_version) {
            let text = "must be a string compatible with semver.org spec 2.0.0";
            errors.push(FieldError::invalid(version.path, version.value.clone(), text));
        }
    }
}

/// Whether a text is a semantic version.
fn is_version(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, stage) = text.split_once('-').map_or((text, None), |(core, stage)| (core, Some(stage)));
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let is_counted = |part: &str| is_number(part) && !part.is_empty() && (part == "0" || !part.starts_with('0'));
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    core.split('.').count() == 3
        && core.split('.').all(is_counted)
        && stage.is_none_or(|all| all.split('.').all(|part| is_word(part) && (!is_number(part) || is_counted(part))))
        && build.is_none_or(|all| all.split('.').all(is_word))
}

/// In which pieces a capacity is given away.
fn request_policy(policy: &Place<'_>, is_shared: bool, errors: &mut Errors) {
    if !is_shared {
        errors.push(FieldError::forbidden(policy.path.clone(), "allowMultipleAllocations must be true"));
        return;
    }
    let (values, range) = (has_some(policy, "validValues"), policy.some("validRange").is_some());
    let given = match (values, range) {
        (true, true) => {
            let text = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            errors.push(FieldError::forbidden(policy.path.clone(), text));
            return;
        }
        (true, false) => "validValues",
        (false, true) => "validRange",
        (false, false) => return,
    };
    if policy.some("default").is_none() {
        errors.push(FieldError::required(policy.path_of("default"), format!("required when {given} is defined")));
    }
    if range && policy.at(&["validRange", "min"]).value.is_null() {
        let path = policy.field("validRange").path_of("min");
        errors.push(FieldError::required(path, "required when validRange is defined"));
    }
}

fn counters(set: &Place<'_>, errors: &mut Errors) {
    let count = set.entries("counters").count();
    if count == 0 {
        errors.push(FieldError::required(set.path_of("counters"), ""));
    } else if count > MAX_COUNTERS {
        errors.push(FieldError::too_many(set.path_of("counters"), count, MAX_COUNTERS as u64));
    }
    for (name, value) in set.entries("counters").take(MAX_COUNTERS) {
        if let Some(why) = names::dns1123_label(name) {
            errors.push(FieldError::invalid(entry(set, "counters", name, value).path, name.as_str(), why));
        }
    }
}

/// What has to hold, or may not, before a pod is bound for the device.
fn conditions(device: &Place<'_>, errors: &mut Errors) {
    const LISTS: [&str; 2] = ["bindingConditions", "bindingFailureConditions"];
    let mut seen = BTreeSet::new();
    for list in LISTS {
        for condition in items(device, list, MAX_CONDITIONS, errors) {
            let text = condition.value.as_str().unwrap_or_default();
            let problem = names::qualified_name(text);
            errors.extend(problem.map(|why| FieldError::invalid(condition.path.clone(), text, why)));
            if !seen.insert(text) {
                errors.push(FieldError::duplicate(condition.path, text));
            }
        }
    }
    for [list, other] in [LISTS, [LISTS[1], LISTS[0]]] {
        if !has_some(device, list) && has_some(device, other) {
            device.invalid(list, format!("{list} are required to use {other}"), errors);
        }
    }
}
