//! One log file: batches are appended, each with one write and one flush.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::OpenError;
use super::files::Dir;
use super::record::{self, FORMAT, Head, Record};
use super::writer::is_full;
use crate::backup::Torn;
use crate::mem::{HistoryLimits, State};
use crate::model::{Event, Revision};

/// The memory that is kept for the next batch.
const BUFFER_BYTES: usize = 256 << 10;

pub(super) struct Log {
    file: File,
    generation: u64,
    /// What of the file is durable; the next batch goes here.
    synced: u64,
    batch: Vec<u8>,
}

impl Log {
    /// Begins a new log at a state's revision.
    pub(super) fn create(dir: &Dir, generation: u64, revision: Revision) -> io::Result<Self> {
        let mut head = Vec::new();
        record::put_head(&mut head, &Head { format: FORMAT, generation, revision, entries: 0 });
        let file = dir.create(&dir.log(generation), |file| file.write_all_at(&head, 0))?;
        Ok(Self { file, generation, synced: head.len() as u64, batch: Vec::new() })
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Bytes in the file.
    pub(super) fn len(&self) -> u64 {
        self.synced
    }

    pub(super) fn push_txn(&mut self, revision: Revision, events: &[Event]) {
        record::put_txn(&mut self.batch, self.synced, revision, events);
    }

    pub(super) fn push_compacted(&mut self, revision: Revision) {
        record::put_compacted(&mut self.batch, self.synced, revision);
    }

    pub(super) fn push_closed(&mut self) {
        record::put_closed(&mut self.batch, self.synced);
    }

    /// Whether something was pushed that is not durable yet.
    pub(super) fn is_behind(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Makes durable what was pushed. After an error nothing may be appended any more until that was
    /// [taken back](Self::take_back): what is in the file behind `synced` is unknown.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(&self.batch, self.synced)?;
        self.file.sync_data()?;
        self.synced += self.batch.len() as u64;
        self.batch.clear();
        self.batch.shrink_to(BUFFER_BYTES);
        Ok(())
    }

    /// Gives up what was pushed, and what of it may be in the file. After success it is as if it had never been pushed;
    /// after an error nothing may be appended any more.
    pub(super) fn take_back(&mut self) -> io::Result<()> {
        self.batch.clear();
        self.batch.shrink_to(BUFFER_BYTES);
        self.file.set_len(self.synced)?;
        self.file.sync_all()
    }

    /// Applies a log to the state where it begins. The last log may end in a torn record, which is
    /// cut off; the others were complete before the next one began.
    pub(super) fn replay(
        dir: &Dir,
        generation: u64,
        is_last: bool,
        state: &mut State,
        limits: &HistoryLimits,
    ) -> Result<Self, OpenError> {
        let path = dir.log(generation);
        let failed = |action| OpenError::io(action, &path);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed("open"))?;
        let Read { end, last, .. } = Self::read(dir, generation, is_last, state, limits)?;
        // What a killed process wrote but did not flush has just become visible, and so it must
        // become durable before anybody sees it. Where a flush has failed before, the kernel takes what
        // it could not write for written, and a flush alone would succeed: so it is written once more.
        // On a disk that copies what is written over, there may be no room for that.
        match file.write_all_at(&last, end - last.len() as u64) {
            Err(error) if !is_full(&error) => return Err(failed("write")(error)),
            _ => {}
        }
        file.set_len(end).and_then(|()| file.sync_all()).map_err(failed("truncate"))?;
        Ok(Self { file, generation, synced: end, batch: Vec::new() })
    }

    /// The reading half of [`Self::replay`].
    pub(super) fn read(
        dir: &Dir,
        generation: u64,
        is_last: bool,
        state: &mut State,
        limits: &HistoryLimits,
    ) -> Result<Read, OpenError> {
        let path = dir.log(generation);
        let failed = |action| OpenError::io(action, &path);
        let bytes = std::fs::read(&path).map_err(failed("read"))?;
        let mut end = check_head(&path, &bytes, generation, state.revision())?;
        // The head was durable before the file had its name.
        let (mut durable, mut torn) = (end, None);
        while end < bytes.len() {
            let Some(framed) = record::read(&bytes, end) else {
                if !is_last || record::was_durable(&bytes, end) {
                    return Err(OpenError::corrupt(&path, end, "a record is damaged"));
                }
                let may_have_counted = !record::was_cut_short(&bytes, end);
                let (path, torn_bytes, revision) = (path.display(), bytes.len() - end, state.revision());
                if may_have_counted {
                    tracing::error!(
                        %path, offset = end, torn_bytes, %revision,
                        "the log ends in a damaged record: a write that the power cut short, or one that was acknowledged \
                         and has been damaged since; it does not count"
                    );
                } else {
                    tracing::warn!(
                        %path, offset = end, torn_bytes, %revision,
                        "the log ends in a write that was cut short and never acknowledged; it does not count"
                    );
                }
                torn = Some(Torn { bytes: torn_bytes as u64, may_have_counted });
                break;
            };
            match framed.record {
                Record::Txn { revision, changes } if revision.0 == state.revision().0 + 1 => {
                    state.replay(changes);
                    state.trim(limits);
                    if state.revision() != revision {
                        return Err(OpenError::corrupt(&path, end, "a transaction is empty"));
                    }
                }
                Record::Txn { .. } => {
                    return Err(OpenError::corrupt(&path, end, "a revision is out of order"));
                }
                Record::Compacted(revision) => {
                    state.compact(revision).map_err(|_| OpenError::corrupt(&path, end, "compaction of the future"))?
                }
                Record::Closed => {}
                Record::Head(_) | Record::Entry(_) => {
                    return Err(OpenError::corrupt(&path, end, "a record is out of place"));
                }
            }
            durable = usize::try_from(framed.synced).unwrap_or(end).clamp(durable, end);
            end += framed.bytes;
        }
        // Each log but the last was complete before the next one began.
        let last = if is_last { bytes[durable..end].to_vec() } else { Vec::new() };
        Ok(Read { end: end as u64, last, torn })
    }
}

/// What was read of a log.
pub(super) struct Read {
    /// How long it is without what is torn.
    pub(super) end: u64,
    /// Its last batch, of which nothing says that it was durable.
    last: Vec<u8>,
    /// What is torn.
    pub(super) torn: Option<Torn>,
}

/// Checks what a file says of itself; returns where its other records begin.
fn check_head(path: &Path, bytes: &[u8], generation: u64, revision: Revision) -> Result<usize, OpenError> {
    // A log gets its name only when its head is durable.
    let Some(record::Framed { record: Record::Head(head), bytes, .. }) = record::read(bytes, 0) else {
        return Err(OpenError::corrupt(path, 0, "its head is damaged"));
    };
    if head.format > FORMAT {
        return Err(OpenError::Newer { path: path.to_owned(), format: head.format });
    }
    if head.generation != generation || head.revision != revision {
        return Err(OpenError::corrupt(path, 0, "it does not continue what is before it"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batch_is_what_may_not_be_durable() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = Dir::open(place.path()).expect("opened");
        let mut log = Log::create(&dir, 1, State::new().revision()).expect("begun");
        let last = |is_last: bool| {
            let read = Log::read(&dir, 1, is_last, &mut State::new(), &HistoryLimits::default());
            read.expect("it is whole").last.len() as u64
        };
        assert_eq!(last(true), 0, "the head is durable");
        for records in [1, 3, 2] {
            let before = log.len();
            (0..records).for_each(|_| log.push_closed());
            log.flush().expect("written");
            assert_eq!((last(true), last(false)), (log.len() - before, 0));
        }
    }
}
