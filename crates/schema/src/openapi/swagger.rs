//! The v2 document: the schemas of v3 narrowed to what Swagger can say, and the same paths.

use serde_json::{Map, Value, json};

use super::paths::Operation;
use super::{KUBERNETES_VERSION, components, paths, served};
use crate::table::ResourceInfo;

/// Where a v2 document keeps schemas.
const V2_PREFIX: &str = "#/definitions/";

/// What a schema has where objects keep what it does not know, and where null is a value.
const PRESERVES: &str = "x-kubernetes-preserve-unknown-fields";
const NULLABLE: &str = "nullable";

/// The whole document.
pub(super) fn document(resources: &[&ResourceInfo]) -> Value {
    let mut definitions = components::collect(resources, None);
    definitions.values_mut().for_each(define);
    let mut all_paths = Map::new();
    for info in resources {
        for version in served(info) {
            for path in paths::of(info, version) {
                all_paths.insert(path.path.clone(), path.describe(operation, parameter));
            }
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": all_paths,
        "definitions": definitions,
    })
}

/// A parameter: where it is, its name and its type.
fn parameter(place: &str, name: &str, type_: &str) -> Value {
    json!({"in": place, "name": name, "type": type_, "uniqueItems": true})
}

/// One method of a path.
fn operation(operation: &Operation<'_>) -> Value {
    let body = operation.request.as_ref().map(|request| {
        let mut body = json!({"in": "body", "name": "body", "schema": request.content.schema(V2_PREFIX)});
        if request.required {
            body["required"] = true.into();
        }
        body
    });
    let query = operation.parameters.iter().map(|(name, type_)| parameter("query", name, type_));
    let consumes = operation.request.as_ref().map_or(paths::ANYTHING, |request| request.content.media_types);
    let [group, version, kind] = operation.kind;
    json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "schemes": ["https"],
        "consumes": consumes,
        "produces": operation.response.media_types,
        "parameters": body.into_iter().chain(query).collect::<Vec<_>>(),
        "responses": operation.responses("schema", &operation.response.schema(V2_PREFIX)),
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    })
}

/// Narrows the schema of a kind. One that keeps what it does not know is any object: of one whose fields they see, clients
/// refuse all others.
fn define(definition: &mut Value) {
    if definition[PRESERVES] != true {
        return narrow(definition);
    }
    if let Value::Object(map) = definition {
        map.retain(|key, _| matches!(key.as_str(), "x-kubernetes-group-version-kind" | components::SELECTABLE));
        map.insert("type".to_owned(), json!("object"));
    }
}

/// Narrows a schema: no alternatives, no null, one reference without company.
fn narrow(value: &mut Value) {
    let Value::Object(map) = value else { return };
    if let Some(Value::Array(mut required)) = map.remove("required") {
        // What is null counts as missing to clients.
        required.retain(|name| {
            let name = name.as_str().unwrap_or_default();
            map.get("properties").is_none_or(|properties| properties[name][NULLABLE] != true)
        });
        if !required.is_empty() {
            map.insert("required".to_owned(), required.into());
        }
    }
    let is_open = [PRESERVES, NULLABLE].iter().any(|flag| map.get(*flag) == Some(&Value::Bool(true)));
    if let Some(Value::Array(all)) = map.get("allOf")
        && let [Value::Object(only)] = all.as_slice()
        && let Some(reference) = only.get("$ref").cloned()
    {
        map.remove("allOf");
        map.insert("$ref".to_owned(), reference);
    }
    if let Some(Value::String(reference)) = map.get_mut("$ref") {
        *reference = reference.replace(components::V3_PREFIX, V2_PREFIX);
    }
    for key in ["oneOf", "anyOf", "allOf", "not", NULLABLE, "default", "x-kubernetes-validations"] {
        map.remove(key);
    }
    if map.get("format").is_some_and(|format| format == "quantity") {
        map.remove("format");
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        map.insert("type".to_owned(), json!("string"));
        map.insert("format".to_owned(), json!("int-or-string"));
    }
    // Clients that validate would refuse what is preserved, and null; they take what has no type as it is.
    if is_open {
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
