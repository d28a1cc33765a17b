//! Claims for devices, and what becomes of them.
//!
//! Upstream: `k8s.io/kubernetes/pkg/apis/resource/validation`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::access::{Errors, Place};
use super::alike::plain;
use super::demand::{Demand, NOT_POSITIVE, Row, check};
use super::devices::{self, MAX_CONFIGS, duplicates, items, name_of, needs};
use super::{affinity, names};
use crate::error::FieldError;

/// Most requests and constraints of a claim, and most devices that it is given.
const MAX_REQUESTS: u64 = 32;
/// Most alternatives of a request.
const MAX_ALTERNATIVES: u64 = 8;
/// Most users of a claim.
const MAX_USERS: u64 = 256;
/// Most conditions of a device, and most of its addresses.
const MAX_CONDITIONS: u64 = 8;
const MAX_ADDRESSES: u64 = 16;
/// Longest names of an interface and of its hardware.
const MAX_INTERFACE_BYTES: usize = 256;
const MAX_HARDWARE_BYTES: usize = 128;

/// Names of requests, and of what each offers to choose from.
type Requests<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

fn requests<'a>(spec: &Place<'a>) -> Requests<'a> {
    let all = spec.field("devices").items("requests");
    all.map(|request| (request.text("name"), request.items("firstAvailable").map(|sub| sub.text("name")).collect()))
        .collect()
}

/// Whether it is a request, or a request and one of what it offers.
fn names_request(requests: &Requests<'_>, name: &str) -> bool {
    match name.split_once('/') {
        None => requests.contains_key(name),
        Some((name, sub)) => requests.get(name).is_some_and(|offered| offered.contains(sub)),
    }
}

fn itself(place: &Place<'_>) -> Value {
    place.value.clone()
}

/// What a new claim asks for.
pub(super) fn claim(spec: &Place<'_>, errors: &mut Errors) {
    let asked = spec.field("devices");
    let known = requests(spec);
    let all = items(&asked, "requests", MAX_REQUESTS, errors);
    for request in &all {
        self::request(request, errors);
    }
    duplicates(&all, name_of, errors);
    for constraint in items(&asked, "constraints", MAX_REQUESTS, errors) {
        referred(&constraint, &known, errors);
        let given = ["matchAttribute", "distinctAttribute"].into_iter().find(|field| constraint.some(field).is_some());
        match given {
            Some(field) => needs(&constraint, field, devices::fully_qualified, errors),
            None => errors.push(FieldError::required(constraint.path_of("matchAttribute"), "")),
        }
    }
    for config in items(&asked, "config", MAX_CONFIGS, errors) {
        referred(&config, &known, errors);
        devices::configuration(&config, errors);
    }
}

/// What the claims that are made of a new template ask for.
pub(super) fn template(spec: &Place<'_>, errors: &mut Errors) {
    super::metadata::label_map(&spec.at(&["metadata", "labels"]), errors);
    claim(&spec.field("spec"), errors);
}

fn request(request: &Place<'_>, errors: &mut Errors) {
    needs(request, "name", names::dns1123_label, errors);
    let alternatives = request.items("firstAvailable").next().is_some();
    match (request.some("exactly"), alternatives) {
        (None, false) => {
            let text = "exactly one of `exactly` or `firstAvailable` is required";
            errors.push(FieldError::required(request.path.clone(), text));
        }
        (Some(_), true) => {
            let text = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(FieldError::invalid(request.path.clone(), Value::Null, text));
        }
        (Some(exactly), false) => device(&exactly, errors),
        (None, true) => {
            let all = items(request, "firstAvailable", MAX_ALTERNATIVES, errors);
            for alternative in &all {
                needs(alternative, "name", names::dns1123_label, errors);
                device(alternative, errors);
            }
            duplicates(&all, name_of, errors);
        }
    }
}

fn device(request: &Place<'_>, errors: &mut Errors) {
    needs(request, "deviceClassName", names::dns1123_subdomain, errors);
    devices::selectors(request, errors);
    let count = request.number("count").unwrap_or(0);
    match request.text("allocationMode") {
        "All" if count != 0 => {
            request.invalid("count", "must not be specified when allocationMode is 'All'", errors);
        }
        "ExactCount" if count <= 0 => {
            errors.push(FieldError::invalid(request.path_of("count"), count, NOT_POSITIVE));
        }
        "All" | "ExactCount" => {}
        _ => request.one_of("allocationMode", &["All", "ExactCount"], errors),
    }
    devices::tolerations(request, errors);
}

/// `requests` of what is said about some of them.
fn referred(place: &Place<'_>, known: &Requests<'_>, errors: &mut Errors) {
    let all = items(place, "requests", MAX_REQUESTS, errors);
    for name in &all {
        refers(name, known, errors);
    }
    duplicates(&all, itself, errors);
}

fn refers(place: &Place<'_>, known: &Requests<'_>, errors: &mut Errors) {
    let name = place.value.as_str().unwrap_or_default();
    if !names_request(known, name) {
        let text =
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        errors.push(FieldError::invalid(place.path.clone(), name, text));
    }
}

