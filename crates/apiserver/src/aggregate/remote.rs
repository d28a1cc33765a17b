//! Requests that another server answers.

use std::sync::Arc;

use bytes::Bytes;
use carrack_auth::Caller;
use carrack_schema::openapi;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use super::Remote;
use super::told::Told;
use crate::audit::AUDIT_ID;
use crate::body::{Body, Response};
use crate::call::{Call, Trust};
use crate::etag;
use crate::locate::{self, Place};
use crate::server::Inner;
use crate::status::Status;

/// How long a request that is no stream may take, in milliseconds.
const TIMEOUT_MS: u64 = 60_000;
/// How long discovery may take: others wait for it.
const DISCOVERY_TIMEOUT_MS: u64 = 5_000;
const MAX_REPLY_BYTES: usize = 64 << 20;

/// The call that carries a request on.
pub(super) async fn call(
    server: &Inner,
    remote: &Remote,
    path_and_query: &str,
    timeout_ms: u64,
) -> Result<Call, Status> {
    let located =
        locate::service(&*server.store, &*server.env, &remote.namespace, &remote.service, remote.port).await?;
    // Who is outside the cluster is asked under the name that they have there.
    let (host, place) = match located.place {
        Place::External(name) => (name, None),
        Place::Endpoint(address) => (located.server_name.clone(), Some(address.to_string())),
    };
    Ok(Call {
        method: Method::GET,
        server_name: located.server_name,
        host,
        place,
        port: located.port,
        path_and_query: path_and_query.to_owned(),
        trust: match (&remote.ca_pem, remote.insecure) {
            (_, true) => Trust::Anybody,
            (Some(pem), _) => Trust::Authorities(pem.clone()),
            (None, _) => Trust::Own,
        },
        credentials: None,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout_ms,
        max_reply_bytes: MAX_REPLY_BYTES,
    })
}

/// Answers a request by carrying it on; the shell does that, streams and upgrades included.
pub(crate) async fn forward(
    server: &Inner,
    remote: &Remote,
    (method, path_and_query, headers, body): (&Method, &str, &HeaderMap, Bytes),
    caller: &Caller,
    audit_id: &str,
) -> Result<Response, Status> {
    let mut call = call(server, remote, path_and_query, TIMEOUT_MS).await?;
    call.method = method.clone();
    call.body = body;
    for name in ["accept", "content-type", "accept-encoding", "user-agent", "if-none-match"] {
        if let Some(value) = headers.get(name) {
            call.headers.insert(HeaderName::from_static(name), value.clone());
        }
    }
    // Both servers note it under one name.
    let audit_id = HeaderValue::from_str(audit_id).map_err(Status::internal)?;
    call.headers.insert(AUDIT_ID, audit_id.clone());
    identify(&mut call.headers, caller)?;
    let mut response = Response::new(Body::Remote(Box::new(call)));
    response.headers_mut().insert(AUDIT_ID, audit_id);
    Ok(response)
}

/// Says who asks, in the way that servers behind this one are configured for.
fn identify(headers: &mut HeaderMap, caller: &Caller) -> Result<(), Status> {
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).map_err(Status::internal);
    headers.insert("x-remote-user", value(&caller.user)?);
    if !caller.uid.is_empty() {
        headers.insert("x-remote-uid", value(&caller.uid)?);
    }
    for group in &caller.groups {
        headers.append("x-remote-group", value(group)?);
    }
    for (key, values) in &caller.extra {
        let escaped: String = key
            .bytes()
            .map(|byte| {
                let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
                if plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
            })
            .collect();
        let name = HeaderName::from_bytes(format!("x-remote-extra-{escaped}").as_bytes()).map_err(Status::internal)?;
        for one in values {
            headers.append(name.clone(), value(one)?);
        }
    }
    Ok(())
}

