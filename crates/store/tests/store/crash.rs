//! A process that is killed while it writes, many times.
//!
//! The test runs itself as the victim: it writes from several threads, tells each acknowledgement on
//! its standard output, and is killed when the parent has read some number of them. Afterwards every
//! acknowledged write must be there, each transaction whole or not at all.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use carrack_store::embedded::{EmbeddedStore, Options};
use carrack_store::{Op, Revision, Store, Value};
use futures::executor::block_on;

use crate::help::{commit, delete, get, put, range, text};

const VICTIM_DIR: &str = "CARRACK_STORE_CRASH_DIR";
const WRITERS: usize = 6;
const KILLS: usize = 40;

fn options() -> Options {
    // Small, so that logs are cut and snapshots written all the time.
    Options { log_bytes: 32 << 10, ..Options::default() }
}

/// A value that shows whether it is whole: its number, its revision and a tail that follows from it.
fn value(number: u64) -> Value {
    let head = format!("{number}:");
    let tail = format!(":{}", format!("{number};").repeat(20 + usize::try_from(number % 90).unwrap_or(0)));
    Value { bytes: format!("{head}{tail}").into(), stamp_at: Some(head.len()) }
}

/// The number in a value; panics if the value is not whole.
fn number(entry: &carrack_store::Entry) -> u64 {
    let text = text(entry);
    let number = text.split(':').next().and_then(|n| n.parse().ok());
    let number: u64 = number.unwrap_or_else(|| panic!("no number in {text}"));
    let Value { bytes, stamp_at } = value(number);
    let at = stamp_at.unwrap_or_default();
    let bytes = String::from_utf8_lossy(&bytes);
    assert_eq!(text, format!("{}{}{}", &bytes[..at], entry.mod_revision, &bytes[at..]));
    number
}

/// The writing process. Without its directory it is not a test but part of the next one.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    let store = EmbeddedStore::open(Path::new(&dir), options()).expect("it opens after a crash");
    println!();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                let last = get(store, &format!("pair/{writer}/a"));
                let mut number = last.map_or(0, |entry| number(&entry));
                loop {
                    number += 1;
                    let pair = ["a", "b"].map(|half| format!("pair/{writer}/{half}"));
                    let mut ops: Vec<Op> = pair.iter().map(|key| Op::Put((&**key).into(), value(number))).collect();
                    ops.push(put(&format!("each/{writer}/{number:09}"), ""));
                    // What is old goes, so that deletions are among it too.
                    ops.push(delete(&format!("each/{writer}/{:09}", number.saturating_sub(500))));
                    let (Revision(revision), _) = commit(store, ops);
                    let ack = format!("ack {writer} {number} {revision}\n");
                    if std::io::stdout().lock().write_all(ack.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let myself = std::env::current_exe().expect("the test has a path");
    let mut acked: BTreeMap<usize, u64> = BTreeMap::new();
    let mut newest = 0;
    for round in 0..KILLS {
        let mut child = Command::new(&myself)
            .args(["--exact", "crash::victim", "--nocapture", "--test-threads=1"])
            .env(VICTIM_DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs itself");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        // A spread of moments; each falls wherever the writer and the snapshots happen to be.
        let mut acks_to_go = round * 37 % 230;
        let mut killed = false;
        for line in lines {
            let line = line.expect("readable");
            let Some(ack) = line.strip_prefix("ack ") else { continue };
            let fields: Vec<u64> = ack.split(' ').filter_map(|f| f.parse().ok()).collect();
            // A line is one short write to a pipe, so not even a kill cuts it.
            let [writer, number, revision] = fields[..] else { panic!("what is {line:?}?") };
            let writer = usize::try_from(writer).expect("small");
            acked.insert(writer, number);
            newest = newest.max(revision);
            if acks_to_go == 0 && !killed {
                child.kill().expect("it can be killed");
                killed = true;
            }
            acks_to_go = acks_to_go.saturating_sub(1);
        }
        child.wait().expect("it has ended");
        assert!(killed, "round {round}: the victim ended by itself");
        // What was durable before it was told counts as told from here on: a reader has seen it.
        acked = verify(dir.path(), &acked, newest);
    }
    assert_eq!(acked.len(), WRITERS);
}

/// Opens what the victim left, and returns the last write of each writer.
fn verify(dir: &Path, acked: &BTreeMap<usize, u64>, newest: u64) -> BTreeMap<usize, u64> {
    let store = EmbeddedStore::open(dir, options()).expect("it opens after a crash");
    assert!(store.revision().0 >= newest, "{} < {newest}", store.revision());
    let mut durable = BTreeMap::new();
    for (writer, acked) in acked {
        let pair = ["a", "b"].map(|half| {
            let entry = get(&store, &format!("pair/{writer}/{half}")).expect("acknowledged");
            (number(&entry), entry.mod_revision)
        });
        assert_eq!(pair[0], pair[1], "half a transaction");
        let last = pair[0].0;
        // One more may have been durable before anybody was told.
        assert!(last == *acked || last == acked + 1, "writer {writer}: {last}, acked {acked}");
        let each = block_on(store.range(range(&format!("each/{writer}/")))).expect("readable");
        let found: Vec<u64> =
            each.entries.iter().filter_map(|entry| entry.key.rsplit('/').next()?.parse().ok()).collect();
        let expected: Vec<u64> = (last.saturating_sub(499).max(1)..=last).collect();
        assert_eq!(found, expected, "writer {writer}");
        durable.insert(*writer, last);
    }
    durable
}
