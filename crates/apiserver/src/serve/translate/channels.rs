//! Exec and attach: the channels of a WebSocket and the streams of SPDY.
//!
//! ```text
//!   client's message                      kubelet's frame
//!     0 …            stdin            ─▶  data of stream stdin
//!     255 0          its end          ─▶  the last data of it
//!     4 …            terminal's size  ─▶  data of stream resize
//!     1 …, 2 …       stdout, stderr   ◀─  data of theirs
//!     3 …            the outcome      ◀─  the whole of stream error, once all output has come
//! ```
//!
//! The two directions are carried apart, so that one that is not read does not hold up the other.

use std::io;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::Streams;
use super::spdy::{self, Frame};
use crate::serve::unreached::broken_off;
use crate::serve::websocket::{closed, ended};
use crate::status::Status;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Closes the channel that the next byte names.
const CLOSE: u8 = 255;
/// The most of one message that a frame takes along.
const PIECE: usize = 1 << 20;
/// Longest outcome that is taken from a kubelet; it is a `Status`.
const MAX_OUTCOME: usize = 64 << 10;
/// How many pings of the kubelet's may wait for their answers.
const PINGS: usize = 4;

/// One stream of the kubelet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    channel: u8,
    id: u32,
    name: &'static str,
}

/// The streams that are opened, in the order in which upstream's client opens them.
fn opened(streams: Streams) -> Vec<Stream> {
    let wanted = [
        (ERROR, "error", true),
        (STDIN, "stdin", streams.stdin),
        (STDOUT, "stdout", streams.stdout),
        (STDERR, "stderr", streams.stderr),
        (RESIZE, "resize", streams.tty),
    ];
    // A client's streams have odd numbers.
    let ids = (1..).step_by(2);
    let wanted = wanted.into_iter().filter(|(_, _, wanted)| *wanted);
    wanted.zip(ids).map(|((channel, name, _), id)| Stream { channel, id, name }).collect()
}

/// Carries everything both ways, until the outcome is told or the client is gone.
pub(super) async fn run(
    client: WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>,
    kubelet: impl AsyncRead + AsyncWrite,
    streams: Streams,
) {
    let opened = opened(streams);
    let (mut to_client, mut from_client) = client.split();
    let (mut from_kubelet, mut to_kubelet) = tokio::io::split(kubelet);
    let (pings, pinged) = mpsc::channel(PINGS);
    let is_told = tokio::select! {
        () = inward(&mut from_client, &mut to_kubelet, &opened, pinged) => false,
        () = outward(&mut from_kubelet, &mut to_client, &opened, pings) => true,
    };
    closed(&mut to_client).await;
    if is_told {
        ended(&mut from_client).await;
    }
}

/// From the client to the kubelet, until the client ends. A kubelet that takes no more may still have something to say.
async fn inward(
    client: &mut SplitStream<WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>>,
    kubelet: &mut (impl AsyncWrite + Unpin),
    opened: &[Stream],
    mut pinged: mpsc::Receiver<u32>,
) {
    let mut takes = true;
    for (index, stream) in opened.iter().enumerate() {
        let frame = spdy::open(stream.id, index == 0, &[("streamtype", stream.name)]);
        takes = takes && put(kubelet, &frame).await;
    }
    let mut stdin_is_open = true;
    loop {
        let message = tokio::select! {
            message = client.next() => message,
            Some(id) = pinged.recv() => {
                takes = takes && put(kubelet, &spdy::ping(id)).await;
                continue;
            }
        };
        let data: Bytes = match message {
            Some(Ok(Message::Binary(data))) => data,
            Some(Ok(Message::Text(text))) => Bytes::copy_from_slice(text.as_bytes()),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            Some(Ok(_)) => continue,
        };
        let Some((channel, bytes)) = data.split_first() else { continue };
        let (channel, bytes, ends) = match (*channel, bytes) {
            (CLOSE, [channel, ..]) => (*channel, &[][..], true),
            (channel, bytes) => (channel, bytes, false),
        };
        let is_taken = match channel {
            STDIN => stdin_is_open,
            RESIZE => !ends,
            // Nobody sends on the others, nor closes them.
            _ => false,
        };
        stdin_is_open &= channel != STDIN || !ends;
        let Some(stream) = opened.iter().find(|stream| stream.channel == channel && is_taken) else { continue };
        for piece in bytes.chunks(PIECE) {
            takes = takes && put(kubelet, &spdy::data(stream.id, piece, false)).await;
        }
        if ends {
            takes = takes && put(kubelet, &spdy::data(stream.id, &[], true)).await;
        }
    }
}

