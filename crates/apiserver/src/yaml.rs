//! Replies in YAML, made of the JSON that everything else takes.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::Value;

use crate::accept;
use crate::body::{Body, Response};
use crate::status::Status;

/// The reply as the client wants it: in YAML if that is what it accepts, and the reply is a whole object.
pub(crate) fn lay_out(response: Response, headers: &HeaderMap) -> Response {
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/json"));
    if !is_json || !matches!(response.body(), Body::Full(_) | Body::Parts(_)) || !accept::wants_yaml(headers) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let bytes = body.into_bytes();
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
        return Response::from_parts(head, Body::Full(bytes));
    };
    match serde_saphyr::to_string(&value) {
        Ok(text) => {
            head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
            Response::from_parts(head, Body::Full(text.into()))
        }
        Err(error) => Status::internal(format!("the reply cannot be written as YAML: {error}")).into(),
    }
}
