//! SPDY inside of a WebSocket: binary messages hold the bytes as they are, of whatever length.

use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::serve::websocket::{closed, ended};

/// The most that one message holds of what the kubelet says.
const PIECE: usize = 32 << 10;

/// Joins the two until one of them ends.
pub(super) async fn run(
    client: WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>,
    kubelet: impl AsyncRead + AsyncWrite,
) {
    let (mut to_client, mut from_client) = client.split();
    let (mut from_kubelet, mut to_kubelet) = tokio::io::split(kubelet);
    let out = async {
        let mut buffer = vec![0; PIECE];
        while let Ok(count @ 1..) = from_kubelet.read(&mut buffer).await {
            if to_client.send(Message::binary(buffer[..count].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let into = async {
        loop {
            match from_client.next().await {
                Some(Ok(Message::Binary(data))) => {
                    if to_kubelet.write_all(&data).await.is_err() || to_kubelet.flush().await.is_err() {
                        break;
                    }
                }
                // SPDY is no text.
                Some(Ok(Message::Text(_) | Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            }
        }
    };
    let is_over = tokio::select! {
        () = out => false,
        () = into => true,
    };
    closed(&mut to_client).await;
    if !is_over {
        ended(&mut from_client).await;
    }
}
