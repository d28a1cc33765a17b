//! HTTP and HTTPS around the core: routes, limits, and who waits for which answer.
//!
//! | path | what |
//! | --- | --- |
//! | POST `/scheduler/predicates`, `/scheduler/priorities`, `/scheduler/preemption`, `/scheduler/bind` | the verbs |
//! | GET `/version`, `/healthz`, `/readyz`, `/metrics` | for people and monitors |

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::shell::{Doer, EventSink};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Call, Reply, Verb};

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Longest question, in bytes. One about 5,000 whole nodes has about 50 MiB.
    pub max_body: usize,
    /// Connections at a time.
    pub max_connections: usize,
    /// How long a TLS handshake, a request's head, and its body may take, each.
    pub read: Duration,
    /// How long an answer may take.
    pub answer: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_body: 128 << 20,
            max_connections: 256,
            read: Duration::from_secs(20),
            answer: Duration::from_secs(30),
        }
    }
}

type Waiting = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Reply>>>>;

/// The server. It listens from the start of its core until it is dropped.
pub struct Server {
    listener: Option<TcpListener>,
    tls: Option<TlsAcceptor>,
    settings: Settings,
    version: String,
    waiting: Waiting,
    guard: Option<DropGuard>,
}

impl Server {
    /// On a socket that listens already; with TLS where there is a configuration for it.
    #[must_use]
    pub fn new(listener: TcpListener, tls: Option<rustls::ServerConfig>, settings: Settings, version: &str) -> Self {
        let tls = tls.map(|mut tls| {
            tls.alpn_protocols = vec![b"http/1.1".to_vec()];
            TlsAcceptor::from(Arc::new(tls))
        });
        let waiting = Waiting::default();
        Self { listener: Some(listener), tls, settings, version: version.to_owned(), waiting, guard: None }
    }
}

impl Doer<Reply, Call> for Server {
    fn start(&mut self, calls: EventSink<Call>) {
        let Some(listener) = self.listener.take() else { return };
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            calls,
            waiting: self.waiting.clone(),
            next: AtomicU64::new(1),
            settings: self.settings,
            version: self.version.clone(),
            stop: stop.clone(),
        });
        self.guard = Some(stop.clone().drop_guard());
        tokio::spawn(accept(listener, self.tls.clone(), shared));
    }

    fn run(&mut self, reply: Reply) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&reply.id);
        // Whoever asked may have gone.
        if let Some(sender) = waiting {
            drop(sender.send(reply));
        }
    }
}

struct Shared {
    calls: EventSink<Call>,
    waiting: Waiting,
    next: AtomicU64,
    settings: Settings,
    version: String,
    stop: CancellationToken,
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(shared.settings.max_connections));
    loop {
        // Nobody closes the semaphore.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (shared, tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    let stop = shared.stop.clone();
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = connection(stream, tls, shared) => {}
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let Some(tls) = tls else { return requests(stream, shared).await };
    match tokio::time::timeout(shared.settings.read, tls.accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, shared).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn requests(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let service = service_fn(|request: Request<Incoming>| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.settings.read)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(error = %carrack_engine::causes(&error), "connection");
    }
}

/// What a path stands for.
enum Route {
    Ask(Verb),
    Text(String),
    No(StatusCode),
}

fn route(method: &Method, path: &str, version: &str) -> Route {
    let asked = match path {
        "/scheduler/predicates" => Some(Verb::Filter),
        "/scheduler/priorities" => Some(Verb::Prioritize),
        "/scheduler/preemption" => Some(Verb::Preempt),
        "/scheduler/bind" => Some(Verb::Bind),
        _ => None,
    };
    let found = match path {
        "/version" => Some(Route::Text(format!("{version}\n"))),
        "/healthz" | "/livez" => Some(Route::Text("ok".to_owned())),
        "/readyz" => Some(Route::Ask(Verb::Ready)),
        "/metrics" => Some(Route::Ask(Verb::Metrics)),
        _ => None,
    };
    match (asked, found) {
        (Some(verb), _) if method == Method::POST => Route::Ask(verb),
        (None, Some(found)) if method == Method::GET || method == Method::HEAD => found,
        (None, None) => Route::No(StatusCode::NOT_FOUND),
        _ => Route::No(StatusCode::METHOD_NOT_ALLOWED),
    }
}

fn text(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

const PLAIN: &str = "text/plain; charset=utf-8";

async fn answer(shared: &Shared, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let verb = match route(request.method(), request.uri().path(), &shared.version) {
        Route::Ask(verb) => verb,
        Route::Text(body) => return text(StatusCode::OK, PLAIN, body),
        Route::No(status) => return text(status, PLAIN, status.to_string()),
    };
    let body = Limited::new(request.into_body(), shared.settings.max_body).collect();
    let body = match tokio::time::timeout(shared.settings.read, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return text(StatusCode::PAYLOAD_TOO_LARGE, PLAIN, "the question is too long");
        }
        Ok(Err(error)) => return text(StatusCode::BAD_REQUEST, PLAIN, error.to_string()),
        Err(_) => return text(StatusCode::REQUEST_TIMEOUT, PLAIN, "the question did not come to its end"),
    };
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    let (sender, receiver) = oneshot::channel();
    shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
    shared.calls.send(Call { id, verb, body });
    match tokio::time::timeout(shared.settings.answer, receiver).await {
        Ok(Ok(reply)) => {
            let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let kind = match verb {
                Verb::Ready => PLAIN,
                Verb::Metrics => "text/plain; version=0.0.4; charset=utf-8",
                Verb::Filter | Verb::Prioritize | Verb::Preempt | Verb::Bind => "application/json",
            };
            text(status, kind, reply.body)
        }
        Ok(Err(_)) => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "the extender is ending"),
        Err(_) => {
            shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            text(StatusCode::GATEWAY_TIMEOUT, PLAIN, "no answer in time")
        }
    }
}
