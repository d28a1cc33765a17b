//! Watchers: who gets which change, and the stream each of them reads.
//!
//! ```text
//!   commit ──► Hub::dispatch ──by prefix──► Buffer ──poll──► WatchStream ──► reader
//!                   │                         │ full                ▲
//!                   └─ visible := revision    └─► Lagged            │ backlog from history
//! ```
//!
//! The changes of one commit under one prefix are one value ([`Events`]), which all watchers of that prefix are
//! handed. A watcher costs something only for changes under its own prefix. Yet it must also learn that
//! nothing happened to it up to revision R ([`WatchItem::Progress`]). Whenever it is polled and has
//! drained everything, it compares with the revision that all changes have been dispatched up to,
//! so a reader that polls always gets the newest. [`Hub::behind`] finds those that sleep, to be
//! woken at the pace that [`super::progress`] keeps.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::task::AtomicWaker;

use super::prefixes::Prefixes;
use super::published::Published;
use super::state::event_key;
use crate::model::{Event, Events, Revision, StoreError, WatchItem};

/// How many events of the history are handed over at a time.
const BACKLOG_EVENTS: usize = 256;

/// For how many commits a watcher keeps room when it has read all: there may be thousands of watchers, and each of them is behind by
/// hundreds of commits once.
const KEPT_COMMITS: usize = 16;

/// What a watcher has still to read, and how it ends after that.
#[derive(Default)]
struct Buffer {
    events: VecDeque<Arc<Events>>,
    /// How many events these are.
    unread: usize,
    end: Option<StoreError>,
}

/// Names a watcher; later ones have larger numbers.
pub(crate) type WatcherId = u64;

/// The part of a watch that the committing side knows.
pub(crate) struct Watcher {
    id: WatcherId,
    prefix: Box<str>,
    buffer: Mutex<Buffer>,
    /// The revision of the last progress that was yielded.
    progress: AtomicU64,
    /// The revision that it was last woken for as one that is behind.
    called: AtomicU64,
    waker: AtomicWaker,
}

impl Watcher {
    fn buffer(&self) -> std::sync::MutexGuard<'_, Buffer> {
        // A panic cannot leave a buffer half changed: each change of it is one call.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }
}

/// The watchers of one prefix.
#[derive(Default)]
struct Group {
    watchers: BTreeMap<WatcherId, Arc<Watcher>>,
    /// What they are about to be handed.
    gathered: Vec<Event>,
}

/// All watchers. Kept under one lock, which orders registrations and commits.
pub(crate) struct Hub {
    by_prefix: Prefixes<Group>,
    all: BTreeMap<WatcherId, Arc<Watcher>>,
    next_id: WatcherId,
    /// How many events a watcher may leave unread.
    buffer_events: usize,
    /// Why no more watches can be opened.
    closed: Option<StoreError>,
}

impl Hub {
    pub(crate) fn new(buffer_events: usize) -> Self {
        Self { by_prefix: Prefixes::new(), all: BTreeMap::new(), next_id: 0, buffer_events, closed: None }
    }

    pub(crate) fn register(&mut self, prefix: &str, after: Revision) -> Result<Arc<Watcher>, StoreError> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        self.next_id += 1;
        let watcher = Arc::new(Watcher {
            id: self.next_id,
            prefix: prefix.into(),
            buffer: Mutex::default(),
            progress: AtomicU64::new(after.0),
            called: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        });
        self.by_prefix.entry(prefix).watchers.insert(watcher.id, Arc::clone(&watcher));
        self.all.insert(watcher.id, Arc::clone(&watcher));
        Ok(watcher)
    }

    pub(crate) fn remove(&mut self, watcher: &Watcher) {
        self.all.remove(&watcher.id);
        let prefix = watcher.prefix.as_bytes();
        if let Some(group) = self.by_prefix.get_mut(prefix) {
            group.watchers.remove(&watcher.id);
            if group.watchers.is_empty() {
                self.by_prefix.remove(prefix);
            }
        }
    }

    /// Hands events to the watchers whose prefix they match; returns those that must be woken,
    /// which is to be done outside of the lock, because a waker may run anything.
    pub(crate) fn dispatch(&mut self, events: &[Event]) -> Vec<Arc<Watcher>> {
        let mut touched: Vec<Box<[u8]>> = Vec::new();
        for event in events {
            self.by_prefix.visit(event_key(event), |prefix, group| {
                if group.gathered.is_empty() {
                    touched.push(prefix.into());
                }
                group.gathered.push(event.clone());
            });
        }
        let mut wake = Vec::new();
        let mut lagged = Vec::new();
        for prefix in touched {
            let Some(group) = self.by_prefix.get_mut(&prefix) else { continue };
            let events = Arc::new(Events::from(std::mem::take(&mut group.gathered)));
            for watcher in group.watchers.values() {
                let mut buffer = watcher.buffer();
                if buffer.end.is_some() {
                    continue;
                }
                if buffer.events.is_empty() {
                    wake.push(Arc::clone(watcher));
                }
                // However many came at once, a reader that had nothing left to read is not too slow.
                if buffer.events.is_empty() || buffer.unread + events.len() <= self.buffer_events {
                    buffer.unread += events.len();
                    buffer.events.push_back(Arc::clone(&events));
                } else {
                    buffer.end = Some(StoreError::Lagged);
                    lagged.push(Arc::clone(watcher));
                }
            }
        }
        for watcher in &lagged {
            self.remove(watcher);
        }
        wake.extend(lagged);
        wake
    }

    /// The watchers that have neither been told that everything up to `visible` is known nor woken for it: so many of them, in
    /// the order of their numbers from the one behind `after` on and round again. The last one's number, if there are more.
    pub(crate) fn behind(
        &self,
        visible: Revision,
        after: WatcherId,
        limit: usize,
    ) -> (Vec<Arc<Watcher>>, Option<WatcherId>) {
        let is_behind = |w: &&Arc<Watcher>| {
            w.progress.load(Ordering::Relaxed) < visible.0 && w.called.load(Ordering::Relaxed) < visible.0
        };
        let round = self.all.range(after + 1..).chain(self.all.range(..=after)).map(|(_, watcher)| watcher);
        let mut behind = round.filter(is_behind);
        let now: Vec<_> = behind.by_ref().take(limit).cloned().collect();
        let last = behind.next().and(now.last()).map(|watcher| watcher.id);
        now.iter().for_each(|watcher| watcher.called.store(visible.0, Ordering::Relaxed));
        (now, last)
    }

    /// Ends all watches with an error, after what they have still to read. Returns whom to wake.
    pub(crate) fn interrupt(&mut self, error: &StoreError) -> Vec<Arc<Watcher>> {
        let ended: Vec<_> = self.all.values().map(Arc::clone).collect();
        for watcher in &ended {
            watcher.buffer().end.get_or_insert_with(|| error.clone());
            self.remove(watcher);
        }
        ended
    }

    /// Like [`Hub::interrupt`], and refuses new watches from now on.
    pub(crate) fn close(&mut self, error: &StoreError) -> Vec<Arc<Watcher>> {
        self.closed = Some(error.clone());
        self.interrupt(error)
    }
}

