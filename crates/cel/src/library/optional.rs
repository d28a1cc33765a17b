//! Optional values. What stands in for one that is empty is the evaluator's to look at.

use super::{Found, fail, truth};
use crate::value::Value;

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    match (function, args) {
        ("optional.of", [value]) => Some(Ok(Value::optional(Some(value.clone())))),
        ("optional.none", []) => Some(Ok(Value::Optional(None))),
        ("optional.ofNonZeroValue", [value]) => Some(Ok(Value::optional((!is_zero(value)).then(|| value.clone())))),
        ("hasValue", [Value::Optional(inner)]) => truth(inner.is_some()),
        ("value", [Value::Optional(inner)]) => match inner {
            Some(inner) => Some(Ok((**inner).clone())),
            None => fail("optional.none() dereference"),
        },
        ("optional.unwrap" | "unwrapOpt", [Value::List(list)]) => Some(Ok(Value::list(
            list.items
                .iter()
                .filter_map(|item| match item {
                    Value::Optional(inner) => inner.as_ref().map(|inner| (**inner).clone()),
                    other => Some(other.clone()),
                })
                .collect(),
        ))),
        _ => None,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.items.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Duration(duration) => duration.is_zero(),
        Value::Optional(inner) => inner.is_none(),
        Value::Timestamp(_) | Value::Type(_) | Value::Opaque(_) => false,
    }
}
