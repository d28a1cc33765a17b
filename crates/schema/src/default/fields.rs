//! Small steps that rules of defaulting are made of.

use serde_json::{Map, Value, json};

/// An object's fields.
pub(super) type Fields = Map<String, Value>;

/// Sets a field that is absent or null.
pub(super) fn set(map: &mut Fields, key: &str, value: impl Into<Value>) {
    let place = map.entry(key).or_insert(Value::Null);
    if place.is_null() {
        *place = value.into();
    }
}

/// Sets a text that is absent, null or empty.
pub(super) fn set_text(map: &mut Fields, key: &str, value: &str) {
    if text(map, key).is_empty() && map.get(key).is_none_or(|v| v.is_null() || v.is_string()) {
        map.insert(key.to_owned(), value.into());
    }
}

/// Sets a number that is absent, null or 0, of those that upstream's types cannot tell from absent ones.
pub(super) fn set_number(map: &mut Fields, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(|given| given.is_null() || *given == 0) {
        map.insert(key.to_owned(), value.into());
    }
}

/// A text, empty when absent.
pub(super) fn text<'a>(map: &'a Fields, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or("")
}

/// Runs on a field that is an object.
pub(super) fn with(map: &mut Fields, key: &str, run: impl FnOnce(&mut Fields)) {
    if let Some(Value::Object(inner)) = map.get_mut(key) {
        run(inner);
    }
}

/// Runs on a field that is an object, and makes it where it is absent.
pub(super) fn with_new(map: &mut Fields, key: &str, run: impl FnOnce(&mut Fields)) {
    set(map, key, json!({}));
    with(map, key, run);
}

/// Runs on the object at a chain of fields.
pub(super) fn at(map: &mut Fields, path: &[&str], run: impl FnOnce(&mut Fields)) {
    match path.split_first() {
        None => run(map),
        Some((key, rest)) => {
            if let Some(Value::Object(inner)) = map.get_mut(*key) {
                at(inner, rest, run);
            }
        }
    }
}

/// Runs on each object of a list.
pub(super) fn each(map: &mut Fields, key: &str, mut run: impl FnMut(&mut Fields)) {
    if let Some(Value::Array(list)) = map.get_mut(key) {
        for item in list {
            if let Value::Object(inner) = item {
                run(inner);
            }
        }
    }
}
