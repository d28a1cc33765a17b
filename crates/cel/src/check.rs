//! Types of expressions, and what evaluating them costs at the worst.
//!
//! The estimate follows the sizes that types carry: a macro costs its body once for each item that its range
//! may have. It is an estimate (upstream's differs in places); what really bounds an evaluation is its budget.

use std::collections::BTreeSet;
use std::sync::Arc;

use regex::Regex;

use crate::Fault;
use crate::ast::{Comprehension, Expr, Kind, Macro};
use crate::signatures::{self, Signature};
use crate::types::{Env, Type, UNBOUNDED};
use crate::value::Value;

/// What is known of a whole expression.
pub(crate) struct Checked {
    pub type_: Type,
    pub cost: u64,
    pub variables: Vec<Arc<str>>,
}

/// What is known of a part.
struct Info {
    type_: Type,
    cost: u64,
}

pub(crate) fn check(root: &mut Expr, env: &Env) -> Result<Checked, Fault> {
    let mut checker = Checker { env, locals: Vec::new(), used: BTreeSet::new(), patterns: 0, large_patterns: 0 };
    let info = checker.expr(root)?;
    Ok(Checked { type_: info.type_, cost: info.cost, variables: checker.used.into_iter().collect() })
}

/// How many patterns an expression may have written in it, and how many of them may be large: each is compiled and kept, and a
/// few letters are enough for a large one.
const MAX_PATTERNS: usize = 256;
const MAX_LARGE_PATTERNS: usize = 8;
/// Bytes that the program of a pattern may take that is not a large one.
const SMALL_PATTERN_BYTES: usize = 64 << 10;

struct Checker<'a> {
    env: &'a Env,
    locals: Vec<(Arc<str>, Type)>,
    used: BTreeSet<Arc<str>>,
    /// How many patterns there have been, and how many large ones.
    patterns: usize,
    large_patterns: usize,
}

/// Whether values of the type may be keys of a map, as far as types tell. Were maps keys of maps, then a type could have another
/// in it twice, that one another twice, and nobody could compare the two of them or print one.
fn may_be_key(type_: &Type) -> bool {
    !matches!(type_, Type::List(_) | Type::Map(_) | Type::Object(_) | Type::Optional(_))
}

fn type_of(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(text) => Type::String(text.chars().count() as u64),
        Value::Bytes(bytes) => Type::Bytes(bytes.len() as u64),
        _ => Type::Dyn,
    }
}

/// Names of types that are values.
fn type_name(name: &str) -> Option<&'static str> {
    Some(match name {
        "bool" => "bool",
        "int" => "int",
        "uint" => "uint",
        "double" => "double",
        "string" => "string",
        "bytes" => "bytes",
        "list" => "list",
        "map" => "map",
        "null_type" => "null_type",
        "type" => "type",
        "optional_type" => "optional_type",
        "google.protobuf.Timestamp" => "google.protobuf.Timestamp",
        "google.protobuf.Duration" => "google.protobuf.Duration",
        "net.IP" => "net.IP",
        "net.CIDR" => "net.CIDR",
        _ => return None,
    })
}

fn dotted(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.to_string()),
        Kind::Select { operand, field, optional: false, test: false } => Some(format!("{}.{field}", dotted(operand)?)),
        _ => None,
    }
}

