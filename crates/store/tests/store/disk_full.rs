//! A disk that refuses to write.
//!
//! The limit on the size of a file is a real failure of a real write that needs no privileges. A
//! shell sets it, for it is also the shell that can have the signal ignored which comes with it.

use std::path::Path;
use std::process::Command;

use carrack_store::embedded::{EmbeddedStore, Options};
use carrack_store::{Revision, Store, StoreError};
use futures::executor::block_on;

use crate::help::{drain, get, put, text, txn};

const VICTIM_DIR: &str = "CARRACK_STORE_FULL_DIR";

/// The process under the limit. Without its directory it is not a test but part of the next one.
#[test]
fn victim() {
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
    assert_eq!(store.revision().0, 1 + written);
    let entry = get(&store, "a").expect("it is there");
    assert_eq!(text(&entry), format!("{:01000}", written - 1));
    assert!(get(&store, "b").is_none());
    let seen = drain(&mut watch);
    assert_eq!(u64::try_from(seen.len()).expect("few"), written + 1);
    assert_eq!(seen.last(), Some(&format!("..{}", 1 + written)));
    std::fs::write(Path::new(&dir).join("written"), written.to_string()).expect("a small file");
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let myself = std::env::current_exe().expect("the test has a path");
    let output = Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 100; exec \"$0\" --exact disk_full::victim --nocapture")
        .arg(myself)
        .env(VICTIM_DIR, dir.path())
        .output()
        .expect("there is a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = std::fs::read_to_string(dir.path().join("written")).expect("the victim ran");
    let written: u64 = written.parse().expect("a number");
    // With room again, it opens, and goes on where the acknowledged writes end.
    let store = EmbeddedStore::open(dir.path(), Options::default()).expect("it opens again");
    assert_eq!(store.revision().0, 1 + written);
    let entry = get(&store, "a").expect("it is there");
    assert_eq!(text(&entry), format!("{:01000}", written - 1));
    crate::help::commit(&store, vec![put("b", "small")]);
}
