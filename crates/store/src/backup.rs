//! Backups: all entries at one revision, in one file, and back.
//!
//! ```text
//!   running store (any) ──range at a revision, page by page──► head, entries ──► file
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
use futures::Stream;

use crate::embedded::{self, OpenError};
use crate::model::{Range, Revision, Store, StoreError};

/// How many entries are read at a time.
const PAGE: usize = 500;
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
}

/// The bytes of a backup of a running store, consistent at the newest revision. Changes go on meanwhile.
pub fn stream(store: Arc<dyn Store>) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    enum Next {
        Head,
        Page { at: Revision, after: Option<String> },
        Nothing,
    }
    futures::stream::try_unfold((store, Next::Head), |(store, next)| async move {
        let range = |after, limit, at| Range { prefix: String::new(), after, limit, at };
        let (bytes, next) = match next {
            Next::Nothing => return Ok(None),
            Next::Head => {
                let page = store.range(range(None, 1, None)).await?;
                let entries = page.entries.len() + page.remaining;
                (embedded::backup_head(page.revision, entries), Next::Page { at: page.revision, after: None })
            }
            Next::Page { at, after } => {
                let page = store.range(range(after, PAGE, Some(at))).await?;
                let mut bytes = Vec::new();
                page.entries.iter().for_each(|entry| embedded::backup_entry(&mut bytes, entry));
                let after = page.entries.last().map(|entry| entry.key.to_string());
                let next = if page.remaining == 0 { Next::Nothing } else { Next::Page { at, after } };
                (bytes, next)
            }
        };
        Ok(Some((Bytes::from(bytes), (store, next))))
    })
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
    embedded::found(dir, state, Revision(summary.revision.0 + JUMP))?;
    Ok(summary)
}

/// Reads all files of a store that nobody has open, and changes nothing.
///
/// # Errors
/// As for opening it: damage is named with file and place.
pub fn check(dir: &Path) -> Result<Summary, OpenError> {
    embedded::check(dir)
}

/// There is a store already.
pub(crate) fn occupied() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "there is a store already")
}
