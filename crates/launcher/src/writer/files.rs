//! Records and locks as files.
//!
//! A record is written in place, so that the lock stays with the file, and into a full file system too, once it is there. It is
//! read through a file that is opened anew each time: network file systems look for what others wrote when a file is opened.
//!
//! Whoever has had the claim may have put there what he likes: a link to another disk, over which a record would be
//! written, or a pipe, which would be waited for. So nothing but a plain file is opened.

use super::{Found, GRACE, Go, LOOK, Look, Refusal, Writer, judge, look};
use crate::receive;
use rustix::fs::{CWD, FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A record is filled up to this length with blanks.
const RECORD_BYTES: usize = 1024;
/// How long a lock is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked for.
const STEP: Duration = Duration::from_millis(100);

/// Why a disk could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeError {
    #[error("{refusal}; its record is {}", path.display())]
    Refused { refusal: Refusal, path: PathBuf },
    #[error("whoever has it does not let go; its record is {}", .0.display())]
    Held(PathBuf),
    #[error("the record {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("somebody else on this node has the device {}", .0.display())]
    Claimed(PathBuf),
    #[error("the device {}: {source}", path.display())]
    Device { path: PathBuf, source: io::Error },
}

/// A disk that this process's guest writes.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    /// Locked for as long as it is open.
    file: File,
    mine: Writer,
}

/// Where the record of an image is.
fn beside(image: &Path) -> PathBuf {
    let mut name = image.file_name().unwrap_or_default().to_owned();
    name.push(".writer");
    image.with_file_name(name)
}

fn open(path: &Path, access: OFlags) -> io::Result<File> {
    let name = path.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    receive::open(CWD, name, access)
}

fn open_or_make(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDWR | OFlags::CREATE)
}

/// Whether somebody else holds the lock; otherwise it is ours, unless the file system has no locks.
fn is_held(file: &File, path: &Path) -> bool {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => false,
        Err(Errno::WOULDBLOCK) => true,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "the file system has no locks: the record alone counts");
            false
        }
    }
}

fn read(path: &Path) -> io::Result<Found> {
    let mut text = Vec::new();
    match open(path, OFlags::RDONLY) {
        Ok(file) => file.take(RECORD_BYTES as u64).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    let text = text.trim_ascii();
    if text.is_empty() {
        return Ok(Found::Nothing);
    }
    Ok(serde_json::from_slice(text).map_or(Found::Damaged, Found::Record))
}

fn write(file: &File, record: &Writer) -> io::Result<()> {
    let mut text = serde_json::to_vec(record)?;
    if text.len() >= RECORD_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the names are too long for a record"));
    }
    text.resize(RECORD_BYTES - 1, b' ');
    text.push(b'\n');
    file.write_all_at(&text, 0)?;
    file.sync_data()
}

impl Held {
    /// Takes the disk with this image, when it may.
    ///
    /// # Errors
    /// Somebody else has it, or a record can be neither read nor written.
    pub(crate) async fn take(image: &Path, mine: &Writer) -> Result<Self, TakeError> {
        let path = beside(image);
        let io = |source| TakeError::Io { path: path.clone(), source };
        let file = open_or_make(&path).map_err(io)?;
        let (mut waited, mut owed) = (Duration::ZERO, Duration::ZERO);
        loop {
            let held = is_held(&file, &path);
            let found = read(&path).map_err(io)?;
            let refused = |refusal| TakeError::Refused { refusal, path: path.clone() };
            if judge(&found, mine, held).map_err(refused)? == Go::AfterGrace {
                owed = GRACE;
            }
            if found != Found::Record(mine.clone()) {
                match write(&file, mine) {
                    // Its image fills the file system, and has never been locked. There is QEMU's own lock.
                    Err(error) if error.kind() == io::ErrorKind::StorageFull && found == Found::Nothing => {
                        tracing::warn!(%error, path = %path.display(), "there is no room for a record");
                    }
                    other => other.map_err(io)?,
                }
            }
            if !held && owed.is_zero() {
                return Ok(Self { path, file, mine: mine.clone() });
            }
            if waited >= PATIENCE {
                return Err(TakeError::Held(path));
            }
            tokio::time::sleep(STEP).await;
            waited += STEP;
            owed = owed.saturating_sub(STEP);
        }
    }

    /// A new monitor holds what its guest has had already.
    ///
    /// # Errors
    /// The record cannot be opened.
    pub(crate) fn resume(image: &Path, mine: &Writer) -> Result<Self, TakeError> {
        let path = beside(image);
        let file = open_or_make(&path).map_err(|source| TakeError::Io { path: path.clone(), source })?;
        if is_held(&file, &path) {
            tracing::warn!(path = %path.display(), "somebody holds the lock of a disk that the guest writes");
        }
        Ok(Self { path, file, mine: mine.clone() })
    }

    /// The guest has shut down: who comes next need not wait.
    pub(crate) fn leave(&self) {
        let left = Writer { left: true, ..self.mine.clone() };
        let mine = read(&self.path).is_ok_and(|found| found == Found::Record(self.mine.clone()));
        if mine && let Err(error) = write(&self.file, &left) {
            tracing::warn!(%error, path = %self.path.display(), "the disk cannot be left");
        }
    }

