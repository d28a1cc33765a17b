//! Writes the archive of built-in schemas that `carrack-schema` carries.
//!
//! Types and descriptions come from k8s-openapi. What its schemas do not say (how lists and structs
//! merge) comes from `merge-facts.txt`, which is kept by hand. The archive's layout is described
//! where it is read, in `crates/schema/src/builtin.rs`.

mod roots;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let out = PathBuf::from(std::env::args().nth(1).ok_or("usage: schemas <archive to write>")?);
    let mut generator = schemars::generate::SchemaSettings::draft07().into_generator();
    let lists = roots::collect(&mut generator);
    let mut definitions: BTreeMap<String, Value> = generator.take_definitions(true).into_iter().collect();
    for (item, list_kind) in lists {
        let (package, kind) = item.rsplit_once('.').ok_or("a type without a package")?;
        definitions.insert(format!("{package}.{list_kind}"), list_schema(&item, kind, list_kind));
    }
    apply_facts(&mut definitions, include_str!("../merge-facts.txt"))?;

    let mut packages: BTreeMap<String, (Map<String, Value>, Map<String, Value>)> = BTreeMap::new();
    for (full_name, mut schema) in definitions {
        tidy(&mut schema);
        special(&full_name, &mut schema);
        let descriptions = take_descriptions(&mut schema);
        let (package, name) = full_name.rsplit_once('.').ok_or("a type without a package")?;
        let member = packages.entry(package.to_owned()).or_default();
        member.0.insert(name.to_owned(), schema);
        member.1.insert(name.to_owned(), Value::Object(descriptions));
    }
    let (mut index, mut body) = (Vec::new(), Vec::new());
    index.extend(u32::try_from(packages.len())?.to_le_bytes());
    for (name, (structure, descriptions)) in packages {
        index.push(u8::try_from(name.len())?);
        index.extend(name.as_bytes());
        for part in [structure, descriptions] {
            let before = body.len();
            let mut encoder = flate2::write::DeflateEncoder::new(&mut body, flate2::Compression::best());
            encoder.write_all(&serde_json::to_vec(&part)?)?;
            encoder.finish()?;
            index.extend(u32::try_from(body.len() - before)?.to_le_bytes());
        }
    }
    index.extend(body);
    std::fs::write(&out, index)?;
    Ok(())
}

/// The schema of a list, which k8s-openapi has no schemas for.
fn list_schema(item: &str, kind: &str, list_kind: &str) -> Value {
    json!({
        "description": format!("{list_kind} is a list of objects of kind {kind}."),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": "The group and version of the list."},
            "kind": {"type": "string", "description": "The kind of the list."},
            "items": {"type": "array", "description": "The objects.", "items": {"$ref": item}},
            "metadata": {
                "$ref": "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta",
                "description": "Metadata of the list: its revision, and how to get the next page.",
            },
        },
    })
}

/// References point to where OpenAPI v3 documents keep schemas; nothing of schemars' own stays.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref") {
                let name = reference.rsplit('/').next().unwrap_or_default().to_owned();
                *reference = format!("#/components/schemas/{name}");
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Types whose form on the wire a schema of a struct cannot say.
fn special(name: &str, schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
            map.insert("type".into(), json!("string"));
            map.insert("format".into(), json!("quantity"));
            map.remove("x-kubernetes-int-or-string");
        }
        // Any JSON value at all.
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON" => drop(map.remove("type")),
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
            map.insert("x-kubernetes-int-or-string".into(), json!(true));
        }
        _ => {}
    }
    // The Rust types have metadata always; for the API it is a field like others.
    let is_kind = ["apiVersion", "kind", "metadata"]
        .iter()
        .all(|field| map.get("properties").is_some_and(|p| p.get(field).is_some()));
    if let (true, Some(Value::Array(required))) = (is_kind, map.get_mut("required")) {
        required.retain(|field| field != "metadata");
        if required.is_empty() {
            map.remove("required");
        }
    }
}

/// Removes the type's description and those of its fields; the type's own goes under the empty name.
fn take_descriptions(schema: &mut Value) -> Map<String, Value> {
    let mut texts = Map::new();
    let Some(map) = schema.as_object_mut() else { return texts };
    texts.extend(map.remove("description").map(|text| (String::new(), text)));
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for (name, property) in properties {
            let text = property.as_object_mut().and_then(|p| p.remove("description"));
            texts.extend(text.map(|text| (name.clone(), text)));
        }
    }
    texts
}

/// Each line: `<type> <field> <fact>...`, facts being `merge`, `merge=<key>`, `retainKeys`,
/// `list=atomic`, `list=set`, `list=<key>,<key>` and `map=atomic`; a field of `.` is the type itself.
fn apply_facts(definitions: &mut BTreeMap<String, Value>, facts: &str) -> Result<(), Failure> {
    for line in facts.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (type_name, field) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let full_name = format!("io.k8s.{type_name}");
        let schema = definitions.get_mut(&full_name).ok_or_else(|| format!("no type {full_name}: {line}"))?;
        let place =
            if field == "." { Some(schema) } else { schema.get_mut("properties").and_then(|p| p.get_mut(field)) };
        let place = place.and_then(Value::as_object_mut).ok_or_else(|| format!("no such field: {line}"))?;
        let mut strategies = Vec::new();
        for fact in words {
            match fact.split_once('=').unwrap_or((fact, "")) {
                ("merge", key) => {
                    strategies.push("merge");
                    if !key.is_empty() {
                        place.insert("x-kubernetes-patch-merge-key".into(), json!(key));
                    }
                }
                ("retainKeys", "") => strategies.push("retainKeys"),
                ("list", kind @ ("atomic" | "set")) => {
                    place.insert("x-kubernetes-list-type".into(), json!(kind));
                }
                ("list", keys) => {
                    place.insert("x-kubernetes-list-type".into(), json!("map"));
                    place.insert("x-kubernetes-list-map-keys".into(), json!(keys.split(',').collect::<Vec<_>>()));
                }
                ("map", "atomic") => {
                    place.insert("x-kubernetes-map-type".into(), json!("atomic"));
                }
                _ => return Err(format!("unknown fact {fact}: {line}").into()),
            }
        }
        if !strategies.is_empty() {
            place.insert("x-kubernetes-patch-strategy".into(), json!(strategies.join(",")));
        }
    }
    Ok(())
}
