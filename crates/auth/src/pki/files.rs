//! Files of the PKI: private (0600, directory 0700), replaced atomically, flushed before they count. Files that are
//! made together share the waiting for the disk.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::PkiError;

/// Larger files are no keys or certificates of ours.
const MAX_FILE_BYTES: u64 = 256 * 1024;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// What was written and does not count yet: the file beside, and its place.
    written: Mutex<Vec<(PathBuf, PathBuf)>>,
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> PkiError {
    let path = path.to_owned();
    move |source| PkiError::Io { action, path, source }
}

impl Directory {
    /// Makes the directory where it is missing, and closes it to others.
    pub(super) fn create(path: &Path) -> Result<Self, PkiError> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create directory", path))?;
        let mode = fs::metadata(path).map_err(io("read", path))?.permissions().mode();
        if mode & 0o077 != 0 {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(io("restrict the mode of", path))?;
        }
        Ok(Self { path: path.to_owned(), written: Mutex::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Waits until no other process makes files here. Released when dropped, also by a crash.
    pub(super) fn lock(&self) -> Result<File, PkiError> {
        let path = self.file(".lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io("open", &path))?;
        file.lock().map_err(io("lock", &path))?;
        Ok(file)
    }

    /// Removes what writes that were cut short have left. Call it under the lock: others write only
    /// under it.
    pub(super) fn sweep(&self) -> Result<(), PkiError> {
        let entries = fs::read_dir(&self.path).map_err(io("read", &self.path))?;
        for entry in entries {
            let path = entry.map_err(io("read", &self.path))?.path();
            if path.extension().is_some_and(|e| e == "tmp") {
                fs::remove_file(&path).map_err(io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// A file's text, or none when there is no such file. A private file that others may read is
    /// closed to them.
    pub(super) fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        let path = self.file(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io("read", &path)(error)),
        };
        let metadata = file.metadata().map_err(io("read", &path))?;
        if name.ends_with(".key") && metadata.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(io("restrict the mode of", &path))?;
        }
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => PkiError::Damaged { path: path.clone(), problem: "it is not text".into() },
            _ => io("read", &path)(error),
        })?;
        Ok(Some(text))
    }

    /// Does work that writes files. When it succeeds they are there from then on, each in full, and in the order in which
    /// they were written: a crash leaves the first of them.
    pub(super) fn together<T>(&self, work: impl FnOnce() -> Result<T, PkiError>) -> Result<T, PkiError> {
        let outcome = work();
        let written = std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner));
        let settled = outcome.and_then(|made| self.settle(&written).map(|()| made));
        if settled.is_err() {
            // Best effort: the error that counts is the one that is returned.
            written.iter().for_each(|(temporary, _)| drop(fs::remove_file(temporary)));
        }
        settled
    }

    /// Writes a file, within [`Self::together`].
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), PkiError> {
        let path = self.file(name);
        let temporary = beside(&path);
        // Noted first: what is begun is to be cleaned up.
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push((temporary.clone(), path.clone()));
        write_beside(&temporary, text).map(drop).map_err(io("write", &path))
    }

    fn settle(&self, written: &[(PathBuf, PathBuf)]) -> Result<(), PkiError> {
        if written.is_empty() {
            return Ok(());
        }
        put_in_place(written)?;
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(io("write", &self.path))
    }
}

/// All are flushed before the first counts: the journal takes them together.
fn put_in_place(written: &[(PathBuf, PathBuf)]) -> Result<(), PkiError> {
    for (temporary, path) in written {
        File::open(temporary).and_then(|file| file.sync_all()).map_err(io("write", path))?;
    }
    for (temporary, path) in written {
        fs::rename(temporary, path).map_err(io("write", path))?;
    }
    Ok(())
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

/// Writes what is to be renamed. Its name can be guessed, and the directory may be one in which others write: what is
/// there goes, and nothing that was put there meanwhile is written into, nor what a link leads to.
fn write_beside(temporary: &Path, text: &str) -> std::io::Result<File> {
    if let Err(error) = fs::remove_file(temporary)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(temporary)?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Writes a private file (0600) atomically: a temporary file beside it, flushed, then renamed.
///
/// # Errors
/// What the disk says.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    // A bare name has an empty parent.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = beside(path);
    let result = write_then_rename(&temporary, path, text);
    if result.is_err() {
        // Best effort: the error that counts is the one that is returned.
        drop(fs::remove_file(&temporary));
    }
    result?;
    File::open(parent)?.sync_all()
}

fn write_then_rename(temporary: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    write_beside(temporary, text)?.sync_all()?;
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_lies_where_a_file_is_written_first_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, other) = (directory.path().join("admin.conf"), directory.path().join("other"));
        let temporary = beside(&path);
        fs::write(&other, "another's").expect("written");
        let link: fn(&Path, &Path) -> std::io::Result<()> = |other, at| symlink(other, at);
        let dangling: fn(&Path, &Path) -> std::io::Result<()> = |other, at| symlink(other.with_extension("none"), at);
        // One name more for a file that others read.
        let open: fn(&Path, &Path) -> std::io::Result<()> = |other, at| fs::hard_link(other, at);
        let nothing: fn(&Path, &Path) -> std::io::Result<()> = |_, _| Ok(());
        for (what, put) in [("nothing", nothing), ("a link", link), ("a dangling link", dangling), ("a file", open)] {
            put(&other, &temporary).expect(what);
            write_private(&path, what).expect(what);
            assert_eq!(fs::read_to_string(&path).expect(what), what);
            let metadata = fs::symlink_metadata(&path).expect(what);
            assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600, "{what}");
            assert_eq!(fs::read_to_string(&other).expect(what), "another's", "{what}");
            assert!(!temporary.exists() && !other.with_extension("none").exists(), "{what}");
        }
    }
}