/// What a claim or a template asks for does not change.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    if settled(new.field("spec").value) != settled(old.field("spec").value) {
        new.invalid("spec", "field is immutable", errors);
    }
}

/// A spec in which nothing is left out that says nothing: clients in Go write some empty objects, and others do not.
fn settled(spec: &Value) -> Value {
    let mut spec = if spec.is_null() { json!({}) } else { plain(spec) };
    for path in ["/devices", "/spec/devices", "/spec", "/metadata"] {
        if spec.pointer(path).is_some_and(|value| value.as_object().is_some_and(serde_json::Map::is_empty)) {
            let (parent, field) = path.rsplit_once('/').unwrap_or_default();
            if let Some(Value::Object(parent)) = spec.pointer_mut(parent) {
                parent.remove(field);
            }
        }
    }
    spec
}

/// Checks the status of a claim.
pub(super) fn status(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (status, before) = (new.field("status"), old.field("status"));
    let allocation = status.some("allocation");
    users(&status, allocation.is_some(), errors);
    let is_deleting = new.field("metadata").some("deletionTimestamp").is_some();
    if is_deleting && allocation.is_some() {
        let known: BTreeSet<&str> = before.items("reservedFor").map(|user| user.text("uid")).collect();
        if status.items("reservedFor").any(|user| !known.contains(user.text("uid"))) {
            let text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(FieldError::forbidden(status.path_of("reservedFor"), text));
        }
    }
    match (&allocation, before.some("allocation")) {
        // What was given is not looked at again, and is taken back as a whole.
        (Some(now), Some(before)) if plain(now.value) != plain(before.value) => {
            status.invalid("allocation", "field is immutable", errors);
        }
        (Some(now), None) => allocated(now, &requests(&new.field("spec")), errors),
        _ => {}
    }
    of_devices(&status, errors);
}

fn users(status: &Place<'_>, is_allocated: bool, errors: &mut Errors) {
    const ROWS: &[Row] = &[("resource", Demand::Required), ("name", Demand::Required), ("uid", Demand::Required)];
    let users = items(status, "reservedFor", MAX_USERS, errors);
    for user in &users {
        check(user, ROWS, errors);
    }
    duplicates(&users, |user| user.text("uid").into(), errors);
    if !users.is_empty() && !is_allocated {
        let text = "may not be specified when `allocated` is not set";
        errors.push(FieldError::forbidden(status.path_of("reservedFor"), text));
    }
}

fn identified(device: &Place<'_>, errors: &mut Errors) {
    needs(device, "driver", names::csi_driver, errors);
    needs(device, "pool", devices::pool_name, errors);
    needs(device, "device", names::dns1123_label, errors);
}

fn identity(device: &Place<'_>) -> Value {
    let part = |field: &str| device.text(field).to_owned();
    json!([part("driver"), part("pool"), part("device"), part("shareID")])
}

/// What a claim is newly given.
fn allocated(allocation: &Place<'_>, known: &Requests<'_>, errors: &mut Errors) {
    let devices = allocation.field("devices");
    for result in items(&devices, "results", MAX_REQUESTS, errors) {
        refers(&result.field("request"), known, errors);
        identified(&result, errors);
    }
    for config in items(&devices, "config", 2 * MAX_CONFIGS, errors) {
        config.one_of("source", &["FromClaim", "FromClass"], errors);
        referred(&config, known, errors);
        devices::configuration(&config, errors);
    }
    if let Some(selector) = allocation.some("nodeSelector") {
        affinity::node_selector(&selector, errors);
    }
}

/// What drivers say of the devices that the claim was given.
fn of_devices(status: &Place<'_>, errors: &mut Errors) {
    let given: BTreeSet<String> =
        status.at(&["allocation", "devices"]).items("results").map(|device| identity(&device).to_string()).collect();
    let all: Vec<Place<'_>> = status.items("devices").collect();
    for device in &all {
        identified(device, errors);
        if !given.contains(&identity(device).to_string()) {
            let text = "must be an allocated device in the claim";
            errors.push(FieldError::invalid(device.path.clone(), device.text("device"), text));
        }
        items(device, "conditions", MAX_CONDITIONS, errors);
        if let Some(data) = device.some("data") {
            devices::raw(&data, errors);
        }
        let network = device.field("networkData");
        for (field, most) in [("interfaceName", MAX_INTERFACE_BYTES), ("hardwareAddress", MAX_HARDWARE_BYTES)] {
            if network.text(field).len() > most {
                errors.push(FieldError::too_long(network.path_of(field), most as u64));
            }
        }
        for address in items(&network, "ips", MAX_ADDRESSES, errors) {
            if !address.value.as_str().is_some_and(super::demand::is_range) {
                let text = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
                errors.push(FieldError::invalid(address.path, address.value.clone(), text));
            }
        }
    }
    duplicates(&all, identity, errors);
}
