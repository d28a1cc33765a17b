//! Replies as hyper sends them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderValue, Response, header};
use http_body::{Frame, SizeHint};

use super::Shared;
use crate::body::{self, Body};

/// Why a forwarded body broke off.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// A reply's body on its way out.
pub(crate) enum Reply {
    /// Parts that are there already, and their total size in bytes.
    Parts(std::vec::IntoIter<Bytes>, u64),
    /// Parts that come as they come.
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>),
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Reply::Parts(parts, left) => Poll::Ready(parts.next().map(|part| {
                *left = left.saturating_sub(part.len() as u64);
                Ok(Frame::data(part))
            })),
            Reply::Stream(stream) => stream.as_mut().poll_next(cx).map(|item| item.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Reply::Parts(parts, _) if parts.len() == 0)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Parts(_, left) => SizeHint::with_exact(*left),
            Reply::Stream(_) => SizeHint::new(),
        }
    }
}

impl Reply {
    pub(crate) fn parts(parts: Vec<Bytes>) -> Reply {
        let size = parts.iter().map(|part| part.len() as u64).sum();
        Reply::Parts(parts.into_iter(), size)
    }
}

/// Makes a reply of the logic's; watches end at their time and at shutdown.
pub(crate) fn to_reply(shared: &Shared, response: body::Response) -> Response<Reply> {
    let (mut head, body) = response.into_parts();
    head.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    let reply = match body {
        Body::Full(bytes) => Reply::parts(vec![bytes]),
        Body::Parts(parts) => Reply::parts(parts),
        Body::Watch { lines, timeout_s } => {
            let mut ending = shared.ending.clone();
            let ended = async move {
                let timeout = tokio::time::sleep(Duration::from_secs(timeout_s));
                tokio::select! {
                    () = timeout => {}
                    // An error means that the sender is gone, which is the end as well.
                    _ = ending.wait_for(|ending| *ending) => {}
                }
            };
            // Boxed, because the end is awaited in place.
            Reply::Stream(Box::pin(lines.map(Ok).take_until(Box::pin(ended))))
        }
        // They are taken care of before.
        Body::Node(_) | Body::Remote(_) | Body::Upgrade(_) => Reply::Stream(Box::pin(stream::empty())),
    };
    Response::from_parts(head, reply)
}
