//! The one thread that changes the store.
//!
//! ```text
//!   queue ──all that waits──► evaluate on a copy ──► one write, one flush ──► publish ──► answer
//!                                                        │ no room: taken back ──► this batch is refused
//!                                                        │ another error
//!                                                        └─► broken: everything from here is refused
//!   log long enough ──► next log ──► snapshot thread ──► old files removed
//! ```
//!
//! While a flush runs, the next transactions gather in the queue: the slower the disk, the larger
//! the batch. Nothing that is not durable is ever published, so a copy of the state that could not
//! be made durable is simply dropped. A disk that is full is no broken one: what was written of the
//! batch is cut off again, and the next batch is tried, since somebody makes room sooner or later.

#![expect(clippy::disallowed_methods, reason = "shell: it tells the history how old it is")]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use futures::channel::oneshot;

use super::Options;
use super::files::Dir;
use super::log::Log;
use super::snapshot;
use crate::mem::{Aging, Pace, Published, State};
use crate::model::{Event, Revision, StoreError, Txn, TxnOutcome};

/// How many commands are taken into one batch; a bound on how long the first of them waits.
const BATCH_COMMANDS: usize = 1024;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

pub(super) enum Command {
    Transact(Txn, Answer<TxnOutcome>),
    Compact(Revision, Answer<()>),
    Close,
}

/// What remains to be said once the batch is durable.
enum Pending {
    Transact(Answer<TxnOutcome>, Result<TxnOutcome, StoreError>),
    Compact(Answer<()>, Result<(), StoreError>),
}

impl Pending {
    /// Whether it is a transaction that has been made.
    fn is_made(&self) -> bool {
        matches!(self, Self::Transact(_, Ok(TxnOutcome::Committed { .. })))
    }

    /// Answers; that nobody waits for it any more is no fault.
    fn resolve(self, refused: Option<&StoreError>) {
        fn answer<T>(to: Answer<T>, result: Result<T, StoreError>, refused: Option<&StoreError>) {
            let result = refused.map_or(result, |error| Err(error.clone()));
            if to.send(result).is_err() {
                tracing::trace!("the caller of a transaction has gone");
            }
        }
        match self {
            Self::Transact(to, result) => answer(to, result, refused),
            Self::Compact(to, result) => answer(to, result, refused),
        }
    }
}

pub(super) struct Writer {
    pub(super) dir: Arc<Dir>,
    pub(super) published: Arc<Published>,
    pub(super) log: Log,
    pub(super) options: Options,
    /// Length of the newest snapshot: the log may grow to that before the next one is written.
    pub(super) snapshot_bytes: u64,
    pub(super) tasks: Tasks,
    /// Why nothing more can be written, for those who ask.
    pub(super) fault: Arc<OnceLock<StoreError>>,
}

/// What the writer keeps between batches.
pub(super) struct Tasks {
    started: Instant,
    aging: Aging,
    broken: Option<StoreError>,
    /// There was no room for the last batch.
    full: bool,
    progress: Pace<Instant>,
    snapshot: Option<JoinHandle<io::Result<u64>>>,
    closing: Arc<AtomicBool>,
    /// Where the log is tried to be cut next, after that has failed once.
    cut_after_bytes: u64,
}

impl Tasks {
    pub(super) fn new(age_ms: u64) -> Self {
        Self {
            started: Instant::now(),
            aging: Aging::new(age_ms),
            broken: None,
            full: false,
            progress: Pace::new(),
            snapshot: None,
            closing: Arc::default(),
            cut_after_bytes: 0,
        }
    }
}

impl Writer {
    /// Runs until the store is closed.
    pub(super) fn run(mut self, queue: &Receiver<Command>) {
        // Also when this thread panics, nobody must wait for ever on a watch.
        let _end = EndWatches(Arc::clone(&self.published));
        let mut batch = Vec::new();
        while let Some(command) = self.next(queue) {
            let mut close = false;
            for command in std::iter::once(command).chain(queue.try_iter()) {
                match command {
                    Command::Close => close = true,
                    command => batch.push(command),
                }
                if close || batch.len() >= BATCH_COMMANDS {
                    break;
                }
            }
            self.commit(std::mem::take(&mut batch));
            if close {
                break;
            }
        }
        self.close();
    }