impl Checker<'_> {
    fn variable(&mut self, name: &str) -> Option<Type> {
        if let Some((_, type_)) = self.locals.iter().rev().find(|(local, _)| &**local == name) {
            return Some(type_.clone());
        }
        let (name, type_) = self.env.variables.get_key_value(name)?;
        self.used.insert(Arc::clone(name));
        Some(type_.clone())
    }

    fn expr(&mut self, expr: &mut Expr) -> Result<Info, Fault> {
        let at = expr.at;
        match &mut expr.kind {
            Kind::Literal(value) => Ok(Info { type_: type_of(value), cost: 0 }),
            Kind::Ident(name) => {
                if let Some(type_) = self.variable(name) {
                    return Ok(Info { type_, cost: 1 });
                }
                match type_name(name) {
                    Some(name) => {
                        expr.kind = Kind::Literal(Value::Type(name.into()));
                        Ok(Info { type_: Type::Type, cost: 0 })
                    }
                    None => Err(Fault::new(at, format!("undeclared reference to '{name}' (in container '')"))),
                }
            }
            Kind::Select { .. } => self.select(expr),
            Kind::Index { operand, index, optional } => {
                let optional = *optional;
                let (operand, index) = (self.expr(operand)?, self.expr(index)?);
                let cost = operand.cost.saturating_add(index.cost).saturating_add(1);
                let (inner, was_optional) = match &operand.type_ {
                    Type::Optional(inner) => ((**inner).clone(), true),
                    other => (other.clone(), false),
                };
                let item = match &inner {
                    Type::List(list) if index.type_.fits(&Type::Int) || index.type_.fits(&Type::Uint) => {
                        list.item.clone()
                    }
                    Type::Map(map) if index.type_.fits(&map.key) => map.value.clone(),
                    Type::Dyn => Type::Dyn,
                    other => return Err(no_overload(at, "_[_]", &[other.clone(), index.type_])),
                };
                let type_ = if optional || was_optional { Type::Optional(Arc::new(item)) } else { item };
                Ok(Info { type_, cost })
            }
            Kind::Call { .. } => self.call(expr),
            Kind::And(all) | Kind::Or(all) => {
                let mut cost = 0_u64;
                for part in all {
                    let info = self.expr(part)?;
                    if !info.type_.fits(&Type::Bool) {
                        return Err(no_overload(at, "_&&_ or _||_", &[info.type_]));
                    }
                    cost = cost.saturating_add(info.cost).saturating_add(1);
                }
                Ok(Info { type_: Type::Bool, cost })
            }
            Kind::Ternary(parts) => {
                let [condition, yes, no] = &mut **parts;
                let (condition, yes, no) = (self.expr(condition)?, self.expr(yes)?, self.expr(no)?);
                if !condition.type_.fits(&Type::Bool) || !yes.type_.fits(&no.type_) {
                    return Err(no_overload(at, "_?_:_", &[condition.type_, yes.type_, no.type_]));
                }
                let cost = condition.cost.saturating_add(yes.cost.max(no.cost)).saturating_add(1);
                let type_ = joined(&yes.type_, &no.type_);
                Ok(Info { type_, cost })
            }
            Kind::List(items) => {
                let (mut item_type, mut cost) = (None, 10_u64);
                let count = items.len() as u64;
                for (optional, item) in items {
                    let info = self.expr(item)?;
                    cost = cost.saturating_add(info.cost);
                    let own = self.unwrapped(*optional, info.type_, item.at)?;
                    item_type = Some(item_type.map_or_else(|| own.clone(), |known| joined(&known, &own)));
                }
                Ok(Info { type_: Type::list(item_type.unwrap_or(Type::Dyn), count), cost })
            }
            Kind::Map(entries) => {
                let (mut types, mut cost) = (None::<(Type, Type)>, 30_u64);
                let count = entries.len() as u64;
                for (optional, key, value) in entries {
                    let (k, v) = (self.expr(key)?, self.expr(value)?);
                    if !may_be_key(&k.type_) {
                        return Err(Fault::new(key.at, format!("unsupported key type: {}", k.type_)));
                    }
                    cost = cost.saturating_add(k.cost).saturating_add(v.cost);
                    let v = self.unwrapped(*optional, v.type_, value.at)?;
                    types = Some(match types {
                        None => (k.type_, v),
                        Some((known_k, known_v)) => (joined(&known_k, &k.type_), joined(&known_v, &v)),
                    });
                }
                let (key, value) = types.unwrap_or((Type::Dyn, Type::Dyn));
                Ok(Info { type_: Type::map(key, value, count), cost })
            }
            Kind::Struct { name, fields } => {
                let known = |known: &&str| *name.as_ref() == **known || name.starts_with(&format!("{known}."));
                if !self.env.structs.iter().any(known) {
                    return Err(Fault::new(at, format!("undeclared reference to '{name}' (in container '')")));
                }
                let mut cost = 40_u64;
                for (_, _, value) in fields {
                    cost = cost.saturating_add(self.expr(value)?.cost);
                }
                Ok(Info { type_: Type::Dyn, cost })
            }
            Kind::Comprehension(comprehension) => self.comprehension(at, comprehension),
        }
    }

    /// The type in an optional, where an item is marked as one.
    fn unwrapped(&self, optional: bool, type_: Type, at: u32) -> Result<Type, Fault> {
        match type_ {
            other if !optional => Ok(other),
            Type::Optional(inner) => Ok((*inner).clone()),
            Type::Dyn => Ok(Type::Dyn),
            other => Err(Fault::new(at, format!("expected type 'optional_type(dyn)' but found '{other}'"))),
        }
    }

    fn select(&mut self, expr: &mut Expr) -> Result<Info, Fault> {
        // A name with dots may be that of a type.
        if let Some(name) = dotted(expr)
            && let Some(name) = type_name(&name)
        {
            expr.kind = Kind::Literal(Value::Type(name.into()));
            return Ok(Info { type_: Type::Type, cost: 0 });
        }
        let at = expr.at;
        let Kind::Select { operand, field, optional, test } = &mut expr.kind else {
            return Ok(Info { type_: Type::Dyn, cost: 0 });
        };
        let (field, optional, test) = (Arc::clone(field), *optional, *test);
        let operand = self.expr(operand)?;
        let cost = operand.cost.saturating_add(1);
        let (inner, was_optional) = match &operand.type_ {
            Type::Optional(inner) => ((**inner).clone(), true),
            other => (other.clone(), false),
        };
        let type_ = match &inner {
            Type::Object(object) => match object.fields.get(&field) {
                Some(found) => found.type_.clone(),
                None => return Err(Fault::new(at, format!("undefined field '{field}'"))),
            },
            Type::Map(map) if map.key.fits(&Type::string()) => map.value.clone(),
            Type::Dyn => Type::Dyn,
            Type::Opaque("Authorizer") if &*field == "requestResource" => Type::Opaque("ResourceCheck"),
            other => return Err(Fault::new(at, format!("type '{other}' does not support field selection"))),
        };
        if test {
            return Ok(Info { type_: Type::Bool, cost });
        }
        let type_ = if optional || was_optional { Type::Optional(Arc::new(type_)) } else { type_ };
        Ok(Info { type_, cost })
    }

    fn call(&mut self, expr: &mut Expr) -> Result<Info, Fault> {
        let at = expr.at;
        let Kind::Call { function, method, args, regex } = &mut expr.kind else {
            return Ok(Info { type_: Type::Dyn, cost: 0 });
        };
        // `sets.contains(a, b)` is a function with a dot in its name, if nothing is called `sets`.
        if *method
            && let Some(target) = args.first()
            && let Some(space) = dotted(target)
            && self.variable(space.split('.').next().unwrap_or_default()).is_none()
        {
            let qualified = format!("{space}.{function}");
            if signatures::of(&qualified).is_empty() {
                let text = format!("undeclared reference to '{space}' (in container '')");
                return Err(Fault::new(target.at, text));
            }
            *function = qualified.into();
            *method = false;
            args.remove(0);
        }
        let mut types = Vec::with_capacity(args.len());
        let mut cost = 0_u64;
        for arg in args.iter_mut() {
            let info = self.expr(arg)?;
            cost = cost.saturating_add(info.cost);
            types.push(info.type_);
        }
        let all = signatures::of(function);
        if all.is_empty() {
            return Err(Fault::new(at, format!("undeclared reference to '{function}' (in container '')")));
        }
        let mut found: Option<(Type, u64)> = None;
        for signature in all.iter().filter(|signature| signature.method == *method) {
            let Some(result) = applied(signature, &types) else { continue };
            let sizes: Vec<u64> = types.iter().map(Type::max_size).collect();
            let units = signature.cost.units(&sizes);
            found = Some(match found {
                None => (result, units),
                // Several fit where a type is not known: then neither is that of the result.
                Some((other, known)) => {
                    let same = std::mem::discriminant(&other) == std::mem::discriminant(&result);
                    (if same { other } else { Type::Dyn }, known.max(units))
                }
            });
        }
        let Some((type_, units)) = found else {
            let shown = match &**function {
                "!" => "!_".to_owned(),
                "neg" => "-_".to_owned(),
                "in" => "@in".to_owned(),
                operator if operator.starts_with(|c: char| !c.is_ascii_alphabetic()) => format!("_{operator}_"),
                other => other.to_owned(),
            };
            return Err(no_overload(at, &shown, &types));
        };
        if matches!(&**function, "matches" | "find" | "findAll")
            && let Some(Expr { kind: Kind::Literal(Value::String(pattern)), at }) = args.get(1)
        {
            let compiled = self.pattern(pattern);
            let compiled = compiled.map_err(|error| Fault::new(*at, format!("invalid matches argument: {error}")))?;
            *regex = Some(Box::new(compiled));
        }
        Ok(Info { type_, cost: cost.saturating_add(units) })
    }

    /// Compiles a pattern that is written in the expression.
    fn pattern(&mut self, text: &str) -> Result<Regex, String> {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return Err(format!("an expression may have no more than {MAX_PATTERNS} patterns"));
        }
        crate::pattern::bounded(text, SMALL_PATTERN_BYTES).or_else(|error| {
            if self.large_patterns == MAX_LARGE_PATTERNS {
                return Err(error);
            }
            self.large_patterns += 1;
            crate::pattern(text)
        })
    }

    fn comprehension(&mut self, at: u32, it: &mut Comprehension) -> Result<Info, Fault> {
        let range = self.expr(&mut it.range)?;
        let two = it.variables.len() == 2;
        let no_range = |type_: &Type| {
            Fault::new(
                at,
                format!(
                    "expression of type '{type_}' cannot be range of a comprehension (must be list, map, or dynamic)"
                ),
            )
        };
        let (types, count) = match (it.kind, &range.type_) {
            (Macro::Bind, type_) => (vec![type_.clone()], 1),
            (Macro::OptMap | Macro::OptFlatMap, Type::Optional(inner)) => (vec![(**inner).clone()], 1),
            (Macro::OptMap | Macro::OptFlatMap, Type::Dyn) => (vec![Type::Dyn], 1),
            (Macro::OptMap | Macro::OptFlatMap, other) => {
                return Err(no_overload(at, "optMap", std::slice::from_ref(other)));
            }
            (_, Type::List(list)) if two => (vec![Type::Int, list.item.clone()], list.max),
            (_, Type::List(list)) => (vec![list.item.clone()], list.max),
            (_, Type::Map(map)) if two => (vec![map.key.clone(), map.value.clone()], map.max),
            (_, Type::Map(map)) => (vec![map.key.clone()], map.max),
            (_, Type::Object(object)) if two => (vec![Type::string(), Type::Dyn], object.fields.len() as u64),
            (_, Type::Object(object)) => (vec![Type::string()], object.fields.len() as u64),
            (_, Type::Dyn) if two => (vec![Type::Dyn, Type::Dyn], range.type_.max_size()),
            (_, Type::Dyn) => (vec![Type::Dyn], range.type_.max_size()),
            (_, other) => return Err(no_range(other)),
        };
        let locals = self.locals.len();
        self.locals.extend(it.variables.iter().cloned().zip(types));
        let filter = it.filter.as_mut().map(|filter| self.expr(filter)).transpose()?;
        let body = self.expr(&mut it.body)?;
        self.locals.truncate(locals);
        let needs_bool = matches!(it.kind, Macro::All | Macro::Exists | Macro::ExistsOne | Macro::Filter);
        for info in filter.iter().chain(needs_bool.then_some(&body)) {
            if !info.type_.fits(&Type::Bool) {
                return Err(Fault::new(it.body.at, format!("expected type 'bool' but found '{}'", info.type_)));
            }
        }
        let step = filter.map_or(0, |info| info.cost).saturating_add(body.cost).saturating_add(3);
        let cost = range.cost.saturating_add(count.saturating_mul(step)).saturating_add(1);
        let type_ = match it.kind {
            Macro::All | Macro::Exists | Macro::ExistsOne => Type::Bool,
            Macro::Filter => match range.type_ {
                Type::List(_) => range.type_,
                Type::Map(map) => Type::list(map.key.clone(), map.max),
                _ => Type::list(Type::Dyn, count),
            },
            Macro::Map | Macro::TransformList => Type::list(body.type_, count),
            Macro::TransformMap => {
                let key = if let Type::Map(map) = &range.type_ { map.key.clone() } else { Type::Dyn };
                Type::map(key, body.type_, count)
            }
            Macro::TransformMapEntry => match body.type_ {
                Type::Map(map) => Type::map(map.key.clone(), map.value.clone(), count),
                Type::Dyn => Type::map(Type::Dyn, Type::Dyn, count),
                other => return Err(no_overload(at, "transformMapEntry", &[other])),
            },
            Macro::OptMap => Type::Optional(Arc::new(body.type_)),
            Macro::OptFlatMap => match body.type_ {
                Type::Optional(_) | Type::Dyn => body.type_,
                other => return Err(no_overload(at, "optFlatMap", &[other])),
            },
            Macro::Bind => body.type_,
        };
        Ok(Info { type_, cost })
    }
}

