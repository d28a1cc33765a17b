//! One message into a JSON object, guided by the type's schema.
//!
//! The encoding writes fields that Go would leave out of JSON: empty strings, zero times. They are
//! left out here too. Where zero may have been meant (a pointer in Go), it is kept.

use base64::Engine as _;
use carrack_schema::schema::{Additional, Format, Schema, Type};
use serde_json::{Map, Value};

use super::numbers::{self, Field, Numbers};
use super::wire::{Value as Wire, fields, varint};

/// Strings that mean something when they are empty: no storage class, rather than the default one.
const MEANT_EMPTY: [&str; 2] = ["storageClassName", "volumeName"];
/// Numbers that are no pointers in Go, where zero stands for the default or for nothing.
const ZERO_IS_NOTHING: [&str; 12] = [
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
    "initialDelaySeconds",
    "hostPort",
    "nodePort",
    "healthCheckNodePort",
    "generation",
    "observedGeneration",
    "minReadySeconds",
    "count",
];
/// Flags that are no pointers in Go, where false is the same as absent.
const FALSE_IS_NOTHING: [&str; 20] = [
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "stdin",
    "stdinOnce",
    "tty",
    "readOnly",
    "paused",
    "unschedulable",
    "publishNotReadyAddresses",
    "allowed",
    "denied",
    "authenticated",
    "incomplete",
    "nullable",
    "uniqueItems",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];
/// Timeouts of these are pointers after all.
const POINTER_PARENTS: [&str; 1] = ["clientIP"];

#[derive(Default)]
pub(super) struct Reader {
    /// Fields that the schema does not have.
    pub unknown: Vec<String>,
    path: Vec<String>,
}

