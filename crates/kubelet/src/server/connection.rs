//! One connection: handshake, who it is, then request after request; at the read-only port the requests alone.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_auth::strangers::{Stranger, has_to_go};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::access::Access;
use super::authority::Authority;
use super::backend::Backend;
use super::clock;
use super::handle::handle;
use super::metrics::Requests;
use super::reply::{Refusal, Reply};
use super::route::{bucket, route};
use super::settings::Settings;
use super::tls::Tls;

/// hyper takes no smaller one.
const LEAST_BUFFER_BYTES: usize = 8192;

/// What all connections share.
pub(super) struct Shared {
    pub backend: Arc<dyn Backend>,
    pub allowed_users: Vec<String>,
    pub authority: Option<Arc<dyn Authority>>,
    pub log_dir: PathBuf,
    pub node_name: String,
    pub version: String,
    pub configz: serde_json::Value,
    /// What the kubelet asks of the API server.
    pub asked: carrack_engine::requests::Requests,
    pub settings: Settings,
    pub requests: Requests,
    /// Places of what goes on.
    pub streams: Arc<Semaphore>,
    /// Becomes true at shutdown.
    pub ending: watch::Receiver<bool>,
}

impl Shared {
    /// Returns when the server ends.
    pub(super) async fn ended(&self) {
        // An error means that the server is gone, which is the end as well.
        drop(self.ending.clone().wait_for(|ending| *ending).await);
    }
}

/// A connection's share of the server. What outlives the requests of a connection (a joined stream)
/// holds one, so that it counts as what the connection has become.
#[derive(Clone)]
pub(super) struct Session {
    pub shared: Arc<Shared>,
    place: Arc<Mutex<OwnedSemaphorePermit>>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, place: OwnedSemaphorePermit) -> Self {
        Self { shared, place: Arc::new(Mutex::new(place)) }
    }

    /// A place among what goes on.
    ///
    /// # Errors
    /// None is free.
    pub(super) fn stream_place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.shared.streams).try_acquire_owned().map_err(|error| {
            tracing::warn!(%error, most = self.shared.settings.max_streams, "no more streams than go on already");
            let text =
                format!("{} streams go on already: try again when one has ended", self.shared.settings.max_streams);
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, text)
        })
    }

    /// From here on the connection goes on: its place among those that are asked one thing after another is free.
    pub(super) fn goes_on(&self, place: OwnedSemaphorePermit) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

/// By what a connection comes in.
#[derive(Clone)]
pub(super) enum Door {
    /// Its client may show who it is.
    Tls(Arc<Tls>),
    /// Nobody is asked, and little is told.
    ReadOnly,
}

/// Runs a connection to its end. What goes wrong with it concerns its client alone.
pub(super) async fn run(session: Session, mut stranger: Stranger, stream: TcpStream, door: Door) {
    let settings = &session.shared.settings;
    if let Err(error) = prepare(&stream, settings) {
        tracing::debug!(%error, "socket options");
    }
    let (acceptor, clients) = match door {
        Door::Tls(tls) => tls.current(),
        Door::ReadOnly => return serve(&session, &Access::ReadOnly, Some(stranger), stream).await,
    };
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(settings.handshake, acceptor.accept(stream)) => accepted,
        () = stranger.has_to_go() => return tracing::debug!("a TLS handshake made room for others"),
    };
    let stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let peer = clients.peer(stream.get_ref().1.peer_certificates()).unwrap_or_else(|error| {
        tracing::debug!(%error, "a client certificate says nothing");
        None
    });
    let access = Access::of(peer.map(|peer| peer.caller), &session.shared.allowed_users);
    let stranger = Some(stranger).filter(|_| access != Access::Granted);
    serve(&session, &access, stranger, stream).await;
}

/// Answers request after request of a client that may do so much.
async fn serve<S>(session: &Session, access: &Access, mut stranger: Option<Stranger>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = &session.shared.settings;
    let answered =
        |request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(session, access, request).await) };
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head)
        // The buffer's size alone is no exact bound: a head that came with the last read passes it.
        .max_header_size(settings.max_head_bytes)
        .max_buf_size(settings.max_head_bytes.max(LEAST_BUFFER_BYTES))
        .serve_connection(TokioIo::new(stream), service_fn(answered))
        .with_upgrades();
    tokio::pin!(connection);
    let result = tokio::select! {
        result = &mut connection => Some(result),
        () = session.shared.ended() => None,
        () = has_to_go(stranger.as_mut()) => return tracing::debug!("a connection made room for others"),
    };
    let result = match result {
        Some(result) => result,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(error = %carrack_engine::causes(&error), "connection");
    }
}

/// Small pieces go out at once, and a peer that has vanished is found out about.
fn prepare(stream: &TcpStream, settings: &Settings) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, settings.keep_alive)?;
    sockopt::set_tcp_keepintvl(stream, settings.keep_alive / 4)?;
    Ok(())
}

async fn answer(session: &Session, access: &Access, request: Request<Incoming>) -> Response<Reply> {
    let (method, path, began) = (request.method().clone(), request.uri().path().to_owned(), clock::now());
    let authority = session.shared.authority.as_deref();
    let settings = &session.shared.settings;
    let allowed = access.check(authority, settings.anonymous, &method, &path, request.headers()).await;
    let allowed = allowed.and_then(|()| route(&method, &path));
    let is_read_only = *access == Access::ReadOnly;
    let debugging = settings.debugging && !is_read_only;
    let result = match allowed {
        Ok(route) if route.is_for_debugging() && !debugging => {
            Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled."))
        }
        Ok(route) if route.goes_with_debugging() && !debugging => Err(Refusal::not_found("404 page not found\n")),
        Ok(route) => handle(session, route, request).await,
        Err(refusal) => Err(refusal),
    };
    let response = result.unwrap_or_else(|refusal| {
        tracing::debug!(%method, path, code = refusal.code.as_u16(), text = refusal.text, "refused");
        Response::from(refusal)
    });
    let took = clock::now().since(began);
    let server = if is_read_only { "readonly" } else { "readwrite" };
    session.shared.requests.count(server, &method, bucket(&path), (response.status().as_u16(), took));
    response
}
