//! The store under the API server: [`MemStore`] with a pace of its own.
//!
//! A store on a disk takes time, and meanwhile other requests go on. So an operation may be pending
//! when it is polled first: the request that waits for it is polled again after a while, and others
//! come in between.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use carrack_engine::Rng;
use carrack_store::{Entry, MemStore, Op, Range, RangePage, Revision, Store, StoreError, StoreFuture, Txn, TxnOutcome};

use crate::chance::Delay;

/// How long operations of the store take.
pub(crate) struct Pace(Mutex<PaceState>);

struct PaceState {
    rng: Rng,
    /// One in so many operations is not ready at once; 0 is never.
    pending_one_in: u64,
    delay: Delay,
    /// What the operation that was polled last waits for.
    wait: Option<Duration>,
    /// How many times it was filled since there was room.
    full: u32,
    /// What it refuses of Leases for lack of room is answered as made: a planted bug.
    nods: bool,
}

impl Pace {
    pub(crate) fn new(rng: Rng) -> Arc<Self> {
        Arc::new(Self(Mutex::new(PaceState {
            rng,
            pending_one_in: 0,
            delay: Delay::micros(0),
            wait: None,
            full: 0,
            nods: false,
        })))
    }
    fn lock(&self) -> MutexGuard<'_, PaceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Draws other chances from here on.
    pub(crate) fn reseed(&self, rng: Rng) {
        self.lock().rng = rng;
    }
    pub(crate) fn set(&self, pending_one_in: u64, delay: Delay) {
        let mut state = self.lock();
        state.pending_one_in = pending_one_in;
        state.delay = delay;
        state.full = 0;
    }
    /// There is no room any more for what is written.
    pub(crate) fn fill(&self, nods: bool) {
        let mut state = self.lock();
        state.full += 1;
        state.nods = nods;
    }
    /// What it was filled with once is gone. Whether there is room now, and was none before.
    pub(crate) fn empty(&self) -> bool {
        let mut state = self.lock();
        let was_full = state.full > 0;
        state.full = state.full.saturating_sub(1);
        was_full && state.full == 0
    }
    pub(crate) fn is_full(&self) -> bool {
        self.lock().full > 0
    }
    /// How long the operation waits that has just been found pending.
    pub(crate) fn take_wait(&self) -> Duration {
        self.lock().wait.take().unwrap_or_default()
    }
    /// Something that is not of the store is not ready before this has passed.
    pub(crate) fn wait_for(&self, wait: Duration) {
        self.lock().wait = Some(wait);
    }
    fn pause(&self) -> Pause<'_> {
        Pause { pace: self, asked: false }
    }
}

struct Pause<'a> {
    pace: &'a Pace,
    asked: bool,
}

