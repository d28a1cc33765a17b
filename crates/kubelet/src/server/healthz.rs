//! `/healthz` over plain HTTP (`healthzBindAddress`, `healthzPort`): whoever sets a node up asks there whether its kubelet runs,
//! before anybody has credentials for it, and so it is all that is told there.
//!
//! A port that is taken is none of the pods' business: it is tried again, as upstream does (`run` of `cmd/kubelet/app/server.go`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use carrack_auth::strangers::{Stranger, Strangers};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::accept;
use super::backend::Backend;
use super::handle::health;
use super::reply::{self, Refusal, Reply};
use super::route::{Route, route};
use super::settings::Settings;

/// How many connections there are; with one more the oldest ends.
const MOST_CONNECTIONS: usize = 64;
/// The largest head of a request, in bytes; hyper takes no smaller one.
const HEAD_BYTES: usize = 8192;

/// Who is well, and where that is told.
pub(crate) struct Healthz {
    /// Where to listen.
    pub bind: SocketAddr,
    /// Who says how it is.
    pub backend: Arc<dyn Backend>,
    /// Bounds.
    pub settings: Settings,
}

impl Healthz {
    /// Serves for as long as this is awaited.
    pub(crate) async fn serve(self) {
        loop {
            let listener = listen(self.bind, self.settings.listen_retry).await;
            let error = answer_all(&listener, &self.backend, &self.settings).await;
            tracing::warn!(%error, bind = %self.bind, "/healthz is served anew");
        }
    }
}

/// Listens as soon as the port is free.
async fn listen(bind: SocketAddr, retry: Duration) -> TcpListener {
    loop {
        match TcpListener::bind(bind).await {
            Ok(listener) => return listener,
            Err(error) => tracing::warn!(%error, %bind, "/healthz is not served; it is tried again"),
        }
        tokio::time::sleep(retry).await;
    }
}

/// Answers whoever comes, until the listener fails for good. They have no places of the kubelet's server.
async fn answer_all(listener: &TcpListener, backend: &Arc<dyn Backend>, settings: &Settings) -> std::io::Error {
    let strangers = Strangers::new(MOST_CONNECTIONS);
    // They end with this.
    let mut connections = JoinSet::new();
    loop {
        let stream = match accept::next(listener, settings.accept_pause).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, Arc::clone(backend), strangers.enter(), settings.head));
    }
}

async fn connection(stream: TcpStream, backend: Arc<dyn Backend>, mut stranger: Stranger, head: Duration) {
    let service = service_fn(|request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(answer(backend.as_ref(), request.uri().path())))
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        served = connection => {
            if let Err(error) = served {
                tracing::debug!(error = %carrack_engine::causes(&error), "connection for /healthz");
            }
        }
        () = stranger.has_to_go() => tracing::debug!("a connection for /healthz made room for others"),
    }
}

/// Whatever the method, as upstream's handler has it.
fn answer(backend: &dyn Backend, path: &str) -> Response<Reply> {
    let answered = match route(&Method::GET, path) {
        Ok(Route::Healthz) => health(backend),
        Ok(Route::Answers) => Ok(reply::text(StatusCode::OK, "ok")),
        _ => Err(Refusal::not_found("404 page not found\n")),
    };
    answered.unwrap_or_else(Response::from)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::fixture::{FakeNode, lock};
    use super::*;

    /// Nothing here takes so long, unless it never comes.
    const LONG: Duration = Duration::from_secs(20);

    async fn free() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").await.expect("a port")
    }

    /// The first line and the body of what is answered.
    async fn ask(address: SocketAddr, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("asked");
        let mut text = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut text)).await.expect("in time").expect("read");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn it_is_told_to_everybody_and_nothing_else_is() {
        let (node, listener) = (Arc::new(FakeNode::default()), free().await);
        let address = listener.local_addr().expect("an address");
        let backend: Arc<dyn Backend> = node.clone();
        let settings = Settings::default();
        let asked = async {
            for (path, sick, status, said) in [
                ("/healthz", None, "200 OK", "ok"),
                ("/healthz/ping", None, "200 OK", "ok"),
                ("/healthz", Some("the runtime is gone"), "500 Internal Server Error", "the runtime is gone"),
                ("/healthz/syncloop", Some("the runtime is gone"), "500 Internal Server Error", "the runtime is gone"),
                ("/healthz/ping", Some("the runtime is gone"), "200 OK", "ok"),
                ("/pods", None, "404 Not Found", "404 page not found"),
                ("/configz", None, "404 Not Found", "404 page not found"),
                ("/logs/", None, "404 Not Found", "404 page not found"),
            ] {
                *lock(&node.sick) = sick.map(str::to_owned);
                let (first, body) = ask(address, path).await;
                assert_eq!(first, format!("HTTP/1.1 {status}"), "{path}");
                assert!(body.contains(said), "{path}: {body}");
            }
        };
        tokio::select! {
            error = answer_all(&listener, &backend, &settings) => panic!("{error}"),
            () = asked => {}
        }
    }

    #[tokio::test]
    async fn who_says_nothing_makes_room() {
        let backend: Arc<dyn Backend> = Arc::new(FakeNode::default());
        let (listener, settings) = (free().await, Settings::default());
        let address = listener.local_addr().expect("an address");
        let asked = async {
            let mut silent = Vec::new();
            for _ in 0..=MOST_CONNECTIONS {
                silent.push(TcpStream::connect(address).await.expect("connects"));
            }
            assert_eq!(ask(address, "/healthz").await.1, "ok");
            let first = silent.first_mut().expect("one");
            let ended = tokio::time::timeout(LONG, first.read_u8()).await.expect("in time");
            assert!(ended.is_err(), "it goes");
        };
        tokio::select! {
            error = answer_all(&listener, &backend, &settings) => panic!("{error}"),
            () = asked => {}
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_waited_for() {
        let taken = free().await;
        let bind = taken.local_addr().expect("an address");
        let mut listening = std::pin::pin!(listen(bind, Duration::from_millis(5)));
        assert!(futures::poll!(listening.as_mut()).is_pending(), "another one has it");
        drop(taken);
        let listener = tokio::time::timeout(LONG, listening).await.expect("it is free");
        assert_eq!(listener.local_addr().expect("an address"), bind);
    }
}
