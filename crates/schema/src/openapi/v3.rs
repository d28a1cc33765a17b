//! Operations as OpenAPI v3 has them.

use serde_json::{Value, json};

use super::components::V3_PREFIX;
use super::paths::{Content, Operation};

/// A parameter: where it is, its name and its type.
pub(super) fn parameter(place: &str, name: &str, type_: &str) -> Value {
    json!({"in": place, "name": name, "schema": {"type": type_, "uniqueItems": true}})
}

/// One method of a path.
pub(super) fn operation(operation: &Operation<'_>) -> Value {
    let query = operation.parameters.iter().map(|(name, type_)| parameter("query", name, type_));
    let [group, version, kind] = operation.kind;
    let mut out = json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "parameters": query.collect::<Vec<_>>(),
        "responses": operation.responses("content", &content(&operation.response)),
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    });
    if let Some(request) = &operation.request {
        let mut body = json!({"content": content(&request.content)});
        if request.required {
            body["required"] = true.into();
        }
        out["requestBody"] = body;
    }
    out
}

fn content(content: &Content) -> Value {
    let schema = content.schema(V3_PREFIX);
    content.media_types.iter().map(|media_type| ((*media_type).to_owned(), json!({"schema": schema}))).collect()
}
