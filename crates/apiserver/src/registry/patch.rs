//! patch: JSON patch, merge patch, strategic merge patch, and the way to server-side apply.
//!
//! A patch is applied to the newest object, again and again until no other writer comes between;
//! a `resourceVersion` in it makes it a precondition.

use carrack_schema::decode::{self, Limits};
use carrack_schema::error::FieldError;
use carrack_schema::strategic;
use serde_json::Value;

use crate::accept::content_type;
use crate::body::Response;
use crate::context::Cx;
use crate::convert::set_type;
use crate::object::Object;
use crate::registry::decode as bodies;
use crate::registry::strategy::Half;
use crate::registry::update::change_of;
use crate::registry::{apply, managers};
use crate::status::Status;

/// Media types of patches, for the 415.
const TAKEN: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml";
/// What patches of ownership mention.
const MANAGERS: &[u8] = b"managedFields";
/// A JSON patch has no more operations than this.
const MAX_OPERATIONS: usize = 10_000;

/// A patch that has been read.
enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

/// Applies the patch in the body.
pub(crate) async fn patch(cx: &mut Cx<'_>, half: Half, body: &[u8]) -> Result<Response, Status> {
    if content_type(cx.headers) == apply::MEDIA_TYPE {
        return apply::apply(cx, half, body).await;
    }
    let presenter = cx.presenter()?;
    if cx.query.get("force").is_some() {
        let fault = FieldError::forbidden("force", "may not be specified for non-apply patch");
        return Err(managers::options_fault("PatchOptions", &fault));
    }
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
    let object = || -> Result<Value, Status> {
        decode::parse(body, decode::Format::Json, limits)
            .map(|parsed| parsed.value)
            .map_err(|error| Status::bad_request(error.to_string()))
    };
    match content_type(cx.headers).as_str() {
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_slice(body)
                .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
            if patch.0.len() > MAX_OPERATIONS {
                return Err(Status::too_large(MAX_OPERATIONS));
            }
            Ok(Patch::Json(patch))
        }
        "application/merge-patch+json" => object().map(Patch::Merge),
        // Upstream has no strategic merge for custom resources, and clients fall back on this.
        "application/strategic-merge-patch+json" if !cx.row.is_custom => object().map(Patch::Strategic),
        _ => Err(Status::unsupported_media_type(if cx.row.is_custom {
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
        } else {
            TAKEN
        })),
    }
}

fn patched(cx: &mut Cx<'_>, patch: &Patch, old: &Object) -> Result<Object, Status> {
    let mut value = Value::Object(old.clone());
    match patch {
        Patch::Json(patch) => {
            let mut copied_bytes = 0;
            for operation in &patch.0 {
                if let json_patch::PatchOperation::Copy(copy) = operation {
                    // A few copies of copies would fill the memory.
                    let from = value.pointer(copy.from.as_str());
                    copied_bytes += from.map_or(0, |from| from.to_string().len());
                    let limit = Limits::default().max_bytes;
                    if copied_bytes > limit {
                        return Err(Status::too_large(limit));
                    }
                }
                json_patch::patch(&mut value, std::slice::from_ref(operation)).map_err(|error| {
                    Status::invalid(
                        &cx.row.group,
                        &cx.row.kind,
                        cx.name(),
                        &[(
                            "FieldValueInvalid".to_owned(),
                            operation.path().to_string(),
                            format!("the patch cannot be applied: {}", error.kind),
                        )],
                    )
                })?;
            }
        }
        Patch::Merge(patch) => strategic::merge(&mut value, patch),
        Patch::Strategic(patch) => {
            let schema = cx.version().schema();
            value = strategic::apply(value, patch.clone(), schema)
                .map_err(|error| Status::bad_request(error.to_string()))?;
        }
    }
    let Value::Object(mut new) = value else {
        return Err(Status::bad_request("the patch leaves no object"));
    };
    let api_version = cx.api_version();
    let kind = cx.row.kind.to_string();
    bodies::check_type(&new, &api_version, &kind)?;
    set_type(&mut new, &api_version, &kind);
    bodies::settle(cx, &mut new, Vec::new())?;
    Ok(new)
}
