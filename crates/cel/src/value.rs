//! Values.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Number};

use crate::library::Opaque;
use crate::types::{ListKind, Type};

/// Values nest no deeper than this; what is deeper in JSON is cut off.
const MAX_DEPTH: usize = 100;
/// As JSON there are no values that have so much in them: a request has no room for that.
const MAX_JSON_WEIGHT: u64 = 1 << 21;

/// A value.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`
    Null,
    /// `bool`
    Bool(bool),
    /// `int`
    Int(i64),
    /// `uint`
    Uint(u64),
    /// `double`
    Double(f64),
    /// `string`
    String(Arc<str>),
    /// `bytes`
    Bytes(Arc<[u8]>),
    /// `list`
    List(Arc<List>),
    /// `map`, and an object with fields.
    Map(Arc<BTreeMap<Key, Value>>),
    /// `google.protobuf.Duration`
    Duration(SignedDuration),
    /// `google.protobuf.Timestamp`
    Timestamp(Timestamp),
    /// A type, by its name.
    Type(Arc<str>),
    /// `optional_type`
    Optional(Option<Arc<Value>>),
    /// A value of a library.
    Opaque(Opaque),
}

/// The items of a list.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// The items.
    pub items: Vec<Value>,
    /// How they are told apart.
    pub kind: ListKind,
}

/// A key of a map. Whole numbers are one kind of key, signed or not.
#[derive(Clone, Debug)]
pub enum Key {
    /// `bool`
    Bool(bool),
    /// `int`
    Int(i64),
    /// `uint`
    Uint(u64),
    /// `string`
    String(Arc<str>),
}

impl Key {
    /// The key that a value is, if it can be one.
    pub(crate) fn of(value: &Value) -> Option<Key> {
        Some(match value {
            Value::Bool(value) => Key::Bool(*value),
            Value::Int(value) => Key::Int(*value),
            Value::Uint(value) => Key::Uint(*value),
            Value::Double(value) => Key::Int(whole(*value)?),
            Value::String(text) => Key::String(Arc::clone(text)),
            _ => return None,
        })
    }

    pub(crate) fn value(&self) -> Value {
        match self {
            Key::Bool(value) => Value::Bool(*value),
            Key::Int(value) => Value::Int(*value),
            Key::Uint(value) => Value::Uint(*value),
            Key::String(text) => Value::String(Arc::clone(text)),
        }
    }

    /// What it costs to compare: little, unless it is very long.
    fn weight(&self) -> u64 {
        match self {
            Key::String(text) => 1 + text.len() as u64 / 100,
            _ => 1,
        }
    }

    /// Kinds in their order, and the number.
    fn rank(&self) -> (u8, i128) {
        match self {
            Key::Bool(value) => (0, i128::from(*value)),
            Key::Int(value) => (1, i128::from(*value)),
            Key::Uint(value) => (1, i128::from(*value)),
            Key::String(_) => (2, 0),
        }
    }
}

