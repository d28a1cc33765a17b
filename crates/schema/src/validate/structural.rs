//! Whether a schema is structural: every value it describes has one type, known without looking at
//! the value, so that pruning and defaulting mean something.
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>

use serde_json::Value;

use super::access::{Errors, Place};
use crate::error::FieldError;
use crate::schema::Schema;

/// Checks the schema of a version.
pub(super) fn check(schema: &Place<'_>, errors: &mut Errors) {
    if schema.text("type") != "object" {
        let value = schema.text("type");
        if value.is_empty() {
            errors.push(FieldError::required(schema.path_of("type"), "must not be empty at the root"));
        } else {
            errors.push(FieldError::invalid(schema.path_of("type"), value, "must be object at the root"));
        }
    }
    node(schema, true, errors);
    root_metadata(schema, errors);
    if errors.is_empty()
        && let Ok(parsed) = Schema::parse(schema.value)
    {
        errors.extend(crate::rules::compile(&parsed, &schema.path).1);
    }
}

/// Checks that every type named anywhere in the schema is one that there is; a schema with another
/// cannot be read at all, and this says which field is at fault.
pub(super) fn types(place: &Place<'_>, errors: &mut Errors) {
    types_below(place, 0, errors);
}

fn types_below(place: &Place<'_>, depth: usize, errors: &mut Errors) {
    // Deeper ones are refused when the schema is read.
    if depth > crate::schema::MAX_DEPTH {
        return;
    }
    if !place.text("type").is_empty() {
        place.one_of("type", &["array", "boolean", "integer", "number", "object", "string"], errors);
    }
    let properties = place.field("properties");
    for (name, value) in properties.map().into_iter().flatten() {
        types_below(&Place { value, path: format!("{}[{name}]", properties.path) }, depth + 1, errors);
    }
    for field in ["items", "additionalProperties", "not"] {
        if let Some(inner) = place.some(field) {
            types_below(&inner, depth + 1, errors);
        }
    }
    for junctor in ["allOf", "anyOf", "oneOf"] {
        for part in place.items(junctor) {
            types_below(&part, depth + 1, errors);
        }
    }
}

