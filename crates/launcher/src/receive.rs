#![expect(clippy::disallowed_methods, reason = "shell: it looks at files again and again")]
//! The pod's side of a copy that a running machine's own QEMU makes; the monitor's side is `copying`.
//!
//! The pod has the volumes that are written, and the machine has the disks. They meet in the first volume's directory, over
//! two files, each locked by one side for as long as it lives:
//!
//! ```text
//!   pod                                          monitor
//!   locks `wanted`, with the machine's UID  ───▶ begins only while it is locked by somebody; gives up when it is not any more
//!   waits for `doing`, then for its lock    ◀─── makes `doing` locked; unlocks it when all is copied, or nothing will be
//!   all files there: done; else: failed, as `doing` says
//! ```
//!
//! A lock goes with the process that holds it, whatever ends that. So neither side waits for one that is dead, and what is
//! written by QEMU is let go of as soon as nobody wants it.
//!
//! Others may write to the directories as well, and put there what they like: no link is followed, nothing is waited for when
//! a file is opened, and no more of it is read than it may hold.

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Locked by the pod as long as the copy is wanted.
pub const WANTED: &str = "wanted";
/// Locked by the monitor as long as it works on the copy; holds why it failed.
pub const DOING: &str = "doing";
/// A copy that is whole.
pub const WHOLE: &str = "disk.qcow2";
/// A copy that is being written.
pub const PARTIAL: &str = "disk.partial";

/// Beside a copy of what a firmware keeps: the name of its file.
pub const KEPT_NAME: &str = "name";

/// How often the pod looks whether the copy was begun.
const LOOK: Duration = Duration::from_millis(50);
/// So often it tries to lock what a poll of the handler may hold for an instant.
const LOCK_TRIES: u32 = 20;
/// How much of a reason is read.
const REASON_BYTES: usize = 8000;
/// How much of a reason is told.
const REASON_CHARS: usize = 2000;

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// A file could not be used.
    #[error("cannot use {}: {source}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Somebody else waits for the same copy.
    #[error("somebody else waits in {}", .0.display())]
    Busy(PathBuf),
    /// Whoever copied says why it failed, or has ended without a word.
    #[error("{0}")]
    Failed(String),
}

/// Waits in `directories`, one for each disk, until the machine with this UID has copied its disks there.
///
/// # Errors
/// It was not copied, and will not be for this process.
pub fn run(uid: &str, directories: &[PathBuf]) -> Result<(), ReceiveError> {
    let Some(first) = directories.first() else { return Ok(()) };
    let failed = |path: PathBuf| move |source| ReceiveError::Path { path, source };
    let whole = || directories.iter().all(|directory| directory.join(WHOLE).is_file());
    if whole() {
        return Ok(());
    }
    let (wanted, doing) = (first.join(WANTED), first.join(DOING));
    let directory = open_directory(first).map_err(failed(first.clone()))?;
    let lock = open(&directory, WANTED, OFlags::CREATE | OFlags::WRONLY).map_err(failed(wanted.clone()))?;
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) if tries == LOCK_TRIES => return Err(ReceiveError::Busy(first.clone())),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOOK),
            Err(errno) => return Err(failed(wanted)(errno.into())),
        }
        tries += 1;
    }
    // Whoever waited before, and failed, has left the same UID: nothing may begin yet.
    lock.set_len(0).map_err(failed(wanted.clone()))?;
    // Nobody copies to here any more: what was begun is of no use.
    for path in directories {
        let others = open_directory(path).map_err(failed(path.clone()))?;
        remove(others, PARTIAL).map_err(failed(path.join(PARTIAL)))?;
    }
    remove(&directory, DOING).map_err(failed(doing.clone()))?;
    // Last: whoever reads it may begin.
    std::os::unix::fs::FileExt::write_all_at(&lock, uid.as_bytes(), 0).map_err(failed(wanted.clone()))?;
    let begun = loop {
        match open(&directory, DOING, OFlags::RDONLY) {
            Ok(file) => break file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::thread::sleep(LOOK),
            Err(error) => return Err(failed(doing)(error)),
        }
    };
    // Shared: NFS gives no exclusive lock on what is open for reading.
    rustix::fs::flock(&begun, FlockOperation::LockShared).map_err(|errno| failed(doing.clone())(errno.into()))?;
    if !whole() {
        let said = read_short(&begun, REASON_BYTES).unwrap_or_default();
        let said: String = String::from_utf8_lossy(&said).trim().chars().take(REASON_CHARS).collect();
        let why = if said.is_empty() { "the copying was interrupted".to_owned() } else { said };
        return Err(ReceiveError::Failed(why));
    }
    for (name, path) in [(WANTED, wanted), (DOING, doing)] {
        remove(&directory, name).map_err(failed(path))?;
    }
    Ok(())
}

/// Whether somebody waits in `directory` for a copy of this machine's disks.
#[must_use]
pub fn is_wanted(directory: &Path, uid: &str) -> bool {
    open_directory(directory).and_then(|directory| wanted(&directory, uid)).is_ok_and(|file| file.is_some())
}

/// The file that is locked as long as the machine's copy is wanted in `directory`, if it is.
///
/// # Errors
/// There is none, or it cannot be one.
pub(crate) fn wanted(directory: impl AsFd, uid: &str) -> io::Result<Option<File>> {
    let file = open(directory, WANTED, OFlags::RDONLY)?;
    let held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK);
    Ok((held && read_short(&file, uid.len())? == uid.as_bytes()).then_some(file))
}

