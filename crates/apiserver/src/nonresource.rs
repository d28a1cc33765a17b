//! Paths that are no resources: discovery, OpenAPI, health, version, metrics.

use std::sync::Arc;

use carrack_auth::token;
use carrack_engine::Time;
pub(crate) use carrack_engine::version::{GIT_VERSION, MAJOR, MINOR};
use carrack_engine::zpages::statusz::Program;
use carrack_engine::zpages::{Page, flagz, statusz};
use carrack_store::Range;
use futures::StreamExt as _;
use futures::future::ready;
use http::header::HeaderMap;
use http::{HeaderValue, Method};
use serde_json::json;

use crate::body::{self, Body, Response, text as text_body, typed};
use crate::flow::dump::{self, Dump};
use crate::metrics::{Now, ObjectLabels};
use crate::object::at;
use crate::present::bytes_of;
use crate::query::Query;
use crate::server::ApiServer;
use crate::status::Status;
use crate::{aggregate, discovery, health, keys, openapi, stored};

/// What this server is called in upstream's pages.
const COMPONENT: &str = "kube-apiserver";

/// The media type of metrics.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long a backup may take.
const BACKUP_TIMEOUT_S: u64 = 3600;

/// Answers a request that has been authorized.
pub(crate) async fn answer(
    server: &ApiServer,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    query: &Query,
    body: &[u8],
) -> Result<Response, Status> {
    let trimmed = path.trim_end_matches('/');
    if (trimmed, method) == ("/debug/flags/v", &Method::PUT) {
        return verbosity(server, body);
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    match trimmed {
        "/debug/store/backup" => return Ok(backup(server)),
        "/version" => return Ok(body::value(200, &version())),
        "/metrics/slis" => {
            let text = server.inner.metrics.health.text(&health::told(server).await);
            return Ok(typed(200, HeaderValue::from_static(METRICS), Body::Full(text.into())));
        }
        "/metrics" => {
            let now = Now {
                objects: objects(server).await?,
                size_bytes: server.inner.store.size_bytes(),
                checks: health::told(server).await,
                api_services: api_services(server).await?,
            };
            let text = server.inner.metrics.text(&now, server.inner.env.process());
            return Ok(typed(200, HeaderValue::from_static(METRICS), Body::Full(text.into())));
        }
        statusz::PATH => return status_page(server, headers),
        flagz::PATH => return Ok(page(flagz::page(COMPONENT, &server.inner.flags, headers)?)),
        "" => return paths(server).await,
        "/.well-known/openid-configuration" | "/openid/v1/jwks" => return issuer(server, trimmed),
        _ => {}
    }
    if let Some(dump) = Dump::of(trimmed, query) {
        let gate = server.gate().ok_or_else(Status::no_such_path)?;
        return Ok(text_body(200, dump::text(dump, &gate.pictures())));
    }
    if let Some((endpoint, rest)) = health::page(trimmed) {
        return health::answer(server, endpoint, rest, query).await;
    }
    if trimmed.starts_with("/openapi/") {
        return openapi::answer(server, trimmed, headers).await;
    }
    discovery::answer(server, trimmed, headers).await
}

/// Which program this is, and since when it runs.
fn status_page(server: &ApiServer, headers: &HeaderMap) -> Result<Response, Status> {
    let env = &*server.inner.env;
    let program = Program {
        component: COMPONENT,
        started: env.process().and_then(|process| process.started()).map(Time::from),
        paths: &[flagz::PATH, "/healthz", "/livez", "/metrics", "/readyz", statusz::PATH, "/version"],
    };
    Ok(page(program.page(env.now().into(), headers)?))
}

fn page((media_type, text): Page) -> Response {
    typed(200, HeaderValue::from_static(media_type), Body::Full(text.into()))
}

/// All objects at one revision, for whoever may read everything.
fn backup(server: &ApiServer) -> Response {
    let parts = carrack_store::backup::stream(Arc::clone(&server.inner.store));
    // A file that ends early is told from a whole one by its head.
    let lines = parts
        .map(|part| part.inspect_err(|error| tracing::warn!(%error, "a backup breaks off")).ok())
        .take_while(|part| ready(part.is_some()))
        .filter_map(ready);
    let body = Body::Watch { lines: Box::pin(lines), timeout_s: BACKUP_TIMEOUT_S };
    typed(200, HeaderValue::from_static("application/octet-stream"), body)
}

/// Sets how much is logged, as upstream's components let it be set: the body is a number.
fn verbosity(server: &ApiServer, body: &[u8]) -> Result<Response, Status> {
    let text = String::from_utf8_lossy(&body[..body.len().min(64)]);
    let level = text.trim().parse::<u8>().map_err(|_| {
        Status::bad_request(format!("failed set klog.logging.verbosity to {}: a number is needed", text.trim()))
    })?;
    server.inner.env.set_verbosity(level).map_err(Status::internal)?;
    Ok(text_body(200, format!("successfully set klog.logging.verbosity to {level}\n")))
}

/// How many objects of each resource are stored.
async fn objects(server: &ApiServer) -> Result<Vec<(ObjectLabels, usize)>, Status> {
    let (catalog, store) = (server.catalog().await?, &server.inner.store);
    let mut all = Vec::new();
    for row in catalog.rows().iter().filter(|row| (&row.group, &row.plural) == (&row.storage.0, &row.storage.1)) {
        // Whatever is at hand is new enough to be counted.
        let range = Range { prefix: keys::prefix(row, None), after: None, limit: 1, at: Some(store.revision()) };
        let Ok(page) = store.range(range).await else { continue };
        let labels = ObjectLabels { group: row.group.to_string(), resource: row.plural.to_string() };
        all.push((labels, page.entries.len() + page.remaining));
    }
    Ok(all)
}

/// The APIServices, and whether their servers answer.
async fn api_services(server: &ApiServer) -> Result<Vec<(String, bool)>, Status> {
    let prefix = keys::of(aggregate::GROUP, aggregate::API_SERVICES, None);
    let page = server.inner.store.range(Range { prefix, after: None, limit: 0, at: None }).await?;
    let told = |entry: &std::sync::Arc<carrack_store::Entry>| {
        let object = stored::parse(entry);
        let conditions = at(&object, &["status", "conditions"]).and_then(serde_json::Value::as_array);
        let is_there = conditions.into_iter().flatten().any(|c| c["type"] == "Available" && c["status"] == "True");
        (stored::memo(entry).name.to_string(), is_there)
    };
    Ok(page.entries.iter().map(told).collect())
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
        let own = server.inner.network.advertise;
        return Ok(body::value(200, &token::openid_configuration(issuer.name(), own)));
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
    for path in [
        flagz::PATH,
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        statusz::PATH,
        "/version",
    ] {
        all.push(path.to_owned());
    }
    Ok(body::value(200, &json!({"paths": all})))
}
