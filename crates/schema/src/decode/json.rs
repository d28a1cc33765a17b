//! JSON to a value, with duplicate keys named and depth bounded.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{DecodeError, Finding, MAX_PATH, Parsed, shorten};

/// Upstream names no more than so many findings; more help nobody.
pub(super) const MAX_FINDINGS: usize = 100;

pub(super) fn parse(bytes: &[u8], max_depth: usize) -> Result<Parsed, DecodeError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let result = parse_with(&mut deserializer, max_depth).and_then(|parsed| deserializer.end().map(|()| parsed));
    result.map_err(|error| {
        if error.to_string().starts_with(TOO_DEEP) || error.to_string().starts_with("recursion limit") {
            DecodeError::TooDeep { limit: max_depth }
        } else {
            DecodeError::Syntax(format!("{BROKEN}: {error}"))
        }
    })
}

/// How the text for broken JSON begins.
pub(super) const BROKEN: &str = "json parse error";
pub(super) const TOO_DEEP: &str = "nested too deeply";

/// Reads a value from any format's deserializer.
pub(super) fn parse_with<'de, D: Deserializer<'de>>(deserializer: D, max_depth: usize) -> Result<Parsed, D::Error> {
    let findings = Rc::new(RefCell::new(Vec::new()));
    let path = Rc::new(RefCell::new(String::new()));
    let seed = Seed { path, findings: Rc::clone(&findings), order: None, depth_left: max_depth };
    let value = seed.deserialize(deserializer)?;
    Ok(Parsed { value, findings: findings.take() })
}

/// Findings that are put in the order of a body.
#[derive(Default)]
struct Order {
    unknown: BTreeSet<String>,
    duplicate: BTreeSet<String>,
    met: Vec<Finding>,
}

impl Order {
    /// A field is passed, for the first time or again.
    fn pass(&mut self, path: &str, again: bool) {
        self.met.extend(if again {
            self.duplicate.take(path).map(Finding::Duplicate)
        } else {
            self.unknown.take(path).map(Finding::Unknown)
        });
    }
}

/// Findings in the order in which a body that has been read has what they are about; what is not found there comes last.
pub(super) fn in_order(bytes: &[u8], max_depth: usize, findings: Vec<Finding>) -> Vec<Finding> {
    let (mut order, mut others) = (Order::default(), Vec::new());
    for finding in findings {
        match finding {
            Finding::Unknown(path) => order.unknown.extend([path]),
            Finding::Duplicate(path) => order.duplicate.extend([path]),
            other @ Finding::Twice { .. } => others.push(other),
        }
    }
    let order = Rc::new(RefCell::new(order));
    let (path, findings) = (Rc::default(), Rc::default());
    let seed = Seed { path, findings, order: Some(Rc::clone(&order)), depth_left: max_depth };
    let read = seed.deserialize(&mut serde_json::Deserializer::from_slice(bytes));
    debug_assert!(read.is_ok(), "it has been read before");
    let Order { unknown, duplicate, mut met } = order.take();
    met.extend(unknown.into_iter().map(Finding::Unknown));
    met.extend(duplicate.into_iter().map(Finding::Duplicate));
    met.extend(others);
    met
}

#[derive(Clone)]
struct Seed {
    path: Rc<RefCell<String>>,
    findings: Rc<RefCell<Vec<Finding>>>,
    /// Told of each field, where findings are put in order.
    order: Option<Rc<RefCell<Order>>>,
    depth_left: usize,
}

impl Seed {
    fn deeper<E: serde::de::Error>(&self) -> Result<Self, E> {
        let depth_left = self.depth_left.checked_sub(1).ok_or_else(|| E::custom(TOO_DEEP))?;
        Ok(Seed { depth_left, ..self.clone() })
    }

    /// Runs with a step added to the path.
    fn inside<T>(&self, step: fmt::Arguments<'_>, run: impl FnOnce() -> T) -> T {
        let length = self.path.borrow().len();
        if length < MAX_PATH {
            use fmt::Write as _;
            let written = self.path.borrow_mut().write_fmt(step);
            debug_assert!(written.is_ok(), "writing to a string does not fail");
            shorten(&mut self.path.borrow_mut());
        }
        let result = run();
        self.path.borrow_mut().truncate(length);
        result
    }
}

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper::<A::Error>()?;
        let mut list = Vec::new();
        while let Some(value) =
            self.inside(format_args!("[{}]", list.len()), || access.next_element_seed(inner.clone()))?
        {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper::<A::Error>()?;
        let mut map = Map::new();
        while let Some(key) = access.next_key_seed(Key)? {
            let dot = if self.path.borrow().is_empty() { "" } else { "." };
            let value = self.inside(format_args!("{dot}{key}"), || {
                let again = map.contains_key(&key);
                if let Some(order) = &self.order {
                    order.borrow_mut().pass(&self.path.borrow(), again);
                }
                if again && self.findings.borrow().len() < MAX_FINDINGS {
                    let finding = Finding::Duplicate(self.path.borrow().clone());
                    if !self.findings.borrow().contains(&finding) {
                        self.findings.borrow_mut().push(finding);
                    }
                }
                access.next_value_seed(inner.clone())
            })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// A key. YAML's may look like numbers or booleans; they are taken as the text they are.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = String;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }
    fn visit_string<E>(self, value: String) -> Result<String, E> {
        Ok(value)
    }
}