/// The stream of one watch.
pub(crate) struct WatchStream {
    published: Arc<Published>,
    watcher: Arc<Watcher>,
    /// What was taken from the history or from the buffer, and comes next.
    backlog: VecDeque<Arc<Events>>,
    done: bool,
}

impl WatchStream {
    pub(crate) fn new(published: Arc<Published>, watcher: Arc<Watcher>, mut backlog: Vec<Event>) -> Self {
        let mut events = VecDeque::new();
        while !backlog.is_empty() {
            let rest = backlog.split_off(backlog.len().min(BACKLOG_EVENTS));
            events.push_back(Arc::new(std::mem::replace(&mut backlog, rest).into()));
        }
        Self { published, watcher, backlog: events, done: false }
    }
}

impl Stream for WatchStream {
    type Item = Result<WatchItem, StoreError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.done {
            return Poll::Ready(None);
        }
        if let Some(events) = this.backlog.pop_front() {
            return Poll::Ready(Some(Ok(WatchItem::Events(events))));
        }
        // In this order: to be woken for all that comes after; the revision up to which events have
        // been dispatched; then the events, which include all up to that revision.
        this.watcher.waker.register(cx.waker());
        let visible = this.published.visible();
        let mut buffer = this.watcher.buffer();
        buffer.unread = 0;
        // Emptied, not replaced: each keeps some of its memory for the next time.
        this.backlog.shrink_to(KEPT_COMMITS);
        std::mem::swap(&mut this.backlog, &mut buffer.events);
        if let Some(events) = this.backlog.pop_front() {
            return Poll::Ready(Some(Ok(WatchItem::Events(events))));
        }
        if let Some(error) = buffer.end.take() {
            this.done = true;
            return Poll::Ready(Some(Err(error)));
        }
        drop(buffer);
        if visible.0 > this.watcher.progress.load(Ordering::Relaxed) {
            this.watcher.progress.store(visible.0, Ordering::Relaxed);
            return Poll::Ready(Some(Ok(WatchItem::Progress(visible))));
        }
        Poll::Pending
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.published.with_hub(|hub| hub.remove(&self.watcher));
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::mem::State;
    use crate::model::{Op, Txn, Value};
    use crate::packer::Packer;

    fn put(published: &Published, number: usize) {
        let mut state = State::clone(&published.state());
        let mut events = Vec::new();
        let value = Value { bytes: "{}".into(), stamp_at: None };
        let ops = vec![Op::Put(format!("/k/{number}").into(), value)];
        state.apply(Txn { checks: Vec::new(), ops }, &mut events).expect("it holds");
        published.publish(state, &events);
    }

    #[test]
    fn who_was_far_behind_gives_the_room_back() {
        let published = Published::new(State::new(), 1000, Packer::at_once());
        let watcher = published.with_hub(|hub| hub.register("/k/", published.visible())).expect("a watch");
        let mut stream = WatchStream::new(Arc::clone(&published), Arc::clone(&watcher), Vec::new());
        for commits in [1, 500, 3, 900] {
            (0..commits).for_each(|number| put(&published, number));
            let mut told = 0;
            while let Some(Some(item)) = stream.next().now_or_never() {
                if let WatchItem::Events(events) = item.expect("a change") {
                    told += events.len();
                }
            }
            assert_eq!(told, commits);
            let kept = [stream.backlog.capacity(), watcher.buffer().events.capacity()];
            assert!(kept.iter().all(|commits| *commits <= KEPT_COMMITS), "{kept:?} after {commits}");
        }
    }
}
