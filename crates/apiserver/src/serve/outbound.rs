//! Calls of other servers: webhooks and aggregated APIs, over HTTPS.
//!
//! Connections are kept for each server and what it is trusted by, and used again. HTTP/2 carries many calls on one; with
//! HTTP/1.1 each call has one of its own, so that a slow answer keeps nobody waiting. A call is bounded in time and in the
//! size of its reply.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use carrack_auth::tls::{self, Reloadable};
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{NodeIo, sockets, unreached};
use crate::call::{Answer, Call, CallError, Calling, Dialing, Trust};

/// Most servers that connections are kept to.
const MAX_KEPT: usize = 256;
/// Most idle connections to one server.
const MAX_IDLE: usize = 16;

/// By which authorities a server is trusted, and which certificate it is shown, in PEM; an empty one is the process's own.
type Terms = (Trust, String);

/// Whom to call: name, place and port, and on which terms.
type Peer = (String, String, Terms);

/// A connection on which requests can be sent: one at a time, or many.
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Many(http2::SendRequest<Full<Bytes>>),
}

/// Makes calls, and keeps connections for the next ones.
#[derive(Clone)]
pub struct Outbound {
    shared: Arc<Shared>,
}

struct Shared {
    /// Authorities for servers that come with none of their own, in PEM.
    authorities: String,
    /// The client certificate that is shown.
    identity: Option<Arc<Reloadable>>,
    kept: Mutex<BTreeMap<Peer, Vec<Sender>>>,
    trusted: Mutex<BTreeMap<Terms, Arc<ClientConfig>>>,
}

impl Outbound {
    /// Trusts these authorities (PEM) where a call names none, and shows this certificate to those who ask.
    #[must_use]
    pub fn new(authorities: &str, identity: Option<Arc<Reloadable>>) -> Outbound {
        let shared =
            Shared { authorities: authorities.to_owned(), identity, kept: Mutex::default(), trusted: Mutex::default() };
        Outbound { shared: Arc::new(shared) }
    }

    /// Makes a call.
    #[must_use]
    pub fn call(&self, mut call: Call) -> Calling {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            authorize(&mut call)?;
            let timeout = Duration::from_millis(call.timeout_ms);
            let answered = tokio::time::timeout(timeout, shared.exchange(&call)).await;
            answered.unwrap_or_else(|_| {
                // Nobody may be there any more: the next call finds out with a connection of its own.
                shared.forget(&peer(&call));
                Err(CallError::Timeout)
            })
        })
    }
}

impl Outbound {
    /// A connection to the server of a call, on which HTTP/1.1 is spoken: it can be upgraded.
    #[must_use]
    pub fn dial(&self, call: &Call) -> Dialing {
        let (shared, call) = (Arc::clone(&self.shared), call.clone());
        Box::pin(async move {
            let dial = async {
                let mut tls = (*shared.tls(&call)?).clone();
                tls.alpn_protocols = vec![b"http/1.1".to_vec()];
                shared.secure(&call, Arc::new(tls)).await
            };
            let stream = dial.await.map_err(std::io::Error::other)?;
            Ok(Box::new(stream) as Box<dyn NodeIo>)
        })
    }
}

fn peer(call: &Call) -> Peer {
    (call.server_name.clone(), format!("{} {}", call.place(), call.port), terms(call))
}

fn terms(call: &Call) -> Terms {
    let shown = call.credentials.as_ref().and_then(|credentials| credentials.client.as_ref());
    (call.trust.clone(), shown.map(|pair| pair.certificate.clone()).unwrap_or_default())
}

/// Has a call say who makes it, where that is not told by a certificate, and for whom. A token's file is read for each.
fn authorize(call: &mut Call) -> Result<(), CallError> {
    let Some(credentials) = &call.credentials else { return Ok(()) };
    for (name, value) in &credentials.acts_as {
        call.headers.append(name.clone(), value.clone());
    }
    let Some(said) = credentials.authorization().map_err(failed)? else { return Ok(()) };
    let mut value = HeaderValue::from_str(said.expose()).map_err(failed)?;
    value.set_sensitive(true);
    call.headers.insert(AUTHORIZATION, value);
    Ok(())
}

fn failed(error: impl std::error::Error) -> CallError {
    CallError::Failed(carrack_engine::causes(&error))
}

impl Shared {
    async fn exchange(&self, call: &Call) -> Result<Answer, CallError> {
        let peer = peer(call);
        while let Some(mut sender) = self.take(&peer) {
            match send(&mut sender, call).await {
                Ok(answer) => {
                    self.keep(peer, sender);
                    return Ok(answer);
                }
                // It may have been closed meanwhile, and it cannot always be told whether the request was read: it is sent
                // again, once. Webhooks and discovery stand that; Go's client repeats no POST whose reply is missing.
                Err(Unsent::Closed) => self.forget(&peer),
                Err(Unsent::Failed(error)) => return Err(error),
            }
        }
        let mut sender = self.connect(call).await?;
        let result = send(&mut sender, call).await;
        if result.is_ok() {
            self.keep(peer, sender);
        }
        result.map_err(|error| match error {
            Unsent::Closed => CallError::Failed(unreached::ENDED.to_owned()),
            Unsent::Failed(error) => error,
        })
    }

