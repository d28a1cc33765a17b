//! What the schema crate knows about a kind, called with this crate's objects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::pki::pair_fault;
use carrack_schema::builtin::{self, OBJECT_META};
use carrack_schema::decode::{self, DecodeError, Finding};
use carrack_schema::error::FieldError;
use carrack_schema::schema::Schema;
use carrack_schema::table::{ResourceInfo, Version};
use carrack_schema::{default, prune, validate};
use serde_json::Value;

use crate::object::{Object, Whole, str_at};

/// Lends the object as a JSON value.
fn as_value<R>(object: &mut Object, f: impl FnOnce(&mut Value) -> R) -> R {
    let mut value = Value::Object(std::mem::take(object));
    let result = f(&mut value);
    if let Value::Object(map) = value {
        *object = map;
    }
    result
}

/// What makes a value of a built-in type conform.
type Conform = fn(&mut Value, &Schema) -> Result<Vec<Finding>, DecodeError>;

/// Drops fields that the kind does not have, and returns them. What is as good as absent goes as well: of custom resources in
/// their metadata alone.
pub(crate) fn conform(row: &ResourceInfo, version: &Version, object: &mut Object) -> Result<Vec<Finding>, DecodeError> {
    conform_by(decode::conform, row, version, object)
}

/// Like [`conform`], of an object that is applied: it owns what is empty in it, too.
pub(crate) fn conform_applied(
    row: &ResourceInfo,
    version: &Version,
    object: &mut Object,
) -> Result<Vec<Finding>, DecodeError> {
    conform_by(decode::conform_applied, row, version, object)
}

fn conform_by(
    conform: Conform,
    row: &ResourceInfo,
    version: &Version,
    object: &mut Object,
) -> Result<Vec<Finding>, DecodeError> {
    as_value(object, |value| {
        if !row.is_custom {
            return conform(value, version.schema());
        }
        // Upstream reads it without a type, and writes it anew.
        decode::whole_numbers(value);
        let mut findings = Vec::new();
        if let (Some(schema), Some(metadata)) = (builtin::schema(OBJECT_META), value.get_mut("metadata")) {
            findings.extend(conform(metadata, schema)?.into_iter().map(|finding| match finding {
                Finding::Unknown(path) => Finding::Unknown(format!("metadata.{path}")),
                Finding::Duplicate(path) => Finding::Duplicate(format!("metadata.{path}")),
                twice @ Finding::Twice { .. } => twice,
            }));
        }
        findings.extend(prune::prune(value, version.schema())?);
        Ok(findings)
    })
}

/// Like [`conform`], of the given top-level fields alone: the others are known to be what the kind has.
pub(crate) fn conform_fields(
    row: &ResourceInfo,
    version: &Version,
    object: &mut Object,
    fields: &[&str],
) -> Result<Vec<Finding>, DecodeError> {
    let mut some = Object::new();
    for field in fields.iter().chain(&["kind"]) {
        if let Some((field, value)) = object.remove_entry(*field) {
            some.insert(field, value);
        }
    }
    let result = conform(row, version, &mut some);
    object.append(&mut some);
    result
}

/// Fills in defaults.
pub(crate) fn default(row: &ResourceInfo, version: &Version, object: &mut Object) {
    as_value(object, |value| default::apply(row, &version.name, value));
}

/// Checks a new object.
pub(crate) fn validate_create(row: &ResourceInfo, version: &Version, object: &mut Object) -> Vec<FieldError> {
    as_value(object, |value| validate::create(row, &version.name, value))
}

/// What is to be said about a new object, or about one that is changed from the `old` one.
pub(crate) fn warnings(row: &ResourceInfo, object: &mut Object, old: Option<&Object>) -> Vec<String> {
    if row.is_custom {
        return Vec::new();
    }
    let mut warnings = as_value(object, |value| validate::warnings(row, value, old));
    if (&*row.group, &*row.plural) == ("", "secrets") {
        warnings.extend(unpaired(object));
    }
    warnings
}

/// What is wrong with the certificate and the key of a secret that is there to hold them.
fn unpaired(secret: &Object) -> Option<String> {
    if str_at(secret, &["type"]) != "kubernetes.io/tls" {
        return None;
    }
    let [certificate, key] = ["tls.crt", "tls.key"].map(|field| {
        let text = str_at(secret, &["data", field]).replace(['\r', '\n'], "");
        // What is no base64 was refused.
        STANDARD.decode(text).unwrap_or_default()
    });
    pair_fault(&certificate, &key)
}

/// Checks a changed object.
pub(crate) fn validate_update(
    row: &ResourceInfo,
    version: &Version,
    object: &mut Object,
    old: &Whole,
    subresource: &str,
) -> Vec<FieldError> {
    as_value(object, |value| validate::update(row, &version.name, value, old.value(), subresource))
}
