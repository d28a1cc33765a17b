//! What a role tells of itself over HTTPS: `/metrics`, and whether it is well.
//!
//! As with upstream's components, `/healthz`, `/livez` and `/readyz` are for everybody; for all else, their checks one by
//! one among it, the API server is asked who somebody is (by a TokenReview, unless a client certificate of the cluster's
//! authority says it) and whether they may (by a SubjectAccessReview). There is no way around it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use carrack_apiserver::{Query, health};
use carrack_auth::pki::{KeyPairPem, Sans};
use carrack_auth::tls::{self, Reloadable};
use carrack_auth::{Caller, caller};
use carrack_engine::{ApiRequest, Method, Transport};
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::credentials::Files;
use crate::cli::roles::SecureArgs;

/// How many connections there may be.
const MOST_CONNECTIONS: usize = 64;
/// How long a handshake, or the head of a request, may take.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may last, answers in progress left aside: whoever asks and never reads would else keep its place
/// for good, and anybody may ask.
const LIFE: Duration = Duration::from_secs(600);
/// How long nobody is let in after a connection could not be accepted: out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Tells the metrics of a role, unless it has ended.
pub type Metrics = Arc<dyn Fn() -> BoxFuture<'static, Option<String>> + Send + Sync>;

/// Where to listen, and with what.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// Files with a certificate and its key; one is made without them.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// The authority of clients' certificates, PEM.
    pub client_ca_pem: String,
}

impl<const PORT: u16> SecureArgs<PORT> {
    /// Where a role of its own listens, if it is to. Clients' certificates are those of the cluster that it works on.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn listen(&self, kubeconfig: &Path) -> anyhow::Result<Option<Listen>> {
        if self.secure_port == 0 {
            return Ok(None);
        }
        let serving = self.tls_cert_file.clone().zip(self.tls_private_key_file.clone());
        let client_ca_pem = super::cluster_ca(kubeconfig)?;
        Ok(Some(Listen { address: SocketAddr::new(self.bind_address, self.secure_port), serving, client_ca_pem }))
    }
}

struct Shared {
    metrics: Metrics,
    api: Arc<dyn Transport>,
}

