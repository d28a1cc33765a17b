//! Drops what a structural schema does not know, and names it.

use serde_json::Value;

use crate::builtin::{self, OBJECT_META};
use crate::decode::{self, DecodeError, Finding};
use crate::schema::{Additional, Schema};

/// Most findings that are returned.
const MAX_FINDINGS: usize = 100;

/// Fields that every object has at its root (and every embedded resource).
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", METADATA];
const METADATA: &str = "metadata";

/// Removes fields that the schema of a custom resource does not have, unless it preserves them.
/// The removed ones are returned, for `fieldValidation`.
///
/// The object's own `metadata` is left alone: it is checked against the built-in type by
/// [`crate::decode::conform`] with the schema of `ObjectMeta`. That of embedded resources is checked so here,
/// also where everything else is preserved
/// (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta`).
///
/// # Errors
/// When the metadata of an embedded resource is not what metadata is. The object is pruned all the same: one that is stored may
/// have been let in by another definition.
pub fn prune(object: &mut Value, schema: &Schema) -> Result<Vec<Finding>, DecodeError> {
    Walk::of(object, schema.resolve(), "", true)
}

/// The same for the value of a field of an object.
///
/// # Errors
/// As [`prune`].
pub(crate) fn prune_field(value: &mut Value, path: &str, schema: &Schema) -> Result<Vec<Finding>, DecodeError> {
    let node = schema.resolve();
    Walk::of(value, node, path, node.embedded)
}

struct Walk {
    findings: Vec<Finding>,
    path: String,
    /// The first of them.
    fault: Option<DecodeError>,
}

impl Walk {
    fn of(value: &mut Value, node: &Schema, path: &str, is_object: bool) -> Result<Vec<Finding>, DecodeError> {
        let mut walk = Walk { findings: Vec::new(), path: path.to_owned(), fault: None };
        walk.value(value, node, is_object);
        walk.fault.map_or(Ok(walk.findings), Err)
    }

    fn value(&mut self, value: &mut Value, node: &Schema, is_object: bool) {
        let length = self.path.len();
        match value {
            Value::Object(map) => {
                if !node.preserve_unknown && matches!(node.additional, Additional::Unspecified) {
                    map.retain(|key, _| {
                        let known =
                            node.property(key).is_some() || (is_object && OBJECT_FIELDS.contains(&key.as_str()));
                        if !known && self.findings.len() < MAX_FINDINGS {
                            self.findings.push(Finding::unknown(&self.path, key));
                        }
                        known
                    });
                }
                for (key, child) in map.iter_mut() {
                    if is_object && OBJECT_FIELDS.contains(&key.as_str()) {
                        if key == METADATA && !self.path.is_empty() {
                            self.metadata(child);
                        }
                        continue;
                    }
                    let child_schema = node.property(key).or(match &node.additional {
                        Additional::Of(values) => Some(values),
                        _ => None,
                    });
                    if let Some(child_schema) = child_schema {
                        if !self.path.is_empty() {
                            self.path.push('.');
                        }
                        self.path.push_str(key);
                        let child_node = child_schema.resolve();
                        self.value(child, child_node, child_node.embedded);
                        self.path.truncate(length);
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = node.items.as_deref().map(Schema::resolve) else { return };
                for (index, item) in list.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    self.value(item, items, items.embedded);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// The metadata of an embedded resource.
    fn metadata(&mut self, metadata: &mut Value) {
        let Some(schema) = builtin::schema(OBJECT_META) else { return };
        let path = format!("{}.{METADATA}", self.path);
        match decode::conform(metadata, schema) {
            Ok(found) => {
                for finding in found {
                    if let Finding::Unknown(field) = finding
                        && self.findings.len() < MAX_FINDINGS
                    {
                        self.findings.push(Finding::unknown(&path, &field));
                    }
                }
            }
            Err(error) if self.fault.is_none() => {
                self.fault = Some(DecodeError::Mistyped(format!("{}: {error}", decode::beginning(&path))));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prunes() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "string"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"in": {"type": "object", "properties": {}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "integer"}}}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "integer"}}}},
                "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
                "any": {"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}},
            }},
        }}))
        .expect("a schema");
        let mut object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "odd": 1}, "extra": 1, "spec": {
            "a": "b", "b": 1, "free": {"any": {"thing": 1}, "in": {"gone": 1}}, "map": {"k": {"x": 1, "z": 2}}, "list": [{"y": 1}, {"w": 2}],
            "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"deep": 1}, "status": {}},
            "any": [{"metadata": {"name": "m", "namespace": "s", "odd": 1, "creationTimestamp": null}, "extra": 1}],
        }});
        let found = prune(&mut object, &schema).expect("metadata");
        let findings: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            object,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "odd": 1}, "spec": {
                "a": "b", "free": {"any": {"thing": 1}, "in": {}}, "map": {"k": {"x": 1}}, "list": [{"y": 1}, {}],
                "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}},
                "any": [{"metadata": {"name": "m", "namespace": "s"}, "extra": 1}],
            }})
        );
        assert_eq!(findings.len(), 8);
        for path in [
            "extra",
            "spec.b",
            "spec.free.in.gone",
            "spec.map.k.z",
            "spec.list[1].w",
            "spec.pod.spec.deep",
            "spec.pod.status",
            "spec.any[0].metadata.odd",
        ] {
            assert!(findings.contains(&format!("unknown field \"{path}\"")), "{path} in {findings:?}");
        }
        for metadata in [json!("none"), json!({"labels": {"a": 1}}), json!({"name": {}})] {
            let mut object = json!({"spec": {"any": [{}, {"metadata": metadata}], "b": 1, "list": [{"w": 2}]}});
            let refused = prune(&mut object, &schema).map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|why| why.starts_with("spec.any[1].metadata: ")), "{refused:?}");
            assert_eq!(object["spec"]["list"], json!([{}]), "the rest is pruned all the same");
        }
    }
}
