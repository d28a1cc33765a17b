//! From method and URL to what is asked: verb, resource, name (Kubernetes' RequestInfo).
//!
//! The same reading feeds the router and the authorizer, so that they cannot disagree.

use std::sync::Arc;

use carrack_auth::Attributes;
use http::{Method, Uri};

use crate::query::{Query, decode};
use crate::selector::FieldSelector;

/// Path and query of a request as they are read: once, whoever needs them on its way.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The query's parameters.
    pub query: Query,
    /// What is asked for; shared with who shows what goes on.
    pub info: Arc<RequestInfo>,
}

impl Asked {
    /// Reads a request's head.
    pub(crate) fn of(method: &Method, uri: &Uri) -> Asked {
        let query = Query::parse(uri.query().unwrap_or_default());
        let info = Arc::new(RequestInfo::parse(method, uri.path(), &query));
        Asked { query, info }
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The API verb (`get`, `list`, …) or, away from resources, the HTTP method in lower case.
    pub verb: &'static str,
    /// The path as it came, without the query.
    pub path: String,
    /// Set when the path names a resource of a group-version.
    pub resource: Option<ResourceRequest>,
}

/// The resource part of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceRequest {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Namespace; for a namespace object itself, its own name.
    pub namespace: Option<String>,
    /// Plural name of the resource.
    pub resource: String,
    /// Name of the object, if the path (or a `metadata.name` field selector) gives one.
    pub name: Option<String>,
    /// Subresource below the object.
    pub subresource: Option<String>,
    /// Path segments behind the subresource (`proxy` and its like).
    pub rest: Vec<String>,
    /// Whether the path ends in a slash: behind a proxy, a directory and a file are not the same.
    pub ends_in_slash: bool,
    /// Whether the name is in the path, not only in a selector.
    pub named_in_path: bool,
    /// Whether it is a namespace itself that the path names, or a part of one: not what lies in a namespace, be it a resource
    /// of the same name.
    pub is_namespace: bool,
    /// Whether others may read the path in another way: they take what is empty or encoded in it for something else, or walk
    /// upwards. What was authorized would not be what is served.
    pub is_ambiguous: bool,
}

impl RequestInfo {
    /// Reads method, path and query.
    pub fn parse(method: &Method, path: &str, query: &Query) -> RequestInfo {
        let segments: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(|s| decode(s, false)).collect();
        let parsed = match segments.first().map(String::as_str) {
            Some("api") if segments.len() >= 3 => resource_of(String::new(), segments[1].clone(), &segments[2..]),
            Some("apis") if segments.len() >= 4 => {
                resource_of(segments[1].clone(), segments[2].clone(), &segments[3..])
            }
            _ => None,
        };
        let Some((mut resource, forced_watch)) = parsed else {
            return RequestInfo { verb: http_verb(method), path: path.to_owned(), resource: None };
        };
        resource.ends_in_slash = path.ends_with('/');
        resource.is_ambiguous = is_ambiguous(path, &segments, &resource);
        let mut verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        if forced_watch {
            verb = "watch";
        } else if verb == "get" && resource.name.is_none() {
            // Who names an object in the path gets it, whatever else is asked.
            verb = if query.flag("watch") { "watch" } else { "list" };
        } else if verb == "delete" && resource.name.is_none() {
            verb = "deletecollection";
        }
        if matches!(verb, "list" | "watch" | "deletecollection") && resource.name.is_none() {
            // RBAC rules with resourceNames apply to a list that selects one name.
            resource.name = query
                .get("fieldSelector")
                .and_then(|text| FieldSelector::parse(text).ok())
                .and_then(|selector| selector.exact("metadata.name").map(str::to_owned));
        }
        RequestInfo { verb, path: path.to_owned(), resource: Some(resource) }
    }

    /// The same as authorization sees it.
    pub(crate) fn attributes<'a>(&'a self, query: &'a Query) -> Attributes<'a> {
        let Some(asked) = &self.resource else { return Attributes::path(self.verb, &self.path) };
        Attributes {
            verb: self.verb,
            group: &asked.group,
            version: &asked.version,
            resource: &asked.resource,
            subresource: asked.subresource.as_deref().unwrap_or_default(),
            name: asked.name.as_deref().unwrap_or_default(),
            namespace: asked.namespace.as_deref().unwrap_or_default(),
            path: "",
            field_selector: query.get("fieldSelector").unwrap_or_default(),
        }
    }
}

/// `segments` are those behind the group-version.
fn resource_of(group: String, version: String, segments: &[String]) -> Option<(ResourceRequest, bool)> {
    let forced_watch = segments.first().is_some_and(|s| s == "watch") && segments.len() > 1;
    let segments = if forced_watch { &segments[1..] } else { segments };
    let mut found = ResourceRequest { group, version, ..ResourceRequest::default() };
    let mut rest = segments;
    if rest.first()? == "namespaces" && rest.len() > 1 {
        let namespace_subresource = rest.len() == 3 && matches!(rest[2].as_str(), "status" | "finalize");
        found.namespace = Some(rest[1].clone());
        found.is_namespace = found.group.is_empty() && (rest.len() == 2 || namespace_subresource);
        if rest.len() > 2 && !namespace_subresource {
            rest = &rest[2..];
        }
    }
    let mut segments = rest.iter();
    found.resource = segments.next()?.clone();
    found.name = segments.next().cloned();
    found.named_in_path = found.name.is_some();
    found.subresource = segments.next().cloned();
    found.rest = segments.cloned().collect();
    Some((found, forced_watch))
}

