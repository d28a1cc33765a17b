//! How requests reach the API server: in the process, or over HTTPS with a client certificate.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::{ApiError, ApiRequest, ApiResponse, Method, RESTS_ON};

/// Longest reply body that is read, in bytes. A list page of 500 large objects stays below it.
const MAX_REPLY: usize = 256 << 20;
/// Longest watch event that is read, in bytes.
const MAX_EVENT: usize = 16 << 20;
/// How long a request other than a watch may take, and a watch to open.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a watch lasts at the most whose server was not told.
const LONGEST_WATCH: Duration = Duration::from_secs(2 * 3600);

/// A running watch: JSON events, then an error or the end.
pub type EventStream = BoxStream<'static, Result<Bytes, ApiError>>;

/// A way to the API server, under one identity.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request and returns the reply, or the refusal as an error.
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>>;
    /// Opens a watch.
    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>>;
}

/// The request as HTTP, for any transport.
///
/// # Errors
/// [`ApiError::Transport`] when the path is no valid URL path.
pub fn to_http(request: ApiRequest, base: &str) -> Result<http::Request<Bytes>, ApiError> {
    let method = match request.method {
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Patch => http::Method::PATCH,
        Method::Delete => http::Method::DELETE,
    };
    let accept = if request.metadata_only {
        if request.path.contains("watch=true") || request.method != Method::Get {
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
        } else {
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
        }
    } else if request.path == crate::discovery::PATH {
        crate::discovery::ACCEPT
    } else {
        "application/json"
    };
    let mut builder = http::Request::builder()
        .method(method)
        .uri(format!("{base}{}", request.path))
        .header(http::header::ACCEPT, accept)
        .header(http::header::USER_AGENT, concat!("carrack/", env!("CARGO_PKG_VERSION")));
    if !request.body.is_empty() {
        builder = builder.header(http::header::CONTENT_TYPE, request.content_type.media_type());
    }
    if !request.rests_on.is_empty() {
        // Our own types have string keys and no failing serializers.
        builder = builder.header(RESTS_ON, serde_json::to_vec(&request.rests_on).unwrap_or_default());
    }
    builder.body(request.body).map_err(|e| ApiError::Transport(format!("the request is malformed: {e}")))
}

/// Cuts a stream of bytes into lines, one JSON document each. A line that came in one piece is a part of that piece: API servers in
/// the process hand all who watch the same one, and who is behind keeps no copy of it. Nothing is kept of a line that has been handed on.
pub fn lines<S>(stream: S) -> EventStream
where
    S: futures::Stream<Item = Result<Bytes, ApiError>> + Send + 'static,
{
    struct Lines<S> {
        stream: std::pin::Pin<Box<S>>,
        /// What came last and was not looked at yet.
        piece: Bytes,
        /// The beginning of a line of which more is to come. It goes with the line: a `BytesMut` would keep the room for the next one.
        begun: Vec<u8>,
        ended: bool,
    }
    let state = Lines { stream: Box::pin(stream), piece: Bytes::new(), begun: Vec::new(), ended: false };
    futures::stream::unfold(state, |mut s| async move {
        loop {
            if let Some(at) = s.piece.iter().position(|b| *b == b'\n') {
                let mut line = s.piece.split_to(at);
                s.piece.advance(1);
                if !s.begun.is_empty() {
                    s.begun.extend_from_slice(&line);
                    line = std::mem::take(&mut s.begun).into();
                }
                if !line.is_empty() {
                    return Some((Ok(line), s));
                }
                continue;
            }
            s.begun.extend_from_slice(&std::mem::take(&mut s.piece));
            if s.ended {
                let rest = Bytes::from(std::mem::take(&mut s.begun));
                return (!rest.is_empty()).then_some((Ok(rest), s));
            }
            if s.begun.len() > MAX_EVENT {
                s.ended = true;
                s.begun.clear();
                return Some((Err(ApiError::Transport("a watch event is too long".into())), s));
            }
            match s.stream.next().await {
                Some(Ok(bytes)) => s.piece = bytes,
                Some(Err(error)) => {
                    s.ended = true;
                    s.begun.clear();
                    return Some((Err(error), s));
                }
                None => s.ended = true,
            }
        }
    })
    .boxed()
}

/// For how long a watch is read: somewhat longer than its server was asked to serve it. What is served behind the API
/// server by somebody else may have stopped without a word, and would be waited for without end.
fn lasts(path: &str) -> Duration {
    let asked = path.split(['?', '&']).find_map(|pair| pair.strip_prefix("timeoutSeconds="));
    let asked = asked.and_then(|seconds| seconds.parse().ok()).map_or(LONGEST_WATCH, Duration::from_secs);
    asked.saturating_add(TIMEOUT)
}

/// The user agent of a role. None when the name is no text for a header.
#[must_use]
pub fn user_agent(name: &str) -> Option<http::HeaderValue> {
    http::HeaderValue::from_str(&format!("{name}/{}", env!("CARGO_PKG_VERSION"))).ok()
}

/// The API server over HTTPS.
#[derive(Clone)]
pub struct HttpsTransport {
    client: Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: Arc<str>,
    authorization: Option<http::HeaderValue>,
    agent: Option<http::HeaderValue>,
}

