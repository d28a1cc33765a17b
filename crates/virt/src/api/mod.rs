//! `subresources.kubevirt.io`: what is done to machines and instances beyond reading and writing their objects.
//!
//! ```text
//!   start, stop, restart ─▶ patches of the VirtualMachine, which its controller acts on (202, no body)
//!   expand-spec ─▶ reads instance type and preference
//!   console, vnc, portforward, pause … ─▶ the handler of the instance's node, carried there by the API server
//! ```
//!
//! The API server has authenticated and authorised the caller (update for PUT, get for GET) before this code sees a
//! request. Texts and status codes are KubeVirt's: virtctl shows them.

mod expand;
mod lifecycle;
mod node;
mod objects;

use carrack_apiserver::{Body, LocalApi, LocalGroupVersion, LocalRequest, Response, Status};
use carrack_schema::error::FieldError;
use carrack_types::well_known::kubevirt::{GROUP, SUBRESOURCES_GROUP};
use futures::future::BoxFuture;
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::KUBEVIRT_VERSION;
use crate::admission::{is_dns_label, is_dns_subdomain};
use crate::copying::COPY_VOLUMES;

pub(crate) use lifecycle::plan_stop;

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
const SERVED: [(&str, &str, &str); 45] = [
    ("virtualmachines", "start", "update"),
    ("virtualmachines", "stop", "update"),
    ("virtualmachines", "restart", "update"),
    ("virtualmachines", "migrate", "update"),
    ("virtualmachines", "expand-spec", "get"),
    ("virtualmachines", "portforward", "get"),
    ("virtualmachines", "addvolume", "update"),
    ("virtualmachines", "removevolume", "update"),
    ("virtualmachines", "memorydump", "update"),
    ("virtualmachines", "removememorydump", "update"),
    ("virtualmachines", "evacuate/cancel", "update"),
    ("virtualmachines", "objectgraph", "get"),
    ("virtualmachineinstances", "console", "get"),
    ("virtualmachineinstances", "vnc", "get"),
    ("virtualmachineinstances", "vnc/screenshot", "get"),
    ("virtualmachineinstances", "portforward", "get"),
    ("virtualmachineinstances", "usbredir", "get"),
    ("virtualmachineinstances", "vsock", "get"),
    ("virtualmachineinstances", "pause", "update"),
    ("virtualmachineinstances", "unpause", "update"),
    ("virtualmachineinstances", "softreboot", "update"),
    ("virtualmachineinstances", "reset", "update"),
    ("virtualmachineinstances", "freeze", "update"),
    ("virtualmachineinstances", "unfreeze", "update"),
    ("virtualmachineinstances", COPY_VOLUMES, "update"),
    ("virtualmachineinstances", "guestosinfo", "get"),
    ("virtualmachineinstances", "userlist", "get"),
    ("virtualmachineinstances", "filesystemlist", "get"),
    ("virtualmachineinstances", "addvolume", "update"),
    ("virtualmachineinstances", "removevolume", "update"),
    ("virtualmachineinstances", "evacuate/cancel", "update"),
    ("virtualmachineinstances", "objectgraph", "get"),
    ("virtualmachineinstances", "backup", "update"),
    ("virtualmachineinstances", "redefine-checkpoint", "update"),
    ("virtualmachineinstances", "sev/fetchcertchain", "get"),
    ("virtualmachineinstances", "sev/querylaunchmeasurement", "get"),
    ("virtualmachineinstances", "sev/setupsession", "update"),
    ("virtualmachineinstances", "sev/injectlaunchsecret", "update"),
    ("expand-vm-spec", "", "update"),
    ("version", "", "get"),
    ("healthz", "", "get"),
    ("guestfs", "", "get"),
    ("start-cluster-profiler", "", "get"),
    ("stop-cluster-profiler", "", "get"),
    ("dump-cluster-profiler", "", "get"),
];

