//! From a resource request to the handler that answers it.

use bytes::Bytes;
use carrack_schema::table::Subresource;
use http::Method;

use crate::admission::flow_schema;
use crate::body::{Body, Response};
use crate::context::Cx;
use crate::object::Object;
use crate::registry::strategy::Half;
use crate::registry::{create, delete, delete_collection, options, patch, read, update, watch};
use crate::server::ApiServer;
use crate::status::Status;
use crate::{crd, reviews, sub};

/// Answers a request for a resource that exists and that the caller may use so.
pub(crate) async fn resource(
    server: &ApiServer,
    cx: &mut Cx<'_>,
    verb: &'static str,
    method: &Method,
    body: &Bytes,
) -> Result<Response, Status> {
    // What is behind a proxy may have an answer where objects have none.
    let is_proxied = cx.request.subresource.as_deref() == Some("proxy");
    if leads_nowhere(cx, is_proxied) {
        return Err(Status::no_such_path());
    }
    if *method == Method::HEAD && !is_proxied {
        return Err(Status::method_not_allowed());
    }
    if verb == "patch" && !is_proxied {
        cx.audited.sent_as_is(body);
    }
    if let Some(subresource) = cx.request.subresource.clone() {
        let known = cx.version().subresource(&subresource).ok_or_else(Status::no_such_path)?;
        let is_let_through = is_proxied && *method == Method::OPTIONS;
        if !is_let_through && !known.verbs.iter().any(|v| v == verb) {
            return Err(Status::method_not_allowed());
        }
        return subresource_request(cx, &subresource, verb, body).await;
    }
    if !cx.row.allows(verb) {
        return Err(Status::method_not_allowed());
    }
    options::check(cx, verb)?;
    if cx.row.is_virtual {
        return match (&*cx.row.group, &*cx.row.plural) {
            ("", "bindings") => sub::binding::create(cx, body, None).await,
            _ => reviews::create(server, cx, body).await,
        };
    }
    if (&*cx.row.group, &*cx.row.plural) == ("", "componentstatuses") {
        return component_status(cx, verb);
    }
    match (verb, cx.request.named_in_path) {
        _ if is_in_no_namespace(cx) && !matches!(verb, "list" | "watch") => Err(Status::method_not_allowed()),
        ("get", true) => read::get(cx).await,
        ("list", _) => read::list(cx).await,
        ("watch", _) => watch::watch(cx).await,
        ("create", false) => {
            let response = create::create(cx, body).await?;
            after_write(cx).await?;
            Ok(response)
        }
        ("update", true) => {
            let response = update::update(cx, Half::Main, body).await?;
            after_write(cx).await?;
            Ok(response)
        }
        ("patch", true) => {
            let response = patch::patch(cx, Half::Main, body).await?;
            after_write(cx).await?;
            Ok(response)
        }
        ("delete", true) => {
            let response = delete::delete(cx, body).await?;
            after_delete(cx).await?;
            Ok(response)
        }
        ("deletecollection", false) => {
            let response = delete_collection::delete_collection(cx, body).await?;
            after_delete(cx).await?;
            Ok(response)
        }
        _ => Err(Status::method_not_allowed()),
    }
}

/// Whether a request for objects that lie in namespaces names none.
fn is_in_no_namespace(cx: &Cx<'_>) -> bool {
    cx.row.namespaced && cx.namespace().is_none()
}

/// Whether upstream has no such path, whatever the method: to an object without its namespace, to one of a kind of which none are
/// kept, to something below a subresource.
fn leads_nowhere(cx: &Cx<'_>, is_proxied: bool) -> bool {
    let named = cx.request.named_in_path;
    if cx.row.is_virtual {
        return named || is_in_no_namespace(cx);
    }
    (named && is_in_no_namespace(cx)) || (!is_proxied && !cx.request.rest.is_empty())
}

/// What follows from an object that has been written.
async fn after_write(cx: &Cx<'_>) -> Result<(), Status> {
    settle_levels(cx).await?;
    crd::after_write(cx).await
}

/// What follows from objects that have been deleted.
async fn after_delete(cx: &Cx<'_>) -> Result<(), Status> {
    settle_levels(cx).await?;
    crd::after_delete(cx).await
}

async fn settle_levels(cx: &Cx<'_>) -> Result<(), Status> {
    if flow_schema::is_level(&cx.row) { flow_schema::settle(cx.server).await } else { Ok(()) }
}

async fn subresource_request(
    cx: &mut Cx<'_>,
    subresource: &str,
    verb: &'static str,
    body: &Bytes,
) -> Result<Response, Status> {
    // Whatever the verb of a connection is, it writes nothing.
    if !cx.version().subresource(subresource).is_some_and(Subresource::connects) {
        options::check(cx, verb)?;
    }
    if let Some(half) = Half::of(subresource) {
        return match verb {
            "get" => read::get(cx).await,
            "update" => update::update(cx, half, body).await,
            "patch" => patch::patch(cx, half, body).await,
            _ => Err(Status::method_not_allowed()),
        };
    }
    match (&*cx.row.group, &*cx.row.plural, subresource) {
        (_, _, "scale") => sub::scale::answer(cx, verb, body).await,
        ("", "pods", "binding") => {
            let name = cx.name().to_owned();
            sub::binding::create(cx, body, Some(name)).await
        }
        ("", "pods", "eviction") => sub::eviction::create(cx, body).await,
        ("", "serviceaccounts", "token") => sub::token::create(cx, body).await,
        ("", "pods", "log") => sub::connect::pod(cx, subresource).await,
        ("", "pods", "exec" | "attach" | "portforward") => {
            if verb == "get" {
                // A browser's way to do what others post takes the same right.
                cx.may("create", subresource).await?;
            }
            sub::connect::pod(cx, subresource).await
        }
        ("", "pods", "proxy") => sub::proxy::pod(cx).await,
        ("", "services", "proxy") => sub::proxy::service(cx).await,
        ("", "nodes", "proxy") => sub::connect::node(cx).await,
        _ => Err(Status::no_such_path()),
    }
}

/// Upstream's deprecated health of components that are not asked here any more: an empty list.
fn component_status(cx: &Cx<'_>, verb: &str) -> Result<Response, Status> {
    match verb {
        "list" => {
            let meta = crate::present::ListMeta { revision: cx.server.store.revision(), ..Default::default() };
            Ok(cx.presenter()?.list(&[], &meta))
        }
        _ => Err(cx.not_found(cx.name())),
    }
}

/// A reply with an object that is no stored one.
pub(crate) fn created(object: Object) -> Response {
    let bytes = crate::present::bytes_of(&serde_json::Value::Object(object));
    crate::body::json(201, Body::Full(bytes))
}