fn no_overload(at: u32, function: &str, types: &[Type]) -> Fault {
    let types: Vec<String> = types.iter().map(Type::to_string).collect();
    Fault::new(at, format!("found no matching overload for '{function}' applied to '({})'", types.join(", ")))
}

/// The type of two that stand in one place.
fn joined(a: &Type, b: &Type) -> Type {
    match (a, b) {
        (Type::Null, other) | (other, Type::Null) if a.fits(b) => other.clone(),
        _ if !a.fits(b) => Type::Dyn,
        (Type::Dyn, _) | (_, Type::Dyn) => Type::Dyn,
        _ => a.resized(a.max_size().max(b.max_size())),
    }
}

/// The type of the result, if the signature takes arguments of these types.
fn applied(signature: &Signature, types: &[Type]) -> Option<Type> {
    if signature.args.len() != types.len() {
        return None;
    }
    let mut bound: [Option<Type>; 2] = [None, None];
    if !signature.args.iter().zip(types).all(|(wanted, given)| unify(wanted, given, &mut bound)) {
        return None;
    }
    let result = substitute(&signature.result, &bound);
    // What is made of the arguments is as long as all of them, at the most usual.
    let size = types.iter().map(Type::max_size).fold(0, u64::saturating_add);
    Some(if result.max_size() == UNBOUNDED { result.resized(size) } else { result })
}

