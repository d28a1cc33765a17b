//! patch: JSON patch, merge patch, strategic merge patch, and the way to server-side apply.
//!
//! A patch is applied to the newest object, again and again until no other writer comes between;
//! a `resourceVersion` in it makes it a precondition.

use std::fmt::Display;

use carrack_schema::decode::{self, Finding, Limits};
use carrack_schema::error::FieldError;
use carrack_schema::strategic;
use serde_json::Value;

use crate::accept::content_type;
use crate::body::Response;
use crate::context::{Cx, FieldValidation};
use crate::convert::set_type;
use crate::kinds;
use crate::object::Object;
use crate::registry::apply;
use crate::registry::decode as bodies;
use crate::registry::operations::{self, Fault, Missing};
use crate::registry::strategy::Half;
use crate::registry::update::change_of;
use crate::status::Status;

/// Media types of patches, for the 415.
const TAKEN: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml";
/// What patches of ownership mention.
const MANAGERS: &[u8] = b"managedFields";

/// A patch that has been read.
struct Patch {
    how: How,
    /// Fields that it has twice, and those that its operations do not have.
    findings: Vec<Finding>,
}

enum How {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

impl How {
    /// The top-level fields that it may change; none when it may change any. The others are what is stored, and so fit
    /// their schema.
    fn touched(&self) -> Option<Vec<&str>> {
        match self {
            How::Json(_) => None,
            How::Merge(patch) | How::Strategic(patch) => {
                let fields: Vec<&str> = patch.as_object()?.keys().map(String::as_str).collect();
                // Directives concern whatever they name.
                (!fields.iter().any(|field| field.starts_with('$'))).then_some(fields)
            }
        }
    }
}

/// Applies the patch in the body.
pub(crate) async fn patch(cx: &mut Cx<'_>, half: Half, body: &[u8]) -> Result<Response, Status> {
    if content_type(cx.headers) == apply::MEDIA_TYPE {
        return apply::apply(cx, half, body).await;
    }
    let presenter = cx.presenter()?;
    let patch = read(cx, body)?;
    // Patches may change who owns what; few do.
    let with_managers = body.windows(MANAGERS.len()).any(|window| window == MANAGERS);
    let changed = change_of(cx, &half, with_managers, |cx, old| patched(cx, &patch, old)).await?;
    Ok(changed.response(&presenter))
}

fn read(cx: &Cx<'_>, body: &[u8]) -> Result<Patch, Status> {
    let limits = Limits::default();
    if body.len() > limits.max_bytes {
        return Err(Status::too_large(limits.max_bytes));
    }
    let object = |how: fn(Value) -> How| -> Result<Patch, Status> {
        decode::parse(body, decode::Format::Json, limits)
            .map(|parsed| Patch { how: how(parsed.value), findings: parsed.findings })
            .map_err(|error| Status::bad_request(error.to_string()))
    };
    match content_type(cx.headers).as_str() {
        "application/json-patch+json" => {
            let (patch, findings) = read_operations(body)?;
            Ok(Patch { how: How::Json(patch), findings })
        }
        "application/merge-patch+json" => object(How::Merge),
        // Upstream has no strategic merge for custom resources, and clients fall back on this.
        "application/strategic-merge-patch+json" if !cx.row.is_custom => object(|mut patch| {
            decode::whole_numbers(&mut patch);
            How::Strategic(patch)
        }),
        _ => Err(untaken(cx)),
    }
}

/// A patch of a kind that the request's resource does not take.
pub(crate) fn untaken(cx: &Cx<'_>) -> Status {
    Status::unsupported_media_type(if cx.row.is_custom {
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    } else {
        TAKEN
    })
}

/// Reads a JSON patch, and what there is to tell of it.
pub(crate) fn read_operations(body: &[u8]) -> Result<(json_patch::Patch, Vec<Finding>), Status> {
    let undecoded = |error: &dyn Display| Status::bad_request(format!("error decoding patch: {error}"));
    let parsed = decode::operations(body, Limits::default()).map_err(|error| undecoded(&error))?;
    let patch = serde_json::from_value(parsed.value).map_err(|error| undecoded(&error))?;
    Ok((patch, parsed.findings))
}

fn patched(cx: &mut Cx<'_>, patch: &Patch, old: &Object) -> Result<Object, Status> {
    let mut value = Value::Object(old.clone());
    match &patch.how {
        How::Json(patch) => {
            operations::apply(&mut value, patch, Missing::Fault).map_err(|fault| refused(&fault))?;
        }
        How::Merge(patch) => strategic::merge(&mut value, patch),
        How::Strategic(patch) => {
            let schema = cx.version().schema();
            value = strategic::apply(value, patch.clone(), schema).map_err(|error| match error {
                strategic::PatchError::RetainKeys => Status::unprocessable(error.to_string(), ""),
                other => Status::bad_request(other.to_string()),
            })?;
        }
    }
    let Value::Object(mut new) = value else {
        return Err(Status::bad_request("the patch leaves no object"));
    };
    let api_version = cx.api_version();
    let kind = cx.row.kind.to_string();
    bodies::check_type(&new, &api_version, &kind)?;
    set_type(&mut new, &api_version, &kind);
    settle(cx, &mut new, patch)?;
    Ok(new)
}

/// The reply to a JSON patch that is not carried out.
pub(crate) fn refused(fault: &Fault) -> Status {
    match fault {
        Fault::TooLarge { limit } => Status::too_large(*limit),
        Fault::TooMany { limit, .. } | Fault::TooMuch { limit } => {
            let mut status = Status::too_large(*limit);
            status.message = format!("Request entity too large: {fault}");
            status
        }
        Fault::Unfit { path, why, .. } => Status::unprocessable(why.as_str(), path),
    }
}

/// Makes a patched object fit its schema. What it should not have is treated as `fieldValidation` says, and is the
/// patch's fault: a 422 of upstream's form, which shows a strategic patch itself, and of others the object that they
/// make.
fn settle(cx: &mut Cx<'_>, new: &mut Object, patch: &Patch) -> Result<(), Status> {
    let mode = cx.field_validation()?;
    let refused = |new: &Object, why: &str| {
        let (shown, why) = match &patch.how {
            How::Strategic(patch) => (as_go_prints(patch), as_converted(why)),
            How::Json(_) | How::Merge(_) => (serde_json::to_string(new).unwrap_or_default(), why.to_owned()),
        };
        Status::faulty("", "", "", &[FieldError::invalid("patch", shown, why)])
    };
    let touched = patch.how.touched().filter(|_| !cx.row.is_custom);
    let conformed = match touched.as_deref() {
        Some(fields) => kinds::conform_fields(&cx.row, cx.version(), new, fields),
        None => kinds::conform(&cx.row, cx.version(), new),
    };
    let unknown = match conformed {
        Ok(unknown) => unknown,
        Err(error) => return Err(refused(new, &error.to_string())),
    };
    let of_patch = if matches!(patch.how, How::Json(_)) { "json patch " } else { "" };
    let told = patch.findings.iter().map(|finding| format!("{of_patch}{finding}"));
    let texts: Vec<String> = told.chain(unknown.iter().map(ToString::to_string)).collect();
    match mode {
        _ if texts.is_empty() => {}
        FieldValidation::Ignore => {}
        FieldValidation::Warn => {
            // A patch may be applied more than once.
            let new: Vec<String> = texts.into_iter().filter(|text| !cx.warnings.contains(text)).collect();
            cx.warnings.extend(new);
        }
        FieldValidation::Strict => {
            return Err(refused(new, &format!("strict decoding error: {}", texts.join(", "))));
        }
    }
    Ok(())
}

/// What is wrong with a collection, in the words of upstream's converter: what a strategic patch makes is read by that,
/// and not by Go's decoder of JSON (`k8s.io/apimachinery/pkg/runtime/converter.go`).
fn as_converted(why: &str) -> String {
    let mistyped = why.strip_prefix("json: cannot unmarshal ").and_then(|rest| {
        let found = rest.split(' ').next()?;
        let (_, wanted) = rest.rsplit_once(" of type ")?;
        Some((found, wanted))
    });
    let Some((found, wanted)) = mistyped else { return why.to_owned() };
    let found = match found {
        "array" => "slice",
        "object" => "map",
        "number" => "int64",
        other => other,
    };
    match wanted {
        wanted if wanted.starts_with("map[") => format!("cannot restore map from {found}"),
        wanted if wanted.starts_with("[]") => format!("cannot restore slice from {found}"),
        wanted if wanted.contains('.') => format!("cannot restore struct from: {found}"),
        _ => why.to_owned(),
    }
}

/// A value as Go prints one for people (`%+v`): texts without quotes, maps in the order of their keys.
fn as_go_prints(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(" ");
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(as_go_prints).collect())),
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            let parts = fields.into_iter().map(|(key, value)| format!("{key}:{}", as_go_prints(value)));
            format!("map[{}]", joined(parts.collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::as_converted;

    #[test]
    fn collections_are_restored() {
        let decoder = |found: &str, wanted: &str| {
            format!("json: cannot unmarshal {found} into Go struct field Pod.a.b of type {wanted}")
        };
        for (found, wanted, want) in [
            ("string", "map[string]string", "cannot restore map from string"),
            ("object", "[]v1.Container", "cannot restore slice from map"),
            ("array", "v1.PodSpec", "cannot restore struct from: slice"),
        ] {
            assert_eq!(as_converted(&decoder(found, wanted)), want);
        }
        for other in [decoder("string", "int32"), "strict decoding error: unknown field \"a\"".to_owned()] {
            assert_eq!(as_converted(&other), other);
        }
    }
}
