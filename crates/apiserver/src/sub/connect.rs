//! Requests that a node's kubelet answers: logs, exec, attach, port-forward, proxy.
//!
//! The logic finds out where to; the shell carries the bytes, upgrades included, so that whatever
//! protocol client and kubelet speak (WebSocket, SPDY) passes through.

use carrack_engine::Time;
use carrack_schema::logs::LogLimits;
use serde_json::Value;

use crate::admission;
use crate::body::{Body, NodeTarget, Response, Scheme, json};
use crate::context::Cx;
use crate::keys;
use crate::object::{Object, at, str_at};
use crate::registry::read;
use crate::route::ResourceRequest;
use crate::status::Status;
use crate::stored;

/// The kubelet's port when its node does not say another.
const KUBELET_PORT: u16 = 10250;

/// Forwards a request for a pod to its node.
pub(crate) async fn pod(cx: &mut Cx<'_>, subresource: &str) -> Result<Response, Status> {
    let options = match subresource {
        "log" => {
            check_log_options(cx)?;
            Object::new()
        }
        _ => admission::connect(cx, subresource, options(cx, subresource)).await?,
    };
    let pod = stored::parse(&*read::fetch(cx).await?);
    let (namespace, name) = (cx.namespace().unwrap_or_default().to_owned(), cx.name().to_owned());
    let node = str_at(&pod, &["spec", "nodeName"]).to_owned();
    let path = match subresource {
        "log" => {
            let container = container(cx.query.non_empty("container"), &pod, &name)?;
            if node.is_empty() {
                // Nothing has been said yet.
                return Ok(crate::body::text(200, ""));
            }
            format!("/containerLogs/{namespace}/{name}/{container}")
        }
        "exec" | "attach" => {
            let wanted = options.get("container").and_then(Value::as_str).filter(|name| !name.is_empty());
            let container = container(wanted, &pod, &name)?;
            let ended = matches!(str_at(&pod, &["status", "phase"]), "Succeeded" | "Failed");
            if ended && subresource == "exec" {
                return Err(Status::bad_request(format!(
                    "cannot exec into a container in a completed pod; current phase is {}",
                    str_at(&pod, &["status", "phase"])
                )));
            }
            format!("/{subresource}/{namespace}/{name}/{container}")
        }
        "portforward" => format!("/portForward/{namespace}/{name}"),
        _ => return Err(Status::no_such_path()),
    };
    if node.is_empty() {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let query = if subresource == "log" { log_query(cx) } else { stream_query(&options) };
    let path_and_query = if query.is_empty() { path } else { format!("{path}?{query}") };
    target(cx, &node, path_and_query).await
}

/// How the caller connects, as `PodExecOptions` and its like.
fn options(cx: &Cx<'_>, subresource: &str) -> Object {
    let kind = cx.version().subresource(subresource).map(|sub| sub.kind.to_string()).unwrap_or_default();
    let mut options = Object::new();
    crate::convert::set_type(&mut options, "v1", &kind);
    if subresource == "proxy" {
        return options;
    }
    for name in ["stdin", "stdout", "stderr", "tty"] {
        if cx.query.flag(name) {
            options.insert(name.to_owned(), true.into());
        }
    }
    if let Some(container) = cx.query.non_empty("container") {
        options.insert("container".to_owned(), container.into());
    }
    let command: Vec<Value> = cx.query.all("command").map(Value::from).collect();
    if !command.is_empty() {
        options.insert("command".to_owned(), command.into());
    }
    let ports: Vec<Value> =
        cx.query.all("ports").filter_map(|port| port.parse::<i64>().ok()).map(Value::from).collect();
    if !ports.is_empty() {
        options.insert("ports".to_owned(), ports.into());
    }
    options
}

/// Where the caller is led to below `proxy`, with the query, if those who were added by users let it.
pub(super) async fn may_proxy(cx: &Cx<'_>) -> Result<String, Status> {
    let mut options = options(cx, "proxy");
    let own = path_of(cx.request);
    if !cx.request.rest.is_empty() || cx.request.ends_in_slash {
        options.insert("path".to_owned(), own.clone().into());
    }
    let admitted = admission::connect(cx, "proxy", options).await?;
    let path = match admitted.get("path").and_then(Value::as_str) {
        Some(path) if path != own => format!("/{}", path.trim_start_matches('/')),
        _ => own,
    };
    let query = cx.query.text();
    let path_and_query = if query.is_empty() { path } else { format!("{path}?{query}") };
    match path_and_query.parse::<http::uri::PathAndQuery>() {
        Ok(_) => Ok(path_and_query),
        Err(error) => Err(Status::bad_request(format!("admission made no path of {path_and_query:?}: {error}"))),
    }
}

/// Forwards a request below nodes/proxy.
pub(crate) async fn node(cx: &mut Cx<'_>) -> Result<Response, Status> {
    // Kubelets start commands for whoever upgrades a GET, in any pod. It takes the right that it takes at the pod;
    // upstream lets those who may read metrics so do it, too.
    if cx.verb == "get" && cx.headers.contains_key(http::header::UPGRADE) {
        cx.may("create", "proxy").await?;
    }
    let node = cx.name().to_owned();
    let path = may_proxy(cx).await?;
    read::fetch(cx).await?;
    target(cx, &node, path).await
}

/// What stands in the path behind `proxy`.
fn path_of(request: &ResourceRequest) -> String {
    let segments: Vec<String> = request.rest.iter().map(|segment| carrack_engine::query_escape(segment)).collect();
    let end = if request.ends_in_slash && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}

async fn target(cx: &Cx<'_>, node: &str, path_and_query: String) -> Result<Response, Status> {
    let (entry, _) = cx.server.store.get(&(keys::of("", "nodes", None) + node)).await?;
    let entry = entry.ok_or_else(|| Status::not_found("", "nodes", node))?;
    let object = stored::parse(&entry);
    let addresses = at(&object, &["status", "addresses"]).and_then(Value::as_array);
    let address = |kind: &str| {
        addresses?.iter().find(|a| a["type"] == kind).and_then(|a| a["address"].as_str()).map(str::to_owned)
    };
    let host = address("InternalIP")
        .or_else(|| address("ExternalIP"))
        .or_else(|| address("Hostname"))
        .ok_or_else(|| Status::unavailable(format!("no address is known of node {node:?}")))?;
    let port = at(&object, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"])
        .and_then(Value::as_u64)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
        .unwrap_or(KUBELET_PORT);
    Ok(json(200, Body::Node(NodeTarget { node: node.to_owned(), scheme: Scheme::Agent, host, port, path_and_query })))
}

/// The container that the request means.
fn container(wanted: Option<&str>, pod: &Object, pod_name: &str) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        at(pod, &["spec", list])
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|container| container["name"].as_str())
            .map(str::to_owned)
            .collect()
    };
    let (containers, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    match wanted {
        Some(wanted) => {
            if [&containers, &init, &ephemeral].iter().any(|list| list.iter().any(|name| name == wanted)) {
                Ok(wanted.to_owned())
            } else {
                Err(Status::bad_request(format!("container {wanted} is not valid for pod {pod_name}")))
            }
        }
        None => match containers.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Status::bad_request(format!("a container name must be specified for pod {pod_name}"))),
            many => {
                let mut message = format!(
                    "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                    many.join(" ")
                );
                if !init.is_empty() {
                    message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
                }
                Err(Status::bad_request(message))
            }
        },
    }
}

