//! Evaluation under a budget.
//!
//! Frames are kept small: each form has a function of its own, since trees may be
//! [`crate::parser`]'s depth and threads have little stack.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Expr, Kind};
use crate::budget::{Budget, EvalError};
use crate::comprehend;
use crate::library::{self, authz::Check};
use crate::signatures::{self, Cost};
use crate::value::{Key, Value};

/// What an expression sees of the world.
pub trait Bindings {
    /// The value of a variable; none when it has none.
    fn get(&self, name: &str) -> Option<Value>;

    /// A field of a variable whose fields are computed when they are asked for (`variables.x`); none when
    /// the variable is not of that sort.
    ///
    /// # Errors
    /// As the computation fails.
    fn field(&self, name: &str, field: &str, budget: &mut Budget) -> Option<Result<Value, EvalError>> {
        let _: (&str, &str, &mut Budget) = (name, field, budget);
        None
    }

    /// Answers an expression's question to the authorizer.
    fn authorize(&self, check: &Check) -> Decision {
        let _: &Check = check;
        Decision { allowed: false, reason: String::new(), error: Some("no authorizer is at hand".to_owned()) }
    }
}

/// An answer of the authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why, or why not.
    pub reason: String,
    /// Why there is no answer.
    pub error: Option<String>,
}

/// Plain variables.
#[derive(Clone, Debug, Default)]
pub struct Variables(pub BTreeMap<&'static str, Value>);

impl Bindings for Variables {
    fn get(&self, name: &str) -> Option<Value> {
        self.0.get(name).cloned()
    }
}

type Evaluated = Result<Value, EvalError>;

/// Evaluates an expression that has been checked.
pub(crate) fn eval(expr: &Expr, bindings: &dyn Bindings, budget: &mut Budget) -> Evaluated {
    Evaluator { bindings, budget, locals: Vec::new() }.expr(expr)
}

pub(crate) struct Evaluator<'a> {
    pub bindings: &'a dyn Bindings,
    pub budget: &'a mut Budget,
    /// Variables of macros, innermost last.
    pub locals: Vec<(Arc<str>, Value)>,
}

