//! Makes a value conform to its schema: unknown fields are dropped and named, a value of the wrong
//! type is refused with the text of Go's decoder, what is as good as absent is dropped.

use carrack_types::quantity::Quantity;
use serde_json::{Map, Value};

use super::{DecodeError, Finding, json_type};
use crate::schema::{Additional, Format, Schema, Type};

/// Checks an object of a built-in kind against its schema, as upstream's typed decoding would.
/// Unknown fields are removed and returned. Fields that upstream's types cannot tell from absent ones are removed: a client
/// that writes back what it read leaves them out, and changes nothing by that.
///
/// Custom resources go through [`crate::prune::prune`] instead; their types are judged by
/// [`crate::validate::schema`].
///
/// # Errors
/// [`DecodeError::Mistyped`] for the first value of a wrong type.
pub fn conform(object: &mut Value, schema: &Schema) -> Result<Vec<Finding>, DecodeError> {
    walk(object, schema, false)
}

/// Like [`conform`], of an object that is applied. What is empty in it stays: who applies a field owns it, and sees to it that
/// there is nothing in it.
///
/// # Errors
/// As [`conform`].
pub fn conform_applied(object: &mut Value, schema: &Schema) -> Result<Vec<Finding>, DecodeError> {
    walk(object, schema, true)
}

fn walk(object: &mut Value, schema: &Schema, keeps_empty: bool) -> Result<Vec<Finding>, DecodeError> {
    let mut walk = Walk { findings: Vec::new(), path: String::new(), fields: String::new(), keeps_empty };
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    walk.value(object, schema, &kind)?;
    Ok(walk.findings)
}

const MAX_FINDINGS: usize = 100;

/// Flags and numbers that are as good as absent when they are false or 0: they are no pointers in Go, and left out where they
/// are written. Of most others absent is something else, and the schema does not say of which.
pub(crate) const ZEROS: [&str; 9] =
    ["hostIPC", "hostNetwork", "hostPID", "hostPort", "initialDelaySeconds", "readOnly", "stdin", "stdinOnce", "tty"];
/// Types in which they are pointers all the same.
const OF_POINTERS: [&str; 2] = ["AzureDiskVolumeSource", "CSIVolumeSource"];
/// Lists that mean something while a request is looked at, although there is nothing in them: who owns an object is forgotten,
/// and an autoscaler's rules, of which there must be one, are not the default ones.
const MEANT: [&str; 2] = ["managedFields", "policies"];

struct Walk {
    findings: Vec<Finding>,
    /// The path with indexes, for findings.
    path: String,
    /// The path without indexes, as Go's decoder names it.
    fields: String,
    /// Whether only nulls count as absent.
    keeps_empty: bool,
}

impl Walk {
    fn mistyped(&self, found: &Value, owner: &str, go_type: &str) -> DecodeError {
        let found = match found {
            // Go names the number itself when its form (not its kind) is what does not fit.
            Value::Number(number) if go_type.starts_with("int") || go_type.starts_with("float") => {
                format!("number {number}")
            }
            other => json_type(other).to_owned(),
        };
        DecodeError::Mistyped(if self.fields.is_empty() {
            format!("json: cannot unmarshal {found} into Go value of type {go_type}")
        } else {
            format!("json: cannot unmarshal {found} into Go struct field {owner}.{} of type {go_type}", self.fields)
        })
    }

    /// `owner` is the Go struct that has the field.
    fn value(&mut self, value: &mut Value, schema: &Schema, owner: &str) -> Result<(), DecodeError> {
        let node = schema.resolve();
        let type_name = schema.reference.as_deref().map_or(owner, short_name);
        if value.is_null() {
            return Ok(());
        }
        if node.int_or_string || node.format == Format::Quantity {
            return self.special(value, node);
        }
        match node.type_ {
            Type::Any => match node.rare.as_ref().map(|rare| &*rare.one_of) {
                None | Some([]) => Ok(()),
                Some(alternatives) => match alternatives.iter().find(|schema| may_be(schema.resolve().type_, value)) {
                    Some(alternative) => self.value(value, alternative, owner),
                    None => Err(self.mistyped(value, owner, &go_type(schema))),
                },
            },
            Type::Object => self.object(value, schema, node, owner, type_name),
            Type::Array => {
                let Value::Array(list) = value else { return Err(self.mistyped(value, owner, &go_type(schema))) };
                let Some(items) = &node.items else { return Ok(()) };
                let length = self.path.len();
                for (index, item) in list.iter_mut().enumerate() {
                    use std::fmt::Write as _;
                    settle_null(item, items);
                    let written = write!(self.path, "[{index}]");
                    debug_assert!(written.is_ok(), "writing to a string does not fail");
                    self.value(item, items, owner)?;
                    self.path.truncate(length);
                }
                Ok(())
            }
            Type::String => {
                let Value::String(text) = value else { return Err(self.mistyped(value, owner, &go_type(schema))) };
                match node.format {
                    Format::DateTime if text.is_empty() => {
                        *value = Value::Null;
                        Ok(())
                    }
                    Format::DateTime => time(text, type_name == MICRO_TIME),
                    Format::Byte => bytes(text),
                    _ => Ok(()),
                }
            }
            Type::Integer => self.integer(value, schema, owner),
            Type::Number if value.is_number() => Ok(()),
            Type::Boolean if value.is_boolean() => Ok(()),
            Type::Number | Type::Boolean => Err(self.mistyped(value, owner, &go_type(schema))),
        }
    }