/// Whether the kubelet took it.
async fn put(kubelet: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> bool {
    let writing = async {
        kubelet.write_all(frame).await?;
        kubelet.flush().await
    };
    writing.await.inspect_err(|error| tracing::debug!(%error, "a kubelet takes no more of a stream")).is_ok()
}

/// From the kubelet to the client, until the outcome is told or the client takes no more.
async fn outward(
    kubelet: &mut (impl AsyncRead + Unpin),
    client: &mut SplitSink<WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>, Message>,
    opened: &[Stream],
    pings: mpsc::Sender<u32>,
) {
    // Upstream tells so that the connection has come about.
    let first = opened.iter().map(|stream| stream.channel).filter(|channel| [STDOUT, STDERR].contains(channel)).min();
    if client.send(Message::binary(vec![first.unwrap_or(ERROR)])).await.is_err() {
        return;
    }
    let mut outcome = Vec::new();
    let mut open: Vec<&Stream> =
        opened.iter().filter(|stream| [STDOUT, STDERR, ERROR].contains(&stream.channel)).collect();
    let mut broken = None;
    // Whether the kubelet has said that there is no more to say on the outcome.
    let mut is_complete = false;
    while !open.is_empty() {
        let ended = match spdy::next(kubelet).await {
            Ok(Some(Frame::Data { stream, size, ends })) => {
                let channel = open.iter().find(|open| open.id == stream).map(|open| open.channel);
                match pass(kubelet, client, channel, size, &mut outcome).await {
                    Ok(true) => {}
                    // The client takes no more.
                    Ok(false) => return,
                    Err(error) => {
                        broken = Some(error);
                        break;
                    }
                }
                is_complete |= ends && channel == Some(ERROR);
                ends.then_some(stream)
            }
            Ok(Some(Frame::Reply { stream, ends })) => ends.then_some(stream),
            Ok(Some(Frame::Reset { stream })) => Some(stream),
            Ok(Some(Frame::Ping { id })) => {
                // Ours would be odd, and we send none. Where so many wait, one more answer would say nothing new.
                if id % 2 == 0 && pings.try_send(id).is_err() {
                    tracing::trace!("a ping is not answered");
                }
                None
            }
            Ok(Some(Frame::Other)) => None,
            // So upstream's server ends its connections.
            Ok(None) => break,
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        open.retain(|open| ended != Some(open.id));
    }
    let mut message = vec![ERROR];
    message.extend(match broken {
        _ if !outcome.is_empty() => outcome,
        Some(error) => failure(&format!("error reading from the kubelet: {}", broken_off(&error))),
        // Nothing that is said in full says that all went well; what broke off before says nothing. Upstream's client takes
        // both for success.
        None if is_complete => br#"{"metadata":{},"status":"Success"}"#.to_vec(),
        None => failure("the kubelet's connection ended before it told the outcome"),
    });
    if let Err(error) = client.send(Message::binary(message)).await {
        tracing::debug!(%error, "a client is not told how its command ended");
    }
}

/// Passes on the data of a frame, of a stream that is none of ours if it has no channel. False when the client takes no more.
async fn pass(
    kubelet: &mut (impl AsyncRead + Unpin),
    client: &mut SplitSink<WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>, Message>,
    channel: Option<u8>,
    size: usize,
    outcome: &mut Vec<u8>,
) -> io::Result<bool> {
    let mut left = size;
    while left > 0 {
        let mut message = vec![channel.unwrap_or(ERROR)];
        spdy::piece(kubelet, &mut left, &mut message).await?;
        match channel {
            None => {}
            Some(ERROR) => {
                let room = MAX_OUTCOME.saturating_sub(outcome.len());
                outcome.extend(message.into_iter().skip(1).take(room));
            }
            Some(_) if client.send(Message::binary(message)).await.is_err() => return Ok(false),
            Some(_) => {}
        }
    }
    Ok(true)
}

fn failure(why: &str) -> Vec<u8> {
    Status::internal(why).to_json().to_string().into_bytes()
}
