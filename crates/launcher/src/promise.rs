//! Until when a guest may run: a file beside the guest's sockets, kept by virt-handler and obeyed by the monitor.
//!
//! A node whose guests may be started elsewhere holds a Lease. Each time that it was renewed, virt-handler writes here
//! until when the node has promised to have stopped its guests, and the monitor stops the guest when that time comes and
//! nothing newer is written. So the promise is kept while virt-handler is dead, and a restart of virt-handler that is
//! over within the Lease changes nothing. A guest without the file has been promised to nobody and runs on.
//!
//! The time is the machine's own clock since its boot, suspended time included, so that no jump of the wall clock
//! matters and all processes of the machine mean the same.

use crate::receive;
use rustix::fs::{CWD, OFlags};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is being written: two that make the same file ready would put half of one in its place, and that allows
/// nothing. Each file by itself, so that a file system that hangs holds up nobody else's.
static WRITING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// How often the file is looked at. A machine that was suspended is not told by a timer.
const LOOK: Duration = Duration::from_millis(500);

/// The machine's clock since its boot, in nanoseconds, as `/proc/uptime` tells it (in hundredths of a second, rounded
/// down). Without it no time is late enough: nothing is allowed then.
#[must_use]
pub fn now_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    seconds.map_or(u64::MAX, |seconds| (seconds * 100.0).round() as u64 * 10_000_000)
}

/// Keeps until when the guest may run.
///
/// # Errors
/// The file cannot be written, or somebody is still writing it (`WouldBlock`), as on storage that hangs: the old
/// promise holds then.
pub fn write(path: &Path, until_ns: u64) -> io::Result<()> {
    let _turn = Turn::take(path)?;
    let text = until_ns.to_string();
    match crate::prepare::replace(path, text.as_bytes()) {
        // Who fills the node's disk does not end its guests by that.
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            write_over(path, &text).map_err(|_| error)
        }
        other => other,
    }
}

/// Writes over what is there, which takes no room. Who reads in the midst of it may see digits of both, until he looks again.
fn write_over(path: &Path, text: &str) -> io::Result<()> {
    let name = path.to_str().ok_or(ErrorKind::InvalidInput)?;
    let file = receive::open(CWD, name, OFlags::WRONLY)?;
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(u64::try_from(text.len()).map_err(io::Error::other)?)
}

/// The right to write a file, until it is dropped. Nobody waits for it: whoever did would hang with the one who has it.
struct Turn<'a>(&'a Path);

impl<'a> Turn<'a> {
    fn take(path: &'a Path) -> io::Result<Self> {
        if Self::writing().insert(path.to_path_buf()) {
            return Ok(Self(path));
        }
        Err(io::Error::new(ErrorKind::WouldBlock, "the last one is still being written"))
    }

    fn writing() -> MutexGuard<'static, BTreeSet<PathBuf>> {
        WRITING.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        Self::writing().remove(self.0);
    }
}

/// Until when the guest may run; none when nothing was promised.
///
/// # Errors
/// The file cannot be read, or is damaged: nobody knows.
pub fn read(path: &Path) -> io::Result<Option<u64>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    text.trim().parse().map(Some).map_err(|_| io::Error::new(ErrorKind::InvalidData, "no time"))
}

/// Whether the guest may not run (any more). What cannot be read allows nothing: a guest that stops once too often is
/// started again, one that runs twice destroys its disks.
#[must_use]
pub fn is_over(path: &Path) -> bool {
    match read(path) {
        Ok(until) => until.is_some_and(|until| until <= now_ns()),
        Err(error) => {
            tracing::error!(%error, file = %path.display(), "until when the guest may run cannot be read");
            true
        }
    }
}

/// Returns once the guest may not run any more.
pub(crate) async fn over(path: &Path) {
    while !is_over(path) {
        let left = read(path).ok().flatten().map(|until| Duration::from_nanos(until.saturating_sub(now_ns())));
        tokio::time::sleep(left.unwrap_or(LOOK).min(LOOK)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn a_promise_holds_until_its_time_and_damage_allows_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("promise");
        assert!(!is_over(&path), "nothing was promised");
        write(&path, now_ns() + 60_000_000_000).expect("written");
        assert!(!is_over(&path));
        write(&path, now_ns()).expect("written");
        assert!(is_over(&path));
        std::fs::write(&path, "soon").expect("written");
        assert!(is_over(&path));
        write(&path, now_ns() + 50_000_000).expect("written");
        over(&path).await;
        assert!(read(&path).expect("a time").is_some_and(|until| until <= now_ns()));
    }

    #[test]
    fn what_a_container_puts_in_the_way_is_not_written_through() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, elsewhere) = (dir.path().join("promise"), dir.path().join("elsewhere"));
        std::fs::write(&elsewhere, "the host's").expect("written");
        for name in ["promise", "promise.partial"] {
            std::os::unix::fs::symlink(&elsewhere, dir.path().join(name)).expect("linked");
        }
        write(&path, 5).expect("written");
        assert_eq!(read(&path).expect("a time"), Some(5));
        assert_eq!(std::fs::read_to_string(&elsewhere).expect("read"), "the host's");
    }

    #[test]
    fn promises_at_the_same_time_are_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("promise");
        write(&path, 1).expect("written");
        std::thread::scope(|scope| {
            for writer in 1..=4 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let written = write(path, writer).map_err(|error| error.kind());
                        assert!(matches!(written, Ok(()) | Err(io::ErrorKind::WouldBlock)), "{written:?}");
                    }
                });
            }
            for _ in 0..200 {
                assert!(read(&path).expect("whole").is_some());
            }
        });
    }

    /// A small file system. It ends with the value.
    struct Small(tempfile::TempDir);

    impl Small {
        fn new() -> Self {
            let small = Self(tempfile::tempdir().expect("a directory"));
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=16k", "small"]).arg(small.0.path());
            assert!(mount.status().expect("mount runs").success(), "mounted (as root)");
            small
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let status = Command::new("umount").arg(self.0.path()).status().expect("umount runs");
            assert!(status.success());
        }
    }

    #[test]
    fn a_promise_needs_no_room() {
        let small = Small::new();
        let path = small.0.path().join("promise");
        write(&path, 99).expect("written");
        let full = std::fs::write(small.0.path().join("other"), "0".repeat(64 << 10));
        assert_eq!(full.map_err(|error| error.kind()), Err(io::ErrorKind::StorageFull));
        for until_ns in [100, 2000] {
            write(&path, until_ns).expect("written all the same");
            assert_eq!(read(&path).expect("a time"), Some(until_ns));
        }
        // What was not there before is not made, and no link is followed.
        let elsewhere = tempfile::NamedTempFile::new().expect("a file");
        let link = small.0.path().join("link");
        std::os::unix::fs::symlink(elsewhere.path(), &link).expect("linked");
        for path in [small.0.path().join("none"), link] {
            assert_eq!(write(&path, 5).map_err(|error| error.kind()), Err(io::ErrorKind::StorageFull));
        }
        assert_eq!(std::fs::read_to_string(elsewhere.path()).expect("read"), "");
    }

    #[test]
    fn a_file_that_hangs_holds_up_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let (hung, other) = (dir.path().join("hung"), dir.path().join("other"));
        let turn = Turn::take(&hung).expect("its turn");
        let kind = |written: io::Result<()>| written.map_err(|error| error.kind());
        assert_eq!(kind(write(&hung, 1)), Err(io::ErrorKind::WouldBlock));
        assert_eq!(kind(write(&other, 1)), Ok(()));
        drop(turn);
        assert_eq!(kind(write(&hung, 1)), Ok(()));
    }
}
