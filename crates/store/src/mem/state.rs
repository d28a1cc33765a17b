//! The versioned map as a value: the newest entries, and the recent changes that lead to them.
//!
//! A clone costs O(1), for both maps share structure. So a writer works on a clone and publishes it
//! when it is durable, and a reader keeps the state it began with for as long as it likes.
//!
//! The state at an older revision is the newest one with the later changes undone: every change
//! knows its previous entry, so this is exact, and the memory it needs is the history's, which is
//! bounded by [`HistoryLimits`].

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;

use crate::model::{Check, Entry, Event, Op, Range, RangePage, Revision, StoreError, Txn, TxnOutcome, Value};

/// How much history is kept. What exceeds any of the limits is compacted, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// At most so many changes.
    pub events: usize,
    /// At most so many bytes of entries that only the history still holds.
    pub bytes: usize,
    /// Changes older than this may go. The core has no clock: the shell says what time it is.
    pub age_ms: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        // The API server of Kubernetes has etcd compacted every five minutes.
        Self { events: 10_000, bytes: 64 << 20, age_ms: 5 * 60 * 1000 }
    }
}

/// Roughly what one change costs in memory beside the bytes of its value.
const EVENT_OVERHEAD_BYTES: usize = 256;

/// Who watches is seldom behind by more revisions than this: of what was changed before, only what somebody asks for is read.
const BEHIND: u64 = 1000;

/// A change as it is recorded: the key, and the final bytes, or none when it was deleted.
pub(crate) type Change = (Arc<str>, Option<Bytes>);

#[derive(Clone)]
pub(crate) struct State {
    /// The newest revision.
    revision: Revision,
    /// History up to and including this is forgotten; the state *at* it can still be read.
    compacted: Revision,
    entries: OrdMap<Arc<str>, Arc<Entry>>,
    /// By revision, then by place in the transaction.
    history: OrdMap<(Revision, u32), Event>,
    history_bytes: usize,
}

