//! Small steps that rules of defaulting are made of.

use carrack_types::quantity::Quantity;
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

/// Rounds the amounts of a resource list up to thousandths (`SetDefaults_ResourceList`).
pub(super) fn resource_list(map: &mut Fields, key: &str) {
    with(map, key, |list| {
        for amount in list.values_mut() {
            let Some(Ok(given)) = amount.as_str().map(Quantity::parse) else { continue };
            let rounded = given.rounded_to_millis();
            if rounded != given {
                *amount = rounded.to_string().into();
            }
        }
    });
}

/// The same of all lists in which somebody says what he needs.
pub(super) fn resources(resources: &mut Fields) {
    resource_list(resources, "limits");
    resource_list(resources, "requests");
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

/// A value, and the list of which it is the first: each fills in the other, and where they differ, the value counts (upstream's
/// `pkg/apis/core/v1/conversion.go`). Items of the list are texts, or have one in the field `within`.
pub(super) fn pair(map: &mut Fields, one: &str, many: &str, within: Option<&str>) {
    let item = map.get(many).and_then(|list| list.get(0));
    let first = match within {
        Some(field) => item.and_then(|item| item.get(field)),
        None => item,
    };
    let first = first.and_then(Value::as_str).unwrap_or_default().to_owned();
    let single = text(map, one).to_owned();
    if single == first {
        return;
    }
    if single.is_empty() {
        map.insert(one.to_owned(), first.into());
    } else {
        let item = match within {
            Some(field) => json!({field: single}),
            None => single.into(),
        };
        map.insert(many.to_owned(), json!([item]));
    }
}
