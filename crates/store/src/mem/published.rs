//! What readers and watchers see: the newest durable state.
//!
//! Only [`Published::publish`] changes it, for readers and watchers in one step, and only then does
//! the committing side answer. So whoever saw a change, by an answer, a read or a watch, finds it
//! in the other two as well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::state::State;
use super::watch::{Hub, WatchStream, WatcherId};
use crate::model::{Event, Revision, StoreError, Watch};
use crate::packer::Packer;

pub(crate) struct Published {
    state: RwLock<Arc<State>>,
    hub: Mutex<Hub>,
    /// All events up to this revision have been dispatched to their watchers.
    visible: AtomicU64,
    packer: Packer,
}

impl Published {
    pub(crate) fn new(state: State, watch_buffer_events: usize, packer: Packer) -> Arc<Self> {
        packer.pack_found(state.at_rest());
        let visible = AtomicU64::new(state.revision().0);
        let hub = Mutex::new(Hub::new(watch_buffer_events));
        Arc::new(Self { state: RwLock::new(Arc::new(state)), hub, visible, packer })
    }

    /// The newest state; it does not change while the caller holds it.
    pub(crate) fn state(&self) -> Arc<State> {
        // What it holds is one pointer that is replaced as a whole, so poison means nothing.
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The revision of the newest state: not older than what any watch has told.
    pub(crate) fn newest(&self) -> Revision {
        self.state.read().unwrap_or_else(PoisonError::into_inner).revision()
    }

    /// How far watches are known to have all that there is. It is told a moment before the state of that revision can be read, but
    /// whoever reads then waits for that state; and a moment after a watch may tell of it.
    pub(crate) fn visible(&self) -> Revision {
        Revision(self.visible.load(Ordering::Acquire))
    }

    pub(crate) fn with_hub<T>(&self, act: impl FnOnce(&mut Hub) -> T) -> T {
        act(&mut self.hub.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a state the newest one. `events` are the changes since the one before.
    pub(crate) fn publish(&self, state: State, events: &[Event]) {
        let revision = state.revision();
        let state = Arc::new(state);
        let now = Arc::clone(&state);
        let (wake, old) = self.with_hub(|hub| {
            // Readers wait while the events go out: who reads revision R can drain a watch up to R,
            // and who was told of R by a watch reads it.
            let mut newest = self.state.write().unwrap_or_else(PoisonError::into_inner);
            let wake = hub.dispatch(events);
            self.visible.store(revision.0, Ordering::Release);
            (wake, std::mem::replace(&mut *newest, state))
        });
        // Outside of the locks: wakers may run anything, and packing and freeing a state may take their time.
        wake.iter().for_each(|watcher| watcher.wake());
        self.packer.pack_rested(now.at_rest_since(&old, events).inspect(|entry| entry.memo.forget()));
    }

    /// Makes a state the newest one that does not come of the one before: all watches end with `error`.
    pub(crate) fn replace(&self, state: State, error: &StoreError) {
        let revision = state.revision();
        let state = Arc::new(state);
        let now = Arc::clone(&state);
        let (ended, old) = self.with_hub(|hub| {
            let mut newest = self.state.write().unwrap_or_else(PoisonError::into_inner);
            self.visible.store(revision.0, Ordering::Release);
            (hub.interrupt(error), std::mem::replace(&mut *newest, state))
        });
        ended.iter().for_each(|watcher| watcher.wake());
        drop(old);
        self.packer.pack_found(now.at_rest());
    }

    /// Wakes the watchers that have drained everything but do not know yet how far that reaches.
    pub(crate) fn wake_behind(&self) {
        self.wake_some_behind(WatcherId::default(), usize::MAX);
    }

    /// Wakes so many of them, in the order in which they came, from the one behind `after` on and round again. Returns the
    /// last one if there are more.
    pub(crate) fn wake_some_behind(&self, after: WatcherId, limit: usize) -> Option<WatcherId> {
        let (behind, last) = self.with_hub(|hub| hub.behind(self.visible(), after, limit));
        behind.iter().for_each(|watcher| watcher.wake());
        last
    }

    /// Ends all watches; with `forever`, no new one can be opened either.
    pub(crate) fn end_watches(&self, error: &StoreError, forever: bool) {
        let ended = self.with_hub(|hub| if forever { hub.close(error) } else { hub.interrupt(error) });
        ended.iter().for_each(|watcher| watcher.wake());
    }

    pub(crate) fn watch(self: &Arc<Self>, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        // Registered under the lock of commits, so that what `state` holds is the backlog and what
        // comes later is dispatched: nothing is missed, nothing comes twice.
        let (registered, state) = self.with_hub(|hub| (hub.register(prefix, after), self.state()));
        let watcher = registered?;
        match state.events_under(prefix, after) {
            Ok(events) => {
                let backlog: Vec<Event> = events.cloned().collect();
                Ok(Box::pin(WatchStream::new(Arc::clone(self), watcher, backlog)))
            }
            Err(error) => {
                self.with_hub(|hub| hub.remove(&watcher));
                Err(error)
            }
        }
    }
}
