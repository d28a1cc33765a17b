//! Defaults are what the schema says that values are: nothing in them is unknown, they are valid, and their rules hold
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting`).

use serde_json::{Value, json};

use super::{OBJECT_FIELDS, properties};
use crate::builtin::{self, OBJECT_META};
use crate::error::FieldError;
use crate::rules::{self, Rules};
use crate::schema::Schema;
use crate::validate::access::{Errors, Place};
use crate::validate::{metadata, names};
use crate::{decode, prune};

/// Within what every object has: makes a value into the object that has it in this place.
type Surrounding<'a> = Option<&'a dyn Fn(Value) -> Value>;

const DEFAULT: &str = "default";

/// A node of a schema, and the rules of it and of what is below; none where there are none.
#[derive(Clone, Copy)]
struct Node<'a> {
    schema: &'a Schema,
    rules: Option<&'a Rules>,
}

/// Checks the defaults of a schema with these rules. Those of the values of maps are not looked at, as upstream has it.
pub(super) fn check(schema: &Place<'_>, parsed: &Schema, rules: &Rules, errors: &mut Errors) {
    // The whole is an object as one within another is.
    let root = Schema { embedded: true, ..parsed.clone() };
    node(schema, Node { schema: &root, rules: Some(rules) }, None, errors);
}

fn node(place: &Place<'_>, node: Node<'_>, around: Surrounding<'_>, errors: &mut Errors) {
    let Node { schema, rules } = node;
    let around = if schema.embedded { None } else { around };
    if let Some(default) = place.some(DEFAULT) {
        one(&default, node, around, errors);
    }
    if let (Some(items), Some(schema)) = (place.some("items"), schema.items.as_deref()) {
        let list_of = |value: Value| surrounded(around, json!([value]));
        let inside = around.is_some().then_some(&list_of as &dyn Fn(Value) -> Value);
        let below = Node { schema, rules: rules.and_then(Rules::items) };
        self::node(&items, below, inside, errors);
    }
    for (name, property) in properties(place) {
        let Some(below) = schema.property(name) else { continue };
        let object_of = |value: Value| surrounded(around, json!({ (name): value }));
        let starts = schema.embedded && OBJECT_FIELDS.iter().any(|(field, _)| *field == name.as_str());
        let inside = (starts || around.is_some()).then_some(&object_of as &dyn Fn(Value) -> Value);
        let below = Node { schema: below, rules: rules.and_then(|rules| rules.property(name)) };
        self::node(&property, below, inside, errors);
    }
}

fn surrounded(around: Surrounding<'_>, value: Value) -> Value {
    match around {
        Some(around) => around(value),
        None => value,
    }
}

fn one(default: &Place<'_>, node: Node<'_>, around: Surrounding<'_>, errors: &mut Errors) {
    let schema = node.schema;
    let invalid = |text: String| FieldError::invalid(default.path.clone(), default.value.clone(), text);
    let mut found = Errors::new();
    if let Some(around) = around {
        let object = around(default.value.clone());
        let faults = object_meta(&Place::root(&object).field("metadata"));
        if !faults.is_empty() {
            let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
            found.push(invalid(format!("must result in valid metadata: {}", texts.join(", "))));
        }
    } else {
        // As a field of an object that has no other.
        match prune::prune_field(&mut default.value.clone(), DEFAULT, schema) {
            Ok(unknown) if unknown.is_empty() => {}
            Ok(_) => errors.push(invalid("must not have unknown fields".to_owned())),
            Err(error) => found.push(invalid(error.to_string())),
        }
        if found.is_empty() && schema.embedded {
            found = object_meta(&default.field("metadata"));
        }
    }
    if found.is_empty() {
        found = crate::validate::schema(default.value, schema);
        if let Some(rules) = node.rules.filter(|_| found.is_empty()) {
            found = by_rules(default.value, schema, rules);
        }
        for error in &mut found {
            let dot = if error.path.is_empty() || error.path.starts_with('[') { "" } else { "." };
            error.path = format!("{}{dot}{}", default.path, error.path);
        }
    }
    errors.append(&mut found);
}

/// What is wrong with metadata: it is not of its type, or no object can have it.
fn object_meta(place: &Place<'_>) -> Errors {
    let mut errors = Errors::new();
    if let Some(schema) = builtin::schema(OBJECT_META)
        && let Err(error) = decode::conform(&mut place.value.clone(), schema)
    {
        errors.push(FieldError::invalid(place.path.clone(), place.value.clone(), error.to_string()));
        return errors;
    }
    place.has_form("name", names::path_segment, &mut errors);
    metadata::labels(place, "labels", &mut errors);
    metadata::annotation_map(&place.field("annotations"), names::qualified_name, &mut errors);
    errors
}

/// The rules hold for a value that stays as it is, and for one that is new.
fn by_rules(value: &Value, schema: &Schema, rules: &Rules) -> Errors {
    let found = rules::check(value, Some(value), schema, rules);
    if found.is_empty() { rules::check(value, None, schema, rules) } else { found }
}
