//! Writes `data/protobuf-fields.txt` anew: the field numbers of Kubernetes' protobuf messages.
//!
//! They are read off the sources of the crate `k8s-pb`, whose folder `src` is the argument:
//! `cargo run -p carrack-apiserver --example protobuf_fields -- …/k8s-pb-0.9.0/src > data/protobuf-fields.txt`.
//! A line is a type's OpenAPI name and, for each field, its number and squashed name; a field that
//! JSON inlines has `=` and its type instead.

use std::collections::BTreeMap;
use std::path::Path;

use carrack_schema::builtin;
use carrack_schema::schema::{Additional, Schema};
use carrack_schema::table;

type Failure = Box<dyn std::error::Error>;

struct Field {
    number: u32,
    name: String,
    type_: String,
    is_message: bool,
}

fn main() -> Result<(), Failure> {
    let root = std::env::args().nth(1).ok_or("usage: protobuf_fields k8s-pb/src")?;
    let mut lines = Vec::new();
    let mut names = BTreeMap::new();
    for row in table::builtin() {
        for version in &row.versions {
            collect(&carrack_schema::rows::type_name(&row.group, &version.name, &row.kind), &mut names);
        }
    }
    visit(Path::new(&root), Path::new(&root), &names, &mut lines)?;
    lines.sort();
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

/// Names of all types that a type leads to, by their lower-case form: prost spells `HTTPGetAction` its
/// own way.
fn collect(name: &str, names: &mut BTreeMap<String, String>) {
    if names.insert(name.to_lowercase(), name.to_owned()).is_some() {
        return;
    }
    if let Some(schema) = builtin::schema(name) {
        walk(schema, names);
    }
}

fn walk(schema: &Schema, names: &mut BTreeMap<String, String>) {
    if let Some(name) = &schema.reference {
        collect(name, names);
    }
    for (_, property) in &schema.properties {
        walk(property, names);
    }
    if let Some(items) = &schema.items {
        walk(items, names);
    }
    if let Additional::Of(values) = &schema.additional {
        walk(values, names);
    }
}

fn visit(
    root: &Path,
    directory: &Path,
    names: &BTreeMap<String, String>,
    lines: &mut Vec<String>,
) -> Result<(), Failure> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            visit(root, &path, names, lines)?;
        } else if path.file_name().is_some_and(|name| name == "mod.rs") {
            let package = directory.strip_prefix(root)?.to_string_lossy().replace('/', ".");
            if let Some(package) = openapi_package(&package) {
                messages(&package, &std::fs::read_to_string(&path)?, names, lines);
            }
        }
    }
    Ok(())
}

/// The OpenAPI package, for those that are served here.
fn openapi_package(package: &str) -> Option<String> {
    let name = format!("io.k8s.{}", package.replace('_', "-"));
    let known = name == "io.k8s.apimachinery.pkg.apis.meta.v1"
        || table::builtin().iter().any(|row| {
            row.versions.iter().any(|version| {
                carrack_schema::rows::type_name(&row.group, &version.name, &row.kind)
                    .strip_suffix(&*row.kind)
                    .is_some_and(|prefix| prefix.trim_end_matches('.') == name)
            })
        });
    known.then_some(name)
}

fn messages(package: &str, source: &str, names: &BTreeMap<String, String>, lines: &mut Vec<String>) {
    let (mut name, mut fields, mut attribute) = (String::new(), Vec::new(), String::new());
    let mut text = source.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    while let Some(line) = text.next() {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            name = rest.trim_end_matches('}').trim_end_matches('{').trim().to_owned();
            fields = Vec::new();
        } else if line.starts_with("#[prost(") {
            attribute = line.to_owned();
            while !attribute.ends_with(")]") {
                attribute.push_str(text.next().unwrap_or(")]"));
            }
        } else if line == "}" && !name.is_empty() {
            lines.push(line_of(package, &name, names, &fields));
            name.clear();
        } else if let Some(rest) = line.strip_prefix("pub ")
            && !attribute.is_empty()
        {
            let mut declaration = rest.to_owned();
            while !declaration.ends_with(',') {
                declaration.push_str(text.next().unwrap_or(","));
            }
            if let (Some((field, type_)), Some(number)) = (declaration.split_once(':'), number(&attribute)) {
                fields.push(Field {
                    number,
                    name: field.trim_start_matches("r#").replace('_', "").to_lowercase(),
                    type_: type_
                        .trim_end_matches(['>', ',', ' '])
                        .rsplit(['<', ':', ' '])
                        .next()
                        .unwrap_or("")
                        .to_owned(),
                    is_message: attribute.contains("(message"),
                });
            }
            attribute.clear();
        }
    }
}

fn number(attribute: &str) -> Option<u32> {
    let (_, rest) = attribute.split_once("tag = \"")?;
    rest.split('"').next()?.parse().ok()
}

/// A property's name without the signs that some have (`$ref`, `x-kubernetes-validations`), in lower case.
fn squashed(property: &str) -> String {
    property.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

fn line_of(package: &str, name: &str, names: &BTreeMap<String, String>, fields: &[Field]) -> String {
    let full = format!("{package}.{name}");
    let full = names.get(&full.to_lowercase()).cloned().unwrap_or(full);
    let schema = builtin::schema(&full);
    let mut line = full;
    for field in fields {
        let is_property =
            schema.is_none_or(|schema| schema.properties.iter().any(|(property, _)| squashed(property) == field.name));
        if is_property || !field.is_message {
            line.push_str(&format!(" {}{}", field.number, field.name));
        } else {
            line.push_str(&format!(" {}={}", field.number, field.type_));
        }
    }
    line
}
