//! Logs of processes in the background, which would else grow for as long as those run.
//!
//! Such a process's own log is its standard error. Once it is too large it is put aside as `<name>.1`, and a new one takes
//! its place. What another process writes is copied aside and emptied: it goes on writing into the same file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use carrack_noderuntime::{Layout, containerd};
use tokio_util::sync::CancellationToken;

/// A log above this is put aside, at a start and later.
const LIMIT_BYTES: u64 = 64 << 20;

/// How often logs are looked at.
const PERIOD: Duration = Duration::from_secs(60);

/// This process's standard error, whatever it is.
const OWN: &str = "/proc/self/fd/2";

/// Opens a log for a process that is about to start, which appends to it. Whoever is not root may not read it.
///
/// # Errors
/// It cannot be written.
pub fn open(path: &Path) -> anyhow::Result<File> {
    let opened = || -> io::Result<File> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        containerd::rotate(path, LIMIT_BYTES)?;
        append(path)
    };
    opened().with_context(|| format!("cannot write {}", path.display()))
}

fn append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Keeps this process's own log, where it has one, and its containerd's from growing without end, until `stop`.
pub async fn keep(layout: Layout, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let (own, other) = (layout.log_file(), layout.containerd_log());
        let looked = tokio::task::spawn_blocking(move || {
            for (path, outcome) in [(&own, exchange(&own, LIMIT_BYTES)), (&other, empty(&other, LIMIT_BYTES))] {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "the log {} cannot be put aside", path.display());
                }
            }
        });
        if let Err(panic) = looked.await {
            tracing::error!(%panic, "logs were not looked at");
        }
    }
}

/// Puts the file aside that standard error goes to, if it is this one and too large. A terminal, the journal, and a file
/// that somebody else has chosen are left alone.
fn exchange(path: &Path, limit_bytes: u64) -> io::Result<()> {
    if !is_same(Path::new(OWN), path) || fs::metadata(path)?.len() <= limit_bytes {
        return Ok(());
    }
    // It is there before the other one goes: where it cannot be made, nothing has changed.
    let part = part_of(path);
    let new = append(&part)?;
    containerd::rotate(path, limit_bytes)?;
    fs::rename(&part, path)?;
    rustix::stdio::dup2_stderr(&new)?;
    Ok(())
}

/// Copies a log aside that another process appends to, and empties it. What is written in between is lost.
fn empty(path: &Path, limit_bytes: u64) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if there.len() > limit_bytes => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => return Ok(()),
    }
    let part = part_of(path);
    if let Err(error) = fs::copy(path, &part).and_then(|_| fs::rename(&part, path.with_extension("log.1"))) {
        // Half a copy on a disk that is full helps nobody.
        drop(fs::remove_file(&part));
        return Err(error);
    }
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

fn part_of(path: &Path) -> PathBuf {
    path.with_extension("log.part")
}

/// Whether two paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set for the run of this program whose standard error is a log: its path.
    const LOG: &str = "CARRACK_TEST_LOG";

    #[test]
    fn a_process_goes_on_in_a_new_log() {
        if let Some(path) = std::env::var_os(LOG) {
            let path = PathBuf::from(path);
            crate::output::say("before");
            exchange(&path, 1 << 20).expect("it is small");
            exchange(&path, 3).expect("exchanged");
            crate::output::say("after");
            // Another file of that name is none of this process's.
            fs::rename(&path, path.with_extension("mine")).expect("renamed");
            fs::write(&path, "somebody else's").expect("written");
            exchange(&path, 3).expect("left alone");
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("carrack.log");
        let status = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "log_file::tests::a_process_goes_on_in_a_new_log", "--nocapture"])
            .env(LOG, &path)
            .stdout(Stdio::null())
            .stderr(open(&path).expect("a log"))
            .status()
            .expect("it runs");
        assert!(status.success(), "{status}");
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("it is there");
        assert!(read("carrack.log.1").contains("before"));
        assert!(read("carrack.mine").contains("after") && !read("carrack.mine").contains("before"));
        assert_eq!(read("carrack.log"), "somebody else's");
        assert!(!dir.path().join("carrack.log.part").exists());
    }

    #[test]
    fn what_another_process_writes_is_emptied_under_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("containerd.log");
        empty(&path, 3).expect("there is none");
        let mut other = append(&path).expect("a log");
        other.write_all(b"one\n").expect("written");
        empty(&path, 4).expect("it is small");
        other.write_all(b"two\n").expect("written");
        empty(&path, 4).expect("emptied");
        other.write_all(b"three\n").expect("written");
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("it is there");
        assert_eq!((read("containerd.log.1").as_str(), read("containerd.log").as_str()), ("one\ntwo\n", "three\n"));
    }
}