/// Documents of other servers that discovery and OpenAPI are made of.
#[derive(Default)]
pub(crate) struct Documents {
    /// `APIResource` objects.
    resources: Told<Arc<Vec<Value>>>,
    /// Hashes of the documents of OpenAPI; none where a server has none.
    hashes: Told<Option<String>>,
    /// What they say in OpenAPI's older form, which has one document for everything.
    parts: Told<Arc<Part>>,
}

/// A part of the document of OpenAPI v2.
pub(crate) struct Part {
    pub said: Value,
    /// Changes when it says something else.
    pub hash: String,
}

impl Documents {
    /// `APIResource` objects of a remote group and version; none when it does not answer.
    pub(crate) async fn resources(&self, server: &Inner, remote: &Remote) -> Option<Arc<Vec<Value>>> {
        let asking = async { fetch(server, remote).await.map(Arc::new) };
        let word = self.resources.get(remote, &*server.env, asking).await;
        word.last.filter(|_| word.is_current)
    }

    /// Where the index of OpenAPI has the document of a remote group and version, and the hash of what that says,
    /// which is for its own server to tell: clients keep a document for as long as its hash is the same. None where
    /// there is no such document. Of a server that is silent, what it said last (`updateAPIServiceSpecLocked` of
    /// kube-aggregator).
    pub(crate) async fn openapi(&self, server: &Inner, remote: &Remote) -> Option<(String, String)> {
        let path = format!("apis/{}/{}", remote.group, remote.version);
        let asking = async {
            let hash = |index: Value| {
                index["paths"][path.as_str()]["serverRelativeURL"].as_str().map(|url| hash_in(url).to_owned())
            };
            ask(server, remote, "/openapi/v3").await.map(hash)
        };
        let word = self.hashes.get(remote, &*server.env, asking).await;
        word.last.flatten().map(|hash| (path, hash))
    }

    /// What the server of a remote group and version says of it in its document of OpenAPI v2; none where it never
    /// said anything.
    pub(crate) async fn v2_part(&self, server: &Inner, remote: &Remote) -> Option<Arc<Part>> {
        let asking = async {
            let part = |document: Value| {
                let said = openapi::v2_part(document, &remote.group, &remote.version);
                let hash = etag::of(said.to_string().as_bytes());
                Arc::new(Part { said, hash })
            };
            ask(server, remote, "/openapi/v2").await.map(part)
        };
        self.parts.get(remote, &*server.env, asking).await.last
    }
}

/// The hash in the URL of a document.
fn hash_in(url: &str) -> &str {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').find_map(|pair| pair.strip_prefix("hash=")).unwrap_or_default()
}

/// Asks the other server for its resources.
pub(super) async fn fetch(server: &Inner, remote: &Remote) -> Result<Vec<Value>, String> {
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let list = ask(server, remote, &path).await?;
    // What is no list of resources is no proof that there are none.
    match list["resources"].as_array() {
        Some(resources) => Ok(resources.clone()),
        None => Err(format!("{path}: the answer is no list of resources")),
    }
}

/// Asks the other server for a document.
async fn ask(server: &Inner, remote: &Remote, path: &str) -> Result<Value, String> {
    let mut call = call(server, remote, path, DISCOVERY_TIMEOUT_MS).await.map_err(|status| status.message)?;
    call.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    identify(&mut call.headers, &Caller::apiserver()).map_err(|status| status.message)?;
    let url = call.url();
    let answer =
        server.env.call(call).await.map_err(|error| format!("failing or missing response from {url}: {error}"))?;
    if !(200..300).contains(&answer.code) {
        return Err(format!("failing or missing response from {url}: bad status from {url}: {}", answer.code));
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("{url}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_documents() {
        for (url, hash) in [
            ("/openapi/v3/apis/a/v1?hash=1F", "1F"),
            ("/openapi/v3/apis/a/v1?x=y&hash=1F", "1F"),
            ("/openapi/v3/apis/a/v1?myhash=1F", ""),
            ("/openapi/v3/apis/a/v1", ""),
        ] {
            assert_eq!(hash_in(url), hash, "{url}");
        }
    }
}
