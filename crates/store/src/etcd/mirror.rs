//! The copy of etcd's state in this process, and how it is kept.
//!
//! ```text
//!   load: all keys at one revision ──► watch of *all* keys from there ──► state of each revision, published
//!            ▲                             │ broken: again from the last revision
//!            └── history gone, or etcd is ─┘
//!                older than this copy
//! ```
//!
//! The watch is of the whole key space, not of our prefix alone, though other keys are skipped: so each
//! revision comes with an event, and the copy is known to have reached a revision without asking etcd for
//! its progress. The answers to such requests may overtake events in etcd before 3.4.25 and 3.5.8
//! (<https://github.com/etcd-io/etcd/issues/15220>).

#![expect(clippy::disallowed_methods, reason = "shell: it tells the history how old it is")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use etcd_client::{Event as EtcdEvent, EventType, GetOptions, KeyValue, SortOrder, SortTarget, WatchOptions};
use futures::channel::oneshot;

use super::errors::{Asked, failed, silent};
use super::{Options, Shared};
use crate::mem::{Aging, Change, Pace, Published, State};
use crate::model::{Entry, Revision, StoreError, Value, stamp_place};
use crate::packer::Packer;

/// How many entries are loaded at a time.
const LOAD_ENTRIES: i64 = 500;
/// How long to wait after a watch broke.
const PAUSE: Duration = Duration::from_millis(200);

/// The published state, and who waits for it to come so far.
pub(super) struct Mirror {
    pub(super) published: Arc<Published>,
    /// Whoever changes the state holds it.
    writer: Mutex<Aging>,
    waiting: Mutex<BTreeMap<(Revision, u64), oneshot::Sender<()>>>,
    next: std::sync::atomic::AtomicU64,
    started: Instant,
}