fn root_metadata(schema: &Place<'_>, errors: &mut Errors) {
    let metadata = schema.at(&["properties", "metadata"]);
    let extra = metadata
        .map()
        .into_iter()
        .flatten()
        .any(|(key, _)| !matches!(key.as_str(), "type" | "properties" | "description"));
    let names = metadata.field("properties");
    let unknown = names.map().into_iter().flatten().any(|(key, _)| !matches!(key.as_str(), "name" | "generateName"));
    if extra || unknown {
        errors.push(FieldError::forbidden(
            metadata.path,
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
}

fn is_true(place: &Place<'_>, name: &str) -> bool {
    place.flag(name)
}

fn node(place: &Place<'_>, is_root: bool, errors: &mut Errors) {
    let int_or_string = is_true(place, "x-kubernetes-int-or-string");
    let preserves = is_true(place, "x-kubernetes-preserve-unknown-fields");
    let kind = place.text("type");
    if kind.is_empty() && !int_or_string && !preserves && !is_root {
        errors.push(FieldError::required(place.path_of("type"), "must not be empty for specified object fields"));
    }
    if !kind.is_empty() && int_or_string {
        errors
            .push(FieldError::forbidden(place.path_of("type"), "must be empty if x-kubernetes-int-or-string is true"));
    }
    for forbidden in ["$ref", "definitions", "dependencies", "id", "patternProperties", "$schema"] {
        if place.some(forbidden).is_some() {
            errors.push(FieldError::forbidden(place.path_of(forbidden), format!("{forbidden} is not supported")));
        }
    }
    if is_true(place, "uniqueItems") {
        errors.push(FieldError::forbidden(
            place.path_of("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    let has_properties = place.field("properties").map().is_some_and(|map| !map.is_empty());
    let additional = place.field("additionalProperties");
    if is_root && additional.exists() {
        errors.push(FieldError::forbidden(additional.path.clone(), "must not be used at the root"));
    }
    // Who says only that there may be others says nothing about them.
    if additional.exists() && has_properties && *additional.value != Value::Bool(true) {
        errors.push(FieldError::forbidden(
            additional.path.clone(),
            "additionalProperties and properties are mutual exclusive",
        ));
    }
    if kind == "array" && !place.field("items").exists() {
        errors.push(FieldError::required(place.path_of("items"), "must be specified"));
    }
    if is_true(place, "x-kubernetes-embedded-resource") {
        if kind != "object" {
            errors.push(FieldError::invalid(
                place.path_of("type"),
                kind,
                "must be object if x-kubernetes-embedded-resource is true",
            ));
        }
        if !has_properties && !preserves {
            errors.push(FieldError::required(place.path_of("properties"), "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"));
        }
    }
    list_type(place, kind, errors);
    pattern_and_default(place, errors);
    // Inside of junctors only values are restricted, never described.
    for junctor in ["allOf", "anyOf", "oneOf"] {
        for part in place.items(junctor) {
            restriction(&part, int_or_string, errors);
        }
    }
    if let Some(not) = place.some("not") {
        restriction(&not, false, errors);
    }
    let properties = place.field("properties");
    for (name, value) in properties.map().into_iter().flatten() {
        node(&Place { value, path: format!("{}[{name}]", properties.path) }, false, errors);
    }
    if let Some(items) = place.some("items") {
        if items.value.is_array() {
            errors.push(FieldError::forbidden(items.path.clone(), "items must be a schema object and not an array"));
        } else {
            node(&items, false, errors);
        }
    }
    if additional.value.is_object() {
        node(&additional, false, errors);
    }
}

fn restriction(place: &Place<'_>, may_have_type: bool, errors: &mut Errors) {
    let forbidden = ["description", "type", "default", "additionalProperties", "nullable", "x-kubernetes-validations"];
    for field in forbidden.iter().filter(|field| !(may_have_type && **field == "type")) {
        if place.some(field).is_some() {
            errors.push(FieldError::forbidden(place.path_of(field), "must be undefined to be structural"));
        }
    }
    let properties = place.field("properties");
    for (name, value) in properties.map().into_iter().flatten() {
        restriction(&Place { value, path: format!("{}[{name}]", properties.path) }, false, errors);
    }
    for junctor in ["allOf", "anyOf", "oneOf"] {
        for part in place.items(junctor) {
            restriction(&part, may_have_type, errors);
        }
    }
    for field in ["items", "not"] {
        if let Some(inner) = place.some(field) {
            restriction(&inner, false, errors);
        }
    }
}

fn list_type(place: &Place<'_>, kind: &str, errors: &mut Errors) {
    let list_type = place.text("x-kubernetes-list-type");
    let keys = place.texts("x-kubernetes-list-map-keys");
    let path = place.path_of("x-kubernetes-list-map-keys");
    if !list_type.is_empty() && kind != "array" {
        errors.push(FieldError::invalid(
            place.path_of("type"),
            kind,
            "must be array if x-kubernetes-list-type is specified",
        ));
    }
    if list_type != "map" {
        if !keys.is_empty() {
            errors.push(FieldError::invalid(
                place.path_of("x-kubernetes-list-type"),
                list_type,
                "must be map if x-kubernetes-list-map-keys is non-empty",
            ));
        }
        return;
    }
    if keys.is_empty() {
        errors.push(FieldError::required(path.clone(), "must not be empty if x-kubernetes-list-type is map"));
    }
    let items = place.field("items");
    let required = items.texts("required");
    for (index, key) in keys.into_iter().enumerate() {
        let property = items.field("properties").field(key);
        if !property.exists() {
            errors.push(FieldError::invalid(
                format!("{path}[{index}]"),
                key,
                "entries must all be names of item properties",
            ));
        } else if !required.contains(&key) && !property.field("default").exists() {
            let text =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(format!("{}.default", property.path), text));
        }
    }
}

fn pattern_and_default(place: &Place<'_>, errors: &mut Errors) {
    let pattern = place.text("pattern");
    if !pattern.is_empty()
        && let Err(error) = carrack_cel::pattern(pattern)
    {
        let text = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(place.path_of("pattern"), pattern, text));
    }
    if let Some(default) = place.some("default")
        && let Ok(schema) = Schema::parse(place.value)
    {
        for error in super::schema(default.value, &schema) {
            let path =
                if error.path.is_empty() { default.path.clone() } else { format!("{}.{}", default.path, error.path) };
            errors.push(FieldError { path, ..error });
        }
    }
}
