//! The store's core, in memory: no clock, no IO, no runtime.
//!
//! [`MemStore`] is the whole store with nothing under it, for the simulator and for tests. Its
//! futures are ready when they are polled first, and a transaction commits at that poll.

mod aging;
mod prefixes;
mod progress;
mod published;
mod state;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use aging::Aging;
pub(crate) use progress::Pace;
pub(crate) use published::Published;
pub use state::HistoryLimits;
pub(crate) use state::{Change, State, event_key, validate};

use crate::model::{Entry, Range, RangePage, Revision, Store, StoreError, StoreFuture, Txn, TxnOutcome, Watch};
use crate::packer::Packer;

/// How many events a watcher may leave unread before it is dropped as lagging.
pub const WATCH_BUFFER_EVENTS: usize = 8192;

/// A store that keeps nothing but memory.
pub struct MemStore {
    published: Arc<Published>,
    limits: HistoryLimits,
    /// Writers go one after the other; what ages with the time they hand in is kept here.
    writer: Mutex<Aging>,
    /// How soon watchers are to be told how far they know everything, by whoever has the store; else they are told at once.
    untold: Option<Mutex<Option<Duration>>>,
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new(HistoryLimits::default(), WATCH_BUFFER_EVENTS)
    }
}

impl MemStore {
    /// An empty store with the given bounds.
    #[must_use]
    pub fn new(limits: HistoryLimits, watch_buffer_events: usize) -> Self {
        Self {
            published: Published::new(State::new(), watch_buffer_events, Packer::at_once()),
            limits,
            writer: Mutex::new(Aging::new(limits.age_ms)),
            untold: None,
        }
    }

    /// Leaves it to [`MemStore::tell_progress`] when watchers to whose prefix nothing happened are told how far that reaches,
    /// as a store with a clock does.
    #[must_use]
    pub fn paced(self) -> Self {
        Self { untold: Some(Mutex::default()), ..self }
    }

    /// How soon after the newest commit [`MemStore::tell_progress`] is to be called. None: all have been told.
    #[must_use]
    pub fn untold(&self) -> Option<Duration> {
        *self.untold.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all watchers how far they know everything.
    pub fn tell_progress(&self) {
        if let Some(untold) = &self.untold {
            *untold.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.published.wake_behind();
    }

    /// Commits a transaction at once.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.change(|state, events| {
            let outcome = state.apply(txn, events)?;
            state.trim(&self.limits);
            Ok(outcome)
        })
    }

    /// Says what time it is, so that history can go by age. Any clock that does not go back.
    pub fn tick(&self, now_ms: u64) {
        let newest = self.published.state().revision();
        let due = self.lock().note(now_ms, newest);
        if let Some(revision) = due {
            // Every revision that has been noted exists.
            let compacted = self.change(|state, _| state.compact(revision));
            debug_assert!(compacted.is_ok(), "an old revision lies in the future");
        }
    }

    /// Ends all running watches with an error, after what they have still to read; new ones can be
    /// opened. For the simulator: a watch may break at any time.
    pub fn interrupt_watches(&self, error: &StoreError) {
        self.published.end_watches(error, false);
    }

    /// The oldest revision that can be read or watched from.
    #[must_use]
    pub fn oldest(&self) -> Revision {
        self.published.state().compacted()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Aging> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a clone of the state and publishes it, if that worked.
    fn change<T>(
        &self,
        act: impl FnOnce(&mut State, &mut Vec<crate::model::Event>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let writer = self.lock();
        let mut state = State::clone(&self.published.state());
        let mut events = Vec::new();
        let result = act(&mut state, &mut events)?;
        self.published.publish(state, &events);
        drop(writer);
        match &self.untold {
            _ if events.is_empty() => {}
            None => self.published.wake_behind(),
            Some(untold) => {
                let wait = progress::wait_after(&events);
                let mut untold = untold.lock().unwrap_or_else(PoisonError::into_inner);
                *untold = Some(untold.map_or(wait, |before| before.min(wait)));
            }
        }
        Ok(result)
    }
}

impl Store for MemStore {
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        Box::pin(async move { self.commit(txn) })
    }

    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)> {
        Box::pin(async move {
            let state = self.published.state();
            Ok((state.get(key).cloned(), state.revision()))
        })
    }

    fn range(&self, range: Range) -> StoreFuture<'_, RangePage> {
        Box::pin(async move { self.published.state().range(&range) })
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        self.published.watch(prefix, after)
    }

    fn revision(&self) -> Revision {
        self.published.newest()
    }

    fn compact(&self, revision: Revision) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.change(|state, _| state.compact(revision)) })
    }
}
