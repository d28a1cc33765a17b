//! The handler's own server: consoles and calls on guests, for the API server alone, and metrics.
//!
//! Paths are KubeVirt's, `/v1/namespaces/<ns>/virtualmachineinstances/<name>/<call>`. Streams are websockets of protocol
//! `plain.kubevirt.io`: the guest's bytes in binary messages, nothing else. Only callers with a client certificate
//! that names the API server (or an administrator) are let in; the API server has authorised whoever stands behind.
//! `/metrics` alone is for others, too, whom the API server is asked about, as it is for other components' metrics.

mod copies;
mod guest;
mod stream;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use carrack_apiserver::delegated;
use carrack_auth::Caller;
use carrack_auth::caller::GROUP_MASTERS;
use carrack_auth::pki::Identity;
use carrack_auth::strangers::{Stranger, Strangers, has_to_go};
use carrack_auth::tls::{Clients, ServerTls};
use carrack_engine::Transport;
use carrack_engine::shell::EventSink;
use carrack_launcher::proto::Call;
use carrack_launcher::{Layout, client};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::agent::Agents;
use super::{CALL_DEADLINE, Config, lock, metrics};
use crate::copying::COPY_VOLUMES;
use crate::handler::effects::{In, Served};
use crate::requests::Requests;

/// Connections at a time.
const CONNECTIONS: usize = 256;
/// How many of them are of those that have not shown yet that they may call.
const STRANGERS: usize = 128;
/// Wait after a connection that could not be accepted: there are too many open files, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long a connection may take to begin.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection is silent before it is looked whether its peer is still there.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// Calls on one guest at a time: a guest whose agent is slow leaves connections for the others.
const CALLS_OF_ONE: usize = 16;
/// Streams to the ports of one guest at a time. They go on when their connection has been handed over.
const STREAMS_OF_ONE: usize = 256;

type Body = Full<Bytes>;

/// What the callers of one guest may hold.
#[derive(Clone)]
struct Share {
    calls: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for Share {
    fn default() -> Self {
        Self { calls: Arc::new(Semaphore::new(CALLS_OF_ONE)), streams: Arc::new(Semaphore::new(STREAMS_OF_ONE)) }
    }
}

/// The guests that there are, as the core last said.
#[derive(Clone, Default)]
pub struct Guests {
    served: Arc<Mutex<BTreeMap<(String, String), Served>>>,
    /// Who has a guest's console: by UID and device.
    holders: Arc<Mutex<BTreeMap<(String, &'static str), CancellationToken>>>,
    /// What each guest's callers may hold, by its UID.
    shares: Arc<Mutex<BTreeMap<String, Share>>>,
    /// The guests whose agents are being asked.
    pub(super) agents: Agents,
    /// What the role has asked the API server.
    pub(super) requests: Requests,
    /// Where the core hears of what calls have changed.
    news: Arc<Mutex<Option<EventSink<In>>>>,
}

impl Guests {
    pub(super) fn replace(&self, served: Vec<Served>) {
        lock(&self.holders).retain(|(uid, _), _| served.iter().any(|guest| guest.place.uid == *uid));
        lock(&self.shares).retain(|uid, _| served.iter().any(|guest| guest.place.uid == *uid));
        self.agents.retain(|uid| served.iter().any(|guest| guest.place.uid == uid));
        *lock(&self.served) =
            served.into_iter().map(|guest| ((guest.namespace.clone(), guest.name.clone()), guest)).collect();
    }

    /// Where the core hears of what calls have changed.
    pub(super) fn tell_to(&self, events: EventSink<In>) {
        *lock(&self.news) = Some(events);
    }

