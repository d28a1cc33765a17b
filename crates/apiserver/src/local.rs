//! API groups that are served by code in the process, where upstream would aggregate another server.
//!
//! The pipeline has authenticated and authorized the request (with the resource, subresource and
//! verb of its path) before the code sees it.

use bytes::Bytes;
use carrack_auth::Caller;
use futures::future::BoxFuture;
use http::{HeaderMap, Method};
use serde_json::Value;

use crate::body::Response;
use crate::query::Query;
use crate::route::{RequestInfo, ResourceRequest};
use crate::server::ApiServer;

/// A group-version that code serves, as discovery tells it.
#[derive(Clone, Debug)]
pub struct LocalGroupVersion {
    /// API group.
    pub group: String,
    /// Version; the first of a group is the preferred one.
    pub version: String,
    /// `APIResource` objects: name, singularName, namespaced, kind, verbs.
    pub resources: Vec<Value>,
}

/// A request for such a group.
pub struct LocalRequest<'a> {
    /// The server, for requests of the code's own (see [`ApiServer::handle`]).
    pub server: &'a ApiServer,
    /// Verb and path.
    pub info: &'a RequestInfo,
    /// The resource part of the path.
    pub resource: &'a ResourceRequest,
    /// HTTP method.
    pub method: &'a Method,
    /// Query parameters.
    pub query: &'a Query,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// The body.
    pub body: Bytes,
    /// Who asks.
    pub caller: Caller,
}

/// Serves one or more group-versions.
pub trait LocalApi: Send + Sync {
    /// The group-versions, for discovery and routing.
    fn group_versions(&self) -> &[LocalGroupVersion];
    /// Answers a request.
    fn handle<'a>(&'a self, request: LocalRequest<'a>) -> BoxFuture<'a, Response>;
}