/// Refuses what a log cannot be asked for with, whether there is a log or not.
fn check_log_options(cx: &Cx<'_>) -> Result<(), Status> {
    let unreadable = |name: &str, text: &str, what: &str| {
        Status::bad_request(format!("invalid value {text:?} of parameter {name}: {what} is needed"))
    };
    let number = |name: &str| {
        let read = |text: &str| text.parse::<i64>().map_err(|_| unreadable(name, text, "a number"));
        cx.query.non_empty(name).map(read).transpose()
    };
    let since_time = cx.query.non_empty("sinceTime");
    if let Some(text) = since_time.filter(|text| Time::parse(text).is_none()) {
        return Err(unreadable("sinceTime", text, "an RFC 3339 time"));
    }
    let limits = LogLimits {
        tail_lines: number("tailLines")?,
        limit_bytes: number("limitBytes")?,
        since_s: number("sinceSeconds")?,
        has_since_time: since_time.is_some(),
        stream: cx.query.non_empty("stream"),
    };
    let faults = limits.faults();
    if faults.is_empty() { Ok(()) } else { Err(Status::faulty("", "PodLogOptions", cx.name(), &faults)) }
}

/// The query of logs, as the kubelet reads it.
fn log_query(cx: &Cx<'_>) -> String {
    let escape = carrack_engine::query_escape;
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"]
        .into_iter()
        .filter_map(|name| Some(format!("{name}={}", escape(cx.query.non_empty(name)?))))
        .collect::<Vec<_>>()
        .join("&")
}

/// The query of exec, attach and port-forward, whose parameters have older names with the kubelet.
fn stream_query(options: &Object) -> String {
    let flags = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
    let set = flags.iter().filter(|(name, _)| options.get(*name) == Some(&Value::Bool(true)));
    let list = |name: &str| options.get(name).and_then(Value::as_array).cloned().unwrap_or_default().into_iter();
    let commands =
        list("command").filter_map(|word| Some(format!("command={}", carrack_engine::query_escape(word.as_str()?))));
    let ports = list("ports").filter_map(|port| Some(format!("port={}", port.as_i64()?)));
    set.map(|(_, name)| format!("{name}=1")).chain(commands).chain(ports).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::query::Query;
    use crate::route::RequestInfo;

    #[test]
    fn what_is_behind_a_proxy_keeps_its_last_slash() {
        for (path, want) in [
            ("/api/v1/namespaces/a/services/s/proxy", "/"),
            ("/api/v1/namespaces/a/services/s/proxy/", "/"),
            ("/api/v1/namespaces/a/services/s/proxy/ui", "/ui"),
            ("/api/v1/namespaces/a/services/s/proxy/ui/a%20b/", "/ui/a%20b/"),
        ] {
            let info = RequestInfo::parse(&Method::GET, path, &Query::default());
            assert_eq!(info.resource.map(|resource| path_of(&resource)).as_deref(), Some(want), "{path}");
        }
    }
}
