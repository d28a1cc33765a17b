//! The store's directory: its lock, its files' names, and how a file comes into being whole.
//!
//! ```text
//!   lock                the process that has the store open
//!   snapshot-<g>        the state where log <g> begins; none for the first
//!   log-<g>             the changes since
//!   *.tmp               a file that was not finished
//! ```

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::OpenError;
use super::writer::is_full;

/// A directory that this process has locked.
pub(super) struct Dir {
    path: PathBuf,
    /// The lock goes with its last handle, also when the process dies.
    lock: File,
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Not left to the handle: a child process that is just being started has a copy of it.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(dir = %self.path.display(), %error, "cannot unlock the store");
        }
    }
}

/// Generations of the files found, in ascending order.
pub(super) struct Found {
    pub(super) snapshots: Vec<u64>,
    pub(super) logs: Vec<u64>,
}

impl Dir {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { action, path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)))
            .map_err(failed("create the directory", path))?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The number is a help for the reader; who holds the lock is certain without it.
                if (&lock).take(32).read_to_string(&mut holder).is_err() || holder.is_empty() {
                    "of unknown number".clone_into(&mut holder);
                }
                return Err(OpenError::Locked { dir: path.to_owned(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock", &lock_path)(source)),
        }
        let noted = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| write!(lock, "{}", std::process::id()));
        match noted {
            // A full disk can be read all the same.
            Err(error) if !is_full(&error) => return Err(failed("write", &lock_path)(error)),
            _ => {}
        }
        Ok(Self { path: path.to_owned(), lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn log(&self, generation: u64) -> PathBuf {
        self.path.join(format!("log-{generation:016}"))
    }

    pub(super) fn snapshot(&self, generation: u64) -> PathBuf {
        self.path.join(format!("snapshot-{generation:016}"))
    }

    /// Lists the files, and removes those that were not finished.
    pub(super) fn list(&self) -> io::Result<Found> {
        for path in self.unfinished()? {
            std::fs::remove_file(path)?;
        }
        self.finished()
    }

    /// Files that were not finished.
    fn unfinished(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for file in std::fs::read_dir(&self.path)? {
            let file = file?;
            if file.file_name().as_encoded_bytes().ends_with(b".tmp") {
                found.push(file.path());
            }
        }
        Ok(found)
    }

    /// Lists the files that count.
    pub(super) fn finished(&self) -> io::Result<Found> {
        let mut found = Found { snapshots: Vec::new(), logs: Vec::new() };
        for file in std::fs::read_dir(&self.path)? {
            let name = file?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(generation) = generation(name, "snapshot-") {
                found.snapshots.push(generation);
            } else if let Some(generation) = generation(name, "log-") {
                found.logs.push(generation);
            }
        }
        found.snapshots.sort_unstable();
        found.logs.sort_unstable();
        Ok(found)
    }

    /// Removes what a newer snapshot has made superfluous.
    pub(super) fn remove_before(&self, generation: u64) -> io::Result<()> {
        let found = self.list_old(generation)?;
        for path in found {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }

    fn list_old(&self, before: u64) -> io::Result<Vec<PathBuf>> {
        let mut old = Vec::new();
        for file in std::fs::read_dir(&self.path)? {
            let file = file?;
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            let generation = generation(name, "snapshot-").or_else(|| generation(name, "log-"));
            if generation.is_some_and(|generation| generation < before) {
                old.push(file.path());
            }
        }
        Ok(old)
    }

    /// Makes names durable: new files, renamed ones, removed ones.
    pub(super) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Creates a file that is there whole or not at all, whenever the power goes.
    pub(super) fn create(&self, path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<File> {
        let temporary = path.with_extension("tmp");
        let written = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| {
                write(&mut file)?;
                file.sync_all()?;
                std::fs::rename(&temporary, path)?;
                self.sync()?;
                Ok(file)
            });
        if written.is_err() && temporary.exists() {
            // It is removed at the next start, if this does not work either.
            if let Err(error) = std::fs::remove_file(&temporary) {
                tracing::warn!(path = %temporary.display(), %error, "cannot remove a temporary file");
            }
        }
        written
    }
}

fn generation(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}