    /// A connection that is kept. One that carries one request at a time is nobody else's from now on.
    fn take(&self, peer: &Peer) -> Option<Sender> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = kept.get_mut(peer)?;
        match idle.last()? {
            Sender::Many(sender) => Some(Sender::Many(sender.clone())),
            Sender::One(_) => idle.pop(),
        }
    }

    fn keep(&self, peer: Peer, sender: Sender) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT && !kept.contains_key(&peer) {
            kept.clear();
        }
        let idle = kept.entry(peer).or_default();
        match sender {
            Sender::Many(_) => *idle = vec![sender],
            Sender::One(_) if idle.len() < MAX_IDLE => idle.push(sender),
            Sender::One(_) => {}
        }
    }

    fn forget(&self, peer: &Peer) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
    }

    fn tls(&self, call: &Call) -> Result<Arc<ClientConfig>, CallError> {
        let terms = terms(call);
        let mut trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = trusted.get(&terms) {
            return Ok(Arc::clone(config));
        }
        let trusts = match &call.trust {
            Trust::Own => tls::Trust::Authorities(&self.authorities),
            Trust::Authorities(pem) => tls::Trust::Authorities(pem),
            Trust::Anybody => tls::Trust::Anybody,
        };
        let shown = call.credentials.as_ref().and_then(|credentials| credentials.client.as_ref());
        let shown = shown.map(Reloadable::new).transpose().map_err(failed)?;
        let mut config = tls::client_config(trusts, shown.or_else(|| self.identity.clone())).map_err(failed)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if trusted.len() >= MAX_KEPT {
            trusted.clear();
        }
        let config = Arc::new(config);
        trusted.insert(terms, Arc::clone(&config));
        Ok(config)
    }

    /// A TLS connection, on which one of these protocols is spoken.
    async fn secure(&self, call: &Call, tls: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>, CallError> {
        let connector = TlsConnector::from(tls);
        let name = ServerName::try_from(call.server_name.clone()).map_err(failed)?;
        let (place, port) = (call.place(), call.port);
        let dialled = |error: std::io::Error| CallError::Failed(unreached::dialled(place, port, &error));
        let stream = TcpStream::connect((place, port)).await.map_err(dialled)?;
        sockets::prepare(&stream, sockets::SERVER_SILENCE).map_err(dialled)?;
        let refused = |error: std::io::Error| CallError::Failed(unreached::unsecured(place, port, &error));
        connector.connect(name, stream).await.map_err(refused)
    }

    async fn connect(&self, call: &Call) -> Result<Sender, CallError> {
        let stream = self.secure(call, self.tls(call)?).await?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(stream);
        if is_h2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.map_err(failed)?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection to another server");
                }
            });
            return Ok(Sender::Many(sender));
        }
        let (sender, connection) = http1::handshake(io).await.map_err(failed)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to another server");
            }
        });
        Ok(Sender::One(sender))
    }
}

/// Why there is no answer.
enum Unsent {
    /// The connection had ended before the request was sent, or before anything was answered.
    Closed,
    Failed(CallError),
}

async fn send(sender: &mut Sender, call: &Call) -> Result<Answer, Unsent> {
    let error = |error: hyper::Error| {
        let is_over = error.is_canceled() || error.is_closed() || error.is_incomplete_message();
        if is_over { Unsent::Closed } else { Unsent::Failed(failed(error)) }
    };
    let response = match sender {
        Sender::One(sender) => {
            sender.ready().await.map_err(|_| Unsent::Closed)?;
            sender.send_request(request(call, false)?).await.map_err(error)?
        }
        Sender::Many(sender) => {
            sender.ready().await.map_err(|_| Unsent::Closed)?;
            sender.send_request(request(call, true)?).await.map_err(error)?
        }
    };
    read(response, call).await
}

fn request(call: &Call, is_h2: bool) -> Result<Request<Full<Bytes>>, Unsent> {
    let bad = |error: http::Error| Unsent::Failed(CallError::Failed(error.to_string()));
    let text = if is_h2 { call.url() } else { call.path_and_query.clone() };
    let uri: Uri = text.parse().map_err(|error: http::uri::InvalidUri| bad(error.into()))?;
    let mut request =
        Request::builder().method(call.method.clone()).uri(uri).body(Full::new(call.body.clone())).map_err(bad)?;
    request.headers_mut().extend(call.headers.clone());
    if !is_h2 {
        let host = call.authority().parse().map_err(|error: http::header::InvalidHeaderValue| bad(error.into()))?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(request)
}

async fn read(response: http::Response<hyper::body::Incoming>, call: &Call) -> Result<Answer, Unsent> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, call.max_reply_bytes).collect().await;
    let body = body.map_err(|error| Unsent::Failed(CallError::Failed(format!("reading the reply: {error}"))))?;
    Ok(Answer { code: head.status.as_u16(), headers: head.headers, body: body.to_bytes() })
}
