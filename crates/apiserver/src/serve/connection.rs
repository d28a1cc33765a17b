//! One connection: handshake, then request after request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_auth::authn::bearer_token;
use carrack_auth::tls::Peer;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::flow::{Gate, Seat};
use super::handover::Handover;
use super::places::Place;
use super::reply::{self, Reply, to_reply};
use super::{Settings, Shared, deadline, proxy, sockets, watch_socket, websocket};
use crate::accept::takes_gzip;
use crate::audit::{self, AUDIT_ID, Source};
use crate::body::{self, Body};
use crate::metrics::is_long_running;
use crate::route::Asked;
use crate::server::Acting;
use crate::status::Status;

/// What a client is told that speaks HTTP where HTTPS is spoken; Go's servers say the same.
const PLAIN_HTTP: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// How much of one request's body, and of those of all requests of a connection, a client sends before anything of it was read.
/// What waits unread, since its request waits for a seat, must not keep back the others of its connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// How many headers a request may have over HTTP/1.1; who has more is answered 431 by the library, with nothing to read. Upstream
/// bounds bytes alone, and by those they could be a quarter of a million: the library sets 64 bytes aside for each that may come,
/// while it reads a head. Who acts for a member of many groups names each in a header of its own.
const MAX_HEADERS: usize = 1280;

