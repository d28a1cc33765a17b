//! A place in an object, with its path, and the errors found so far.

use serde_json::{Map, Value};

use super::names::Problem;
use crate::error::FieldError;

/// Errors collected while walking an object.
pub(super) type Errors = Vec<FieldError>;

/// A value and where it is.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub value: &'a Value,
    pub path: String,
}

impl<'a> Place<'a> {
    pub fn root(value: &'a Value) -> Self {
        Place { value, path: String::new() }
    }

    pub fn path_of(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// A field, `null` when absent.
    pub fn field(&self, name: &str) -> Place<'a> {
        Place { value: self.value.get(name).unwrap_or(&Value::Null), path: self.path_of(name) }
    }

    /// A field several levels down.
    pub fn at(&self, names: &[&str]) -> Place<'a> {
        names.iter().fold(self.clone(), |place, name| place.field(name))
    }

    pub fn exists(&self) -> bool {
        !self.value.is_null()
    }

    /// The field, if it is there.
    pub fn some(&self, name: &str) -> Option<Place<'a>> {
        let place = self.field(name);
        place.exists().then_some(place)
    }

    pub fn text(&self, name: &str) -> &'a str {
        self.value.get(name).and_then(Value::as_str).unwrap_or("")
    }

    pub fn number(&self, name: &str) -> Option<i64> {
        self.value.get(name).and_then(Value::as_i64)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.value.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The items of a list field.
    pub fn items(&self, name: &str) -> impl Iterator<Item = Place<'a>> + use<'a> {
        let path = self.path_of(name);
        let list = self.value.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().map(move |(index, value)| Place { value, path: format!("{path}[{index}]") })
    }

    /// The texts of a list field.
    pub fn texts(&self, name: &str) -> Vec<&'a str> {
        self.value.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The entries of a map field.
    pub fn entries(&self, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.value.get(name).and_then(Value::as_object).into_iter().flat_map(Map::iter)
    }

    pub fn map(&self) -> Option<&'a Map<String, Value>> {
        self.value.as_object()
    }

    /// An error if the text of a field is empty. Gives the text otherwise.
    pub fn needs_text(&self, name: &str, errors: &mut Errors) -> Option<&'a str> {
        let text = self.text(name);
        if text.is_empty() {
            errors.push(FieldError::required(self.path_of(name), ""));
            return None;
        }
        Some(text)
    }

    /// An error if the text of a field, when it is there, has not the form.
    pub fn has_form(&self, name: &str, check: impl Fn(&str) -> Problem, errors: &mut Errors) {
        let text = self.text(name);
        if !text.is_empty()
            && let Some(problem) = check(text)
        {
            errors.push(FieldError::invalid(self.path_of(name), text, problem));
        }
    }

    /// An error if the text of a field is not one of these.
    pub fn one_of(&self, name: &str, allowed: &[&str], errors: &mut Errors) {
        let text = self.text(name);
        if !allowed.contains(&text) {
            errors.push(FieldError::not_supported(self.path_of(name), text, allowed));
        }
    }

    /// An error if the field, when it is there, is less than nothing.
    pub fn not_negative(&self, name: &str, errors: &mut Errors) {
        if let Some(number) = self.number(name).filter(|n| *n < 0) {
            errors.push(FieldError::invalid(self.path_of(name), number, "must be greater than or equal to 0"));
        }
    }

    pub fn invalid(&self, name: &str, problem: impl Into<String>, errors: &mut Errors) {
        let place = self.field(name);
        errors.push(FieldError::invalid(place.path, place.value.clone(), problem));
    }
}

/// An error if a field differs from what it was.
pub(super) fn unchanged(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    if new.value != old.value {
        errors.push(FieldError::invalid(new.path.clone(), new.value.clone(), "field is immutable"));
    }
}
