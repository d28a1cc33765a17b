//! From a request's body to an object of the request's kind.

use std::borrow::Cow;

use carrack_schema::builtin;
use carrack_schema::decode::{self, Finding, Format, Limits};
use carrack_schema::error::FieldError;
use carrack_schema::table::{ResourceInfo, SchemaSource};
use http::HeaderMap;
use serde_json::Value;

use crate::accept::content_type;
use crate::context::{Cx, FieldValidation};
use crate::convert::set_type;
use crate::kinds;
use crate::object::{Object, meta_str};
use crate::protobuf;
use crate::status::Status;

/// Media types of bodies, for the 415.
const TAKEN: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Reads a body that is an object of a built-in type, given by its OpenAPI name, and not necessarily
/// the request's own kind. Bodies without a content type are JSON. What the type does not have is dropped.
///
/// # Errors
/// 400 for what is of another type than its field, too: taken for absent, a token would be for anybody, and a
/// deletion would know no precondition.
pub(crate) fn any(cx: &Cx<'_>, body: &[u8], type_name: &str) -> Result<Object, Status> {
    let mut parts = type_name.rsplit('.');
    let (kind, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (object, _) = parse(cx.headers, body, Some(type_name), version, kind)?;
    let mut value = Value::Object(object);
    if let Some(schema) = builtin::schema(type_name) {
        decode::conform(&mut value, schema)
            .map_err(|error| Status::bad_request(error.status_message(version, kind)))?;
    }
    let Value::Object(object) = value else { return Err(Status::bad_request("the body is not an object")) };
    cx.audited.sent(&object, body.len(), |_| {});
    Ok(object)
}

/// Reads a body that is an object of the request's kind; unknown and duplicate fields are treated as
/// `fieldValidation` says.
pub(crate) fn object(cx: &mut Cx<'_>, body: &[u8]) -> Result<Object, Status> {
    let api_version = cx.api_version();
    let version = cx.version();
    let type_name = match &version.schema {
        SchemaSource::Builtin(name) => Some(name.as_ref()),
        SchemaSource::Custom(_) => None,
    };
    let (mut object, findings) = parse(cx.headers, body, type_name, &version.name, &cx.row.kind)?;
    let in_order = type_name.is_some() && content_type(cx.headers) == "application/json";
    if cx.row.is_custom {
        check_custom(&object, &cx.row, &version.name)?;
    } else {
        check_type(&object, &api_version, &cx.row.kind)?;
    }
    set_type(&mut object, &api_version, &cx.row.kind);
    settle(cx, &mut object, findings, in_order.then_some(body))?;
    // Upstream's decoder fills in the defaults.
    cx.audited.sent(&object, body.len(), |object| kinds::default(&cx.row, cx.version(), object));
    Ok(object)
}

/// Reads a body in any of the encodings. Protobuf needs to know the type.
fn parse(
    headers: &HeaderMap,
    body: &[u8],
    type_name: Option<&str>,
    version: &str,
    kind: &str,
) -> Result<(Object, Vec<Finding>), Status> {
    let format = match (content_type(headers).as_str(), type_name) {
        ("application/json", _) => Format::Json,
        ("application/yaml", _) => Format::Yaml,
        (protobuf::MEDIA_TYPE, Some(type_name)) => {
            if body.len() > Limits::default().max_bytes {
                return Err(Status::too_large(Limits::default().max_bytes));
            }
            let decoded = protobuf::decode(body, type_name)
                .map_err(|why| Status::bad_request(decode::cannot_be_handled(version, kind, &why)))?;
            return Ok((decoded.object, decoded.unknown.into_iter().map(Finding::Unknown).collect()));
        }
        (_, Some(_)) => return Err(Status::unsupported_media_type(TAKEN)),
        (_, None) => return Err(Status::unsupported_media_type("application/json, application/yaml")),
    };
    let parsed = decode::parse(body, format, Limits::default()).map_err(|error| match error {
        decode::DecodeError::TooLarge { limit } => Status::too_large(limit),
        unread @ (decode::DecodeError::Syntax(_)
        | decode::DecodeError::NotAnObject { .. }
        | decode::DecodeError::NotNamed { .. }) => Status::bad_request(decode::unrecognized(kind, &unread, body)),
        other => Status::bad_request(other.status_message(version, kind)),
    })?;
    match parsed.value {
        Value::Object(object) => Ok((object, parsed.findings)),
        _ => Err(Status::bad_request("the body is not an object")),
    }
}

/// Makes an object fit its schema, and treats what did not fit as `fieldValidation` says. It is told of in the order of the
/// body, where that is given: of what is no built-in kind, or no JSON, upstream tells first what is there twice.
fn settle(cx: &mut Cx<'_>, object: &mut Object, mut findings: Vec<Finding>, body: Option<&[u8]>) -> Result<(), Status> {
    let mode = cx.field_validation()?;
    let unknown = kinds::conform(&cx.row, cx.version(), object)
        .map_err(|error| Status::bad_request(error.status_message(&cx.version().name, &cx.row.kind)))?;
    findings.extend(unknown);
    if let Some(body) = body.filter(|_| mode != FieldValidation::Ignore) {
        findings = decode::in_order(body, Limits::default(), findings);
    }
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

/// What an object says in this field. What is no text, as only a patch can make it, is told as it is.
fn said<'o>(object: &'o Object, field: &str) -> Cow<'o, str> {
    match object.get(field) {
        None | Some(Value::Null) => Cow::Borrowed(""),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(other) => Cow::Owned(other.to_string()),
    }
}

/// A body may leave out what it is; it may not be something else.
pub(crate) fn check_type(object: &Object, api_version: &str, kind: &str) -> Result<(), Status> {
    let (given_version, given_kind) = (said(object, "apiVersion"), said(object, "kind"));
    if !given_version.is_empty() && given_version != api_version {
        return Err(other_version(&given_version, api_version));
    }
    if !given_kind.is_empty() && given_kind != kind {
        return Err(Status::bad_request(format!(
            "the kind in the data ({given_kind}) does not match the expected kind ({kind})"
        )));
    }
    Ok(())
}

/// A custom resource says what it is: upstream has no type that would. It is read whatever its kind, and one that is wrong is
/// found when it is validated: as one of the kind that it says.
fn check_custom(object: &Object, row: &ResourceInfo, version: &str) -> Result<(), Status> {
    const MAX_SHOWN: usize = 1000;
    let (given_version, given_kind) = (said(object, "apiVersion"), said(object, "kind"));
    if given_kind.is_empty() {
        let shown: String = serde_json::to_string(object).unwrap_or_default().chars().take(MAX_SHOWN).collect();
        let problem = format!("Object 'Kind' is missing in '{shown}'");
        return Err(Status::bad_request(decode::cannot_be_handled(version, &row.kind, &problem)));
    }
    let api_version = row.api_version(version);
    if given_version != api_version {
        return Err(other_version(&given_version, &api_version));
    }
    if given_kind != row.kind {
        let fault = FieldError::invalid("kind", &*given_kind, format!("must be {}", row.kind));
        return Err(Status::faulty(&row.group, &given_kind, meta_str(object, "name"), &[fault]));
    }
    Ok(())
}

fn other_version(given: &str, expected: &str) -> Status {
    Status::bad_request(format!(
        "the API version in the data ({given}) does not match the expected API version ({expected})"
    ))
}
