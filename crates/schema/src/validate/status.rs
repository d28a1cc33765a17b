//! Statuses of kinds that have few rules for them.
//!
//! A status is written by controllers, and others rest on what it says: one that says what cannot be stops them.

use super::access::{Errors, Place};
use super::demand::{NOT_NEGATIVE, quantity, unique};
use super::{names, resources};
use crate::error::FieldError;

/// What a condition may be.
pub(super) const TRUTHS: &[&str] = &["False", "True", "Unknown"];
/// Most bytes of a condition's reason, and of its message.
const MAX_REASON_BYTES: usize = 1 << 10;
const MAX_MESSAGE_BYTES: usize = 32 << 10;
/// Stages in the growth of a claim's volume.
const STAGES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];
/// Resources of Kubernetes itself of which there is a whole number.
const COUNTED: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// A namespace goes when it is being deleted, and not otherwise (`ValidateNamespaceStatusUpdate`).
pub(super) fn namespace(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (wanted, why) = if old.at(&["metadata", "deletionTimestamp"]).exists() {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    let status = new.field("status");
    let phase = status.text("phase");
    if phase != wanted {
        // Upstream writes this one with a capital letter.
        errors.push(FieldError::invalid("status.Phase", phase, why));
    }
}

/// What a node has, and where it is.
pub(super) fn node(object: &Place<'_>, errors: &mut Errors) {
    let status = object.field("status");
    unique(
        status.items("addresses"),
        |address| Some((address.text("type"), address.text("address"))),
        |address| FieldError::duplicate(address.path.clone(), address.value.clone()),
        errors,
    );
    for list in ["capacity", "allocatable"] {
        for (name, value) in status.entries(list) {
            let Some(amount) = quantity(value) else { continue };
            let path = format!("{}.{name}", status.path_of(list));
            if amount.is_negative() {
                errors.push(FieldError::invalid(path, value.clone(), NOT_NEGATIVE));
            } else if !amount.is_whole() && (COUNTED.contains(&name.as_str()) || !resources::is_native(name)) {
                errors.push(FieldError::invalid(path, value.clone(), "must be an integer"));
            }
        }
    }
}

/// How large a claim's volume is, and how far it has grown (`ValidatePersistentVolumeClaimStatusUpdate`).
pub(super) fn claim(object: &Place<'_>, errors: &mut Errors) {
    let status = object.field("status");
    for list in ["capacity", "allocatedResources"] {
        let path = status.path_of(list);
        for (name, value) in status.entries(list) {
            if list == "allocatedResources" && !may_grow(name, &path, errors) {
                continue;
            }
            if quantity(value).is_some_and(|amount| amount.is_negative()) {
                let text = "must be a valid resource quantity";
                errors.push(FieldError::invalid(format!("{path}[{name}]"), value.clone(), text));
            }
        }
    }
    // Upstream writes this one without its plural.
    let path = status.path_of("allocatedResourceStatus");
    for (name, value) in status.entries("allocatedResourceStatuses") {
        let stage = value.as_str().unwrap_or_default();
        if may_grow(name, &path, errors) && !STAGES.contains(&stage) {
            errors.push(FieldError::not_supported(path.clone(), stage, STAGES));
        }
    }
}

/// Whether a resource is one of which a claim can have more.
fn may_grow(name: &str, path: &str, errors: &mut Errors) -> bool {
    let error = match names::qualified_name(name) {
        Some(problem) => FieldError::invalid(path, name, problem),
        None if resources::is_native(name) && name != "storage" => FieldError::not_supported(path, name, &["storage"]),
        None => return true,
    };
    errors.push(error);
    false
}

/// Conditions of the form that all kinds share now (`ValidateConditions` of the API machinery).
pub(super) fn conditions(status: &Place<'_>, errors: &mut Errors) {
    one_of_each_type(status, errors);
    for condition in status.items("conditions") {
        let (kind, reason) = (condition.text("type"), condition.text("reason"));
        if let Some(problem) = names::qualified_name(kind) {
            errors.push(FieldError::invalid(condition.path_of("type"), kind, problem));
        }
        condition.one_of("status", TRUTHS, errors);
        if condition.number("observedGeneration").is_some_and(|generation| generation < 0) {
            condition.invalid("observedGeneration", "must be greater than or equal to zero", errors);
        }
        for field in ["lastTransitionTime", "reason"] {
            if condition.text(field).is_empty() {
                errors.push(FieldError::required(condition.path_of(field), "must be set"));
            }
        }
        if !reason.is_empty() && !is_reason(reason) {
            let text = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric \
                characters or '_,:', and must end with an alphanumeric character or '_'";
            condition.invalid("reason", text, errors);
        }
        for (field, most) in [("reason", MAX_REASON_BYTES), ("message", MAX_MESSAGE_BYTES)] {
            if condition.text(field).len() > most {
                errors.push(FieldError::too_long(condition.path_of(field), most as u64));
            }
        }
    }
}

/// A kind's conditions of a form of its own, of which it has one of each type.
pub(super) fn named_conditions(status: &Place<'_>, errors: &mut Errors) {
    one_of_each_type(status, errors);
    for condition in status.items("conditions").filter(|condition| condition.text("type").is_empty()) {
        errors.push(FieldError::required(condition.path_of("type"), "must not be empty"));
    }
}

/// Conditions of a form of its own that are so, or not, or unknown.
pub(super) fn true_conditions(status: &Place<'_>, errors: &mut Errors) {
    for condition in status.items("conditions") {
        condition.one_of("status", TRUTHS, errors);
    }
}

fn one_of_each_type(status: &Place<'_>, errors: &mut Errors) {
    unique(
        status.items("conditions"),
        |condition| Some(condition.text("type")),
        |condition| FieldError::duplicate(condition.path_of("type"), condition.text("type")),
        errors,
    );
}

fn is_reason(text: &str) -> bool {
    let ends = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && text.ends_with(ends)
        && text.chars().all(|letter| ends(letter) || letter == ',' || letter == ':')
}