impl State {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self::at(Revision(1))
    }

    /// A store with no entries yet whose newest revision is `revision`; it is filled by
    /// [`State::restore`].
    pub(crate) fn at(revision: Revision) -> Self {
        Self { revision, compacted: revision, entries: OrdMap::new(), history: OrdMap::new(), history_bytes: 0 }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn compacted(&self) -> Revision {
        self.compacted
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    /// What has come to rest in this state since `before`: of the changes that hardly a watcher still has to hear of, or that it
    /// has forgotten, what they made, unless that was replaced since, and what they replaced. `events` are the changes since
    /// `before`, some of which may be at rest already, or forgotten.
    pub(crate) fn at_rest_since<'a>(
        &'a self,
        before: &'a State,
        events: &'a [Event],
    ) -> impl Iterator<Item = &'a Arc<Entry>> {
        let rested = self.rested();
        let is_newest =
            move |entry: &&Arc<Entry>| self.get(&entry.key).is_some_and(|newest| Arc::ptr_eq(newest, entry));
        before
            .between(before.rested(), rested)
            .chain(events.iter().take_while(move |event| event.revision <= rested))
            .flat_map(move |event| event.current.as_ref().filter(is_newest).into_iter().chain(&event.previous))
    }

    /// The last change that hardly a watcher still has to hear of, or that is forgotten.
    fn rested(&self) -> Revision {
        self.compacted.max(Revision(self.revision.0.saturating_sub(BEHIND)))
    }

    /// The remembered changes after a revision up to another one.
    fn between(&self, after: Revision, to: Revision) -> impl Iterator<Item = &Event> {
        self.events_after(after).take_while(move |event| event.revision <= to)
    }

    /// The entries of which hardly a watcher still has to hear, or of which it does not know how they came about.
    pub(crate) fn at_rest(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let rested = self.rested();
        self.entries().filter(move |entry| entry.mod_revision <= rested)
    }

    /// All entries in key order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values()
    }

    /// Puts an entry that a snapshot held; no history comes of it.
    pub(crate) fn restore(&mut self, entry: Entry) {
        self.entries.insert(Arc::clone(&entry.key), Arc::new(entry));
    }

    /// Evaluates a transaction and makes its changes, which are appended to `events` too.
    ///
    /// # Errors
    /// [`StoreError::Invalid`]; nothing has changed then.
    pub(crate) fn apply(&mut self, txn: Txn, events: &mut Vec<Event>) -> Result<TxnOutcome, StoreError> {
        validate(&txn)?;
        if !txn.checks.iter().all(|check| self.holds(check)) {
            let current = txn.checks.iter().map(|c| c.key().and_then(|key| self.get(key)).cloned()).collect();
            return Ok(TxnOutcome::Failed { current, revision: self.revision });
        }
        let revision = Revision(self.revision.0 + 1);
        let before = events.len();
        let mut entries = Vec::with_capacity(txn.ops.len());
        for op in txn.ops {
            match op {
                Op::Put(key, value) => {
                    let value = stamp(value, revision);
                    let event = self.change((key, Some(value)), revision);
                    entries.push(event.as_ref().and_then(|e| e.current.clone()));
                    events.extend(event);
                }
                Op::Delete(key) => {
                    let event = self.change((key, None), revision);
                    entries.push(event.as_ref().and_then(|e| e.previous.clone()));
                    events.extend(event);
                }
            }
        }
        self.remember(revision, &events[before..]);
        Ok(TxnOutcome::Committed { revision: self.revision, entries })
    }

    /// Makes changes again that were recorded earlier, as the transaction of the next revision.
    pub(crate) fn replay(&mut self, changes: Vec<Change>) {
        self.follow(Revision(self.revision.0 + 1), changes, &mut Vec::new());
    }

    /// Makes the changes of a transaction that was committed elsewhere; a revision that is known already
    /// changes nothing.
    pub(crate) fn follow(&mut self, revision: Revision, changes: Vec<Change>, events: &mut Vec<Event>) {
        if revision <= self.revision {
            return;
        }
        let before = events.len();
        events.extend(changes.into_iter().filter_map(|change| self.change(change, revision)));
        self.remember(revision, &events[before..]);
    }

    /// Nothing has changed here up to this revision.
    pub(crate) fn reach(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// The changes of one transaction, if they are remembered.
    pub(crate) fn events_at(&self, revision: Revision) -> impl Iterator<Item = &Event> {
        self.history.range((revision, 0)..=(revision, u32::MAX)).map(|(_, event)| event)
    }

    /// Makes one change. None when a key was to be deleted that is not there.
    fn change(&mut self, (key, value): Change, revision: Revision) -> Option<Event> {
        let Some(value) = value else {
            let previous = self.entries.remove(&*key)?;
            return Some(Event { revision, previous: Some(previous), current: None });
        };
        let previous = self.entries.get(&*key).cloned();
        // Every version of a key shares one string.
        let key = previous.as_ref().map_or(key, |entry| Arc::clone(&entry.key));
        let create_revision = previous.as_ref().map_or(revision, |entry| entry.create_revision);
        let current = Arc::new(Entry::new(Arc::clone(&key), value, create_revision, revision));
        self.entries.insert(key, Arc::clone(&current));
        Some(Event { revision, previous, current: Some(current) })
    }

    fn remember(&mut self, revision: Revision, events: &[Event]) {
        for (place, event) in (0_u32..).zip(events) {
            self.history_bytes += weight(event);
            self.history.insert((revision, place), event.clone());
            self.revision = revision;
        }
    }

    fn holds(&self, check: &Check) -> bool {
        match check {
            Check::Unchanged(key, revision) => self.get(key).is_some_and(|entry| entry.mod_revision == *revision),
            Check::Absent(key) => self.get(key).is_none(),
            Check::Exists(key) => self.get(key).is_some(),
            Check::NoneSince(prefix, revision) => {
                self.under(prefix, Bound::Included(prefix)).all(|(_, entry)| entry.mod_revision <= *revision)
            }
        }
    }

    /// Reads a range, newest or older.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] and [`StoreError::Future`].
    pub(crate) fn range(&self, range: &Range) -> Result<RangePage, StoreError> {
        let at = range.at.unwrap_or(self.revision);
        self.readable(at)?;
        let mut page = RangePage { entries: Vec::new(), remaining: 0, revision: at };
        let mut take = |entry: &Arc<Entry>| {
            if range.limit == 0 || page.entries.len() < range.limit {
                page.entries.push(Arc::clone(entry));
            } else {
                page.remaining += 1;
            }
        };
        let undone = self.undone(range, at);
        let mut undone = undone.into_iter().peekable();
        for (key, entry) in self.newest(range) {
            while let Some((_, before)) = undone.next_if(|(other, _)| *other < &**key) {
                before.iter().for_each(|entry| take(entry));
            }
            match undone.next_if(|(other, _)| *other == &**key) {
                Some((_, before)) => before.iter().for_each(|entry| take(entry)),
                None => take(entry),
            }
        }
        undone.for_each(|(_, before)| before.iter().for_each(|entry| take(entry)));
        Ok(page)
    }

    fn newest(&self, range: &Range) -> impl Iterator<Item = (&Arc<str>, &Arc<Entry>)> {
        let start = match &range.after {
            Some(after) if after.as_str() >= range.prefix.as_str() => Bound::Excluded(&**after),
            _ => Bound::Included(&*range.prefix),
        };
        self.under(&range.prefix, start)
    }

    /// The newest entries from a key on, as long as their keys start with `prefix`.
    fn under(&self, prefix: &str, start: Bound<&str>) -> impl Iterator<Item = (&Arc<str>, &Arc<Entry>)> {
        self.entries.range::<_, str>((start, Bound::Unbounded)).take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The keys of the range that changed after `at`, each with its entry as it was then.
    fn undone(&self, range: &Range, at: Revision) -> BTreeMap<&str, Option<&Arc<Entry>>> {
        let mut undone = BTreeMap::new();
        for event in self.events_after(at).rev() {
            let key = event_key(event);
            if key.starts_with(&*range.prefix) && range.after.as_deref().is_none_or(|a| key > a) {
                // Newest first, so that the change right after `at` has the last word.
                undone.insert(key, event.previous.as_ref());
            }
        }
        undone
    }

    /// The remembered changes after a revision, in order.
    fn events_after(&self, after: Revision) -> impl DoubleEndedIterator<Item = &Event> {
        let start = (Revision(after.0.saturating_add(1)), 0);
        self.history.range(start..).map(|(_, event)| event)
    }

    /// The changes of keys under a prefix after a revision, in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] and [`StoreError::Future`].
    pub(crate) fn events_under(
        &self,
        prefix: &str,
        after: Revision,
    ) -> Result<impl Iterator<Item = &Event>, StoreError> {
        self.readable(after)?;
        let prefix = prefix.to_owned();
        Ok(self.events_after(after).filter(move |event| event_key(event).starts_with(&*prefix)))
    }

    fn readable(&self, at: Revision) -> Result<(), StoreError> {
        if at > self.revision {
            Err(StoreError::Future { asked: at, newest: self.revision })
        } else if at < self.compacted {
            Err(StoreError::Compacted { oldest: self.compacted })
        } else {
            Ok(())
        }
    }

    /// Forgets history up to and including a revision. One that is forgotten already is no error.
    ///
    /// # Errors
    /// [`StoreError::Future`].
    pub(crate) fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        if revision > self.revision {
            return Err(StoreError::Future { asked: revision, newest: self.revision });
        }
        while let Some((first, event)) = self.history.get_min() {
            if first.0 > revision {
                break;
            }
            self.history_bytes -= weight(event);
            let first = *first;
            self.history.remove(&first);
        }
        self.compacted = self.compacted.max(revision);
        Ok(())
    }

    /// Brings the history within its limits in number and size, whole transactions at a time.
    pub(crate) fn trim(&mut self, limits: &HistoryLimits) {
        while self.history.len() > limits.events || self.history_bytes > limits.bytes {
            let Some(((oldest, _), _)) = self.history.get_min() else { return };
            // It is not newer than the newest, so this cannot fail.
            if self.compact(*oldest).is_err() {
                return;
            }
        }
    }
}

