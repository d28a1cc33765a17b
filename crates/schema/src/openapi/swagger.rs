//! The v2 document: the schemas of v3 narrowed to what Swagger can say.

use serde_json::{Map, Value, json};

use super::{KUBERNETES_VERSION, components, paths, served};
use crate::table::ResourceInfo;

/// The whole document.
pub(super) fn document(resources: &[&ResourceInfo]) -> Value {
    let mut definitions = components::collect(resources, None);
    definitions.values_mut().for_each(narrow);
    let mut all_paths = Map::new();
    for info in resources {
        for version in served(info) {
            paths::v2(info, version, &mut all_paths);
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": all_paths,
        "definitions": definitions,
    })
}

/// Narrows a schema: no alternatives, no null, one reference without company.
fn narrow(value: &mut Value) {
    let Value::Object(map) = value else { return };
    if let Some(Value::Array(all)) = map.get("allOf")
        && let [Value::Object(only)] = all.as_slice()
        && let Some(reference) = only.get("$ref").cloned()
    {
        map.remove("allOf");
        map.insert("$ref".to_owned(), reference);
    }
    if let Some(Value::String(reference)) = map.get_mut("$ref") {
        *reference = reference.replace(components::V3_PREFIX, "#/definitions/");
    }
    for key in ["oneOf", "anyOf", "allOf", "not", "nullable", "default", "x-kubernetes-validations"] {
        map.remove(key);
    }
    if map.get("format").is_some_and(|format| format == "quantity") {
        map.remove("format");
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        map.insert("type".to_owned(), json!("string"));
        map.insert("format".to_owned(), json!("int-or-string"));
    }
    // Clients that validate would refuse what is preserved; they take what has no type as it is.
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        for key in ["type", "properties", "items", "additionalProperties", "required"] {
            map.remove(key);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(narrow);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            narrow(child);
        }
    }
}