impl Evaluator<'_> {
    pub(crate) fn expr(&mut self, expr: &Expr) -> Evaluated {
        match &expr.kind {
            Kind::Literal(value) => Ok(value.clone()),
            Kind::Ident(name) => self.ident(name),
            Kind::Select { operand, field, optional, test } => self.select(operand, field, *optional, *test),
            Kind::Index { operand, index, optional } => self.index(operand, index, *optional),
            Kind::Call { .. } => self.call(expr),
            Kind::And(all) => self.junction(all, false),
            Kind::Or(all) => self.junction(all, true),
            Kind::Ternary(parts) => self.ternary(parts),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { fields, .. } => self.fields(fields),
            Kind::Comprehension(it) => comprehend::comprehend(self, it),
        }
    }

    fn ident(&mut self, name: &Arc<str>) -> Evaluated {
        self.budget.spend(1)?;
        if let Some((_, value)) = self.locals.iter().rev().find(|(local, _)| local == name) {
            return Ok(value.clone());
        }
        self.bindings.get(name).ok_or_else(|| EvalError::new(format!("no such attribute: {name}")))
    }

    #[inline(never)]
    fn select(&mut self, operand: &Expr, field: &Arc<str>, optional: bool, test: bool) -> Evaluated {
        if let Kind::Ident(name) = &operand.kind
            && !self.locals.iter().any(|(local, _)| local == name)
            && let Some(value) = self.bindings.field(name, field, self.budget)
        {
            self.budget.spend(1)?;
            return value;
        }
        let operand = self.expr(operand)?;
        self.budget.spend(1)?;
        selected(&operand, field, optional, test)
    }

    #[inline(never)]
    fn index(&mut self, operand: &Expr, index: &Expr, optional: bool) -> Evaluated {
        let (operand, index) = (self.expr(operand)?, self.expr(index)?);
        self.budget.spend(1)?;
        indexed(&operand, &index, optional)
    }

    #[inline(never)]
    fn call(&mut self, expr: &Expr) -> Evaluated {
        let Kind::Call { function, args, regex, .. } = &expr.kind else { return Ok(Value::Null) };
        if let ("or" | "orValue", [first, other]) = (&**function, args.as_slice()) {
            return self.alternative(first, other, &**function == "orValue");
        }
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(self.expr(arg)?);
        }
        let units = units(function, &values, self.budget.left());
        self.budget.spend(units)?;
        let mut cx = library::Cx { bindings: self.bindings, budget: self.budget, regex: regex.as_deref() };
        library::call(function, &values, &mut cx)
    }

    /// `or` and `orValue` of an optional: where there is a value, the other one is not looked at, and may be an error
    /// (cel-go's `evalOptionalOr`).
    #[inline(never)]
    fn alternative(&mut self, first: &Expr, other: &Expr, is_unwrapped: bool) -> Evaluated {
        let first = self.expr(first)?;
        self.budget.spend(1)?;
        match &first {
            Value::Optional(Some(inner)) if is_unwrapped => Ok((**inner).clone()),
            Value::Optional(Some(_)) => Ok(first.clone()),
            Value::Optional(None) => self.expr(other),
            _ => Err(EvalError::new("no such overload")),
        }
    }

    /// `&&` and `||`: what decides wins, also over an error on its other side.
    #[inline(never)]
    fn junction(&mut self, all: &[Expr], decides: bool) -> Evaluated {
        let mut error = None;
        for part in all {
            self.budget.spend(1)?;
            match self.expr(part) {
                Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => error = Some(EvalError::new("no such overload")),
                Err(EvalError::Exhausted) => return Err(EvalError::Exhausted),
                Err(other) => error = error.or(Some(other)),
            }
        }
        error.map_or(Ok(Value::Bool(!decides)), Err)
    }

    #[inline(never)]
    fn ternary(&mut self, parts: &[Expr; 3]) -> Evaluated {
        let [condition, yes, no] = parts;
        match self.expr(condition)? {
            Value::Bool(true) => self.expr(yes),
            Value::Bool(false) => self.expr(no),
            _ => Err(EvalError::new("no such overload")),
        }
    }

    #[inline(never)]
    fn list(&mut self, items: &[(bool, Expr)]) -> Evaluated {
        self.budget.spend(10)?;
        let mut found = Vec::with_capacity(items.len());
        for (optional, item) in items {
            let value = self.expr(item)?;
            found.extend(present(*optional, value)?);
        }
        self.budget.allocate(found.len() * size_of::<Value>())?;
        Ok(Value::list(found))
    }

    #[inline(never)]
    fn map(&mut self, entries: &[(bool, Expr, Expr)]) -> Evaluated {
        self.budget.spend(30)?;
        let mut found = BTreeMap::new();
        for (optional, key, value) in entries {
            let key = self.expr(key)?;
            let key = Key::of(&key).ok_or_else(|| EvalError::new("unsupported key type"))?;
            let value = self.expr(value)?;
            if let Some(value) = present(*optional, value)?
                && found.insert(key, value).is_some()
            {
                return Err(EvalError::new("map key conflict"));
            }
        }
        self.budget.allocate(found.len() * 2 * size_of::<Value>())?;
        Ok(Value::Map(Arc::new(found)))
    }

    #[inline(never)]
    fn fields(&mut self, fields: &[(bool, Arc<str>, Expr)]) -> Evaluated {
        self.budget.spend(40)?;
        let mut found = BTreeMap::new();
        for (optional, name, value) in fields {
            let value = self.expr(value)?;
            if let Some(value) = present(*optional, value)? {
                found.insert(Key::String(Arc::clone(name)), value);
            }
        }
        self.budget.allocate(found.len() * 2 * size_of::<Value>())?;
        Ok(Value::Map(Arc::new(found)))
    }
}

