//! Macros over lists, maps and optionals.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Comprehension, Expr, Macro};
use crate::budget::EvalError;
use crate::eval::Evaluator;
use crate::types::ListKind;
use crate::value::{Key, List, Value};

type Evaluated = Result<Value, EvalError>;

pub(crate) fn comprehend(evaluator: &mut Evaluator<'_>, it: &Comprehension) -> Evaluated {
    let range = evaluator.expr(&it.range)?;
    evaluator.budget.spend(1)?;
    match it.kind {
        Macro::Bind => with(evaluator, it, &[range], &it.body),
        Macro::OptMap | Macro::OptFlatMap => match range {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => {
                let value = with(evaluator, it, &[(*inner).clone()], &it.body)?;
                Ok(if it.kind == Macro::OptMap { Value::optional(Some(value)) } else { value })
            }
            _ => Err(EvalError::new("no such overload")),
        },
        _ => over(evaluator, it, &range),
    }
}

/// Evaluates a part of the macro with its variables set.
fn with(evaluator: &mut Evaluator<'_>, it: &Comprehension, values: &[Value], part: &Expr) -> Evaluated {
    let locals = evaluator.locals.len();
    evaluator.locals.extend(it.variables.iter().cloned().zip(values.iter().cloned()));
    let result = evaluator.expr(part);
    evaluator.locals.truncate(locals);
    result
}

fn truth(value: Value) -> Result<bool, EvalError> {
    match value {
        Value::Bool(value) => Ok(value),
        _ => Err(EvalError::new("no such overload")),
    }
}

/// The variables of each round. They are made when the round comes: it may be decided long before the last one, and what
/// does not come is not paid for.
fn rounds<'v>(range: &'v Value, two: bool) -> Result<Box<dyn Iterator<Item = Vec<Value>> + 'v>, EvalError> {
    Ok(match range {
        Value::List(list) if two => {
            Box::new((0_i64..).zip(&list.items).map(|(index, item)| vec![Value::Int(index), item.clone()]))
        }
        Value::List(list) => Box::new(list.items.iter().map(|item| vec![item.clone()])),
        Value::Map(map) if two => Box::new(map.iter().map(|(key, value)| vec![key.value(), value.clone()])),
        Value::Map(map) => Box::new(map.keys().map(|key| vec![key.value()])),
        _ => return Err(EvalError::new("no such overload")),
    })
}

fn over(evaluator: &mut Evaluator<'_>, it: &Comprehension, range: &Value) -> Evaluated {
    let mut results = Results::default();
    for values in rounds(range, it.variables.len() == 2)? {
        evaluator.budget.spend(3)?;
        if let Some(filter) = &it.filter
            && !truth(with(evaluator, it, &values, filter)?)?
        {
            continue;
        }
        let value = with(evaluator, it, &values, &it.body);
        evaluator.budget.allocate(size_of::<Value>())?;
        if let Some(done) = results.take(it.kind, &values, value)? {
            return Ok(done);
        }
    }
    results.end(it.kind, range)
}

#[derive(Default)]
struct Results {
    error: Option<EvalError>,
    count: usize,
    items: Vec<Value>,
    entries: BTreeMap<Key, Value>,
}

impl Results {
    /// Takes the value of a round; gives the value of the macro, if that is known now.
    fn take(&mut self, kind: Macro, values: &[Value], value: Evaluated) -> Result<Option<Value>, EvalError> {
        match kind {
            // An error counts only when no other round decides.
            Macro::All | Macro::Exists => match value.and_then(truth) {
                Ok(found) if found == (kind == Macro::Exists) => return Ok(Some(Value::Bool(found))),
                Ok(_) => {}
                Err(EvalError::Exhausted) => return Err(EvalError::Exhausted),
                Err(error) => self.error = self.error.take().or(Some(error)),
            },
            Macro::ExistsOne => self.count += usize::from(truth(value?)?),
            Macro::Filter => {
                if truth(value?)? {
                    self.items.extend(values.last().cloned());
                }
            }
            Macro::TransformMap => {
                let key = values.first().and_then(Key::of).ok_or_else(|| EvalError::new("unsupported key type"))?;
                self.entries.insert(key, value?);
            }
            Macro::TransformMapEntry => {
                let Value::Map(map) = value? else { return Err(EvalError::new("no such overload")) };
                for (key, value) in &*map {
                    if self.entries.insert(key.clone(), value.clone()).is_some() {
                        return Err(EvalError::new("insert failed: key already exists"));
                    }
                }
            }
            _ => self.items.push(value?),
        }
        Ok(None)
    }

    fn end(self, kind: Macro, range: &Value) -> Evaluated {
        match kind {
            Macro::All | Macro::Exists => self.error.map_or(Ok(Value::Bool(kind == Macro::All)), Err),
            Macro::ExistsOne => Ok(Value::Bool(self.count == 1)),
            Macro::TransformMap | Macro::TransformMapEntry => Ok(Value::Map(Arc::new(self.entries))),
            Macro::Filter => {
                let kind = if let Value::List(list) = range { list.kind.clone() } else { ListKind::Atomic };
                Ok(Value::List(Arc::new(List { items: self.items, kind })))
            }
            _ => Ok(Value::list(self.items)),
        }
    }
}
