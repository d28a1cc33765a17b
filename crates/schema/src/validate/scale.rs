//! The numbers of a custom resource's `scale`, wherever its definition says that they are.
//!
//! Texts are upstream's (`k8s.io/apiextensions-apiserver/pkg/registry/customresource/validator.go`, and where something is of
//! another type `k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/helpers.go`).

use serde_json::{Map, Value};

use super::access::Errors;
use crate::decode::beginning;
use crate::error::FieldError;
use crate::table::ScalePaths;

/// The whole number at a path such as `.spec.replicas`; none where nothing is.
///
/// # Errors
/// In words, where something else is.
pub fn number(object: &Map<String, Value>, path: &str) -> Result<Option<i64>, String> {
    let Some(value) = at(object, path)? else { return Ok(None) };
    value.as_i64().map(Some).ok_or_else(|| mistyped(path, value, "int64"))
}

/// The text at a path such as `.status.selector`; none where nothing is.
///
/// # Errors
/// In words, where something else is.
pub fn text<'o>(object: &'o Map<String, Value>, path: &str) -> Result<Option<&'o str>, String> {
    let Some(value) = at(object, path)? else { return Ok(None) };
    value.as_str().map(Some).ok_or_else(|| mistyped(path, value, "string"))
}

fn at<'o>(object: &'o Map<String, Value>, path: &str) -> Result<Option<&'o Value>, String> {
    let (mut map, mut passed) = (object, String::new());
    let mut steps = path.strip_prefix('.').unwrap_or(path).split('.').peekable();
    while let Some(step) = steps.next() {
        let Some(value) = map.get(step) else { return Ok(None) };
        let Some(next) = steps.peek() else { return Ok(Some(value)) };
        passed = format!("{passed}.{step}");
        match value {
            Value::Object(below) => map = below,
            Value::Null => return Ok(None),
            other => return Err(mistyped(&format!("{passed}.{next}"), other, "map[string]interface{}")),
        }
    }
    Ok(None)
}

fn mistyped(path: &str, value: &Value, wanted: &str) -> String {
    let text = match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let found = match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    format!("{path} accessor error: {} is of the type {found}, expected {wanted}", beginning(&text))
}

/// Checks the numbers of a scale; that of the spec only where it is not the status that is written.
pub(super) fn check(object: &Map<String, Value>, paths: &ScalePaths, is_status: bool, errors: &mut Errors) {
    let counts = [(!is_status).then_some(&paths.spec_replicas), Some(&paths.status_replicas)];
    for path in counts.into_iter().flatten() {
        let (count, problem) = match number(object, path) {
            Err(why) => (0, why),
            Ok(Some(count)) if count < 0 => (count, "should be a non-negative integer".to_owned()),
            Ok(Some(count)) if count > i64::from(i32::MAX) => {
                (count, format!("should be less than or equal to {}", i32::MAX))
            }
            Ok(_) => continue,
        };
        errors.push(FieldError::invalid(path.as_str(), count, problem));
    }
    if let Some(path) = &paths.label_selector
        && let Err(why) = text(object, path)
    {
        errors.push(FieldError::invalid(path.as_str(), "", why));
    }
}