impl HttpsTransport {
    /// A transport to `base` (`https://host:port`) with this TLS configuration (which holds the client certificate) and, if
    /// there is one, a bearer token. A server whose certificate is for another name than the host in `base` is one behind a
    /// tunnel or an address of its own (`tls-server-name` of kubeconfigs).
    ///
    /// # Errors
    /// When the token has characters that no header may have, or no server can have the name.
    pub fn new(
        base: &str,
        name: Option<&str>,
        tls: rustls::ClientConfig,
        token: Option<&str>,
    ) -> Result<Self, ApiError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(Duration::from_secs(10)));
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(30)));
        let mut https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        if let Some(name) = name {
            let name = rustls::pki_types::ServerName::try_from(name.to_owned())
                .map_err(|_| ApiError::Transport(format!("{name:?} is no name of a server")))?;
            https = https.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name));
        }
        let https = https.enable_all_versions().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(Duration::from_secs(30))
            .http2_keep_alive_timeout(Duration::from_secs(15))
            .build(https);
        let authorization = token
            .map(|t| {
                let mut value = http::HeaderValue::from_str(&format!("Bearer {t}"))
                    .map_err(|_| ApiError::Transport("the bearer token is malformed".into()))?;
                value.set_sensitive(true);
                Ok::<_, ApiError>(value)
            })
            .transpose()?;
        Ok(Self { client, base: base.trim_end_matches('/').into(), authorization, agent: None })
    }

    /// Says under which name requests are made: what the API server notes as the manager of fields.
    #[must_use]
    pub fn named(mut self, agent: &str) -> Self {
        self.agent = user_agent(agent);
        self
    }

    async fn open(self, request: ApiRequest) -> Result<http::Response<hyper::body::Incoming>, ApiError> {
        let mut request = to_http(request, &self.base)?.map(Full::new);
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(http::header::AUTHORIZATION, value.clone());
        }
        if let Some(agent) = &self.agent {
            request.headers_mut().insert(http::header::USER_AGENT, agent.clone());
        }
        self.client.request(request).await.map_err(|e| ApiError::Transport(causes(&e)))
    }
}

/// An error with its causes, in one line.
#[must_use]
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

async fn read_body(body: hyper::body::Incoming) -> Result<Bytes, ApiError> {
    http_body_util::Limited::new(body, MAX_REPLY)
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .map_err(|e| ApiError::Transport(format!("the reply broke off: {}", causes(e.as_ref()))))
}

impl Transport for HttpsTransport {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        let this = self.clone();
        Box::pin(async move {
            let exchange = async {
                let unread = request.unread;
                let reply = this.open(request).await?;
                let status = reply.status().as_u16();
                if unread && (200..300).contains(&status) {
                    return Ok(ApiResponse { status, body: Bytes::new() });
                }
                let body = read_body(reply.into_body()).await?;
                if (200..300).contains(&status) {
                    Ok(ApiResponse { status, body })
                } else {
                    Err(ApiError::from_reply(status, &body))
                }
            };
            tokio::time::timeout(TIMEOUT, exchange)
                .await
                .unwrap_or_else(|_| Err(ApiError::Transport(format!("no reply within {} s", TIMEOUT.as_secs()))))
        })
    }

    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        let this = self.clone();
        Box::pin(async move {
            let lasts = lasts(&request.path);
            let opens = async {
                let reply = this.open(request).await?;
                let status = reply.status().as_u16();
                if (200..300).contains(&status) {
                    return Ok(reply);
                }
                let body = read_body(reply.into_body()).await?;
                Err(ApiError::from_reply(status, &body))
            };
            let reply = tokio::time::timeout(TIMEOUT, opens)
                .await
                .unwrap_or_else(|_| Err(ApiError::Transport("the watch did not open in time".into())))?;
            let chunks = reply.into_body().into_data_stream().map_err(|e| ApiError::Transport(causes(&e)));
            Ok(lines(chunks.take_until(tokio::time::sleep(lasts))))
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// The lines of a stream that comes in these pieces, and then breaks off or ends.
    fn cut(pieces: &[&Bytes], breaks: bool) -> Vec<Result<Bytes, ApiError>> {
        let broken = breaks.then(|| Err(ApiError::Transport("broken".into())));
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::clone(piece))).chain(broken).collect();
        lines(futures::stream::iter(pieces)).collect::<Vec<_>>().now_or_never().expect("all of them are there")
    }

    #[test]
    fn lines_are_cut_wherever_the_pieces_end() {
        let (text, expected) = (b"{\"a\":1}\n\n{\"b\":2}\nrest", [&b"{\"a\":1}"[..], b"{\"b\":2}", b"rest"]);
        for at in 0..=text.len() {
            for to in at..=text.len() {
                let pieces = [&text[..at], &text[at..to], &text[to..]].map(Bytes::from_static);
                let pieces: Vec<&Bytes> = pieces.iter().collect();
                let whole: Vec<Bytes> = cut(&pieces, false).into_iter().map(|line| line.expect("a line")).collect();
                assert_eq!(whole, expected, "{at} {to}");
                // What was begun when it broke off is no event.
                let broken = cut(&pieces, true);
                let (last, lines) = broken.split_last().expect("the break at least");
                assert!(last.is_err() && lines.len() == 2, "{at} {to}: {broken:?}");
            }
        }
    }

    #[test]
    fn a_line_that_comes_in_one_piece_is_not_copied() {
        let piece = Bytes::from_static(b"one\ntwo\n");
        let lines = cut(&[&piece], false);
        let places: Vec<_> = lines.iter().flatten().map(|line| line.as_ptr()).collect();
        assert_eq!(places, [piece.as_ptr(), piece[4..].as_ptr()]);
    }

    #[test]
    fn a_watch_lasts_somewhat_longer_than_it_was_asked_for() {
        for (path, seconds) in [
            ("/api/v1/pods?watch=true&timeoutSeconds=300", 330),
            ("/api/v1/pods?timeoutSeconds=7&watch=true", 37),
            ("/api/v1/pods?watch=true", 7230),
            ("/api/v1/pods?watch=true&timeoutSeconds=soon", 7230),
        ] {
            assert_eq!(lasts(path), Duration::from_secs(seconds), "{path}");
        }
    }
}
