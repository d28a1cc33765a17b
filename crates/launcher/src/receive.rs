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

use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
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

/// How often the pod looks whether the copy was begun.
const LOOK: Duration = Duration::from_millis(50);
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
    let wanted = first.join(WANTED);
    let lock =
        File::options().create(true).truncate(false).write(true).open(&wanted).map_err(failed(wanted.clone()))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(ReceiveError::Busy(first.clone())),
        Err(errno) => return Err(failed(wanted)(errno.into())),
    }
    // Nobody copies to here any more: what was begun is of no use.
    let doing = first.join(DOING);
    for path in directories.iter().map(|directory| directory.join(PARTIAL)).chain([doing.clone()]) {
        remove(&path).map_err(failed(path))?;
    }
    // Last: whoever reads it may begin.
    lock.set_len(0)
        .and_then(|()| std::os::unix::fs::FileExt::write_all_at(&lock, uid.as_bytes(), 0))
        .map_err(failed(wanted.clone()))?;
    let begun = loop {
        match File::open(&doing) {
            Ok(file) => break file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::thread::sleep(LOOK),
            Err(error) => return Err(failed(doing)(error)),
        }
    };
    rustix::fs::flock(&begun, FlockOperation::LockExclusive).map_err(|errno| failed(doing.clone())(errno.into()))?;
    if !whole() {
        let said = io::read_to_string(&begun).unwrap_or_default();
        let said: String = said.trim().chars().take(REASON_CHARS).collect();
        let why = if said.is_empty() { "the copying was interrupted".to_owned() } else { said };
        return Err(ReceiveError::Failed(why));
    }
    for path in [wanted, doing] {
        remove(&path).map_err(failed(path))?;
    }
    Ok(())
}

/// Whether somebody waits in `directory` for a copy of this machine's disks.
#[must_use]
pub fn is_wanted(directory: &Path, uid: &str) -> bool {
    let Ok(file) = File::open(directory.join(WANTED)) else { return false };
    let held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK);
    held && io::read_to_string(&file).is_ok_and(|text| text == uid)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
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
}
