//! A piece of an object that is merged into the whole, with no regard to whose fields they are: what MutatingAdmissionPolicies do.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch/smd.go`, by `TypedValue.Merge` of structured-merge-diff.

use serde_json::Value;

use super::view::{self, Shape, field_or_any, shape};
use super::{Object, merge};
use crate::schema::Schema;

/// Merges a piece into an object. Lists whose items are told apart are merged by item; what only the object has stays.
pub fn merge_piece(object: &mut Object, piece: &Object, schema: &Schema) {
    merge::merge(object, piece, schema.resolve());
}

/// Where in a piece there are lists, maps or structs that count as a whole: to say a part of them would take the rest away.
#[must_use]
pub fn atomics(piece: &Object, schema: &Schema) -> Vec<String> {
    let mut found = Vec::new();
    let node = schema.resolve();
    for (name, value) in piece {
        find(value, field_or_any(node, name), &format!(".{name}"), &mut found);
    }
    found
}

fn find(value: &Value, place: &Schema, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let is_whole = matches!(shape(place, value), Shape::Leaf);
            found.extend(is_whole.then(|| path.to_owned()));
            let node = place.resolve();
            for (name, value) in fields {
                find(value, field_or_any(node, name), &format!("{path}.{name}"), found);
            }
        }
        Value::Array(items) => match view::items(place) {
            None => found.push(path.to_owned()),
            Some(rule) => {
                for (index, item) in items.iter().enumerate() {
                    find(item, rule.schema, &format!("{path}[{index}]"), found);
                }
            }
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> &'static Schema {
        crate::builtin::schema("io.k8s.api.core.v1.Pod").expect("a schema")
    }

    fn object(value: Value) -> Object {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn what_counts_as_a_whole_is_found() {
        let check = |piece: Value, want: &[&str]| assert_eq!(atomics(&object(piece.clone()), pod()), want, "{piece}");
        check(json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["x.io/a"]}}), &[]);
        check(json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}), &[]);
        check(json!({"spec": {"containers": [{"name": "c", "args": ["a"]}]}}), &[".spec.containers[0].args"]);
        check(json!({"spec": {"nodeSelector": {"a": "b"}}}), &[".spec.nodeSelector"]);
    }

    #[test]
    fn pieces_are_merged_by_item() {
        let mut whole = object(json!({"metadata": {"labels": {"a": "1"}},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}}));
        let piece = json!({"metadata": {"labels": {"b": "2"}}, "spec": {"containers": [{"name": "d", "image": "k"}]}});
        merge_piece(&mut whole, &object(piece), pod());
        let want = json!({"metadata": {"labels": {"a": "1", "b": "2"}},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "k"}]}});
        assert_eq!(Value::Object(whole), want);
    }
}
