//! Stands between one role and the API server, and lets some of what passes fail.
//!
//! ```text
//!   role ──HTTPS──► relay ──HTTPS, with the role's own certificate──► API server
//!                     │ fault of the request's path: refused with 504
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use bytes::Bytes;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Pki, Sans, Server};
use carrack_auth::tls::{self, Reloadable};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::roles::apiserver::now_unix_s;

/// What a fault does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with 504, as by an API server that waited for its store in vain.
    TimesOut,
}

/// Chooses what becomes of a request by its path and query.
type Choice = fn(&str) -> Option<Fault>;

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A relay that runs.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client<HttpsConnector<HttpConnector>, Incoming>,
    server: Uri,
    choice: Mutex<Choice>,
    refused: AtomicU64,
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
            choice: Mutex::new(|_| None),
            refused: AtomicU64::new(0),
        });
        // A certificate of the cluster's authority that no other server has.
        let own = Server::Kubelet { node: "relay".to_owned() };
        let pair = pki.server(&own, &Sans::loopback(), now_unix_s())?;
        let acceptor = TlsAcceptor::from(Arc::new(tls::open_server_config(Reloadable::new(&pair)?)?));
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the relay cannot listen")?;
        let address = listener.local_addr().context("the relay's address")?;
        tokio::spawn(serve(listener, acceptor, shared.clone()));
        Ok(Self { address, shared })
    }

    /// Where the role finds it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// From now on requests fare as this says.
    pub fn choose(&self, choice: Choice) {
        *self.shared.choice.lock().unwrap_or_else(PoisonError::into_inner) = choice;
    }

    /// How many requests were refused so far.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, acceptor.clone(), shared.clone()));
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

async fn pass(shared: &Shared, mut request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let fault = (shared.choice.lock().unwrap_or_else(PoisonError::into_inner))(&path);
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
        Ok(reply) => reply.map(BodyExt::boxed_unsync),
        Err(error) => failure(StatusCode::BAD_GATEWAY, "ServiceUnavailable", &carrack_engine::causes(&error)),
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
