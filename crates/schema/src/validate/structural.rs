//! Whether a schema is structural: every value it describes has one type, known without looking at
//! the value, so that pruning and defaulting mean something.
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>
//!
//! ```text
//!   schema ─┬─► invariants, completeness ─► nothing wrong? ─► rules are compiled ─► defaults, which are held to them
//!           └─► words: what a node may say, inside of junctors or outside
//!                         nothing wrong at all? ─► what is wrong with the rules
//! ```

mod defaults;
mod words;

use serde_json::Value;

use super::access::{Errors, Place};
use crate::error::FieldError;
use crate::rules;
use crate::schema::Schema;

const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
const LIST_TYPE: &str = "x-kubernetes-list-type";
const MAP_TYPE: &str = "x-kubernetes-map-type";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const VALIDATIONS: &str = "x-kubernetes-validations";

/// What a whole object has besides its own properties, and the types of it.
const OBJECT_FIELDS: [(&str, &str); 3] = [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")];

/// Checks the schema of a version, whose objects may have a status that is written apart.
pub(super) fn check(schema: &Place<'_>, has_status: bool, errors: &mut Errors) {
    let mut found = Errors::new();
    if has_status {
        root_beside_status(schema, &mut found);
    }
    if schema.flag("nullable") {
        found.push(FieldError::forbidden(schema.path_of("nullable"), "nullable cannot be true at the root"));
    }
    let parsed = Schema::parse(schema.value);
    let mut in_rules = Errors::new();
    if let Ok(parsed) = &parsed {
        let before = found.len();
        invariants(schema, Level::Root, &mut found);
        completeness(schema, schema, &mut found);
        if found.len() == before {
            let (rules, problems) = rules::compile(parsed, &schema.path);
            in_rules = problems;
            defaults::check(schema, parsed, &rules, &mut found);
        }
    }
    words::check(schema, &mut found);
    if found.is_empty() {
        match parsed {
            Ok(_) => found.append(&mut in_rules),
            Err(error) => {
                let path = format!("{}.{}", schema.path, error.path);
                found.push(FieldError::invalid(path, Value::Null, error.problem));
            }
        }
    }
    errors.append(&mut found);
}

/// Whether a field says anything: of what is empty or false, clients in Go leave most out.
fn says(place: &Place<'_>, name: &str) -> bool {
    match place.field(name).value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn says_only(place: &Place<'_>, allowed: &[&str]) -> bool {
    place.map().into_iter().flatten().all(|(name, _)| allowed.contains(&name.as_str()) || !says(place, name))
}

/// The properties that a schema has, with their names.
fn properties<'a>(place: &Place<'a>) -> impl Iterator<Item = (&'a String, Place<'a>)> + use<'a> {
    let path = place.path_of("properties");
    place.field("properties").map().into_iter().flatten().map(move |(name, value)| {
        let path = format!("{path}[{name}]");
        (name, Place { value, path })
    })
}

/// A property by its name; its value is null where the schema has none of that name.
fn property<'a>(place: &Place<'a>, name: &str) -> Place<'a> {
    let properties = place.field("properties");
    let path = format!("{}[{name}]", properties.path);
    Place { path, ..properties.field(name) }
}

/// What may be said of the root where the status is written apart: nothing that would be lost on the part of the schema that is
/// the status's.
fn root_beside_status(schema: &Place<'_>, errors: &mut Errors) {
    const ALLOWED: [&str; 22] = [
        "description",
        "type",
        "format",
        "title",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "multipleOf",
        "required",
        "items",
        "properties",
        "externalDocs",
        "example",
        PRESERVE,
        VALIDATIONS,
    ];
    // Upstream names the fields as its Go type does.
    const TEXT: &str = "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength \
        Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields \
        XValidations] fields are allowed at the root of the schema if the status subresource is enabled";
    let kind = schema.text("type");
    if !matches!(kind, "" | "object") {
        let text =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(FieldError::invalid(schema.path_of("type"), kind, text));
    } else if !says_only(schema, &ALLOWED) {
        errors.push(FieldError::unshown(schema.path.clone(), TEXT));
    }
}

/// What a node describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The whole object.
    Root,
    /// An item of a list.
    Item,
    /// A property, or a value of a map.
    Field,
}

/// What holds of every node outside of junctors.
fn invariants(place: &Place<'_>, level: Level, errors: &mut Errors) {
    let additional = place.field("additionalProperties");
    if place.text("type") == "array" && place.some("items").is_none() {
        errors.push(FieldError::required(place.path_of("items"), "must be specified"));
    }
    if additional.exists() && level == Level::Root {
        errors.push(FieldError::forbidden(additional.path.clone(), "must not be used at the root"));
    }
    for flag in [PRESERVE, EMBEDDED] {
        if place.flag(flag) && place.flag(INT_OR_STRING) {
            place.invalid(flag, "must be false if x-kubernetes-int-or-string is true", errors);
        }
    }
    type_of(place, level, errors);
    object_fields(place, level, errors);
    let first_of_all = place.items("allOf").next();
    restrictions(place, names_both_types(place), first_of_all.is_some_and(|part| names_both_types(&part)), errors);
    for (_, property) in properties(place) {
        invariants(&property, Level::Field, errors);
    }
    if let Some(items) = place.some("items") {
        invariants(&items, Level::Item, errors);
    }
    if additional.value.is_object() {
        invariants(&additional, Level::Field, errors);
    }
}