/// Runs a connection to its end. What goes wrong with it concerns its client alone.
pub(super) async fn run(
    shared: &Arc<Shared>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
    graceful: Watcher,
    place: &Arc<Place>,
) {
    if let Err(error) = sockets::prepare(&stream, sockets::CLIENT_SILENCE) {
        tracing::debug!(%error, "a connection cannot be set up");
    }
    let stream = match tokio::time::timeout(shared.settings.handshake, secure(stream, acceptor)).await {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => {
            tracing::debug!("a client spoke HTTP without TLS");
            return;
        }
        Ok(Err(error)) => {
            shared.server.inner.metrics.broken_handshakes.inc();
            tracing::debug!(%error, "TLS handshake");
            return;
        }
        Err(_) => {
            shared.server.inner.metrics.broken_handshakes.inc();
            tracing::debug!("TLS handshake timed out");
            return;
        }
    };
    let source = stream.get_ref().0.peer_addr().map(|address| Source(address.ip())).ok();
    let shown = match shared.clients.peer(stream.get_ref().1.peer_certificates()) {
        Ok(None) => Shown::Nothing,
        Ok(Some(peer)) => Shown::Peer(peer),
        Err(error) => {
            tracing::debug!(%error, "a client certificate says nothing");
            Shown::Worthless
        }
    };
    let shown = Arc::new(shown);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let settings = &shared.settings;
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head)
        .max_headers(MAX_HEADERS)
        .max_buf_size(settings.max_head_bytes.max(64 * 1024));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.keep_alive)
        .max_concurrent_streams(settings.max_streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(settings.max_head_bytes).unwrap_or(u32::MAX));
    let spoken = Arc::new(Notify::new());
    let heard = Arc::clone(&spoken);
    // Certificates are verified when a connection begins, and it may last for months.
    let expired = Arc::new(Notify::new());
    let ends = Arc::clone(&expired);
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(source) = source {
            request.extensions_mut().insert(source);
        }
        let (shared, shown, place) = (Arc::clone(shared), Arc::clone(&shown), Arc::clone(place));
        heard.notify_one();
        place.asked();
        let now_unix_s = shared.server.inner.env.now().as_second();
        let left_s = match &*shown {
            Shown::Peer(peer) => Some(peer.until_unix_s.saturating_sub(now_unix_s)),
            Shown::Nothing | Shown::Worthless => None,
        };
        if let Some(left_s) = left_s {
            shared.server.inner.metrics.access.certificate(left_s);
        }
        let is_over = left_s.is_some_and(|left_s| left_s < 0);
        let ends = Arc::clone(&ends);
        async move {
            if is_over {
                ends.notify_one();
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(answer(&shared, &shown, place, request).await)
        }
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    // Until it is known which HTTP a client speaks, there is no other bound on how long it may be silent.
    let silent = async {
        if tokio::time::timeout(shared.settings.head, spoken.notified()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ended = graceful.watch(connection.into_owned()) => {
            if let Err(error) = ended {
                tracing::debug!(error = %carrack_engine::causes(&*error), "connection");
            }
        }
        () = silent => tracing::debug!("a client made no request in time"),
        // It comes again with the certificate that it has now.
        () = expired.notified() => tracing::debug!("a client's certificate has expired"),
    }
}

/// The TLS handshake; none when the client spoke plain HTTP, and was told.
async fn secure(mut stream: TcpStream, acceptor: TlsAcceptor) -> std::io::Result<Option<TlsStream<TcpStream>>> {
    // TLS begins with the type of a record, which is a small number; HTTP with a method.
    let mut first = [0];
    stream.peek(&mut first).await?;
    if !first[0].is_ascii_uppercase() {
        return acceptor.accept(stream).await.map(Some);
    }
    // Closing with something unread would take the reply back from the client.
    let mut head = [0; 4096];
    let _unread = stream.read(&mut head).await?;
    stream.write_all(PLAIN_HTTP).await?;
    stream.shutdown().await?;
    Ok(None)
}

/// How much of a refused request is read all the same.
const DISCARD_BYTES: usize = 64 << 20;
/// And for how long at the most.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// What a client has shown of itself in the handshake.
enum Shown {
    /// No certificate.
    Nothing,
    /// One by which it is known.
    Peer(Peer),
    /// One that nobody vouches for, or that names nobody.
    Worthless,
}

async fn answer(
    shared: &Arc<Shared>,
    shown: &Shown,
    place: Arc<Place>,
    mut request: Request<Incoming>,
) -> Response<Reply> {
    let id = audit::name(&*shared.server.inner.env, request.headers_mut());
    let is_head = *request.method() == Method::HEAD;
    let mut response = match exchange(shared, shown, place, request).await {
        Ok(response) => response,
        Err((status, None)) => to_reply(shared, body::Response::from(status), false),
        Err((status, Some(mut unread))) => {
            discard(&mut unread, DISCARD_TIME.min(shared.settings.body)).await;
            reply::early(status, unread)
        }
    };
    // Where the connection is another protocol's from now on, nothing is added.
    if let Some(id) = id
        && response.status() != StatusCode::SWITCHING_PROTOCOLS
    {
        response.headers_mut().entry(AUDIT_ID).or_insert(id);
    }
    if is_head { reply::without_body(response) } else { response }
}

/// Lets a client send on for a while what nobody will read. By HTTP/2's letter it could be answered at once and told to
/// stop, but clients are there (curl 7.88 among them) that then lose the answer.
async fn discard(unread: &mut Incoming, limit: Duration) {
    let mut left = DISCARD_BYTES;
    let reading = async {
        while let Some(Ok(frame)) = unread.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    if tokio::time::timeout(limit, reading).await.is_err() {
        tracing::debug!("a client takes its time to send what is not wanted");
    }
}

/// Why there is no answer, and what was not read of the request.
type Refused = (Status, Option<Incoming>);

async fn exchange(
    shared: &Arc<Shared>,
    shown: &Shown,
    place: Arc<Place>,
    mut request: Request<Incoming>,
) -> Result<Response<Reply>, Refused> {
    let arrived = deadline::Arrived::now();
    let client = Handover::new(hyper::upgrade::on(&mut request), place);
    let (parts, incoming) = request.into_parts();
    let asked = Asked::of(&parts.method, &parts.uri);
    let path = parts.uri.path();
    let caller = match shown {
        Shown::Peer(peer) => shared.server.authenticate(Some(&peer.caller), path, &parts.headers).await,
        Shown::Nothing => shared.server.authenticate(None, path, &parts.headers).await,
        // A token beside it may still say who it is. Without one it is nobody, and not anonymous, as if it had shown nothing
        // (`k8s.io/apiserver/pkg/authentication/request/union`).
        Shown::Worthless => match bearer_token(&parts.headers) {
            Ok(Some(_)) => shared.server.authenticate(None, path, &parts.headers).await,
            Ok(None) | Err(_) => Err(Status::unauthorized()),
        },
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(status) => {
            if status.code == 401 {
                shared.server.note_unauthenticated(&parts, &asked);
            }
            return Err((status, Some(incoming)));
        }
    };
    // Noted, too, though nobody looks at what it asks for.
    let turned_away = |acting: &Acting, (status, unread): Refused| {
        drop(shared.server.refuse(&parts, &asked, acting, status.clone()));
        (status, unread)
    };
    let acting = match shared.server.acts_for(&caller, &asked, &parts.headers).await {
        Ok(other) => Acting::new(caller, other),
        Err(status) => return Err(turned_away(&Acting::new(caller, None), (status, Some(incoming)))),
    };
    let most = match deadline::of(&asked, shared.settings.request) {
        Ok(most) => most,
        Err(status) => return Err(turned_away(&acting, (status, Some(incoming)))),
    };
    let zip = takes_gzip(&parts.headers);
    let mut arriving = Arriving::new(incoming);
    let room = shared.small.try_acquire().ok().filter(|_| arriving.is_small());
    if room.is_some()
        && let Err(status) = arriving.within(shared.settings.body, SMALL_BYTES).await
    {
        return Err(turned_away(&acting, (status, Some(arriving.incoming))));
    }
    let seat = match seated(shared, &acting, &asked, most).await {
        Ok(seat) => seat,
        Err(status) => return Err(turned_away(&acting, (status, Some(arriving.incoming)))),
    };
    drop(room);
    let body = arriving.whole(&shared.settings).await.map_err(|refused| turned_away(&acting, refused))?;
    // Nothing is begun that has no time, however little it would take.
    let Some(left) = arrived.left(most) else {
        return Err(turned_away(&acting, (too_late(shared, &asked), None)));
    };
    // Shared, not copied: what is forwarded to a node needs it once more.
    let handling = shared.server.answer(&parts, &asked, body.clone(), acting);
    let response = match tokio::time::timeout(left, handling).await {
        Ok(response) => response,
        Err(_) => return Err((too_late(shared, &asked), None)),
    };
    let (mut head, answered) = response.into_parts();
    if let Some(seat) = &seat {
        seat.mark(&mut head.headers);
    }
    drop(seat);
    let refused = |status| (status, None);
    match answered {
        Body::Node(target) => {
            let forwarded = proxy::Forwarded::of(&parts, &asked, &body);
            let reply = proxy::forward(shared, target, forwarded, client).await.map_err(refused)?;
            Ok(proxy::marked(reply, &head.headers))
        }
        Body::Remote(call) => {
            let forwarded = proxy::Forwarded::of(&parts, &asked, &body);
            let forwarding = proxy::forward_remote(shared, *call, forwarded, client);
            let reply = if is_long_running(&asked.info) {
                forwarding.await
            } else {
                let left = arrived.left(most).unwrap_or_default();
                tokio::time::timeout(left, forwarding).await.unwrap_or_else(|_| Err(too_late(shared, &asked)))
            };
            Ok(proxy::marked(reply.map_err(refused)?, &head.headers))
        }
        // A backup is no watch, though it streams like one.
        Body::Watch { lines, timeout_s } if asked.info.verb == "watch" => match websocket::key(&parts.headers) {
            Some(key) => watch_socket::begin(shared, (key, &parts.headers), client, lines, timeout_s).map_err(refused),
            None => Ok(to_reply(shared, Response::from_parts(head, Body::Watch { lines, timeout_s }), zip)),
        },
        Body::Upgrade(handler) => {
            tokio::spawn(client.carry(handler));
            Ok(to_reply(shared, Response::from_parts(head, Body::Full(Bytes::new())), false))
        }
        other => Ok(to_reply(shared, Response::from_parts(head, other), zip)),
    }
}

/// The seat of a request with so much time; none when it needs none.
async fn seated(shared: &Shared, acting: &Acting, asked: &Asked, most: Duration) -> Result<Option<Seat>, Status> {
    let (server, wait) = (&shared.server, deadline::wait(most));
    let asks = server.inner.env.now();
    let outcome = Gate::enter(&shared.gate, server, &acting.caller, &asked.info, wait).await;
    match &outcome {
        Ok(_) => {
            let elapsed = server.inner.env.now().duration_since(asks);
            server.inner.metrics.filters.flow.took(elapsed.as_secs_f64());
        }
        Err(status) if status.code == 429 => ended(shared, asked, status.code),
        // It is not known which seats there are.
        Err(_) => {}
    }
    outcome
}

/// What the client of a request is told whose time is over.
fn too_late(shared: &Shared, asked: &Asked) -> Status {
    let status = Status::timeout("request did not complete within the allotted timeout");
    ended(shared, asked, status.code);
    status
}

/// Counts a request that is ended so that the server goes on. The store is not asked: it may be what takes so long.
fn ended(shared: &Shared, asked: &Asked, code: u16) {
    let inner = &shared.server.inner;
    inner.metrics.terminated.ended(&asked.info, &inner.catalog_at_hand(), code);
}

/// Bodies up to this size are read before their request waits for a seat, which is then held for no slow client.
const SMALL_BYTES: usize = 64 << 10;
/// So many at a time; others are read with a seat.
pub(super) const SMALL_BODIES: usize = 4096;
/// How long nothing may come of a body: who is gone without a word holds no seat any longer.
const SILENCE: Duration = Duration::from_secs(15);

fn late() -> Status {
    Status::timeout("the body did not come in time")
}

/// A body, as far as it has come.
struct Arriving {
    incoming: Incoming,
    held: Vec<u8>,
}

impl Arriving {
    fn new(incoming: Incoming) -> Arriving {
        Arriving { incoming, held: Vec::new() }
    }

    /// Whether the client says that no more than a little is to come.
    fn is_small(&self) -> bool {
        !self.incoming.is_end_stream()
            && self.incoming.size_hint().upper().is_some_and(|most| most <= SMALL_BYTES as u64)
    }

    /// Reads to the end, if that is neither too far nor too long. Who was too slow may try again.
    async fn within(&mut self, time: Duration, limit: usize) -> Result<(), Status> {
        tokio::time::timeout(time, self.rest(limit)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn rest(&mut self, limit: usize) -> Result<(), Status> {
        while !self.incoming.is_end_stream() {
            let frame = tokio::time::timeout(SILENCE, self.incoming.frame()).await.map_err(|_| late())?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| Status::bad_request(format!("the body broke off: {error}")))?;
            let Some(data) = frame.data_ref() else { continue };
            if self.held.len() + data.len() > limit {
                return Err(Status::too_large(limit));
            }
            self.held.extend_from_slice(data);
        }
        Ok(())
    }

    /// The whole of it, within the bounds.
    async fn whole(mut self, settings: &Settings) -> Result<Bytes, Refused> {
        let limit = settings.max_body_bytes;
        if self.incoming.size_hint().lower() > limit as u64 {
            return Err((Status::too_large(limit), Some(self.incoming)));
        }
        match self.within(settings.body, limit).await {
            Ok(()) => Ok(self.held.into()),
            Err(status) => Err((status, Some(self.incoming))),
        }
    }
}
