//! What a node of a schema may say, wherever it is: outside of junctors or inside
//! (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`).

use std::collections::BTreeSet;

use super::{EMBEDDED, LIST_KEYS, LIST_TYPE, MAP_TYPE, PRESERVE, properties, property, says};
use crate::error::FieldError;
use crate::schema::MAX_DEPTH;
use crate::validate::access::{Errors, Place};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Where in the whole object no default can be, and how errors say it.
const WITHOUT_DEFAULT: [(&str, &str); 3] =
    [("apiVersion", "in top-level apiVersion"), ("kind", "in top-level kind"), ("metadata", "in top-level metadata")];

/// Where a node is.
#[derive(Clone, Copy, Default)]
struct Surroundings {
    depth: usize,
    /// Within what every object has, of the whole object or of one within it.
    in_object_fields: bool,
    /// Why there can be no default.
    without_default: Option<&'static str>,
}

/// Checks the words of a schema, also of one that cannot be read: this says which field is at fault.
pub(super) fn check(schema: &Place<'_>, errors: &mut Errors) {
    node(schema, Surroundings::default(), errors);
}

fn node(place: &Place<'_>, around: Surroundings, errors: &mut Errors) {
    // Deeper ones are refused when the schema is read.
    if around.depth > MAX_DEPTH {
        return;
    }
    own(place, around, errors);
    map(place, errors);
    list(place, errors);
    let below = Surroundings { depth: around.depth + 1, ..around };
    let additional = place.field("additionalProperties");
    if additional.value.is_object() {
        let mut below = below;
        if below.in_object_fields {
            below.without_default = Some("inside additionalProperties applying to object metadata");
        }
        node(&additional, below, errors);
    }
    let is_root = around.depth == 0;
    for (name, property) in properties(place) {
        let mut below = below;
        let of_objects = WITHOUT_DEFAULT.iter().find(|(field, _)| *field == name.as_str());
        if let Some((_, why)) = of_objects.filter(|_| is_root || place.flag(EMBEDDED)) {
            below.in_object_fields = true;
            if is_root {
                below.without_default = Some(*why);
            }
        }
        node(&property, below, errors);
    }
    let parts = ["allOf", "oneOf", "anyOf"].into_iter().flat_map(|junctor| place.items(junctor));
    for part in place.some("not").into_iter().chain(parts).chain(place.some("items")) {
        node(&part, below, errors);
    }
}

