//! Carries requests on to a node's kubelet, and joins the two connections when it upgrades.
//!
//! Nothing is understood on the way: exec speaks WebSocket or SPDY between client and kubelet. What kubelets do not know is
//! [`translate`]d.

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_auth::authn::WEBSOCKET_TOKEN_PREFIX;
use carrack_auth::relay;
use carrack_auth::tls::{self, Trust};
use carrack_engine::{ApiError, EventStream, lines};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION,
    SEC_WEBSOCKET_PROTOCOL, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Shared;
use super::handover::Handover;
use super::reply::Reply;
use super::sockets;
use super::translate::Translation;
use super::unreached::{self, broken_off};
use crate::accept::listed;
use crate::audit::Source;
use crate::body::{NodeTarget, Scheme};
use crate::call::Call;
use crate::env::Env;
use crate::route::{Asked, ResourceRequest};
use crate::status::Status;

/// What those behind are told of a request (`k8s.io/apimachinery/pkg/util/proxy`): through whom it came, and what it asked for
/// here. Of upgrades they are told the first alone.
const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_URI: &str = "x-forwarded-uri";
const FORWARDED_HOST: &str = "x-forwarded-host";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Longest error text that is taken from a kubelet, in bytes.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// A connection to a kubelet.
pub trait NodeIo: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> NodeIo for T {}

/// Connects to kubelets.
pub trait NodeProxy: Send + Sync {
    /// A connection on which the target's kubelet speaks HTTP/1.1.
    fn connect(&self, target: &NodeTarget) -> BoxFuture<'static, std::io::Result<Box<dyn NodeIo>>>;
}

/// Connects over TCP and TLS, with the API server's client certificate towards agents.
pub struct TlsNodeProxy {
    agents: TlsConnector,
    /// For what pods and services serve, whose certificates nobody here can judge.
    anybody: Option<TlsConnector>,
}

impl TlsNodeProxy {
    /// With this TLS configuration towards kubelets and the other agents of nodes, which holds the client certificate and whom
    /// to trust.
    pub fn new(tls: ClientConfig) -> TlsNodeProxy {
        TlsNodeProxy { agents: connector(tls), anybody: tls::client_config(Trust::Anybody, None).ok().map(connector) }
    }
}

fn connector(mut tls: ClientConfig) -> TlsConnector {
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(tls))
}

impl NodeProxy for TlsNodeProxy {
    fn connect(&self, target: &NodeTarget) -> BoxFuture<'static, std::io::Result<Box<dyn NodeIo>>> {
        let connector = match target.scheme {
            Scheme::Agent => Some(self.agents.clone()),
            Scheme::Https if self.anybody.is_none() => {
                return Box::pin(async { Err(std::io::Error::other("HTTPS is not to be had here")) });
            }
            Scheme::Https => self.anybody.clone(),
            Scheme::Http => None,
        };
        let target = target.clone();
        Box::pin(async move {
            let (host, port) = (target.host.as_str(), target.port);
            let dialled = |error: std::io::Error| std::io::Error::other(unreached::dialled(host, port, &error));
            let stream = TcpStream::connect((host, port)).await.map_err(dialled)?;
            sockets::prepare(&stream, sockets::SERVER_SILENCE).map_err(dialled)?;
            let Some(connector) = connector else { return Ok(Box::new(stream) as Box<dyn NodeIo>) };
            // A kubelet's certificate carries its node's name; the address it is reached at may change.
            let name = if target.node.is_empty() { &target.host } else { &target.node };
            let name = ServerName::try_from(name.clone())
                .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidInput, error))?;
            let refused = |error: std::io::Error| std::io::Error::other(unreached::unsecured(host, port, &error));
            let stream = connector.connect(name, stream).await.map_err(refused)?;
            Ok(Box::new(stream) as Box<dyn NodeIo>)
        })
    }
}

