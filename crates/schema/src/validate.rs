//! Validation: metadata, schemas of custom resources, and what built-in kinds demand.
//!
//! Errors carry upstream's paths, reasons and texts, because people search for them and clients
//! read them. What is checked by hand is what users hit first; kinds without rules of their own are
//! held to the fields that their schema requires. What is good and yet not wise is told as a [`warnings()`] instead.

mod access;
mod admission;
mod affinity;
mod alike;
mod autoscaling;
mod configuration;
mod containers;
mod crd;
mod demand;
mod device_claims;
mod device_slices;
mod devices;
mod environment;
mod events;
pub mod expressions;
mod flow_control;
mod formats;
mod job_status;
mod jobs;
mod kinds;
mod limits;
mod metadata;
pub mod names;
mod networking;
mod os;
mod pod;
mod pod_certificates;
mod pod_update;
mod rbac;
mod required;
mod resources;
pub mod scale;
mod schema;
mod security;
mod service;
mod status;
mod storage;
mod structural;
mod volumes;
mod warnings;
mod workloads;

use serde_json::Value;

use crate::error::{FieldError, FieldErrorKind};
use crate::rules;
use crate::table::{ResourceInfo, SchemaSource};

pub use alike::plain;
pub use limits::QUOTA_SCOPES;
pub use metadata::{is_qualified_finalizer, written};
pub use schema::schema;
pub use warnings::warnings;

/// More errors than these are told to nobody: a request has room for a hundred thousand labels, and what is wrong with each of
/// them takes a hundred times its room.
const MAX_ERRORS: usize = 1000;

/// Checks a new object: metadata, and what its kind demands. The object is decoded and defaulted.
#[must_use]
pub fn create(info: &ResourceInfo, version: &str, object: &Value) -> Vec<FieldError> {
    let mut errors = metadata::create(info, object);
    if info.is_custom {
        custom(info, version, (object, None), "", &mut errors);
    } else {
        errors.extend(kinds::create(info, version, object));
    }
    errors.truncate(MAX_ERRORS);
    errors
}

/// Checks a changed object against the one before. `subresource` is empty for the object itself,
/// `status`, `ephemeralcontainers`, `resize` and so on otherwise.
#[must_use]
pub fn update(info: &ResourceInfo, version: &str, object: &Value, old: &Value, subresource: &str) -> Vec<FieldError> {
    let mut errors = metadata::update(info, object, old);
    if info.is_custom {
        custom(info, version, (object, Some(old)), subresource, &mut errors);
    } else if subresource == "status" {
        errors.extend(kinds::status(info, object, old));
    } else {
        errors.extend(kinds::update(info, version, object, old, subresource));
    }
    errors.truncate(MAX_ERRORS);
    errors
}

/// By the schema, by what a scale may say, and by the rules of the schema.
fn custom(
    info: &ResourceInfo,
    version: &str,
    (object, old): (&Value, Option<&Value>),
    subresource: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(version) = info.versions.iter().find(|v| v.name == version) else { return };
    errors.extend(schema::changed(object, old, version.schema()));
    let scale = version.subresource("scale").and_then(|sub| sub.scale.as_ref());
    if let (Some(paths), Some(object)) = (scale, object.as_object()) {
        scale::check(object, paths, subresource == "status", errors);
    }
    let SchemaSource::Custom(custom) = &version.schema else { return };
    if !errors.iter().any(hinders) {
        errors.extend(rules::check(object, old, &custom.schema, &custom.rules));
    } else if !custom.rules.is_empty() {
        let text = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        errors.push(FieldError::invalid("<nil>", Value::Null, text));
    }
}

/// Whether rules are not asked about an object with this error: they were compiled for other types, and for less.
fn hinders(error: &FieldError) -> bool {
    matches!(
        error.kind,
        FieldErrorKind::NotSupported
            | FieldErrorKind::Required
            | FieldErrorKind::TooLong
            | FieldErrorKind::TooMany
            | FieldErrorKind::TypeInvalid
    )
}

#[cfg(test)]
mod tests;