fn type_of(place: &Place<'_>, level: Level, errors: &mut Errors) {
    let kind = place.text("type");
    let path = place.path_of("type");
    if place.flag(EMBEDDED) {
        let text = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "object" => {}
            "" => errors.push(FieldError::required(path.clone(), text)),
            _ => errors.push(FieldError::invalid(path.clone(), kind, text)),
        }
    } else if kind.is_empty() && !place.flag(INT_OR_STRING) && !place.flag(PRESERVE) {
        let text = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(path.clone(), text));
    }
    if level == Level::Root && !matches!(kind, "" | "object") {
        errors.push(FieldError::invalid(path, kind, "must be object at the root"));
    }
}

/// What whole objects have is what it is everywhere.
fn object_fields(place: &Place<'_>, level: Level, errors: &mut Errors) {
    let embedded = place.flag(EMBEDDED);
    if embedded {
        if place.some("additionalProperties").is_some() {
            let text = "must not be used if x-kubernetes-embedded-resource is set";
            errors.push(FieldError::forbidden(place.path_of("additionalProperties"), text));
        }
        if !place.flag(PRESERVE) && !says(place, "properties") {
            let text = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            errors.push(FieldError::required(place.path_of("properties"), text));
        }
    }
    if !embedded && level != Level::Root {
        return;
    }
    for (name, wanted) in OBJECT_FIELDS {
        let field = property(place, name);
        let kind = field.text("type");
        if field.exists() && kind != wanted {
            errors.push(FieldError::invalid(field.path_of("type"), kind, format!("must be {wanted}")));
        }
    }
    if level == Level::Root {
        let metadata = property(place, "metadata");
        // Its default is refused for another reason.
        let is_alone = says_only(&metadata, &["type", "properties", "default", "externalDocs", "example"]);
        if !is_alone || !says_only(&metadata.field("properties"), &["name", "generateName"]) {
            errors.push(FieldError::forbidden(
                metadata.path,
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            ));
        }
    }
}

/// Whether this is the choice that goes with `x-kubernetes-int-or-string`: of an integer and a string, in this order.
fn names_both_types(place: &Place<'_>) -> bool {
    let types = place.items("anyOf").map(|part| if says_only(&part, &["type"]) { part.text("type") } else { "" });
    types.eq(["integer", "string"])
}

/// Inside of junctors only values are restricted, never described. `anyOf` and the first `allOf` may name the two types of what is
/// an integer or a string.
fn restrictions(place: &Place<'_>, any_of_types: bool, first_all_of_types: bool, errors: &mut Errors) {
    if !any_of_types {
        for part in place.items("anyOf") {
            restriction(&part, false, errors);
        }
    }
    for (index, part) in place.items("allOf").enumerate() {
        restriction(&part, first_all_of_types && index == 0, errors);
    }
    for part in place.items("oneOf").chain(place.some("not")) {
        restriction(&part, false, errors);
    }
    let pattern = place.text("pattern");
    if !pattern.is_empty()
        && let Err(error) = carrack_cel::pattern(pattern)
    {
        let text = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(place.path_of("pattern"), pattern, text));
    }
}

fn restriction(place: &Place<'_>, any_of_types: bool, errors: &mut Errors) {
    /// What describes, and what it has to be instead.
    const DESCRIPTIONS: [(&str, &str); 13] = [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        (PRESERVE, "false"),
        (EMBEDDED, "false"),
        (INT_OR_STRING, "false"),
        (LIST_KEYS, "empty"),
        (LIST_TYPE, "undefined"),
        (MAP_TYPE, "undefined"),
        (VALIDATIONS, "empty"),
    ];
    restrictions(place, any_of_types, false, errors);
    for (field, wanted) in DESCRIPTIONS {
        let is_said = if wanted == "undefined" { place.some(field).is_some() } else { says(place, field) };
        if is_said {
            errors.push(FieldError::forbidden(place.path_of(field), format!("must be {wanted} to be structural")));
        }
    }
    if let Some(items) = place.some("items") {
        restriction(&items, false, errors);
    }
    for (name, property) in properties(place) {
        restriction(&property, false, errors);
        if name == "metadata" {
            errors.push(FieldError::forbidden(property.path, "must not be specified in a nested context"));
        }
    }
}

/// What junctors restrict is described outside of them. Upstream asks that of the junctors at the root.
fn completeness(place: &Place<'_>, described: &Place<'_>, errors: &mut Errors) {
    let parts = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|junctor| place.items(junctor));
    for part in parts.chain(place.some("not")) {
        restricted(&part, described, errors);
    }
}

fn restricted(place: &Place<'_>, described: &Place<'_>, errors: &mut Errors) {
    if !described.exists() {
        let text = format!("because it is defined in {}", place.path);
        errors.push(FieldError::required(described.path.clone(), text));
        return;
    }
    completeness(place, described, errors);
    if let Some(items) = place.some("items") {
        restricted(&items, &described.field("items"), errors);
    }
    for (name, below) in properties(place) {
        restricted(&below, &property(described, name), errors);
    }
}
