//! What all WebSockets of this server have in common: how they begin and how they end.

use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use crate::accept::listed;
use crate::status::Status;

/// How long a client may take to close its side after it was told that all is said.
const GOODBYE: Duration = Duration::from_secs(5);

/// The key of the handshake, if a client asks for a WebSocket.
pub(super) fn key(headers: &HeaderMap) -> Option<&HeaderValue> {
    let is_asked_for = listed(headers, CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
        && listed(headers, UPGRADE).any(|token| token.eq_ignore_ascii_case("websocket"));
    headers.get(SEC_WEBSOCKET_KEY).filter(|_| is_asked_for)
}

/// The headers with which a client's connection becomes a WebSocket, of this protocol if of one.
pub(super) fn agreed(key: &HeaderValue, protocol: Option<&str>) -> Result<HeaderMap, Status> {
    let header = |text: &str| HeaderValue::from_str(text).map_err(Status::internal);
    let mut headers = HeaderMap::new();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, header(&derive_accept_key(key.as_bytes()))?);
    if let Some(protocol) = protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, header(protocol)?);
    }
    Ok(headers)
}

/// The server's side of a WebSocket on an upgraded connection. No message that is longer is taken, in bytes.
pub(super) async fn on(connection: Upgraded, max_message: usize) -> WebSocketStream<TokioIo<Upgraded>> {
    let config = WebSocketConfig::default().max_message_size(Some(max_message)).max_frame_size(Some(max_message));
    WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, Some(config)).await
}

/// Says goodbye in form: a client takes anything else for a failure.
pub(super) async fn closed(client: &mut SplitSink<WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>, Message>) {
    let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let closing = async {
        client.send(Message::Close(Some(close))).await?;
        client.flush().await
    };
    // The client may be gone already.
    match tokio::time::timeout(GOODBYE, closing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::trace!(%error, "a websocket was not closed in form"),
        Err(_) => tracing::trace!("a client does not read that it is over"),
    }
}

/// Waits until the client has closed its side: closing ours with something unread would take from it what was sent
/// last.
pub(super) async fn ended(client: &mut SplitStream<WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>>) {
    let reading = async { while let Some(Ok(_)) = client.next().await {} };
    if tokio::time::timeout(GOODBYE, reading).await.is_err() {
        tracing::trace!("a client does not close its side");
    }
}
