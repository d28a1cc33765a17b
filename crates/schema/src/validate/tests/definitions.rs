//! Schemas of definitions, and what is said of those that upstream refuses. `$` stands for the root of the schema.

use serde_json::{Value, json};

use super::{texts, with};
use crate::error::FieldError;
use crate::table::{self, ResourceInfo};
use crate::validate::{create, update};

/// A definition of one version with this schema.
fn definition(schema: &Value) -> Value {
    json!({"metadata": {"name": "tabs.x.io"}, "spec": {
        "group": "x.io", "scope": "Namespaced",
        "names": {"plural": "tabs", "singular": "tab", "kind": "Tab", "listKind": "TabList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

fn info() -> &'static ResourceInfo {
    table::find_kind("apiextensions.k8s.io", "CustomResourceDefinition").expect("definitions")
}

fn shown(errors: &[FieldError]) -> Vec<String> {
    texts(errors).iter().map(|text| text.replace("spec.versions[0].schema.openAPIV3Schema", "$")).collect()
}

/// Defines with the schema and expects exactly these errors.
#[track_caller]
fn check(schema: &Value, expected: &[&str]) {
    assert_eq!(shown(&create(info(), "v1", &definition(schema))), expected, "{schema}");
}

/// Defines with the schema of the property `a` alone and expects exactly these errors, with paths from `a` on.
#[track_caller]
fn check_property(schema: &Value, expected: &[&str]) {
    let whole = json!({"type": "object", "properties": {"a": schema}});
    let found = shown(&create(info(), "v1", &definition(&whole)));
    let found: Vec<String> = found.iter().map(|text| text.replace("$.properties[a]", "a")).collect();
    assert_eq!(found, expected, "{schema}");
}

const NAMED_ALONE: &str = "$.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";

#[test]
fn roots() {
    let metadata = |metadata: Value| json!({"type": "object", "properties": {"metadata": metadata}});
    let table: Vec<(Value, &[&str])> = vec![
        (json!({"type": "object"}), &[]),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), &[]),
        (json!({}), &["$.type: Required value: must not be empty at the root"]),
        (json!({"type": "string"}), &["$.type: Invalid value: \"string\": must be object at the root"]),
        (json!({"type": "object", "nullable": true}), &["$.nullable: Forbidden: nullable cannot be true at the root"]),
        (
            json!({"type": "object", "properties": {
                "apiVersion": {"type": "integer"}, "kind": {"type": "boolean"}, "metadata": {"type": "string"}}}),
            &[
                "$.properties[apiVersion].type: Invalid value: \"integer\": must be string",
                "$.properties[kind].type: Invalid value: \"boolean\": must be string",
                "$.properties[metadata].type: Invalid value: \"string\": must be object",
            ],
        ),
        (
            metadata(json!({"type": "object", "nullable": false, "properties": {
                "name": {"type": "string", "maxLength": 3}, "generateName": {"type": "string"}}})),
            &[],
        ),
        (metadata(json!({"type": "object", "description": "x"})), &[NAMED_ALONE]),
        (metadata(json!({"type": "object", "required": ["name"]})), &[NAMED_ALONE]),
        (metadata(json!({"type": "object", "properties": {"labels": {"type": "object"}}})), &[NAMED_ALONE]),
        (
            metadata(json!({"type": "object", "properties": {"name": {"type": "string", "default": "x"}}})),
            &["$.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata"],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "string", "default": "X"}}}),
            &["$.properties[kind].default: Forbidden: must not be set in top-level kind"],
        ),
        (
            json!({"type": "object", "properties": {"b": {"type": "object"}},
                "allOf": [{"properties": {"b": {"items": {"minimum": 1}}}}],
                "anyOf": [{"properties": {"a": {"minimum": 1}}}, {"required": ["b"]}],
                "not": {"properties": {"b": {"properties": {"c": {"enum": [1]}}}}}}),
            &[
                "$.properties[b].items: Required value: because it is defined in $.allOf[0].properties[b].items",
                "$.properties[a]: Required value: because it is defined in $.anyOf[0].properties[a]",
                "$.properties[b].properties[c]: Required value: because it is defined in $.not.properties[b].properties[c]",
            ],
        ),
    ];
    for (schema, expected) in table {
        check(&schema, expected);
    }
}

