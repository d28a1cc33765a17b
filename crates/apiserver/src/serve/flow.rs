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
use crate::flow::seats::{Arrival, LevelConfig, Seats, Ticket};
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
    /// Everybody who waits or is served.
    standing: BTreeMap<Ticket, Record>,
    /// What has become of the requests of each level.
    counts: BTreeMap<String, Counts>,
}

struct Record {
    standing: Arc<Standing>,
    /// Since when it is served.
    started: Option<Timestamp>,
    /// Where it hears that it is served, while it waits.
    tell: Option<oneshot::Sender<()>>,
    /// Its level is not there, or went meanwhile: it has no seat, of one that is made anew under that name either.
    homeless: bool,
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

    /// Waits for a seat, for so long at most; none when the request needs none.
    pub(super) async fn enter(
        gate: &Arc<Gate>,
        server: &ApiServer,
        caller: &Caller,
        info: &Arc<RequestInfo>,
        most: Duration,
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
                inner.configure(total, levels);
            }
            match inner.arrives(ticket, &standing) {
                Arrival::Served => return Ok(Some(seat(State::Served, metrics.seated(class, waited_s())))),
                Arrival::Refused => {
                    metrics.rejected(class, "queue-full", waited_s());
                    return Err(refused(class));
                }
                Arrival::Waits => {
                    let told = inner.waits(ticket);
                    (seat(State::Waits, metrics.waits(class)), told)
                }
            }
        };
        // A client that goes away meanwhile drops the seat, and so its place in the queue.
        match tokio::time::timeout(gate.wait.min(most), told).await {
            Ok(Ok(())) => {
                seat.state = State::Served;
                seat.counted = metrics.seated(class, waited_s());
                gate.inner().starts(ticket, env.now());
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
            let is_own = |record: &&Record| record.standing.class.level == name && !record.homeless;
            let own = inner.standing.values().filter(is_own);
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
    /// Takes other levels.
    fn configure(&mut self, total: usize, levels: BTreeMap<String, LevelConfig>) {
        let served = self.seats.configure(total, levels);
        for record in self.standing.values_mut() {
            record.homeless |= !self.seats.knows(&record.standing.class.level);
        }
        self.wake(served);
        self.counts.retain(|level, _| self.seats.knows(level));
    }

    fn wake(&mut self, served: Vec<Ticket>) {
        let mut next = served;
        while let Some(ticket) = next.pop() {
            let Some(record) = self.standing.get_mut(&ticket) else { continue };
            let (standing, tell) = (Arc::clone(&record.standing), record.tell.take());
            self.count(&standing.class.level, |counts| counts.dispatched += 1);
            // Who has gone without telling gives the seat back by its drop.
            if let Some(tell) = tell {
                _ = tell.send(());
            }
        }
    }

    /// Counts what has become of a level's request, if there is such a level.
    fn count(&mut self, level: &str, what: impl FnOnce(&mut Counts)) {
        if !self.seats.knows(level) {
            return;
        }
        match self.counts.get_mut(level) {
            Some(counts) => what(counts),
            None => what(self.counts.entry(level.to_owned()).or_default()),
        }
    }

    /// A request arrives.
    fn arrives(&mut self, ticket: Ticket, standing: &Arc<Standing>) -> Arrival {
        let class = &standing.class;
        let arrival = self.seats.arrive(&class.level, class.flow, ticket);
        let started = (arrival == Arrival::Served).then_some(standing.arrived);
        match arrival {
            Arrival::Served => self.count(&class.level, |counts| counts.dispatched += 1),
            Arrival::Refused => self.count(&class.level, |counts| counts.rejected += 1),
            Arrival::Waits => {}
        }
        if arrival != Arrival::Refused {
            let homeless = !self.seats.knows(&class.level);
            self.standing.insert(ticket, Record { standing: Arc::clone(standing), started, tell: None, homeless });
        }
        arrival
    }

    /// Where a request that waits hears that it is served.
    fn waits(&mut self, ticket: Ticket) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        if let Some(record) = self.standing.get_mut(&ticket) {
            record.tell = Some(tell);
        }
        told
    }

    /// A request that waited has heard that it is served.
    fn starts(&mut self, ticket: Ticket, now: Timestamp) {
        if let Some(record) = self.standing.get_mut(&ticket) {
            record.started = Some(now);
        }
    }

    /// A request goes, and its seat or its place in the queue with it.
    fn leaves(&mut self, ticket: Ticket, level: &str, state: State) {
        let record = self.standing.remove(&ticket);
        if record.is_some_and(|record| record.homeless) {
            return;
        }
        // One that was served in the meantime is counted so.
        if state != State::Served && self.seats.give_up(level, ticket) {
            return self.count(level, |counts| match state {
                State::Late => counts.timed_out += 1,
                State::Waits | State::Served => counts.cancelled += 1,
            });
        }
        let served = self.seats.leave(level);
        self.wake(served);
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
        self.gate.inner().leaves(self.ticket, &self.standing.class.level, self.state);
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;
    use crate::route::Asked;

    fn standing() -> Arc<Standing> {
        let class = Class {
            level: "low".to_owned(),
            schema: "own".to_owned(),
            schema_uid: String::new(),
            level_uid: String::new(),
            distinguisher: String::new(),
            flow: 0,
        };
        let asked = Asked::of(&Method::GET, &Uri::from_static("/version"));
        Arc::new(Standing::new(class, &Caller::default(), &asked.info, Timestamp::UNIX_EPOCH))
    }

    fn low() -> BTreeMap<String, LevelConfig> {
        let level =
            LevelConfig { exempt: false, nominal: 1, lendable: 0, limit: 1, queues: 1, queue_length: 2, hand_size: 1 };
        BTreeMap::from([("low".to_owned(), level)])
    }

    /// Who has a seat of a level that goes has none of one that is made anew under its name, and gives none back there.
    #[test]
    fn a_level_that_is_made_anew_begins_empty() {
        let mut inner = Inner::default();
        inner.configure(1, low());
        assert_eq!([1, 2].map(|ticket| inner.arrives(ticket, &standing())), [Arrival::Served, Arrival::Waits]);
        inner.configure(1, BTreeMap::new());
        // While there is none it is served, and counted nowhere.
        assert_eq!(inner.arrives(3, &standing()), Arrival::Served);
        inner.configure(1, low());
        assert_eq!([4, 5].map(|ticket| inner.arrives(ticket, &standing())), [Arrival::Served, Arrival::Waits]);
        for gone in [1, 2, 3] {
            inner.leaves(gone, "low", State::Served);
            assert_eq!(inner.counts["low"].dispatched, 1, "{gone}");
        }
        inner.leaves(4, "low", State::Served);
        assert_eq!(inner.counts["low"].dispatched, 2);
    }

    /// Also one that goes after it was given a seat, and before it heard of that.
    #[test]
    fn each_request_is_counted_once() {
        let mut inner = Inner::default();
        inner.configure(1, low());
        let arrivals = [1, 2, 3, 4].map(|ticket| inner.arrives(ticket, &standing()));
        assert_eq!(arrivals, [Arrival::Served, Arrival::Waits, Arrival::Waits, Arrival::Refused]);
        inner.leaves(3, "low", State::Waits);
        inner.leaves(1, "low", State::Served);
        inner.leaves(2, "low", State::Waits);
        assert_eq!([5, 6].map(|ticket| inner.arrives(ticket, &standing())), [Arrival::Served, Arrival::Waits]);
        inner.leaves(6, "low", State::Late);
        inner.leaves(5, "low", State::Served);
        let want = Counts { dispatched: 3, rejected: 1, timed_out: 1, cancelled: 1 };
        assert_eq!(inner.counts["low"], want);
        assert!(inner.standing.is_empty());
    }
}
