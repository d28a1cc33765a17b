//! What other servers say in their v2 documents, as a part of ours.
//!
//! Upstream: `k8s.io/kube-openapi/pkg/aggregator`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Where documents keep schemas, and parameters that several operations have.
const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";

/// What another server's v2 document says of one group and version: its paths, with their parameters in place, and the
/// definitions that they lead to.
#[must_use]
pub fn v2_part(mut document: Value, group: &str, version: &str) -> Value {
    let below = format!("/apis/{group}/{version}/");
    let (mut paths, parameters) = (taken(&mut document, "paths"), taken(&mut document, "parameters"));
    paths.retain(|path, _| path.starts_with(&below));
    let mut paths = Value::Object(paths);
    put_in_place(&mut paths, &parameters);
    let mut definitions = taken(&mut document, "definitions");
    let (mut wanted, mut open) = (BTreeSet::new(), Vec::new());
    led_to(&paths, &mut open);
    while let Some(name) = open.pop() {
        if let Some(definition) = definitions.get(&name)
            && wanted.insert(name)
        {
            led_to(definition, &mut open);
        }
    }
    definitions.retain(|name, _| wanted.contains(name));
    json!({"paths": paths, "definitions": definitions})
}

/// Adds such a part to a document. Of a name that both define, and not alike, the part's gets another one.
pub(super) fn add(document: &mut Value, part: &Value) {
    let mut part = part.clone();
    let mut names = BTreeMap::new();
    if let (Some(known), Some(new)) = (document["definitions"].as_object(), part["definitions"].as_object()) {
        for (name, definition) in new {
            let fits = |name: &str| known.get(name).is_none_or(|known| known == definition);
            let (mut other, mut number) = (name.clone(), 1);
            while !fits(&other) || (number > 1 && new.contains_key(&other)) {
                number += 1;
                other = format!("{name}_v{number}");
            }
            names.insert(name.clone(), other);
        }
    }
    rename(&mut part, &names);
    for (name, definition) in taken(&mut part, "definitions") {
        let name = names.get(&name).unwrap_or(&name);
        document["definitions"][name] = definition;
    }
    for (path, item) in taken(&mut part, "paths") {
        document["paths"][path] = item;
    }
}

fn taken(document: &mut Value, key: &str) -> Map<String, Value> {
    match document.get_mut(key).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Puts parameters where they are referred to.
fn put_in_place(value: &mut Value, parameters: &Map<String, Value>) {
    let named = value.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix(PARAMETERS));
    if let Some(parameter) = named.and_then(|name| parameters.get(name)) {
        *value = parameter.clone();
        return;
    }
    match value {
        Value::Object(map) => map.values_mut().for_each(|child| put_in_place(child, parameters)),
        Value::Array(items) => items.iter_mut().for_each(|child| put_in_place(child, parameters)),
        _ => {}
    }
}

/// The definitions that are referred to.
fn led_to(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            // A schema may have a property of that name, which is no text.
            let target = map.get("$ref").and_then(Value::as_str);
            names.extend(target.and_then(|target| target.strip_prefix(DEFINITIONS)).map(str::to_owned));
            map.values().for_each(|child| led_to(child, names));
        }
        Value::Array(items) => items.iter().for_each(|child| led_to(child, names)),
        _ => {}
    }
}

/// Refers to definitions by their new names.
fn rename(value: &mut Value, names: &BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get_mut("$ref")
                && let Some(name) = target.strip_prefix(DEFINITIONS).and_then(|name| names.get(name))
            {
                *target = format!("{DEFINITIONS}{name}");
            }
            map.values_mut().for_each(|child| rename(child, names));
        }
        Value::Array(items) => items.iter_mut().for_each(|child| rename(child, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(name: &str) -> Value {
        json!({"$ref": format!("{DEFINITIONS}{name}")})
    }

    #[test]
    fn a_part_is_whole_and_no_more() {
        let path = json!({"get": {
            "parameters": [{"$ref": "#/parameters/limit-1"}],
            "responses": {"200": {"schema": definition("Reading")}},
        }});
        let reading = json!({"properties": {"$ref": {"type": "string"}, "meta": definition("Meta")}});
        let meta = json!({"properties": {"owner": definition("Meta"), "gone": definition("Gone")}});
        let document = json!({
            "swagger": "2.0",
            "paths": {"/apis/a.example.com/v1/readings": path, "/apis/a.example.com/v1beta1/readings": path, "/version": {}},
            "parameters": {"limit-1": {"in": "query", "name": "limit"}},
            "definitions": {"Reading": reading, "Meta": meta, "Other": {}},
        });
        let shown = json!({"get": {
            "parameters": [{"in": "query", "name": "limit"}],
            "responses": {"200": {"schema": definition("Reading")}},
        }});
        assert_eq!(
            v2_part(document, "a.example.com", "v1"),
            json!({
                "paths": {"/apis/a.example.com/v1/readings": shown},
                "definitions": {"Reading": reading, "Meta": meta},
            })
        );
        for nothing in [json!(null), json!({"paths": []}), json!("text")] {
            assert_eq!(v2_part(nothing, "a.example.com", "v1"), json!({"paths": {}, "definitions": {}}));
        }
    }

    #[test]
    fn names_that_mean_something_else_are_others() {
        let own = json!({"type": "object"});
        let mut document = json!({"paths": {"/a": {}}, "definitions": {"Meta": own, "Time": own, "Meta_v2": own}});
        let part = json!({
            "paths": {"/b": definition("Meta"), "/c": definition("Time")},
            "definitions": {"Meta": {"properties": {"in": definition("Meta")}}, "Time": own, "New": definition("Meta")},
        });
        add(&mut document, &part);
        assert_eq!(
            document,
            json!({
                "paths": {"/a": {}, "/b": definition("Meta_v3"), "/c": definition("Time")},
                "definitions": {
                    "Meta": own, "Time": own, "Meta_v2": own,
                    "Meta_v3": {"properties": {"in": definition("Meta_v3")}}, "New": definition("Meta_v3"),
                },
            })
        );
    }
}
