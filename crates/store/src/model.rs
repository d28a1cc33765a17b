//! The contract of a store: entries, transactions, ranges, watches.
//!
//! Semantics are etcd v3's (<https://etcd.io/docs/v3.5/learning/api/>), narrowed to what the API
//! server needs, so that etcd itself can stand behind the same trait.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::Stream;

pub use crate::entry::Entry;

/// A point in the store's history. 0 is before the first transaction; an empty store is at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A future that the store returns. It must not need any particular runtime: in the simulator it is
/// polled by hand.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A value to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub bytes: Bytes,
    /// Where in `bytes` the store inserts the decimal revision of the committing transaction, so
    /// that an object carries its own resourceVersion without being serialised twice. It has to be
    /// the place that [`stamp_place`] finds: etcd keeps values without their revision, and whoever
    /// reads one has to put it in.
    pub stamp_at: Option<usize>,
}

/// Where in a stored object its revision belongs: between the quotes of the empty `resourceVersion`
/// that leads its metadata.
#[must_use]
pub fn stamp_place(value: &[u8]) -> Option<usize> {
    revision_place(value).filter(|at| value[*at..].starts_with(b"\""))
}

/// Where in a stored object its revision is, or belongs: behind the quote after the `resourceVersion` that leads its metadata.
pub(crate) fn revision_place(value: &[u8]) -> Option<usize> {
    const FIELD: &[u8] = b"\"resourceVersion\":\"";
    let at = carrack_pack::metadata_place(value)?;
    value[at..].starts_with(FIELD).then_some(at + FIELD.len())
}

/// What must hold for a transaction to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The key exists and was last changed at this revision.
    Unchanged(Arc<str>, Revision),
    /// The key does not exist.
    Absent(Arc<str>),
    /// The key exists.
    Exists(Arc<str>),
    /// Of the keys that start with this, none was changed last after this revision. What was removed since is not noticed. It
    /// costs a look at each of those keys, so it is meant for few of them.
    NoneSince(Arc<str>, Revision),
}

impl Check {
    /// The key that it is about; none where it is about many.
    #[must_use]
    pub fn key(&self) -> Option<&Arc<str>> {
        match self {
            Self::Unchanged(key, _) | Self::Absent(key) | Self::Exists(key) => Some(key),
            Self::NoneSince(..) => None,
        }
    }
}

/// One change of a transaction. A key may occur once in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Set the key's value.
    Put(Arc<str>, Value),
    /// Remove the key; a key that is absent is left so.
    Delete(Arc<str>),
}

/// All checks must hold, then all changes are made at one revision; or nothing is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// Preconditions.
    pub checks: Vec<Check>,
    /// Changes, in order.
    pub ops: Vec<Op>,
}

/// How a transaction ended.
#[derive(Clone, Debug)]
pub enum TxnOutcome {
    /// It is durable.
    Committed {
        /// Its revision (the current one, when no change was made).
        revision: Revision,
        /// For each [`Op`], the entry it wrote (`Put`) or removed (`Delete`, if there was one).
        entries: Vec<Option<Arc<Entry>>>,
    },
    /// A check failed; nothing changed.
    Failed {
        /// For each [`Check`], the key's entry as it is; none where it is about many keys.
        current: Vec<Option<Arc<Entry>>>,
        /// The revision at which the checks were made.
        revision: Revision,
    },
}

/// Which keys to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// All keys that start with this.
    pub prefix: String,
    /// Only keys greater than this one (for the next page).
    pub after: Option<String>,
    /// At most so many entries; 0 is no limit.
    pub limit: usize,
    /// The state at this revision, or the newest.
    pub at: Option<Revision>,
}

/// Entries of a range in key order, from one consistent state.
#[derive(Clone, Debug)]
pub struct RangePage {
    /// The entries.
    pub entries: Vec<Arc<Entry>>,
    /// How many keys of the range lie behind the last entry.
    pub remaining: usize,
    /// The revision of the state that was read.
    pub revision: Revision,
}

