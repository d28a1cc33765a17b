//! Kubernetes' quantities.

use std::cmp::Ordering;

use carrack_types::quantity::{Form, Quantity};

use super::{Found, Opaque, fail, truth};
use crate::value::Value;

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    let found = |quantity| Some(Ok(Value::Opaque(Opaque::Quantity(quantity))));
    match (function, args) {
        ("quantity", [Value::String(text)]) => match Quantity::parse(text) {
            Ok(quantity) => found(quantity),
            Err(_) => {
                fail("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
            }
        },
        ("isQuantity", [Value::String(text)]) => truth(Quantity::parse(text).is_ok()),
        (_, [Value::Opaque(Opaque::Quantity(quantity)), rest @ ..]) => {
            let quantity = *quantity;
            let other = match rest {
                [] => None,
                [Value::Opaque(Opaque::Quantity(other))] => Some(*other),
                [Value::Int(units)] => Some(Quantity::from_units(*units, Form::DecimalSi)),
                _ => return None,
            };
            match (function, other) {
                ("sign", None) => Some(Ok(Value::Int(i64::from(quantity.nanos().signum() as i8)))),
                ("isInteger", None) => truth(quantity.is_whole()),
                ("asInteger", None) if quantity.is_whole() => Some(Ok(Value::Int(quantity.units()))),
                ("asInteger", None) => fail("cannot convert value to integer"),
                ("asApproximateFloat", None) => Some(Ok(Value::Double(quantity.nanos() as f64 / 1e9))),
                ("add", Some(other)) => found(quantity + other),
                ("sub", Some(other)) => found(quantity - other),
                ("isLessThan", Some(other)) => truth(quantity < other),
                ("isGreaterThan", Some(other)) => truth(quantity > other),
                ("compareTo", Some(other)) => Some(Ok(Value::Int(match quantity.cmp(&other) {
                    Ordering::Less => -1,
                    Ordering::Equal => 0,
                    Ordering::Greater => 1,
                }))),
                _ => None,
            }
        }
        _ => None,
    }
}