/// Calls that make sense only where something is switched on that this version does not have, and the words of
/// KubeVirt where it is switched off.
const SWITCHED_OFF: [(&str, &str); 15] = [
    ("migrate", "LiveMigration is not available"),
    ("addvolume", "Unable to Add Volume because HotplugVolumes feature gate is not enabled."),
    ("removevolume", "Unable to Remove Volume because HotplugVolumes feature gate is not enabled."),
    ("memorydump", "Unable to memory dump because HotplugVolumes feature gate is not enabled."),
    ("removememorydump", "Unable to remove memory dump because HotplugVolumes feature gate is not enabled."),
    ("objectgraph", "ObjectGraph feature gate not enabled: Unable to return object graph."),
    ("usbredir", "Not configured with USB Redirection"),
    ("vsock", "VSOCK feature gate is not enabled"),
    ("backup", "IncrementalBackup feature gate is not enabled"),
    ("redefine-checkpoint", "IncrementalBackup feature gate is not enabled"),
    ("sev/fetchcertchain", "WorkloadEncryptionSEV feature gate is not enabled in kubevirt-config"),
    ("sev/querylaunchmeasurement", "WorkloadEncryptionSEV feature gate is not enabled in kubevirt-config"),
    ("sev/setupsession", "WorkloadEncryptionSEV feature gate is not enabled in kubevirt-config"),
    ("sev/injectlaunchsecret", "WorkloadEncryptionSEV feature gate is not enabled in kubevirt-config"),
    ("profiler", "Unable to retrieve cluster profiler: ClusterProfiler feature gate is not enabled"),
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
                let namespaced = !sub.is_empty() || *resource == "expand-vm-spec";
                let verbs = if namespaced { json!([verb]) } else { json!([]) };
                json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": "", "verbs": verbs})
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
    let sub = subresource(path.subresource.as_deref().unwrap_or_default(), &path.rest);
    let Some((_, _, verb)) = SERVED.iter().find(|(resource, served, _)| *resource == path.resource && *served == sub)
    else {
        return Err(Status::not_found(SUBRESOURCES_GROUP, &format!("{}/{sub}", path.resource), ""));
    };
    let wanted = if *verb == "get" { Method::GET } else { Method::PUT };
    if *request.method != wanted {
        return Err(Status::method_not_allowed());
    }
    match path.resource.as_str() {
        "version" => return Ok(reply(200, &json!({"gitVersion": KUBEVIRT_VERSION, "platform": "linux/amd64"}))),
        "healthz" => return Ok(reply(200, &json!({"apiserver": {"connectivity": "ok"}}))),
        "guestfs" => return Err(Status::not_found(SUBRESOURCES_GROUP, "guestfs", "")),
        "expand-vm-spec" => {
            let namespace = path.namespace.as_deref().ok_or_else(|| Status::bad_request("a namespace is required"))?;
            if !is_dns_label(namespace) {
                return Err(Status::not_found("", "namespaces", namespace));
            }
            let call = objects::Call { server: request.server, namespace, name: "" };
            return expand::given(&call, body(request)?).await;
        }
        _ => {}
    }
    let off = |name: &str| SWITCHED_OFF.iter().find(|(call, _)| *call == name).map(|(_, why)| *why);
    let profiler = path.resource.ends_with("-profiler").then_some("profiler");
    if let Some(why) = off(profiler.unwrap_or(&sub)) {
        return Err(Status::bad_request(why));
    }
    let (Some(namespace), Some(name)) = (path.namespace.as_deref(), path.name.as_deref()) else {
        return Err(Status::bad_request("a namespace and a name are required"));
    };
    // They become parts of paths, which are asked for in the server's name.
    if !is_dns_label(namespace) || !is_dns_subdomain(name) {
        return Err(Status::not_found(GROUP, &path.resource, name));
    }
    let call = objects::Call { server: request.server, namespace, name };
    match (path.resource.as_str(), sub.as_str()) {
        ("virtualmachines", "start") => lifecycle::start(&call, options(request)?).await,
        ("virtualmachines", "stop") => lifecycle::stop(&call, options(request)?).await,
        ("virtualmachines", "restart") => lifecycle::restart(&call, options(request)?).await,
        ("virtualmachines", "expand-spec") => expand::stored(&call).await,
        (_, "evacuate/cancel") => lifecycle::cancel_evacuation(&call, options(request)?).await,
        // A machine's instance bears its name.
        _ => node::forward(&call, request, &sub).await,
    }
}

/// The subresource of a path; some have two words.
fn subresource(first: &str, rest: &[String]) -> String {
    match rest {
        [second] if matches!(first, "vnc" | "sev" | "evacuate") => format!("{first}/{second}"),
        _ => first.to_owned(),
    }
}

/// The object in the body; none is the same as an empty one.
fn body(request: &LocalRequest<'_>) -> Result<Value, Status> {
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
        Err(error) => Err(unreadable(&error)),
    }
}

/// The options in the body, of which those that the call does not have are as if they were not there.
fn options<T: DeserializeOwned>(request: &LocalRequest<'_>) -> Result<T, Status> {
    serde_json::from_value(body(request)?).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Status {
    Status::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))
}

/// What all calls that change something may be told.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyOptions {
    dry_run: Option<Vec<String>>,
}

/// Whether a call is asked for nothing to happen.
///
/// # Errors
/// It is asked for that in a word that nobody knows: that must not make it happen. The sentence is the API server's, to which
/// upstream hands the word on.
fn is_dry_run(words: Option<&[String]>) -> Result<bool, Status> {
    let words = words.unwrap_or_default();
    if words.iter().all(|word| word == "All") {
        return Ok(!words.is_empty());
    }
    let fault = FieldError::not_supported("dryRun", json!(words), &["All"]);
    let fault = (fault.reason().to_owned(), fault.path.clone(), fault.message());
    Err(Status::invalid("meta.k8s.io", "PatchOptions", "", &[fault]))
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
