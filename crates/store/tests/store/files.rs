//! What the embedded store leaves on disk, and what it makes of damaged files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use carrack_store::embedded::{EmbeddedStore, OpenError, Options};
use carrack_store::{Revision, Store};
use futures::executor::block_on;

use crate::help::{commit, delete, drain, get, keys, put, range, text};

fn open(dir: &Path) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(dir, Options::default())
}

fn file(dir: &Path, prefix: &str) -> PathBuf {
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .expect("the directory is there")
        .map(|file| file.expect("it can be listed").path())
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| panic!("no {prefix} in {}", dir.display()))
}

#[test]
fn everything_is_there_after_reopening() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("data/store");
    let store = open(&path).expect("a new store opens");
    commit(&store, vec![put("a", "1"), put("b", "1")]);
    commit(&store, vec![put("a", "2"), delete("b")]);
    block_on(store.compact(Revision(2))).expect("compactable");
    drop(store);
    let store = open(&path).expect("it opens again");
    assert_eq!(store.revision(), Revision(3));
    let entry = get(&store, "a").expect("it is there");
    assert_eq!((&*text(&entry), entry.create_revision.0, entry.mod_revision.0), ("2", 2, 3));
    assert!(get(&store, "b").is_none());
    // A watch resumes where it was, and compacted history stays so.
    let mut watch = store.watch("", Revision(2)).expect("the log has it");
    assert_eq!(drain(&mut watch), ["3+a=2", "3-b", "..3"]);
    assert!(store.watch("", Revision(1)).is_err());
    assert_eq!(commit(&store, vec![put("c", "")]).0, Revision(4));

    for file in std::fs::read_dir(&path).expect("the directory is there") {
        let file = file.expect("it can be listed");
        let mode = file.metadata().expect("readable").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.path().display());
    }
    let mode = path.metadata().expect("readable").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path()).expect("a new store opens");
    let error = open(dir.path()).err().expect("it is in use").to_string();
    assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
    assert!(error.contains(&*dir.path().to_string_lossy()), "{error}");
    drop(store);
    open(dir.path()).expect("the lock goes with the store");
}

#[test]
fn the_log_does_not_grow_with_history() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { log_bytes: 20_000, ..Options::default() };
    let store = EmbeddedStore::open(dir.path(), options).expect("a new store opens");
    let bytes = || -> u64 {
        let files = std::fs::read_dir(dir.path()).expect("the directory is there");
        // One that is being removed has no length any more.
        files.filter_map(|file| file.and_then(|file| file.metadata()).ok()).map(|m| m.len()).sum()
    };
    let mut written = 0;
    // How far the log gets while a snapshot is written is up to the machine.
    while written < 400 || bytes() > 100_000 {
        commit(&store, vec![put(&format!("k/{}", written % 20), vec![b'x'; 1000])]);
        written += 1;
        assert!(written < 20_000, "{} bytes for 20 KB of entries", bytes());
    }
    drop(store);
    let store = EmbeddedStore::open(dir.path(), options).expect("it opens again");
    assert_eq!(store.revision(), Revision(1 + written));
    assert_eq!(keys(&store, range("k/")).0.len(), 20);
    assert!(file(dir.path(), "snapshot-").exists());
}

#[test]
fn a_log_that_cannot_be_cut_grows_until_it_can() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { log_bytes: 5000, ..Options::default() };
    let store = EmbeddedStore::open(dir.path(), options).expect("a new store opens");
    let first = file(dir.path(), "log-");
    // Where the next log would be prepared, there is something that is no file.
    let obstacle = dir.path().join("log-0000000000000002.tmp");
    std::fs::create_dir(&obstacle).expect("it can be made");
    for round in 0..20 {
        commit(&store, vec![put(&format!("k/{round}"), vec![b'x'; 1000])]);
    }
    assert!(first.metadata().expect("it is still there").len() > 20_000);
    std::fs::remove_dir(&obstacle).expect("it can be removed");
    for round in 0..20 {
        commit(&store, vec![put(&format!("l/{round}"), vec![b'x'; 1000])]);
    }
    assert_ne!(file(dir.path(), "log-"), first);
    drop(store);
    let store = EmbeddedStore::open(dir.path(), options).expect("it opens again");
    assert_eq!(store.revision(), Revision(41));
    assert_eq!(keys(&store, range("")).0.len(), 40);
}