#[test]
fn roots_with_a_status_apart() {
    let found = |schema: Value| {
        let with_status = with(definition(&schema), &[("/spec/versions/0/subresources", json!({"status": {}}))]);
        shown(&create(info(), "v1", &with_status))
    };
    let good = json!({"type": "object", "title": "x", "required": ["a"], "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(found(good), [""; 0]);
    let told = found(json!({"type": "object", "minProperties": 1}));
    assert!(
        matches!(told.as_slice(), [only] if only.starts_with("$: Invalid value: only [Description Type ")),
        "{told:?}"
    );
    check(&json!({"type": "object", "minProperties": 1}), &[]);
}

#[test]
fn types_and_junctors() {
    let choice = json!([{"type": "integer"}, {"type": "string"}]);
    let table: Vec<(Value, &[&str])> = vec![
        (
            json!({"type": "array", "items": {}}),
            &["a.items.type: Required value: must not be empty for specified array items"],
        ),
        (
            json!({"type": "object", "additionalProperties": {}}),
            &["a.additionalProperties.type: Required value: must not be empty for specified object fields"],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "additionalItems": false}),
            &["a.additionalItems: Forbidden: additionalItems is not supported"],
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            &["a.x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined"],
        ),
        (json!({"x-kubernetes-int-or-string": true}), &[]),
        (json!({"x-kubernetes-int-or-string": true, "anyOf": choice, "pattern": "x"}), &[]),
        (json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": choice}, {"pattern": "x"}]}), &[]),
        (
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "string"}, {"type": "integer"}]}),
            &[
                "a.anyOf[0].type: Forbidden: must be empty to be structural",
                "a.anyOf[1].type: Forbidden: must be empty to be structural",
            ],
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}),
            &[
                "a.x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ],
        ),
        (
            json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            &["a.type: Required value: must be object if x-kubernetes-embedded-resource is true"],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "additionalProperties": true}),
            &[
                "a.additionalProperties: Forbidden: must not be used if x-kubernetes-embedded-resource is set",
                "a.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": {
                "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}),
            &[
                "a.properties[metadata].x-kubernetes-embedded-resource: Forbidden: must not be used inside of resource meta",
            ],
        ),
        (
            json!({"type": "string", "not": {"x-kubernetes-validations": [{"rule": "true"}], "properties": {"metadata": {}}},
                "allOf": [{"default": false, "title": "t", "description": "d", "nullable": true,
                    "x-kubernetes-embedded-resource": true, "x-kubernetes-int-or-string": true}]}),
            &[
                "a.allOf[0].default: Forbidden: must be undefined to be structural",
                "a.allOf[0].title: Forbidden: must be empty to be structural",
                "a.allOf[0].description: Forbidden: must be empty to be structural",
                "a.allOf[0].nullable: Forbidden: must be false to be structural",
                "a.allOf[0].x-kubernetes-embedded-resource: Forbidden: must be false to be structural",
                "a.allOf[0].x-kubernetes-int-or-string: Forbidden: must be false to be structural",
                "a.not.x-kubernetes-validations: Forbidden: must be empty to be structural",
                "a.not.properties[metadata]: Forbidden: must not be specified in a nested context",
            ],
        ),
    ];
    for (schema, expected) in table {
        check_property(&schema, expected);
    }
}

