//! Devices for pods: the forms that claims, classes and slices share, classes, and rules that taint devices.
//!
//! Upstream: `k8s.io/kubernetes/pkg/apis/resource/validation`.

use std::sync::Arc;

use carrack_cel::{Env, Field, ObjectOf, Type};
use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check, unique};
use super::{expressions, names, resources};
use crate::error::FieldError;

/// Most selectors of a request or class, and most configurations of a claim or class.
const MAX_SELECTORS: u64 = 32;
pub(super) const MAX_CONFIGS: u64 = 32;
/// Longest selector, what evaluating one may be estimated to cost for a device, and most bytes of what is said to a driver.
const MAX_EXPRESSION_BYTES: usize = 10 << 10;
const MAX_EXPRESSION_COST: u64 = 1_000_000;
const MAX_PARAMETER_BYTES: usize = 10 << 10;
/// Longest name without its domain, and longest domain.
const MAX_ID_BYTES: usize = 32;
const MAX_DOMAIN_BYTES: u64 = 63;
/// Most attributes and capacities of a device.
pub(super) const MAX_ATTRIBUTES: usize = 32;
const MAX_POOL_BYTES: usize = 253;

/// Effects of taints.
const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

pub(super) const TAINT: &[Row] = &[
    ("key", Demand::Required),
    ("key", Demand::Form(names::qualified_name)),
    ("value", Demand::Form(names::label_value)),
    ("effect", Demand::Required),
    ("effect", Demand::OneOf(EFFECTS)),
];

const TOLERATION: &[Row] = &[
    ("key", Demand::Form(names::qualified_name)),
    ("value", Demand::Form(names::label_value)),
    ("operator", Demand::Required),
    ("operator", Demand::OneOf(&["Equal", "Exists"])),
    ("effect", Demand::OneOf(EFFECTS)),
];

/// The items of a list; none, and an error, when there are more than these.
pub(super) fn items<'a>(place: &Place<'a>, list: &str, most: u64, errors: &mut Errors) -> Vec<Place<'a>> {
    let items: Vec<Place<'a>> = place.items(list).collect();
    if items.len() as u64 > most {
        errors.push(FieldError::too_many(place.path_of(list), items.len(), most));
        return Vec::new();
    }
    items
}

/// Errors about items that are the same as an earlier one.
pub(super) fn duplicates(list: &[Place<'_>], identity: fn(&Place<'_>) -> Value, errors: &mut Errors) {
    let text = |item: &Place<'_>| Some(identity(item).to_string());
    let twice = |item: &Place<'_>| FieldError::duplicate(item.path.clone(), identity(item));
    unique(list.iter().cloned(), text, twice, errors);
}

pub(super) fn name_of(place: &Place<'_>) -> Value {
    place.text("name").into()
}

/// An error unless there is a text, and of this form.
pub(super) fn needs(place: &Place<'_>, field: &str, form: fn(&str) -> names::Problem, errors: &mut Errors) {
    if place.needs_text(field, errors).is_some() {
        place.has_form(field, form, errors);
    }
}

/// The name of a pool: parts that are each like a node's name, divided by slashes.
pub(super) fn pool_name(text: &str) -> names::Problem {
    if text.len() > MAX_POOL_BYTES {
        return Some(format!("must be no more than {MAX_POOL_BYTES} bytes"));
    }
    text.split('/').find_map(names::dns1123_subdomain)
}

/// The name of an attribute or a capacity, with a domain or without.
pub(super) fn qualified(text: &str) -> names::Problem {
    let (domain, name) = match text.split_once('/') {
        None => (None, text),
        Some((domain, name)) => (Some(domain), name),
    };
    match domain {
        Some("") => return Some("the domain must not be empty".to_owned()),
        Some(_) if name.is_empty() => return Some("the name must not be empty".to_owned()),
        Some(domain) => {
            if let Some(problem) = names::csi_driver(domain) {
                return Some(problem);
            }
        }
        None => {}
    }
    if name.len() > MAX_ID_BYTES {
        return Some(format!("must be no more than {MAX_ID_BYTES} bytes"));
    }
    let is_identifier = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (!is_identifier).then(|| {
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' \
         (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
            .to_owned()
    })
}

/// The same, with a domain.
pub(super) fn fully_qualified(text: &str) -> names::Problem {
    const NO_DOMAIN: &str = "a fully qualified name must be a domain and a name separated by a slash";
    qualified(text).or_else(|| (!text.contains('/')).then(|| NO_DOMAIN.to_owned()))
}

