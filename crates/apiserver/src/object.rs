//! Reading and writing the common parts of objects that are JSON values.

use serde_json::{Map, Value};

/// An object as it is handled: its top-level fields.
pub type Object = Map<String, Value>;

/// An object that is not changed any more, for those who want it as its fields and those who want it as a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Whole(Value);

impl From<Object> for Whole {
    fn from(object: Object) -> Whole {
        Whole(Value::Object(object))
    }
}

impl std::ops::Deref for Whole {
    type Target = Object;

    fn deref(&self) -> &Object {
        match &self.0 {
            Value::Object(object) => object,
            // It is made of one alone.
            _ => unreachable!(),
        }
    }
}

impl Whole {
    /// As a value.
    pub(crate) fn value(&self) -> &Value {
        &self.0
    }
}

/// `metadata`, if there is one.
pub fn metadata(object: &Object) -> Option<&Map<String, Value>> {
    object.get("metadata").and_then(Value::as_object)
}

/// `metadata`, made if there is none (or it is no object).
pub fn metadata_mut(object: &mut Object) -> &mut Map<String, Value> {
    child_mut(object, "metadata")
}

/// A field that is an object, made if there is none (or it is something else).
pub fn child_mut<'a>(object: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let slot = object.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    match slot {
        Value::Object(map) => map,
        // It was made an object above.
        _ => unreachable!(),
    }
}

/// A text of `metadata`; empty when it is not there.
pub fn meta_str<'a>(object: &'a Object, key: &str) -> &'a str {
    metadata(object).and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or("")
}

/// A value of `metadata`, unless it is null.
pub fn meta<'a>(object: &'a Object, key: &str) -> Option<&'a Value> {
    metadata(object).and_then(|m| m.get(key)).filter(|v| !v.is_null())
}

/// Sets a value of `metadata`.
pub fn set_meta(object: &mut Object, key: &str, value: impl Into<Value>) {
    metadata_mut(object).insert(key.to_owned(), value.into());
}

/// Sets a value of `metadata`, or removes it.
pub fn put_meta(object: &mut Object, key: &str, value: Option<Value>) {
    match value {
        Some(value) => set_meta(object, key, value),
        None => {
            metadata_mut(object).remove(key);
        }
    }
}

/// `metadata.name`.
pub fn name(object: &Object) -> &str {
    meta_str(object, "name")
}

/// The finalizers.
pub fn finalizers(object: &Object) -> Vec<String> {
    meta(object, "finalizers")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

/// Sets the finalizers; an empty list removes the field.
pub fn set_finalizers(object: &mut Object, finalizers: Vec<String>) {
    put_meta(object, "finalizers", (!finalizers.is_empty()).then(|| finalizers.into()));
}

/// A value at a path of keys.
pub fn at<'a>(object: &'a Object, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(object.get(*first)?, |value, key| value.get(key)).filter(|v| !v.is_null())
}

/// A text at a path of keys; empty when it is not there.
pub fn str_at<'a>(object: &'a Object, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or("")
}

/// Whether deletion was asked for.
pub fn is_deleting(object: &Object) -> bool {
    meta(object, "deletionTimestamp").is_some()
}
