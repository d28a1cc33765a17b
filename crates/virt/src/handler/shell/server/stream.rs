//! Websockets of protocol `plain.kubevirt.io`, joined to a guest's sockets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_launcher::layout;
use futures::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::sync::CancellationToken;

use super::{Body, Guests, text};
use crate::handler::effects::Served;

/// KubeVirt's subprotocol.
const PROTOCOL: &str = "plain.kubevirt.io";
/// Bytes read from a guest at a time, as upstream.
const BUFFER: usize = 10 << 10;
/// Longest message taken from a client.
const MAX_MESSAGE: usize = 1 << 20;
/// Longest datagram.
const MAX_DATAGRAM: usize = 65_535;
/// How long connecting to a guest's socket may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Whether the API server passes an option on.
pub(super) fn has_option(request: &Request<Incoming>, name: &str) -> bool {
    request.uri().query().is_some_and(|query| carrack_apiserver::Query::parse(query).flag(name))
}

/// Joins the client to a device of the guest that one client at a time can have: a new one takes it over.
pub(super) async fn device(
    guests: &Guests,
    guest: &Served,
    name: &'static str,
    socket: &Path,
    request: Request<Incoming>,
) -> Response<Body> {
    if accept_key(request.headers()).is_none() {
        return no_websocket();
    }
    let preserve = has_option(&request, "preserveSession");
    let Some(held) = guests.hold(&guest.place.uid, name, preserve) else {
        // KubeVirt's words, for the screen; a console has no such choice.
        return text(StatusCode::INTERNAL_SERVER_ERROR, "Active VNC connection. Request denied.");
    };
    // A client that hangs up meanwhile ends this future.
    let held = held.drop_guard();
    match tokio::time::timeout(CONNECT_DEADLINE, layout::connect(socket)).await {
        // One at a time has it.
        Ok(Ok(stream)) => upgrade(request, stream, held.disarm(), None),
        Ok(Err(error)) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("the guest's {name} cannot be reached: {error}"))
        }
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the guest's {name} does not answer")),
    }
}

/// Joins the client to a UDP port of the guest: a message is a datagram.
pub(super) async fn datagrams(
    guest: &Served,
    port: &str,
    streams: &Arc<Semaphore>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (Ok(port), Some(address)) = (port.parse::<u16>(), &guest.address) else {
        return text(StatusCode::BAD_REQUEST, "no such port, or the guest has no address");
    };
    let Ok(share) = streams.clone().try_acquire_owned() else { return too_many() };
    if accept_key(request.headers()).is_none() {
        return no_websocket();
    }
    let any = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = async {
        let socket = UdpSocket::bind(any).await?;
        socket.connect((address.as_str(), port)).await?;
        Ok::<_, std::io::Error>(socket)
    };
    match socket.await {
        Ok(socket) => agree(request, move |client| async move {
            exchange(client, socket).await;
            drop(share);
        }),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("port {port} cannot be reached: {error}")),
    }
}

/// Carries datagrams both ways until the client ends.
async fn exchange<C>(client: WebSocketStream<C>, socket: UdpSocket)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let (mut to_client, mut from_client) = client.split();
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => match received {
                Ok(count) => {
                    let message = Message::Binary(Bytes::copy_from_slice(&buffer[..count]));
                    if to_client.send(message).await.is_err() {
                        return;
                    }
                }
                // Nobody listens there; the next datagram may find somebody.
                Err(error) => tracing::trace!(%error, "a datagram was not taken"),
            },
            message = from_client.next() => {
                let data: Bytes = match message {
                    Some(Ok(Message::Binary(data))) => data,
                    Some(Ok(Message::Text(text))) => Bytes::copy_from_slice(text.as_bytes()),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(_)) => continue,
                };
                if let Err(error) = socket.send(&data).await {
                    tracing::trace!(%error, "a datagram was not sent");
                }
            }
        }
    }
}

/// Joins the client to a TCP port of the guest.
pub(super) async fn port(
    guest: &Served,
    port: &str,
    streams: &Arc<Semaphore>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (Ok(port), Some(address)) = (port.parse::<u16>(), &guest.address) else {
        return text(StatusCode::BAD_REQUEST, "no such port, or the guest has no address");
    };
    let Ok(share) = streams.clone().try_acquire_owned() else { return too_many() };
    if accept_key(request.headers()).is_none() {
        return no_websocket();
    }
    match tokio::time::timeout(CONNECT_DEADLINE, TcpStream::connect((address.as_str(), port))).await {
        Ok(Ok(stream)) => upgrade(request, stream, CancellationToken::new(), Some(share)),
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("port {port} cannot be reached: {error}")),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("port {port} does not answer")),
    }
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
}

/// The answer to the client's key, if it wants a websocket.
fn accept_key(headers: &HeaderMap) -> Option<String> {
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|_| has_token(headers, UPGRADE, "websocket"))?;
    Some(derive_accept_key(key.as_bytes()))
}

fn too_many() -> Response<Body> {
    text(StatusCode::TOO_MANY_REQUESTS, "too many streams to this guest at a time")
}

fn no_websocket() -> Response<Body> {
    text(StatusCode::BAD_REQUEST, "a websocket is expected")
}

/// Agrees to the upgrade; the streams are joined once it has happened. `share` is given back at the end.
fn upgrade<S>(
    request: Request<Incoming>,
    stream: S,
    held: CancellationToken,
    share: Option<OwnedSemaphorePermit>,
) -> Response<Body>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    // The device is free again at the end, also when nothing was ever joined.
    let free = held.clone().drop_guard();
    agree(request, move |client| async move {
        join(client, stream, held).await;
        drop((free, share));
    })
}

/// Agrees to the upgrade; what the connection is for is done once it has happened.
fn agree<F>(
    mut request: Request<Incoming>,
    then: impl FnOnce(WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>) -> F + Send + 'static,
) -> Response<Body>
where
    F: Future<Output = ()> + Send,
{
    let Some(key) = accept_key(request.headers()) else { return no_websocket() };
    let offered = has_token(request.headers(), SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgraded.await {
            Ok(connection) => {
                let config =
                    WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
                then(WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, Some(config)).await)
                    .await;
            }
            Err(error) => tracing::debug!(%error, "a websocket did not come about"),
        }
    });
    let mut reply = Response::new(Full::default());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(key) = HeaderValue::from_str(&key) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, key);
    }
    if offered {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    }
    reply
}

/// Carries bytes both ways until one side ends, or the device is taken over.
async fn join<C, S>(socket: WebSocketStream<C>, stream: S, held: CancellationToken)
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite,
{
    let (mut to_client, mut from_client) = socket.split();
    let (mut from_guest, mut to_guest) = tokio::io::split(stream);
    let down = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            match from_guest.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    let message = Message::Binary(Bytes::copy_from_slice(&buffer[..count]));
                    if to_client.send(message).await.is_err() {
                        break;
                    }
                }
            }
        }
    };
    let up = async {
        while let Some(Ok(message)) = from_client.next().await {
            let data: Bytes = match message {
                Message::Binary(data) => data,
                Message::Text(text) => Bytes::copy_from_slice(text.as_bytes()),
                Message::Close(_) => break,
                _ => continue,
            };
            if to_guest.write_all(&data).await.is_err() || to_guest.flush().await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = down => {}
        () = up => {}
        () = held.cancelled() => {}
    }
    // The other side may be gone already.
    if let Err(error) = to_client.close().await {
        tracing::trace!(%error, "a websocket was not closed in form");
    }
}
