//! Watches over WebSockets: each event is a message of its own, the line that it would be else.
//!
//! Whoever asks has been let in as for any other watch, which ends at the same time; what the client says is not
//! listened to but for its goodbye. Upstream: `HandleWS` of `k8s.io/apiserver/pkg/endpoints/handlers/watch.go`.

use carrack_auth::authn::WEBSOCKET_TOKEN_PREFIX;
use futures::{SinkExt as _, StreamExt as _};
use http::header::{SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::handover::Handover;
use super::reply::{Reply, time_is_up};
use super::{Shared, websocket};
use crate::accept::listed;
use crate::body::Lines;
use crate::status::Status;

/// Longest message that is taken from a client, in bytes: nothing that it says is of use.
const MAX_MESSAGE: usize = 4 << 10;

/// Begins with a watch that was asked for by these headers, with this key: the reply by which the client's connection
/// becomes a WebSocket.
///
/// # Errors
/// 400 for another version of WebSockets.
pub(super) fn begin(
    shared: &Shared,
    (key, headers): (&HeaderValue, &HeaderMap),
    client: Handover,
    lines: Lines,
    timeout_s: u64,
) -> Result<Response<Reply>, Status> {
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(Status::bad_request("of WebSockets, version 13 is spoken"));
    }
    let agreed = websocket::agreed(key, protocol(headers))?;
    let ended = time_is_up(shared, timeout_s);
    tokio::spawn(client.carry(move |connection| async move {
        run(websocket::on(connection, MAX_MESSAGE).await, lines, ended).await;
    }));
    let mut reply = Response::new(Reply::parts(Vec::new()));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *reply.headers_mut() = agreed;
    Ok(reply)
}

/// The one protocol that a client offers beside its token; of several none can be told from the others.
fn protocol(headers: &HeaderMap) -> Option<&str> {
    let mut offered = listed(headers, SEC_WEBSOCKET_PROTOCOL)
        .filter(|protocol| !protocol.is_empty() && !protocol.starts_with(WEBSOCKET_TOKEN_PREFIX));
    offered.next().filter(|_| offered.next().is_none())
}

/// Tells the events, until there are no more, the client leaves or its time is up.
async fn run(
    socket: WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>,
    mut lines: Lines,
    ended: impl Future<Output = ()>,
) {
    let (mut to_client, mut from_client) = socket.split();
    let telling = async {
        let mut line = Vec::new();
        while let Some(part) = lines.next().await {
            // A part may end within a line, and hold many.
            for piece in part.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(piece);
                if !piece.ends_with(b"\n") {
                    continue;
                }
                let Ok(text) = String::from_utf8(std::mem::take(&mut line)) else { return };
                if to_client.send(Message::text(text)).await.is_err() {
                    return;
                }
            }
        }
    };
    let leaving = async {
        while let Some(Ok(message)) = from_client.next().await {
            if message.is_close() {
                return;
            }
        }
    };
    let has_left = tokio::select! {
        () = telling => false,
        () = ended => false,
        () = leaving => true,
    };
    websocket::closed(&mut to_client).await;
    if !has_left {
        websocket::ended(&mut from_client).await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    #[tokio::test]
    async fn each_line_is_a_message() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = WebSocketStream::from_raw_socket(ours, Role::Server, None).await;
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        let parts: [&'static str; 4] = ["{\"n\":1}\n{\"n\"", ":2", "}\n{\"n\":3}\n", "{\"never whole"];
        let parts = parts.map(|part| Bytes::from_static(part.as_bytes()));
        let lines: Lines = Box::pin(futures::stream::iter(parts));
        let telling = run(server, lines, std::future::pending());
        let hearing = async move {
            let mut heard = Vec::new();
            while let Some(Ok(message)) = client.next().await {
                match message {
                    Message::Text(text) => heard.push(text.to_string()),
                    Message::Close(_) => break,
                    _ => {}
                }
            }
            heard
        };
        let ((), heard) = tokio::join!(telling, hearing);
        assert_eq!(heard, ["{\"n\":1}\n", "{\"n\":2}\n", "{\"n\":3}\n"]);
    }

    #[test]
    fn one_protocol_is_agreed_on() {
        for (offered, want) in [
            ("", None),
            ("a", Some("a")),
            ("base64url.bearer.authorization.k8s.io.eHh4, base64url.binary.k8s.io", Some("base64url.binary.k8s.io")),
            ("a, b", None),
        ] {
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offered))]);
            assert_eq!(protocol(&headers), want, "{offered}");
        }
    }
}
