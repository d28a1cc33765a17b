//! What the contract promises, asked of each implementation.

use std::any::Any;
use std::sync::Arc;

use carrack_store::embedded::{EmbeddedStore, Options};
use carrack_store::mem::HistoryLimits;
use carrack_store::{
    Check, EtcdStore, MemStore, Op, Range, Revision, Store, StoreError, TxnOutcome, Value, stamp_place,
};
use futures::executor::block_on;

use crate::etcd::Etcd;
use crate::help::{commit, delete, drain, get, keys, next, put, range, stamped, text, txn, words};

/// A store, and what must live as long as it.
struct Opened<S> {
    store: S,
    _below: Option<Box<dyn Any>>,
}

fn mem(history: HistoryLimits, watch_buffer_events: usize) -> Opened<MemStore> {
    Opened { store: MemStore::new(history, watch_buffer_events), _below: None }
}

fn embedded(history: HistoryLimits, watch_buffer_events: usize) -> Opened<EmbeddedStore> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { history, watch_buffer_events, ..Options::default() };
    let store = EmbeddedStore::open(dir.path(), options).expect("a new store opens");
    Opened { store, _below: Some(Box::new(dir)) }
}

fn etcd(history: HistoryLimits, watch_buffer_events: usize) -> Opened<EtcdStore> {
    let etcd = Etcd::start();
    let options = carrack_store::etcd::Options { history, watch_buffer_events, ..etcd.options() };
    let store = EtcdStore::open(options).expect("etcd is there");
    Opened { store, _below: Some(Box::new(etcd)) }
}

const LIMITS: HistoryLimits = HistoryLimits { events: 1000, bytes: 1 << 20, age_ms: u64::MAX };

