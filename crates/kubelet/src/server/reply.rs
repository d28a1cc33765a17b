//! Replies as the kubelet gives them: mostly text, and bodies that come as they come.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::mpsc;

/// Why a body broke off.
pub(super) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// A reply's body.
pub(super) enum Reply {
    /// All of it, until it is taken.
    Whole(Bytes),
    /// Parts that somebody sends until it drops the sender.
    Parts(mpsc::Receiver<Result<Bytes, Broken>>),
    /// Somebody else's reply, with what keeps the connection to it open.
    Relayed(Incoming, #[expect(dead_code, reason = "held, not read")] SendRequest<Empty<Bytes>>),
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Parts(parts) => parts.poll_recv(cx).map(|part| part.map(|part| part.map(Frame::data))),
            Self::Relayed(body, _) => Pin::new(body).poll_frame(cx).map(|f| f.map(|f| f.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Parts(_) => false,
            Self::Relayed(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Parts(_) => SizeHint::new(),
            Self::Relayed(body, _) => body.size_hint(),
        }
    }
}

/// What has a media type of its own.
pub(super) fn typed(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Plain text.
pub(super) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Reply> {
    typed(code, "text/plain; charset=utf-8", text)
}

/// Metrics in Prometheus' text form.
pub(super) fn metrics(text: String) -> Response<Reply> {
    typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}

/// A value as JSON.
pub(super) fn json(value: &impl serde::Serialize) -> Result<Response<Reply>, Refusal> {
    let body = serde_json::to_vec(value).map_err(|error| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode the reply: {error}"))
    })?;
    Ok(typed(StatusCode::OK, "application/json", body))
}

/// A page for people.
pub(super) fn html(page: String) -> Response<Reply> {
    typed(StatusCode::OK, "text/html; charset=utf-8", page)
}

/// Where else it is.
pub(super) fn moved(to: &str) -> Result<Response<Reply>, Refusal> {
    let to = HeaderValue::from_str(to).map_err(|error| Refusal::bad(error.to_string()))?;
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    response.headers_mut().insert(LOCATION, to);
    Ok(response)
}

/// What comes in parts.
pub(super) fn stream(content_type: &'static str, parts: mpsc::Receiver<Result<Bytes, Broken>>) -> Response<Reply> {
    let mut response = Response::new(Reply::Parts(parts));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Why a request is not done: a status code, and text for whoever asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: StatusCode,
    pub text: String,
}

impl Refusal {
    pub(super) fn new(code: StatusCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }
}

impl From<crate::effects::OpError> for Refusal {
    fn from(error: crate::effects::OpError) -> Self {
        use crate::effects::OpError;
        let code = match error {
            OpError::NotFound(_) => StatusCode::NOT_FOUND,
            OpError::Failed(_) | OpError::Infeasible(_) | OpError::Config(_) => StatusCode::INTERNAL_SERVER_ERROR,
            OpError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
        };
        // The kind of failure is in the code; the text is for people.
        let text = match error {
            OpError::NotFound(text) | OpError::Failed(text) | OpError::Infeasible(text) | OpError::Config(text) => text,
            OpError::TimedOut(seconds) => format!("the container runtime did not answer within {seconds} s"),
        };
        Self::new(code, text)
    }
}

impl From<Refusal> for Response<Reply> {
    fn from(refusal: Refusal) -> Self {
        text(refusal.code, refusal.text)
    }
}
