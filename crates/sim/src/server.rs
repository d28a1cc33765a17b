//! The API server of the simulation: the real logic on the real store in memory, polled by hand.
//!
//! A request is a future that is polled when it arrives, and again when the store operation that it
//! waits for is due. A watch is a stream that is polled when its waker was called. Both end when the
//! server crashes; the store stays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Bytes, BytesMut};
use carrack_apiserver::body::Lines;
use carrack_apiserver::{ApiServer, Body, Call, Calling, Config, Env, Response};
use carrack_auth::Caller;
use carrack_engine::{ApiError, ApiResponse, CallId, Rng, Time, WatchId, WatchItem};
use carrack_store::MemStore;
use serde_json::Value;

use crate::net::Reply;
use crate::role::Role;
use crate::storage::{Pace, PacedStore};
use crate::webhook::Webhook;

/// Names a request on its way.
pub(crate) type FlightId = u64;
/// Names a watch connection.
pub(crate) type ConnId = u64;

/// What a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Call(CallId),
    Watch(WatchId),
}

/// A request on its way, or being answered.
pub(crate) struct Flight {
    pub role: Role,
    /// Which life of the process sent it.
    pub life: u32,
    pub asked: Asked,
    pub sent: Time,
    /// What the sender sees; none for a second arrival of the same request.
    pub reply: Option<Reply>,
    /// For the trace.
    pub label: String,
    request: Option<http::Request<Bytes>>,
    answer: Option<Pin<Box<dyn Future<Output = Response> + Send>>>,
}

/// How a poll of a request ended.
pub(crate) enum Polled {
    /// It waits for the store.
    Pending(std::time::Duration),
    Answered(Box<Flight>, Box<Response>),
}

/// A watch connection.
pub(crate) struct Conn {
    pub role: Role,
    pub life: u32,
    pub watch: WatchId,
    lines: Option<Lines>,
    partial: BytesMut,
    /// What is on its way to the client, with its arrival.
    pub queue: VecDeque<(Time, WatchItem)>,
    /// Arrival of the last item.
    pub last: Time,
}

/// The clock and the chance of the API server, and whom it calls.
struct SimEnv {
    state: Mutex<(Time, Rng)>,
    pace: Arc<Pace>,
    webhook: Arc<Webhook>,
}

impl SimEnv {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Time, Rng)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Env for SimEnv {
    fn now(&self) -> jiff::Timestamp {
        let ns = self.lock().0.0;
        jiff::Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
    fn random(&self) -> u64 {
        self.lock().1.u64()
    }
    fn call(&self, call: Call) -> Calling {
        self.webhook.call(&self.pace, call)
    }
}

type Woken = Arc<Mutex<BTreeSet<ConnId>>>;

struct ConnWaker {
    conn: ConnId,
    woken: Woken,
}

impl Wake for ConnWaker {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).insert(self.conn);
    }
}

/// The API server and all that is connected to it.
pub(crate) struct Server {
    pub mem: Arc<MemStore>,
    pub pace: Arc<Pace>,
    pub webhook: Arc<Webhook>,
    env: Arc<SimEnv>,
    api: Option<ApiServer>,
    flights: BTreeMap<FlightId, Flight>,
    conns: BTreeMap<ConnId, Conn>,
    next: u64,
    woken: Woken,
}

impl Server {
    /// A server over an empty store.
    pub(crate) fn new(now: Time, rng: &Rng) -> Self {
        let pace = Pace::new(rng.fork("store"));
        let webhook = Webhook::new(rng.fork("webhook"));
        let state = Mutex::new((now, rng.fork("env")));
        let mut server = Self {
            mem: Arc::new(MemStore::default()),
            env: Arc::new(SimEnv { state, pace: pace.clone(), webhook: webhook.clone() }),
            pace,
            webhook,
            api: None,
            flights: BTreeMap::new(),
            conns: BTreeMap::new(),
            next: 0,
            woken: Woken::default(),
        };
        server.start();
        server
    }

    /// Makes what a cluster begins with: the server's own objects, and these besides.
    ///
    /// # Errors
    /// What the server says.
    pub(crate) fn bootstrap(&mut self, objects: &[(String, Value)]) -> Result<(), String> {
        let Some(api) = self.api.clone() else { return Err("the server is down".into()) };
        complete({
            let api = api.clone();
            async move { api.bootstrap().await }
        })
        .map_err(|status| status.message)?;
        for (collection, object) in objects {
            let request = http::Request::post(collection.as_str())
                .body(Bytes::from(object.to_string()))
                .map_err(|e| e.to_string())?;
            let api = api.clone();
            let response = complete(async move { api.handle(request, Caller::apiserver()).await });
            if response.status() != http::StatusCode::CREATED {
                let body = response.into_body().into_bytes();
                return Err(format!("{collection}: {}", String::from_utf8_lossy(&body)));
            }
        }
        Ok(())
    }

    pub(crate) fn set_now(&self, now: Time) {
        self.env.lock().0 = now;
        // History goes by age; no watch of a run is older than the default.
        self.mem.tick(u64::try_from(now.0 / 1_000_000).unwrap_or(0));
    }

    pub(crate) fn is_up(&self) -> bool {
        self.api.is_some()
    }

    /// Starts the process over the store as it is.
    pub(crate) fn start(&mut self) {
        let store = Arc::new(PacedStore::new(self.mem.clone(), self.pace.clone()));
        let mut config = Config::new(store, self.env.clone());
        config.plugins.push(Box::new(carrack_virt::admission::VirtAdmission));
        self.api = Some(ApiServer::new(config));
    }

