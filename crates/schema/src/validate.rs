//! Validation.

use serde_json::Value;

use crate::error::FieldError;
use crate::schema::Schema;
use crate::table::ResourceInfo;

/// Checks a new object: metadata, and what its kind demands. The object is decoded and defaulted.
#[must_use]
pub fn create(_info: &ResourceInfo, _version: &str, _object: &Value) -> Vec<FieldError> {
    Vec::new()
}

/// Checks a changed object against the one before. `subresource` is empty for the object itself,
/// `status`, `ephemeralcontainers`, `resize` and so on otherwise.
#[must_use]
pub fn update(
    _info: &ResourceInfo,
    _version: &str,
    _object: &Value,
    _old: &Value,
    _subresource: &str,
) -> Vec<FieldError> {
    Vec::new()
}

/// Checks a value against a schema, with upstream's texts for custom resources.
#[must_use]
pub fn schema(_value: &Value, _schema: &Schema) -> Vec<FieldError> {
    Vec::new()
}
