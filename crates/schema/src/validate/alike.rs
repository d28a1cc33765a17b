//! What is the same to a client in Go: it leaves out what is empty when it writes an object back as it was, and nothing
//! has changed by that (`equality.Semantic.DeepEqual` over upstream's types). Objects are stored as they came, so what
//! may not change is held against each other in this form.

use serde_json::Value;

/// Maps whose keys are the user's: an empty text there is one, and no map is an empty one.
const MAPS: [&str; 9] = [
    "annotations",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "options",
    "overhead",
    "requests",
    "volumeAttributes",
];
/// Flags and numbers of pods that are as good as absent when they are false or 0. Of others, absent is something else.
const ZEROS: [&str; 9] =
    ["hostIPC", "hostNetwork", "hostPID", "hostPort", "initialDelaySeconds", "readOnly", "stdin", "stdinOnce", "tty"];
/// Texts that say something when they are empty: no class, and not the default one.
const TEXTS: [&str; 2] = ["storageClassName", "volumeAttributesClassName"];

/// The value without what is as good as absent.
pub(super) fn plain(value: &Value) -> Value {
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
            (json!({"emptyDir": {}}), json!({}), false),
            (json!({"storageClassName": ""}), json!({}), false),
            (json!({"allowPrivilegeEscalation": false}), json!({}), false),
            (json!({"tolerationSeconds": 0}), json!({}), false),
            (json!({"tty": true}), json!({}), false),
        ] {
            assert_eq!(plain(&one) == plain(&other), same, "{one} and {other}");
        }
    }
}
