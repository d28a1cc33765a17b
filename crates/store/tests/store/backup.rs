//! Backups of running stores, and what is made of damaged ones.

use std::path::Path;
use std::sync::Arc;

use carrack_store::backup::{self, JUMP, Summary};
use carrack_store::embedded::{EmbeddedStore, OpenError, Options};
use carrack_store::{MemStore, Revision, Store, StoreError};
use futures::executor::block_on;
use futures::{StreamExt, TryStreamExt};

use crate::help::{commit, delete, get, keys, put, range, text};

fn write(store: &Arc<MemStore>, file: &Path) {
    let store: Arc<dyn Store> = store.clone();
    let parts: Vec<_> = block_on(backup::stream(store).try_collect()).expect("readable");
    std::fs::write(file, parts.concat()).expect("written");
}

fn filled(count: usize) -> Arc<MemStore> {
    let store = Arc::new(MemStore::default());
    for number in 0..count {
        commit(&*store, vec![put(&format!("k/{number:05}"), format!("{number}"))]);
    }
    store
}

#[test]
fn a_backup_is_of_one_revision_whatever_happens_meanwhile() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = filled(1200);
    commit(&*store, vec![delete("k/00007")]);
    let at = store.revision();
    let forgetful = Arc::clone(&store);
    let shared: Arc<dyn Store> = store.clone();
    let mut parts = Box::pin(backup::stream(shared));
    let mut bytes = Vec::new();
    let mut round = 0;
    while let Some(part) = block_on(parts.next()) {
        bytes.extend_from_slice(&part.expect("readable"));
        commit(&*store, vec![delete(&format!("k/{:05}", 1100 - round)), put("k/00007", "again"), put("a", "new")]);
        // What was is soon forgotten where much happens.
        block_on(forgetful.compact(forgetful.revision())).expect("compacted");
        round += 1;
    }
    assert!(round > 3, "it comes in parts");
    let file = dir.path().join("backup");
    std::fs::write(&file, &bytes).expect("written");
    let summary = Summary { revision: at, entries: 1199, bytes: bytes.len() as u64, torn: None };
    assert_eq!(backup::verify(&file).expect("whole"), summary);
    let target = dir.path().join("store");
    assert_eq!(backup::restore(&file, &target).expect("restored"), summary);
    // Whoever is refused hears of what, and needs no more words around it.
    let refused = backup::restore(&file, &target).expect_err("a store is there");
    assert_eq!(refused.to_string(), format!("cannot restore into {}", target.display()));
    assert_eq!(backup::check(&target).expect("sound").entries, 1199);

    let restored = EmbeddedStore::open(&target, Options::default()).expect("it opens");
    assert_eq!(restored.revision(), Revision(at.0 + JUMP));
    let (found, _) = keys(&restored, range(""));
    assert_eq!(found.len(), 1199);
    let entry = get(&restored, "k/01100").expect("it was there then");
    assert_eq!((&*text(&entry), entry.mod_revision), ("1100", Revision(1102)));
    // What clients know is the past, also from after the backup.
    for known in [at, store.revision()] {
        assert!(matches!(restored.watch("", known), Err(StoreError::Compacted { .. })));
    }
    assert_eq!(commit(&restored, vec![put("b", "")]).0, Revision(at.0 + JUMP + 1));
    drop(restored);
    let again = EmbeddedStore::open(&target, Options::default()).expect("it opens again");
    assert_eq!(keys(&again, range("")).0.len(), 1200);
    drop(again);
    assert!(matches!(backup::restore(&file, &target), Err(OpenError::Io { .. })), "nothing is overwritten");
}

/// Whoever takes one slowly has no more than a part in memory, and each part costs as much as its entries.
#[test]
fn parts_are_short_however_long_the_values() {
    let store = Arc::new(MemStore::default());
    for number in 0..20 {
        commit(&*store, vec![put(&format!("k/{number}"), "x".repeat(100 << 10))]);
    }
    let shared: Arc<dyn Store> = store;
    let parts: Vec<_> = block_on(backup::stream(shared).try_collect()).expect("readable");
    assert!(parts.len() > 5 && parts.iter().all(|part| part.len() < 400 << 10));
}

