//! Where requests wait for their seat; [`crate::flow`] decides.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use carrack_auth::Caller;
use http::HeaderValue;
use tokio::sync::oneshot;

use crate::flow::seats::{Arrival, Seats, Ticket};
use crate::flow::{Class, Classified};
use crate::metrics::Counted;
use crate::route::RequestInfo;
use crate::server::ApiServer;
use crate::status::Status;

/// What clients are told that find no room.
const REFUSED: &str = "too many requests, please try again later";

/// The seats and who waits for one.
pub(super) struct Gate {
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
}

/// A seat that is held; it is free again when this goes.
pub(super) struct Seat {
    gate: Arc<Gate>,
    class: Class,
    state: State,
    /// It is counted among those that wait, or among those that have a seat.
    counted: Counted,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Waits(Ticket),
    Served,
}

impl Gate {
    pub(super) fn new(total: usize, wait: Duration) -> Gate {
        Gate { total, wait, next: AtomicU64::new(0), inner: Mutex::default() }
    }

    /// Waits for a seat; none when the request needs none.
    pub(super) async fn enter(
        gate: &Arc<Gate>,
        server: &ApiServer,
        caller: &Caller,
        info: &RequestInfo,
    ) -> Result<Option<Seat>, Status> {
        let total = gate.total;
        let known = gate.inner.lock().unwrap_or_else(PoisonError::into_inner).generation;
        let found = server.classify_read(caller, info, known, total).await?;
        let Some(Classified { class, levels }) = found else { return Ok(None) };
        let (env, began) = (&*server.inner.env, server.inner.env.now());
        let waited_s = || env.now().duration_since(began).as_secs_f64();
        let (metrics, ticket) = (&server.inner.metrics.flow, gate.next.fetch_add(1, Ordering::Relaxed));
        let (mut seat, told) = {
            let mut inner = gate.inner.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((generation, levels)) = levels {
                inner.generation = generation;
                metrics.levels(&levels);
                let served = inner.seats.configure(total, levels);
                inner.wake(served);
            }
            match inner.seats.arrive(&class.level, class.flow, ticket) {
                Arrival::Served => {
                    let counted = metrics.seated(&class, waited_s());
                    return Ok(Some(Seat { gate: Arc::clone(gate), class, state: State::Served, counted }));
                }
                Arrival::Refused => {
                    metrics.rejected(&class, "queue-full", waited_s());
                    return Err(refused(&class));
                }
                Arrival::Waits => {
                    let (tell, told) = oneshot::channel();
                    inner.waiting.insert(ticket, tell);
                    let counted = metrics.waits(&class);
                    (Seat { gate: Arc::clone(gate), class, state: State::Waits(ticket), counted }, told)
                }
            }
        };
        // A client that goes away meanwhile drops the seat, and so its place in the queue.
        match tokio::time::timeout(gate.wait, told).await {
            Ok(Ok(())) => {
                seat.state = State::Served;
                seat.counted = metrics.seated(&seat.class, waited_s());
                Ok(Some(seat))
            }
            _ => {
                metrics.rejected(&seat.class, "time-out", waited_s());
                Err(refused(&seat.class))
            }
        }
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
}

impl Seat {
    /// Names what decided, as upstream's replies do.
    pub(super) fn mark(&self, headers: &mut http::HeaderMap) {
        for (name, uid) in [
            ("x-kubernetes-pf-flowschema-uid", &self.class.schema_uid),
            ("x-kubernetes-pf-prioritylevel-uid", &self.class.level_uid),
        ] {
            if let Ok(value) = HeaderValue::from_str(uid) {
                headers.insert(name, value);
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.gate.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waits(ticket) = self.state {
            inner.waiting.remove(&ticket);
            if inner.seats.give_up(&self.class.level, ticket) {
                return;
            }
        }
        let served = inner.seats.leave(&self.class.level);
        inner.wake(served);
    }
}