/// A closed store's log with the offsets where transactions end, and its directory.
fn written(values: &[&str]) -> (tempfile::TempDir, PathBuf, Vec<usize>) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path()).expect("a new store opens");
    let log = file(dir.path(), "log-");
    let len = || usize::try_from(log.metadata().expect("readable").len()).expect("small");
    let mut ends = vec![len()];
    for value in values {
        commit(&store, vec![put("a", *value), put("b", *value)]);
        ends.push(len());
    }
    drop(store);
    (dir, log, ends)
}

#[test]
fn a_torn_tail_is_cut_off_at_every_byte() {
    let (_dir, log, ends) = written(&["first", "second", "third"]);
    let bytes = std::fs::read(&log).expect("readable");
    let again = tempfile::tempdir().expect("a temporary directory");
    let copy = again.path().join(log.file_name().expect("it has a name"));
    for len in ends[0]..=bytes.len() {
        for garbage in [&b""[..], &[0; 50], &[0xff; 7], b"\xffCRK\x03\0\0\0"] {
            std::fs::write(&copy, [&bytes[..len], garbage].concat()).expect("writable");
            let store = open(again.path()).unwrap_or_else(|error| panic!("at {len}: {error}"));
            let whole = ends.iter().filter(|end| **end <= len).count() - 1;
            assert_eq!(store.revision().0, 1 + whole as u64, "at {len}");
            let expected = [None, Some("first"), Some("second"), Some("third")][whole];
            for key in ["a", "b"] {
                assert_eq!(get(&store, key).map(|e| text(&e)).as_deref(), expected, "at {len}");
            }
            commit(&store, vec![put("a", "later")]);
            drop(store);
            let store = open(again.path()).expect("it opens once more");
            assert_eq!(get(&store, "a").map(|e| text(&e)).as_deref(), Some("later"));
        }
    }
}

#[test]
fn damage_is_refused() {
    let (dir, log, ends) = written(&["first", "second", "third"]);
    let bytes = std::fs::read(&log).expect("readable");
    // The record of the close follows the last transaction, so each one is known to have been whole.
    assert!(*ends.last().expect("there are some") < bytes.len());
    for at in 0..*ends.last().expect("there are some") {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&log, &damaged).expect("writable");
        let record = *ends.iter().rfind(|end| **end <= at).unwrap_or(&0);
        match open(dir.path()) {
            Err(OpenError::Corrupt { path, offset, .. }) => {
                assert_eq!((&path, offset), (&log, record), "damage at {at}");
            }
            Err(error) => panic!("damage at {at}: {error}"),
            Ok(store) => panic!("damage at {at} was taken for revision {}", store.revision()),
        }
        assert_eq!(std::fs::read(&log).expect("readable"), damaged, "it is left as it is");
    }
    std::fs::write(&log, &bytes).expect("writable");
    assert_eq!(open(dir.path()).expect("undamaged").revision(), Revision(4));
}

#[test]
fn a_missing_or_damaged_snapshot_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { log_bytes: 1, ..Options::default() };
    let store = EmbeddedStore::open(dir.path(), options).expect("a new store opens");
    // Snapshots are written beside: go on until there is one.
    let has_snapshot = || {
        let mut files = std::fs::read_dir(dir.path()).expect("the directory is there");
        files.any(|file| {
            let name = file.expect("it can be listed").file_name();
            let name = name.to_string_lossy();
            name.starts_with("snapshot-") && !name.ends_with(".tmp")
        })
    };
    while !has_snapshot() {
        commit(&store, vec![put("a", "1")]);
    }
    drop(store);
    let snapshot = file(dir.path(), "snapshot-");
    let bytes = std::fs::read(&snapshot).expect("readable");
    let is_refused = || matches!(open(dir.path()), Err(OpenError::Corrupt { .. }));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&snapshot, damaged).expect("writable");
        assert!(is_refused(), "damage at {at}");
        std::fs::write(&snapshot, &bytes[..at]).expect("writable");
        assert!(is_refused(), "cut at {at}");
    }
    std::fs::remove_file(&snapshot).expect("removable");
    assert!(is_refused(), "the snapshot is missing");
    std::fs::write(&snapshot, &bytes).expect("writable");
    let name = snapshot.file_name().expect("it has a name").to_string_lossy();
    let log = dir.path().join(name.replace("snapshot", "log"));
    drop(open(dir.path()).expect("undamaged"));
    let bytes = std::fs::read(&log).expect("readable");
    std::fs::remove_file(&log).expect("removable");
    assert!(is_refused(), "the log is missing");
    std::fs::write(&log, bytes).expect("writable");
    open(dir.path()).expect("undamaged");
}
