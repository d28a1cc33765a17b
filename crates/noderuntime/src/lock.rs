//! One at a time: the process that runs a cluster, or that takes it down, holds the data directory's lock.
//!
//! The kernel drops the lock with its holder, however that ends. Only the holder writes or removes the pidfile, so that a
//! pidfile never vanishes under a cluster that runs.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};

use crate::layout::Layout;

/// Takes the lock, or returns `None` where another process has it.
///
/// # Errors
/// The lock's file cannot be opened.
pub fn try_lock(layout: &Layout) -> io::Result<Option<File>> {
    let file = File::create(layout.lockfile())?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_once_and_ends_with_its_holder() {
        let dir = tempfile::tempdir().expect("a temp dir");
        let layout = Layout::new(dir.path());
        let held = try_lock(&layout).expect("a lock file");
        assert!(held.is_some());
        assert!(try_lock(&layout).expect("a lock file").is_none());
        drop(held);
        assert!(try_lock(&layout).expect("a lock file").is_some());
    }
}
