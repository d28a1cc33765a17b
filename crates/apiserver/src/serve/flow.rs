//! Where requests wait for their seat; [`crate::flow`] decides.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrack_auth::Caller;
use http::HeaderValue;
use jiff::Timestamp;
use tokio::sync::oneshot;

use crate::flow::dump::{Counts, Picture, Standing};
use crate::flow::seats::{Arrival, Seats, Ticket};
use crate::flow::{Class, Classified};
use crate::metrics::Counted;
use crate::route::RequestInfo;
use crate::server::ApiServer;
use crate::status::Status;

/// What clients are told that find no room.
const REFUSED: &str = "too many requests, please try again later";

/// The seats and who waits for one.
pub(crate) struct Gate {
    total: usize,
    wait: Duration,
    next: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    seats: Seats,
    generation: u64,
    waiting: BTreeMap<Ticket, oneshot::Sender<()>>,
    /// Everybody who waits or is served.
    standing: BTreeMap<Ticket, Record>,
    /// What has become of the requests of each level.
    counts: BTreeMap<String, Counts>,
}

struct Record {
    standing: Arc<Standing>,
    /// Since when it is served.
    started: Option<Timestamp>,
}

/// A seat that is held; it is free again when this goes.
pub(super) struct Seat {
    gate: Arc<Gate>,
    ticket: Ticket,
    standing: Arc<Standing>,
    state: State,
    /// It is counted among those that wait, or among those that have a seat.
    counted: Counted,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Waits,
    /// It has waited for too long.
    Late,
    Served,
}

impl Gate {
    pub(super) fn new(total: usize, wait: Duration) -> Gate {
        Gate { total, wait, next: AtomicU64::new(0), inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a seat; none when the request needs none.
    pub(super) async fn enter(
        gate: &Arc<Gate>,
        server: &ApiServer,
        caller: &Caller,
        info: &RequestInfo,
    ) -> Result<Option<Seat>, Status> {
        let total = gate.total;
        let known = gate.inner().generation;
        let found = server.classify_read(caller, info, known, total).await?;
        let Some(Classified { class, levels }) = found else { return Ok(None) };
        let (env, began) = (&*server.inner.env, server.inner.env.now());
        let waited_s = || env.now().duration_since(began).as_secs_f64();
        let (metrics, ticket) = (&server.inner.metrics.flow, gate.next.fetch_add(1, Ordering::Relaxed));
        let standing = Arc::new(Standing::new(class, caller, info, began));
        let class = &standing.class;
        let seat = |state: State, counted: Counted| {
            let (gate, standing) = (Arc::clone(gate), Arc::clone(&standing));
            Seat { gate, ticket, standing, state, counted }
        };
        let (mut seat, told) = {
            let mut inner = gate.inner();
            if let Some((generation, levels)) = levels {
                inner.generation = generation;
                metrics.levels(&levels);
                let served = inner.seats.configure(total, levels);
                inner.wake(served);
            }
            let arrival = inner.seats.arrive(&class.level, class.flow, ticket);
            let started = (arrival == Arrival::Served).then_some(began);
            match arrival {
                Arrival::Served => inner.count(&class.level).dispatched += 1,
                Arrival::Refused => inner.count(&class.level).rejected += 1,
                Arrival::Waits => {}
            }
            if arrival != Arrival::Refused {
                inner.standing.insert(ticket, Record { standing: Arc::clone(&standing), started });
            }
            match arrival {
                Arrival::Served => return Ok(Some(seat(State::Served, metrics.seated(class, waited_s())))),
                Arrival::Refused => {
                    metrics.rejected(class, "queue-full", waited_s());
                    return Err(refused(class));
                }
                Arrival::Waits => {
                    let (tell, told) = oneshot::channel();
                    inner.waiting.insert(ticket, tell);
                    (seat(State::Waits, metrics.waits(class)), told)
                }
            }
        };
        // A client that goes away meanwhile drops the seat, and so its place in the queue.
        match tokio::time::timeout(gate.wait, told).await {
            Ok(Ok(())) => {
                seat.state = State::Served;
                seat.counted = metrics.seated(class, waited_s());
                gate.inner().starts(ticket, &class.level, env.now());
                Ok(Some(seat))
            }
            _ => {
                seat.state = State::Late;
                metrics.rejected(class, "time-out", waited_s());
                Err(refused(class))
            }
        }
    }

    /// The levels at this moment.
    pub(crate) fn pictures(&self) -> Vec<Picture> {
        let inner = self.inner();
        let queued = |ticket: &Ticket| inner.standing.get(ticket).map(|record| Arc::clone(&record.standing));
        let picture = |(name, queues): (&str, &[VecDeque<Ticket>])| {
            let own = inner.standing.values().filter(|record| record.standing.class.level == name);
            Picture {
                name: name.to_owned(),
                counts: inner.counts.get(name).copied().unwrap_or_default(),
                queues: queues.iter().map(|queue| queue.iter().filter_map(queued).collect()).collect(),
                served: own.filter_map(|record| Some((Arc::clone(&record.standing), record.started?))).collect(),
            }
        };
        inner.seats.queues().map(picture).collect()
    }
}

fn refused(class: &Class) -> Status {
    tracing::debug!(level = class.level, "a request finds no seat");
    Status::too_many_requests(REFUSED, 1)
}

impl Inner {
    fn wake(&mut self, served: Vec<Ticket>) {
        let mut next = served;
        while let Some(ticket) = next.pop() {
            // Who has gone without telling gives the seat back by its drop.
            if let Some(tell) = self.waiting.remove(&ticket) {
                _ = tell.send(());
            }
        }
    }

    /// What has become of a level's requests.
    fn count(&mut self, level: &str) -> &mut Counts {
        self.counts.entry(level.to_owned()).or_default()
    }

    /// A request that waited is served from now on.
    fn starts(&mut self, ticket: Ticket, level: &str, now: Timestamp) {
        self.count(level).dispatched += 1;
        if let Some(record) = self.standing.get_mut(&ticket) {
            record.started = Some(now);
        }
    }
}

impl Seat {
    /// Names what decided, as upstream's replies do.
    pub(super) fn mark(&self, headers: &mut http::HeaderMap) {
        let class = &self.standing.class;
        for (name, uid) in [
            ("x-kubernetes-pf-flowschema-uid", &class.schema_uid),
            ("x-kubernetes-pf-prioritylevel-uid", &class.level_uid),
        ] {
            if let Ok(value) = HeaderValue::from_str(uid) {
                headers.insert(name, value);
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let level = &self.standing.class.level;
        let mut inner = self.gate.inner();
        inner.standing.remove(&self.ticket);
        match self.state {
            State::Served => {}
            State::Waits => inner.count(level).cancelled += 1,
            State::Late => inner.count(level).timed_out += 1,
        }
        if self.state != State::Served {
            inner.waiting.remove(&self.ticket);
            if inner.seats.give_up(level, self.ticket) {
                return;
            }
        }
        let served = inner.seats.leave(level);
        inner.wake(served);
    }
}
