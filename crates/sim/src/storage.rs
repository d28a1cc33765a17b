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
use carrack_store::{
    Entry, MemStore, Range, RangePage, Revision, Store, StoreError, StoreFuture, Txn, TxnOutcome, Watch,
};

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
}

impl Pace {
    pub(crate) fn new(rng: Rng) -> Arc<Self> {
        Arc::new(Self(Mutex::new(PaceState { rng, pending_one_in: 0, delay: Delay::micros(0), wait: None })))
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
        let PaceState { rng, pending_one_in, delay, wait } = &mut *state;
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

    /// The revision that a stale server takes for the newest.
    fn known(&self) -> Option<Revision> {
        self.stale.then(|| Revision(self.store.revision().0.saturating_sub(BEHIND).max(1)))
    }
}

impl Store for PacedStore {
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        Box::pin(async move {
            // Once before the commit and once after it, so that a crash may fall on either side.
            self.pace.pause().await;
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
    fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        self.store.watch(prefix, after)
    }
    fn revision(&self) -> Revision {
        self.store.revision()
    }
    fn compact(&self, revision: Revision) -> StoreFuture<'_, ()> {
        self.store.compact(revision)
    }
}
