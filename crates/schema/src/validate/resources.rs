//! Requests and limits of containers.

use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::access::{Errors, Place};
use super::names;
use crate::amounts as sums;
use crate::error::FieldError;

/// Whether a resource may be promised more often than it exists.
fn overcommits(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || (is_native(name) && !name.starts_with("hugepages-"))
}

/// Whether a resource is one of Kubernetes itself.
pub(super) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Checks names and amounts of resources; errors are found below `path`.
pub(super) fn amounts(list: &Place<'_>, path: &str, errors: &mut Errors) {
    for (name, value) in list.map().into_iter().flatten() {
        let path = format!("{path}[{name}]");
        resource_name(name, &path, errors);
        amount(name, value, &path, errors);
    }
}

/// Whether a name is one of huge pages of some size.
fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Holds the resources of containers against those of their pod.
pub(super) fn within_pod(resources: &Place<'_>, spec: &Place<'_>, errors: &mut Errors) {
    let (requests, limits) = (resources.field("requests"), resources.field("limits"));
    let asked = spec.map().map(|spec| sums::of_containers(spec, "requests")).unwrap_or_default();
    for name in ["cpu", "memory"] {
        let (sum, own) = (asked.get(name).copied().unwrap_or_default(), requests.text(name));
        if !own.is_empty() && Quantity::parse(own).is_ok_and(|own| own < sum) {
            let text = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.push(FieldError::invalid(format!("{}[{name}]", requests.path), own, text));
        }
        let Ok(most) = Quantity::parse(limits.text(name)) else { continue };
        for (index, container) in spec.items("containers").enumerate() {
            let limit = container.at(&["resources", "limits"]);
            let limit = limit.text(name);
            if Quantity::parse(limit).is_ok_and(|limit| limit > most) {
                let path = format!("{}.containers[{index}][{name}].limits", resources.path);
                let text = format!("must be less than or equal to pod limits of {most}");
                errors.push(FieldError::invalid(path, limit, text));
            }
        }
    }
}

pub(super) fn check(resources: &Place<'_>, errors: &mut Errors) {
    if !resources.exists() {
        return;
    }
    for kind in ["limits", "requests"] {
        let list = resources.field(kind);
        amounts(&list, &list.path, errors);
    }
    let named = |kind: &str, wanted: &dyn Fn(&str) -> bool| resources.entries(kind).any(|(name, _)| wanted(name));
    for kind in ["limits", "requests"] {
        let place = resources.field(kind);
        for (name, value) in resources.entries(kind).filter(|(name, _)| is_huge(name)) {
            let size =
                name.strip_prefix("hugepages-").and_then(|size| Quantity::parse(size).ok()).map_or(0, Quantity::nanos);
            let amount = value.as_str().and_then(|text| Quantity::parse(text).ok()).map_or(0, Quantity::nanos);
            if size > 0 && amount % size != 0 {
                let text = format!("{} is not positive integer multiple of {name}", value.as_str().unwrap_or_default());
                errors.push(FieldError::invalid(format!("{}[{name}]", place.path), value.clone(), text));
            }
        }
    }
    let base = |name: &str| matches!(name, "cpu" | "memory");
    if named("limits", &is_huge) && !named("limits", &base) && !named("requests", &base) {
        errors.push(FieldError::forbidden(resources.path.clone(), "HugePages require cpu or memory"));
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
