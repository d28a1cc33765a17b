//! What was made for a sandbox, kept on the node from before it is made until it is undone.
//!
//! One file for each sandbox, replaced as a whole. A lock beside it tells whether somebody is at work on the sandbox: the
//! programs that are called inherit it, so that one which outlives a killed caller still counts.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Network;
use crate::selection::Selection;

/// A pod, as the runtime names it to plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// A network that a sandbox is attached to, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// What the pod asks for.
    pub selection: Selection,
    /// The network as it was then. What its definition says later does not matter to what was made.
    pub network: Network,
    /// What its plugins made; none while they have not answered.
    pub result: Option<Value>,
}

/// All of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The sandbox.
    pub container_id: String,
    /// Its pod.
    pub pod: Pod,
    /// Its network namespace.
    pub netns: String,
    /// `CNI_ARGS` as the runtime gave them.
    pub args: String,
    /// The attachments, in the order of ADD.
    pub attachments: Vec<Attachment>,
}

/// A sandbox that nobody else is at work on.
#[derive(Debug)]
pub struct Held {
    dir: PathBuf,
    id: String,
    lock: File,
}

/// Whether anything was ever begun for a sandbox, and is not undone yet: an ADD makes its lock first.
#[must_use]
pub fn is_begun(dir: &Path, id: &str) -> bool {
    // What cannot be looked at is not known to be absent.
    let is_there = |kind: &str| dir.join(format!("{id}.{kind}")).try_exists().unwrap_or(true);
    is_there("json") || is_there("lock")
}

/// Takes a sandbox; waits for whoever is at work on it, or returns nothing then.
///
/// # Errors
/// The id is none, or the directory cannot be written.
pub fn hold(dir: &Path, id: &str, wait: bool) -> io::Result<Option<Held>> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.len() > 200 || id.starts_with('.') || !id.bytes().all(known) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{id:?} is no id of a sandbox")));
    }
    fs::create_dir_all(dir)?;
    let path = dir.join(format!("{id}.lock"));
    let how = if wait { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
    loop {
        let lock = File::options().create(true).truncate(false).write(true).open(&path)?;
        match flock(&lock, how) {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Who had it before may have taken the file away.
        let same = fs::metadata(&path).is_ok_and(|there| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
        if same {
            // Programs that are called keep it.
            fcntl_setfd(&lock, FdFlags::empty())?;
            return Ok(Some(Held { dir: dir.to_owned(), id: id.to_owned(), lock }));
        }
    }
}

impl Held {
    fn file(&self) -> PathBuf {
        self.dir.join(format!("{}.json", self.id))
    }

    /// What is kept of it.
    ///
    /// # Errors
    /// It cannot be read: nobody knows then. [`io::ErrorKind::InvalidData`] where it is damaged, and never will be known.
    pub fn load(&self) -> io::Result<Option<Record>> {
        let path = self.file();
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged: {error}", path.display()))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts aside what is damaged, for whoever wants to know what it said. Returns where it is.
    ///
    /// # Errors
    /// It cannot be moved.
    pub fn put_aside(&self) -> io::Result<PathBuf> {
        let aside = self.dir.join(format!("{}.damaged", self.id));
        fs::rename(self.file(), &aside)?;
        File::open(&self.dir)?.sync_all()?;
        Ok(aside)
    }

    /// Keeps this. When it returns, a power cut does not take it back.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, record: &Record) -> io::Result<()> {
        let part = self.dir.join(format!(".{}.part", self.id));
        let mut file = File::create(&part)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&part, self.file())?;
        File::open(&self.dir)?.sync_all()
    }

    /// Forgets it, and lets go.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget(self) -> io::Result<()> {
        for path in
            [self.file(), self.dir.join(format!(".{}.part", self.id)), self.dir.join(format!("{}.lock", self.id))]
        {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        drop(self.lock);
        Ok(())
    }
}

/// The sandboxes of which something is kept.
///
/// # Errors
/// The directory is there and cannot be read.
pub fn sandboxes(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ids.extend(name.strip_suffix(".json").filter(|id| !id.starts_with('.')).map(str::to_owned));
    }
    ids.sort();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        Record {
            container_id: id.to_owned(),
            pod: Pod::default(),
            netns: "/ns".to_owned(),
            args: String::new(),
            attachments: Vec::new(),
        }
    }

    #[test]
    fn what_is_kept_is_found_until_it_is_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!is_begun(dir.path(), "a1") && !is_begun(&dir.path().join("none"), "a1"));
        let held = hold(dir.path(), "a1", true).expect("taken").expect("free");
        assert!(is_begun(dir.path(), "a1"), "it may have come to anything");
        assert_eq!(held.load().expect("read"), None);
        held.save(&record("a1")).expect("kept");
        assert_eq!(sandboxes(dir.path()).expect("read"), ["a1"]);
        drop(held);
        let held = hold(dir.path(), "a1", false).expect("taken").expect("free");
        assert_eq!(held.load().expect("read"), Some(record("a1")));
        held.forget().expect("forgotten");
        assert!(!is_begun(dir.path(), "a1"));
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
        assert_eq!(sandboxes(&dir.path().join("none")).expect("read"), Vec::<String>::new());
    }

    #[test]
    fn who_is_called_still_counts_when_the_caller_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = hold(dir.path(), "a1", true).expect("taken").expect("free");
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("it runs");
        drop(held);
        assert!(hold(dir.path(), "a1", false).expect("asked").is_none(), "the program that was called holds it");
        drop(child.stdin.take());
        child.wait().expect("ended");
        assert!(hold(dir.path(), "a1", false).expect("asked").is_some());
    }

    #[test]
    fn a_damaged_record_is_no_missing_one() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("a1.json"), "{").expect("written");
        let held = hold(dir.path(), "a1", true).expect("taken").expect("free");
        assert_eq!(held.load().expect_err("nobody knows").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn ids_lead_nowhere_else() {
        let dir = tempfile::tempdir().expect("a directory");
        for id in ["", "..", "../x", "a/b", ".a"] {
            assert!(hold(dir.path(), id, true).is_err(), "{id:?}");
        }
    }
}