/// The integer that a double is, if it is one.
pub(crate) fn whole(value: f64) -> Option<i64> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    (value.fract() == 0.0 && (-LIMIT..LIMIT).contains(&value)).then_some(value as i64)
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        match (self, other) {
            (Key::String(a), Key::String(b)) => a.cmp(b),
            (a, b) => a.rank().cmp(&b.rank()),
        }
    }
}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Key {}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl Value {
    /// A list.
    pub fn list(items: Vec<Value>) -> Value {
        Value::List(Arc::new(List { items, kind: ListKind::Atomic }))
    }

    /// A map with texts as keys.
    pub fn map(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
        Value::Map(Arc::new(entries.into_iter().map(|(key, value)| (Key::String(key.into()), value)).collect()))
    }

    pub(crate) fn optional(value: Option<Value>) -> Value {
        Value::Optional(value.map(Arc::new))
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The value of JSON as its type has it. What does not fit the type is taken as it is.
    pub fn from_json(json: &serde_json::Value, type_: &Type) -> Value {
        from_json(json, type_, 0)
    }

    /// The value as JSON; none for values that JSON has not, and for those that have more in them than any object.
    pub fn to_json(&self) -> Option<serde_json::Value> {
        if self.weight_up_to(MAX_JSON_WEIGHT) >= MAX_JSON_WEIGHT {
            return None;
        }
        self.json()
    }

    fn json(&self) -> Option<serde_json::Value> {
        Some(match self {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Uint(value) => (*value).into(),
            Value::Double(value) => match whole(*value) {
                Some(whole) => whole.into(),
                None => Number::from_f64(*value)?.into(),
            },
            Value::String(text) => text.to_string().into(),
            Value::Bytes(bytes) => crate::library::encoders::encode(bytes).into(),
            Value::Duration(duration) => crate::library::time::duration_text(*duration).into(),
            Value::Timestamp(at) => at.to_string().into(),
            Value::List(list) => list.items.iter().map(Value::json).collect::<Option<Vec<_>>>()?.into(),
            Value::Map(map) => {
                let mut out = Map::new();
                for (key, value) in &**map {
                    let key = match key {
                        Key::String(text) => text.to_string(),
                        Key::Bool(value) => value.to_string(),
                        Key::Int(value) => value.to_string(),
                        Key::Uint(value) => value.to_string(),
                    };
                    out.insert(key, value.json()?);
                }
                out.into()
            }
            Value::Optional(inner) => return inner.as_ref()?.json(),
            Value::Opaque(opaque) => opaque.text()?.into(),
            Value::Type(_) => return None,
        })
    }

    /// How many elements it has: characters, bytes, items, entries; one for other values.
    pub(crate) fn size(&self) -> u64 {
        match self {
            // Bytes, where the size that `size()` tells is that in characters: counting them costs.
            Value::String(text) => text.len() as u64,
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::List(list) => list.items.len() as u64,
            Value::Map(map) => map.len() as u64,
            Value::Optional(Some(inner)) => inner.size(),
            Value::Opaque(opaque) => opaque.size(),
            _ => 1,
        }
    }

    /// All values in it, itself included, as far as they cost to compare. It is looked at no further than to this weight: a
    /// value may be in others many times over, so that a short expression makes one whose parts nobody could count.
    pub(crate) fn weight_up_to(&self, most: u64) -> u64 {
        fn sum<'v>(items: impl Iterator<Item = (u64, &'v Value)>, most: u64) -> u64 {
            let mut weight: u64 = 1;
            for (key, item) in items {
                if weight >= most {
                    break;
                }
                weight = weight.saturating_add(item.weight_up_to(most - weight)).saturating_add(key);
            }
            weight
        }
        match self {
            Value::List(list) => sum(list.items.iter().map(|item| (0, item)), most),
            Value::Map(map) => sum(map.iter().map(|(key, item)| (key.weight(), item)), most),
            Value::Optional(Some(inner)) => sum(std::iter::once((0, &**inner)), most),
            Value::String(_) | Value::Bytes(_) | Value::Opaque(_) => 1 + self.size() / 10,
            _ => 1,
        }
    }

    /// The name of its type.
    pub fn type_name(&self) -> &str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Type(_) => "type",
            Value::Optional(_) => "optional_type",
            Value::Opaque(opaque) => opaque.type_name(),
        }
    }

    /// The order of two values that have one.
    pub(crate) fn order(&self, other: &Value) -> Option<Ordering> {
        match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
            (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
            (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
            (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
            (Value::Double(a), b) => against_whole(*a, b.as_whole()?),
            (a, Value::Double(b)) => against_whole(*b, a.as_whole()?).map(Ordering::reverse),
            (a, b) => Some(a.as_whole()?.cmp(&b.as_whole()?)),
        }
    }

    fn as_whole(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(i128::from(*value)),
            Value::Uint(value) => Some(i128::from(*value)),
            _ => None,
        }
    }
}

/// The order of a double and a whole number, exactly: were the whole number rounded to a double, three numbers could contradict
/// each other, and a sort panics over numbers that do.
fn against_whole(value: f64, whole: i128) -> Option<Ordering> {
    if value.is_nan() {
        return None;
    }
    // What is beyond all integers is cut to the ends of a wider range than theirs.
    let order = (value.trunc() as i128).cmp(&whole);
    Some(order.then_with(|| value.fract().partial_cmp(&0.0).unwrap_or(Ordering::Equal)))
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::List(a), Value::List(b)) => lists_equal(a, b),
            (Value::Map(a), Value::Map(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::Optional(a), Value::Optional(b)) => a == b,
            (Value::Opaque(a), Value::Opaque(b)) => a == b,
            (a, b) => a.order(b) == Some(Ordering::Equal),
        }
    }
}

