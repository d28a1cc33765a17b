//! Replies as hyper sends them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderValue, Response, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

use super::Shared;
use super::gzip::{self, Zipped};
use crate::body::{self, Body};
use crate::part::{Part, Pieces};
use crate::status::Status;

/// Why a forwarded body broke off.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// A reply's body on its way out.
pub(crate) enum Reply {
    /// All of it, piece by piece.
    Pieces(Pieces),
    /// The same, compressed on the way.
    Zipped(Box<Zipped>),
    /// A reply that comes before the request was read to its end. What is left of that is kept until the reply is out:
    /// a client of HTTP/2 that is still sending would otherwise be cut off before it reads why.
    Early {
        /// The reply, until it is taken.
        whole: Option<Bytes>,
        #[expect(dead_code, reason = "it is there to be dropped after the reply is out, not before")]
        unread: Incoming,
    },
    /// Parts that come as they come.
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>),
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Reply::Pieces(pieces) => Poll::Ready(pieces.next().map(|piece| Ok(Frame::data(piece)))),
            Reply::Zipped(zipped) => {
                Poll::Ready(zipped.next().map(|piece| piece.map(Frame::data)).map_err(Into::into).transpose())
            }
            Reply::Early { whole, .. } => Poll::Ready(whole.take().map(|part| Ok(Frame::data(part)))),
            Reply::Stream(stream) => stream.as_mut().poll_next(cx).map(|item| item.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Pieces(pieces) => pieces.left_bytes() == 0,
            Reply::Early { whole, .. } => whole.is_none(),
            Reply::Zipped(_) | Reply::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Pieces(pieces) => SizeHint::with_exact(pieces.left_bytes()),
            Reply::Early { whole, .. } => SizeHint::with_exact(whole.as_ref().map_or(0, Bytes::len) as u64),
            Reply::Zipped(_) | Reply::Stream(_) => SizeHint::new(),
        }
    }
}

impl Reply {
    pub(crate) fn parts(parts: Vec<Part>) -> Reply {
        Reply::Pieces(Pieces::new(parts))
    }
}

/// A refusal of a request that was not read to its end.
pub(crate) fn early(status: Status, unread: Incoming) -> Response<Reply> {
    let (head, body) = body::Response::from(status).into_parts();
    Response::from_parts(head, Reply::Early { whole: Some(body.into_bytes()), unread })
}

/// What answers a HEAD: everything but the body, which would break the client's stream of HTTP/2. How long that would be is
/// told all the same.
pub(super) fn without_body(mut response: Response<Reply>) -> Response<Reply> {
    let size = http_body::Body::size_hint(response.body()).exact();
    if let Some(bytes) = size.filter(|bytes| *bytes > 0) {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(bytes.into());
    }
    match response.body_mut() {
        Reply::Early { whole, .. } => *whole = None,
        other => *other = Reply::parts(Vec::new()),
    }
    response
}

/// Ends when a watch is over: after so many seconds, and at shutdown.
pub(super) fn time_is_up(shared: &Shared, timeout_s: u64) -> impl Future<Output = ()> + Send + use<> {
    let mut ending = shared.ending.clone();
    async move {
        let timeout = tokio::time::sleep(Duration::from_secs(timeout_s));
        tokio::select! {
            () = timeout => {}
            // An error means that the sender is gone, which is the end as well.
            _ = ending.wait_for(|ending| *ending) => {}
        }
    }
}

/// Makes a reply of the logic's; watches end at their time and at shutdown. `zip` is whether the client takes gzip.
pub(crate) fn to_reply(shared: &Shared, response: body::Response, zip: bool) -> Response<Reply> {
    let (mut head, body) = response.into_parts();
    let large = body.size_bytes().is_some_and(|bytes| bytes as u64 >= gzip::MIN_BYTES);
    let zip = zip && large && !head.headers.contains_key(header::CONTENT_ENCODING);
    if large {
        head.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    if zip {
        head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    head.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    let reply = match body {
        Body::Full(bytes) if zip => Reply::Zipped(Box::new(Zipped::new(vec![bytes.into()]))),
        Body::Parts(parts) if zip => Reply::Zipped(Box::new(Zipped::new(parts))),
        Body::Full(bytes) => Reply::parts(vec![bytes.into()]),
        Body::Parts(parts) => Reply::parts(parts),
        Body::Watch { lines, timeout_s } => {
            // Boxed, because the end is awaited in place.
            Reply::Stream(Box::pin(lines.map(Ok).take_until(Box::pin(time_is_up(shared, timeout_s)))))
        }
        // They are taken care of before.
        Body::Node(_) | Body::Remote(_) | Body::Upgrade(_) => Reply::Stream(Box::pin(stream::empty())),
    };
    Response::from_parts(head, reply)
}