    /// A call has changed what a guest's agent says.
    fn agent_changed(&self, uid: &str) {
        if let Some(events) = lock(&self.news).as_ref() {
            events.send(In::AgentChanged(uid.to_owned()));
        }
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Served> {
        lock(&self.served).get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// What the callers of a guest may hold.
    fn share(&self, uid: &str) -> Share {
        lock(&self.shares).entry(uid.to_owned()).or_default().clone()
    }

    /// Takes a device over from whoever has it, unless that one is to be left. The token is cancelled when the next one
    /// comes; whoever has it cancels it at the end.
    fn hold(&self, uid: &str, device: &'static str, leave: bool) -> Option<CancellationToken> {
        let mut holders = lock(&self.holders);
        let key = (uid.to_owned(), device);
        if let Some(before) = holders.get(&key) {
            if leave && !before.is_cancelled() {
                return None;
            }
            before.cancel();
        }
        let token = CancellationToken::new();
        holders.insert(key, token.clone());
        Some(token)
    }
}

/// What connections are served with.
struct State {
    config: Config,
    guests: Guests,
    /// Says who may read metrics.
    api: Arc<dyn Transport>,
}

/// Serves until `stop`. `api` is asked who may read metrics.
///
/// # Errors
/// It listens no more. A connection that cannot be accepted is none.
pub async fn serve(
    listener: TcpListener,
    mut tls: ServerTls,
    config: Config,
    guests: Guests,
    api: Arc<dyn Transport>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    // An upgrade to a websocket is HTTP/1.1's.
    tls.config.alpn_protocols = vec![b"http/1.1".to_vec()];
    copies::take_all_back().await;
    let (acceptor, clients) = (TlsAcceptor::from(Arc::new(tls.config)), tls.clients);
    let state = Arc::new(State { config, guests, api });
    let (slots, strangers) = (Arc::new(Semaphore::new(CONNECTIONS)), Strangers::new(STRANGERS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        let stream = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // It listens no more.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return Err(error),
                // The handler has more to do than this: the node's guests depend on it.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        while connections.try_join_next().is_some() {}
        let (acceptor, state, stranger) = (acceptor.clone(), state.clone(), strangers.enter());
        let clients = clients.clone();
        connections.spawn(async move {
            if let Err(error) = connection(stream, stranger, (acceptor, clients), state).await {
                tracing::debug!(error, "a connection failed");
            }
            drop(slot);
        });
    }
}

/// Whoever has vanished is found out about: a stream that nobody reads would stay for good.
fn watch_peer(stream: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_AFTER / 4)?;
    Ok(())
}

async fn connection(
    stream: TcpStream,
    mut stranger: Stranger,
    (acceptor, clients): (TlsAcceptor, Clients),
    state: Arc<State>,
) -> Result<(), String> {
    watch_peer(&stream).map_err(|error| error.to_string())?;
    let handshake = tokio::time::timeout(HEAD_DEADLINE, acceptor.accept(stream));
    let done = tokio::select! {
        done = handshake => done,
        () = stranger.has_to_go() => return Err("it made room for others".to_owned()),
    };
    let stream = done.map_err(|_| "the handshake took too long")?.map_err(|error| error.to_string())?;
    // A certificate of another authority is as good as none: whoever shows it may have a token.
    let peer = clients.peer(stream.get_ref().1.peer_certificates()).unwrap_or_else(|error| {
        tracing::debug!(%error, "a client certificate says nothing");
        None
    });
    let caller = peer.map(|peer| peer.caller);
    let trusted = caller.as_ref().is_some_and(is_trusted);
    let mut stranger = (!trusted).then_some(stranger);
    let service = service_fn(move |request: Request<Incoming>| {
        let (state, caller) = (state.clone(), caller.clone());
        async move {
            let reply = if trusted {
                answer(&state.config, &state.guests, request).await
            } else {
                let (head, _) = request.into_parts();
                metrics_alone(&state, caller, &head).await
            };
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        // Who may not call is told so once, and does not stay.
        .keep_alive(trusted)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        ended = connection => ended.map_err(|error| error.to_string()),
        () = has_to_go(stranger.as_mut()) => Err("it made room for others".to_owned()),
    }
}

/// The API server, under the names that it has towards a node's agents, and administrators.
fn is_trusted(caller: &Caller) -> bool {
    let names =
        [Identity::ApiserverVirtHandlerClient, Identity::ApiserverKubeletClient].map(|identity| identity.user());
    names.contains(&caller.user) || caller.groups.iter().any(|group| group == GROUP_MASTERS)
}

fn text(code: StatusCode, message: impl Into<String>) -> Response<Body> {
    let mut reply = Response::new(Full::new(Bytes::from(message.into())));
    *reply.status_mut() = code;
    reply.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    reply
}

/// What there is for those who are not the API server.
async fn metrics_alone(state: &State, caller: Option<Caller>, head: &http::request::Parts) -> Response<Body> {
    let path = head.uri.path();
    if path != "/metrics" || head.method != Method::GET {
        return text(StatusCode::FORBIDDEN, "only the API server may call");
    }
    match delegated::refusal(state.api.as_ref(), caller, &head.headers, path).await {
        Some((code, why)) => text(code, why),
        None => measures(&state.config, &state.guests).await,
    }
}

async fn answer(config: &Config, guests: &Guests, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (namespace, name, call) = match parts.as_slice() {
        ["healthz"] => return text(StatusCode::OK, "ok"),
        ["metrics"] => return measures(config, guests).await,
        ["v1", "namespaces", namespace, "virtualmachineinstances", name, call @ ..] => (*namespace, *name, call),
        _ => return text(StatusCode::NOT_FOUND, "no such path"),
    };
    let Some(guest) = guests.find(namespace, name) else {
        return text(StatusCode::NOT_FOUND, format!("no guest of {namespace}/{name} runs here"));
    };
    let share = guests.share(&guest.place.uid);
    let Ok(_call) = share.calls.try_acquire() else {
        return text(StatusCode::TOO_MANY_REQUESTS, "too many calls on this guest at a time");
    };
    let layout = config.layout(&guest.place);
    let method = request.method().clone();
    match (&method, call) {
        (&Method::GET, ["console"]) => {
            stream::device(guests, &guest, "console", &layout.serial_socket(), request).await
        }
        (&Method::GET, ["vnc"]) => stream::device(guests, &guest, "vnc", &layout.vnc_socket(), request).await,
        (&Method::GET, ["vnc", "screenshot"]) => {
            guest::screenshot(&layout, stream::has_option(&request, "moveCursor")).await
        }
        (&Method::GET, ["portforward", port] | ["portforward", port, "tcp"]) => {
            stream::port(&guest, port, &share.streams, request).await
        }
        (&Method::GET, ["portforward", port, "udp"]) => stream::datagrams(&guest, port, &share.streams, request).await,
        (&Method::GET, ["portforward", ..]) => text(StatusCode::BAD_REQUEST, "only TCP and UDP ports can be forwarded"),
        (&Method::GET, [info @ ("guestosinfo" | "userlist" | "filesystemlist")]) => {
            guest::info(&guests.agents, &guest, &layout, info).await
        }
        (&Method::PUT, ["freeze"]) => guest::freeze(config, guests, &guest, request).await,
        (&Method::PUT, ["unfreeze"]) => guest::unfreeze(config, guests, &guest).await,
        (&Method::PUT, [COPY_VOLUMES]) => copies::begin(config, &guest, request).await,
        (&Method::PUT, ["pause"]) => tell(&layout, Call::Pause).await,
        (&Method::PUT, ["unpause"]) => tell(&layout, Call::Unpause).await,
        (&Method::PUT, ["softreboot"]) => guest::soft_reboot(&guests.agents, &guest, &layout).await,
        (&Method::PUT, ["reset"]) => tell(&layout, Call::Reset).await,
        (_, [_, ..]) => text(StatusCode::METHOD_NOT_ALLOWED, "no such call"),
        _ => text(StatusCode::NOT_FOUND, "no such path"),
    }
}

/// What guests use.
async fn measures(config: &Config, guests: &Guests) -> Response<Body> {
    let served: Vec<Served> = lock(&guests.served).values().cloned().collect();
    let said = served.iter().map(|guest| metrics::ask(config.layout(&guest.place)));
    let said = futures::future::join_all(said).await;
    let (node, asked) = (config.node_name.clone(), guests.requests.text());
    let guests: Vec<_> = served.into_iter().zip(said).collect();
    let work = move || metrics::render(std::path::Path::new("/proc"), &node, &guests);
    match tokio::task::spawn_blocking(work).await {
        Ok(body) => {
            let mut reply = text(StatusCode::OK, body + &asked + &metrics::ready());
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            reply.headers_mut().insert(http::header::CONTENT_TYPE, kind);
            reply
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn tell(layout: &Layout, call: Call) -> Response<Body> {
    match client::call(&layout.command_socket(), call, CALL_DEADLINE).await {
        Ok(_) => Response::new(Full::default()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, carrack_engine::causes(&error)),
    }
}

#[cfg(test)]
mod tests;