impl Reader {
    pub(super) fn message(
        &mut self,
        message: &[u8],
        numbers: &Numbers,
        schema: &Schema,
        out: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), String> {
        let depth = depth.checked_sub(1).ok_or("it is nested too deep")?;
        for field in fields(message) {
            let (number, value) = field?;
            match numbers.get(&number) {
                None => self.note(&format!("<field {number}>")),
                Some(Field::Inline { package, type_ }) => {
                    let inlined = numbers::of(&format!("{package}.{type_}"));
                    let (Some(numbers), Wire::Bytes(inner)) = (inlined, value) else {
                        self.note(&format!("<field {number}>"));
                        continue;
                    };
                    self.message(inner, numbers, schema, out, depth)?;
                }
                Some(Field::Named(squashed)) => {
                    let property = schema.properties.iter().find(|(name, _)| name.eq_ignore_ascii_case(squashed));
                    let signed = || schema.properties.iter().find(|(name, _)| is_called(name, squashed));
                    match property.or_else(signed) {
                        Some((name, schema)) => self.property(name, value, schema, out, depth)?,
                        None => self.note(squashed),
                    }
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, name: &str) {
        const MAX_NOTES: usize = 100;
        if self.unknown.len() < MAX_NOTES {
            let mut path = self.path.clone();
            path.push(name.to_owned());
            self.unknown.push(path.join("."));
        }
    }

    fn property(
        &mut self,
        name: &str,
        wire: Wire<'_>,
        schema: &Schema,
        out: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), String> {
        if name == "managedFields" {
            return Ok(());
        }
        self.path.push(name.to_owned());
        let node = schema.resolve();
        let is_map = node.type_ == Type::Object && node.properties.is_empty() && special(schema).is_none();
        match (node.type_, &node.items, &node.additional) {
            (Type::Array, Some(items), _) => {
                let slot = out.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                let list = slot.as_array_mut().ok_or("a list is no list")?;
                match (items.resolve().type_, wire) {
                    (Type::Integer, Wire::Bytes(mut packed)) => {
                        while !packed.is_empty() {
                            list.push(signed(varint(&mut packed)?).into());
                        }
                    }
                    _ => list.push(self.value(wire, items, depth)?.unwrap_or_default()),
                }
            }
            (_, _, Additional::Of(values)) if is_map => {
                let Wire::Bytes(entry) = wire else { return Err("a map's entry is no message".to_owned()) };
                let (key, value) = self.entry(entry, values, depth)?;
                let slot = out.entry(name).or_insert_with(|| Value::Object(Map::new()));
                slot.as_object_mut().ok_or("a map is no map")?.insert(key, value);
            }
            _ => {
                if let Some(value) = self.value(wire, schema, depth)?
                    && !self.is_nothing(name, &value)
                {
                    out.insert(name.to_owned(), value);
                }
            }
        }
        self.path.pop();
        Ok(())
    }

    /// Whether Go would leave this out of JSON.
    fn is_nothing(&self, name: &str, value: &Value) -> bool {
        let parent = self.path.len().checked_sub(2).and_then(|at| self.path.get(at));
        let pointer = parent.is_some_and(|parent| POINTER_PARENTS.contains(&parent.as_str()));
        match value {
            Value::String(text) => text.is_empty() && !MEANT_EMPTY.contains(&name),
            Value::Number(number) => number.as_i64() == Some(0) && ZERO_IS_NOTHING.contains(&name) && !pointer,
            Value::Bool(flag) => !flag && FALSE_IS_NOTHING.contains(&name),
            _ => false,
        }
    }

    fn entry(&mut self, entry: &[u8], values: &Schema, depth: usize) -> Result<(String, Value), String> {
        let (mut key, mut value) = (String::new(), None);
        for field in fields(entry) {
            match field? {
                (1, Wire::Bytes(text)) => key = utf8(text)?,
                (2, wire) => {
                    value = match (&values.resolve().items, wire) {
                        // A named list (ExtraValue) is a message with its items.
                        (Some(items), Wire::Bytes(list)) => {
                            let mut all = Vec::new();
                            for field in fields(list) {
                                if let (1, item) = field? {
                                    all.push(self.value(item, items, depth)?.unwrap_or_default());
                                }
                            }
                            Some(Value::Array(all))
                        }
                        _ => self.value(wire, values, depth)?,
                    };
                }
                _ => {}
            }
        }
        let empty = if values.resolve().type_ == Type::Object { Value::Object(Map::new()) } else { "".into() };
        Ok((key, value.unwrap_or(empty)))
    }

    /// One value; none for what stands for nothing.
    fn value(&mut self, wire: Wire<'_>, schema: &Schema, depth: usize) -> Result<Option<Value>, String> {
        let node = schema.resolve();
        if let (Some(special), Wire::Bytes(message)) = (special(schema), wire) {
            return self.special(special, message, depth);
        }
        match wire {
            Wire::Varint(number) if node.type_ == Type::Boolean => Ok(Some((number != 0).into())),
            Wire::Varint(number) => Ok(Some(signed(number).into())),
            Wire::Fixed64(bits) => Ok(Some(f64::from_bits(bits).into())),
            Wire::Fixed32(bits) => Ok(Some(f64::from(f32::from_bits(bits)).into())),
            Wire::Bytes(bytes) if node.type_ == Type::String => match node.format {
                Format::Byte => Ok(Some(base64::engine::general_purpose::STANDARD.encode(bytes).into())),
                _ => Ok(Some(utf8(bytes)?.into())),
            },
            Wire::Bytes(bytes) => {
                let name = schema.reference.as_deref().ok_or("a message has no type")?;
                let numbers = numbers::of(name).ok_or_else(|| format!("{name} has no protobuf form"))?;
                let mut out = Map::new();
                self.message(bytes, numbers, node, &mut out, depth)?;
                Ok(Some(Value::Object(out)))
            }
        }
    }

    fn special(&mut self, special: Special, message: &[u8], depth: usize) -> Result<Option<Value>, String> {
        let (mut numbers, mut texts) = ([0_i64; 4], [&[][..]; 4]);
        let mut given = [false; 4];
        let mut many = Vec::new();
        for field in fields(message) {
            let (number, value) = field?;
            let Some(at) = usize::try_from(number).ok().filter(|at| *at < numbers.len()) else { continue };
            given[at] = true;
            match value {
                Wire::Varint(value) => numbers[at] = signed(value),
                Wire::Bytes(bytes) => {
                    texts[at] = bytes;
                    if at == 2 {
                        many.push(bytes);
                    }
                }
                Wire::Fixed64(_) | Wire::Fixed32(_) => {}
            }
        }
        let schema_of = |reader: &mut Self, bytes: &[u8]| -> Result<Value, String> {
            let node = carrack_schema::builtin::schema(SCHEMA_PROPS).ok_or("schemas are not known")?;
            let numbers = numbers::of(SCHEMA_PROPS).ok_or("schemas have no protobuf form")?;
            let mut out = Map::new();
            reader.message(bytes, numbers, node, &mut out, depth)?;
            Ok(Value::Object(out))
        };
        Ok(match special {
            Special::Time if message.is_empty() => None,
            Special::Time => Some(time(numbers[1], numbers[2], false)?),
            Special::MicroTime if message.is_empty() => None,
            Special::MicroTime => Some(time(numbers[1], numbers[2], true)?),
            Special::Quantity => Some(utf8(texts[1])?.into()),
            Special::IntOrString if numbers[1] == 0 => Some(numbers[2].into()),
            Special::IntOrString => Some(utf8(texts[3])?.into()),
            Special::Raw if texts[1].is_empty() => None,
            Special::Raw => Some(serde_json::from_slice(texts[1]).map_err(|error| error.to_string())?),
            Special::SchemaOrBool if given[2] => Some(schema_of(self, texts[2])?),
            Special::SchemaOrBool => Some((numbers[1] != 0).into()),
            Special::SchemaOrArray if given[1] => Some(schema_of(self, texts[1])?),
            Special::SchemaOrArray => {
                Some(many.into_iter().map(|bytes| schema_of(self, bytes)).collect::<Result<Vec<_>, _>>()?.into())
            }
            Special::SchemaOrStrings if given[1] => Some(schema_of(self, texts[1])?),
            Special::SchemaOrStrings => {
                Some(many.into_iter().map(|bytes| utf8(bytes).map(Value::from)).collect::<Result<Vec<_>, _>>()?.into())
            }
        })
    }
}

const SCHEMA_PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Whether a property has this name, but for the signs that messages have no room for (`$ref`, `x-kubernetes-list-type`).
fn is_called(name: &str, squashed: &str) -> bool {
    name.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.to_ascii_lowercase()).eq(squashed.bytes())
}

/// Types whose JSON is not that of their message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    Raw,
    SchemaOrBool,
    SchemaOrArray,
    SchemaOrStrings,
}

fn special(schema: &Schema) -> Option<Special> {
    let node = schema.resolve();
    let name = schema.reference.as_deref().and_then(|name| name.rsplit('.').next());
    match name {
        Some("Time") => return Some(Special::Time),
        Some("MicroTime") => return Some(Special::MicroTime),
        Some("Quantity") => return Some(Special::Quantity),
        Some("IntOrString") => return Some(Special::IntOrString),
        Some("RawExtension" | "JSON") => return Some(Special::Raw),
        Some("JSONSchemaPropsOrBool") => return Some(Special::SchemaOrBool),
        Some("JSONSchemaPropsOrArray") => return Some(Special::SchemaOrArray),
        Some("JSONSchemaPropsOrStringArray") => return Some(Special::SchemaOrStrings),
        _ => {}
    }
    if node.int_or_string {
        Some(Special::IntOrString)
    } else if node.format == Format::Quantity {
        Some(Special::Quantity)
    } else if node.format == Format::DateTime {
        Some(Special::Time)
    } else {
        None
    }
}

/// Negative numbers are written as their two's complement.
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a text is not UTF-8".to_owned())
}

fn time(seconds: i64, nanos: i64, micro: bool) -> Result<Value, String> {
    let nanos = i32::try_from(nanos).map_err(|_| "a time is out of range")?;
    let at = jiff::Timestamp::new(seconds, nanos).map_err(|error| error.to_string())?;
    let form = if micro { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(at.strftime(form).to_string().into())
}
