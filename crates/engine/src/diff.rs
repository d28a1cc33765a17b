//! The smallest merge patch (RFC 7386) from one state of an object to another.
//!
//! Controllers read objects into types that may know fewer fields than the object has. Writing the whole type back
//! would drop the rest; a patch of what changed leaves it alone.

use serde::Serialize;
use serde_json::{Map, Value};

/// What a merge patch must say to turn `old` into `new`; nothing when they are equal.
///
/// Values that fail to serialise count as empty: the types here have string keys and no failing serialisers.
pub fn merge_patch<T: Serialize>(old: &T, new: &T) -> Option<Value> {
    let (old, new) = (serde_json::to_value(old).unwrap_or_default(), serde_json::to_value(new).unwrap_or_default());
    between(&old, &new)
}

/// The same of two that are JSON already.
pub(crate) fn between(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return Some(new.clone()) };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        let change = match old.get(key) {
            Some(before) => between(before, value),
            None => Some(value.clone()),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::merge_patch;

    #[test]
    fn says_what_changed_and_no_more() {
        let check = |old: Value, new: Value, patch: Option<Value>| assert_eq!(merge_patch(&old, &new), patch);
        check(json!({"a": 1}), json!({"a": 1}), None);
        check(
            json!({"a": 1, "b": {"c": 2, "d": 3}}),
            json!({"b": {"c": 2, "d": 4}}),
            Some(json!({"a": null, "b": {"d": 4}})),
        );
        check(json!({"list": [1, 2]}), json!({"list": [1]}), Some(json!({"list": [1]})));
        check(json!({}), json!({"status": {"phase": "Pending"}}), Some(json!({"status": {"phase": "Pending"}})));
        check(json!({"a": {"b": 1}}), json!({"a": 7}), Some(json!({"a": 7})));
    }
}