/// What a call of the function costs with these arguments. What costs more than is left is looked at no further.
fn units(function: &str, values: &[Value], left: u64) -> u64 {
    let count = |signature: &&signatures::Signature| signature.args.len() == values.len();
    let fits = |signature: &&signatures::Signature| {
        signature.args.iter().zip(values).all(|(wanted, value)| library::may_be(wanted, value))
    };
    let found = signatures::of(function).iter().filter(count).find(fits);
    match found.map_or(Cost::One, |signature| signature.cost) {
        // Comparing looks into what is compared.
        Cost::Least => least(values, left),
        cost @ (Cost::Search | Cost::Pairs | Cost::Items) => {
            let weight = |(index, value): (usize, &Value)| match (cost, index) {
                // These do not look into the other one.
                (Cost::Items, 1..) | (Cost::Search, 0) => 1,
                _ => value.weight_up_to(left.saturating_add(1)),
            };
            let sizes: Vec<u64> = values.iter().enumerate().map(weight).collect();
            cost.units(&sizes)
        }
        cost => {
            let sizes: Vec<u64> = values.iter().map(Value::size).collect();
            // Characters are counted each time, though an estimate has that for one.
            let counted = match (function, values) {
                ("size", [Value::String(text)]) => text.len() as u64 / COUNTED_BYTES,
                _ => 0,
            };
            cost.units(&sizes).saturating_add(counted)
        }
    }
}

/// How many bytes of a text are counted for a unit.
const COUNTED_BYTES: u64 = 1024;

/// The weight of the lightest value. Heavier ones are looked at no further than that: what is told apart at once does not cost
/// what the larger side is. What weighs more than is left is more than that.
fn least(values: &[Value], left: u64) -> u64 {
    let mut most = 64;
    loop {
        let least = values.iter().map(|value| value.weight_up_to(most)).min().unwrap_or(1);
        if least < most || most > left {
            return least;
        }
        most = most.saturating_mul(8).min(left.saturating_add(1));
    }
}

/// An item of a literal; none when it is marked optional and is empty.
fn present(optional: bool, value: Value) -> Result<Option<Value>, EvalError> {
    match value {
        Value::Optional(inner) if optional => Ok(inner.map(|value| (*value).clone())),
        _ if optional => Err(EvalError::new("cannot initialize optional entry from non-optional value")),
        other => Ok(Some(other)),
    }
}

fn no_such_key(key: &str) -> EvalError {
    EvalError::new(format!("no such key: {key}"))
}

fn selected(operand: &Value, field: &Arc<str>, optional: bool, test: bool) -> Evaluated {
    match operand {
        Value::Map(map) => {
            let found = map.get(&Key::String(Arc::clone(field)));
            match (test, optional) {
                (true, _) => Ok(Value::Bool(found.is_some())),
                (_, true) => Ok(Value::optional(found.cloned())),
                _ => found.cloned().ok_or_else(|| no_such_key(field)),
            }
        }
        Value::Optional(None) if test => Ok(Value::Bool(false)),
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(inner)) if test => selected(inner, field, false, true),
        Value::Optional(Some(inner)) => selected(inner, field, true, false),
        Value::Null if test => Ok(Value::Bool(false)),
        _ => Err(no_such_key(field)),
    }
}

fn indexed(operand: &Value, index: &Value, optional: bool) -> Evaluated {
    let found = match operand {
        Value::Optional(None) => return Ok(Value::Optional(None)),
        Value::Optional(Some(inner)) => return indexed(inner, index, true),
        Value::Map(map) => {
            let key = Key::of(index).ok_or_else(|| EvalError::new("no such overload"))?;
            map.get(&key).cloned().ok_or_else(|| no_such_key(&library::shown(index)))
        }
        Value::List(list) => {
            let place = match Key::of(index) {
                Some(Key::Int(place)) => usize::try_from(place).ok(),
                Some(Key::Uint(place)) => usize::try_from(place).ok(),
                _ => return Err(EvalError::new("no such overload")),
            };
            let missing = || EvalError::new(format!("index out of bounds: {}", library::shown(index)));
            place.and_then(|place| list.items.get(place)).cloned().ok_or_else(missing)
        }
        _ => return Err(EvalError::new("no such overload")),
    };
    if optional { Ok(Value::optional(found.ok())) } else { found }
}