#[test]
fn damage_is_found_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("backup");
    write(&filled(20), &file);
    let whole = std::fs::read(&file).expect("readable");
    backup::verify(&file).expect("whole");
    for cut in [0, 10, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..cut]).expect("written");
        assert!(matches!(backup::verify(&file), Err(OpenError::Corrupt { .. })), "cut at {cut}");
    }
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&file, damaged).expect("written");
        assert!(backup::verify(&file).is_err(), "damaged at {at}");
    }
    let target = dir.path().join("store");
    assert!(backup::restore(&file, &target).is_err());
    assert!(!target.exists(), "nothing is made of a damaged backup");
}

#[test]
fn a_check_changes_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(dir.path(), Options::default()).expect("a new store");
    commit(&store, vec![put("a", "1"), put("b", "2")]);
    assert!(matches!(backup::check(dir.path()), Err(OpenError::Locked { .. })), "it is in use");
    drop(store);
    let log = dir.path().join("log-0000000000000001");
    let mut bytes = std::fs::read(&log).expect("a log");
    bytes.extend_from_slice(b"torn");
    std::fs::write(&log, &bytes).expect("written");
    let found = backup::check(dir.path()).expect("a torn end is no damage");
    assert_eq!((found.revision, found.entries), (Revision(2), 2));
    assert_eq!(std::fs::read(&log).expect("a log"), bytes);
    bytes[60] ^= 1;
    std::fs::write(&log, &bytes).expect("written");
    let error = backup::check(dir.path()).expect_err("it is damaged").to_string();
    assert!(error.contains("log-0000000000000001") && error.contains("corrupt"), "{error}");
    assert!(backup::check(&dir.path().join("nowhere")).is_err());
}

/// What was cut short at the end of a log was never acknowledged. What is there to its end, but damaged, may have been.
#[test]
fn a_check_tells_what_a_log_ends_in() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(dir.path(), Options::default()).expect("a new store");
    commit(&store, vec![put("a", "1")]);
    drop(store);
    let log = dir.path().join("log-0000000000000001");
    let closed = std::fs::read(&log).expect("a log");
    // As a kill leaves it: without the record of its end, a header and one byte.
    let killed = &closed[..closed.len() - 21];
    let (short, mut flipped) = (&killed[..killed.len() - 1], killed.to_vec());
    flipped[killed.len() - 1] ^= 1;
    let (longer, zeros) = ([killed, b"torn"].concat(), [killed, &[0_u8; 4096]].concat());
    let noise = [killed, &[7_u8; 64]].concat();
    for (what, left, entries, may_have_counted) in [
        ("closed", &closed[..], 1, None),
        ("killed", killed, 1, None),
        ("cut short", short, 0, Some(false)),
        ("a bit flipped", &flipped[..], 0, Some(true)),
        ("less than a header", &longer[..], 1, Some(false)),
        ("never filled", &zeros[..], 1, Some(false)),
        ("something else", &noise[..], 1, Some(true)),
    ] {
        std::fs::write(&log, left).expect("written");
        let found = backup::check(dir.path()).expect("a torn end is no damage");
        let (torn_bytes, said) = found.torn.map_or((0, None), |torn| (torn.bytes, Some(torn.may_have_counted)));
        assert_eq!((found.entries, said), (entries, may_have_counted), "{what}");
        assert_eq!(found.bytes + torn_bytes, left.len() as u64, "{what}");
    }
}

/// The disk was full, or the machine went down: it is done again, and nothing has to be removed by hand.
#[test]
fn a_restore_that_was_cut_short_is_done_again() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, target) = (dir.path().join("backup"), dir.path().join("store"));
    write(&filled(20), &file);
    let (log, snapshot) = (target.join("log-0000000000000002"), target.join("snapshot-0000000000000002"));
    for _ in 0..2 {
        backup::restore(&file, &target).expect("restored");
        std::fs::rename(&snapshot, snapshot.with_extension("tmp")).expect("there was one");
        assert!(EmbeddedStore::open(&target, Options::default()).is_err(), "it is no store yet");
    }
    let whole = backup::restore(&file, &target).expect("restored");
    assert_eq!(backup::check(&target).expect("sound").entries, whole.entries);
    // With something in its log it was a store once.
    commit(&EmbeddedStore::open(&target, Options::default()).expect("it opens"), vec![put("b", "")]);
    std::fs::remove_file(&snapshot).expect("there was one");
    let before = std::fs::read(&log).expect("a log");
    assert!(matches!(backup::restore(&file, &target), Err(OpenError::Io { .. })), "nothing is overwritten");
    assert_eq!(std::fs::read(&log).expect("a log"), before);
}
