//! Who may say what in the status of claims for devices: the scheduler which devices a claim has, drivers how theirs are.
//!
//! It takes rights on subresources that nobody serves:
//!
//! ```text
//!   allocation, reservedFor ─► resourceclaims/binding, cluster-wide
//!   devices ─► resourceclaims/driver by the driver's name: arbitrary-node:VERB,
//!              or associated-node:VERB of an account whose pod is on the allocation's node
//! ```
//!
//! Upstream: `pkg/registry/resource`, `AuthorizedForBinding` and `AuthorizedForDeviceStatus`.

use std::collections::{BTreeMap, BTreeSet};

use carrack_auth::Attributes;
use carrack_auth::token::BoundNames;
use carrack_schema::error::FieldError;
use serde_json::Value;

use crate::context::Cx;
use crate::object::{Object, at};
use crate::server::Inner;
use crate::status::Status;

pub(super) const GROUP: &str = "resource.k8s.io";
const CLAIMS: &str = "resourceclaims";

/// What names a device: driver, pool, device and share.
type Device<'a> = [&'a str; 4];

/// Checks a claim that is about to be written.
///
/// # Errors
/// 422 when the caller may not say it; a store that cannot be read.
pub(super) async fn check(server: &Inner, cx: &Cx<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let is_status = &*cx.row.plural == CLAIMS && cx.request.subresource.as_deref() == Some("status");
    let Some(old) = old.filter(|_| is_status) else { return Ok(()) };
    let mut faults = Vec::new();
    if ["allocation", "reservedFor"].iter().any(|field| said(new, field) != said(old, field)) {
        let binding = Attributes::resource(cx.verb, GROUP, CLAIMS).with_subresource("binding");
        if let Some(why) = refusal(server, cx, &[binding]).await? {
            let what = "changing status.allocation or status.reservedFor";
            let needs = format!("resource=\"{CLAIMS}/binding\", verb=\"{}\"", cx.verb);
            faults.push(FieldError::forbidden("status", format!("{what} requires {needs} permission: {why}")));
        }
    }
    let verbs = verbs(cx, new);
    for driver in changed(new, old) {
        let asked = |verb| {
            let attributes = Attributes::resource(verb, GROUP, CLAIMS).with_subresource("driver").named(driver);
            attributes.in_namespace(cx.namespace().unwrap_or_default())
        };
        let asked: Vec<_> = verbs.iter().map(|verb| asked(verb.as_str())).collect();
        if let Some(why) = refusal(server, cx, &asked).await? {
            let needs = format!("resource=\"{CLAIMS}/driver\", verb=\"[{}]\"", verbs.join(" "));
            let text = format!("changing status.devices requires {needs} permission: {why}");
            faults.push(FieldError::forbidden("status.devices", text));
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Status::faulty(GROUP, &cx.row.kind, cx.name(), &faults))
}

/// Why the caller may do none of these; none if there is one that they may do.
async fn refusal(server: &Inner, cx: &Cx<'_>, asked: &[Attributes<'_>]) -> Result<Option<String>, Status> {
    let ask = |authorizer: &carrack_auth::Authorizer| {
        let mut why = None;
        for attributes in asked {
            let decision = authorizer.authorize(cx.caller, attributes);
            if decision.allowed() {
                return None;
            }
            why = why.or_else(|| Some(attributes.forbidden_message(cx.caller, decision.reason())));
        }
        why
    };
    server.with_authorizer(ask).await
}

/// The verbs of which one lets the caller tell of devices; that of their own node first.
fn verbs(cx: &Cx<'_>, claim: &Object) -> Vec<String> {
    let nodes = cx.caller.extra.get(BoundNames::NODE_NAME).map(Vec::as_slice).unwrap_or_default();
    let is_there = match (nodes, node(claim)) {
        ([own], Some(node)) => own == node && cx.caller.service_account_name().is_some(),
        _ => false,
    };
    let whose: &[&str] = if is_there { &["associated-node", "arbitrary-node"] } else { &["arbitrary-node"] };
    whose.iter().map(|whose| format!("{whose}:{}", cx.verb)).collect()
}

/// A part of a claim's status, if it says anything.
fn said<'a>(claim: &'a Object, field: &str) -> Option<&'a Value> {
    at(claim, &["status", field]).filter(|value| value.as_array().is_none_or(|list| !list.is_empty()))
}

