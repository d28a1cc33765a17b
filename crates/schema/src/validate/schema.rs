//! A value against the schema of a custom resource, with upstream's texts.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::access::{Errors, Place};
use super::{formats, metadata, names};
use crate::decode::shorten;
use crate::error::FieldError;
use crate::rules::Former;
use crate::schema::{Additional, Format, ListType, Rare, Schema, Type};

/// More errors than this help nobody.
const MAX_ERRORS: usize = 50;

/// Checks a value against a schema.
#[must_use]
pub fn schema(value: &Value, schema: &Schema) -> Vec<FieldError> {
    changed(value, None, schema)
}

/// Checks a changed value. What is as it was is not judged again, so that a schema that has become stricter
/// does not hold up changes elsewhere in the object. Items that are told apart no more hold up none either, wherever they are.
/// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-ratcheting>
pub(super) fn changed(value: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    let mut walk = Walk::at("");
    walk.value(value, old, schema);
    if !walk.duplicates.is_empty() && !old.is_some_and(|old| has_duplicates(old, schema)) {
        walk.errors.append(&mut walk.duplicates);
    }
    walk.errors
}

fn has_duplicates(value: &Value, schema: &Schema) -> bool {
    let mut walk = Walk::at("");
    walk.value(value, None, schema);
    !walk.duplicates.is_empty()
}

struct Walk {
    errors: Errors,
    /// Items of sets and of keyed lists that are there already.
    duplicates: Errors,
    path: String,
}

/// What OpenAPI calls the type of a value.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if is_whole(number) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(number: &Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|f| f.fract() == 0.0)
}

fn type_text(type_: Type) -> &'static str {
    match type_ {
        Type::Any => "",
        Type::Object => "object",
        Type::Array => "array",
        Type::String => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
    }
}

