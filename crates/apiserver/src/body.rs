//! Replies: whole, in shared parts, as a stream, or handed over to somebody else's connection.

use std::pin::Pin;

use bytes::Bytes;
use futures::Stream;
use futures::future::BoxFuture;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use crate::call::Call;
use crate::part::{self, Part};
use crate::status::Status;

/// A reply to a request.
pub type Response = http::Response<Body>;

/// The events of a watch, one line of JSON after the other; parts of a line may come apart.
pub type Lines = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// A reply's body.
pub enum Body {
    /// All of it.
    Full(Bytes),
    /// All of it, in parts that other replies share.
    Parts(Vec<Part>),
    /// A stream that the server ends after a while.
    Watch {
        /// What is sent.
        lines: Lines,
        /// When the server ends it, in seconds from the start.
        timeout_s: u64,
    },
    /// The request goes on to a node's kubelet; the shell carries it there and back, upgrades included.
    Node(NodeTarget),
    /// Another server answers; the shell carries the request there and back, streams and upgrades included.
    Remote(Box<Call>),
    /// The connection is handed to this handler after the reply's head (101 Switching Protocols).
    Upgrade(Upgrade),
}

/// Takes over an upgraded connection.
pub type Upgrade = Box<dyn FnOnce(hyper::upgrade::Upgraded) -> BoxFuture<'static, ()> + Send>;

/// What is spoken with whom a request goes on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTPS with an agent of the cluster, both sides with certificates of its authority.
    Agent,
    /// Plain HTTP.
    Http,
    /// HTTPS with a server of any certificate.
    Https,
}

/// Where a request goes on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTarget {
    /// The node's name, which its serving certificate carries; empty for what is no agent of a node.
    pub node: String,
    /// What is spoken there.
    pub scheme: Scheme,
    /// IP address or host name.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query to ask for.
    pub path_and_query: String,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Body::Parts(parts) => write!(f, "Parts({})", parts.len()),
            Body::Watch { timeout_s, .. } => write!(f, "Watch({timeout_s} s)"),
            Body::Node(target) => target.fmt(f),
            Body::Remote(call) => write!(f, "Remote({})", call.url()),
            Body::Upgrade(_) => f.write_str("Upgrade"),
        }
    }
}

impl Body {
    /// How many bytes it has, if that is known.
    pub fn size_bytes(&self) -> Option<usize> {
        match self {
            Body::Full(bytes) => Some(bytes.len()),
            Body::Parts(parts) => Some(part::size_bytes(parts)),
            Body::Watch { .. } | Body::Node(_) | Body::Remote(_) | Body::Upgrade(_) => None,
        }
    }

    /// What it begins with, if that is known.
    pub fn first(&self) -> Option<Bytes> {
        match self {
            Body::Full(bytes) => Some(bytes.clone()),
            Body::Parts(parts) => parts.get(..1).map(part::joined),
            Body::Watch { .. } | Body::Node(_) | Body::Remote(_) | Body::Upgrade(_) => None,
        }
    }

    /// The whole body in one piece; empty for streams and hand-overs.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Body::Full(bytes) => bytes,
            Body::Parts(parts) => part::joined(&parts),
            Body::Watch { .. } | Body::Node(_) | Body::Remote(_) | Body::Upgrade(_) => Bytes::new(),
        }
    }
}

/// A reply with a JSON body.
pub fn json(code: u16, body: Body) -> Response {
    typed(code, HeaderValue::from_static("application/json"), body)
}

/// A reply with a body of some type.
pub fn typed(code: u16, content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A reply with a JSON value.
pub fn value(code: u16, value: &Value) -> Response {
    // Writing a tree of JSON values to memory cannot fail.
    json(code, Body::Full(serde_json::to_vec(value).unwrap_or_default().into()))
}

/// A reply with plain text.
pub fn text(code: u16, text: impl Into<String>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    typed(code, content_type, Body::Full(Bytes::from(text.into())))
}

impl From<Status> for Response {
    fn from(status: Status) -> Response {
        let mut response = value(status.code, &status.to_json());
        if let Some(seconds) = status.details.as_ref().and_then(|d| d.retry_after_s)
            && let Ok(seconds) = HeaderValue::from_str(&seconds.to_string())
        {
            response.headers_mut().insert(http::header::RETRY_AFTER, seconds);
        }
        response
    }
}