/// The node that an allocation is for, if it is for one that it names.
fn node(claim: &Object) -> Option<&str> {
    let terms = at(claim, &["status", "allocation", "nodeSelector", "nodeSelectorTerms"])?.as_array()?;
    let [term] = terms.as_slice() else { return None };
    if term["matchExpressions"].as_array().is_some_and(|list| !list.is_empty()) {
        return None;
    }
    let [field] = term["matchFields"].as_array()?.as_slice() else { return None };
    let [name] = field["values"].as_array()?.as_slice() else { return None };
    let is_name = field["key"] == "metadata.name" && field["operator"] == "In";
    name.as_str().filter(|name| is_name && !name.is_empty())
}

fn devices<'a>(claim: &'a Object, path: &[&str]) -> BTreeMap<Device<'a>, &'a Value> {
    let all = at(claim, path).and_then(Value::as_array).into_iter().flatten();
    let named = |device: &'a Value| {
        ["driver", "pool", "device", "shareID"].map(|field| device[field].as_str().unwrap_or_default())
    };
    all.map(|device| (named(device), device)).collect()
}

/// The drivers of whose devices something else is told than before. What was told of devices that are taken from the
/// claim goes with them, and takes no word of their driver.
fn changed<'a>(new: &'a Object, old: &'a Object) -> BTreeSet<&'a str> {
    let told = ["status", "devices"];
    let (now, before) = (devices(new, &told), devices(old, &told));
    let given = ["status", "allocation", "devices", "results"];
    let (held, held_before) = (devices(new, &given), devices(old, &given));
    let is_other = |device: &Device<'a>| now.get(device) != before.get(device);
    let is_taken = |device: &Device<'a>| {
        held_before.contains_key(device) && !held.contains_key(device) && !now.contains_key(device)
    };
    let all = now.keys().chain(before.keys());
    all.filter(|device| is_other(device) && !is_taken(device)).map(|device| device[0]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(status: &Value) -> Object {
        Object::from_iter([("status".to_owned(), status.clone())])
    }

    #[test]
    fn drivers_answer_for_their_devices() {
        let device = |driver: &str, device: &str| json!({"driver": driver, "pool": "p", "device": device});
        let (a, b, other) = (device("a", "1"), device("b", "1"), device("a", "2"));
        let mut ready = a.clone();
        ready["data"] = json!({"ready": true});
        let told = |devices: &[&Value], held: &[&Value]| {
            claim(&json!({"devices": devices, "allocation": {"devices": {"results": held}}}))
        };
        for (before, now, expected) in [
            (told(&[], &[]), told(&[], &[]), ""),
            (told(&[&a, &b], &[]), told(&[&a, &b], &[]), ""),
            (told(&[&a], &[]), told(&[&a, &b], &[]), "b"),
            (told(&[&a], &[]), told(&[&other], &[]), "a"),
            (told(&[&a, &b], &[]), told(&[&ready, &b], &[]), "a"),
            (told(&[&a, &b], &[]), told(&[], &[]), "a b"),
            // It goes with the device.
            (told(&[&a, &b], &[&a, &b]), told(&[&b], &[&b]), ""),
            (told(&[&a, &b], &[&a, &b]), told(&[&b], &[&a, &b]), "a"),
        ] {
            let drivers: Vec<_> = changed(&now, &before).into_iter().collect();
            assert_eq!(drivers.join(" "), expected, "{before:?} {now:?}");
        }
    }

    #[test]
    fn allocations_name_their_node() {
        let names = |values: &Value| json!({"key": "metadata.name", "operator": "In", "values": values});
        for (terms, expected) in [
            (json!([{"matchFields": [names(&json!(["n"]))]}]), Some("n")),
            (json!([{"matchFields": [names(&json!(["n", "m"]))]}]), None),
            (json!([{"matchFields": [names(&json!([""]))]}]), None),
            (json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]}]), None),
            (json!([{"matchFields": [names(&json!(["n"]))], "matchExpressions": [{"key": "a"}]}]), None),
            (json!([{"matchExpressions": [names(&json!(["n"]))]}]), None),
            (json!([]), None),
        ] {
            let claim = claim(&json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}}));
            assert_eq!(node(&claim), expected, "{claim:?}");
        }
    }
}
