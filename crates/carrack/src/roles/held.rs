//! A directory of a node's agent has one process: two would answer at the same sockets, sweep away what the other is writing, and
//! undo what the other has under way.
//!
//! The kernel drops the lock with its holder, however that ends. Which process it is can be read in the lock's file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use carrack_noderuntime::process::ProcessId;

/// How often a lock is tried for whose holder counts as running no more, and how long between two times: a process that was killed
/// lets go when its last thread has ended.
const TRIES: u32 = 250;
const PAUSE: Duration = Duration::from_millis(20);

/// A directory that is this process's until this is dropped.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    lock: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Not left to the handle: a child process that is just being started has a copy of it.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(lock = %self.path.display(), %error, "the lock stays until this process ends");
        }
    }
}

impl Held {
    /// Says in the lock's file who has it, for whoever is refused. The lock holds without it, too.
    fn sign(&mut self) -> std::io::Result<()> {
        let own = i32::try_from(std::process::id()).ok().and_then(ProcessId::of);
        let line = own.map_or_else(String::new, |own| own.to_line());
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(line.as_bytes())
    }
}

/// Takes a directory for one role, and makes it where it is missing.
///
/// # Errors
/// Another process has it, or it cannot be locked.
pub async fn hold(dir: &Path, role: &str) -> anyhow::Result<Held> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let path = dir.join("lock");
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = opened.with_context(|| format!("cannot open {}", path.display()))?;
    let mut tries = 0;
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
            Err(TryLockError::WouldBlock) => {}
        }
        let holder = ProcessId::from_pidfile(&path);
        if holder.is_some() || tries == TRIES {
            let who = holder.map_or_else(|| "another process".to_owned(), |holder| format!("process {}", holder.pid));
            bail!(
                "{role} runs already in {}, as {who}: end that, or give this one a directory of its own",
                dir.display()
            );
        }
        tries += 1;
        tokio::time::sleep(PAUSE).await;
    }
    let mut held = Held { path, lock };
    if let Err(error) = held.sign() {
        tracing::warn!(lock = %held.path.display(), %error, "who holds the lock cannot be written there");
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_is_held_once_and_ends_with_its_holder() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = dir.path().join("a/b");
        let held = hold(&inner, "the role").await.expect("nobody has it");
        let refused = hold(&inner, "the role").await.expect_err("it is held").to_string();
        let (place, pid) = (inner.display().to_string(), std::process::id().to_string());
        for word in ["the role runs already", place.as_str(), pid.as_str()] {
            assert!(refused.contains(word), "{word} is not in: {refused}");
        }
        drop(held);
        hold(&inner, "the role").await.expect("it was let go");
    }
}
