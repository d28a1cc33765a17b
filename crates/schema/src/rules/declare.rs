//! Types of expressions from schemas, with the sizes that a request can have.

use std::sync::Arc;

use carrack_cel::{Field, ListKind, ListOf, ObjectOf, Type as Cel, escape};

use crate::schema::{Additional, Format, ListType, Schema, Type};

/// Most bytes of a request; what has no bound of its own has this one.
const MAX_REQUEST_BYTES: u64 = 3 << 20;

/// The type of values of this node; `is_object` where it is a whole object with its metadata.
pub(super) fn type_of(schema: &Schema, path: &str, is_object: bool) -> Cel {
    let node = schema.resolve();
    if node.int_or_string || node.format == Format::Quantity {
        return Cel::Dyn;
    }
    let nullable = node.nullable || schema.nullable;
    let rare = node.rare.as_deref();
    let found = match node.type_ {
        Type::Any => return Cel::Dyn,
        Type::Boolean => Cel::Bool,
        Type::Integer => Cel::Int,
        Type::Number => Cel::Double,
        Type::String => text(node),
        Type::Array => {
            let Some(items) = &node.items else { return Cel::Dyn };
            let max = rare.and_then(|rare| rare.max_items).unwrap_or(MAX_REQUEST_BYTES / (min_bytes(items) + 1));
            let kind = match &node.list {
                ListType::Set => ListKind::Set,
                ListType::Map(keys) => ListKind::Map(keys.iter().map(|key| Arc::from(&**key)).collect()),
                _ => ListKind::Atomic,
            };
            return Cel::List(Arc::new(ListOf {
                item: type_of(items, &format!("{path}.@items"), items.embedded),
                max,
                kind,
            }));
        }
        Type::Object => return object(node, path, is_object || node.embedded),
    };
    // A scalar that may be null is a scalar or null, which is no type.
    if nullable { Cel::Dyn } else { found }
}

fn text(node: &Schema) -> Cel {
    let rare = node.rare.as_deref();
    let of_enum = rare.and_then(|rare| {
        rare.enumeration.iter().filter_map(serde_json::Value::as_str).map(|text| text.chars().count() as u64).max()
    });
    let max = rare.and_then(|rare| rare.max_length).or(of_enum).unwrap_or(MAX_REQUEST_BYTES - 2);
    match &node.format {
        Format::DateTime => Cel::Timestamp,
        Format::Byte => Cel::Bytes(max),
        Format::Other(name) if &**name == "date" => Cel::Timestamp,
        Format::Other(name) if &**name == "duration" => Cel::Duration,
        _ => Cel::String(max),
    }
}

fn object(node: &Schema, path: &str, is_object: bool) -> Cel {
    if let Additional::Of(values) = &node.additional {
        let max = node.rare.as_deref().and_then(|rare| rare.max_properties);
        let max = max.unwrap_or(MAX_REQUEST_BYTES / (min_bytes(values) + 5));
        return Cel::map(Cel::String(MAX_REQUEST_BYTES), type_of(values, &format!("{path}.@values"), false), max);
    }
    if !is_object
        && node.properties.is_empty()
        && (node.preserve_unknown || matches!(node.additional, Additional::Anything))
    {
        return Cel::Dyn;
    }
    let mut made = ObjectOf { name: path.to_owned(), ..ObjectOf::default() };
    let mut declare = |name: &str, type_: Cel| {
        if let Some(escaped) = escape(name) {
            made.fields.insert(escaped.into(), Field { json: name.into(), type_ });
        }
    };
    for (name, property) in &node.properties {
        declare(name, type_of(property, &format!("{path}.{name}"), false));
    }
    if is_object {
        let mut metadata = ObjectOf { name: format!("{path}.metadata"), ..ObjectOf::default() };
        for name in ["name", "generateName"] {
            metadata.fields.insert(name.into(), Field { json: name.into(), type_: Cel::String(253) });
        }
        declare("metadata", Cel::Object(Arc::new(metadata)));
        declare("apiVersion", Cel::String(317));
        declare("kind", Cel::String(63));
    }
    Cel::Object(Arc::new(made))
}

/// The fewest bytes that a value takes in a request.
fn min_bytes(schema: &Schema) -> u64 {
    let node = schema.resolve();
    let rare = node.rare.as_deref();
    match node.type_ {
        Type::String => 2 + rare.and_then(|rare| rare.min_length).unwrap_or(0),
        Type::Boolean => 4,
        Type::Array => 2 + rare.and_then(|rare| rare.min_items).unwrap_or(0) * 2,
        Type::Object => {
            let required = node
                .properties
                .iter()
                .filter(|(name, property)| node.required.contains(name) && property.default_value().is_none());
            2 + required.map(|(name, property)| name.len() as u64 + 4 + min_bytes(property)).sum::<u64>()
        }
        Type::Any | Type::Integer | Type::Number => 1,
    }
}

/// How many values of the items, or of the map's values, there may be in a request.
pub(super) fn most(schema: &Schema) -> u64 {
    match type_of(schema, "", false) {
        Cel::List(list) => list.max,
        Cel::Map(map) => map.max,
        _ => 1,
    }
}