impl Mirror {
    pub(super) fn new(state: State, options: &Options) -> Self {
        Self {
            published: Published::new(state, options.watch_buffer_events, Packer::aside()),
            writer: Mutex::new(Aging::new(options.history.age_ms)),
            waiting: Mutex::default(),
            next: std::sync::atomic::AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// Resolves when the state has come to this revision.
    pub(super) async fn arrival(&self, revision: Revision) {
        let (told, arrived) = oneshot::channel();
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        lock(&self.waiting).insert((revision, number), told);
        let _place = Place { mirror: self, at: (revision, number) };
        // Looked at after it was registered, so that no publication is missed.
        if self.published.visible() < revision && arrived.await.is_err() {
            // The sender is dropped with the mirror alone, and nobody waits then.
            tracing::trace!("nothing arrives any more");
        }
    }

    fn announce(&self) {
        let visible = self.published.visible();
        let mut waiting = lock(&self.waiting);
        let later = waiting.split_off(&(Revision(visible.0 + 1), 0));
        let arrived = std::mem::replace(&mut *waiting, later);
        drop(waiting);
        for told in arrived.into_values() {
            if told.send(()).is_err() {
                tracing::trace!("whoever waited for a revision has gone");
            }
        }
    }

    /// Changes the state and publishes it.
    pub(super) fn change(
        &self,
        limits: &crate::mem::HistoryLimits,
        act: impl FnOnce(&mut State, &mut Vec<crate::model::Event>),
    ) -> Vec<crate::model::Event> {
        let mut aging = lock(&self.writer);
        let mut state = State::clone(&self.published.state());
        let mut events = Vec::new();
        act(&mut state, &mut events);
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Some(old) = aging.note(now_ms, state.revision())
            && let Err(error) = state.compact(old)
        {
            // Every revision that has been noted exists.
            tracing::error!(%error, "an old revision lies in the future");
        }
        state.trim(limits);
        self.published.publish(state, &events);
        drop(aging);
        self.announce();
        events
    }

    /// Puts another state in the place of this one; all watches end.
    fn replace(&self, state: State) {
        let aging = lock(&self.writer);
        self.published.replace(state, &StoreError::Lagged);
        drop(aging);
        self.announce();
    }
}

/// One's place among those who wait, which one leaves also by waiting no longer: a watch may be broken for long.
struct Place<'a> {
    mirror: &'a Mirror,
    at: (Revision, u64),
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.mirror.waiting).remove(&self.at);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is changed in single calls.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads all keys under the prefix at one revision.
pub(super) async fn load(client: &etcd_client::Client, options: &Options) -> Result<State, StoreError> {
    let Options { prefix, timeout, foreign, .. } = options;
    let end = end_of(prefix);
    let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
    let mut from = start_of(prefix);
    let mut state: Option<State> = None;
    loop {
        let mut options = GetOptions::new()
            .with_range(end.clone())
            .with_limit(LOAD_ENTRIES)
            .with_sort(SortTarget::Key, SortOrder::None);
        if let Some(state) = &state {
            options = options.with_revision(i64::try_from(state.revision().0).unwrap_or(i64::MAX));
        }
        let mut page = tokio::time::timeout(*timeout, kv.get(from.clone(), Some(options)))
            .await
            .map_err(|_| silent(Asked::Read, "it does not answer".to_owned()))?
            .map_err(|error| failed(Asked::Read, &error))?;
        let revision = page.header().map_or(1, etcd_client::ResponseHeader::revision);
        let state = state.get_or_insert_with(|| State::at(number(revision)));
        let more = page.more();
        let kvs = page.take_kvs();
        if let Some(last) = kvs.last() {
            from = [last.key(), b"\0"].concat();
        }
        let done = !more || kvs.is_empty();
        for kv in kvs {
            if let Some(entry) = entry(kv, *foreign) {
                state.restore(entry);
            }
        }
        if done {
            return Ok(State::clone(state));
        }
    }
}

/// Keeps the mirror until the store is dropped.
pub(super) async fn keep(shared: Arc<Shared>) {
    loop {
        match follow(&shared).await {
            Ok(never) => match never {},
            Err(error) => {
                tracing::warn!(%error, "the watch of etcd is broken; it begins again");
                shared.set_fault(Some(error));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Follows etcd from the mirror's revision on until that does not go on.
async fn follow(shared: &Shared) -> Result<std::convert::Infallible, StoreError> {
    let Shared { client, options, mirror, .. } = shared;
    let known = mirror.published.visible();
    // A member that lags behind may serve the watch, so what there is is asked of the cluster.
    let newest = shared.newest().await?;
    if newest < known {
        tracing::warn!(%known, %newest, "etcd is older than what is known of it: was it restored? All is read again");
        return reload(shared).await;
    }
    let watching = WatchOptions::new()
        .with_all_keys()
        .with_start_revision(i64::try_from(known.0 + 1).unwrap_or(i64::MAX))
        .with_progress_notify();
    let mut watches = client.watch_client().max_decoding_message_size(usize::MAX);
    let mut stream = tokio::time::timeout(options.timeout, watches.watch(vec![0], Some(watching)))
        .await
        .map_err(|_| silent(Asked::Read, "the watch does not begin".to_owned()))?
        .map_err(|error| failed(Asked::Read, &error))?;
    let mut progress = Pace::new();
    loop {
        let told = async {
            match progress.due() {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            message = stream.message() => message.map_err(|error| failed(Asked::Read, &error))?,
            () = told => {
                progress.tell(tokio::time::Instant::now(), &mirror.published);
                continue;
            }
            () = shared.late.notified() => {
                return Err(StoreError::Unavailable("its watch is behind what it has told".to_owned()));
            }
        };
        let message = message.ok_or_else(|| StoreError::Unavailable("it has ended the watch".to_owned()))?;
        if message.compact_revision() > 0 {
            tracing::warn!(%known, compacted = message.compact_revision(), "etcd has forgotten what changed since; all is read again");
            return reload(shared).await;
        }
        if message.canceled() {
            return Err(StoreError::Unavailable(message.cancel_reason().to_owned()));
        }
        shared.set_fault(None);
        if message.events().is_empty() {
            continue;
        }
        let transactions = transactions(message.events(), options);
        let events = mirror.change(&options.history, |state, events| {
            for (revision, changes) in transactions {
                state.follow(revision, changes, events);
                state.reach(revision);
            }
        });
        progress.committed(tokio::time::Instant::now(), &events);
    }
}

async fn reload(shared: &Shared) -> Result<std::convert::Infallible, StoreError> {
    let state = load(&shared.client, &shared.options).await?;
    shared.mirror.replace(state);
    Err(StoreError::Unavailable("all was read again".to_owned()))
}

/// The changes of each revision, those of other keys left out.
fn transactions(events: &[EtcdEvent], options: &Options) -> BTreeMap<Revision, Vec<Change>> {
    let Options { prefix, foreign, .. } = options;
    let mut all: BTreeMap<Revision, Vec<Change>> = BTreeMap::new();
    for event in events {
        let Some(kv) = event.kv() else { continue };
        let revision = number(kv.mod_revision());
        let changes = all.entry(revision).or_default();
        let Some(key) = std::str::from_utf8(kv.key()).ok().filter(|key| key.starts_with(prefix.as_str())) else {
            continue;
        };
        let value = match event.event_type() {
            EventType::Put => Some(stamped(kv.value(), revision, *foreign)),
            EventType::Delete => None,
        };
        changes.push((key.into(), value));
    }
    all
}

/// An entry as etcd holds it; none for a key that is no text.
pub(super) fn entry(kv: KeyValue, foreign: Foreign) -> Option<Entry> {
    let mod_revision = number(kv.mod_revision());
    let key = std::str::from_utf8(kv.key()).ok()?.into();
    let value = stamped(kv.value(), mod_revision, foreign);
    Some(Entry::new(key, value, number(kv.create_revision()), mod_revision))
}

/// See [`Options::foreign`].
type Foreign = fn(&[u8]) -> Option<Value>;

fn stamped(value: &[u8], revision: Revision, foreign: Foreign) -> Bytes {
    let adopted;
    let (value, at) = match stamp_place(value) {
        Some(at) => (value, at),
        None => {
            adopted = foreign(value);
            match &adopted {
                Some(Value { bytes, stamp_at: Some(at) }) => (&bytes[..], *at),
                _ => return Bytes::copy_from_slice(value),
            }
        }
    };
    let digits = revision.to_string();
    [&value[..at], digits.as_bytes(), &value[at..]].concat().into()
}

pub(super) fn number(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

/// The first key under a prefix; etcd knows no empty key.
pub(super) fn start_of(prefix: &str) -> Vec<u8> {
    if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() }
}

/// The key behind all those under a prefix; `\0` stands for the end of all.
pub(super) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // UTF-8 has no byte 0xff, so the last one can always be counted up.
    match end.last_mut() {
        Some(last) => *last = last.saturating_add(1),
        None => end.push(0),
    }
    end
}