/// What goes on of a client's request.
pub(super) struct Forwarded {
    method: Method,
    headers: HeaderMap,
    body: Bytes,
    upgrades: bool,
    is_log: bool,
    /// The first byte of the reply may be long in coming: nothing has been said yet.
    follows: bool,
    /// The path up to `proxy`, below which the client sees what it is carried to.
    below: Option<String>,
    /// Whether the client asks a pod for exec, attach or port-forward.
    streams: bool,
    /// Whether it goes to the server of another API, which may not send the client elsewhere.
    is_remote: bool,
    /// What the upgraded connections have between them.
    translation: Option<Translation>,
}

impl Forwarded {
    pub(super) fn of(parts: &request::Parts, asked: &Asked, body: &Bytes) -> Forwarded {
        let upgrades = parts.headers.contains_key(UPGRADE);
        let mut headers = parts.headers.clone();
        let named: Vec<HeaderName> = headers
            .keys()
            .filter(|name| {
                let hop = matches!(**name, HOST | CONTENT_LENGTH | TRANSFER_ENCODING | AUTHORIZATION)
                    || matches!(name.as_str(), "keep-alive" | "te" | "trailer" | "proxy-authorization" | "cookie")
                    || name.as_str().starts_with("impersonate-")
                    || name.as_str().starts_with("x-remote-");
                hop || (!upgrades && matches!(**name, CONNECTION | UPGRADE))
            })
            .cloned()
            .collect();
        for name in named {
            headers.remove(name);
        }
        if upgrades {
            // What else a client names there, those behind would drop on its word: who it is, say.
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        }
        without_tokens(&mut headers);
        let path = parts.uri.path();
        if let Some(Source(address)) = parts.extensions.get::<Source>() {
            came_from(&mut headers, *address);
        }
        if let (false, Ok(path)) = (upgrades, HeaderValue::from_str(path)) {
            headers.insert(FORWARDED_URI, path);
        }
        let resource = asked.info.resource.as_ref();
        Forwarded {
            method: parts.method.clone(),
            headers,
            body: body.clone(),
            upgrades,
            is_log: false,
            follows: asked.query.flag("follow"),
            below: resource.and_then(|resource| proxied_below(path, resource)),
            streams: resource.is_some_and(is_stream),
            is_remote: false,
            translation: None,
        }
    }
}

/// Says where a request came from, after those that it came through before (`net/http/httputil` of Go).
fn came_from(headers: &mut HeaderMap, address: IpAddr) {
    let before = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok().map(str::to_owned));
    let way: Vec<String> = before.chain([address.to_string()]).collect();
    // What were headers are one again.
    if let Ok(way) = HeaderValue::from_str(&way.join(", ")) {
        headers.insert(FORWARDED_FOR, way);
    }
}

/// A reply of somebody else with what this server says of the request: its event, and what gave it a seat. What is in
/// the reply is the other's to say; where the connection is another protocol's from now on, nothing is added.
pub(super) fn marked(mut reply: Response<Reply>, own: &HeaderMap) -> Response<Reply> {
    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
        return reply;
    }
    let is_added = |name: &HeaderName| *name != CONTENT_TYPE && !reply.headers().contains_key(name);
    let added: Vec<HeaderName> = own.keys().filter(|name| is_added(name)).cloned().collect();
    for name in added {
        for value in own.get_all(&name) {
            reply.headers_mut().append(name.clone(), value.clone());
        }
    }
    reply
}

/// Whether it is a pod's streams that a request is for.
fn is_stream(resource: &ResourceRequest) -> bool {
    resource.resource == "pods" && matches!(resource.subresource.as_deref(), Some("exec" | "attach" | "portforward"))
}

/// The path of a request to a `proxy` subresource, without what comes behind that.
fn proxied_below(path: &str, resource: &ResourceRequest) -> Option<String> {
    if resource.subresource.as_deref() != Some("proxy") {
        return None;
    }
    let mut path = path.trim_end_matches('/');
    for _ in &resource.rest {
        path = path.rsplit_once('/')?.0.trim_end_matches('/');
    }
    Some(path.to_owned())
}

