//! From a request's body to an object of the request's kind.

use carrack_schema::decode::{self, Finding, Format, Limits};
use http::HeaderMap;
use serde_json::Value;

use crate::accept::content_type;
use crate::context::{Cx, FieldValidation};
use crate::convert::set_type;
use crate::kinds;
use crate::object::{Object, str_at};
use crate::status::Status;

/// Media types of bodies, for the 415.
const TAKEN: &str = "application/json, application/yaml";

/// A body's format.
pub(crate) fn format(headers: &HeaderMap) -> Result<Format, Status> {
    match content_type(headers).as_str() {
        "application/json" => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        _ => Err(Status::unsupported_media_type(TAKEN)),
    }
}

/// Reads a body that is an object of no particular kind.
pub(crate) fn any(body: &[u8], format: Format, kind: &str) -> Result<(Object, Vec<Finding>), Status> {
    let parsed = decode::parse(body, format, Limits::default()).map_err(|error| match error {
        decode::DecodeError::TooLarge { limit } => Status::too_large(limit),
        other => Status::bad_request(other.status_message("", kind)),
    })?;
    match parsed.value {
        Value::Object(object) => Ok((object, parsed.findings)),
        _ => Err(Status::bad_request("the body is not an object")),
    }
}

/// Reads a body that is an object of the request's kind; unknown and duplicate fields are treated as
/// `fieldValidation` says.
pub(crate) fn object(cx: &mut Cx<'_>, body: &[u8]) -> Result<Object, Status> {
    let api_version = cx.api_version();
    let format = format(cx.headers)?;
    let parsed = decode::parse(body, format, Limits::default()).map_err(|error| match error {
        decode::DecodeError::TooLarge { limit } => Status::too_large(limit),
        other => Status::bad_request(other.status_message(&cx.version().name, &cx.row.kind)),
    })?;
    let Value::Object(mut object) = parsed.value else {
        return Err(Status::bad_request("the body is not an object"));
    };
    check_type(&object, &api_version, &cx.row.kind)?;
    set_type(&mut object, &api_version, &cx.row.kind);
    settle(cx, &mut object, parsed.findings)?;
    Ok(object)
}

/// Makes an object fit its schema, and treats what did not fit as `fieldValidation` says.
pub(crate) fn settle(cx: &mut Cx<'_>, object: &mut Object, mut findings: Vec<Finding>) -> Result<(), Status> {
    let mode = cx.field_validation()?;
    let unknown = kinds::conform(&cx.row, cx.version(), object)
        .map_err(|error| Status::bad_request(error.status_message(&cx.version().name, &cx.row.kind)))?;
    findings.extend(unknown);
    match mode {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => cx.warnings.extend(findings.iter().map(ToString::to_string)),
        FieldValidation::Strict => {
            if let Some(message) = decode::strict_message(&cx.version().name, &cx.row.kind, &findings) {
                return Err(Status::bad_request(message));
            }
        }
    }
    Ok(())
}

/// A body may leave out what it is; it may not be something else.
pub(crate) fn check_type(object: &Object, api_version: &str, kind: &str) -> Result<(), Status> {
    let given_version = str_at(object, &["apiVersion"]);
    let given_kind = str_at(object, &["kind"]);
    if !given_version.is_empty() && given_version != api_version {
        return Err(Status::bad_request(format!(
            "the API version in the data ({given_version}) does not match the expected API version ({api_version})"
        )));
    }
    if !given_kind.is_empty() && given_kind != kind {
        return Err(Status::bad_request(format!(
            "the kind in the data ({given_kind}) does not match the expected kind ({kind})"
        )));
    }
    Ok(())
}