/// The group and version of a kind.
fn api_version(text: &str) -> names::Problem {
    (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
}

impl Walk {
    fn at(path: &str) -> Walk {
        Walk { errors: Errors::new(), duplicates: Errors::new(), path: path.to_owned() }
    }

    /// The path as texts have it.
    fn body(&self) -> String {
        if self.path.is_empty() { "<nil>".to_owned() } else { format!("{} in body", self.path) }
    }

    fn invalid(&mut self, value: &Value, text: String) {
        // Each has the value in it, which may be as long as the request.
        if self.errors.len() >= MAX_ERRORS {
            return;
        }
        self.errors.push(FieldError::invalid(self.path.clone(), value.clone(), text));
    }

    fn inside(&mut self, step: &str, run: impl FnOnce(&mut Self)) {
        if self.errors.len() >= MAX_ERRORS {
            return;
        }
        let length = self.path.len();
        if !step.starts_with('[') && !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(step);
        shorten(&mut self.path);
        run(self);
        self.path.truncate(length);
    }

    fn value(&mut self, value: &Value, old: Option<&Value>, schema: &Schema) {
        // Metadata is of a built-in type, and has checks of its own.
        if old == Some(value) || schema.reference.is_some() {
            return;
        }
        let node = schema.resolve();
        if value.is_null() && (node.nullable || schema.nullable) {
            return;
        }
        if !self.check_type(value, node) {
            return;
        }
        if let Some(rare) = &node.rare {
            self.rare(value, rare);
        }
        match value {
            Value::String(text) => self.format(text, &node.format),
            Value::Number(number) => self.number_format(number, &node.format),
            Value::Array(list) => self.array(list, old, node),
            Value::Object(map) => {
                for name in &node.required {
                    if !map.contains_key(name.as_ref()) {
                        self.inside(name, |walk| walk.errors.push(FieldError::required(walk.path.clone(), "")));
                    }
                }
                if node.embedded {
                    self.embedded(map);
                }
                for (name, child) in map {
                    let child_schema = node.property(name).or(match &node.additional {
                        Additional::Of(values) => Some(values),
                        _ => None,
                    });
                    if let Some(child_schema) = child_schema {
                        let old = old.and_then(|old| old.get(name));
                        self.inside(name, |walk| walk.value(child, old, child_schema));
                    }
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// What every resource says of itself, of one that is a part of another
    /// (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta`).
    fn embedded(&mut self, resource: &Map<String, Value>) {
        type Form = fn(&str) -> names::Problem;
        let forms: [(&str, Form); 2] = [("apiVersion", api_version), ("kind", names::kind)];
        for (name, form) in forms {
            self.inside(name, |walk| {
                let path = walk.path.clone();
                walk.errors.extend(match resource.get(name) {
                    Some(Value::String(text)) if !text.is_empty() => {
                        form(text).map(|problem| FieldError::invalid(path, text.as_str(), problem))
                    }
                    None | Some(Value::String(_)) => Some(FieldError::required(path, "")),
                    Some(other) => Some(FieldError::invalid(path, other.clone(), "must be a string")),
                });
            });
        }
        if let Some(value) = resource.get("metadata") {
            self.inside("metadata", |walk| {
                let place = Place { value, path: walk.path.clone() };
                metadata::embedded(&place, &mut walk.errors);
            });
        }
    }

    fn check_type(&mut self, value: &Value, node: &Schema) -> bool {
        let found = type_name(value);
        let fits = if node.int_or_string {
            matches!(found, "integer" | "string")
        } else if node.format == Format::Quantity {
            matches!(found, "integer" | "number" | "string")
        } else {
            match node.type_ {
                Type::Any => true,
                Type::Number => matches!(found, "integer" | "number"),
                type_ => found == type_text(type_),
            }
        };
        if !fits {
            let wanted = if node.int_or_string { "integer,string" } else { type_text(node.type_) };
            let text = format!("{} must be of type {wanted}: \"{found}\"", self.body());
            self.errors.push(FieldError::type_invalid(self.path.clone(), found, text));
        }
        fits
    }

    fn array(&mut self, list: &[Value], old: Option<&Value>, node: &Schema) {
        if let Some(items) = &node.items {
            let former = Former::new(old, &node.list);
            for (index, item) in list.iter().enumerate() {
                self.inside(&format!("[{index}]"), |walk| walk.value(item, former.of(item), items));
            }
        }
        let identity = |item: &Value| match &node.list {
            ListType::Set => Some(item.clone()),
            ListType::Map(keys) => {
                // A key that is absent has its default, as upstream compares them.
                let key = |key: &str| {
                    let default = || node.items.as_deref()?.resolve().property(key)?.default_value().cloned();
                    item.get(key).cloned().or_else(default)
                };
                Some(
                    keys.iter()
                        .filter_map(|name| Some((name.to_string(), key(name)?)))
                        .collect::<serde_json::Map<_, _>>()
                        .into(),
                )
            }
            _ => None,
        };
        // As text, which can be looked up: a list may be as long as a request. What is there many times is told once.
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for (index, item) in list.iter().enumerate() {
            let Some(identity) = identity(item) else { return };
            let times = seen.entry(identity.to_string()).or_default();
            *times += 1;
            if *times == 2 && self.duplicates.len() < MAX_ERRORS {
                self.duplicates.push(FieldError::duplicate(format!("{}[{index}]", self.path), identity));
            }
        }
    }

    fn rare(&mut self, value: &Value, rare: &Rare) {
        if !rare.enumeration.is_empty() && !rare.enumeration.contains(value) {
            let texts: Vec<String> =
                rare.enumeration.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            self.errors.push(FieldError::not_supported(self.path.clone(), value.clone(), &texts));
        }
        match value {
            Value::Number(number) => self.bounds(value, number.as_f64().unwrap_or_default(), rare),
            Value::String(text) => self.text(value, text, rare),
            Value::Array(list) => {
                if rare.min_items.is_some_and(|min| (list.len() as u64) < min) {
                    let text =
                        format!("{} should have at least {} items", self.body(), rare.min_items.unwrap_or_default());
                    self.invalid(&list.len().into(), text);
                }
                if let Some(max) = rare.max_items.filter(|max| list.len() as u64 > *max) {
                    self.errors.push(FieldError::too_many(self.path.clone(), list.len(), max));
                }
                if rare.unique_items
                    && list
                        .iter()
                        .enumerate()
                        .any(|(index, item)| list.iter().skip(index + 1).any(|other| other == item))
                {
                    let text = format!("{} shouldn't contain duplicates", self.body());
                    self.invalid(value, text);
                }
            }
            Value::Object(map) => {
                if rare.min_properties.is_some_and(|min| (map.len() as u64) < min) {
                    let text = format!(
                        "{} should have at least {} properties",
                        self.body(),
                        rare.min_properties.unwrap_or_default()
                    );
                    self.invalid(value, text);
                }
                if let Some(max) = rare.max_properties.filter(|max| map.len() as u64 > *max) {
                    self.errors.push(FieldError::too_many(self.path.clone(), map.len(), max));
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
        self.junctors(value, rare);
    }

    fn bounds(&mut self, value: &Value, number: f64, rare: &Rare) {
        if let Some(min) = rare.minimum {
            if rare.exclusive_minimum && number <= min {
                let text = format!("{} should be greater than {min}", self.body());
                self.invalid(value, text);
            } else if number < min {
                let text = format!("{} should be greater than or equal to {min}", self.body());
                self.invalid(value, text);
            }
        }
        if let Some(max) = rare.maximum {
            if rare.exclusive_maximum && number >= max {
                let text = format!("{} should be less than {max}", self.body());
                self.invalid(value, text);
            } else if number > max {
                let text = format!("{} should be less than or equal to {max}", self.body());
                self.invalid(value, text);
            }
        }
        if let Some(factor) = rare.multiple_of.filter(|factor| *factor > 0.0) {
            let quotient = number / factor;
            if (quotient - quotient.round()).abs() > 1e-9 {
                let text = format!("{} should be a multiple of {factor}", self.body());
                self.invalid(value, text);
            }
        }
    }

    fn text(&mut self, value: &Value, text: &str, rare: &Rare) {
        let length = text.chars().count() as u64;
        if let Some(min) = rare.min_length.filter(|min| length < *min) {
            let text = format!("{} should be at least {min} chars long", self.body());
            self.invalid(value, text);
        }
        if let Some(max) = rare.max_length.filter(|max| length > *max) {
            self.errors.push(FieldError::too_long(self.path.clone(), max));
        }
        if let Some(pattern) = &rare.pattern {
            let matches = pattern.regex.as_ref().is_none_or(|regex| regex.is_match(text));
            if !matches {
                let text = format!("{} should match '{}'", self.body(), pattern.text);
                self.invalid(value, text);
            }
        }
    }

    fn format(&mut self, text: &str, format: &Format) {
        if let Some(name) = formats::missed(text, format) {
            let message = format!("{} must be of type {name}: \"{text}\"", self.body());
            self.invalid(&text.into(), message);
        }
    }

    fn number_format(&mut self, number: &Number, format: &Format) {
        let fits = match format {
            Format::Int32 => {
                number.as_i64().is_none_or(|n| i32::try_from(n).is_ok())
                    && !(number.is_u64() && number.as_i64().is_none())
            }
            Format::Int64 => number.is_i64() || number.is_f64(),
            _ => true,
        };
        if !fits {
            let name = if *format == Format::Int32 { "int32" } else { "int64" };
            let text = format!("{} must be of type {name}: \"{number}\"", self.body());
            self.invalid(&Value::Number(number.clone()), text);
        }
    }

    fn holds(&self, value: &Value, schema: &Schema) -> bool {
        let mut walk = Walk::at(&self.path);
        walk.value(value, None, schema);
        walk.errors.is_empty()
    }

    fn junctors(&mut self, value: &Value, rare: &Rare) {
        for schema in &rare.all_of {
            if self.errors.len() >= MAX_ERRORS {
                return;
            }
            self.value(value, None, schema);
        }
        let path = if self.path.is_empty() { "<nil>".to_owned() } else { self.path.clone() };
        if !rare.any_of.is_empty() && !rare.any_of.iter().any(|schema| self.holds(value, schema)) {
            self.invalid(value, format!("\"{path}\" must validate at least one schema (anyOf)"));
        }
        if !rare.one_of.is_empty() {
            let count = rare.one_of.iter().filter(|schema| self.holds(value, schema)).count();
            if count != 1 {
                let found = if count == 0 { "none".to_owned() } else { count.to_string() };
                self.invalid(
                    value,
                    format!(
                        "\"{path}\" must validate one and only one schema (oneOf). Found {found} valid alternatives"
                    ),
                );
            }
        }
        if rare.not.as_ref().is_some_and(|schema| self.holds(value, schema)) {
            self.invalid(value, format!("\"{path}\" must not validate the schema (not)"));
        }
    }
}