    fn integer(&self, value: &Value, schema: &Schema, owner: &str) -> Result<(), DecodeError> {
        // What has a point is none ([`super::whole_numbers`]).
        let fits = value.as_i64().is_some_and(|whole| schema.format != Format::Int32 || i32::try_from(whole).is_ok());
        if fits { Ok(()) } else { Err(self.mistyped(value, owner, &go_type(schema))) }
    }

    fn special(&self, value: &mut Value, node: &Schema) -> Result<(), DecodeError> {
        match (&*value, node.int_or_string) {
            (Value::String(_), true) => Ok(()),
            (Value::Number(number), true) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
            (other, true) => {
                let found = match other {
                    Value::Number(number) => format!("number {number}"),
                    other => json_type(other).to_owned(),
                };
                Err(DecodeError::Mistyped(format!("json: cannot unmarshal {found} into Go value of type int32")))
            }
            // Quantities are texts in canonical form; a bare number is one without a suffix.
            (other, false) => {
                let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
                let quantity =
                    Quantity::parse(text.trim()).map_err(|error| DecodeError::Mistyped(error.to_string()))?;
                *value = Value::String(quantity.to_string());
                Ok(())
            }
        }
    }

    fn object(
        &mut self,
        value: &mut Value,
        schema: &Schema,
        node: &Schema,
        owner: &str,
        type_name: &str,
    ) -> Result<(), DecodeError> {
        let Value::Object(map) = value else { return Err(self.mistyped(value, owner, &go_type(schema))) };
        if node.properties.is_empty() && matches!(node.additional, Additional::Unspecified | Additional::Anything) {
            // Free-form objects (raw extensions, field sets of managed fields) keep what they have.
            return Ok(());
        }
        self.drop_unknown(map, node);
        let is_map = matches!(node.additional, Additional::Of(_));
        let (path_length, fields_length) = (self.path.len(), self.fields.len());
        for (key, child) in map.iter_mut() {
            let Some(child_schema) = schema.child(key) else { continue };
            for path in [&mut self.path, &mut self.fields] {
                // Go's decoder does not name the keys of maps.
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            if is_map {
                self.fields.truncate(fields_length);
                settle_null(child, child_schema);
            }
            self.value(child, child_schema, type_name)?;
            self.path.truncate(path_length);
            self.fields.truncate(fields_length);
        }
        // As in a typed round trip, a null is an absent field, and so is what is left out where it is written.
        if !is_map {
            map.retain(|key, child| {
                !child.is_null() && (self.keeps_empty || !is_left_out(key, child, node, type_name))
            });
        }
        Ok(())
    }

    fn drop_unknown(&mut self, map: &mut Map<String, Value>, node: &Schema) {
        map.retain(|key, _| {
            let known = !matches!(node.additional, Additional::Unspecified)
                || node.preserve_unknown
                || node.property(key).is_some();
            if !known && self.findings.len() < MAX_FINDINGS {
                self.findings.push(Finding::unknown(&self.path, key));
            }
            known
        });
    }
}

/// Whether Go leaves a field out when it writes a struct: an empty list or map that need not be there, or a zero. An empty
/// struct says something (`emptyDir: {}`), and what is raw is not looked into.
fn is_left_out(name: &str, value: &Value, node: &Schema, owner: &str) -> bool {
    let is_zero = |nothing: bool| nothing && ZEROS.contains(&name) && !OF_POINTERS.contains(&owner);
    let is_empty = match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(flag) => is_zero(!flag),
        Value::Number(number) => is_zero(number.as_i64() == Some(0)),
        Value::Null | Value::String(_) => false,
    };
    if !is_empty || MEANT.contains(&name) || node.required.iter().any(|required| **required == *name) {
        return false;
    }
    node.property(name).map(Schema::resolve).is_some_and(|property| match property.type_ {
        Type::Object => property.properties.is_empty() && matches!(property.additional, Additional::Of(_)),
        Type::Any => false,
        Type::Array | Type::String | Type::Integer | Type::Number | Type::Boolean => true,
    })
}

