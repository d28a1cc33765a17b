//! Rows of custom resources, made from their CustomResourceDefinition.

pub mod approval;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::Value;

use crate::builtin::OBJECT_META;
use crate::jsonpath::JsonPath;
use crate::schema::Schema;
use crate::table::{
    ColumnDef, CustomSchema, ResourceInfo, ScalePaths, SchemaSource, SelectableField, Subresource, Text, Version,
};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Why a definition makes no row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CustomResourceDefinition {name}: {problem}")]
pub struct CrdError {
    /// Name of the definition.
    pub name: String,
    /// What is wrong.
    pub problem: String,
}

/// The row of the resource that a CustomResourceDefinition defines. It is called as its names have been accepted, if they have
/// been, whatever it wants to be called.
///
/// Whether the definition is a good one is judged by [`crate::validate::create`]; this needs only
/// what a row is made of.
///
/// # Errors
/// When a name is missing, or a schema or path cannot be parsed.
pub fn resource_info(definition: &Value) -> Result<ResourceInfo, CrdError> {
    let reader = Reader { definition };
    let spec = definition.get("spec").ok_or_else(|| reader.error("spec is missing"))?;
    let accepted = definition.pointer("/status/acceptedNames").filter(|names| {
        // Those of which some are taken are not complete.
        ["plural", "kind"].into_iter().all(|name| optional(names, name).is_some())
    });
    let wanted = spec.get("names").ok_or_else(|| reader.error("spec.names is missing"))?;
    let names = accepted.unwrap_or(wanted);
    let group = reader.needed(spec, "group")?;
    let kind = reader.needed(names, "kind")?;
    let plural = reader.needed(names, "plural")?;
    let list_kind = optional(names, "listKind").unwrap_or_else(|| format!("{kind}List"));
    let singular = optional(names, "singular").unwrap_or_else(|| kind.to_lowercase());
    let mut versions = Vec::new();
    for version in list(spec, "versions") {
        versions.push(reader.version(&group, &kind, version)?);
    }
    if versions.is_empty() {
        return Err(reader.error("it has no versions"));
    }
    versions.sort_by_key(|version: &Version| Reverse(priority(&version.name)));
    let conversion = spec
        .get("conversion")
        .filter(|conversion| optional(conversion, "strategy").as_deref() == Some("Webhook"))
        .and_then(|conversion| conversion.get("webhook"))
        .map(|webhook| Arc::new(webhook.clone()));
    Ok(ResourceInfo {
        conversion,
        storage: (group.clone().into(), plural.clone().into()),
        group: group.into(),
        kind: kind.into(),
        list_kind: list_kind.into(),
        plural: plural.into(),
        singular: singular.into(),
        short_names: texts(names, "shortNames"),
        categories: texts(names, "categories"),
        namespaced: optional(spec, "scope").as_deref() == Some("Namespaced"),
        verbs: VERBS.into_iter().map(Cow::Borrowed).collect(),
        versions,
        is_virtual: false,
        has_generation: true,
        graceful_deletion: false,
        is_custom: true,
        defined_at: 0,
    })
}

/// How versions rank, as Kubernetes has it: general availability before beta before alpha, then the
/// greater numbers; what is not of that form comes last, by name backwards.
/// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#version-priority>
#[must_use]
pub fn priority(version: &str) -> (u8, u64, u64, Reverse<String>) {
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, rest) = rest.split_at(end);
        let major = major.parse().ok()?;
        let (rank, minor) = match rest {
            "" => (3, 0),
            _ => match rest.strip_prefix("beta") {
                Some(minor) => (2, minor.parse().ok()?),
                None => (1, rest.strip_prefix("alpha")?.parse().ok()?),
            },
        };
        Some((rank, major, minor))
    });
    match parsed {
        Some((rank, major, minor)) => (rank, major, minor, Reverse(String::new())),
        None => (0, 0, 0, Reverse(version.to_owned())),
    }
}

fn optional(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn texts(value: &Value, key: &str) -> Vec<Text> {
    list(value, key).filter_map(Value::as_str).map(|text| Cow::Owned(text.to_owned())).collect()
}

fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}

struct Reader<'a> {
    definition: &'a Value,
}

