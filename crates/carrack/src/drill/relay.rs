#![expect(clippy::disallowed_methods, reason = "shell: it holds replies back for a while")]
//! Stands between one role and the API server, and lets some of what passes fail or come late.
//!
//! ```text
//!   role ──HTTPS──► relay ──HTTPS, with the role's own certificate──► API server
//!                     │ fault of the request's path: refused with 504, or each piece of its reply held back
//! ```
//!
//! All that it does ends when it is dropped: connections, and what they hold back.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Pki, Sans, Server};
use carrack_auth::tls::{self, Reloadable};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::roles::apiserver::now_unix_s;

/// What a fault does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with 504, as by an API server that waited for its store in vain.
    TimesOut,
    /// Each piece of its reply arrives this much later.
    Late(Duration),
}

/// What a request's path and query are answered with.
type Answer = dyn Fn(&str) -> Option<Fault> + Send + Sync;

/// Chooses what becomes of a request by its path and query.
#[derive(Clone)]
struct Choice(Arc<Answer>);

impl std::fmt::Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a choice")
    }
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A relay that runs.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    _ends: DropGuard,
}

#[derive(Debug)]
struct Shared {
    client: Client<HttpsConnector<HttpConnector>, Incoming>,
    server: Uri,
    choice: Mutex<Choice>,
    refused: AtomicU64,
    held_back: AtomicU64,
}

impl Relay {
    /// Listens, and passes everything on as the role whose kubeconfig this is.
    ///
    /// # Errors
    /// It cannot listen, or the kubeconfig cannot be used.
    pub async fn start(pki: &Pki, kubeconfig: &std::path::Path) -> anyhow::Result<Self> {
        let target = Kubeconfig::load(kubeconfig)?.resolve(None)?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(target.client_config()?)
            .https_only()
            .enable_all_versions()
            .wrap_connector(http);
        let shared = Arc::new(Shared {
            client: Client::builder(TokioExecutor::new()).build(connector),
            server: target.server.parse().context("the server's address")?,
            choice: Mutex::new(Choice(Arc::new(|_| None))),
            refused: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
        });
        // A certificate of the cluster's authority that no other server has.
        let own = Server::Kubelet { node: "relay".to_owned() };
        let pair = pki.server(&own, &Sans::loopback(), now_unix_s())?;
        let acceptor = TlsAcceptor::from(Arc::new(tls::open_server_config(Reloadable::new(&pair)?)?));
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the relay cannot listen")?;
        let address = listener.local_addr().context("the relay's address")?;
        let end = CancellationToken::new();
        tokio::spawn(serve(listener, acceptor, shared.clone(), end.clone()));
        Ok(Self { address, shared, _ends: end.drop_guard() })
    }

    /// Where the role finds it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// From now on requests fare as this says.
    pub fn choose(&self, choice: impl Fn(&str) -> Option<Fault> + Send + Sync + 'static) {
        *self.shared.choice.lock().unwrap_or_else(PoisonError::into_inner) = Choice(Arc::new(choice));
    }

    /// How many requests were refused so far.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// How many pieces of replies were held back so far.
    pub fn held_back(&self) -> u64 {
        self.shared.held_back.load(Ordering::Relaxed)
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>, end: CancellationToken) {
    while let Some(accepted) = end.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let (end, served) = (end.clone(), connection(stream, acceptor.clone(), shared.clone()));
                tokio::spawn(async move { end.run_until_cancelled(served).await });
            }
            Err(error) => tracing::warn!(%error, "the relay"),
        }
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(pass(&shared, request).await) }
    });
    let served = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(error = %carrack_engine::causes(&*error), "a connection of the relay");
    }
}

async fn pass(shared: &Arc<Shared>, mut request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let choice = shared.choice.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let fault = (choice.0)(&path);
    if fault == Some(Fault::TimesOut) {
        shared.refused.fetch_add(1, Ordering::Relaxed);
        return failure(StatusCode::GATEWAY_TIMEOUT, "Timeout", "the drill lets this time out");
    }
    let mut parts = shared.server.clone().into_parts();
    parts.path_and_query = path.parse().ok();
    let Ok(uri) = Uri::from_parts(parts) else {
        return failure(StatusCode::BAD_REQUEST, "BadRequest", "the relay cannot read the path");
    };
    *request.uri_mut() = uri;
    // It is the server's name that counts from here on, and each connection's own version of HTTP.
    request.headers_mut().remove(hyper::header::HOST);
    *request.version_mut() = hyper::Version::HTTP_11;
    match shared.client.request(request).await {
        Ok(reply) => match fault {
            Some(Fault::Late(by)) => {
                let shared = shared.clone();
                let count = move || _ = shared.held_back.fetch_add(1, Ordering::Relaxed);
                reply.map(|body| late(body, by, count))
            }
            _ => reply.map(BodyExt::boxed_unsync),
        },
        Err(error) => failure(StatusCode::BAD_GATEWAY, "ServiceUnavailable", &carrack_engine::causes(&error)),
    }
}

/// Each piece of a body arrives later by the same time: a stream lags, and is not slowed down. Nobody but its reader keeps it
/// going, so it ends with its connection.
fn late<B>(body: B, by: Duration, count: impl Fn() + Send + 'static) -> UnsyncBoxBody<Bytes, B::Error>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    let held = Held { body, by, pieces: VecDeque::new(), over: false };
    let pieces = futures::stream::unfold((held, count), |(mut held, count)| async move {
        let piece = held.next().await?;
        count();
        Some((piece, (held, count)))
    });
    StreamBody::new(pieces).boxed_unsync()
}

type Piece<B> = Result<Frame<Bytes>, <B as hyper::body::Body>::Error>;

/// A body whose pieces are held back.
struct Held<B: hyper::body::Body<Data = Bytes>> {
    body: B,
    by: Duration,
    /// What has come, and when it is to be told.
    pieces: VecDeque<(Instant, Piece<B>)>,
    over: bool,
}

impl<B: hyper::body::Body<Data = Bytes> + Unpin> Held<B> {
    async fn next(&mut self) -> Option<Piece<B>> {
        loop {
            let due = self.pieces.front().map(|(due, _)| *due);
            tokio::select! {
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    return self.pieces.pop_front().map(|(_, piece)| piece);
                }
                piece = self.body.frame(), if !self.over => {
                    // A broken stream of HTTP/2 tells of its error whenever it is asked, and never that it is over.
                    self.over = !matches!(piece, Some(Ok(_)));
                    self.pieces.extend(piece.map(|piece| (Instant::now() + self.by, piece)));
                }
                else => return None,
            }
        }
    }
}

fn failure(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message,
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = code;
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// Two pieces, and then an error for ever.
    struct Broken(u32);

    impl hyper::body::Body for Broken {
        type Data = Bytes;
        type Error = &'static str;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            self.0 += 1;
            Poll::Ready(Some(if self.0 < 3 { Ok(Frame::data(Bytes::from_static(b"piece"))) } else { Err("broken") }))
        }
    }

    #[tokio::test]
    async fn what_is_held_back_comes_late_in_its_order_and_ends_with_the_first_error() {
        let (by, begun) = (Duration::from_millis(50), Instant::now());
        let counted = Arc::new(AtomicU64::new(0));
        let count = counted.clone();
        let mut body = late(Broken(0), by, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let mut seen = Vec::new();
        while let Some(piece) = body.frame().await {
            assert!(begun.elapsed() >= by, "piece {} came too early", seen.len());
            seen.push(piece.is_ok());
        }
        assert_eq!((seen, counted.load(Ordering::Relaxed)), (vec![true, true, false], 3));
    }
}
