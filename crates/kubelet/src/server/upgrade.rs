//! Joins a client to the runtime's streaming server: exec, attach and port-forward.
//!
//! ```text
//!   client ──TLS──▶ this server ──TCP──▶ the URL that the runtime gave
//!     request, Upgrade headers      the same
//!     ◀── the answer's head ◀────── 101, or why not
//!     ◀═════════ bytes, both ways, until both sides have ended ═════════▶
//! ```
//!
//! Nothing is understood on the way: SPDY/3.1 and the WebSocket protocols that the runtime knows pass
//! alike, and which one is spoken is between the two. A client whose protocol the runtime does not
//! know (containerd 1.6 and `v5.channel.k8s.io`) gets the runtime's refusal, and tries its next one.

use bytes::Bytes;
use carrack_auth::relay;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, SEC_WEBSOCKET_PROTOCOL, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::connection::Session;
use super::reply::{Refusal, Reply};

/// Begin of a WebSocket protocol name that is a bearer token for the API server.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Refuses a request that is no upgrade, before the runtime is bothered.
pub(super) fn require(request: &Request<Incoming>) -> Result<(), Refusal> {
    if request.headers().contains_key(UPGRADE) { Ok(()) } else { Err(Refusal::bad("Upgrade request required")) }
}

/// Carries the request to `url`, and the answer back.
pub(super) async fn pass(
    session: &Session,
    mut request: Request<Incoming>,
    url: &str,
) -> Result<Response<Reply>, Refusal> {
    let failed = |what: &str, error: &dyn std::error::Error| {
        let text = format!("error dialing backend: {what}: {}", carrack_engine::causes(error));
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let target = Target::of(url)?;
    let place = session.stream_place()?;
    let settings = &session.shared.settings;
    let connecting = tokio::time::timeout(settings.connect, TcpStream::connect(&target.authority));
    let stream = match connecting.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed("connect", &error)),
        Err(error) => return Err(failed("connect", &error)),
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed("handshake", &error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to the runtime's streaming server");
        }
    });
    let client = hyper::upgrade::on(&mut request);
    let mut onward = Request::new(Empty::<Bytes>::new());
    *onward.method_mut() = request.method().clone();
    *onward.uri_mut() = target.path_and_query;
    *onward.headers_mut() = onward_headers(request.headers(), target.host);
    let mut response = match tokio::time::timeout(settings.answer, sender.send_request(onward)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(failed("request", &error)),
        Err(error) => return Err(failed("request", &error)),
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let runtime = hyper::upgrade::on(&mut response);
        session.goes_on(place);
        tokio::spawn(join(session.clone(), client, runtime));
        let mut reply = Response::new(Reply::Whole(Bytes::new()));
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *reply.headers_mut() = response.headers().clone();
        return Ok(reply);
    }
    let (mut head, body) = response.into_parts();
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        head.headers.remove(name);
    }
    let mut reply = Response::new(Reply::Relayed(body, sender));
    *reply.status_mut() = head.status;
    *reply.headers_mut() = head.headers;
    Ok(reply)
}

/// Where a streaming URL leads.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    authority: String,
    host: HeaderValue,
    path_and_query: Uri,
}

impl Target {
    fn of(url: &str) -> Result<Self, Refusal> {
        let unusable =
            || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the runtime gave an unusable URL: {url:?}"));
        let uri: Uri = url.parse().map_err(|_| unusable())?;
        if uri.scheme_str() != Some("http") {
            return Err(unusable());
        }
        let host = uri.host().ok_or_else(unusable)?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        Ok(Self {
            host: HeaderValue::from_str(&authority).map_err(|_| unusable())?,
            authority,
            path_and_query: uri.path_and_query().map_or("/", |p| p.as_str()).parse().map_err(|_| unusable())?,
        })
    }
}

/// The request's headers without those that belong to its own connection, and without credentials:
/// they were for the API server or for us.
fn onward_headers(headers: &HeaderMap, host: HeaderValue) -> HeaderMap {
    let kept = |name: &HeaderName| {
        !matches!(*name, HOST | CONTENT_LENGTH | TRANSFER_ENCODING | AUTHORIZATION | COOKIE | SEC_WEBSOCKET_PROTOCOL)
            && !matches!(name.as_str(), "keep-alive" | "te" | "trailer" | "proxy-authorization" | "expect")
            && !name.as_str().starts_with("impersonate-")
            && !name.as_str().starts_with("x-remote-")
    };
    let mut out: HeaderMap =
        headers.iter().filter(|(name, _)| kept(name)).map(|(name, value)| (name.clone(), value.clone())).collect();
    let protocols: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty() && !protocol.starts_with(TOKEN_PROTOCOL))
        .collect();
    if let Ok(value) = HeaderValue::from_str(&protocols.join(", "))
        && !protocols.is_empty()
    {
        out.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
    out.insert(HOST, host);
    out
}

/// Carries bytes both ways until both sides have ended, or the server ends.
async fn join(session: Session, client: OnUpgrade, runtime: OnUpgrade) {
    let (client, runtime) = match tokio::try_join!(client, runtime) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "a connection did not upgrade");
            return;
        }
    };
    let ended = session.shared.ended();
    if let Err(error) = relay::join(TokioIo::new(client), TokioIo::new(runtime), ended).await {
        tracing::debug!(%error, "an upgraded connection broke off");
    }
    // The place among the streams is free from here on.
    drop(session);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for (url, expected) in [
            ("http://127.0.0.1:35321/exec/abc", Some(("127.0.0.1:35321", "/exec/abc"))),
            ("http://[::1]:1/attach/x?y=z", Some(("[::1]:1", "/attach/x?y=z"))),
            ("http://localhost", Some(("localhost:80", "/"))),
            ("https://127.0.0.1:1/exec/abc", None),
            ("/exec/abc", None),
            ("", None),
        ] {
            let target = Target::of(url).ok();
            let found = target.as_ref().map(|t| (t.authority.as_str(), t.path_and_query.to_string()));
            assert_eq!(found, expected.map(|(authority, path)| (authority, path.to_owned())), "{url}");
        }
    }

    #[test]
    fn credentials_stay_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "node:10250"),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("impersonate-user", "bob"),
            ("x-remote-user", "bob"),
            ("sec-websocket-key", "key"),
            ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let onward = onward_headers(&headers, HeaderValue::from_static("127.0.0.1:1"));
        let mut lines: Vec<String> =
            onward.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "connection: Upgrade",
                "host: 127.0.0.1:1",
                "sec-websocket-key: key",
                "sec-websocket-protocol: v4.channel.k8s.io",
                "upgrade: websocket",
                "x-stream-protocol-version: v3.channel.k8s.io",
                "x-stream-protocol-version: v4.channel.k8s.io",
            ]
        );
    }
}