/// Where a redirect leads from the client's side: what names a place on the same server is below the proxy, too. None for what
/// leads elsewhere, or is relative already. Upstream: `k8s.io/apimachinery/pkg/util/proxy`.
fn relocated(location: &str, host: &str, below: &str) -> Option<String> {
    let path = match location.split_once("://") {
        Some((_, rest)) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            (rest[..end] == *host).then_some(&rest[end..])?
        }
        None if location.starts_with('/') && !location.starts_with("//") => location,
        None => return None,
    };
    let is_below = path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
    if is_below { Some(path.to_owned()) } else { Some(format!("{below}{path}")) }
}

/// A browser's bearer token comes as a WebSocket subprotocol; it is the API server's to see, and nobody's behind it.
fn without_tokens(headers: &mut HeaderMap) {
    let all: Vec<String> = listed(headers, SEC_WEBSOCKET_PROTOCOL).map(str::to_owned).collect();
    if !all.iter().any(|protocol| protocol.starts_with(WEBSOCKET_TOKEN_PREFIX)) {
        return;
    }
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    let others: Vec<String> =
        all.into_iter().filter(|protocol| !protocol.starts_with(WEBSOCKET_TOKEN_PREFIX)).collect();
    // What was a header is one again.
    if let (false, Ok(value)) = (others.is_empty(), HeaderValue::from_str(&others.join(", "))) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

/// Carries a request to a kubelet and the reply back.
pub(super) async fn forward(
    shared: &Arc<Shared>,
    target: NodeTarget,
    mut forwarded: Forwarded,
    client: Handover,
) -> Result<Response<Reply>, Status> {
    if forwarded.streams && !forwarded.upgrades {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let dial_failed = |why: String| Status::internal(format!("error dialing backend: {why}"));
    let connecting = shared.nodes.connect(&target);
    let host = format!("{}:{}", bracketed(&target.host), target.port);
    let io = tokio::time::timeout(shared.settings.node_connect, connecting)
        .await
        .map_err(|_| dial_failed(format!("dial tcp {host}: i/o timeout")))?
        .map_err(|error| dial_failed(error.to_string()))?;
    forwarded.is_log = target.scheme == Scheme::Agent && target.path_and_query.starts_with("/containerLogs/");
    if forwarded.upgrades && forwarded.streams {
        forwarded.translation = Translation::of(&forwarded.headers, &target.path_and_query);
    }
    if let Some(translation) = &forwarded.translation {
        translation.ask(&mut forwarded.headers);
        forwarded.method = Method::POST;
    }
    let tunnelled = forwarded.translation.as_ref().map(Translation::is_tunnel);
    let reply = carry(shared, io, &host, &target.path_and_query, forwarded, client).await;
    if let Some(tunnelled) = tunnelled {
        let code = reply.as_ref().map_or_else(|status| status.code, |reply| reply.status().as_u16());
        // Upstream counts what was translated as any other success.
        let code = if code == 101 && !tunnelled { 200 } else { code };
        shared.server.inner.metrics.streamed(tunnelled, code);
    }
    reply
}

/// Carries a request to the server of another API and the reply back.
pub(super) async fn forward_remote(
    shared: &Arc<Shared>,
    call: Call,
    mut forwarded: Forwarded,
    client: Handover,
) -> Result<Response<Reply>, Status> {
    let failed = |why: String| Status::unavailable(format!("error trying to reach service: {why}"));
    let connecting = shared.server.env().dial(&call);
    let io = tokio::time::timeout(shared.settings.node_connect, connecting)
        .await
        .map_err(|_| failed("timed out".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    let host = call.authority();
    // Whom the caller says they are is this server's to say.
    forwarded.headers.extend(call.headers);
    if let (false, Ok(host)) = (forwarded.upgrades, HeaderValue::from_str(&host)) {
        forwarded.headers.insert(FORWARDED_HOST, host);
        forwarded.headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    }
    (forwarded.below, forwarded.is_remote) = (None, true);
    carry(shared, io, &host, &call.path_and_query, forwarded, client).await
}

/// How long another server may take to begin with its answer to a watch.
const WATCH_OPENS: Duration = Duration::from_secs(30);
/// When a watch of another server is over whatever that says: later than any watch is asked for.
const WATCH_ENDS: Duration = Duration::from_secs(11 * 60);

/// A watch of another server, for those in the process, who have no connection of their own that it could be carried to.
///
/// # Errors
/// The other server's refusal, or that it was not reached.
pub(crate) async fn watch_remote(env: &dyn Env, call: Call) -> Result<EventStream, ApiError> {
    let failed = |why: String| ApiError::Transport(format!("error trying to reach service: {why}"));
    let (url, host) = (call.url(), call.authority());
    let dialing = env.dial(&call);
    let opening = async {
        let io = dialing.await.map_err(|error| failed(error.to_string()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
            .await
            .map_err(|error| failed(broken_off(&error)))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to another server");
            }
        });
        let mut request = Request::builder()
            .method(call.method)
            .uri(&call.path_and_query)
            .header(HOST, host)
            .body(Full::new(call.body))
            .map_err(|error| failed(error.to_string()))?;
        request.headers_mut().extend(call.headers);
        let response = sender.send_request(request).await.map_err(|error| failed(broken_off(&error)))?;
        Ok((sender, response))
    };
    let (sender, response) = tokio::time::timeout(WATCH_OPENS, opening)
        .await
        .unwrap_or_else(|_| Err(failed(format!("{url}: timed out"))))?;
    let code = response.status().as_u16();
    if !response.status().is_success() {
        let body = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        return Err(ApiError::from_reply(code, &body));
    }
    // The sender lives as long as the body is read: dropping it would end the connection.
    let chunks = response.into_body().into_data_stream().map(move |chunk| {
        let _keep = &sender;
        chunk.map_err(|error| ApiError::Transport(broken_off(&error)))
    });
    Ok(lines(chunks.take_until(tokio::time::sleep(WATCH_ENDS))))
}

/// Sends a request over a connection, and passes on what comes back.
async fn carry(
    shared: &Arc<Shared>,
    io: Box<dyn NodeIo>,
    host: &str,
    path_and_query: &str,
    forwarded: Forwarded,
    client: Handover,
) -> Result<Response<Reply>, Status> {
    let dial_failed = |why: String| Status::internal(format!("error dialing backend: {why}"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
        .await
        .map_err(|error| dial_failed(broken_off(&error)))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to a kubelet");
        }
    });
    let mut request = Request::builder()
        .method(forwarded.method)
        .uri(path_and_query)
        .header(HOST, host)
        .body(Full::new(forwarded.body))
        .map_err(Status::internal)?;
    request.headers_mut().extend(forwarded.headers);
    let answering = sender.send_request(request);
    let answered = if forwarded.is_log && forwarded.follows {
        answering.await
    } else {
        let limit = shared.settings.node_answer;
        tokio::time::timeout(limit, answering)
            .await
            .map_err(|_| Status::timeout(format!("{host} did not answer within {} s", limit.as_secs())))?
    };
    let mut response =
        answered.map_err(|error| Status::internal(format!("the backend did not answer: {}", broken_off(&error))))?;
    if forwarded.upgrades && response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let kubelet = hyper::upgrade::on(&mut response);
        let mut reply = Response::new(Reply::parts(Vec::new()));
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *reply.headers_mut() = match forwarded.translation {
            Some(translation) => translation.begin(response.headers(), client, kubelet)?,
            None => {
                tokio::spawn(join(client, kubelet));
                response.headers().clone()
            }
        };
        return Ok(reply);
    }
    if forwarded.is_log && !response.status().is_success() {
        return Err(error_of(response).await);
    }
    if let Some(refusal) = refusal(&response, forwarded.is_remote) {
        return Err(refusal);
    }
    let (mut head, body) = response.into_parts();
    for name in [CONNECTION, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    if let (Some(below), Some(location)) = (&forwarded.below, head.headers.get(LOCATION)) {
        let moved = location.to_str().ok().and_then(|location| relocated(location, host, below));
        if let Some(moved) = moved.and_then(|moved| HeaderValue::from_str(&moved).ok()) {
            head.headers.insert(LOCATION, moved);
        }
    }
    head.version = http::Version::default();
    let mut ending = shared.ending.clone();
    let ended = Box::pin(async move {
        // An error means that the sender is gone, which is the end as well.
        _ = ending.wait_for(|ending| *ending).await;
    });
    // The sender lives as long as the body is read: dropping it would end the connection.
    let chunks = body.into_data_stream().map(move |chunk| {
        let _keep = &sender;
        chunk.map_err(Into::into)
    });
    Ok(Response::from_parts(head, Reply::Stream(Box::pin(chunks.take_until(ended)))))
}

/// Why a reply does not go on to the client, if it does not: it would become another protocol unasked; or it sends the
/// client of another API, with what it authenticates by, wherever that API's server likes
/// (`--aggregator-reject-forwarding-redirect` of upstream).
fn refusal<B>(response: &Response<B>, is_remote: bool) -> Option<Status> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Some(Status::internal("the backend switched protocols, which nobody asked for"));
    }
    if is_remote && response.status().is_redirection() && response.headers().contains_key(LOCATION) {
        let mut status = Status::internal("the backend attempted to redirect this request, which is not permitted");
        status.code = 502;
        return Some(status);
    }
    None
}

pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// A kubelet's refusal as a `Status` with its text.
async fn error_of(response: Response<hyper::body::Incoming>) -> Status {
    let code = response.status().as_u16();
    let text = match Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).trim().to_owned(),
        Err(error) => format!("the kubelet answered {code}, and its reason broke off: {}", broken_off(&*error)),
    };
    let mut status = match code {
        400 => Status::bad_request(text.clone()),
        404 => Status::no_such_path(),
        403 => Status::forbidden("", "", "", &text),
        503 => Status::unavailable(text.clone()),
        _ => Status::internal(text.clone()),
    };
    status.message = text;
    status
}

/// Carries bytes both ways until both sides have ended.
async fn join(client: Handover, kubelet: OnUpgrade) {
    let joined = |client: Upgraded| async move {
        let kubelet = match kubelet.await {
            Ok(kubelet) => kubelet,
            Err(error) => {
                tracing::debug!(%error, "a kubelet did not upgrade");
                return;
            }
        };
        if let Err(error) = relay::join(TokioIo::new(client), TokioIo::new(kubelet), pending()).await {
            tracing::debug!(%error, "an upgraded connection broke off");
        }
    };
    client.carry(joined).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_below_the_proxy() {
        let pod = "/api/v1/namespaces/a/pods/p:80/proxy";
        for (path, below) in [
            ("/api/v1/namespaces/a/pods/p:80/proxy/x/y/", Some(pod)),
            ("/api/v1/namespaces/a/pods/p:80/proxy", Some(pod)),
            ("/api/v1/namespaces/a/services/proxy/proxy/proxy", Some("/api/v1/namespaces/a/services/proxy/proxy")),
            ("/api/v1/nodes/n/proxy/logs/", Some("/api/v1/nodes/n/proxy")),
            ("/api/v1/namespaces/a/pods/p/log", None),
            ("/apis/metrics.k8s.io/v1beta1/proxy", None),
        ] {
            let asked = Asked::of(&Method::GET, &path.parse().expect("a path"));
            let resource = asked.info.resource.as_ref().expect("a resource");
            assert_eq!(proxied_below(path, resource).as_deref(), below, "{path}");
        }
        for (location, moved) in [
            ("/login?to=/", Some(format!("{pod}/login?to=/"))),
            ("http://10.0.0.1:80/a", Some(format!("{pod}/a"))),
            ("http://10.0.0.1:80", Some(pod.to_owned())),
            (&format!("{pod}/a"), Some(format!("{pod}/a"))),
            (&format!("{pod}a"), Some(format!("{pod}{pod}a"))),
            ("https://elsewhere/a", None),
            ("//elsewhere/a", None),
            ("next", None),
        ] {
            assert_eq!(relocated(location, "10.0.0.1:80", pod), moved, "{location}");
        }
    }

    #[test]
    fn what_is_no_answer_does_not_go_on() {
        let reply = |code: u16, location: &str| {
            let mut reply = Response::builder().status(code);
            if !location.is_empty() {
                reply = reply.header("location", location);
            }
            reply.body(()).expect("a reply")
        };
        for (code, location, from_node, from_remote) in [
            (200, "", None, None),
            (201, "/apis/a/v1/things/x", None, None),
            (304, "", None, None),
            // A pod's own pages may lead to others; the server of an API may not.
            (302, "/login", None, Some(502)),
            (307, "https://elsewhere.example.com/", None, Some(502)),
            (101, "", Some(500), Some(500)),
        ] {
            let reply = reply(code, location);
            for (is_remote, want) in [(false, from_node), (true, from_remote)] {
                assert_eq!(refusal(&reply, is_remote).map(|status| status.code), want, "{code} {location} {is_remote}");
            }
        }
    }

    #[test]
    fn those_behind_are_told_where_a_request_came_from() {
        for (upgrade, before, way, path) in [
            (false, &[][..], "10.0.0.9", Some("/apis/a/v1/x")),
            (
                false,
                &["10.0.0.1", "10.0.0.2, 10.0.0.3"],
                "10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.9",
                Some("/apis/a/v1/x"),
            ),
            (true, &[], "10.0.0.9", None),
        ] {
            let mut request = Request::builder().uri("/apis/a/v1/x?b=c").header("x-forwarded-uri", "/elsewhere");
            for one in before {
                request = request.header(FORWARDED_FOR, *one);
            }
            if upgrade {
                request = request.header(UPGRADE, "websocket");
            }
            let (mut parts, ()) = request.body(()).expect("a request").into_parts();
            parts.extensions.insert(Source(IpAddr::from([10, 0, 0, 9])));
            let headers = Forwarded::of(&parts, &Asked::of(&parts.method, &parts.uri), &Bytes::new()).headers;
            let all: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
            assert_eq!(all, [way]);
            let path = path.unwrap_or("/elsewhere");
            assert_eq!(headers[FORWARDED_URI], path);
        }
    }

    /// What another server says of itself stays; what this one says is added.
    #[test]
    fn replies_of_others_are_marked() {
        let own = HeaderMap::from_iter([
            (HeaderName::from_static("audit-id"), HeaderValue::from_static("a")),
            (HeaderName::from_static("warning"), HeaderValue::from_static("own")),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        ]);
        for (code, want) in [(200, Some("a")), (404, Some("a")), (101, None)] {
            let (mut reply, theirs) = (Response::new(Reply::parts(Vec::new())), HeaderValue::from_static("theirs"));
            *reply.status_mut() = StatusCode::from_u16(code).expect("a code");
            reply.headers_mut().insert("warning", theirs.clone());
            let marked = marked(reply, &own);
            assert_eq!(marked.headers().get("audit-id").and_then(|id| id.to_str().ok()), want, "{code}");
            assert_eq!((&marked.headers()["warning"], marked.headers().get(CONTENT_TYPE)), (&theirs, None));
        }
    }

    #[test]
    fn nothing_that_authenticates_goes_on() {
        let request = Request::builder()
            .uri("/api/v1/namespaces/a/pods/p/exec")
            .header("upgrade", "websocket")
            .header("connection", "Upgrade, X-Remote-User")
            .header("authorization", "Bearer x")
            .header("cookie", "x")
            .header("impersonate-user", "x")
            .header("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.eHh4, v5.channel.k8s.io")
            .header("sec-websocket-protocol", "v4.channel.k8s.io")
            .body(())
            .expect("a request");
        let (parts, ()) = request.into_parts();
        let forwarded = Forwarded::of(&parts, &Asked::of(&parts.method, &parts.uri), &Bytes::new());
        let left: Vec<(&str, &str)> =
            forwarded.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or(""))).collect();
        assert_eq!(
            left,
            [
                ("upgrade", "websocket"),
                ("connection", "Upgrade"),
                ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io")
            ]
        );
    }
}
