//! What a role tells of itself over HTTPS: `/metrics`, `/statusz`, `/flagz`, and whether it is well.
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
use carrack_apiserver::{Query, delegated, health};
use carrack_auth::Caller;
use carrack_auth::pki::{KeyPairPem, Sans};
use carrack_auth::tls::{self, Clients, Reloadable, ServerTls};
use carrack_engine::requests::Requests;
use carrack_engine::shell::Scrapes;
use carrack_engine::zpages::statusz::Program;
use carrack_engine::zpages::{Page, PageError, flagz, statusz};
use carrack_engine::{Time, Transport};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::credentials::Files;
use crate::cli::roles::SecureArgs;
use crate::{flags, process};

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
    /// The API server, as measures of the requests to it name it.
    pub server: String,
}

/// The measures of a core, and of the requests that it makes.
#[must_use]
pub fn measures(core: Scrapes, requests: Requests) -> Metrics {
    Arc::new(move || {
        let (core, requests) = (core.clone(), requests.clone());
        async move { Some(core.text().await? + &requests.text()) }.boxed()
    })
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
        let server = super::server(kubeconfig)?;
        let address = SocketAddr::new(self.bind_address, self.secure_port);
        Ok(Some(Listen { address, serving, client_ca_pem, server }))
    }
}

struct Shared {
    component: &'static str,
    clients: Clients,
    metrics: Metrics,
    api: Arc<dyn Transport>,
}

/// Listens, as this component of upstream's; returns once the port is had, and serves until `stop`.
///
/// # Errors
/// The port is taken, or a certificate cannot be used.
pub async fn serve(
    component: &'static str,
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
    let ServerTls { mut config, clients } = tls::server_config(certificate, &listen.client_ca_pem)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener =
        TcpListener::bind(listen.address).await.with_context(|| format!("cannot listen on {}", listen.address))?;
    let address = listener.local_addr().context("a listener has no address")?;
    let shared = Arc::new(Shared { component, clients, metrics, api });
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
    let peer = shared.clients.peer(stream.get_ref().1.peer_certificates()).unwrap_or_else(|error| {
        tracing::debug!(%error, "a client certificate says nothing");
        None
    });
    let caller = peer.map(|peer| peer.caller);
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

/// Which program this is, and since when it runs.
fn status_page(component: &'static str, headers: &http::HeaderMap) -> Result<Page, PageError> {
    let started = process::started();
    let paths = &[flagz::PATH, "/healthz", "/livez", "/metrics", "/readyz", statusz::PATH];
    let now = Time::from_unix_s(super::apiserver::now_unix_s());
    Program { component, started, paths }.page(now, headers)
}

fn page(told: Result<Page, PageError>) -> Response<Full<Bytes>> {
    match told {
        Ok((media_type, text)) => typed(StatusCode::OK, media_type, text),
        Err(refused) => reply(refused.code(), refused.to_string()),
    }
}

async fn answer(shared: &Shared, caller: Option<Caller>, head: &http::request::Parts) -> Response<Full<Bytes>> {
    let path = head.uri.path();
    let is_open = matches!(path, "/healthz" | "/livez" | "/readyz");
    if !is_open && let Some((status, why)) = delegated::refusal(shared.api.as_ref(), caller, &head.headers, path).await
    {
        return reply(status, why);
    }
    if let Some((endpoint, rest)) = health::page(path) {
        let failure = (shared.metrics)().await.is_none().then_some(ENDED);
        let query = Query::parse(head.uri.query().unwrap_or_default());
        return match health::report(&[("ping", None), ("core", failure)], endpoint, rest, &query) {
            Some((status, text)) => reply(status, text),
            None => reply(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
    }
    if !matches!(path, "/metrics" | statusz::PATH | flagz::PATH) {
        return reply(StatusCode::NOT_FOUND, "404 page not found");
    }
    if head.method != http::Method::GET {
        return reply(StatusCode::METHOD_NOT_ALLOWED, "only GET is there");
    }
    match path {
        statusz::PATH => return page(status_page(shared.component, &head.headers)),
        flagz::PATH => return page(flagz::page(shared.component, flags::told(), &head.headers)),
        _ => {}
    }
    match (shared.metrics)().await {
        Some(text) => typed(StatusCode::OK, METRICS, text),
        None => reply(StatusCode::INTERNAL_SERVER_ERROR, ENDED),
    }
}
