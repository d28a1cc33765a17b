//! The schemas of documents: kinds, their lists, and every type they refer to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::builtin;
use crate::rows::type_name;
use crate::table::{ResourceInfo, SchemaSource, Subresource, Version};

/// Where a v3 document keeps schemas.
pub(super) const V3_PREFIX: &str = "#/components/schemas/";
/// Where a custom kind's schema says by which fields its objects are selected.
pub(super) const SELECTABLE: &str = "x-kubernetes-selectable-fields";
/// The package of the types that all groups share.
pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The name of a kind's schema.
pub(super) fn schema_name(info: &ResourceInfo, version: &Version) -> String {
    match &version.schema {
        SchemaSource::Builtin(name) => name.to_string(),
        SchemaSource::Custom(_) => {
            let group: Vec<&str> = info.group.split('.').rev().collect();
            format!("{}.{}.{}", group.join("."), version.name, info.kind)
        }
    }
}

/// The name of the schema of a kind's list.
pub(super) fn list_name(info: &ResourceInfo, version: &Version) -> String {
    let name = schema_name(info, version);
    let package = name.strip_suffix(info.kind.as_ref()).unwrap_or_default();
    format!("{package}{}", info.list_kind)
}

/// The name of the schema of what is read and written through a subresource.
pub(super) fn subresource_name(info: &ResourceInfo, version: &Version, sub: &Subresource) -> String {
    if (&sub.group, &sub.kind) == (&info.group, &info.kind) {
        schema_name(info, version)
    } else {
        type_name(&sub.group, &sub.version, &sub.kind)
    }
}

/// All schemas that the rows need, by name, in the form of the data files; of one version or all.
pub(super) fn collect(rows: &[&ResourceInfo], version: Option<&str>) -> BTreeMap<String, Value> {
    let mut collector = Collector::default();
    for info in rows {
        for v in info.versions.iter().filter(|v| v.served && version.is_none_or(|wanted| v.name == wanted)) {
            collector.add_row(info, v);
        }
    }
    for name in ["DeleteOptions", "Status"] {
        collector.want(&format!("{META}.{name}"));
    }
    for (name, schema) in [("Patch", patch()), ("WatchEvent", watch_event())] {
        collector.insert(&format!("{META}.{name}"), schema);
    }
    collector.resolve();
    collector.done
}

#[derive(Default)]
struct Collector {
    wanted: Vec<String>,
    done: BTreeMap<String, Value>,
    packages: BTreeMap<String, BTreeMap<String, Value>>,
}

impl Collector {
    fn want(&mut self, name: &str) {
        if !self.done.contains_key(name) {
            self.wanted.push(name.to_owned());
        }
    }

    fn add_row(&mut self, info: &ResourceInfo, version: &Version) {
        let (name, list) = (schema_name(info, version), list_name(info, version));
        match &version.schema {
            SchemaSource::Builtin(_) => {
                self.take(&name);
                self.take(&list);
            }
            SchemaSource::Custom(custom) => {
                let (mut item, list_schema) = (custom_kind(&custom.raw), custom_list(info, &name));
                if !version.selectable_fields.is_empty() {
                    item[SELECTABLE] = version.selectable_fields.iter().map(|f| json!({"fieldPath": f.name})).collect();
                }
                self.insert(&name, item);
                self.insert(&list, list_schema);
            }
        }
        for (name, kind) in [(name, &info.kind), (list, &info.list_kind)] {
            self.tag(&name, &info.group, &version.name, kind);
        }
        for sub in &version.subresources {
            let body = subresource_name(info, version, sub);
            self.take(&body);
            self.tag(&body, &sub.group, &sub.version, &sub.kind);
        }
    }

    /// Marks a schema as that of a kind.
    fn tag(&mut self, name: &str, group: &str, version: &str, kind: &str) {
        if let Some(Value::Object(schema)) = self.done.get_mut(name) {
            let kind = json!([{"group": group, "version": version, "kind": kind}]);
            schema.insert("x-kubernetes-group-version-kind".to_owned(), kind);
        }
    }

    /// Takes a built-in type, if there is one of this name.
    fn take(&mut self, name: &str) {
        let Some((package, _)) = name.rsplit_once('.') else { return };
        let types = self.packages.entry(package.to_owned()).or_insert_with(|| builtin::raw_types(package));
        if let Some(schema) = types.remove(name) {
            self.insert(name, schema);
        }
    }

