//! One at a time: the process that runs a cluster, or that takes it down, holds the data directory's lock.
//!
//! The kernel drops the lock with its holder, however that ends. Only the holder writes or removes the pidfile, so that a
//! pidfile never vanishes under a cluster that runs.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

use rustix::fs::{FlockOperation, flock};

use crate::layout::Layout;

/// Takes the lock, or returns `None` where another process has it.
///
/// # Errors
/// The lock's file cannot be opened.
pub fn try_lock(layout: &Layout) -> io::Result<Option<File>> {
    // Its owner's alone: whoever may read a file may lock it, and keep the cluster from starting.
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(layout.lockfile())?;
    file.set_permissions(Permissions::from_mode(0o600))?;
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
        // As an earlier version left it.
        std::fs::write(layout.lockfile(), "").expect("a lock file");
        std::fs::set_permissions(layout.lockfile(), Permissions::from_mode(0o644)).expect("its mode");
        let held = try_lock(&layout).expect("a lock file").expect("nobody has it");
        assert_eq!(held.metadata().expect("its mode").permissions().mode() & 0o777, 0o600);
        assert!(try_lock(&layout).expect("a lock file").is_none());
        drop(held);
        assert!(try_lock(&layout).expect("a lock file").is_some());
    }
}
