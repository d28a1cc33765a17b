//! Input, and the causes that a client is told: reason and field, for each rule of the built-in kinds.

use serde_json::{Value, json};

use super::with;
use crate::error::FieldError;
use crate::validate::{create, update};
use crate::{default, table};

/// `Reason field` of each error; the reason without its common start.
fn causes(errors: &[FieldError]) -> Vec<String> {
    let short = |error: &FieldError| error.reason().trim_start_matches("FieldValue").to_owned();
    errors.iter().map(|error| format!("{} {}", short(error), error.path)).collect()
}

/// A change of an object, and the causes for which it is refused.
pub(super) type Row<'a> = (&'a str, Value, &'a [&'a str]);

/// Creates the base with each change and expects exactly these causes; none for the base itself.
#[track_caller]
pub(super) fn created(group: &str, kind: &str, base: &Value, rows: &[Row<'_>]) {
    let info = table::find_kind(group, kind).expect(kind);
    let version = info.storage_version().expect("a version").name.clone();
    let refusal = |object: &Value| {
        let mut object = object.clone();
        default::apply(info, &version, &mut object);
        causes(&create(info, &version, &object))
    };
    assert_eq!(refusal(base), Vec::<String>::new(), "{kind} as it is");
    for (pointer, value, expected) in rows {
        assert_eq!(refusal(&with(base.clone(), &[(pointer, value.clone())])), *expected, "{kind} {pointer} {value}");
    }
}

/// Changes the base in each way and expects exactly these causes.
#[track_caller]
pub(super) fn changed(group: &str, kind: &str, subresource: &str, base: &Value, rows: &[Row<'_>]) {
    let info = table::find_kind(group, kind).expect(kind);
    let version = info.storage_version().expect("a version").name.clone();
    let defaulted = |object: &Value| {
        let mut object = object.clone();
        default::apply(info, &version, &mut object);
        object
    };
    let old = defaulted(base);
    for (pointer, value, expected) in rows {
        let new = defaulted(&with(base.clone(), &[(pointer, value.clone())]));
        let found = causes(&update(info, &version, &new, &old, subresource));
        assert_eq!(found, *expected, "{kind} {pointer} {value}");
    }
}

/// An object with a name and a namespace.
pub(super) fn named(rest: Value) -> Value {
    let mut object = json!({"metadata": {"name": "x", "namespace": "d"}});
    if let (Value::Object(map), Value::Object(rest)) = (&mut object, rest) {
        map.extend(rest);
    }
    object
}

/// An object with a name alone.
pub(super) fn global(rest: Value) -> Value {
    with(named(rest), &[("/metadata/namespace", Value::Null)])
}

/// A template of pods.
pub(super) fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}})
}
