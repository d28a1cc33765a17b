//! Backups: all entries at one revision, in one file, and back.
//!
//! ```text
//!   running store (any) ──one range of all──► head, entries, part by part ──► file
//!   file ──verified, record by record──► directory of an embedded store, at a revision far ahead
//! ```
//!
//! The file has the form of the embedded store's snapshots: each record has a checksum, and the head says how many
//! follow, so that a file that was cut short or damaged is found out.
//!
//! After a restore the revision jumps ahead (as with `etcdutl snapshot restore --bump-revision --mark-compacted`): what
//! clients know from after the backup lies in the past then, they are told that it is gone, and list again. Without that
//! they would wait for changes that are never to come.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};

use crate::embedded::{self, OpenError};
use crate::model::{Range, Revision, Store, StoreError};

/// How many entries are written at a time, and after how many bytes no more of them.
const PART: usize = 500;
const PART_BYTES: usize = 256 << 10;
/// How far a restored store jumps ahead: more changes than there can have been since the backup.
pub const JUMP: u64 = 1_000_000_000;

/// What a backup or a store's directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The newest revision.
    pub revision: Revision,
    /// How many entries there are.
    pub entries: usize,
    /// Bytes of the files read.
    pub bytes: u64,
    /// What a store's log ends in, if that is no record; it does not count.
    pub torn: Option<Torn>,
}

/// What is left of a write where a store's log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// How long it is.
    pub bytes: u64,
    /// Whether it is as long as the write was, though damaged: that may have been acknowledged. What was cut short never was.
    pub may_have_counted: bool,
}

/// The bytes of a backup of a running store, consistent at the newest revision. Changes go on meanwhile, however fast they are
/// forgotten and however slowly the backup is taken: the entries are held, not looked up again.
pub fn stream(store: Arc<dyn Store>) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    let all = Range { prefix: String::new(), after: None, limit: 0, at: None };
    let parts = async move {
        let (head, entries) = match store.range(all).await {
            Ok(page) => (Ok(embedded::backup_head(page.revision, page.entries.len()).into()), page.entries),
            Err(error) => (Err(error), Vec::new()),
        };
        stream::once(std::future::ready(head)).chain(stream::unfold(entries.into_iter(), |mut rest| async move {
            let mut bytes = Vec::new();
            for entry in rest.by_ref().take(PART) {
                embedded::backup_entry(&mut bytes, &entry);
                if bytes.len() >= PART_BYTES {
                    break;
                }
            }
            (!bytes.is_empty()).then(|| (Ok(Bytes::from(bytes)), rest))
        }))
    };
    stream::once(parts).flatten()
}

/// Reads a backup to its end.
///
/// # Errors
/// [`OpenError::Corrupt`] when it is damaged or not whole.
pub fn verify(file: &Path) -> Result<Summary, OpenError> {
    embedded::read_backup(file).map(|(_, summary)| summary)
}

/// Makes the directory of an embedded store from a backup. There may be none yet in that directory.
///
/// # Errors
/// As for [`verify`]; [`OpenError::Io`] when there is a store already, or the disk refuses.
pub fn restore(file: &Path, dir: &Path) -> Result<Summary, OpenError> {
    let (state, summary) = embedded::read_backup(file)?;
    embedded::found(dir, state, Revision(summary.revision.0.saturating_add(JUMP)))?;
    Ok(summary)
}

/// Reads all files of a store that nobody has open, and changes nothing.
///
/// # Errors
/// As for opening it: damage is named with file and place. What the log ends in is no error; see [`Summary::torn`].
pub fn check(dir: &Path) -> Result<Summary, OpenError> {
    embedded::check(dir)
}

/// There is a store already.
pub(crate) fn occupied() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "there is a store already")
}
