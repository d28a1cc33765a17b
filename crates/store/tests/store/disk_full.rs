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
    run(victim, dir, 128);
    let noted = std::fs::read_to_string(dir.join("noted")).expect("the victim ran");
    noted.parse().expect("a number")
}

/// Runs a victim under a limit of so many blocks of 512 bytes.
fn run(victim: &str, dir: &Path, blocks: u32) {
    let myself = std::env::current_exe().expect("the test has a path");
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" --exact \"disk_full::$1\" --nocapture"))
        .arg(myself)
        .arg(victim)
        .env(VICTIM_DIR, dir)
        .output()
        .expect("there is a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    let large = |number: u64| put("a", format!("{number:03000}"));
    let mut written = 0;
    let error = loop {
        match block_on(store.transact(txn(vec![], vec![large(written)]))) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the limit does not work");
    };
    let StoreError::Refused(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("too large"), "{why}");
    assert!(written > 10);
    // Half of the record was written. What there is no room for stays out, again and again, and what there is room for goes in.
    for number in [written, written + 1] {
        let again = block_on(store.transact(txn(vec![], vec![large(number)])));
        assert!(matches!(again, Err(StoreError::Refused(_))), "{again:?}");
    }
    assert_eq!(store.revision().0, 1 + written);
    commit(&store, vec![put("b", "small")]);
    let changes = drain(&mut watch).iter().filter(|item| item.contains('+')).count();
    assert_eq!(u64::try_from(changes).expect("few"), written + 1);
    block_on(store.compact(Revision(2))).expect("a small record");
    assert!(store.fault().is_none(), "{:?}", store.fault());
    assert_eq!(store.revision().0, 2 + written);
    let entry = get(&store, "a").expect("it is there");
    assert_eq!(text(&entry), format!("{:03000}", written - 1));
    note(Path::new(&dir), written);
}

#[test]
fn a_full_log_refuses_writes_until_there_is_room_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let written = under_the_limit("victim_of_a_full_log", dir.path());
    // It opens, and goes on where the acknowledged writes end.
    let store = EmbeddedStore::open(dir.path(), Options::default()).expect("it opens again");
    assert_eq!(store.revision().0, 2 + written);
    for (key, value) in [("a", format!("{:03000}", written - 1)), ("b", "small".to_owned())] {
        assert_eq!(text(&get(&store, key).expect("it is there")), value);
    }
    commit(&store, vec![put("c", "small")]);
}

/// The process that can write nothing at all, not even its own number.
#[test]
fn victim_of_a_full_disk() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    let store = EmbeddedStore::open(Path::new(&dir), Options::default()).expect("what is there can be read");
    assert_eq!(text(&get(&store, "a").expect("it is there")), "large");
    let refused = block_on(store.transact(txn(vec![], vec![put("b", "small")])));
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    // An empty file takes no room.
    std::fs::File::create(Path::new(&dir).join("noted")).expect("a name is allowed");
}

#[test]
fn a_store_opens_where_there_is_no_room() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let open = || EmbeddedStore::open(dir.path(), Options::default()).expect("it opens");
    commit(&open(), vec![put("a", "large")]);
    run("victim_of_a_full_disk", dir.path(), 0);
    assert!(dir.path().join("noted").exists(), "the victim ran");
    let store = open();
    assert_eq!(text(&get(&store, "a").expect("it is there")), "large");
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
