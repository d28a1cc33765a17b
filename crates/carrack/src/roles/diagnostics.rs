//! What a role tells of itself over HTTPS: `/metrics`, and whether it is well.
//!
//! As with upstream's components, `/healthz`, `/livez` and `/readyz` are for everybody; for all else the API server is
//! asked who somebody is (by a TokenReview, unless a client certificate of the cluster's authority says it) and whether
//! they may (by a SubjectAccessReview). There is no way around it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
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

use crate::cli::roles::SecureArgs;

/// How many connections there may be.
const MOST_CONNECTIONS: usize = 64;
/// How long a handshake, or the head of a request, may take.
const HEAD: Duration = Duration::from_secs(10);

/// Tells the metrics of a role, unless it has ended.
pub type Metrics = Arc<dyn Fn() -> BoxFuture<'static, Option<String>> + Send + Sync>;

/// Where to listen, and with what.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// A certificate with its key; one is made without it.
    pub serving: Option<KeyPairPem>,
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
        let read =
            |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let serving = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(certificate), Some(key)) => {
                Some(KeyPairPem { certificate: read(certificate)?, key: read(key)?.into() })
            }
            _ => None,
        };
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
    let pair = match listen.serving {
        Some(pair) => pair,
        None => {
            let sans = Sans::loopback().with_address(listen.address.ip());
            KeyPairPem::self_signed("carrack", &sans, super::apiserver::now_unix_s())?
        }
    };
    let mut config = tls::server_config(Reloadable::new(&pair)?, &listen.client_ca_pem)?;
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
                        tracing::debug!(%error, "a connection could not be accepted");
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
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(error = %carrack_engine::causes(&error), "connection");
    }
}

fn reply(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

async fn answer(shared: &Shared, caller: Option<Caller>, head: &http::request::Parts) -> Response<Full<Bytes>> {
    let path = head.uri.path();
    let known = matches!(path, "/healthz" | "/livez" | "/readyz" | "/metrics");
    if path != "/metrics" && known {
        let is_well = (shared.metrics)().await.is_some();
        return match is_well {
            true => reply(StatusCode::OK, "ok"),
            false => reply(StatusCode::INTERNAL_SERVER_ERROR, "the role has ended"),
        };
    }
    let caller = match identify(shared, caller, &head.headers).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return reply(StatusCode::UNAUTHORIZED, "Unauthorized"),
        Err(error) => return reply(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")),
    };
    match may(shared, &caller, path).await {
        Ok(true) if !known => reply(StatusCode::NOT_FOUND, "404 page not found"),
        Ok(true) if head.method != http::Method::GET => reply(StatusCode::METHOD_NOT_ALLOWED, "only GET is there"),
        Ok(true) => match (shared.metrics)().await {
            Some(text) => reply(StatusCode::OK, text),
            None => reply(StatusCode::INTERNAL_SERVER_ERROR, "the role has ended"),
        },
        Ok(false) => {
            reply(StatusCode::FORBIDDEN, format!("forbidden: User {:?} cannot get path {path:?}", caller.user))
        }
        Err(error) => reply(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")),
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