/// The key that an event is about.
pub(crate) fn event_key(event: &Event) -> &str {
    let entry = event.current.as_ref().or(event.previous.as_ref());
    entry.map_or("", |entry| &entry.key)
}

/// What the history alone keeps in memory for this event: the current entry is also either in the
/// map or the previous one of a later event.
fn weight(event: &Event) -> usize {
    EVENT_OVERHEAD_BYTES + event.previous.as_ref().map_or(0, |entry| entry.value_len())
}

/// Whether the transaction is well formed; cheap enough to be asked before it is queued.
pub(crate) fn validate(txn: &Txn) -> Result<(), StoreError> {
    let mut keys = BTreeSet::new();
    for op in &txn.ops {
        let (Op::Put(key, _) | Op::Delete(key)) = op;
        if !keys.insert(&**key) {
            return Err(StoreError::Invalid(format!("key {key} occurs twice in one transaction")));
        }
        if let Op::Put(_, Value { bytes, stamp_at: Some(at) }) = op
            && *at > bytes.len()
        {
            return Err(StoreError::Invalid(format!(
                "stamp of {key} at {at} lies outside of its {} bytes",
                bytes.len()
            )));
        }
    }
    Ok(())
}

/// The value's final bytes.
fn stamp(value: Value, revision: Revision) -> Bytes {
    let Some(at) = value.stamp_at else { return value.bytes };
    let digits = revision.to_string();
    let mut stamped = Vec::with_capacity(value.bytes.len() + digits.len());
    stamped.extend_from_slice(&value.bytes[..at]);
    stamped.extend_from_slice(digits.as_bytes());
    stamped.extend_from_slice(&value.bytes[at..]);
    stamped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of so many transactions each are published one after the other, with a history of so many changes. Whatever rests
    /// in the end, and whatever the history has that rests, was told of when it came to rest, or was replaced unseen before.
    fn check(batches: &[usize], history_events: usize) {
        let limits = HistoryLimits { events: history_events, ..HistoryLimits::default() };
        let (mut state, mut number) = (State::new(), 0);
        let mut told: Vec<Arc<Entry>> = Vec::new();
        for count in batches {
            let (before, mut events) = (state.clone(), Vec::new());
            for _ in 0..*count {
                // Every third transaction changes what is there, or takes it away.
                let (key, value) = (Arc::from(format!("/k/{}", number - number % 3 / 2)), b"v".to_vec());
                let value = Value { bytes: value.into(), stamp_at: None };
                let op = if number % 9 == 8 { Op::Delete(key) } else { Op::Put(key, value) };
                let txn = Txn { checks: Vec::new(), ops: vec![op] };
                state.apply(txn, &mut events).expect("a transaction");
                number += 1;
            }
            state.trim(&limits);
            told.extend(state.at_rest_since(&before, &events).cloned());
        }
        let replaced = state.between(Revision(0), state.rested()).filter_map(|event| event.previous.as_ref());
        let told = |entry: &Arc<Entry>| told.iter().any(|one| Arc::ptr_eq(one, entry));
        assert!(state.at_rest().chain(replaced).all(told), "{batches:?} {history_events}");
        assert!(state.entries().filter(|entry| entry.mod_revision > state.rested()).all(|entry| !told(entry)));
    }

    #[test]
    fn what_rests_was_told_of_however_long_a_batch() {
        for batches in [&[1; 40][..], &[30, 1100, 3], &[2500], &[900, 900, 900], &[5, 1024, 1024, 7]] {
            for history_events in [3, 700, 10_000] {
                check(batches, history_events);
            }
        }
    }
}
