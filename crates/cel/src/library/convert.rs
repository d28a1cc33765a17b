//! Conversions between types.

use jiff::Timestamp;

use super::{Found, fail, time};
use crate::budget::EvalError;
use crate::value::Value;

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    let [value] = args else { return None };
    let range = || fail("range error");
    match (function, value) {
        ("int", Value::Int(_))
        | ("uint", Value::Uint(_))
        | ("double", Value::Double(_))
        | ("bool", Value::Bool(_))
        | ("string", Value::String(_))
        | ("bytes", Value::Bytes(_))
        | ("duration", Value::Duration(_))
        | ("timestamp", Value::Timestamp(_)) => Some(Ok(value.clone())),
        ("int", Value::Uint(n)) => i64::try_from(*n).map_or_else(|_| range(), |n| Some(Ok(Value::Int(n)))),
        ("int", Value::Double(n)) => crate::value::whole(n.trunc()).map_or_else(range, |n| Some(Ok(Value::Int(n)))),
        ("int", Value::String(text)) => parsed(text, "int", |text| text.parse().ok().map(Value::Int)),
        ("int", Value::Timestamp(at)) => Some(Ok(Value::Int(at.as_second()))),
        ("int", Value::Duration(d)) => {
            i64::try_from(d.as_nanos()).map_or_else(|_| range(), |n| Some(Ok(Value::Int(n))))
        }
        ("uint", Value::Int(n)) => u64::try_from(*n).map_or_else(|_| range(), |n| Some(Ok(Value::Uint(n)))),
        ("uint", Value::Double(n)) => {
            let fits = (0.0..18_446_744_073_709_551_616.0).contains(n);
            if fits { Some(Ok(Value::Uint(*n as u64))) } else { range() }
        }
        ("uint", Value::String(text)) => parsed(text, "uint", |text| text.parse().ok().map(Value::Uint)),
        ("double", Value::Int(n)) => Some(Ok(Value::Double(*n as f64))),
        ("double", Value::Uint(n)) => Some(Ok(Value::Double(*n as f64))),
        ("double", Value::String(text)) => parsed(text, "double", |text| text.parse().ok().map(Value::Double)),
        ("bool", Value::String(text)) => parsed(text, "bool", |text| match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(Value::Bool(false)),
            _ => None,
        }),
        ("string", Value::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Some(Ok(text.into())),
            Err(_) => fail("invalid UTF-8 in bytes, cannot convert to string"),
        },
        ("string", other) => text(other).map(|text| Ok(Value::String(text.into()))),
        ("bytes", Value::String(text)) => Some(Ok(Value::Bytes(text.as_bytes().into()))),
        ("duration", Value::String(text)) => {
            parsed(text, "duration", |text| time::parse_duration(text).map(Value::Duration))
        }
        ("timestamp", Value::String(text)) => {
            parsed(text, "timestamp", |text| text.parse::<Timestamp>().ok().map(Value::Timestamp))
        }
        ("timestamp", Value::Int(n)) => {
            Some(Timestamp::from_second(*n).map(Value::Timestamp).map_err(|_| EvalError::new("range error")))
        }
        _ => None,
    }
}

fn parsed(text: &str, kind: &str, parse: impl FnOnce(&str) -> Option<Value>) -> Found {
    match parse(text) {
        Some(value) => Some(Ok(value)),
        None => {
            let short: String = text.chars().take(64).collect();
            fail(format!("type conversion error from string {short:?} to {kind}"))
        }
    }
}

/// The text that `string()` makes of a value.
pub(super) fn text(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => double(*value),
        Value::String(text) => text.to_string(),
        Value::Timestamp(at) => at.to_string(),
        Value::Duration(duration) => time::duration_text(*duration),
        Value::Type(name) => name.to_string(),
        Value::Opaque(opaque) => opaque.text()?,
        _ => return None,
    })
}

/// A double as Go prints it: with an exponent when it is very large or very small.
pub(super) fn double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if value == 0.0 || (1e-4..1e21).contains(&value.abs()) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}
