//! Defaults: those of schemas ([`by_schema`]) and those of built-in kinds ([`apply`]).
//!
//! Built-in defaults are Kubernetes' own, as its API reference documents them: clients compare what
//! they read with what they wrote, and the node agent relies on every field being there. Filling in
//! twice is filling in once.

mod fields;
mod kinds;
mod pod;
mod service;

use serde_json::Value;

use crate::schema::{Additional, Schema};
use crate::table::ResourceInfo;

/// Fills in defaults of an object, by its schema for custom resources and by rule for built-in
/// kinds (which also settles aliases, such as a secret's `stringData`).
pub fn apply(info: &ResourceInfo, version: &str, object: &mut Value) {
    if info.is_custom {
        if let Some(version) = info.versions.iter().find(|known| known.name == version) {
            drop_nulls(object, version.schema());
            by_schema(object, version.schema());
        }
        return;
    }
    if let Value::Object(map) = object {
        kinds::apply(&info.group, version, &info.kind, map);
    }
}

/// Drops fields that are null, may not be, and have no default: they are as good as absent.
/// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#defaulting-and-nullable>
fn drop_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => map.retain(|name, child| {
            let Some(place) = schema.child(name) else { return true };
            let node = place.resolve();
            if child.is_null() {
                return node.nullable || place.nullable || place.default_value().is_some();
            }
            drop_nulls(child, node);
            true
        }),
        Value::Array(list) => {
            if let Some(items) = schema.resolve().items.as_deref() {
                list.iter_mut().for_each(|item| drop_nulls(item, items));
            }
        }
        _ => {}
    }
}

/// Fills in the defaults of a schema: a property that is absent, or null without being nullable,
/// gets its default, and then the defaults inside.
pub fn by_schema(value: &mut Value, schema: &Schema) {
    let node = schema.resolve();
    match value {
        Value::Object(map) => {
            for (name, property) in &node.properties {
                if let Some(default) = property.default_value() {
                    let place = map.entry(name.as_ref()).or_insert_with(|| default.clone());
                    if place.is_null() && !property.resolve().nullable && !property.nullable {
                        *place = default.clone();
                    }
                }
                if let Some(child) = map.get_mut(name.as_ref()) {
                    by_schema(child, property);
                }
            }
            if let Additional::Of(values) = &node.additional {
                for (name, child) in map.iter_mut() {
                    if node.property(name).is_none() {
                        default_null(child, values);
                        by_schema(child, values);
                    }
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for item in list {
                    default_null(item, items);
                    by_schema(item, items);
                }
            }
        }
        _ => {}
    }
}

/// A null item or map value that may not be null becomes its default.
fn default_null(value: &mut Value, schema: &Schema) {
    if let (Value::Null, false, Some(default)) = (&*value, schema.nullable, schema.default_value()) {
        *value = default.clone();
    }
}

#[cfg(test)]
mod tests;