/// Whether not everybody reads these segments of a path as they are read here. What is behind a proxy is for somebody else to
/// read.
fn is_ambiguous(path: &str, segments: &[String], found: &ResourceRequest) -> bool {
    let behind = if found.subresource.as_deref() == Some("proxy") { found.rest.len() } else { 0 };
    let own = &segments[..segments.len().saturating_sub(behind)];
    let has_empty = path.strip_prefix('/').unwrap_or(path).split('/').take(own.len()).any(str::is_empty);
    has_empty || own.iter().any(|segment| matches!(segment.as_str(), "." | "..") || segment.contains('/'))
}

fn http_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (method, url) → verb, group/version, namespace, resource, name, subresource.
    fn check(method: Method, url: &str, want: &str) {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let info = RequestInfo::parse(&method, path, &Query::parse(query));
        let got = match &info.resource {
            None => format!("{} {}", info.verb, info.path),
            Some(r) => format!(
                "{} {}/{} ns={} {} {} {}",
                info.verb,
                r.group,
                r.version,
                r.namespace.as_deref().unwrap_or("-"),
                r.resource,
                r.name.as_deref().unwrap_or("-"),
                r.subresource.as_deref().unwrap_or("-"),
            ),
        };
        assert_eq!(got, want, "{method} {url}");
    }

    #[test]
    fn paths() {
        check(Method::GET, "/version", "get /version");
        check(Method::GET, "/api/v1", "get /api/v1");
        check(Method::GET, "/apis/apps/v1", "get /apis/apps/v1");
        check(Method::GET, "/api/v1/pods", "list /v1 ns=- pods - -");
        check(Method::GET, "/api/v1/pods?watch=true", "watch /v1 ns=- pods - -");
        check(Method::GET, "/api/v1/watch/pods", "watch /v1 ns=- pods - -");
        check(Method::GET, "/api/v1/namespaces/a/pods/x?watch=true", "get /v1 ns=a pods x -");
        check(Method::GET, "/api/v1/watch/namespaces/a/pods/x", "watch /v1 ns=a pods x -");
        check(Method::GET, "/api/v1/namespaces", "list /v1 ns=- namespaces - -");
        check(Method::GET, "/api/v1/namespaces/a", "get /v1 ns=a namespaces a -");
        check(Method::PUT, "/api/v1/namespaces/a/finalize", "update /v1 ns=a namespaces a finalize");
        check(Method::GET, "/api/v1/namespaces/a/pods", "list /v1 ns=a pods - -");
        check(Method::GET, "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx", "list /v1 ns=a pods x -");
        check(Method::GET, "/api/v1/namespaces/a/pods/x/log?follow=1", "get /v1 ns=a pods x log");
        check(Method::POST, "/api/v1/namespaces/a/pods/x/binding", "create /v1 ns=a pods x binding");
        check(
            Method::DELETE,
            "/apis/apps/v1/namespaces/a/deployments",
            "deletecollection apps/v1 ns=a deployments - -",
        );
        check(Method::DELETE, "/apis/apps/v1/namespaces/a/deployments/d", "delete apps/v1 ns=a deployments d -");
    }

    #[test]
    fn namespaces_and_what_lies_in_them() {
        for (path, want) in [
            ("/api/v1/namespaces", false),
            ("/api/v1/namespaces/a", true),
            ("/api/v1/namespaces/a/", true),
            ("/api/v1/namespaces/a/status", true),
            ("/api/v1/namespaces/a/finalize", true),
            ("/api/v1/watch/namespaces/a", true),
            ("/api/v1/namespaces/a/status/x", false),
            ("/api/v1/namespaces/a/namespaces", false),
            ("/api/v1/namespaces/a/namespaces/a", false),
            ("/api/v1/namespaces/a/namespaces/a/finalize", false),
            ("/api/v1/watch/namespaces/a/namespaces/a", false),
            ("/api/v1/namespaces/a/pods/x", false),
            // Somebody's own resource of that name.
            ("/apis/sea.example.com/v1/namespaces/a", false),
            ("/apis/sea.example.com/v1/namespaces/a/status", false),
        ] {
            let resource = RequestInfo::parse(&Method::GET, path, &Query::default()).resource.expect("a resource");
            assert_eq!(resource.is_namespace, want, "{path}");
        }
    }

    #[test]
    fn paths_that_others_may_read_otherwise() {
        for (path, want) in [
            ("/api/v1/namespaces/a/pods/x", false),
            ("/api/v1/namespaces/a/pods/", false),
            ("/api/v1/namespaces/a/pods//", false),
            ("/api/v1/namespaces/%61/%70ods/x%20y", false),
            ("/api/v1/namespaces/a/pods/..x", false),
            ("//api/v1/namespaces/a/pods", true),
            ("/api//v1/namespaces/a/pods", true),
            ("/api/v1/namespaces//a/pods", true),
            ("/api/v1/namespaces/a/pods//x", true),
            ("/api/v1/namespaces/a/pods/x//log", true),
            ("/api/v1/namespaces/a%2Fpods", true),
            ("/api/v1/namespaces/a/pods/x%2flog", true),
            ("/api/v1/namespaces/a/../b/pods", true),
            ("/api/v1/namespaces/a/pods/%2E%2e", true),
            ("/api/v1/namespaces/a/./pods", true),
            ("/apis/sea.example.com/v1/namespaces/a/ships/x/sail/../../y", true),
            // What is behind a proxy has rules of its own.
            ("/api/v1/namespaces/a/pods/x/proxy/a//b%2Fc/../d", false),
            ("/api/v1/namespaces/a/pods//x/proxy/a", true),
            ("/api/v1/namespaces/a/pods/../proxy/a", true),
        ] {
            let resource = RequestInfo::parse(&Method::GET, path, &Query::default()).resource.expect("a resource");
            assert_eq!(resource.is_ambiguous, want, "{path}");
        }
    }
}