/// Listens; returns once the port is had, and serves until `stop`.
///
/// # Errors
/// The port is taken, or a certificate cannot be used.
pub async fn serve(
    listen: Listen,
    metrics: Metrics,
    api: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<SocketAddr> {
    let certificate = match &listen.serving {
        Some((certificate, key)) => {
            let files = Files::open(certificate, key)?;
            let used = files.used();
            tokio::spawn(files.follow(stop.clone()));
            used
        }
        None => {
            let sans = Sans::loopback().with_address(listen.address.ip());
            Reloadable::new(&KeyPairPem::self_signed("carrack", &sans, super::apiserver::now_unix_s())?)?
        }
    };
    let mut config = tls::server_config(certificate, &listen.client_ca_pem)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener =
        TcpListener::bind(listen.address).await.with_context(|| format!("cannot listen on {}", listen.address))?;
    let address = listener.local_addr().context("a listener has no address")?;
    let shared = Arc::new(Shared { metrics, api });
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let (acceptor, shared, stop) = (acceptor.clone(), shared.clone(), stop.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = connection(stream, acceptor, shared) => {}
                }
                drop(place);
            });
        }
    });
    Ok(address)
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let stream = match tokio::time::timeout(HEAD, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let caller = tls::peer_caller(stream.get_ref().1.peer_certificates()).unwrap_or_default();
    let service = service_fn(|request: Request<Incoming>| {
        let (shared, caller) = (shared.clone(), caller.clone());
        let (head, _) = request.into_parts();
        async move { Ok::<_, Infallible>(answer(&shared, caller, &head).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let served = match tokio::time::timeout(LIFE, connection.as_mut()).await {
        Ok(served) => served,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(HEAD, connection.as_mut()).await {
                Ok(served) => served,
                Err(_) => return tracing::debug!("a connection is cut off: its answer is not read"),
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(error = %carrack_engine::causes(&error), "connection");
    }
}

/// The content type of metrics.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The content type of all else.
const PLAIN: &str = "text/plain; charset=utf-8";

/// Why a role says nothing of itself.
const ENDED: &str = "the role has ended or hangs";

fn reply(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    typed(status, PLAIN, text)
}

fn typed(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    response
}

async fn answer(shared: &Shared, caller: Option<Caller>, head: &http::request::Parts) -> Response<Full<Bytes>> {
    let path = head.uri.path();
    let is_open = matches!(path, "/healthz" | "/livez" | "/readyz");
    if !is_open && let Some(refused) = refusal(shared, caller, head).await {
        return refused;
    }
    if let Some((endpoint, rest)) = health::page(path) {
        let failure = (shared.metrics)().await.is_none().then_some(ENDED);
        let query = Query::parse(head.uri.query().unwrap_or_default());
        return match health::report(&[("ping", None), ("core", failure)], endpoint, rest, &query) {
            Some((status, text)) => reply(status, text),
            None => reply(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
    }
    if path != "/metrics" {
        return reply(StatusCode::NOT_FOUND, "404 page not found");
    }
    if head.method != http::Method::GET {
        return reply(StatusCode::METHOD_NOT_ALLOWED, "only GET is there");
    }
    match (shared.metrics)().await {
        Some(text) => typed(StatusCode::OK, METRICS, text),
        None => reply(StatusCode::INTERNAL_SERVER_ERROR, ENDED),
    }
}

/// Why somebody may not have a page; nothing where they may.
async fn refusal(
    shared: &Shared,
    caller: Option<Caller>,
    head: &http::request::Parts,
) -> Option<Response<Full<Bytes>>> {
    let path = head.uri.path();
    let caller = match identify(shared, caller, &head.headers).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return Some(reply(StatusCode::UNAUTHORIZED, "Unauthorized")),
        Err(error) => return Some(reply(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))),
    };
    match may(shared, &caller, path).await {
        Ok(true) => None,
        Ok(false) => {
            let why = format!("forbidden: User {:?} cannot get path {path:?}", caller.user);
            Some(reply(StatusCode::FORBIDDEN, why))
        }
        Err(error) => Some(reply(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))),
    }
}

async fn review(shared: &Shared, path: &str, review: &Value) -> anyhow::Result<Value> {
    let body = serde_json::to_vec(review).context("a review is no JSON")?.into();
    let request = ApiRequest { body, ..ApiRequest::new(Method::Post, path) };
    let reply = shared.api.send(request).await.map_err(|e| anyhow::anyhow!("the API server was asked: {e}"))?;
    reply.json().map_err(|e| anyhow::anyhow!("the API server was asked: {e}"))
}

/// Who somebody is: by certificate, or by token.
async fn identify(shared: &Shared, caller: Option<Caller>, headers: &HeaderMap) -> anyhow::Result<Option<Caller>> {
    if caller.is_some() {
        return Ok(caller);
    }
    let token = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = token.and_then(|value| value.strip_prefix("Bearer ")) else { return Ok(None) };
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let told = review(shared, "/apis/authentication.k8s.io/v1/tokenreviews", &asked).await?;
    if told["status"]["authenticated"] != true {
        return Ok(None);
    }
    let user = &told["status"]["user"];
    let groups: Vec<String> =
        user["groups"].as_array().into_iter().flatten().filter_map(|g| g.as_str().map(str::to_owned)).collect();
    Ok(user["username"].as_str().map(|name| Caller::new(name, groups)))
}

/// Whether somebody may read a path.
async fn may(shared: &Shared, caller: &Caller, path: &str) -> anyhow::Result<bool> {
    if caller.in_group(caller::GROUP_MASTERS) {
        return Ok(true);
    }
    let asked = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": caller.user, "groups": caller.groups, "nonResourceAttributes": {"path": path, "verb": "get"}}});
    let told = review(shared, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &asked).await?;
    Ok(told["status"]["allowed"] == true)
}
