//! `subresources.kubevirt.io`: what is done to machines and instances beyond reading and writing their objects.
//!
//! ```text
//!   start, stop, restart ─▶ patches of the VirtualMachine, which its controller acts on (202, no body)
//!   console, vnc, portforward, pause … ─▶ the handler of the instance's node, carried there by the API server
//! ```
//!
//! The API server has authenticated and authorised the caller (update for PUT, get for GET) before this code sees a
//! request. Texts and status codes are KubeVirt's: virtctl shows them.

mod lifecycle;
mod node;
mod objects;

use carrack_apiserver::{Body, LocalApi, LocalGroupVersion, LocalRequest, Response, Status};
use carrack_types::well_known::kubevirt::SUBRESOURCES_GROUP;
use futures::future::BoxFuture;
use http::Method;
use serde_json::{Value, json};

use crate::KUBEVIRT_VERSION;

/// Longest options object, bytes.
const MAX_OPTIONS: usize = 64 << 10;

/// Serves the group.
pub struct Subresources {
    group_versions: Vec<LocalGroupVersion>,
}

impl Default for Subresources {
    fn default() -> Self {
        Self::new()
    }
}

/// What can be done to which resource: resource, subresource, verb.
const SERVED: [(&str, &str, &str); 14] = [
    ("virtualmachines", "start", "update"),
    ("virtualmachines", "stop", "update"),
    ("virtualmachines", "restart", "update"),
    ("virtualmachines", "portforward", "get"),
    ("virtualmachineinstances", "console", "get"),
    ("virtualmachineinstances", "vnc", "get"),
    ("virtualmachineinstances", "portforward", "get"),
    ("virtualmachineinstances", "pause", "update"),
    ("virtualmachineinstances", "unpause", "update"),
    ("virtualmachineinstances", "softreboot", "update"),
    ("virtualmachineinstances", "reset", "update"),
    ("version", "", "get"),
    ("healthz", "", "get"),
    ("guestfs", "", "get"),
];

impl Subresources {
    /// The group in both versions.
    #[must_use]
    pub fn new() -> Self {
        let resources: Vec<Value> = SERVED
            .iter()
            .map(|(resource, sub, verb)| {
                let name = if sub.is_empty() { (*resource).to_owned() } else { format!("{resource}/{sub}") };
                // What has no objects behind it is no resource to list.
                let verbs = if sub.is_empty() { json!([]) } else { json!([verb]) };
                json!({"name": name, "singularName": "", "namespaced": !sub.is_empty(), "kind": "", "verbs": verbs})
            })
            .collect();
        let group_versions = ["v1", "v1alpha3"]
            .map(|version| LocalGroupVersion {
                group: SUBRESOURCES_GROUP.to_owned(),
                version: version.to_owned(),
                resources: resources.clone(),
            })
            .into();
        Self { group_versions }
    }
}

impl LocalApi for Subresources {
    fn group_versions(&self) -> &[LocalGroupVersion] {
        &self.group_versions
    }

    fn handle<'a>(&'a self, request: LocalRequest<'a>) -> BoxFuture<'a, Response> {
        Box::pin(async move { answer(&request).await.unwrap_or_else(Response::from) })
    }
}

async fn answer(request: &LocalRequest<'_>) -> Result<Response, Status> {
    let path = request.resource;
    let sub = path.subresource.as_deref().unwrap_or_default();
    match (path.resource.as_str(), sub) {
        ("version", "") => return Ok(reply(200, &json!({"gitVersion": KUBEVIRT_VERSION, "platform": "linux/amd64"}))),
        ("healthz", "") => return Ok(reply(200, &json!({"apiserver": {"connectivity": "ok"}}))),
        ("guestfs", "") => return Err(Status::not_found(SUBRESOURCES_GROUP, "guestfs", "")),
        _ => {}
    }
    let Some((_, _, verb)) = SERVED.iter().find(|(resource, served, _)| *resource == path.resource && *served == sub)
    else {
        return Err(Status::not_found(SUBRESOURCES_GROUP, &format!("{}/{sub}", path.resource), ""));
    };
    let wanted = if *verb == "get" { Method::GET } else { Method::PUT };
    if *request.method != wanted {
        return Err(Status::method_not_allowed());
    }
    let (Some(namespace), Some(name)) = (path.namespace.as_deref(), path.name.as_deref()) else {
        return Err(Status::bad_request("a namespace and a name are required"));
    };
    let call = objects::Call { server: request.server, namespace, name };
    match (path.resource.as_str(), sub) {
        ("virtualmachines", "start") => lifecycle::start(&call, &options(request)?).await,
        ("virtualmachines", "stop") => lifecycle::stop(&call, &options(request)?).await,
        ("virtualmachines", "restart") => lifecycle::restart(&call, &options(request)?).await,
        // A machine's instance bears its name.
        _ => node::forward(&call, request, sub).await,
    }
}

/// The options in the body; none is the same as an empty object.
fn options(request: &LocalRequest<'_>) -> Result<Value, Status> {
    if request.body.iter().all(u8::is_ascii_whitespace) {
        return Ok(json!({}));
    }
    if request.body.len() > MAX_OPTIONS {
        return Err(Status::too_large(MAX_OPTIONS));
    }
    match serde_json::from_slice(&request.body) {
        Ok(Value::Object(options)) => Ok(Value::Object(options)),
        Ok(Value::Null) => Ok(json!({})),
        Ok(_) => Err(Status::bad_request("the options must be an object")),
        Err(error) => Err(Status::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))),
    }
}

fn reply(code: u16, body: &Value) -> Response {
    carrack_apiserver::body::value(code, body)
}

/// The reply to a request that was taken on.
fn accepted() -> Response {
    carrack_apiserver::body::json(202, Body::Full(bytes::Bytes::new()))
}

#[cfg(test)]
mod tests;