#[test]
fn lists_and_maps() {
    let set = |items: Value| json!({"type": "array", "x-kubernetes-list-type": "set", "items": items});
    let of_keys = |keys: Value, items: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items});
    let table: Vec<(Value, &[&str])> = vec![
        (set(json!({"type": "object", "x-kubernetes-map-type": "atomic"})), &[]),
        (
            set(json!({"type": "object"})),
            &[
                "a.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ],
        ),
        (set(json!({"type": "array", "items": {"type": "string"}})), &[]),
        (
            set(set(json!({"type": "string"}))),
            &[
                "a.items.x-kubernetes-list-type: Invalid value: \"set\": must be atomic as item of a list with x-kubernetes-list-type=set",
            ],
        ),
        (
            set(json!({"type": "string", "nullable": true})),
            &["a.items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "bag", "items": {"type": "string"}}),
            &["a.x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\""],
        ),
        (
            json!({"type": "string", "x-kubernetes-list-type": "atomic"}),
            &["a.type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "string"}}),
            &["a.x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty"],
        ),
        (of_keys(json!(["k"]), json!({"type": "object", "properties": {"k": {"type": "string", "default": ""}}})), &[]),
        (
            of_keys(json!([]), json!({"type": "string", "nullable": true})),
            &[
                "a.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
                "a.items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
                "a.items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is map",
            ],
        ),
        (
            of_keys(
                json!(["k", "k", "l"]),
                json!({"type": "object", "properties": {"k": {"type": "object", "nullable": true}}}),
            ),
            &[
                "a.items.properties[k].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is map",
                "a.items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
                "a.items.properties[k].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
                "a.x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\",\"l\"]: entries must all be names of item properties",
                "a.x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\",\"l\"]: must not contain duplicate entries",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-map-type": "loose"}),
            &["a.x-kubernetes-map-type: Unsupported value: \"loose\": supported values: \"atomic\", \"granular\""],
        ),
        (
            json!({"type": "string", "x-kubernetes-map-type": "atomic"}),
            &["a.type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified"],
        ),
    ];
    for (schema, expected) in table {
        check_property(&schema, expected);
    }
}

#[test]
fn defaults() {
    let whole = |more: Value| {
        let mut schema = json!({"type": "object", "x-kubernetes-embedded-resource": true});
        for (key, value) in more.as_object().into_iter().flatten() {
            schema[key] = value.clone();
        }
        schema
    };
    let table: Vec<(Value, &[&str])> = vec![
        (json!({"type": "object", "default": {"b": 1}, "properties": {"b": {"type": "integer"}}}), &[]),
        (
            json!({"type": "object", "default": {"b": 1, "c": 2}, "properties": {"b": {"type": "integer"}}}),
            &["a.default: Invalid value: {\"b\":1,\"c\":2}: must not have unknown fields"],
        ),
        (json!({"type": "object", "default": {"c": 2}, "x-kubernetes-preserve-unknown-fields": true}), &[]),
        (
            json!({"type": "array", "default": [1, "x"], "items": {"type": "integer"}}),
            &["a.default[1]: Invalid value: \"string\": [1] in body must be of type integer: \"string\""],
        ),
        (
            json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 1"}]}),
            &["a.default: Invalid value: \"integer\": failed rule: self > 1"],
        ),
        (
            json!({"type": "integer", "default": 1, "x-kubernetes-validations": [
                {"rule": "oldSelf.hasValue()", "optionalOldSelf": true, "message": "not at once"}]}),
            &["a.default: Invalid value: \"integer\": not at once"],
        ),
        (
            json!({"type": "object", "default": {"b": 1}, "properties": {"b": {"type": "integer",
                "x-kubernetes-validations": [{"rule": "self > 1"}]}}}),
            &["a.default.b: Invalid value: \"integer\": failed rule: self > 1"],
        ),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer", "default": 1,
                "x-kubernetes-validations": [{"rule": "self > 1"}]}}}}),
            &["a.items.properties[b].default: Invalid value: \"integer\": failed rule: self > 1"],
        ),
        // Upstream looks at none of these.
        (json!({"type": "object", "additionalProperties": {"type": "integer", "default": "x"}}), &[]),
        (
            whole(json!({"x-kubernetes-preserve-unknown-fields": true,
                "default": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a/b"}}})),
            &["a.default.metadata.name: Invalid value: \"a/b\": may not contain '/'"],
        ),
        (
            whole(json!({"properties": {"metadata": {"type": "object", "properties": {
                "labels": {"type": "object", "additionalProperties": {"type": "string", "default": "x"}},
                "name": {"type": "string", "default": "a/b"}}}}})),
            &[
                "a.properties[metadata].properties[name].default: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value: \"a/b\": may not contain '/'",
                "a.properties[metadata].properties[labels].additionalProperties.default: Forbidden: must not be set inside additionalProperties applying to object metadata",
            ],
        ),
    ];
    for (schema, expected) in table {
        check_property(&schema, expected);
    }
}

/// What an older release has let in holds up no change of something else, wherever the version is now.
#[test]
fn what_was_wrong_before_may_stay() {
    let wrong =
        json!({"type": "object", "nullable": true, "properties": {"a": {"type": "object", "default": {"b": 1}}}});
    let unused = json!({"strategy": "None", "webhook": {"clientConfig": {"url": "https://x.example"}}});
    let changes = [("/spec/names/singular", json!("Tab")), ("/spec/conversion", unused)];
    let old = with(definition(&wrong), &changes);
    assert_eq!(create(info(), "v1", &old).len(), 4);
    let mut new = old.clone();
    let versions = new["spec"]["versions"].as_array_mut().expect("versions");
    versions.insert(
        0,
        json!({"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}),
    );
    versions[1]["schema"]["openAPIV3Schema"]["properties"]["c"] = json!({"type": "string"});
    assert_eq!(shown(&update(info(), "v1", &new, &old, "")), [""; 0]);
    let worse = with(new.clone(), &[("/spec/versions/0/schema/openAPIV3Schema/nullable", json!(true))]);
    let expected = ["$.nullable: Forbidden: nullable cannot be true at the root"];
    assert_eq!(shown(&update(info(), "v1", &worse, &old, "")), expected);
    let worse = with(new, &[("/spec/names/singular", json!("TAB"))]);
    let told = shown(&update(info(), "v1", &worse, &old, ""));
    let is_it = |text: &String| text.starts_with("spec.names.singular: Invalid value: \"TAB\": ");
    assert!(told.len() == 1 && told.iter().all(is_it), "{told:?}");
}
