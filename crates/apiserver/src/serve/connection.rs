//! One connection: handshake, then request after request.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use carrack_auth::{Caller, tls};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::reply::{Reply, to_reply};
use super::{Shared, proxy};
use crate::body::{self, Body};
use crate::status::Status;

/// What a client is told that speaks HTTP where HTTPS is spoken; Go's servers say the same.
const PLAIN_HTTP: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// Runs a connection to its end. What goes wrong with it concerns its client alone.
pub(super) async fn run(shared: &Arc<Shared>, stream: TcpStream, acceptor: TlsAcceptor, graceful: Watcher) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let stream = match tokio::time::timeout(shared.settings.handshake, secure(stream, acceptor)).await {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => {
            tracing::debug!("a client spoke HTTP without TLS");
            return;
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake");
            return;
        }
        Err(_) => {
            tracing::debug!("TLS handshake timed out");
            return;
        }
    };
    let peer = match tls::peer_caller(stream.get_ref().1.peer_certificates()) {
        Ok(peer) => Ok(peer),
        Err(error) => {
            tracing::debug!(%error, "the client certificate names nobody");
            Err(())
        }
    };
    let peer = Arc::new(peer);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let settings = &shared.settings;
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head)
        .max_buf_size(settings.max_head_bytes.max(64 * 1024));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.keep_alive)
        .max_concurrent_streams(settings.max_streams)
        .max_header_list_size(u32::try_from(settings.max_head_bytes).unwrap_or(u32::MAX));
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, peer) = (Arc::clone(shared), Arc::clone(&peer));
        async move { Ok::<_, Infallible>(answer(&shared, &peer, request).await) }
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = graceful.watch(connection.into_owned()).await {
        tracing::debug!(error = %carrack_engine::causes(&*error), "connection");
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

type Peer = Result<Option<Caller>, ()>;

async fn answer(shared: &Arc<Shared>, peer: &Peer, request: Request<Incoming>) -> Response<Reply> {
    match exchange(shared, peer, request).await {
        Ok(response) => response,
        Err(status) => to_reply(shared, body::Response::from(status)),
    }
}

async fn exchange(
    shared: &Arc<Shared>,
    peer: &Peer,
    mut request: Request<Incoming>,
) -> Result<Response<Reply>, Status> {
    let peer = peer.as_ref().map_err(|()| Status::unauthorized())?;
    let caller = shared.server.authenticate(peer.as_ref(), request.headers()).await?;
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, incoming) = request.into_parts();
    let body = read(shared, incoming).await?;
    let forwarded = proxy::Forwarded::of(&parts, &body);
    let response = shared.server.handle(Request::from_parts(parts, body), caller).await;
    let (head, body) = response.into_parts();
    match body {
        Body::Node(target) => proxy::forward(shared, target, forwarded, upgrade).await,
        Body::Remote(call) => proxy::forward_remote(shared, *call, forwarded, upgrade).await,
        Body::Upgrade(handler) => {
            tokio::spawn(async move {
                match upgrade.await {
                    Ok(connection) => handler(connection).await,
                    Err(error) => tracing::debug!(%error, "the client did not upgrade"),
                }
            });
            Ok(to_reply(shared, Response::from_parts(head, Body::Full(Bytes::new()))))
        }
        other => Ok(to_reply(shared, Response::from_parts(head, other))),
    }
}

/// The whole body of a request, within the bounds.
async fn read(shared: &Shared, incoming: Incoming) -> Result<Bytes, Status> {
    let limit = shared.settings.max_body_bytes;
    if incoming.size_hint().lower() > limit as u64 {
        return Err(Status::too_large(limit));
    }
    let whole = Limited::new(incoming, limit).collect();
    match tokio::time::timeout(shared.settings.body, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Status::too_large(limit)),
        Ok(Err(error)) => Err(Status::bad_request(format!("the body broke off: {error}"))),
        Err(_) => Err(Status::bad_request("the body did not come in time")),
    }
}