    fn insert(&mut self, name: &str, schema: Value) {
        references(&schema, &mut self.wanted);
        self.done.insert(name.to_owned(), schema);
    }

    fn resolve(&mut self) {
        while let Some(name) = self.wanted.pop() {
            if !self.done.contains_key(&name) {
                self.take(&name);
            }
        }
    }
}

fn references(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            out.extend(map.get("$ref").and_then(Value::as_str).map(|r| r.rsplit('/').next().unwrap_or(r).to_owned()));
            map.values().for_each(|child| references(child, out));
        }
        Value::Array(list) => list.iter().for_each(|child| references(child, out)),
        _ => {}
    }
}

fn reference(name: &str, description: &str) -> Value {
    json!({"allOf": [{"$ref": format!("{V3_PREFIX}{name}")}], "description": description})
}

/// The body of a patch, which is of many forms.
fn patch() -> Value {
    json!({"type": "object", "description": "A patch, in the form that its media type names."})
}

/// What a watch is answered with, one after the other.
fn watch_event() -> Value {
    let object = reference("io.k8s.apimachinery.pkg.runtime.RawExtension", "The object, or the Status of an error.");
    json!({
        "type": "object",
        "description": "What has become of an object that is watched.",
        "required": ["type", "object"],
        "properties": {
            "type": {"type": "string", "description": "ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."},
            "object": object,
        },
    })
}

/// Descriptions begin as those of built-in kinds do: programs look for that in what `kubectl explain` says.
fn type_fields() -> [(&'static str, Value); 2] {
    let version = "APIVersion defines the group and version of this form of the object.";
    [
        ("apiVersion", json!({"type": "string", "description": version})),
        ("kind", json!({"type": "string", "description": "Kind is the kind of the object."})),
    ]
}

/// A custom kind's schema as its definition has it, with the fields that every object has. Where the definition says nothing
/// of the kind, nothing is said.
fn custom_kind(raw: &Value) -> Value {
    let mut schema = raw.as_object().cloned().unwrap_or_default();
    schema.entry("type").or_insert_with(|| json!("object"));
    describe_object(&mut schema);
    describe_embedded(&mut schema);
    Value::Object(schema)
}

/// Describes the fields that every object has as those of all kinds are, whatever the definition says of them.
fn describe_object(schema: &mut Map<String, Value>) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        properties.extend(type_fields().map(|(name, field)| (name.to_owned(), field)));
        properties
            .insert("metadata".to_owned(), reference(&format!("{META}.ObjectMeta"), "Standard object's metadata."));
    }
}

/// Describes the same fields of whole objects within an object. Definitions leave them out, and clients that validate
/// would refuse them.
fn describe_embedded(schema: &mut Map<String, Value>) {
    for key in ["items", "additionalProperties"] {
        if let Some(Value::Object(child)) = schema.get_mut(key) {
            describe_embedded(child);
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().filter_map(Value::as_object_mut).for_each(describe_embedded);
    }
    if schema.get("x-kubernetes-embedded-resource") != Some(&Value::Bool(true)) {
        return;
    }
    describe_object(schema);
    if let Value::Array(required) = schema.entry("required").or_insert_with(|| json!([])) {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == name) {
                required.push(name.into());
            }
        }
    }
}

fn custom_list(info: &ResourceInfo, item: &str) -> Value {
    let mut properties: Map<String, Value> =
        type_fields().into_iter().map(|(name, field)| (name.to_owned(), field)).collect();
    let items = json!({"type": "array", "description": format!("List of {}.", info.plural), "items": {"$ref": format!("{V3_PREFIX}{item}")}});
    properties.insert("items".to_owned(), items);
    properties.insert("metadata".to_owned(), reference(&format!("{META}.ListMeta"), "Standard list metadata."));
    json!({"type": "object", "description": format!("{} is a list of {}.", info.list_kind, info.kind), "required": ["items"], "properties": properties})
}

/// From the form of the data files to OpenAPI v3, where they differ.
pub(super) fn to_v3(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("format").is_some_and(|format| format == "quantity") {
                map.remove("format");
                map.remove("type");
                map.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": "number"}]));
            }
            let flagged = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
            if flagged && !map.contains_key("type") && !map.contains_key("anyOf") && !map.contains_key("oneOf") {
                map.insert("format".to_owned(), json!("int-or-string"));
                map.insert("oneOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
            }
            map.values_mut().for_each(to_v3);
        }
        Value::Array(list) => list.iter_mut().for_each(to_v3),
        _ => {}
    }
}