    /// Who has taken the disk, if somebody has.
    fn look(&self) -> Option<Writer> {
        match read(&self.path).map(|found| look(&found, &self.mine)) {
            Ok(Look::Mine) => None,
            Ok(Look::Taken(by)) => Some(by),
            Ok(Look::WrittenOver) => {
                if let Err(error) = write(&self.file, &self.mine) {
                    tracing::warn!(%error, path = %self.path.display(), "the record cannot be written again");
                }
                None
            }
            Err(error) => {
                tracing::debug!(%error, path = %self.path.display(), "the record cannot be read");
                None
            }
        }
    }
}

/// Returns, for people, once a disk was taken. Looks from a thread, since a file system may let its readers wait.
pub(crate) async fn taken(held: Vec<Arc<Held>>) -> String {
    loop {
        tokio::time::sleep(LOOK).await;
        let looked = held.clone();
        let by = tokio::task::spawn_blocking(move || looked.iter().find_map(|disk| disk.look())).await;
        if let Ok(Some(by)) = by {
            return format!("a newer run of {} on node {} has taken its disk", by.machine, by.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(epoch: u64, uid: &str, machine: &str) -> Writer {
        Writer { epoch, uid: uid.to_owned(), machine: machine.to_owned(), node: "n".to_owned(), left: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_goes_from_run_to_run_and_never_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        let (old, new) = (writer(1, "a", "ns/vm"), writer(2, "b", "ns/vm"));
        let first = Arc::new(Held::take(&image, &old).await.expect("free"));
        // Another machine's start finds it in use, and leaves it as it is.
        let other = Held::take(&image, &writer(3, "c", "ns/other")).await;
        assert!(matches!(other, Err(TakeError::Refused { refusal: Refusal::InUse(_), .. })), "{other:?}");
        assert_eq!(read(&beside(&image)).expect("read"), Found::Record(old.clone()));
        // A newer run takes it: the older one's monitor sees that, and lets go.
        let watch = tokio::spawn(taken(vec![Arc::clone(&first)]));
        drop(first);
        let second = Held::take(&image, &new).await.expect("taken");
        let why = watch.await.expect("no panic");
        assert!(why.contains("newer run of ns/vm"), "{why}");
        // The older one comes too late, whether the newer one runs or has shut down.
        for _ in 0..2 {
            let late = Held::take(&image, &old).await;
            assert!(matches!(late, Err(TakeError::Refused { refusal: Refusal::Newer(_), .. })), "{late:?}");
            second.leave();
        }
        drop(second);
        drop(Held::take(&image, &writer(3, "c", "ns/other")).await.expect("left"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_does_not_let_go_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        let first = Held::take(&image, &writer(1, "a", "ns/vm")).await.expect("free");
        let second = Held::take(&image, &writer(2, "b", "ns/vm")).await;
        assert!(matches!(second, Err(TakeError::Held(_))), "{second:?}");
        // It has its say all the same.
        assert_eq!(first.look().map(|by| by.epoch), Some(2));
    }

    #[tokio::test]
    async fn what_others_put_in_a_records_place_is_neither_written_over_nor_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let (image, other) = (dir.path().join("disk.img"), dir.path().join("other.img"));
        let record = beside(&image);
        std::fs::write(&other, "another disk").expect("written");
        std::os::unix::fs::symlink(&other, &record).expect("linked");
        let refused = |taken: Result<Held, TakeError>| assert!(matches!(taken, Err(TakeError::Io { .. })), "{taken:?}");
        refused(Held::take(&image, &writer(1, "a", "ns/vm")).await);
        refused(Held::resume(&image, &writer(1, "a", "ns/vm")));
        assert!(read(&record).is_err(), "it is not known to be no record");
        assert_eq!(std::fs::read_to_string(&other).expect("read"), "another disk");
        std::fs::remove_file(&record).expect("removed");
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(CWD, &record, fifo, mode, 0).expect("made");
        refused(Held::take(&image, &writer(1, "a", "ns/vm")).await);
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = beside(&dir.path().join("disk.img"));
        assert_eq!(path, dir.path().join("disk.img.writer"));
        assert_eq!(read(&path).expect("read"), Found::Nothing);
        let file = open_or_make(&path).expect("opened");
        assert_eq!(read(&path).expect("read"), Found::Nothing);
        for record in [writer(1, &"u".repeat(40), "ns/a-long-name"), writer(22, "u", "ns/x")] {
            write(&file, &record).expect("written");
            assert_eq!(read(&path).expect("read"), Found::Record(record));
        }
        assert!(write(&file, &writer(1, "u", &"x".repeat(RECORD_BYTES))).is_err());
        std::fs::write(&path, "something else").expect("written");
        assert_eq!(read(&path).expect("read"), Found::Damaged);
        // One that was written over by an older run is put right.
        let held = Held::resume(&dir.path().join("disk.img"), &writer(9, "me", "ns/x")).expect("resumed");
        write(&file, &writer(8, "old", "ns/x")).expect("written");
        assert_eq!(held.look(), None);
        assert_eq!(read(&path).expect("read"), Found::Record(writer(9, "me", "ns/x")));
    }
}