/// A change of one key.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it happened.
    pub revision: Revision,
    /// The entry before, if there was one.
    pub previous: Option<Arc<Entry>>,
    /// The entry after; none when the key was deleted.
    pub current: Option<Arc<Entry>>,
}

/// Changes of keys under one prefix that became visible together, in revision order. All watches of that
/// prefix are handed the same one, so that what a reader makes of it can be made once for all of them.
#[derive(Debug, Default)]
pub struct Events {
    list: Vec<Event>,
    /// What readers derived from it.
    pub memo: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl From<Vec<Event>> for Events {
    fn from(list: Vec<Event>) -> Self {
        Self { list, memo: OnceLock::new() }
    }
}

impl std::ops::Deref for Events {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.list
    }
}

/// What a watch yields.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// Changes, in revision order, none skipped and none twice.
    Events(Arc<Events>),
    /// Every change of the watched keys up to this revision has been yielded. A watch that is
    /// polled until it is pending has told at least the newest revision that anybody had read
    /// before.
    Progress(Revision),
}

/// A running watch. Ends with an error when it cannot go on; the reader then lists again.
pub type Watch = Pin<Box<dyn Stream<Item = Result<WatchItem, StoreError>> + Send>>;

/// A versioned map. Reads see only what is durable.
pub trait Store: Send + Sync + 'static {
    /// Commits a transaction, durably, before the future resolves.
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome>;
    /// The newest entry of a key, and the revision of the state that was read.
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)>;
    /// Entries in key order from one consistent state.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when `at` is too old, [`StoreError::Future`] when it is not yet.
    fn range(&self, range: Range) -> StoreFuture<'_, RangePage>;
    /// All changes of keys under `prefix` after `after`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when changes after `after` are no longer known,
    /// [`StoreError::Future`] when it is not yet, [`StoreError::Closed`].
    fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError>;
    /// The newest durable revision that this store shows.
    fn revision(&self) -> Revision;
    /// Resolves to the newest durable revision that there is, once this store shows it. That is more than
    /// [`Store::revision`] where others write as well.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it cannot be found out.
    fn sync(&self) -> StoreFuture<'_, Revision> {
        Box::pin(async { Ok(self.revision()) })
    }
    /// Why the store is known not to take transactions at this moment.
    fn fault(&self) -> Option<StoreError> {
        None
    }
    /// Whether it can be used at this moment. One that is elsewhere is asked, and has a short time to answer.
    ///
    /// # Errors
    /// Why not.
    fn health(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.fault().map_or(Ok(()), Err) })
    }
    /// How many bytes its files take on disk, where it has any of its own.
    fn size_bytes(&self) -> Option<u64> {
        None
    }
    /// Forgets history up to and including `revision`; the newest state stays.
    fn compact(&self, revision: Revision) -> StoreFuture<'_, ()>;
}

/// Why a store did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The history before this revision is gone.
    #[error("history up to revision {oldest} has been compacted")]
    Compacted {
        /// The oldest revision that can still be read or watched from.
        oldest: Revision,
    },
    /// The revision lies in the future.
    #[error("revision {asked} is newer than the newest, {newest}")]
    Future {
        /// What was asked for.
        asked: Revision,
        /// What there is.
        newest: Revision,
    },
    /// A watcher read too slowly and was dropped.
    #[error("the watch fell too far behind")]
    Lagged,
    /// The disk failed. Whether a transaction in flight took effect is unknown, and the store
    /// accepts no more of them until it is opened again.
    #[error("the store's log cannot be written: {0}")]
    Broken(Arc<std::io::Error>),
    /// The store cannot be reached, and nothing was done.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// Whether the transaction took effect is not known.
    #[error("whether the store was changed is unknown: {0}")]
    Unknown(String),
    /// The store refuses to do it, and nothing was done: it is full, or does not know this client.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
    /// The request is malformed (a key twice in one transaction, a stamp outside its value).
    #[error("bad store request: {0}")]
    Invalid(String),
}

impl StoreError {
    /// Whether no transaction is taken any more until the store is opened again.
    #[must_use]
    pub fn lasts(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Closed)
    }
}
