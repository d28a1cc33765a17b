//! Lists and sets.

use std::cmp::Ordering;

use super::{Called, Cx, Found, fail, truth};
use crate::budget::EvalError;
use crate::value::Value;

/// Longest list that `lists.range` makes.
const MAX_RANGE: i64 = 1_000_000;
/// How deep `flatten` goes.
const MAX_FLATTEN: i64 = 32;

pub(super) fn call(function: &str, args: &[Value], cx: &mut Cx<'_>) -> Found {
    use Value::{Int, List};
    let bytes: usize =
        args.iter().filter_map(|arg| if let List(list) = arg { Some(list.items.len()) } else { None }).sum();
    if matches!(function, "sort" | "distinct" | "reverse" | "slice")
        && let Err(error) = cx.budget.allocate(bytes * size_of::<Value>())
    {
        return Some(Err(error));
    }
    match (function, args) {
        ("isSorted", [List(list)]) => {
            let sorted = list
                .items
                .windows(2)
                .all(|pair| matches!(pair, [a, b] if matches!(a.order(b), Some(Ordering::Less | Ordering::Equal))));
            truth(sorted)
        }
        ("sum", [List(list)]) => Some(sum(&list.items, cx)),
        ("min" | "max", [List(list)]) => Some(extreme(&list.items, function == "min", function)),
        ("indexOf", [List(list), item]) => Some(Ok(place(list.items.iter().position(|other| other == item)))),
        ("lastIndexOf", [List(list), item]) => Some(Ok(place(list.items.iter().rposition(|other| other == item)))),
        ("slice", [List(list), Int(from), Int(to)]) => {
            let range = usize::try_from(*from).ok().zip(usize::try_from(*to).ok());
            match range.and_then(|(from, to)| list.items.get(from..to)) {
                Some(items) => Some(Ok(Value::list(items.to_vec()))),
                None => fail(format!("cannot slice({from}, {to}), list is length {}", list.items.len())),
            }
        }
        ("flatten", [List(list), rest @ ..]) => {
            let depth = match rest {
                [] => 1,
                [Int(depth)] if (0..=MAX_FLATTEN).contains(depth) => *depth,
                _ => return fail("level must be non-negative, and not above 32"),
            };
            let mut out = Vec::new();
            Some(flatten(&list.items, depth, &mut out, cx).map(|()| Value::list(out)))
        }
        ("sort", [List(list)]) => {
            let mut items = list.items.clone();
            if items.windows(2).any(|pair| matches!(pair, [a, b] if a.order(b).is_none())) {
                return fail("list elements must be comparable");
            }
            items.sort_by(|a, b| a.order(b).unwrap_or(Ordering::Equal));
            Some(Ok(Value::list(items)))
        }
        ("distinct", [List(list)]) => {
            let mut items: Vec<Value> = Vec::new();
            for item in &list.items {
                if !items.contains(item) {
                    items.push(item.clone());
                }
            }
            Some(Ok(Value::list(items)))
        }
        ("reverse", [List(list)]) => Some(Ok(Value::list(list.items.iter().rev().cloned().collect()))),
        ("first", [List(list)]) => Some(Ok(Value::optional(list.items.first().cloned()))),
        ("last", [List(list)]) => Some(Ok(Value::optional(list.items.last().cloned()))),
        ("lists.range", [Int(end)]) => {
            if !(0..=MAX_RANGE).contains(end) {
                return fail(format!("lists.range: the end is not within 0 and {MAX_RANGE}"));
            }
            let paid = cx.budget.spend(end.unsigned_abs()).and_then(|()| {
                cx.budget.allocate(usize::try_from(*end).unwrap_or(usize::MAX).saturating_mul(size_of::<Value>()))
            });
            Some(paid.map(|()| Value::list((0..*end).map(Int).collect())))
        }
        ("sets.contains", [List(a), List(b)]) => truth(b.items.iter().all(|item| a.items.contains(item))),
        ("sets.equivalent", [List(a), List(b)]) => truth(
            b.items.iter().all(|item| a.items.contains(item)) && a.items.iter().all(|item| b.items.contains(item)),
        ),
        ("sets.intersects", [List(a), List(b)]) => truth(b.items.iter().any(|item| a.items.contains(item))),
        _ => None,
    }
}

fn place(found: Option<usize>) -> Value {
    Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}

fn sum(items: &[Value], cx: &mut Cx<'_>) -> Called {
    let mut items = items.iter();
    let Some(first) = items.next() else { return Ok(Value::Int(0)) };
    let mut total = first.clone();
    for item in items {
        let added = super::operators::call("+", &[total, item.clone()], cx);
        total = added.unwrap_or_else(|| Err(EvalError::new("no such overload")))?;
    }
    Ok(total)
}

/// The least or the greatest.
pub(super) fn extreme(items: &[Value], least: bool, function: &str) -> Called {
    let mut found: Option<&Value> = None;
    for item in items {
        let better = match found {
            None => true,
            Some(known) => match item.order(known) {
                Some(order) => order == if least { Ordering::Less } else { Ordering::Greater },
                None => return Err(EvalError::new("no such overload")),
            },
        };
        if better {
            found = Some(item);
        }
    }
    found.cloned().ok_or_else(|| EvalError::new(format!("{function} called on empty list")))
}

fn flatten(items: &[Value], depth: i64, out: &mut Vec<Value>, cx: &mut Cx<'_>) -> Result<(), EvalError> {
    for item in items {
        cx.budget.spend(1)?;
        match item {
            Value::List(inner) if depth > 0 => flatten(&inner.items, depth - 1, out, cx)?,
            other => {
                cx.budget.allocate(size_of::<Value>())?;
                out.push(other.clone());
            }
        }
    }
    Ok(())
}
