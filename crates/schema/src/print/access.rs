//! Reading an object that is known only as a value.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::duration;

/// An object to print, and when.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub value: &'a Value,
    pub now: Timestamp,
}

impl<'a> Row<'a> {
    pub fn new(value: &'a Value, now: Timestamp) -> Self {
        Row { value, now }
    }

    /// The value at a path of fields divided by dots.
    pub fn get(self, path: &str) -> Option<&'a Value> {
        get(self.value, path)
    }

    pub fn text(self, path: &str) -> &'a str {
        text(self.value, path)
    }

    /// A text, or what stands for none.
    pub fn text_or(self, path: &str, none: &'a str) -> &'a str {
        match self.text(path) {
            "" => none,
            text => text,
        }
    }

    pub fn number(self, path: &str) -> i64 {
        number(self.value, path)
    }

    pub fn flag(self, path: &str) -> bool {
        self.get(path).and_then(Value::as_bool).unwrap_or(false)
    }

    pub fn list(self, path: &str) -> &'a [Value] {
        list(self.value, path)
    }

    pub fn map(self, path: &str) -> Option<&'a Map<String, Value>> {
        self.get(path).and_then(Value::as_object)
    }

    /// How many entries a list or map has.
    pub fn count(self, path: &str) -> usize {
        match self.get(path) {
            Some(Value::Array(list)) => list.len(),
            Some(Value::Object(map)) => map.len(),
            _ => 0,
        }
    }

    pub fn name(self) -> Value {
        self.text("metadata.name").into()
    }

    pub fn age(self) -> Value {
        self.since("metadata.creationTimestamp")
    }

    /// Time since the timestamp at a path.
    pub fn since(self, path: &str) -> Value {
        duration::since(self.text(path), self.now).into()
    }

    pub fn is_deleting(self) -> bool {
        self.get("metadata.deletionTimestamp").is_some_and(|t| !t.is_null())
    }
}

pub(super) fn get<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, field| value.get(field))
}

pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    get(value, path).and_then(Value::as_str).unwrap_or("")
}

pub(super) fn number(value: &Value, path: &str) -> i64 {
    get(value, path).and_then(Value::as_i64).unwrap_or(0)
}

pub(super) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    get(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Texts joined, or what stands for none.
pub(super) fn joined<'a>(texts: impl Iterator<Item = &'a str>, separator: &str, none: &str) -> String {
    let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
    if texts.is_empty() { none.to_owned() } else { texts.join(separator) }
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: Option<&Map<String, Value>>) -> String {
    let pairs: Vec<_> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    joined(pairs.iter().map(String::as_str), ",", "<none>")
}

/// A label selector as kubectl writes it.
pub(super) fn selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector else { return "<none>".to_owned() };
    let mut parts: Vec<String> = Vec::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in list(selector, "matchExpressions") {
        let key = text(expression, "key");
        let values = joined(list(expression, "values").iter().filter_map(Value::as_str), ",", "");
        parts.push(match text(expression, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    joined(parts.iter().map(String::as_str), ",", "<none>")
}

/// Whether a condition of this type is true.
pub(super) fn condition<'a>(status: &'a Value, type_: &str) -> Option<&'a str> {
    list(status, "conditions").iter().find(|c| text(c, "type") == type_).map(|c| text(c, "status"))
}