fn lists_equal(a: &List, b: &List) -> bool {
    if a.items.len() != b.items.len() {
        return false;
    }
    if a.kind == ListKind::Atomic {
        return a.items == b.items;
    }
    // Each is compared with what it may be and with nothing else: lists are in lists, and who looks at an item twice on each
    // level looks at the innermost ones without end.
    let mut ours: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for item in &a.items {
        ours.entry(identity(item, &a.kind)).or_default().push(item);
    }
    let heaviest = a.items.iter().map(|item| item.weight_up_to(u64::MAX - 1)).max().unwrap_or(0);
    b.items.iter().all(|item| {
        // What is heavier than all of them is none of them.
        if item.weight_up_to(heaviest.saturating_add(1)) > heaviest {
            return false;
        }
        let Some(alike) = ours.get_mut(&identity(item, &a.kind)) else { return false };
        let found = alike.iter().position(|own| *own == item);
        found.map(|at| alike.swap_remove(at)).is_some()
    })
}

/// What an item of a set or of a keyed list is told from others by, as text: lists may be as long as a request, so that it is
/// looked up.
pub(crate) fn identity(item: &Value, kind: &ListKind) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::to_json).unwrap_or_default().to_string();
    match (kind, item) {
        (ListKind::Map(keys), Value::Map(map)) => {
            let texts = keys.iter().map(|key| text(map.get(&Key::String(Arc::clone(key)))));
            texts.collect::<Vec<_>>().join(",")
        }
        _ => text(Some(item)),
    }
}

fn number(number: &Number) -> Value {
    match (number.as_i64(), number.as_f64()) {
        (Some(value), _) => Value::Int(value),
        (None, Some(value)) => Value::Double(value),
        (None, None) => Value::Null,
    }
}

fn from_json(json: &serde_json::Value, type_: &Type, depth: usize) -> Value {
    use serde_json::Value as Json;
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    match (json, type_) {
        (Json::Null, _) => Value::Null,
        (Json::Bool(value), _) => Value::Bool(*value),
        (Json::Number(value), Type::Double) => Value::Double(value.as_f64().unwrap_or_default()),
        (Json::Number(value), Type::Int) => match number(value) {
            Value::Double(double) => whole(double).map_or(Value::Double(double), Value::Int),
            other => other,
        },
        (Json::Number(value), _) => number(value),
        (Json::String(text), Type::Timestamp) => text.parse().map_or_else(|_| text.as_str().into(), Value::Timestamp),
        (Json::String(text), Type::Duration) => {
            crate::library::time::parse_duration(text).map_or_else(|| text.as_str().into(), Value::Duration)
        }
        (Json::String(text), Type::Bytes(_)) => crate::library::encoders::decode(text)
            .map_or_else(|| text.as_str().into(), |bytes| Value::Bytes(bytes.into())),
        (Json::String(text), _) => text.as_str().into(),
        (Json::Array(items), Type::List(list)) => Value::List(Arc::new(List {
            items: items.iter().map(|item| from_json(item, &list.item, depth + 1)).collect(),
            kind: list.kind.clone(),
        })),
        (Json::Array(items), _) => {
            Value::list(items.iter().map(|item| from_json(item, &Type::Dyn, depth + 1)).collect())
        }
        (Json::Object(map), Type::Object(object)) => Value::Map(Arc::new(
            object
                .fields
                .iter()
                .filter_map(|(name, field)| {
                    let value = map.get(&*field.json)?;
                    Some((Key::String(Arc::clone(name)), from_json(value, &field.type_, depth + 1)))
                })
                .collect(),
        )),
        (Json::Object(map), other) => {
            let inner = if let Type::Map(map) = other { &map.value } else { &Type::Dyn };
            let entry =
                |(key, value): (&String, &Json)| (Key::String(key.as_str().into()), from_json(value, inner, depth + 1));
            Value::Map(Arc::new(map.iter().map(entry).collect()))
        }
    }
}
