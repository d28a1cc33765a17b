//! Paths that are no resources: discovery, OpenAPI, health, version, metrics.

use carrack_auth::token;
use http::header::HeaderMap;
use http::{HeaderValue, Method};
use serde_json::json;

use crate::body::{self, Body, Response, typed};
use crate::present::bytes_of;
use crate::query::Query;
use crate::server::ApiServer;
use crate::status::Status;
use crate::{discovery, health, openapi};

/// What `/version` says; clients compare the minor version.
const MAJOR: &str = "1";
const MINOR: &str = "36";
/// The Kubernetes release whose API this is, and which server it is: the same text as nodes give for
/// their kubelet, so that no client sees a skew where there is none.
const GIT_VERSION: &str = concat!("v1.36.1+carrack.", env!("CARGO_PKG_VERSION"));

/// Answers a request that has been authorized.
pub(crate) async fn answer(
    server: &ApiServer,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Status> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    let trimmed = path.trim_end_matches('/');
    match trimmed {
        "/version" => return Ok(body::value(200, &version())),
        "/metrics" => {
            let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            return Ok(typed(200, content_type, Body::Full(server.inner.metrics.text().into())));
        }
        "" => return paths(server).await,
        "/.well-known/openid-configuration" | "/openid/v1/jwks" => return issuer(server, trimmed),
        _ => {}
    }
    if let Some(rest) = ["/healthz", "/livez", "/readyz"].iter().find_map(|p| trimmed.strip_prefix(p)) {
        return health::answer(server, &trimmed[1..trimmed.len() - rest.len()], rest, query);
    }
    if trimmed.starts_with("/openapi/") {
        return openapi::answer(server, trimmed, headers).await;
    }
    discovery::answer(server, trimmed, headers).await
}

fn version() -> serde_json::Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

/// What others read to verify service account tokens themselves.
/// <https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery>
fn issuer(server: &ApiServer, path: &str) -> Result<Response, Status> {
    let issuer = server.inner.issuer.as_ref().ok_or_else(Status::no_such_path)?;
    if path != "/openid/v1/jwks" {
        return Ok(body::value(200, &token::openid_configuration(issuer.name())));
    }
    let keys = token::jwks(std::slice::from_ref(issuer.key().verifying_key()));
    Ok(typed(200, HeaderValue::from_static("application/jwk-set+json"), Body::Full(bytes_of(&keys))))
}

async fn paths(server: &ApiServer) -> Result<Response, Status> {
    let catalog = server.catalog().await?;
    let mut all = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned(), "/apis/".to_owned()];
    for (group, versions) in catalog.groups() {
        if !group.is_empty() {
            all.push(format!("/apis/{group}"));
            all.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
        }
    }
    for path in ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"] {
        all.push(path.to_owned());
    }
    Ok(body::value(200, &json!({"paths": all})))
}
