//! The audit log in a file that is rotated by size.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::audit::AuditSink;

/// A file of audit events: `<path>`, and older ones as `<path>.1` (the newest of them), `<path>.2` and so on.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    max_bytes: u64,
    backups: u32,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    size_bytes: u64,
}

fn open(path: &Path) -> std::io::Result<Open> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size_bytes = file.metadata()?.len();
    Ok(Open { file, size_bytes })
}

impl AuditLog {
    /// Opens the log. No file grows over `max_bytes` by more than one event; `backups` older files are kept.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, max_bytes: u64, backups: u32) -> std::io::Result<AuditLog> {
        Ok(AuditLog { path: path.to_owned(), max_bytes, backups, open: Mutex::new(open(path)?) })
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn rotate(&self) -> std::io::Result<Open> {
        // Where it is not there, somebody has put it aside, or the last rotation came no further: what is older stays where it is.
        if self.path.try_exists()? {
            for number in (1..self.backups).rev() {
                let from = self.numbered(number);
                if from.exists() {
                    std::fs::rename(from, self.numbered(number + 1))?;
                }
            }
            if self.backups > 0 {
                std::fs::rename(&self.path, self.numbered(1))?;
            } else {
                std::fs::remove_file(&self.path)?;
            }
        }
        open(&self.path)
    }
}

impl AuditSink for AuditLog {
    fn write(&self, line: &str) -> std::io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.size_bytes > 0 && open.size_bytes + line.len() as u64 >= self.max_bytes {
            match self.rotate() {
                Ok(new) => *open = new,
                Err(error) => tracing::error!(%error, path = %self.path.display(), "the audit log cannot be rotated"),
            }
        }
        let whole = [line, "\n"].concat();
        open.file.write_all(whole.as_bytes())?;
        open.size_bytes += whole.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_stays_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.log");
        let log = AuditLog::open(&path, 30, 2).expect("a log");
        for number in 0..10 {
            log.write(&format!("event {number} ......")).expect("written");
        }
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
        assert_eq!(read("audit.log"), "event 8 ......\nevent 9 ......\n");
        assert_eq!(read("audit.log.1"), "event 6 ......\nevent 7 ......\n");
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 3);
    }

    #[test]
    fn a_log_that_was_taken_away_is_made_anew_and_costs_no_older_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.log");
        let log = AuditLog::open(&path, 30, 2).expect("a log");
        for number in 0..6 {
            log.write(&format!("event {number} ......")).expect("written");
        }
        std::fs::rename(&path, directory.path().join("theirs")).expect("put aside");
        for number in 6..8 {
            log.write(&format!("event {number} ......")).expect("written");
        }
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
        assert_eq!(read("audit.log"), "event 6 ......\nevent 7 ......\n");
        assert_eq!(read("audit.log.1"), "event 2 ......\nevent 3 ......\n");
        assert_eq!(read("audit.log.2"), "event 0 ......\nevent 1 ......\n");
        assert_eq!(read("theirs"), "event 4 ......\nevent 5 ......\n");
    }
}
