//! What is the same to a client in Go: it leaves out what is empty when it writes an object back as it was, and nothing
//! has changed by that (`equality.Semantic.DeepEqual` over upstream's types). Objects are stored without empty lists and maps
//! ([`crate::decode::conform`]), but with empty texts, since the schema does not say which of them are as good as absent. So
//! what may not change is held against each other in this form.

use serde_json::Value;

use crate::decode::ZEROS;

/// Maps whose keys are the user's: an empty text there is one, and no map is an empty one.
const MAPS: [&str; 11] = [
    "annotations",
    "data",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "options",
    "overhead",
    "parameters",
    "requests",
    "volumeAttributes",
];
/// Texts that say something when they are empty: no class, and not the default one.
const TEXTS: [&str; 2] = ["storageClassName", "volumeAttributesClassName"];

/// The value without what is as good as absent to a client in Go. Two that are equal in this form say the same.
#[must_use]
pub fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let said = fields.iter().filter(|(name, value)| !is_nothing(name, value));
            let is_map = |name: &str, value: &Value| value.is_object() && MAPS.contains(&name);
            let below = |name: &str, value: &Value| if is_map(name, value) { value.clone() } else { plain(value) };
            Value::Object(said.map(|(name, value)| (name.clone(), below(name, value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(plain).collect()),
        other => other.clone(),
    }
}

/// Whether two values of a field say the same.
pub(super) fn same(name: &str, one: &Value, other: &Value) -> bool {
    one == other || !MAPS.contains(&name) && plain(one) == plain(other)
}

fn is_nothing(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty() && MAPS.contains(&name),
        Value::String(text) => text.is_empty() && !TEXTS.contains(&name),
        Value::Bool(flag) => !flag && ZEROS.contains(&name),
        Value::Number(number) => number.as_i64() == Some(0) && ZEROS.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_empty_is_absent() {
        for (one, other, same) in [
            (json!({"a": ""}), json!({}), true),
            (json!({"a": null, "b": []}), json!({}), true),
            (json!({"a": {"tty": false, "hostPort": 0}}), json!({"a": {}}), true),
            (json!([{"name": "A", "value": ""}]), json!([{"name": "A"}]), true),
            (json!({"labels": {}}), json!({}), true),
            (json!({"labels": {"a": ""}}), json!({"labels": {}}), false),
            (json!({"parameters": {"a": ""}}), json!({"parameters": {}}), false),
            (json!({"data": {"raw": []}}), json!({"data": {}}), false),
            (json!({"emptyDir": {}}), json!({}), false),
            (json!({"storageClassName": ""}), json!({}), false),
            (json!({"allowPrivilegeEscalation": false}), json!({}), false),
            (json!({"tolerationSeconds": 0}), json!({}), false),
            (json!({"tty": true}), json!({}), false),
        ] {
            assert_eq!(plain(&one) == plain(&other), same, "{one} and {other}");
        }
        for (name, alike) in [("source", true), ("parameters", false)] {
            assert_eq!(same(name, &json!({"a": ""}), &json!({})), alike, "{name}");
        }
    }
}