/// Each case once for each implementation.
macro_rules! suite {
    ($($case:ident($limits:expr, $buffer:expr);)*) => {
        mod mem_store { $(#[test] fn $case() { super::$case(&super::mem($limits, $buffer).store); })* }
        mod embedded_store { $(#[test] fn $case() { super::$case(&super::embedded($limits, $buffer).store); })* }
        mod etcd_store { $(#[test] fn $case() { super::$case(&super::etcd($limits, $buffer).store); })* }
    };
}

suite! {
    revisions_count_transactions(super::LIMITS, 100);
    checks_hold_or_change_nothing(super::LIMITS, 100);
    what_comes_under_a_prefix_is_noticed(super::LIMITS, 100);
    what_changes_nothing_takes_no_revision(super::LIMITS, 100);
    stamps_carry_the_revision(super::LIMITS, 100);
    malformed_transactions_are_refused(super::LIMITS, 100);
    ranges_have_pages(super::LIMITS, 100);
    pages_come_from_one_state(super::LIMITS, 100);
    history_can_be_read_until_it_is_compacted(super::LIMITS, 100);
    history_is_bounded_in_events(carrack_store::mem::HistoryLimits { events: 10, ..super::LIMITS }, 100);
    history_is_bounded_in_bytes(carrack_store::mem::HistoryLimits { bytes: 100_000, ..super::LIMITS }, 100);
    a_watch_gets_each_change_of_its_prefix_once(super::LIMITS, 100);
    a_watch_hears_how_far_others_have_come(super::LIMITS, 100);
    a_slow_watch_is_dropped_and_can_resume(super::LIMITS, 4);
    what_was_read_can_be_drained(super::LIMITS, 10_000);
    readers_share_entries(super::LIMITS, 100);
    writers_do_not_lose_updates(super::LIMITS, 10_000);
}

fn revisions_count_transactions(store: &impl Store) {
    assert_eq!(store.revision(), Revision(1));
    assert_eq!(commit(store, vec![put("a", "1")]).0, Revision(2));
    let (revision, entries) = commit(store, vec![put("b", "1"), put("a", "2"), delete("c")]);
    assert_eq!((revision, store.revision()), (Revision(3), Revision(3)));
    assert!(entries[2].is_none());
    let revisions = |key| get(store, key).map(|e| (e.create_revision.0, e.mod_revision.0));
    assert_eq!(revisions("a"), Some((2, 3)));
    assert_eq!(revisions("b"), Some((3, 3)));
    let (revision, entries) = commit(store, vec![delete("a")]);
    assert_eq!(revision, Revision(4));
    assert_eq!(entries[0].as_ref().map(|e| text(e)).as_deref(), Some("2"), "the removed entry");
    assert_eq!(revisions("a"), None);
    commit(store, vec![put("a", "3")]);
    assert_eq!(revisions("a"), Some((5, 5)), "a key that comes again is a new one");
}

fn checks_hold_or_change_nothing(store: &impl Store) {
    commit(store, vec![put("here", "1")]);
    let unchanged = |key: &str, revision| Check::Unchanged(key.into(), Revision(revision));
    let check = |checks: Vec<Check>, expected: bool| {
        let before = store.revision();
        let outcome = block_on(store.transact(txn(checks.clone(), vec![put("other", "x")])));
        match outcome.expect("the store works") {
            TxnOutcome::Committed { revision, .. } => {
                assert!(expected, "{checks:?} held");
                assert_eq!(revision.0, before.0 + 1);
            }
            TxnOutcome::Failed { current, revision } => {
                assert!(!expected, "{checks:?} did not hold");
                assert_eq!((revision, store.revision()), (before, before));
                let found: Vec<bool> = current.iter().map(Option::is_some).collect();
                let here = |c: &Check| c.key().is_some_and(|key| &**key == "here");
                assert_eq!(found, checks.iter().map(here).collect::<Vec<_>>());
            }
        }
    };
    check(vec![Check::Exists("here".into())], true);
    check(vec![Check::Exists("gone".into())], false);
    check(vec![Check::Absent("gone".into())], true);
    check(vec![Check::Absent("here".into())], false);
    check(vec![unchanged("here", 2)], true);
    check(vec![unchanged("here", 1)], false);
    check(vec![unchanged("here", 3)], false);
    check(vec![unchanged("gone", 0)], false);
    check(vec![Check::Exists("here".into()), Check::Absent("gone".into())], true);
    check(vec![Check::Exists("here".into()), Check::Exists("gone".into())], false);
}

fn what_comes_under_a_prefix_is_noticed(store: &impl Store) {
    let check = |prefix: &str, since: u64, expected: bool| {
        let checks = vec![Check::NoneSince(prefix.into(), Revision(since))];
        match block_on(store.transact(txn(checks, vec![]))).expect("the store works") {
            TxnOutcome::Committed { .. } => assert!(expected, "something under {prefix:?} is newer than {since}"),
            TxnOutcome::Failed { current, .. } => {
                assert!(!expected, "nothing under {prefix:?} is newer than {since}");
                assert!(matches!(current[..], [None]), "{current:?}");
            }
        }
    };
    check("", 0, true);
    // At the revisions 2 to 6.
    for op in [put("a/1", "x"), put("a/2", "x"), put("ab/1", "x"), put("a", "x"), delete("a/2")] {
        commit(store, vec![op]);
    }
    check("c/", 0, true);
    check("a/", 1, false);
    // What is gone is not noticed, and other keys that start alike are no part of it.
    check("a/", 2, true);
    check("a/", 6, true);
    check("a/2", 0, true);
    check("ab/", 3, false);
    check("ab/", 4, true);
    check("a", 4, false);
    check("a", 5, true);
    check("", 4, false);
    check("", 5, true);
    check("", u64::MAX, true);
    // Changed at 7, and there again at 8.
    commit(store, vec![put("a/1", "y")]);
    check("a/", 6, false);
    check("a/", 7, true);
    commit(store, vec![put("a/2", "y")]);
    check("a/2", 7, false);
    check("a/2", 8, true);
    // What the transaction itself puts there comes after it.
    let own = txn(vec![Check::NoneSince("a/".into(), Revision(8))], vec![put("a/3", "x")]);
    assert!(matches!(block_on(store.transact(own)), Ok(TxnOutcome::Committed { revision: Revision(9), .. })));
    check("a/", 8, false);
}

fn what_changes_nothing_takes_no_revision(store: &impl Store) {
    commit(store, vec![put("a", "1")]);
    let mut watch = store.watch("", Revision(1)).expect("watchable");
    assert_eq!(commit(store, vec![]).0, Revision(2));
    assert_eq!(commit(store, vec![delete("x")]).0, Revision(2));
    assert_eq!(drain(&mut watch), ["2+a=1", "..2"]);
    // A put of the same bytes is a change, as it is in etcd.
    assert_eq!(commit(store, vec![put("a", "1")]).0, Revision(3));
}

fn stamps_carry_the_revision(store: &impl Store) {
    let check = |before: &str, after: &str| {
        let (front, back) =
            (format!("{before}\"metadata\":{{\"resourceVersion\":\""), format!("\",\"name\":\"n\"}}{after}"));
        let value = stamped(&front, &back);
        assert_eq!(stamp_place(&value.bytes), value.stamp_at);
        let (revision, entries) = commit(store, vec![Op::Put("k".into(), value)]);
        let expected = Some(format!("{front}{revision}{back}"));
        assert_eq!(entries[0].as_ref().map(|e| text(e)), expected);
        assert_eq!(get(store, "k").map(|e| text(&e)), expected);
    };
    check("{", "}");
    check("{\"kind\":\"x\\\"metadata\\\":{\",", "}");
    check("{\"kind\":\"x\",", ",\"spec\":{\"metadata\":{\"resourceVersion\":\"\"}}}");
    // What has no place for a revision is left as it is.
    for bytes in ["{}", "{\"metadata\":{}}", "{\"metadata\":{\"name\":\"\"},\"resourceVersion\":\"\"}"] {
        commit(store, vec![put("k", bytes)]);
        assert_eq!(get(store, "k").map(|e| text(&e)).as_deref(), Some(bytes));
    }
}

fn malformed_transactions_are_refused(store: &impl Store) {
    let stamp = Op::Put("k".into(), Value { bytes: "ab".into(), stamp_at: Some(3) });
    for ops in [vec![stamp], vec![put("k", "1"), delete("k")]] {
        let outcome = block_on(store.transact(txn(vec![], ops)));
        assert!(matches!(outcome, Err(StoreError::Invalid(_))), "{outcome:?}");
    }
    assert_eq!(store.revision(), Revision(1));
}

fn ranges_have_pages(store: &impl Store) {
    commit(store, ["b/1", "b/2", "b/3", "b", "a/1", "c/1", "b/é"].map(|k| put(k, "")).into());
    let check = |prefix: &str, after: Option<&str>, limit, expected: &[&str], remaining| {
        let after = after.map(str::to_owned);
        let found = keys(store, Range { prefix: prefix.into(), after, limit, at: None });
        assert_eq!(found, (expected.iter().map(|&k| k.to_owned()).collect(), remaining));
    };
    check("b/", None, 0, &["b/1", "b/2", "b/3", "b/é"], 0);
    check("b/", None, 2, &["b/1", "b/2"], 2);
    check("b/", Some("b/2"), 1, &["b/3"], 1);
    check("b/", Some("b/é"), 1, &[], 0);
    check("b/", Some("a"), 1, &["b/1"], 3);
    check("b/", Some("c"), 0, &[], 0);
    check("b/", Some("b/25"), 0, &["b/3", "b/é"], 0);
    check("", None, 3, &["a/1", "b", "b/1"], 4);
    check("d", None, 3, &[], 0);
}

fn pages_come_from_one_state(store: &impl Store) {
    for number in 10..30 {
        commit(store, vec![put(&format!("k/{number}"), "old")]);
    }
    let at = store.revision();
    let mut after = None;
    let mut seen = Vec::new();
    loop {
        let page = Range { prefix: "k/".into(), after: after.clone(), limit: 3, at: Some(at) };
        let page = block_on(store.range(page)).expect("the revision is kept");
        assert_eq!(page.revision, at);
        assert_eq!(page.remaining, 20 - seen.len() - page.entries.len());
        assert!(page.entries.iter().all(|entry| text(entry) == "old"));
        seen.extend(page.entries.iter().map(|entry| entry.key.to_string()));
        after = seen.last().cloned();
        // Between the pages everything is moved about.
        let gone = &seen[seen.len() / 2];
        commit(store, vec![delete(gone), delete("k/29"), put("k/155", "new"), put("k/10", "new")]);
        if page.remaining == 0 {
            break;
        }
    }
    assert_eq!(seen, (10..30).map(|number| format!("k/{number}")).collect::<Vec<_>>());
}

fn history_can_be_read_until_it_is_compacted(store: &impl Store) {
    for text in ["2", "3", "4", "5"] {
        commit(store, vec![put("a", text)]);
    }
    let at = |revision| {
        let page = block_on(store.range(Range { at: Some(Revision(revision)), ..range("") }));
        page.map(|page| page.entries.iter().map(|entry| text(entry)).collect::<String>())
    };
    let expect_error = |revision| match (at(revision), store.watch("", Revision(revision))) {
        (Err(range), Err(watch)) => {
            assert_eq!(range.to_string(), watch.to_string());
            range
        }
        (page, watch) => panic!("readable: {page:?}, {}", watch.is_ok()),
    };
    assert_eq!(at(1).expect("kept"), "");
    assert_eq!(at(3).expect("kept"), "3");
    assert!(matches!(expect_error(6), StoreError::Future { asked: Revision(6), newest: Revision(5) }));
    let mut before = store.watch("", Revision(2)).expect("kept");
    block_on(store.compact(Revision(4))).expect("compactable");
    block_on(store.compact(Revision(3))).expect("that it has gone already is no error");
    assert!(matches!(expect_error(3), StoreError::Compacted { oldest: Revision(4) }));
    assert_eq!(at(4).expect("the state at the compaction stays"), "4");
    assert_eq!(at(5).expect("kept"), "5");
    assert_eq!(drain(&mut before), ["3+a=3", "4+a=4", "5+a=5", "..5"]);
    let mut watch = store.watch("", Revision(4)).expect("kept");
    assert_eq!(drain(&mut watch), ["5+a=5", "..5"]);
    let future = block_on(store.compact(Revision(6)));
    assert!(matches!(future, Err(StoreError::Future { .. })), "{future:?}");
    block_on(store.compact(Revision(5))).expect("compactable");
    assert_eq!(at(5).expect("the newest state stays"), "5");
}

fn history_is_bounded_in_events(store: &impl Store) {
    for round in 0..20 {
        commit(store, vec![put("a", format!("{round}")), put("b", "")]);
    }
    // The last ten events are those of five transactions.
    let Err(StoreError::Compacted { oldest }) = store.watch("", Revision(15)).map(|_| ()) else {
        panic!("the history is longer than its limit");
    };
    assert_eq!(oldest, Revision(16));
    let mut watch = store.watch("a", oldest).expect("kept");
    assert_eq!(drain(&mut watch), ["17+a=15", "18+a=16", "19+a=17", "20+a=18", "21+a=19", "..21"]);
    // More changes at once than the history holds: those who watch get them, nobody else can.
    commit(store, (0..12).map(|key| put(&format!("c/{key}"), "")).collect());
    assert_eq!(drain(&mut watch), ["..22"]);
    assert!(store.watch("", Revision(21)).is_err());
    assert!(store.watch("", Revision(22)).is_ok());
}

fn history_is_bounded_in_bytes(store: &impl Store) {
    for _ in 0..30 {
        commit(store, vec![put("a", vec![b'x'; 10_000])]);
    }
    assert!(store.watch("", Revision(20)).is_err(), "it holds at most nine old values");
    assert!(store.watch("", Revision(25)).is_ok());
}

fn a_watch_gets_each_change_of_its_prefix_once(store: &impl Store) {
    commit(store, vec![put("a/1", "x"), put("b/1", "x")]);
    commit(store, vec![delete("a/1"), put("a/2", "y")]);
    let mut watches = ["", "a/", "a/1", "b/", "c"]
        .map(|prefix| (prefix, store.watch(prefix, Revision(1)).expect("watchable"), Vec::new()));
    let mut late = store.watch("a/", Revision(2)).expect("watchable");
    commit(store, vec![put("b/1", "z"), put("a/1", "z")]);
    for (_, watch, seen) in &mut watches {
        seen.extend(drain(watch));
    }
    commit(store, vec![delete("b/1")]);
    for (_, watch, seen) in &mut watches {
        seen.extend(drain(watch));
    }
    let expected: [&[&str]; 5] = [
        &["2+a/1=x", "2+b/1=x", "3-a/1", "3+a/2=y", "4+b/1=z", "4+a/1=z", "..4", "5-b/1", "..5"],
        &["2+a/1=x", "3-a/1", "3+a/2=y", "4+a/1=z", "..4", "..5"],
        &["2+a/1=x", "3-a/1", "4+a/1=z", "..4", "..5"],
        &["2+b/1=x", "4+b/1=z", "..4", "5-b/1", "..5"],
        &["..4", "..5"],
    ];
    for ((prefix, _, seen), expected) in watches.iter().zip(expected) {
        assert_eq!(seen, expected, "prefix {prefix:?}");
    }
    assert_eq!(drain(&mut late), ["3-a/1", "3+a/2=y", "4+a/1=z", "..5"]);
}

fn a_watch_hears_how_far_others_have_come(store: &impl Store) {
    let mut watch = store.watch("mine/", Revision(1)).expect("watchable");
    assert!(drain(&mut watch).is_empty());
    commit(store, vec![put("theirs/1", "")]);
    commit(store, vec![put("theirs/2", "")]);
    // It is asleep, and is woken although nothing under its prefix happens.
    while next(&mut watch) != "..3" {}
    commit(store, vec![put("mine/1", "")]);
    assert_eq!(next(&mut watch), "4+mine/1=");
    assert_eq!(next(&mut watch), "..4");
}

fn a_slow_watch_is_dropped_and_can_resume(store: &impl Store) {
    let mut slow = store.watch("a", Revision(1)).expect("watchable");
    let mut other = store.watch("b", Revision(1)).expect("watchable");
    for round in 2..10 {
        commit(store, vec![put("a", format!("{round}"))]);
    }
    assert_eq!(drain(&mut slow), ["2+a=2", "3+a=3", "4+a=4", "5+a=5", "!the watch fell too far behind", "end"]);
    assert_eq!(drain(&mut other), ["..9"]);
    let mut resumed = store.watch("a", Revision(5)).expect("watchable");
    assert_eq!(drain(&mut resumed), ["6+a=6", "7+a=7", "8+a=8", "9+a=9", "..9"]);
}

fn what_was_read_can_be_drained(store: &impl Store) {
    let mut watch = store.watch("", Revision(1)).expect("watchable");
    let mut known = 1;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..300).for_each(|_| drop(commit(store, vec![put("a", "")]))));
        while !writer.is_finished() {
            let read = block_on(store.get("a")).expect("reads cannot fail").1.0;
            for item in drain(&mut watch) {
                let number = item.trim_start_matches("..").split('+').next();
                known = number.and_then(|number| number.parse().ok()).expect("a revision");
                assert!(store.revision().0 >= known, "told of {known} before it can be read");
            }
            assert!(known >= read, "{read} was read, but only {known} can be drained");
        }
    });
}

fn readers_share_entries(store: &impl Store) {
    let mut watch = store.watch("a", Revision(1)).expect("watchable");
    let written = commit(store, vec![put("a", "1")]).1.remove(0).expect("it was put");
    let read = get(store, "a").expect("it is there");
    let listed = block_on(store.range(range("a"))).expect("readable").entries.remove(0);
    let watched = match block_on(futures::StreamExt::next(&mut watch)) {
        Some(Ok(carrack_store::WatchItem::Events(events))) => events[0].current.clone().expect("it was put"),
        other => panic!("{:?}", other.map(|item| words(&item))),
    };
    for other in [read, listed, watched] {
        assert!(Arc::ptr_eq(&written, &other));
    }
}

fn writers_do_not_lose_updates(store: &impl Store) {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 25;
    let mut watch = store.watch("n", Revision(1)).expect("watchable");
    commit(store, vec![put("n", "0")]);
    let increment = || {
        let mut entry = get(store, "n").expect("it is there");
        loop {
            let number: usize = text(&entry).parse().expect("a number");
            let check = Check::Unchanged("n".into(), entry.mod_revision);
            let ops = vec![put("n", (number + 1).to_string())];
            match block_on(store.transact(txn(vec![check], ops))).expect("the store works") {
                TxnOutcome::Committed { .. } => break,
                TxnOutcome::Failed { mut current, .. } => {
                    entry = current.remove(0).expect("it is there");
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| (0..ROUNDS).for_each(|_| increment()));
        }
    });
    let seen: Vec<_> = drain(&mut watch).into_iter().filter(|item| !item.starts_with("..")).collect();
    let expected: Vec<_> = (0..=WRITERS * ROUNDS).map(|number| format!("{}+n={number}", number + 2)).collect();
    assert_eq!(seen, expected);
}
