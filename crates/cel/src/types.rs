//! Types, with the sizes that values of them may have, and what an expression may name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::parser::RESERVED;

/// The size of what nothing bounds.
pub const UNBOUNDED: u64 = u64::MAX;

/// A type. Sizes are for estimates of cost alone: types of different sizes are the same type.
#[derive(Clone, Debug)]
pub enum Type {
    /// Known only when the value is there.
    Dyn,
    /// `null`
    Null,
    /// `bool`
    Bool,
    /// `int`
    Int,
    /// `uint`
    Uint,
    /// `double`
    Double,
    /// `string` of at most so many characters.
    String(u64),
    /// `bytes`, at most so many.
    Bytes(u64),
    /// `google.protobuf.Duration`
    Duration,
    /// `google.protobuf.Timestamp`
    Timestamp,
    /// `type`
    Type,
    /// `list`
    List(Arc<ListOf>),
    /// `map`
    Map(Arc<MapOf>),
    /// An object with named fields.
    Object(Arc<ObjectOf>),
    /// `optional_type`
    Optional(Arc<Type>),
    /// A type of a library, by its name.
    Opaque(&'static str),
    /// A parameter of a signature.
    Param(u8),
}

/// How the items of a list are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    /// By their place.
    #[default]
    Atomic,
    /// By their value: order does not count.
    Set,
    /// By these keys: order does not count.
    Map(Arc<[Arc<str>]>),
}

/// A list of items.
#[derive(Clone, Debug)]
pub struct ListOf {
    /// Their type.
    pub item: Type,
    /// How many at most.
    pub max: u64,
    /// How they are told apart.
    pub kind: ListKind,
}

/// A map.
#[derive(Clone, Debug)]
pub struct MapOf {
    /// Type of keys.
    pub key: Type,
    /// Type of values.
    pub value: Type,
    /// How many entries at most.
    pub max: u64,
}

/// An object's fields by the names that expressions give them.
#[derive(Clone, Debug, Default)]
pub struct ObjectOf {
    /// For messages.
    pub name: String,
    /// The fields.
    pub fields: BTreeMap<Arc<str>, Field>,
}

/// A field of an object.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name in JSON.
    pub json: Arc<str>,
    /// Its type.
    pub type_: Type,
}

impl Type {
    /// A list of at most so many items.
    pub fn list(item: Type, max: u64) -> Type {
        Type::List(Arc::new(ListOf { item, max, kind: ListKind::Atomic }))
    }

    /// A map of at most so many entries.
    pub fn map(key: Type, value: Type, max: u64) -> Type {
        Type::Map(Arc::new(MapOf { key, value, max }))
    }

    /// A string of any length.
    pub fn string() -> Type {
        Type::String(UNBOUNDED)
    }

    /// Whether it is a type of so many elements, and of how many at most.
    pub(crate) fn max_size(&self) -> u64 {
        match self {
            Type::String(max) | Type::Bytes(max) => *max,
            Type::List(list) => list.max,
            Type::Map(map) => map.max,
            Type::Object(object) => object.fields.len() as u64,
            Type::Optional(inner) => inner.max_size(),
            // Nothing is known of it; its size is seen, and paid for, when it is there.
            Type::Dyn => 256,
            _ => 1,
        }
    }

    /// The same type with another bound.
    pub(crate) fn resized(&self, max: u64) -> Type {
        match self {
            Type::String(_) => Type::String(max),
            Type::Bytes(_) => Type::Bytes(max),
            Type::List(list) => Type::List(Arc::new(ListOf { max, ..(**list).clone() })),
            Type::Map(map) => Type::Map(Arc::new(MapOf { max, ..(**map).clone() })),
            Type::Optional(inner) => Type::Optional(Arc::new(inner.resized(max))),
            other => other.clone(),
        }
    }

    /// Whether a value of this type may stand where `wanted` is: the same type, or unknown on one side.
    pub fn fits(&self, wanted: &Type) -> bool {
        match (self, wanted) {
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::List(a), Type::List(b)) => a.item.fits(&b.item),
            (Type::Map(a), Type::Map(b)) => a.key.fits(&b.key) && a.value.fits(&b.value),
            (Type::Map(a), Type::Object(_)) => a.key.fits(&Type::string()),
            (Type::Optional(a), Type::Optional(b)) => a.fits(b),
            (Type::Object(a), Type::Object(b)) => Arc::ptr_eq(a, b) || a.name == b.name,
            (Type::Opaque(a), Type::Opaque(b)) => a == b,
            (Type::Null, Type::Object(_) | Type::List(_) | Type::Map(_) | Type::Optional(_) | Type::Opaque(_))
            | (Type::Object(_) | Type::List(_) | Type::Map(_) | Type::Optional(_) | Type::Opaque(_), Type::Null) => {
                true
            }
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String(_) => f.write_str("string"),
            Type::Bytes(_) => f.write_str("bytes"),
            Type::Duration => f.write_str("duration"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Type => f.write_str("type"),
            Type::List(list) => write!(f, "list({})", list.item),
            Type::Map(map) => write!(f, "map({}, {})", map.key, map.value),
            Type::Object(object) => f.write_str(&object.name),
            Type::Optional(inner) => write!(f, "optional_type({inner})"),
            Type::Opaque(name) => f.write_str(name),
            Type::Param(index) => write!(f, "{}", char::from(b'A' + (index % 26))),
        }
    }
}

/// What an expression may name.
#[derive(Clone, Debug, Default)]
pub struct Env {
    pub(crate) variables: BTreeMap<Arc<str>, Type>,
    pub(crate) structs: Vec<&'static str>,
}

impl Env {
    /// Nothing but the libraries.
    pub fn new() -> Env {
        Env::default()
    }

    /// With a variable.
    #[must_use]
    pub fn with(mut self, name: &str, type_: Type) -> Env {
        self.variables.insert(name.into(), type_);
        self
    }

    /// With object literals of this name, and of names below it (`Object` and `Object.spec`).
    #[must_use]
    pub fn with_struct(mut self, name: &'static str) -> Env {
        self.structs.push(name);
        self
    }
}

/// Whether a word can be no identifier, so that a field named so is written otherwise.
fn is_keyword(word: &str) -> bool {
    matches!(word, "true" | "false" | "null" | "in") || RESERVED.contains(&word)
}

/// The name by which expressions select a property; none when there is none.
/// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#resource-expression-language>
pub fn escape(property: &str) -> Option<String> {
    if is_keyword(property) {
        return Some(format!("__{property}__"));
    }
    let starts_well =
        property.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '.' || c == '-' || c == '/');
    if !starts_well {
        return None;
    }
    let mut out = String::with_capacity(property.len());
    let mut rest = property;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("__") {
            out.push_str("__underscores__");
            rest = &rest[2..];
            continue;
        }
        match c {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn properties_escape() {
        for (property, expected) in [
            ("a", Some("a")),
            ("namespace", Some("__namespace__")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("a_b", Some("a_b")),
            ("1a", None),
            ("a b", None),
        ] {
            assert_eq!(escape(property).as_deref(), expected, "{property}");
        }
    }
}
