//! A disk that refuses to write: the log, or only a snapshot.
//!
//! The limit on the size of a file is a real failure of a real write that needs no privileges. A
//! shell sets it, for it is also the shell that can have the signal ignored which comes with it.

use std::path::Path;
use std::process::Command;

use carrack_store::embedded::{EmbeddedStore, Options};
use carrack_store::{Revision, Store, StoreError};
use futures::executor::block_on;

use crate::help::{commit, drain, get, put, text, txn};

const VICTIM_DIR: &str = "CARRACK_STORE_FULL_DIR";

/// Runs one of the victims below under a limit of 64 KB for a file. What they write is theirs to
/// check while they run; returns what they noted down at the end.
fn under_the_limit(victim: &str, dir: &Path) -> u64 {
    let myself = std::env::current_exe().expect("the test has a path");
    let output = Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 128; exec \"$0\" --exact \"disk_full::$1\" --nocapture")
        .arg(myself)
        .arg(victim)
        .env(VICTIM_DIR, dir)
        .output()
        .expect("there is a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let noted = std::fs::read_to_string(dir.join("noted")).expect("the victim ran");
    noted.parse().expect("a number")
}

fn note(dir: &Path, number: u64) {
    std::fs::write(dir.join("noted"), number.to_string()).expect("a small file is allowed");
}

/// The process whose log is full. Without its directory it is not a test but part of the next one.
#[test]
fn victim_of_a_full_log() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    let options = Options { log_bytes: u64::MAX, ..Options::default() };
    let store = EmbeddedStore::open(Path::new(&dir), options).expect("there is room for a head");
    let mut watch = store.watch("", Revision(1)).expect("watchable");
    let mut written = 0;
    let error = loop {
        let value = format!("{written:01000}");
        match block_on(store.transact(txn(vec![], vec![put("a", value)]))) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the limit does not work");
    };
    let StoreError::Broken(cause) = &error else { panic!("{error:?}") };
    assert_eq!(cause.kind(), std::io::ErrorKind::FileTooLarge, "{error}");
    assert!(written > 10);
    // It stays so, while everything that does not write works as before.
    let again = block_on(store.transact(txn(vec![], vec![put("b", "small")])));
    assert!(matches!(again, Err(StoreError::Broken(_))), "{again:?}");
    let compact = block_on(store.compact(Revision(2)));
    assert!(matches!(compact, Err(StoreError::Broken(_))), "{compact:?}");
    assert!(matches!(store.fault(), Some(StoreError::Broken(_))), "whoever asks is told why");
    assert_eq!(store.revision().0, 1 + written);
    let entry = get(&store, "a").expect("it is there");
    assert_eq!(text(&entry), format!("{:01000}", written - 1));
    assert!(get(&store, "b").is_none());
    let seen = drain(&mut watch);
    assert_eq!(u64::try_from(seen.len()).expect("few"), written + 1);
    assert_eq!(seen.last(), Some(&format!("..{}", 1 + written)));
    note(Path::new(&dir), written);
}

#[test]
fn a_full_log_refuses_writes_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let written = under_the_limit("victim_of_a_full_log", dir.path());
    // With room again, it opens, and goes on where the acknowledged writes end.
    let store = EmbeddedStore::open(dir.path(), Options::default()).expect("it opens again");
    assert_eq!(store.revision().0, 1 + written);
    let entry = get(&store, "a").expect("it is there");
    assert_eq!(text(&entry), format!("{:01000}", written - 1));
    commit(&store, vec![put("b", "small")]);
}

const KEYS: u64 = 200;

/// How many threads this process has. One that was just begun counts at once, and has its name only when it has run: a thread that
/// gets no processor for long would not be found by that.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("threads").count()
}

/// The process that can write logs of 20 KB, but no snapshot of all the keys. A log grows while a snapshot is written, and would
/// meet the limit itself if the next write did not wait for that.
#[test]
fn victim_of_a_full_snapshot() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    let options = Options { log_bytes: 20_000, ..Options::default() };
    let store = EmbeddedStore::open(Path::new(&dir), options).expect("there is room for a head");
    let idle = threads();
    for key in 0..KEYS {
        commit(&store, vec![put(&format!("k/{key}"), format!("{key:01000}"))]);
        // Until no snapshot is written.
        while threads() > idle {
            std::thread::yield_now();
        }
    }
    drop(store);
    note(Path::new(&dir), KEYS);
}

#[test]
fn a_snapshot_that_cannot_be_written_costs_only_space() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let written = under_the_limit("victim_of_a_full_snapshot", dir.path());
    let files = std::fs::read_dir(dir.path()).expect("the directory is there");
    let names = files.map(|file| file.expect("it can be listed").file_name());
    let logs = names.filter(|name| name.to_string_lossy().starts_with("log-")).count();
    assert!(logs > 2, "only {logs} logs: a snapshot of later than half the keys was written");
    let store = EmbeddedStore::open(dir.path(), Options::default()).expect("it opens again");
    assert_eq!(store.revision().0, 1 + written);
    for key in 0..written {
        let entry = get(&store, &format!("k/{key}")).expect("it is there");
        assert_eq!(text(&entry), format!("{key:01000}"));
    }
}