fn own(place: &Place<'_>, around: Surroundings, errors: &mut Errors) {
    let kind = place.text("type");
    if !kind.is_empty() {
        place.one_of("type", &TYPES, errors);
    }
    if kind == "null" {
        let text = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(place.path_of("type"), text));
    }
    if let (Some(default), Some(why)) = (place.some("default"), around.without_default) {
        errors.push(FieldError::forbidden(default.path, format!("must not be set {why}")));
    }
    for field in ["$ref", "$schema", "additionalItems", "definitions", "dependencies", "id", "patternProperties"] {
        // `additionalItems: false` says as much as a schema does.
        if says(place, field) || place.field(field).value.is_boolean() {
            errors.push(FieldError::forbidden(place.path_of(field), format!("{field} is not supported")));
        }
    }
    if place.field("items").value.is_array() {
        errors.push(FieldError::forbidden(place.path_of("items"), "items must be a schema object and not an array"));
    }
    if place.flag(EMBEDDED) && around.in_object_fields {
        errors.push(FieldError::forbidden(place.path_of(EMBEDDED), "must not be used inside of resource meta"));
    }
    if place.flag("uniqueItems") {
        errors.push(FieldError::forbidden(
            place.path_of("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    // Who says only that there may be others says nothing about them.
    let additional = place.field("additionalProperties");
    if additional.exists() && additional.value.as_bool() != Some(true) && says(place, "properties") {
        let text = "additionalProperties and properties are mutual exclusive";
        errors.push(FieldError::forbidden(additional.path, text));
    }
    if place.field(PRESERVE).value.as_bool() == Some(false) {
        place.invalid(PRESERVE, "must be true or undefined", errors);
    }
}

/// An error if a node that says how to merge is not of the type that merges so.
fn typed(place: &Place<'_>, wanted: &str, because: &str, errors: &mut Errors) {
    let kind = place.text("type");
    let text = format!("must be {wanted} if {because} is specified");
    if kind.is_empty() {
        errors.push(FieldError::required(place.path_of("type"), text));
    } else if kind != wanted {
        errors.push(FieldError::invalid(place.path_of("type"), kind, text));
    }
}

fn map(place: &Place<'_>, errors: &mut Errors) {
    if place.some(MAP_TYPE).is_some() {
        typed(place, "object", MAP_TYPE, errors);
        place.one_of(MAP_TYPE, &["atomic", "granular"], errors);
    }
}

fn list(place: &Place<'_>, errors: &mut Errors) {
    let list_type = place.text(LIST_TYPE);
    if place.some(LIST_TYPE).is_some() {
        typed(place, "array", LIST_TYPE, errors);
        place.one_of(LIST_TYPE, &["atomic", "set", "map"], errors);
    }
    if list_type != "map" && says(place, LIST_KEYS) {
        let text = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list_type {
            "" => FieldError::required(place.path_of(LIST_TYPE), text),
            _ => FieldError::invalid(place.path_of(LIST_TYPE), list_type, text),
        });
    }
    let items = place.field("items");
    match list_type {
        "set" => item_of_set(&items, errors),
        "map" => item_of_map(place, &items, errors),
        _ => return,
    }
    if items.flag("nullable") {
        let text = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(items.path_of("nullable"), text));
    }
}

/// Items of sets are told apart as wholes.
fn item_of_set(items: &Place<'_>, errors: &mut Errors) {
    let text = "must be atomic as item of a list with x-kubernetes-list-type=set";
    match items.text("type") {
        "array" if !matches!(items.text(LIST_TYPE), "" | "atomic") => items.invalid(LIST_TYPE, text, errors),
        "object" if items.text(MAP_TYPE) != "atomic" => items.invalid(MAP_TYPE, text, errors),
        _ => {}
    }
}

/// Items of maps are told apart by their keys, which each of them has.
fn item_of_map(place: &Place<'_>, items: &Place<'_>, errors: &mut Errors) {
    let keys = place.texts(LIST_KEYS);
    if keys.is_empty() {
        let text = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(place.path_of(LIST_KEYS), text));
    }
    if !items.exists() {
        let text = "must have a schema if x-kubernetes-list-type is map";
        errors.push(FieldError::required(items.path.clone(), text));
        return;
    }
    if items.text("type") != "object" {
        let text = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(items.path_of("type"), items.text("type"), text));
        return;
    }
    let required: BTreeSet<&str> = items.texts("required").into_iter().collect();
    let (mut seen, mut is_undefined, mut is_twice) = (BTreeSet::new(), false, false);
    for key in keys {
        if !seen.insert(key) {
            is_twice = true;
            continue;
        }
        let property = property(items, key);
        if !property.exists() {
            is_undefined = true;
            continue;
        }
        if matches!(property.text("type"), "array" | "object") {
            property.invalid("type", "must be a scalar type if parent array's x-kubernetes-list-type is map", errors);
        }
        if !required.contains(key) && property.some("default").is_none() {
            let text =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(property.path_of("default"), text));
        }
        if property.flag("nullable") {
            let text = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(property.path_of("nullable"), text));
        }
    }
    // Each is told once: it is told with the whole list, which may be as long as a request.
    if is_undefined {
        place.invalid(LIST_KEYS, "entries must all be names of item properties", errors);
    }
    if is_twice {
        place.invalid(LIST_KEYS, "must not contain duplicate entries", errors);
    }
}
