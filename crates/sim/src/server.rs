//! The API servers of the simulation: the real logic on one real store in memory, polled by hand.
//!
//! ```text
//!   arrive ─► its class ─► a seat? ─ no ─► waits, or is refused
//!                             └ yes ─► answered by the server that it came to ─► the seat is free a while later
//! ```
//!
//! A request is a future that is polled when it arrives, and again when the store operation that it
//! waits for is due. A watch is a stream that is polled when its waker was called. Both end when their
//! server crashes; the store stays, and the other servers do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Bytes, BytesMut};
use carrack_apiserver::body::Lines;
use carrack_apiserver::seats::Arrival;
use carrack_apiserver::{ApiServer, Body, Call, Calling, Class, Classified, Config, Env, Response, Status};
use carrack_auth::Caller;
use carrack_engine::{ApiError, ApiResponse, CallId, Rng, Time, WatchId, WatchItem};
use carrack_store::{MemStore, Op, Revision, Store as _, Txn};
use carrack_virt::admission::CloneAdmission;
use serde_json::Value;

use crate::blind::Blind;
use crate::hall::Hall;
use crate::invariants::Breach;
use crate::meters::{self, Meters};
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
    /// The server that it goes to.
    pub server: usize,
    /// In whose term it was sent, if it is of a role of which one leads.
    pub term: Option<String>,
    /// What was committed when it was sent.
    pub known: Revision,
    /// The seat that it has taken.
    pub class: Option<Class>,
    stage: Stage,
}

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;
type Classifying = Pin<Box<dyn Future<Output = Result<Option<Classified>, Status>> + Send>>;

/// How far a request has come.
enum Stage {
    Travels(http::Request<Bytes>),
    /// It is found out where it belongs.
    Classified(Classifying, http::Request<Bytes>),
    /// It waits for a seat.
    Waits(http::Request<Bytes>),
    Answered(Answer),
}

/// How a poll of a request ended.
pub(crate) enum Polled {
    /// It waits for the store.
    Pending(std::time::Duration),
    /// It waits for a seat.
    Waits,
    Answered(Box<Flight>, Box<Response>),
}

/// A watch connection.
pub(crate) struct Conn {
    pub server: usize,
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

/// The clock and the chance of API servers, and whom they call.
struct SimEnv {
    state: Mutex<(Time, Rng)>,
    /// How far each server's clock is ahead, in nanoseconds.
    ahead_ns: Mutex<Vec<i64>>,
    pace: Arc<Pace>,
    webhook: Arc<Webhook>,
    meters: Arc<Meters>,
}

impl SimEnv {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Time, Rng)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_clocks(&self) -> std::sync::MutexGuard<'_, Vec<i64>> {
        self.ahead_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ahead_ns(&self, server: usize) -> i64 {
        self.lock_clocks().get(server).copied().unwrap_or(0)
    }
}

/// The same for one server, which goes by the time of day as its own machine tells it.
struct OwnEnv {
    all: Arc<SimEnv>,
    server: usize,
}