/// Opens a directory.
///
/// # Errors
/// Those of opening it; it is none.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Sees to it that what has this name still has it after a power cut.
///
/// # Errors
/// Those of its directory; but for that its file system knows nothing of the kind.
pub(crate) fn sync_name(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        None => return Ok(()),
        Some(here) if here.as_os_str().is_empty() => Path::new("."),
        Some(directory) => directory,
    };
    let synced = match rustix::fs::open(directory, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    {
        Ok(directory) => rustix::fs::fsync(directory),
        // Who may make names in it need not be let read it: then all of its file system.
        Err(rustix::io::Errno::ACCESS) => rustix::fs::syncfs(File::open(path)?),
        Err(errno) => Err(errno),
    };
    match synced {
        Err(rustix::io::Errno::INVAL) | Ok(()) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a plain file that anybody may have put there, or makes it when `access` says so.
///
/// # Errors
/// Those of opening it; it is a link, or anything else than a file.
pub(crate) fn open(directory: impl AsFd, name: &str, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o644))?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is not a file")))
}

/// Writes down the name of the file of which a copy is.
///
/// # Errors
/// Those of writing it.
pub(crate) fn keep_name(directory: impl AsFd, name: &[u8]) -> io::Result<()> {
    remove(&directory, KEPT_NAME)?;
    let file = open(&directory, KEPT_NAME, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?;
    std::os::unix::fs::FileExt::write_all_at(&file, name, 0)?;
    file.sync_all()
}

/// Reads `limit_bytes` at most, and one more, by which it is seen that there are more.
pub(crate) fn read_short(file: &File, limit_bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    file.take(limit_bytes as u64 + 1).read_to_end(&mut read)?;
    Ok(read)
}

/// Removes a file, or a link, if it is there.
///
/// # Errors
/// Those of removing it, but for that there is none.
pub(crate) fn remove(directory: impl AsFd, name: impl rustix::path::Arg) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins, as a monitor does.
    fn begin(directory: &Path) -> File {
        while !is_wanted(directory, "me") {
            std::thread::sleep(LOOK);
        }
        let file = File::create(directory.join("doing.new")).expect("made");
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).expect("locked");
        std::fs::rename(directory.join("doing.new"), directory.join(DOING)).expect("renamed");
        file
    }

    #[test]
    fn a_name_without_a_directory_is_in_the_present_one() {
        sync_name(Path::new("Cargo.toml")).expect("synced");
        assert_eq!(sync_name(Path::new("/nowhere/x")).map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn each_side_sees_the_others_end() {
        for (finishes, said, expected) in
            [(true, "", Ok(())), (false, "", Err("was interrupted")), (false, "no room", Err("no room"))]
        {
            let dirs = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
            let paths = [0, 1].map(|at: usize| dirs[at].path().to_path_buf());
            assert!(!is_wanted(&paths[0], "me"));
            std::fs::write(paths[1].join(PARTIAL), "old").expect("written");
            let waiting = std::thread::spawn({
                let paths = paths.clone();
                move || run("me", &paths)
            });
            let lock = begin(&paths[0]);
            assert!(!is_wanted(&paths[0], "another") && !paths[1].join(PARTIAL).exists());
            assert!(matches!(run("me", &paths), Err(ReceiveError::Busy(_))));
            for path in paths.iter().filter(|_| finishes) {
                std::fs::write(path.join(WHOLE), "whole").expect("written");
            }
            std::os::unix::fs::FileExt::write_all_at(&lock, said.as_bytes(), 0).expect("written");
            drop(lock);
            let ended = waiting.join().expect("no panic").map_err(|error| error.to_string());
            match expected {
                Ok(()) => {
                    ended.expect("received");
                    assert!(!is_wanted(&paths[0], "me"));
                    run("me", &paths).expect("there already");
                }
                Err(why) => assert!(ended.as_ref().is_err_and(|said| said.contains(why)), "{ended:?}"),
            }
        }
    }

    #[test]
    fn what_somebody_else_put_there_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let wanted = dir.path().join(WANTED);
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "me").expect("written");
        let held = |path: &Path| {
            let file = File::options().write(true).open(path).expect("opened");
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).expect("locked");
            file
        };
        let lock = held(&elsewhere);
        let started = std::time::Instant::now();

        std::os::unix::fs::symlink(&elsewhere, &wanted).expect("linked");
        assert!(!is_wanted(dir.path(), "me"), "a link is followed");
        run("me", &[dir.path().to_path_buf()]).expect_err("a link is followed");
        assert_eq!(std::fs::read_to_string(&elsewhere).expect("read"), "me");
        std::fs::remove_file(&wanted).expect("removed");
        drop(lock);

        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &wanted, fifo, Mode::from_raw_mode(0o600), 0).expect("made");
        assert!(!is_wanted(dir.path(), "me"), "a pipe is no file");
        assert!(!is_wanted(&wanted, "me"), "a pipe is no directory");
        run("me", &[dir.path().to_path_buf()]).expect_err("a pipe is no file");
        std::fs::remove_file(&wanted).expect("removed");

        // Larger than any memory.
        std::fs::write(&wanted, "me").expect("written");
        let lock = held(&wanted);
        assert!(is_wanted(dir.path(), "me"));
        lock.set_len(1 << 42).expect("grown");
        assert!(!is_wanted(dir.path(), "me"), "it holds more than the UID");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}