impl Future for Pause<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.asked {
            return Poll::Ready(());
        }
        self.asked = true;
        let mut state = self.pace.lock();
        let PaceState { rng, pending_one_in, delay, wait, .. } = &mut *state;
        if rng.one_in(*pending_one_in) {
            *wait = Some(delay.draw(rng));
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

/// How far behind a server reads with the planted bug, in revisions.
const BEHIND: u64 = 25;

/// What is said of a transaction that was not made: the planted bug.
fn as_if_made(txn: &Txn, revision: Revision) -> TxnOutcome {
    let entry = |op: &Op| match op {
        Op::Put(key, value) => {
            let mut bytes = value.bytes.to_vec();
            if let Some(at) = value.stamp_at {
                drop(bytes.splice(at..at, revision.to_string().into_bytes()));
            }
            Some(Arc::new(Entry::new(Arc::clone(key), bytes.into(), revision, revision)))
        }
        Op::Delete(_) => None,
    };
    TxnOutcome::Committed { revision, entries: txn.ops.iter().map(entry).collect() }
}

/// The store that an API server gets.
pub(crate) struct PacedStore {
    store: Arc<MemStore>,
    pace: Arc<Pace>,
    /// It answers reads from what it knew a while ago: the planted bug.
    stale: bool,
}

impl PacedStore {
    pub(crate) fn new(store: Arc<MemStore>, pace: Arc<Pace>, stale: bool) -> Self {
        Self { store, pace, stale }
    }

    /// There is no room for a transaction. The embedded store refuses such a batch as a whole, whatever its checks say.
    fn refuse(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        let is_of_lease = |op: &Op| matches!(op, Op::Put(key, _) if key.contains("/leases/"));
        if self.pace.lock().nods && txn.ops.iter().all(is_of_lease) {
            return Ok(as_if_made(txn, Revision(self.store.revision().0 + 1)));
        }
        Err(StoreError::Refused("its log cannot be written: No space left on device (os error 28)".to_owned()))
    }

    /// The revision that a stale server takes for the newest.
    fn known(&self) -> Option<Revision> {
        self.stale.then(|| Revision(self.store.revision().0.saturating_sub(BEHIND).max(1)))
    }
}

impl carrack_store::Layer for PacedStore {
    fn below(&self) -> &dyn Store {
        &*self.store
    }
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        Box::pin(async move {
            // Once before the commit and once after it, so that a crash may fall on either side: what nobody has heard of is lost
            // or kept then, and what somebody has heard of is kept.
            self.pace.pause().await;
            if self.pace.is_full() && !txn.ops.is_empty() {
                return self.refuse(&txn);
            }
            let outcome = self.store.transact(txn).await;
            self.pace.pause().await;
            outcome
        })
    }
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)> {
        Box::pin(async move {
            self.pace.pause().await;
            self.store.get(key).await
        })
    }
    fn range(&self, range: Range) -> StoreFuture<'_, RangePage> {
        Box::pin(async move {
            self.pace.pause().await;
            let known = self.known();
            let old = Range { at: range.at.or(known), ..range.clone() };
            match self.store.range(old).await {
                // So far back there is nothing any more.
                Err(_) if known.is_some() => self.store.range(range).await,
                page => page,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use carrack_store::Value;

    use super::*;

    const KEY: &str = "/registry/leases/default/a";

    fn write() -> Txn {
        let bytes = r#"{"metadata":{"resourceVersion":"","name":"a"}}"#;
        let stamp_at = carrack_store::stamp_place(bytes.as_bytes());
        Txn { checks: Vec::new(), ops: vec![Op::Put(KEY.into(), Value { bytes: bytes.into(), stamp_at })] }
    }

    fn store() -> (Arc<MemStore>, PacedStore) {
        let (store, pace) = (Arc::new(MemStore::default()), Pace::new(Rng::new(1)));
        (store.clone(), PacedStore::new(store, pace, false))
    }

    /// Polls a write so many times, and drops it then, as a server that dies does. Returns its outcome, if it has one.
    fn written(store: &PacedStore, polls: u32) -> Option<Result<TxnOutcome, StoreError>> {
        let mut writing = store.transact(write());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        (0..polls).find_map(|_| match writing.as_mut().poll(&mut cx) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        })
    }

    #[test]
    fn what_a_dying_server_has_not_acknowledged_is_lost_or_kept() {
        for (polls, kept, acknowledged) in [(1, false, false), (2, true, false), (3, true, true)] {
            let (mem, store) = store();
            let before = mem.revision();
            store.pace.set(1, Delay::millis(1));
            let outcome = written(&store, polls);
            assert_eq!((mem.revision() > before, outcome.is_some()), (kept, acknowledged), "after {polls} polls");
        }
    }

    #[test]
    fn a_full_store_refuses_writes_and_answers_reads() {
        // How often it is filled and emptied, whether the bug is planted, and what becomes of a write: whether it is made, and
        // whether it is answered as made.
        for (filled, emptied, nods, made, answered) in [
            (0, 0, false, true, true),
            (1, 0, false, false, false),
            (1, 0, true, false, true),
            (1, 1, false, true, true),
            (2, 1, false, false, false),
            (2, 2, false, true, true),
            // It was emptied more often, since nothing fails any more.
            (0, 1, false, true, true),
        ] {
            let (mem, store) = store();
            (0..filled).for_each(|_| store.pace.fill(nods));
            let has_room = (0..emptied).fold(false, |_, _| store.pace.empty());
            let what = format!("filled {filled} times and emptied {emptied} times");
            assert_eq!(has_room, filled > 0 && filled == emptied, "{what}");
            let before = mem.revision();
            let outcome = written(&store, 1).expect("it does not wait");
            assert_eq!((mem.revision() > before, outcome.is_ok()), (made, answered), "{what}: {outcome:?}");
            if let Ok(TxnOutcome::Committed { revision, entries }) = &outcome {
                let shown = entries.first().cloned().flatten().expect("it shows what it has written");
                let stamped = format!(r#""resourceVersion":"{revision}""#);
                assert!(String::from_utf8_lossy(&shown.value()).contains(&stamped), "{what}");
            }
            let mut read = store.get(KEY);
            let read = read.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
            assert!(matches!(read, Poll::Ready(Ok((entry, _))) if entry.is_some() == made), "{what}");
        }
    }
}
