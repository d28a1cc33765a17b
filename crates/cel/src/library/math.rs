//! cel-go's math library, as far as expressions about objects have a use for it.

use super::{Found, fail, lists, truth};
use crate::value::Value;

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    let name = function.strip_prefix("math.")?;
    match (name, args) {
        ("greatest" | "least", [Value::List(list)]) => Some(lists::extreme(&list.items, name == "least", function)),
        ("greatest" | "least", args) => Some(lists::extreme(args, name == "least", function)),
        ("abs", [Value::Int(n)]) => match n.checked_abs() {
            Some(n) => Some(Ok(Value::Int(n))),
            None => fail("integer overflow"),
        },
        ("abs", [Value::Double(n)]) => Some(Ok(Value::Double(n.abs()))),
        ("abs" | "sign", [Value::Uint(n)]) => Some(Ok(Value::Uint(if name == "abs" { *n } else { (*n).min(1) }))),
        ("sign", [Value::Int(n)]) => Some(Ok(Value::Int(n.signum()))),
        ("sign", [Value::Double(n)]) => Some(Ok(Value::Double(if n.is_nan() || *n == 0.0 { *n } else { n.signum() }))),
        ("ceil", [Value::Double(n)]) => Some(Ok(Value::Double(n.ceil()))),
        ("floor", [Value::Double(n)]) => Some(Ok(Value::Double(n.floor()))),
        ("round", [Value::Double(n)]) => Some(Ok(Value::Double(n.round()))),
        ("trunc", [Value::Double(n)]) => Some(Ok(Value::Double(n.trunc()))),
        ("isNaN", [Value::Double(n)]) => truth(n.is_nan()),
        ("isInf", [Value::Double(n)]) => truth(n.is_infinite()),
        ("isFinite", [Value::Double(n)]) => truth(n.is_finite()),
        _ => None,
    }
}
