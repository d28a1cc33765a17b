//! Requests and limits of containers.

use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::access::{Errors, Place};
use super::names;
use crate::error::FieldError;

/// Whether a resource may be promised more often than it exists.
fn overcommits(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || (is_native(name) && !name.starts_with("hugepages-"))
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub(super) fn check(resources: &Place<'_>, errors: &mut Errors) {
    for (kind, place) in [("limits", resources.field("limits")), ("requests", resources.field("requests"))] {
        for (name, value) in resources.entries(kind) {
            let path = format!("{}[{name}]", place.path);
            resource_name(name, &path, errors);
            amount(name, value, &path, errors);
        }
    }
    let limits = resources.field("limits");
    for (name, value) in resources.entries("requests") {
        let path = format!("{}.requests", resources.path);
        let limit = limits.value.get(name).and_then(Value::as_str);
        let Some(request) = value.as_str() else { continue };
        match (limit, Quantity::parse(request), limit.map(Quantity::parse)) {
            (Some(limit_text), Ok(request_amount), Some(Ok(limit))) => {
                let (fits, relation) = if overcommits(name) {
                    (request_amount <= limit, "less than or equal")
                } else {
                    (request_amount == limit, "equal")
                };
                if !fits {
                    errors.push(FieldError::invalid(
                        path,
                        request,
                        format!("must be {relation} to {name} limit of {limit_text}"),
                    ));
                }
            }
            (None, ..) if !overcommits(name) => {
                errors.push(FieldError::required(
                    limits.path.clone(),
                    "Limit must be set for non overcommitable resources",
                ));
            }
            _ => {}
        }
    }
}

fn resource_name(name: &str, path: &str, errors: &mut Errors) {
    if let Some(problem) = names::qualified_name(name) {
        errors.push(FieldError::invalid(path, name, problem));
    } else if !name.contains('/')
        && !matches!(name, "cpu" | "memory" | "ephemeral-storage")
        && !name.starts_with("hugepages-")
    {
        errors.push(FieldError::invalid(path, name, "must be a standard resource for containers"));
    }
}

fn amount(name: &str, value: &Value, path: &str, errors: &mut Errors) {
    let text = value.as_str().unwrap_or_default();
    let Ok(quantity) = Quantity::parse(text) else {
        errors.push(FieldError::invalid(path, value.clone(), carrack_types::quantity::ParseQuantityError.to_string()));
        return;
    };
    if quantity.is_negative() {
        errors.push(FieldError::invalid(path, text, "must be greater than or equal to 0"));
    } else if !is_native(name) && !quantity.is_whole() {
        errors.push(FieldError::invalid(path, text, "must be an integer"));
    }
}
