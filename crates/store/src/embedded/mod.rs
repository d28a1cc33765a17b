//! The embedded store: the map in memory, every change in a log on disk before it is acknowledged.
//!
//! ```text
//!   open: snapshot-<g> ─► log-<g> ─► log-<g+1> … ─► state        (torn tail cut, damage refused)
//!   write: queue ─► writer thread ─► log ─► published state ─► answer
//!   read, watch: published state, no disk, no queue
//! ```
//!
//! A start reads one snapshot and about as much log, however long the history. A disk that is full has
//! transactions refused until there is room; one that fails, from then on. Reads and watches go on.

mod files;
mod log;
mod record;
mod snapshot;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use futures::channel::oneshot;

use self::files::{Dir, Found};
use self::log::Log;
use self::writer::{Answer, Command, Tasks, Writer};
use crate::backup::Summary;
use crate::mem::{self, HistoryLimits, Published, State};
use crate::model::{Entry, Op, Range, RangePage, Revision, Store, StoreError, StoreFuture, Txn, TxnOutcome, Watch};
use crate::packer::Packer;

/// The generation of backups, which are no part of a directory.
const BACKUP: u64 = 0;
/// The generation that a restored directory begins with. It is not 1, where a log may come without a snapshot.
const FIRST_RESTORED: u64 = 2;
/// The largest transaction, in bytes of keys and values.
const TXN_BYTES: usize = 64 << 20;

/// How a store is run. The default is right for a cluster's API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How much history is kept for watches and for reads of older revisions.
    pub history: HistoryLimits,
    /// How many events a watcher may leave unread before it is dropped as lagging.
    pub watch_buffer_events: usize,
    /// How long the log grows before a snapshot replaces it, if the snapshot before is not longer.
    pub log_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { history: HistoryLimits::default(), watch_buffer_events: mem::WATCH_BUFFER_EVENTS, log_bytes: 16 << 20 }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the store in {} is in use by process {holder}", dir.display())]
    Locked {
        /// The store's directory.
        dir: PathBuf,
        /// The process id, as that process has written it down.
        holder: String,
    },
    /// The file system refused something.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// What had been durable is not whole any more. Nothing was changed on disk.
    #[error("the store's file {} is corrupt at byte {offset}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A newer version of this program has written it.
    #[error("the store's file {} has format {format}, which this version does not know", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
}

impl OpenError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    fn corrupt(path: &Path, offset: usize, what: &'static str) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, what }
    }
}

/// A store in a directory of this machine. Dropping it closes it.
pub struct EmbeddedStore {
    dir: PathBuf,
    published: Arc<Published>,
    queue: mpsc::Sender<Command>,
    writer: Option<JoinHandle<()>>,
    fault: Arc<OnceLock<StoreError>>,
}

impl EmbeddedStore {
    /// Opens the store in a directory, which is created if need be, and starts its writer thread.
    /// Blocks while it reads.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        let dir = Dir::open(dir)?;
        let (state, log, snapshot_bytes) = recover(&dir, &options)?;
        let published = Published::new(state, options.watch_buffer_events, Packer::aside());
        let fault = Arc::new(OnceLock::new());
        let writer = Writer {
            dir: Arc::new(dir),
            published: Arc::clone(&published),
            log,
            options,
            snapshot_bytes,
            tasks: Tasks::new(options.history.age_ms),
            fault: Arc::clone(&fault),
        };
        let path = writer.dir.path().to_owned();
        let (queue, commands) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run(&commands))
            .map_err(OpenError::io("start the writer thread of", &path))?;
        Ok(Self { dir: path, published, queue, writer: Some(thread), fault })
    }

    /// The oldest revision that can be read or watched from.
    #[must_use]
    pub fn oldest(&self) -> Revision {
        self.published.state().compacted()
    }

    /// Queues a command and waits for its answer.
    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(command(answer)).map_err(|_| StoreError::Closed)?;
        answered.await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        let sent = self.queue.send(Command::Close);
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(queue_was_open = sent.is_ok(), "the store's writer thread has panicked");
        }
    }
}

impl Store for EmbeddedStore {
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        Box::pin(async move {
            mem::validate(&txn)?;
            let bytes: usize = txn.ops.iter().map(op_bytes).sum();
            if bytes > TXN_BYTES {
                let why = format!("a transaction of {bytes} bytes is too large");
                return Err(StoreError::Invalid(why));
            }
            self.ask(|answer| Command::Transact(txn, answer)).await
        })
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

    fn fault(&self) -> Option<StoreError> {
        let ended = self.writer.as_ref().is_some_and(JoinHandle::is_finished);
        self.fault.get().cloned().or_else(|| ended.then_some(StoreError::Closed))
    }

    fn size_bytes(&self) -> Option<u64> {
        // A file that goes meanwhile counts no more.
        let files = std::fs::read_dir(&self.dir).ok()?.flatten();
        Some(files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum())
    }

    fn compact(&self, revision: Revision) -> StoreFuture<'_, ()> {
        Box::pin(self.ask(move |answer| Command::Compact(revision, answer)))
    }
}

fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Put(key, value) => key.len() + value.bytes.len(),
        Op::Delete(key) => key.len(),
    }
}

/// The newest snapshot's state and length, and the logs that follow it.
fn begin(dir: &Dir, found: &Found) -> Result<(State, u64, Vec<u64>), OpenError> {
    let (state, snapshot_bytes) = match found.snapshots.last() {
        Some(generation) => snapshot::read(dir, *generation)?,
        None => (State::new(), 0),
    };
    let first = found.snapshots.last().copied().unwrap_or(1);
    let logs: Vec<u64> = found.logs.iter().copied().filter(|log| *log >= first).collect();
    if logs.is_empty() && !(found.logs.is_empty() && found.snapshots.is_empty()) {
        return Err(OpenError::corrupt(&dir.log(first), 0, "it is missing"));
    }
    for (expected, generation) in (first..).zip(&logs) {
        if *generation != expected {
            return Err(OpenError::corrupt(&dir.log(expected), 0, "it is missing"));
        }
    }
    Ok((state, snapshot_bytes, logs))
}

/// Brings back the newest state, and the log to go on with; and the snapshot's length.
fn recover(dir: &Dir, options: &Options) -> Result<(State, Log, u64), OpenError> {
    let found = dir.list().map_err(OpenError::io("list", dir.path()))?;
    let (mut state, snapshot_bytes, logs) = begin(dir, &found)?;
    let Some(first) = logs.first().copied() else {
        let log = Log::create(dir, 1, state.revision()).map_err(OpenError::io("create", &dir.log(1)))?;
        return Ok((state, log, snapshot_bytes));
    };
    let mut last = None;
    for generation in &logs {
        let is_last = logs.last() == Some(generation);
        last = Some(Log::replay(dir, *generation, is_last, &mut state, &options.history)?);
    }
    let Some(log) = last else {
        return Err(OpenError::corrupt(&dir.log(first), 0, "it is missing"));
    };
    dir.sync().and_then(|()| dir.remove_before(first)).map_err(OpenError::io("clean up", dir.path()))?;
    Ok((state, log, snapshot_bytes))
}

/// Reads everything that opening would read; see [`crate::backup::check`].
pub(crate) fn check(path: &Path) -> Result<Summary, OpenError> {
    if !path.exists() {
        return Err(OpenError::io("read", path)(io::ErrorKind::NotFound.into()));
    }
    let dir = Dir::open(path)?;
    let found = dir.finished().map_err(OpenError::io("list", path))?;
    let (mut state, mut bytes, logs) = begin(&dir, &found)?;
    let mut torn = None;
    for generation in &logs {
        let is_last = logs.last() == Some(generation);
        let read = Log::read(&dir, *generation, is_last, &mut state, &HistoryLimits::default())?;
        bytes += read.end;
        torn = read.torn;
    }
    Ok(Summary { revision: state.revision(), entries: state.len(), bytes, torn })
}

/// The head of a backup.
pub(crate) fn backup_head(revision: Revision, entries: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let head = record::Head { format: record::FORMAT, generation: BACKUP, revision, entries: entries as u64 };
    record::put_head(&mut out, &head);
    out
}

/// One entry of a backup.
pub(crate) fn backup_entry(out: &mut Vec<u8>, entry: &Entry) {
    record::put_entry(out, entry);
}

/// Reads a backup to its end.
pub(crate) fn read_backup(file: &Path) -> Result<(State, Summary), OpenError> {
    let (state, bytes) = snapshot::read_file(file.to_owned(), BACKUP)?;
    let summary = Summary { revision: state.revision(), entries: state.len(), bytes, torn: None };
    Ok((state, summary))
}

/// Whether nothing is there but what a restore has left that was cut short, or had no room: a log with nothing in it, and no
/// state that it could begin with.
fn is_half_made(dir: &Dir, found: &Found) -> io::Result<bool> {
    if !found.snapshots.is_empty() || found.logs != [FIRST_RESTORED] {
        return Ok(false);
    }
    let head = backup_head(Revision(0), 0).len() as u64;
    Ok(std::fs::metadata(dir.log(FIRST_RESTORED))?.len() <= head)
}

/// Makes a new store that begins with this state, at this revision.
pub(crate) fn found(path: &Path, mut state: State, revision: Revision) -> Result<(), OpenError> {
    let dir = Dir::open(path)?;
    let existing = dir.finished().map_err(OpenError::io("list", path))?;
    let is_empty = existing.logs.is_empty() && existing.snapshots.is_empty();
    if !is_empty && !is_half_made(&dir, &existing).map_err(OpenError::io("look at", path))? {
        return Err(OpenError::io("restore into", path)(crate::backup::occupied()));
    }
    state.reach(revision);
    // The log first: without a snapshot it is a store that is refused, never one that lacks everything.
    Log::create(&dir, FIRST_RESTORED, revision).map_err(OpenError::io("create", &dir.log(FIRST_RESTORED)))?;
    snapshot::write(&dir, FIRST_RESTORED, &state, &AtomicBool::new(false))
        .map_err(OpenError::io("create", &dir.snapshot(FIRST_RESTORED)))?;
    Ok(())
}