fn unify(wanted: &Type, given: &Type, bound: &mut [Option<Type>; 2]) -> bool {
    match (wanted, given) {
        (Type::Param(index), _) => {
            let Some(slot) = bound.get_mut(usize::from(*index)) else { return false };
            match slot {
                None => *slot = Some(given.clone()),
                Some(known) => {
                    if !given.fits(known) {
                        return false;
                    }
                    *slot = Some(joined(known, given));
                }
            }
            true
        }
        (_, Type::Dyn) | (Type::Dyn, _) => true,
        (Type::List(wanted), Type::List(given)) => unify(&wanted.item, &given.item, bound),
        (Type::Map(wanted), Type::Map(given)) => {
            unify(&wanted.key, &given.key, bound) && unify(&wanted.value, &given.value, bound)
        }
        (Type::Map(wanted), Type::Object(_)) => unify(&wanted.key, &Type::string(), bound),
        (Type::Optional(wanted), Type::Optional(given)) => unify(wanted, given, bound),
        (wanted, given) => std::mem::discriminant(wanted) == std::mem::discriminant(given) && given.fits(wanted),
    }
}

fn substitute(type_: &Type, bound: &[Option<Type>; 2]) -> Type {
    match type_ {
        Type::Param(index) => bound.get(usize::from(*index)).cloned().flatten().unwrap_or(Type::Dyn),
        Type::List(list) => Type::list(substitute(&list.item, bound), list.max),
        Type::Map(map) => Type::map(substitute(&map.key, bound), substitute(&map.value, bound), map.max),
        Type::Optional(inner) => Type::Optional(Arc::new(substitute(inner, bound))),
        other => other.clone(),
    }
}