/// What a selector may name. What a device tells is known only when it is there.
fn selector_env() -> Env {
    let by_domain = |value: Type| {
        let named = Type::map(Type::String(MAX_ID_BYTES as u64), value, MAX_ATTRIBUTES as u64);
        Type::map(Type::String(MAX_DOMAIN_BYTES), named, MAX_ATTRIBUTES as u64)
    };
    let fields = [
        ("driver", Type::String(MAX_DOMAIN_BYTES)),
        ("attributes", by_domain(Type::Dyn)),
        ("capacity", by_domain(Type::Opaque("Quantity"))),
        ("allowMultipleAllocations", Type::Bool),
    ];
    let fields = fields.map(|(name, type_)| (Arc::<str>::from(name), Field { json: name.into(), type_ }));
    let device = ObjectOf { name: "DRADevice".to_owned(), fields: fields.into() };
    Env::new().with("device", Type::Object(device.into()))
}

/// `selectors`: a scheduler evaluates each of them for each device, as often as it looks for some.
pub(super) fn selectors(place: &Place<'_>, errors: &mut Errors) {
    let env = selector_env();
    for selector in items(place, "selectors", MAX_SELECTORS, errors) {
        let cel = selector.field("cel");
        if !cel.exists() {
            errors.push(FieldError::required(cel.path, ""));
        } else if cel.text("expression").len() > MAX_EXPRESSION_BYTES {
            errors.push(FieldError::too_long(cel.path_of("expression"), MAX_EXPRESSION_BYTES as u64));
        } else if let Some(cost) = expressions::compiles(&cel, "expression", &env, &[Type::Bool], errors)
            && cost > MAX_EXPRESSION_COST
        {
            errors.push(FieldError::forbidden(cel.path_of("expression"), "too complex, exceeds cost limit"));
        }
    }
}

pub(super) fn tolerations(place: &Place<'_>, errors: &mut Errors) {
    for toleration in place.items("tolerations") {
        check(&toleration, TOLERATION, errors);
        if toleration.text("operator") == "Exists" && !toleration.text("value").is_empty() {
            toleration.invalid("value", "must be empty for operator `Exists`", errors);
        }
    }
}

/// What is said to a driver.
pub(super) fn configuration(config: &Place<'_>, errors: &mut Errors) {
    let opaque = config.field("opaque");
    if !opaque.exists() {
        errors.push(FieldError::required(opaque.path, ""));
        return;
    }
    needs(&opaque, "driver", names::csi_driver, errors);
    let parameters = opaque.field("parameters");
    if !parameters.exists() {
        errors.push(FieldError::required(parameters.path, ""));
        return;
    }
    raw(&parameters, errors);
}

/// An object that only a driver can read.
pub(super) fn raw(place: &Place<'_>, errors: &mut Errors) {
    if !place.value.is_object() {
        errors.push(FieldError::invalid(place.path.clone(), "<value omitted>", "must be a valid JSON object"));
    } else if place.value.to_string().len() > MAX_PARAMETER_BYTES {
        errors.push(FieldError::too_long(place.path.clone(), MAX_PARAMETER_BYTES as u64));
    }
}

/// A class, and what it was. Selectors that have not changed are not held to a limit that is younger than they are.
pub(super) fn class(spec: &Place<'_>, old: Option<&Place<'_>>, errors: &mut Errors) {
    if old.is_none_or(|old| old.field("selectors").value != spec.field("selectors").value) {
        selectors(spec, errors);
    }
    for config in items(spec, "config", MAX_CONFIGS, errors) {
        configuration(&config, errors);
    }
    if spec.some("extendedResourceName").is_some() {
        let name = spec.text("extendedResourceName");
        // Those of Kubernetes itself are no extended ones, and a quota names a request for one in its own way.
        let is_extended = !resources::is_native(name)
            && !name.starts_with("requests.")
            && names::qualified_name(&format!("requests.{name}")).is_none();
        if !is_extended {
            spec.invalid("extendedResourceName", "must be a valid extended resource name", errors);
        }
    }
}

pub(super) fn taint_rule(spec: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("deviceSelector.driver", Demand::Form(names::csi_driver)),
        ("deviceSelector.pool", Demand::Form(pool_name)),
        ("deviceSelector.device", Demand::Form(names::dns1123_label)),
    ];
    check(spec, ROWS, errors);
    check(&spec.field("taint"), TAINT, errors);
}