    /// The next command, or none when there will be no more.
    fn next(&mut self, queue: &Receiver<Command>) -> Option<Command> {
        loop {
            let Some(due) = self.tasks.progress.due() else { return queue.recv().ok() };
            match queue.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.tasks.progress.tell(Instant::now(), &self.published);
        }
    }

    /// Makes one batch durable, shows it and answers it.
    fn commit(&mut self, batch: Vec<Command>) {
        let mut next = State::clone(&self.published.state());
        let mut events = Vec::new();
        let mut pending = Vec::with_capacity(batch.len());
        if self.tasks.broken.is_none() {
            let now_ms = u64::try_from(self.tasks.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            if let Some(old) = self.tasks.aging.note(now_ms, next.revision()) {
                // Every revision that has been noted exists.
                let compacted = next.compact(old);
                debug_assert!(compacted.is_ok(), "an old revision lies in the future");
            }
        }
        for command in batch {
            pending.extend(self.evaluate(command, &mut next, &mut events));
        }
        next.trim(&self.options.history);
        let refused = match &self.tasks.broken {
            Some(broken) => Some(broken.clone()),
            None => self.make_durable(),
        };
        if refused.is_none() {
            self.publish(next, &events);
        }
        // Who has to try again is told first, and so stands before those who have just won when they come again:
        // were it otherwise, the last of those who write the same object would stay the last for ever.
        pending.sort_by_key(Pending::is_made);
        pending.into_iter().for_each(|pending| pending.resolve(refused.as_ref()));
        if self.tasks.broken.is_none() {
            self.cut_log();
        }
    }

    fn evaluate(&mut self, command: Command, next: &mut State, events: &mut Vec<Event>) -> Option<Pending> {
        if let Some(broken) = &self.tasks.broken {
            let broken = broken.clone();
            return match command {
                Command::Transact(_, to) => Some(Pending::Transact(to, Err(broken))),
                Command::Compact(_, to) => Some(Pending::Compact(to, Err(broken))),
                Command::Close => None,
            };
        }
        match command {
            Command::Transact(txn, to) => {
                let before = events.len();
                let outcome = next.apply(txn, events);
                if events.len() > before {
                    self.log.push_txn(next.revision(), &events[before..]);
                }
                Some(Pending::Transact(to, outcome))
            }
            Command::Compact(revision, to) => {
                let compacted = next.compact(revision);
                if compacted.is_ok() {
                    self.log.push_compacted(revision);
                }
                Some(Pending::Compact(to, compacted))
            }
            Command::Close => None,
        }
    }

    /// Makes durable what was pushed. Returns why it is not: then nothing of it was done, or the store is broken.
    fn make_durable(&mut self) -> Option<StoreError> {
        if !self.log.is_behind() {
            return None;
        }
        let dir = self.dir.path().display().to_string();
        let Err(error) = self.log.flush() else {
            if std::mem::take(&mut self.tasks.full) {
                tracing::info!(dir, "there is room for the log again");
            }
            return None;
        };
        if is_full(&error) {
            match self.log.take_back() {
                Ok(()) => {
                    // Once is enough, however many writes are refused meanwhile.
                    if !std::mem::replace(&mut self.tasks.full, true) {
                        tracing::error!(dir, %error, "there is no room for the log: writes are refused until there is");
                    }
                    return Some(StoreError::Refused(format!("its log cannot be written: {error}")));
                }
                Err(error) => tracing::error!(dir, %error, "what was written of the log cannot be taken back"),
            }
        }
        tracing::error!(dir, %error, "the log cannot be written");
        self.give_up(error);
        self.tasks.broken.clone()
    }

    /// Refuses everything from here on.
    fn give_up(&mut self, error: io::Error) {
        let broken = StoreError::Broken(Arc::new(error));
        self.tasks.broken = Some(self.fault.get_or_init(|| broken).clone());
    }

    fn publish(&mut self, next: State, events: &[Event]) {
        self.published.publish(next, events);
        if !events.is_empty() {
            let now = Instant::now();
            self.tasks.progress.committed(now, events);
            // A queue that is never empty must not keep the watchers from it.
            self.tasks.progress.tell(now, &self.published);
        }
    }

    /// Begins a new log and has the state written that it begins with, once the log is long.
    fn cut_log(&mut self) {
        if self.tasks.snapshot.as_ref().is_some_and(JoinHandle::is_finished) {
            self.end_snapshot();
        }
        let limit = self.options.log_bytes.max(self.snapshot_bytes).max(self.tasks.cut_after_bytes);
        if self.tasks.snapshot.is_some() || self.log.len() < limit {
            return;
        }
        let state = self.published.state();
        let generation = self.log.generation() + 1;
        match Log::create(&self.dir, generation, state.revision()) {
            Ok(log) => self.log = log,
            Err(error) => {
                self.tasks.cut_after_bytes = self.log.len() + self.options.log_bytes;
                tracing::warn!(dir = %self.dir.path().display(), %error, "cannot begin a new log");
                // Were it there all the same, then the next start would look for what follows in it.
                if let Err(error) = self.withdraw(generation) {
                    tracing::error!(dir = %self.dir.path().display(), %error, "cannot go back to the old log");
                    self.give_up(error);
                }
                return;
            }
        }
        self.tasks.cut_after_bytes = 0;
        let (dir, closing) = (Arc::clone(&self.dir), Arc::clone(&self.tasks.closing));
        let spawned = std::thread::Builder::new().name("store-snapshot".into()).spawn(move || {
            let bytes = snapshot::write(&dir, generation, &state, &closing)?;
            dir.remove_before(generation)?;
            Ok(bytes)
        });
        match spawned {
            Ok(thread) => self.tasks.snapshot = Some(thread),
            // The next log will be cut in its turn, and then it is tried again.
            Err(error) => tracing::warn!(%error, "cannot start a thread for a snapshot"),
        }
    }

    fn withdraw(&self, generation: u64) -> io::Result<()> {
        match std::fs::remove_file(self.dir.log(generation)) {
            Ok(()) => self.dir.sync(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn end_snapshot(&mut self) {
        match self.tasks.snapshot.take().map(JoinHandle::join) {
            None => {}
            Some(Ok(Ok(bytes))) => self.snapshot_bytes = bytes,
            Some(Ok(Err(error))) if error.kind() == io::ErrorKind::Interrupted => {}
            // The logs since the last snapshot are all still there.
            Some(Ok(Err(error))) => {
                tracing::warn!(dir = %self.dir.path().display(), %error, "cannot write a snapshot");
            }
            Some(Err(_)) => tracing::error!("the snapshot's thread has panicked"),
        }
    }

    fn close(mut self) {
        if self.tasks.broken.is_none() {
            self.log.push_closed();
            if let Err(error) = self.log.flush() {
                tracing::warn!(dir = %self.dir.path().display(), %error, "cannot mark the log as closed");
            }
        }
        self.tasks.closing.store(true, Ordering::Relaxed);
        self.end_snapshot();
    }
}

/// Whether there was no room for a write, which says nothing against the disk.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

struct EndWatches(Arc<Published>);

impl Drop for EndWatches {
    fn drop(&mut self) {
        self.0.end_watches(&StoreError::Closed, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_no_broken_one() {
        // ENOSPC, EDQUOT, EFBIG; EIO, EROFS, EBADF.
        for (code, full) in [(28, true), (122, true), (27, true), (5, false), (30, false), (9, false)] {
            assert_eq!(is_full(&io::Error::from_raw_os_error(code)), full, "{code}");
        }
    }
}
