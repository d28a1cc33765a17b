//! The audit log in a file that is rotated by size.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
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
    /// The last line has no end: the disk was full, or the process died meanwhile.
    is_torn: bool,
}

fn open(path: &Path) -> std::io::Result<Open> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size_bytes = file.metadata()?.len();
    let mut last = *b"\n";
    if size_bytes > 0 {
        File::open(path)?.read_exact_at(&mut last, size_bytes - 1)?;
    }
    Ok(Open { file, size_bytes, is_torn: last != *b"\n" })
}

/// Writes a line. Of one that does not fit a part may be there: the next one begins behind it, on a line of its own. Returns how
/// much was written, whether or not that is all.
fn put(out: &mut impl Write, is_torn: &mut bool, line: &str) -> (u64, std::io::Result<()>) {
    let whole = [if *is_torn { "\n" } else { "" }, line, "\n"].concat();
    let (mut left, mut written) = (whole.as_bytes(), 0);
    while !left.is_empty() {
        let count = match out.write(left) {
            Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
            Ok(count) => count.min(left.len()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return (written, Err(error)),
        };
        let (done, rest) = left.split_at(count);
        *is_torn = !done.ends_with(b"\n");
        left = rest;
        written += count as u64;
    }
    (written, Ok(()))
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
        let Open { file, size_bytes, is_torn } = &mut *open;
        let (written, outcome) = put(file, is_torn, line);
        *size_bytes += written;
        outcome
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

    /// A disk on which there is so much room.
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.text.extend_from_slice(&bytes[..count]);
            Ok(count)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_comes_after_half_a_line_begins_a_new_one() {
        for (rooms, expected) in [
            ([9, 9, 9], "one\ntwo\nsix\n"),
            ([0, 9, 9], "two\nsix\n"),
            ([2, 9, 9], "on\ntwo\nsix\n"),
            ([3, 1, 9], "one\nsix\n"),
            ([2, 2, 9], "on\nt\nsix\n"),
            ([4, 0, 9], "one\nsix\n"),
        ] {
            let (mut disk, mut is_torn, mut written) = (Disk { room: 0, text: Vec::new() }, false, 0);
            for (room, line) in rooms.into_iter().zip(["one", "two", "six"]) {
                disk.room = room;
                let (more, outcome) = put(&mut disk, &mut is_torn, line);
                written += more;
                assert_eq!(outcome.is_ok(), disk.room > 0 || room == 4, "{rooms:?} {line}");
            }
            assert_eq!(
                (&*String::from_utf8_lossy(&disk.text), written),
                (expected, disk.text.len() as u64),
                "{rooms:?}"
            );
        }
        // So it is found after a start.
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.log");
        std::fs::write(&path, "whole\nhal").expect("written");
        for line in ["next", "last"] {
            AuditLog::open(&path, 300, 2).expect("a log").write(line).expect("written");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("a log"), "whole\nhal\nnext\nlast\n");
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
