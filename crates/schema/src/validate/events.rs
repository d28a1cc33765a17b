//! Events: lenient in core, where clients of old write them, and strict in `events.k8s.io` (upstream's
//! `ValidateEventCreate` and `ValidateEventUpdate`).
//!
//! Fields are told by the names of upstream's internal type, whichever of the two groups the event came by.

use serde_json::Value;

use super::access::{Errors, Place};
use super::alike::plain;
use super::names;
use crate::error::FieldError;

/// Most bytes of who reported, of what was done and of why.
const MAX_WORD: usize = 128;
/// Most bytes of the message.
const MAX_MESSAGE: usize = 1024;
/// What of an event stays, once it is written by way of `events.k8s.io`.
const FIXED: [&str; 13] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingController",
    "reportingInstance",
];

/// A field, by the name that it is told by.
fn field<'a>(event: &Place<'a>, strict: bool, told: &str) -> Place<'a> {
    let name = match (told, strict) {
        ("reportingController", false) => "reportingComponent",
        ("involvedObject", true) => "regarding",
        ("message", true) => "note",
        ("source", true) => "deprecatedSource",
        ("firstTimestamp", true) => "deprecatedFirstTimestamp",
        ("lastTimestamp", true) => "deprecatedLastTimestamp",
        ("count", true) => "deprecatedCount",
        (name, _) => name,
    };
    Place { value: event.field(name).value, path: told.to_owned() }
}

/// Whether a field of a Go struct would be left as it is made.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_unset),
    }
}

/// What holds of every event. Those that have the time of what happened were made for `events.k8s.io`.
pub(super) fn event(event: &Place<'_>, strict: bool, errors: &mut Errors) {
    let own = event.field("metadata").text("namespace");
    let object = field(event, strict, "involvedObject");
    let about = object.text("namespace");
    let is_timed = !is_unset(event.field("eventTime").value);
    // What has no namespace is reported in the default one (or in the system's).
    let fits = match (is_timed, about) {
        (true, "") => matches!(own, "default" | "kube-system"),
        (true, _) => true,
        (false, "") => matches!(own, "" | "default"),
        (false, about) => own == about,
    };
    if !fits {
        errors.push(FieldError::invalid(object.path_of("namespace"), about, "does not match event.namespace"));
    }
    if !is_timed {
        return;
    }
    for (told, most) in [
        ("reportingController", None),
        ("reportingInstance", Some(MAX_WORD)),
        ("action", Some(MAX_WORD)),
        ("reason", Some(MAX_WORD)),
    ] {
        let place = field(event, strict, told);
        let text = place.value.as_str().unwrap_or_default();
        if text.is_empty() {
            errors.push(FieldError::required(place.path, ""));
        } else if let Some(most) = most {
            short(&place, most, errors);
        } else if let Some(problem) = names::qualified_name(text) {
            errors.push(FieldError::invalid(place.path, text, problem));
        }
    }
    short(&field(event, strict, "message"), MAX_MESSAGE, errors);
}

fn short(place: &Place<'_>, most: usize, errors: &mut Errors) {
    if place.value.as_str().is_some_and(|text| text.len() > most) {
        errors.push(FieldError::invalid(place.path.clone(), "", format!("can have at most {most} characters")));
    }
}

/// What holds besides of a new event of `events.k8s.io`.
pub(super) fn create(event: &Place<'_>, errors: &mut Errors) {
    series(event, errors);
    if is_unset(event.field("eventTime").value) {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = event.text("type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "", format!("has invalid value: {kind}")));
    }
    for told in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if !is_unset(field(event, true, told).value) {
            errors.push(FieldError::invalid(told, "", "needs to be unset"));
        }
    }
}

fn series(event: &Place<'_>, errors: &mut Errors) {
    let Some(series) = event.some("series") else { return };
    if series.number("count").unwrap_or(0) < 2 {
        errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
    }
    if is_unset(series.field("lastObservedTime").value) {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}

/// What holds besides of a changed event of `events.k8s.io`: it happens again, and nothing else changes.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let is_same = |now: &Value, before: &Value| plain(now) == plain(before) || (is_unset(now) && is_unset(before));
    if !is_same(new.field("series").value, old.field("series").value) {
        series(new, errors);
    }
    for told in FIXED {
        let (now, before) = (field(new, true, told), field(old, true, told));
        if !is_same(now.value, before.value) {
            errors.push(FieldError::invalid(now.path, now.value.clone(), "field is immutable"));
        }
    }
}
