//! The state as a file, so that a start reads what there is and not how it came about.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::OpenError;
use super::files::Dir;
use super::record::{self, FORMAT, HEADER_BYTES, Head, Header, Record};
use crate::mem::State;

const BUFFER_BYTES: usize = 128 << 10;

/// Writes the state with which the log of this generation begins; returns the file's length.
pub(super) fn write(dir: &Dir, generation: u64, state: &State, cancelled: &AtomicBool) -> io::Result<u64> {
    let mut len = 0;
    dir.create(&dir.snapshot(generation), |file| {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut bytes = Vec::new();
        let entries = state.len() as u64;
        let revision = state.revision();
        record::put_head(&mut bytes, &Head { format: FORMAT, generation, revision, entries });
        for entry in state.entries() {
            if cancelled.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the store is closing"));
            }
            record::put_entry(&mut bytes, entry);
            out.write_all(&bytes)?;
            len += bytes.len() as u64;
            bytes.clear();
        }
        out.write_all(&bytes)?;
        len += bytes.len() as u64;
        out.flush()
    })?;
    Ok(len)
}

/// Reads a snapshot; returns the file's length too.
pub(super) fn read(dir: &Dir, generation: u64) -> Result<(State, u64), OpenError> {
    read_file(dir.snapshot(generation), generation)
}

/// Reads a file that is a snapshot of this generation; backups have generation 0.
pub(super) fn read_file(path: PathBuf, generation: u64) -> Result<(State, u64), OpenError> {
    let failed = |action| OpenError::io(action, &path);
    let file = File::open(&path).map_err(failed("open"))?;
    let len = file.metadata().map_err(failed("read"))?.len();
    let mut records = Records { file: BufReader::with_capacity(BUFFER_BYTES, file), len, at: 0 };
    let mut next = || -> Result<Record, OpenError> {
        let at = records.at;
        records
            .next()
            .map_err(failed("read"))?
            .ok_or_else(|| OpenError::corrupt(&path, usize::try_from(at).unwrap_or(usize::MAX), "a record is damaged"))
    };
    let corrupt = |what| OpenError::corrupt(&path, 0, what);
    let Record::Head(head) = next()? else {
        return Err(corrupt("its head is damaged"));
    };
    if head.format > FORMAT {
        return Err(OpenError::Newer { path, format: head.format });
    }
    if head.generation != generation {
        return Err(corrupt("it is of another generation than it should be"));
    }
    let mut state = State::at(head.revision);
    for _ in 0..head.entries {
        let Record::Entry(entry) = next()? else {
            return Err(corrupt("a record is out of place"));
        };
        state.restore(entry);
    }
    if records.at != len || state.len() as u64 != head.entries {
        return Err(corrupt("its length is wrong"));
    }
    Ok((state, len))
}

struct Records {
    file: BufReader<File>,
    len: u64,
    at: u64,
}

impl Records {
    /// The next record, or none if it is damaged.
    fn next(&mut self) -> io::Result<Option<Record>> {
        let mut header = [0; HEADER_BYTES];
        if self.len - self.at < HEADER_BYTES as u64 {
            return Ok(None);
        }
        self.file.read_exact(&mut header)?;
        let Some(header) = Header::parse(&header) else { return Ok(None) };
        self.at += HEADER_BYTES as u64;
        if self.len - self.at < header.payload_bytes as u64 {
            return Ok(None);
        }
        let mut payload = vec![0; header.payload_bytes];
        self.file.read_exact(&mut payload)?;
        self.at += payload.len() as u64;
        Ok(header.decode(&payload))
    }
}