impl Reader<'_> {
    fn error(&self, problem: impl Into<String>) -> CrdError {
        let name = self.definition.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        CrdError { name: name.to_owned(), problem: problem.into() }
    }

    fn needed(&self, value: &Value, key: &str) -> Result<String, CrdError> {
        optional(value, key).ok_or_else(|| self.error(format!("{key} is missing")))
    }

    fn path(&self, text: &str) -> Result<JsonPath, CrdError> {
        JsonPath::parse(text).map_err(|error| self.error(error.to_string()))
    }

    fn version(&self, group: &str, kind: &str, version: &Value) -> Result<Version, CrdError> {
        let name = self.needed(version, "name")?;
        let deprecation_warning = flag(version, "deprecated").then(|| {
            let own = optional(version, "deprecationWarning");
            Cow::Owned(own.unwrap_or_else(|| format!("{group}/{name} {kind} is deprecated")))
        });
        Ok(Version {
            served: flag(version, "served"),
            storage: flag(version, "storage"),
            deprecation_warning,
            schema: SchemaSource::Custom(Arc::new(self.schema(version)?)),
            subresources: self.subresources(group, kind, &name, version),
            selectable_fields: list(version, "selectableFields")
                .map(|field| self.selectable(field))
                .collect::<Result<_, _>>()?,
            columns: list(version, "additionalPrinterColumns")
                .map(|column| self.column(column))
                .collect::<Result<_, _>>()?,
            name: name.into(),
        })
    }

    fn schema(&self, version: &Value) -> Result<CustomSchema, CrdError> {
        let raw = version
            .pointer("/schema/openAPIV3Schema")
            .cloned()
            .unwrap_or_else(|| serde_json::json!({"type": "object"}));
        let mut schema = Schema::parse(&raw).map_err(|error| self.error(format!("schema: {error}")))?;
        add_object_fields(&mut schema);
        let (rules, _) = crate::rules::compile(&schema, "");
        Ok(CustomSchema { schema, raw, rules })
    }

    fn subresources(&self, group: &str, kind: &str, version: &str, spec: &Value) -> Vec<Subresource> {
        let mut found = Vec::new();
        let Some(subresources) = spec.get("subresources") else { return found };
        let verbs: Vec<Text> = STATUS_VERBS.into_iter().map(Cow::Borrowed).collect();
        if let Some(scale) = subresources.get("scale").filter(|s| !s.is_null()) {
            let paths = ScalePaths {
                spec_replicas: optional(scale, "specReplicasPath").unwrap_or_default(),
                status_replicas: optional(scale, "statusReplicasPath").unwrap_or_default(),
                label_selector: optional(scale, "labelSelectorPath"),
            };
            found.push(Subresource {
                name: "scale".into(),
                group: "autoscaling".into(),
                version: "v1".into(),
                kind: "Scale".into(),
                verbs: verbs.clone(),
                scale: Some(paths),
            });
        }
        if subresources.get("status").is_some_and(|s| !s.is_null()) {
            found.push(Subresource {
                name: "status".into(),
                group: Cow::Owned(group.to_owned()),
                version: Cow::Owned(version.to_owned()),
                kind: Cow::Owned(kind.to_owned()),
                verbs,
                scale: None,
            });
        }
        found
    }

    fn selectable(&self, field: &Value) -> Result<SelectableField, CrdError> {
        let text = self.needed(field, "jsonPath")?;
        let path = self.path(&text)?;
        Ok(SelectableField {
            name: Cow::Owned(text.trim_start_matches('.').to_owned()),
            paths: vec![path],
            absent: Cow::Borrowed(""),
        })
    }

    fn column(&self, column: &Value) -> Result<ColumnDef, CrdError> {
        Ok(ColumnDef {
            name: self.needed(column, "name")?,
            type_: self.needed(column, "type")?,
            format: optional(column, "format").unwrap_or_default(),
            description: optional(column, "description").unwrap_or_default(),
            priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0),
            // A column that cannot be read is empty; the resource is served all the same, as upstream serves it.
            path: JsonPath::parse(&self.needed(column, "jsonPath")?).ok(),
        })
    }
}

/// Every object has them, whether its schema says so or not.
fn add_object_fields(schema: &mut Schema) {
    let text = Schema { type_: crate::schema::Type::String, ..Schema::default() };
    let metadata = Schema { reference: Some(OBJECT_META.into()), ..Schema::default() };
    let mut properties = std::mem::take(&mut schema.properties).into_vec();
    for (name, field) in [("apiVersion", text.clone()), ("kind", text), ("metadata", metadata)] {
        match properties.iter_mut().find(|(key, _)| key.as_ref() == name) {
            // `metadata: {type: object}` says nothing; what it says more (a pattern of the name) stays.
            Some((_, own)) if name == "metadata" && own.properties.is_empty() => *own = field,
            Some(_) => {}
            None => properties.push((name.into(), field)),
        }
    }
    properties.sort_by(|(a, _), (b, _)| a.cmp(b));
    schema.properties = properties.into();
}

#[cfg(test)]
pub(crate) mod tests;
