//! Drops what a structural schema does not know, and names it.

use serde_json::Value;

use crate::decode::Finding;
use crate::schema::{Additional, Schema};

/// Most findings that are returned.
const MAX_FINDINGS: usize = 100;

/// Fields that every object has at its root (and every embedded resource).
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes fields that the schema of a custom resource does not have, unless it preserves them.
/// The removed ones are returned, for `fieldValidation`.
///
/// `metadata` is left alone: it is checked against the built-in type by
/// [`crate::decode::conform`] with the schema of `ObjectMeta`.
#[must_use]
pub fn prune(object: &mut Value, schema: &Schema) -> Vec<Finding> {
    let mut walk = Walk { findings: Vec::new(), path: String::new() };
    walk.value(object, schema.resolve(), true);
    walk.findings
}

struct Walk {
    findings: Vec<Finding>,
    path: String,
}

impl Walk {
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
            }},
        }}))
        .expect("a schema");
        let mut object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "odd": 1}, "extra": 1, "spec": {
            "a": "b", "b": 1, "free": {"any": {"thing": 1}, "in": {"gone": 1}}, "map": {"k": {"x": 1, "z": 2}}, "list": [{"y": 1}, {"w": 2}],
            "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"deep": 1}, "status": {}},
        }});
        let findings: Vec<_> = prune(&mut object, &schema).iter().map(ToString::to_string).collect();
        assert_eq!(
            object,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "odd": 1}, "spec": {
                "a": "b", "free": {"any": {"thing": 1}, "in": {}}, "map": {"k": {"x": 1}}, "list": [{"y": 1}, {}],
                "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}},
            }})
        );
        assert_eq!(findings.len(), 7);
        for path in [
            "extra",
            "spec.b",
            "spec.free.in.gone",
            "spec.map.k.z",
            "spec.list[1].w",
            "spec.pod.spec.deep",
            "spec.pod.status",
        ] {
            assert!(findings.contains(&format!("unknown field \"{path}\"")), "{path} in {findings:?}");
        }
    }
}