    /// Kills the process. Returns what it was answering, and its watch connections.
    pub(crate) fn crash(&mut self) -> (Vec<Flight>, Vec<ConnId>) {
        self.api = None;
        let answering: Vec<FlightId> =
            self.flights.iter().filter(|(_, f)| f.answer.is_some()).map(|(id, _)| *id).collect();
        let flights = answering.iter().filter_map(|id| self.flights.remove(id)).collect();
        let conns = self.conns.iter_mut().filter_map(|(id, c)| c.lines.take().map(|_| *id)).collect();
        (flights, conns)
    }

    /// Puts a request on its way.
    pub(crate) fn depart(
        &mut self,
        (role, life): (Role, u32),
        asked: Asked,
        sent: Time,
        reply: Option<Reply>,
        label: String,
        request: http::Request<Bytes>,
    ) -> FlightId {
        self.next += 1;
        let flight = Flight { role, life, asked, sent, reply, label, request: Some(request), answer: None };
        self.flights.insert(self.next, flight);
        self.next
    }

    /// A request arrives: true when there is somebody to answer it.
    pub(crate) fn arrive(&mut self, id: FlightId) -> bool {
        let (Some(api), Some(flight)) = (self.api.clone(), self.flights.get_mut(&id)) else { return false };
        let Some(request) = flight.request.take() else { return false };
        let caller = flight.role.caller();
        flight.answer = Some(Box::pin(async move { api.handle(request, caller).await }));
        true
    }

    /// A request that nobody answered.
    pub(crate) fn drop_flight(&mut self, id: FlightId) -> Option<Flight> {
        self.flights.remove(&id)
    }

    /// Goes on with a request. None when it is gone.
    pub(crate) fn poll(&mut self, id: FlightId) -> Option<Polled> {
        let flight = self.flights.get_mut(&id)?;
        let answer = flight.answer.as_mut()?;
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Some(Polled::Pending(self.pace.take_wait())),
            Poll::Ready(response) => {
                self.flights.remove(&id).map(|flight| Polled::Answered(Box::new(flight), Box::new(response)))
            }
        }
    }

    /// Makes a connection of a reply to a watch request.
    pub(crate) fn connect(&mut self, now: Time, flight: &Flight, watch: WatchId, lines: Lines) -> ConnId {
        self.next += 1;
        let conn = Conn {
            role: flight.role,
            life: flight.life,
            watch,
            lines: Some(lines),
            partial: BytesMut::new(),
            queue: VecDeque::new(),
            last: now,
        };
        self.conns.insert(self.next, conn);
        self.wake(self.next);
        self.next
    }

    fn wake(&self, conn: ConnId) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).insert(conn);
    }

    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    /// Drops a connection, whoever still writes to it.
    pub(crate) fn hang_up(&mut self, id: ConnId) {
        self.conns.remove(&id);
    }

    /// Whether a connection has something to be read.
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Polls the connections whose wakers were called. Returns what each has to say; a closed one
    /// says so at the end.
    pub(crate) fn pump(&mut self) -> Vec<(ConnId, Vec<WatchItem>)> {
        let woken = std::mem::take(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner));
        let mut said = Vec::new();
        for id in woken {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let waker = Waker::from(Arc::new(ConnWaker { conn: id, woken: self.woken.clone() }));
            let items = conn.read(&mut Context::from_waker(&waker));
            if !items.is_empty() {
                said.push((id, items));
            }
        }
        said
    }
}

impl Conn {
    fn read(&mut self, cx: &mut Context<'_>) -> Vec<WatchItem> {
        let mut items = Vec::new();
        loop {
            let Some(lines) = &mut self.lines else { return items };
            match lines.as_mut().poll_next(cx) {
                Poll::Pending => return items,
                Poll::Ready(None) => {
                    self.lines = None;
                    items.push(WatchItem::Closed(None));
                }
                Poll::Ready(Some(bytes)) => {
                    self.partial.extend_from_slice(&bytes);
                    while let Some(at) = self.partial.iter().position(|b| *b == b'\n') {
                        let mut line = self.partial.split_to(at + 1);
                        line.truncate(at);
                        items.push(WatchItem::Event(line.freeze()));
                    }
                }
            }
        }
    }

    /// The server's end is closed: nothing more is read from it.
    pub(crate) fn cut(&mut self) -> bool {
        self.lines.take().is_some()
    }
}

/// What a client makes of a reply.
pub(crate) fn result_of(response: Response) -> Result<ApiResponse, ApiError> {
    let status = response.status().as_u16();
    let body = response.into_body().into_bytes();
    if (200..300).contains(&status) {
        Ok(ApiResponse { status, body })
    } else {
        Err(ApiError::from_reply(status, &body))
    }
}

/// The stream in a reply to a watch, and after how many seconds the server ends it.
///
/// # Errors
/// The refusal.
pub(crate) fn stream_of(response: Response) -> Result<(Lines, u64), ApiError> {
    let status = response.status().as_u16();
    match response.into_body() {
        Body::Watch { lines, timeout_s } => Ok((lines, timeout_s)),
        other => Err(ApiError::from_reply(status, &other.into_bytes())),
    }
}

/// Polls a future to its end. The store is not paced yet, so it does not wait for anything.
fn complete<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}