impl Env for OwnEnv {
    fn now(&self) -> jiff::Timestamp {
        let ns = self.all.lock().0.0.saturating_add(self.all.ahead_ns(self.server));
        jiff::Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
    fn random(&self) -> u64 {
        self.all.lock().1.u64()
    }
    fn call(&self, call: Call) -> Calling {
        let SimEnv { pace, webhook, meters, .. } = &*self.all;
        if meters::is_called(&call) { meters.discovery() } else { webhook.call(pace, call) }
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

/// The API servers and all that is connected to them.
pub(crate) struct Servers {
    pub mem: Arc<MemStore>,
    pub pace: Arc<Pace>,
    pub webhook: Arc<Webhook>,
    pub meters: Arc<Meters>,
    env: Arc<SimEnv>,
    apis: Vec<Option<ApiServer>>,
    halls: Vec<Hall>,
    settings: Settings,
    flights: BTreeMap<FlightId, Flight>,
    conns: BTreeMap<ConnId, Conn>,
    /// Requests that have got the seat that they waited for.
    seated: Vec<FlightId>,
    /// How often each server has been started.
    lives: Vec<u32>,
    next: u64,
    woken: Woken,
}

/// What the servers are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How many there are.
    pub count: usize,
    /// How many requests each serves at the same time.
    pub seats: usize,
    /// The last of them answers reads from what it knew a while ago: a planted bug.
    pub stale: bool,
    /// What is wrong with the seats: a planted bug.
    pub seats_fault: Option<crate::hall::Fault>,
    /// What is done to clones.
    pub clones: CloneAdmission,
    /// Which writes admission of machines passes over: a planted bug.
    pub blind: Option<Blind>,
    /// What is asked for below `watch/` is done, whatever it is: a planted bug.
    pub writes_watches: bool,
    /// Whoever may make pods is believed what he says of their GPUs: a planted bug.
    pub believes: bool,
    /// They serve what is done to machines beyond reading and writing their objects.
    pub subresources: bool,
}

impl Servers {
    /// Servers over an empty store.
    pub(crate) fn new(now: Time, rng: &Rng, settings: Settings) -> Self {
        let pace = Pace::new(rng.fork("store"));
        let webhook = Webhook::new(rng.fork("webhook"));
        let meters = Meters::new(rng.fork("meters"));
        let state = Mutex::new((now, rng.fork("env")));
        let mut servers = Self {
            mem: Arc::new(MemStore::default().paced()),
            env: Arc::new(SimEnv {
                state,
                ahead_ns: Mutex::new(vec![0; settings.count]),
                pace: pace.clone(),
                webhook: webhook.clone(),
                meters: meters.clone(),
            }),
            pace,
            webhook,
            meters,
            apis: (0..settings.count).map(|_| None).collect(),
            halls: (0..settings.count).map(|_| Hall::default()).collect(),
            settings,
            flights: BTreeMap::new(),
            conns: BTreeMap::new(),
            seated: Vec::new(),
            lives: vec![0; settings.count],
            next: 0,
            woken: Woken::default(),
        };
        for server in 0..settings.count {
            servers.start(server);
        }
        servers
    }

    pub(crate) fn count(&self) -> usize {
        self.apis.len()
    }

    /// Draws other chances from here on.
    pub(crate) fn reseed(&self, rng: &Rng) {
        self.env.lock().1 = rng.fork("env");
        self.pace.reseed(rng.fork("store"));
        self.webhook.reseed(rng.fork("webhook"));
        self.meters.reseed(rng.fork("meters"));
    }

    /// Whether no request is on its way, and no line of a watch.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.conns.values().all(|conn| conn.queue.is_empty())
    }

    /// Makes what a cluster begins with: the server's own objects, and these besides.
    ///
    /// # Errors
    /// What the server says.
    pub(crate) fn bootstrap(&mut self, objects: &[(String, Value)]) -> Result<(), String> {
        let all: Vec<ApiServer> = self.apis.iter().flatten().cloned().collect();
        for api in &all {
            let api = api.clone();
            complete(async move { api.bootstrap().await }).map_err(|status| status.message)?;
        }
        let Some(api) = all.first() else { return Err("no server is there".into()) };
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

    /// How far a server's clock is ahead, in nanoseconds.
    pub(crate) fn ahead_ns(&self, server: usize) -> i64 {
        self.env.ahead_ns(server)
    }

    /// A server's clock is set: it goes by that at once, as its process asks for the time of day.
    pub(crate) fn set_clock(&self, server: usize, ahead_ns: i64) {
        if let Some(own) = self.env.lock_clocks().get_mut(server) {
            *own = ahead_ns;
        }
    }

    pub(crate) fn is_up(&self, server: usize) -> bool {
        self.apis.get(server).is_some_and(Option::is_some)
    }

    pub(crate) fn any_up(&self) -> bool {
        self.apis.iter().any(Option::is_some)
    }

    /// Starts a process over the store as it is.
    pub(crate) fn start(&mut self, server: usize) {
        let stale = self.settings.stale && server + 1 == self.settings.count;
        let store = Arc::new(PacedStore::new(self.mem.clone(), self.pace.clone(), stale));
        let mut config = Config::new(store, Arc::new(OwnEnv { all: self.env.clone(), server }));
        config.plugins.push(match self.settings.blind {
            Some(blind) => Box::new(blind),
            None => Box::new(carrack_virt::admission::VirtAdmission),
        });
        config.plugins.push(Box::new(self.settings.clones));
        if !self.settings.believes {
            config.plugins.push(Box::new(carrack_gpu_extender::GpuAnnotations::default()));
        }
        if self.settings.subresources {
            config.apis.push(Arc::new(carrack_virt::api::Subresources::new()));
        }
        config.planted_writing_watches = self.settings.writes_watches;
        if let (Some(api), Some(hall)) = (self.apis.get_mut(server), self.halls.get_mut(server)) {
            *api = Some(ApiServer::new(config));
            *hall = Hall::new(self.settings.seats, self.settings.seats_fault);
        }
        if let Some(life) = self.lives.get_mut(server) {
            *life += 1;
        }
    }

    /// Kills a process. Returns what it was answering, and its watch connections.
    pub(crate) fn crash(&mut self, server: usize) -> (Vec<Flight>, Vec<ConnId>) {
        if let Some(api) = self.apis.get_mut(server) {
            *api = None;
        }
        let there = |flight: &Flight| flight.server == server && !matches!(flight.stage, Stage::Travels(_));
        let ids: Vec<FlightId> = self.flights.iter().filter(|(_, f)| there(f)).map(|(id, _)| *id).collect();
        let flights = ids.iter().filter_map(|id| self.flights.remove(id)).collect();
        let own = self.conns.iter_mut().filter(|(_, conn)| conn.server == server);
        let conns = own.filter_map(|(id, conn)| conn.lines.take().map(|_| *id)).collect();
        (flights, conns)
    }

    /// Puts a request on its way to a server.
    #[expect(clippy::too_many_arguments, reason = "all that is known of a request")]
    pub(crate) fn depart(
        &mut self,
        server: usize,
        (role, life): (Role, u32),
        asked: Asked,
        sent: Time,
        reply: Option<Reply>,
        label: String,
        request: http::Request<Bytes>,
    ) -> FlightId {
        self.next += 1;
        let (known, stage) = (self.mem.revision(), Stage::Travels(request));
        let term = crate::leaders::term(role, &label, self);
        let flight = Flight { role, life, asked, sent, reply, label, server, term, known, class: None, stage };
        self.flights.insert(self.next, flight);
        self.next
    }

    /// A request arrives: true when there is somebody to answer it.
    pub(crate) fn arrive(&mut self, id: FlightId) -> bool {
        let Some(mut flight) = self.flights.remove(&id) else { return false };
        let server = flight.server;
        let (Some(Some(api)), Some(hall)) = (self.apis.get(server).cloned(), self.halls.get(server)) else {
            self.flights.insert(id, flight);
            return false;
        };
        let (generation, total) = (hall.generation, hall.total());
        flight.stage = match flight.stage {
            Stage::Travels(request) => {
                let (caller, method, uri) = (flight.role.caller(), request.method().clone(), request.uri().clone());
                let classifying =
                    Box::pin(async move { api.classify(&caller, &method, &uri, generation, total).await });
                Stage::Classified(classifying, request)
            }
            further => further,
        };
        self.flights.insert(id, flight);
        true
    }

    /// A request that is under way or being answered.
    pub(crate) fn flight(&self, id: FlightId) -> Option<&Flight> {
        self.flights.get(&id)
    }

    /// What a request that has not arrived yet says: its label and its body.
    pub(crate) fn travels(&self, id: FlightId) -> Option<(&str, &Bytes)> {
        let flight = self.flights.get(&id)?;
        let Stage::Travels(request) = &flight.stage else { return None };
        Some((&flight.label, request.body()))
    }

    /// An object as it is stored.
    pub(crate) fn stored<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<T> {
        let (entry, _) = complete(self.mem.get(key)).ok()?;
        serde_json::from_slice(&entry?.value()).ok()
    }

    /// A planted bug: an object is changed behind the servers' back.
    pub(crate) fn overwrite(&self, key: &str, from: &str, to: &str) {
        let Ok((Some(entry), _)) = complete(self.mem.get(key)) else { return };
        let text = String::from_utf8_lossy(&entry.value()).replace(from, to);
        // It gets a revision like any other write: watches tell of it.
        let stamped = format!("\"resourceVersion\":\"{}\"", entry.mod_revision);
        let text = text.replacen(&stamped, "\"resourceVersion\":\"\"", 1);
        let stamp_at = carrack_store::stamp_place(text.as_bytes());
        let value = carrack_store::Value { bytes: text.into(), stamp_at };
        let txn = Txn { checks: Vec::new(), ops: vec![Op::Put(key.into(), value)] };
        if let Err(error) = complete(self.mem.transact(txn)) {
            debug_assert!(false, "a planted write: {error}");
        }
    }

    /// A request that nobody answered.
    pub(crate) fn drop_flight(&mut self, id: FlightId) -> Option<Flight> {
        self.flights.remove(&id)
    }

    /// Goes on with a request. None when it is gone.
    pub(crate) fn poll(&mut self, id: FlightId) -> Option<Polled> {
        loop {
            let flight = self.flights.get_mut(&id)?;
            let mut cx = Context::from_waker(Waker::noop());
            let classified = match &mut flight.stage {
                Stage::Travels(_) => return None,
                Stage::Waits(_) => return Some(Polled::Waits),
                Stage::Classified(classifying, _) => match classifying.as_mut().poll(&mut cx) {
                    Poll::Pending => return Some(Polled::Pending(self.pace.take_wait())),
                    Poll::Ready(classified) => classified,
                },
                Stage::Answered(answer) => match answer.as_mut().poll(&mut cx) {
                    Poll::Pending => return Some(Polled::Pending(self.pace.take_wait())),
                    Poll::Ready(response) => return self.answered(id, response),
                },
            };
            let refused = match classified {
                Err(status) => Some(status),
                Ok(None) => {
                    self.serve(id);
                    None
                }
                Ok(Some(Classified { class, levels })) => {
                    let hall = self.halls.get_mut(flight.server)?;
                    if let Some((generation, levels)) = levels.filter(|(generation, _)| *generation != hall.generation)
                    {
                        self.seated.extend(hall.configure(generation, levels));
                    }
                    flight.class = Some(class.clone());
                    match hall.arrive(id, &class) {
                        Arrival::Served => {
                            self.serve(id);
                            None
                        }
                        Arrival::Waits => {
                            self.wait(id);
                            None
                        }
                        Arrival::Refused => {
                            flight.class = None;
                            Some(Status::too_many_requests("too many requests, please try again later", 1))
                        }
                    }
                }
            };
            if let Some(status) = refused {
                return self.answered(id, Response::from(status));
            }
        }
    }

    fn answered(&mut self, id: FlightId, response: Response) -> Option<Polled> {
        self.flights.remove(&id).map(|flight| Polled::Answered(Box::new(flight), Box::new(response)))
    }

    fn wait(&mut self, id: FlightId) {
        let Some(mut flight) = self.flights.remove(&id) else { return };
        flight.stage = match flight.stage {
            Stage::Classified(_, request) => Stage::Waits(request),
            further => further,
        };
        self.flights.insert(id, flight);
    }

    /// A request has its seat, or needs none.
    pub(crate) fn serve(&mut self, id: FlightId) {
        let Some(mut flight) = self.flights.remove(&id) else { return };
        let Some(Some(api)) = self.apis.get(flight.server).cloned() else { return };
        flight.stage = match flight.stage {
            Stage::Classified(_, request) | Stage::Waits(request) | Stage::Travels(request) => {
                let caller = flight.role.caller();
                Stage::Answered(Box::pin(async move { api.handle(request, caller).await }))
            }
            further @ Stage::Answered(_) => further,
        };
        self.flights.insert(id, flight);
    }

    /// In which life a server is.
    pub(crate) fn life(&self, server: usize) -> u32 {
        self.lives.get(server).copied().unwrap_or(0)
    }

    /// A seat of a server in that life is free again.
    pub(crate) fn leave(&mut self, server: usize, life: u32, class: &Class) {
        if self.life(server) == life
            && let Some(hall) = self.halls.get_mut(server)
        {
            self.seated.extend(hall.leave(class));
        }
    }

    /// Who has got the seat that they waited for.
    pub(crate) fn take_seated(&mut self) -> Vec<FlightId> {
        std::mem::take(&mut self.seated)
    }

    /// A request has waited for long enough: what it is told, if it still waits.
    pub(crate) fn give_up(&mut self, id: FlightId) -> Option<Polled> {
        let flight = self.flights.get_mut(&id)?;
        if !self.halls.get_mut(flight.server)?.give_up(id) {
            return None;
        }
        flight.class = None;
        self.answered(id, Status::too_many_requests("too many requests, please try again later", 1).into())
    }

    /// What holds of seats.
    pub(crate) fn check(&mut self, breaches: &mut Vec<Breach>) {
        for hall in &mut self.halls {
            hall.check(breaches);
        }
    }

    /// Makes a connection of a reply to a watch request.
    pub(crate) fn connect(&mut self, now: Time, flight: &Flight, watch: WatchId, lines: Lines) -> ConnId {
        self.next += 1;
        let conn = Conn {
            server: flight.server,
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

    /// What is on its way to clients arrives at this time at the latest. Returns the connections with such lines.
    pub(crate) fn hurry(&mut self, at: Time) -> Vec<ConnId> {
        let mut hurried = Vec::new();
        for (id, conn) in self.conns.iter_mut().filter(|(_, conn)| conn.last > at) {
            conn.last = at;
            for (due, _) in &mut conn.queue {
                *due = at.min(*due);
            }
            if !conn.queue.is_empty() {
                hurried.push(*id);
            }
        }
        hurried
    }

    /// Drops a connection, whoever still writes to it.
    pub(crate) fn hang_up(&mut self, id: ConnId) {
        self.conns.remove(&id);
    }

    /// Whether a connection has something to be read.
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// A watch of a role.
    #[cfg(test)]
    pub(crate) fn conn_of(&self, role: Role) -> Option<ConnId> {
        self.conns.iter().find(|(_, conn)| conn.role == role).map(|(id, _)| *id)
    }

    /// How many lines are on their way to a client.
    #[cfg(test)]
    pub(crate) fn held_up(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |conn| conn.queue.len())
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
