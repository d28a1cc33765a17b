//! Operators, and functions that the language itself has.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Cx, Found, count, fail, truth};
use crate::budget::EvalError;
use crate::types::ListKind;
use crate::value::{Key, List, Value, identity};

pub(super) fn call(function: &str, args: &[Value], cx: &mut Cx<'_>) -> Found {
    match (function, args) {
        ("==", [a, b]) => truth(a == b),
        ("!=", [a, b]) => truth(a != b),
        ("<" | "<=" | ">" | ">=", [a, b]) => {
            let order = a.order(b);
            let comparable = order.is_some() || matches!((a, b), (Value::Double(_), _) | (_, Value::Double(_)));
            if !comparable {
                return None;
            }
            truth(match function {
                "<" => order == Some(Ordering::Less),
                "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
                ">" => order == Some(Ordering::Greater),
                _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            })
        }
        ("in", [item, Value::List(list)]) => truth(list.items.contains(item)),
        ("in", [item, Value::Map(map)]) => truth(Key::of(item).is_some_and(|key| map.contains_key(&key))),
        ("!", [Value::Bool(value)]) => truth(!value),
        ("neg", [Value::Int(value)]) => Some(value.checked_neg().map(Value::Int).ok_or_else(overflow)),
        ("neg", [Value::Double(value)]) => Some(Ok(Value::Double(-value))),
        ("+" | "-" | "*" | "/" | "%", [Value::Int(a), Value::Int(b)]) => Some(int(function, *a, *b)),
        ("+" | "-" | "*" | "/" | "%", [Value::Uint(a), Value::Uint(b)]) => Some(uint(function, *a, *b)),
        ("+" | "-" | "*" | "/", [Value::Double(a), Value::Double(b)]) => Some(Ok(Value::Double(match function {
            "+" => a + b,
            "-" => a - b,
            "*" => a * b,
            _ => a / b,
        }))),
        ("+", [Value::String(a), Value::String(b)]) => Some(cx.budget.allocate(a.len() + b.len()).map(|()| {
            let mut out = String::with_capacity(a.len() + b.len());
            out.push_str(a);
            out.push_str(b);
            Value::String(out.into())
        })),
        ("+", [Value::Bytes(a), Value::Bytes(b)]) => {
            Some(cx.budget.allocate(a.len() + b.len()).map(|()| Value::Bytes([&**a, &**b].concat().into())))
        }
        ("+", [Value::List(a), Value::List(b)]) => {
            let bytes = (a.items.len() + b.items.len()) * size_of::<Value>();
            let paid = if a.kind == ListKind::Atomic { Ok(()) } else { pay_for_identities(args, cx) };
            Some(paid.and_then(|()| cx.budget.allocate(bytes)).map(|()| Value::List(Arc::new(both(a, b)))))
        }
        ("+", [Value::Duration(a), Value::Duration(b)]) => Some(duration(a.checked_add(*b))),
        ("-", [Value::Duration(a), Value::Duration(b)]) => Some(duration(a.checked_sub(*b))),
        ("+", [Value::Timestamp(at), Value::Duration(d)] | [Value::Duration(d), Value::Timestamp(at)]) => {
            Some(timestamp(at.checked_add(*d)))
        }
        ("-", [Value::Timestamp(at), Value::Duration(d)]) => Some(timestamp(at.checked_sub(*d))),
        ("-", [Value::Timestamp(a), Value::Timestamp(b)]) => Some(Ok(Value::Duration(a.duration_since(*b)))),
        ("size", [Value::String(text)]) => count(text.chars().count()),
        ("size", [Value::Bytes(bytes)]) => count(bytes.len()),
        ("size", [Value::List(list)]) => count(list.items.len()),
        ("size", [Value::Map(map)]) => count(map.len()),
        ("type", [value]) => Some(Ok(Value::Type(value.type_name().into()))),
        ("dyn", [value]) => Some(Ok(value.clone())),
        ("+" | "-" | "*" | "/" | "%", [_, _]) => fail("no such overload"),
        _ => None,
    }
}

fn overflow() -> EvalError {
    EvalError::new("integer overflow")
}

fn int(function: &str, a: i64, b: i64) -> Result<Value, EvalError> {
    let result = match function {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "/" if b == 0 => return Err(EvalError::new("division by zero")),
        "/" => a.checked_div(b),
        _ if b == 0 => return Err(EvalError::new("modulus by zero")),
        _ => a.checked_rem(b),
    };
    result.map(Value::Int).ok_or_else(overflow)
}

fn uint(function: &str, a: u64, b: u64) -> Result<Value, EvalError> {
    let result = match function {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "/" if b == 0 => return Err(EvalError::new("division by zero")),
        "/" => a.checked_div(b),
        _ if b == 0 => return Err(EvalError::new("modulus by zero")),
        _ => a.checked_rem(b),
    };
    result.map(Value::Uint).ok_or_else(|| EvalError::new("unsigned integer overflow"))
}

fn duration(value: Option<SignedDuration>) -> Result<Value, EvalError> {
    value.map(Value::Duration).ok_or_else(|| EvalError::new("duration overflow"))
}

fn timestamp(value: Result<Timestamp, jiff::Error>) -> Result<Value, EvalError> {
    value.map(Value::Timestamp).map_err(|_| EvalError::new("timestamp overflow"))
}

/// Bytes that a value takes in a text that tells it from others, at the most usual.
const BYTES_OF_IDENTITY: u64 = 32;

/// Pays for looking at all that is in the values, and for writing it down.
fn pay_for_identities(values: &[Value], cx: &mut Cx<'_>) -> Result<(), EvalError> {
    let most = cx.budget.left().saturating_add(1);
    let weight = values.iter().fold(0, |sum: u64, value| sum.saturating_add(value.weight_up_to(most)));
    cx.budget.spend(weight)?;
    cx.budget.allocate(usize::try_from(weight.saturating_mul(BYTES_OF_IDENTITY)).unwrap_or(usize::MAX))
}

/// Two lists as one, in the way of the first: sets have an item once, and in maps the second's items replace
/// the first's.
fn both(a: &List, b: &List) -> List {
    let mut items = a.items.clone();
    if a.kind == ListKind::Atomic {
        items.extend(b.items.iter().cloned());
        return List { items, kind: ListKind::Atomic };
    }
    let mut places = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        places.entry(identity(item, &a.kind)).or_insert(place);
    }
    for item in &b.items {
        let next = items.len();
        match places.entry(identity(item, &a.kind)).or_insert(next) {
            place if *place < next => items[*place] = item.clone(),
            _ => items.push(item.clone()),
        }
    }
    List { items, kind: a.kind.clone() }
}
