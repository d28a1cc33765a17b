//! The functions, by library.
//!
//! Types have been checked where they are known; where they are not, a function that does not take its
//! arguments says so here.

pub(crate) mod authz;
mod convert;
pub(crate) mod encoders;
mod format;
mod lists;
mod math;
mod net;
mod operators;
mod optional;
mod quantity;
mod semver;
pub(crate) mod strings;
pub(crate) mod time;

use std::net::IpAddr;
use std::sync::Arc;

use carrack_types::quantity::Quantity;
use regex::Regex;

use crate::budget::{Budget, EvalError};
use crate::eval::{Bindings, Decision};
use crate::types::Type;
use crate::value::{Key, Value};

/// A value of a library.
#[derive(Clone, Debug, PartialEq)]
pub enum Opaque {
    /// `kubernetes.URL`
    Url(Arc<net::Url>),
    /// `net.IP`
    Ip(IpAddr),
    /// `net.CIDR`
    Cidr(net::Cidr),
    /// `kubernetes.Quantity`
    Quantity(Quantity),
    /// `kubernetes.Semver`
    Semver(Arc<semver::Semver>),
    /// `kubernetes.NamedFormat`
    Format(&'static str),
    /// Something that the authorizer can be asked, as far as it is said.
    Check(Arc<authz::Check>),
    /// What the authorizer answered.
    Decision(Arc<Decision>),
}

impl Opaque {
    /// The name of the type in signatures.
    fn kind(&self) -> &'static str {
        match self {
            Opaque::Url(_) => "URL",
            Opaque::Ip(_) => "IP",
            Opaque::Cidr(_) => "CIDR",
            Opaque::Quantity(_) => "Quantity",
            Opaque::Semver(_) => "Semver",
            Opaque::Format(_) => "Format",
            Opaque::Check(check) => check.kind(),
            Opaque::Decision(_) => "Decision",
        }
    }

    /// The name of its type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Opaque::Url(_) => "kubernetes.URL",
            Opaque::Ip(_) => "net.IP",
            Opaque::Cidr(_) => "net.CIDR",
            Opaque::Quantity(_) => "kubernetes.Quantity",
            Opaque::Semver(_) => "kubernetes.Semver",
            Opaque::Format(_) => "kubernetes.NamedFormat",
            Opaque::Check(check) => check.type_name(),
            Opaque::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// How long a text it has in it, in bytes; one where it has none.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Opaque::Url(url) => url.text.len() as u64,
            Opaque::Semver(version) => version.size(),
            _ => 1,
        }
    }

    /// The value as text, where it has a form.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Opaque::Ip(ip) => Some(ip.to_string()),
            Opaque::Cidr(cidr) => Some(cidr.to_string()),
            Opaque::Quantity(quantity) => Some(quantity.to_string()),
            Opaque::Url(url) => Some(url.text.clone()),
            _ => None,
        }
    }
}

/// What functions have at hand.
pub(crate) struct Cx<'a> {
    pub bindings: &'a dyn Bindings,
    pub budget: &'a mut Budget,
    /// The pattern of the call, where it is known beforehand.
    pub regex: Option<&'a Regex>,
}

pub(crate) type Called = Result<Value, EvalError>;

/// A function of a library, if the library has it for these arguments.
pub(crate) type Found = Option<Called>;

/// Calls a function.
pub(crate) fn call(function: &str, args: &[Value], cx: &mut Cx<'_>) -> Called {
    let plain: [fn(&str, &[Value]) -> Found; 9] = [
        convert::call,
        time::call,
        math::call,
        net::call,
        quantity::call,
        semver::call,
        format::call,
        optional::call,
        encoders::call,
    ];
    let found = operators::call(function, args, cx)
        .or_else(|| strings::call(function, args, cx))
        .or_else(|| lists::call(function, args, cx))
        .or_else(|| plain.iter().find_map(|library| library(function, args)))
        .or_else(|| authz::call(function, args, cx));
    found.unwrap_or_else(|| {
        let types: Vec<&str> = args.iter().map(Value::type_name).collect();
        Err(EvalError::new(format!("no such overload: {function}({})", types.join(", "))))
    })
}

/// Whether a value can be of this type, as far as the first look tells.
pub(crate) fn may_be(wanted: &Type, value: &Value) -> bool {
    match (wanted, value) {
        (Type::Param(_) | Type::Dyn, _) => true,
        (Type::Bool, Value::Bool(_))
        | (Type::Int, Value::Int(_))
        | (Type::Uint, Value::Uint(_))
        | (Type::Double, Value::Double(_))
        | (Type::String(_), Value::String(_))
        | (Type::Bytes(_), Value::Bytes(_))
        | (Type::Duration, Value::Duration(_))
        | (Type::Timestamp, Value::Timestamp(_))
        | (Type::List(_), Value::List(_))
        | (Type::Map(_), Value::Map(_))
        | (Type::Optional(_), Value::Optional(_)) => true,
        (Type::Opaque(name), Value::Opaque(opaque)) => opaque.kind() == *name,
        _ => false,
    }
}

/// A value in a message.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_string(),
        other => match convert::text(other) {
            Some(text) => text,
            None => other.type_name().to_owned(),
        },
    }
}

/// A truth, as the value of a function.
fn truth(value: bool) -> Found {
    Some(Ok(Value::Bool(value)))
}

/// A number of elements, as the value of a function.
fn count(value: usize) -> Found {
    Some(i64::try_from(value).map(Value::Int).map_err(|_| EvalError::new("integer overflow")))
}

fn text(value: impl Into<String>) -> Found {
    Some(Ok(Value::String(value.into().into())))
}

fn fail(why: impl Into<String>) -> Found {
    Some(Err(EvalError::new(why)))
}

/// The key that a text is.
fn key(name: &str) -> Key {
    Key::String(name.into())
}