fn bytes(text: &str) -> Result<(), DecodeError> {
    match illegal_base64(text) {
        None => Ok(()),
        Some(at) => Err(DecodeError::Mistyped(format!("illegal base64 data at input byte {at}"))),
    }
}

/// The type of times with microseconds; those of the other one have whole seconds.
const MICRO_TIME: &str = "MicroTime";
/// The first second of the year 0: Go's clients read no year with a sign.
const YEAR_ZERO_UNIX_S: i64 = -62_167_219_200;

/// Puts a time in the form in which upstream shows it, in UTC: clients in Go cannot read a list in which one time has
/// another, be it that the seconds are missing, or the microseconds of a `MicroTime`.
fn time(text: &mut String, is_micro: bool) -> Result<(), DecodeError> {
    let at = text.parse::<jiff::Timestamp>().ok().filter(|at| at.as_second() >= YEAR_ZERO_UNIX_S);
    let Some(at) = at else {
        return Err(DecodeError::Mistyped(format!(
            "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
        )));
    };
    if !is_as_shown(text.as_bytes(), is_micro) {
        *text = at.strftime(if is_micro { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" }).to_string();
    }
    Ok(())
}

/// Whether what is a time has the form of one that is shown.
fn is_as_shown(text: &[u8], is_micro: bool) -> bool {
    let form: &[u8] = if is_micro { b"0000-00-00T00:00:00.000000Z" } else { b"0000-00-00T00:00:00Z" };
    let fits = |(form, byte): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { form == byte };
    // A leap second is none to Go.
    text.len() == form.len() && form.iter().zip(text).all(fits) && text.get(17) != Some(&b'6')
}

/// An item of a list, or a value of a map, that is null is Go's zero value: a null label is an empty one, and whoever
/// reads it as a text is not to find something else.
fn settle_null(value: &mut Value, schema: &Schema) {
    if !value.is_null() {
        return;
    }
    let node = schema.resolve();
    *value = match node.type_ {
        _ if node.format == Format::Quantity => "0".into(),
        _ if node.int_or_string => 0.into(),
        Type::String if node.format != Format::DateTime => "".into(),
        Type::Integer | Type::Number => 0.into(),
        Type::Boolean => false.into(),
        Type::Object => Value::Object(Map::new()),
        // Times and lists that are nothing are null, and what may be anything stays what it is.
        Type::String | Type::Array | Type::Any => return,
    };
}

fn may_be(type_: Type, value: &Value) -> bool {
    match type_ {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer | Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
    }
}

/// Whether a text is base64 with its padding.
pub(crate) fn is_base64(text: &str) -> bool {
    illegal_base64(text).is_none()
}

/// The position of the first byte that is not base64.
fn illegal_base64(text: &str) -> Option<usize> {
    let bytes: Vec<(usize, u8)> = text.bytes().enumerate().filter(|(_, b)| !matches!(b, b'\r' | b'\n')).collect();
    let padding = bytes.iter().rev().take_while(|(_, b)| *b == b'=').count();
    let body = bytes.get(..bytes.len() - padding).unwrap_or_default();
    let illegal = body.iter().find(|(_, b)| !(b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/')));
    if let Some((at, _)) = illegal {
        return Some(*at);
    }
    (!bytes.len().is_multiple_of(4) || padding > 2).then_some(text.len() - text.len() % 4)
}

/// `io.k8s.api.core.v1.PodSpec` is `PodSpec` in Go.
fn short_name(reference: &str) -> &str {
    reference.rsplit('.').next().unwrap_or(reference)
}

/// The Go type of a field, as far as the schema tells.
fn go_type(schema: &Schema) -> String {
    let node = schema.resolve();
    match node.type_ {
        Type::Object => match (&schema.reference, &node.additional) {
            (Some(reference), _) => {
                let mut parts = reference.rsplit('.');
                let (name, package) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!("{package}.{name}")
            }
            (None, Additional::Of(values)) => format!("map[string]{}", go_type(values)),
            (None, _) => "map[string]interface {}".to_owned(),
        },
        Type::Array => format!("[]{}", node.items.as_deref().map_or_else(|| "interface {}".to_owned(), go_type)),
        Type::String if node.format == Format::Byte => "[]uint8".to_owned(),
        Type::String if node.format == Format::DateTime => "v1.Time".to_owned(),
        Type::String => "string".to_owned(),
        Type::Integer if node.format == Format::Int32 => "int32".to_owned(),
        Type::Integer => "int64".to_owned(),
        Type::Number => "float64".to_owned(),
        Type::Boolean => "bool".to_owned(),
        Type::Any => "interface {}".to_owned(),
    }
}
