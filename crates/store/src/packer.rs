//! Packs entries that have come to rest: those whose change hardly a watcher still has to hear of, whether they are still what there
//! is or history alone holds them.
//!
//! A store with a thread for it packs aside, and no faster than this takes a few hundredths of a core, since nothing waits for it:
//! after a start everything is packed so. Only where more wait than ever should does it take what it needs, for who waits takes
//! memory too. Without a thread it is done at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use carrack_pack::Examples;

use crate::model::Entry;

/// After so many bytes of values the thread rests for so long, and the longer the more there were.
const ROUND_BYTES: usize = 256 << 10;
const REST: Duration = Duration::from_millis(20);
/// As many bytes as a short value counts for: it is held against all examples like any other.
const LEAST_BYTES: usize = 4 << 10;
/// When so many wait there is no rest.
const CROWD: usize = 1 << 20;

pub(crate) enum Packer {
    /// In the thread that asks for it.
    AtOnce(Mutex<Examples>),
    /// In its own. What is gone before its turn costs nothing but its place in the queue, and they are counted.
    Aside(Sender<Weak<Entry>>, Arc<AtomicUsize>),
}

impl Packer {
    pub(crate) fn at_once() -> Self {
        Self::AtOnce(Mutex::default())
    }

    /// One with a thread, which ends with it.
    pub(crate) fn aside() -> Self {
        let (entries, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let spawned = std::thread::Builder::new().name("store-packer".into()).spawn(move || run(&queue, &counted));
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread that packs values: they take more memory");
        }
        Self::Aside(entries, waiting)
    }

    pub(crate) fn pack<'a>(&self, entries: impl Iterator<Item = &'a Arc<Entry>>) {
        match self {
            Self::AtOnce(examples) => {
                let mut examples = examples.lock().unwrap_or_else(PoisonError::into_inner);
                entries.for_each(|entry| _ = entry.rest(&mut examples));
            }
            Self::Aside(queue, waiting) => {
                for entry in entries {
                    waiting.fetch_add(1, Ordering::Relaxed);
                    // Where there is no thread nobody takes them, and they stay as they are.
                    if queue.send(Arc::downgrade(entry)).is_err() {
                        return;
                    }
                }
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it waits for nothing: it takes no more of a core than its share")]
fn run(queue: &Receiver<Weak<Entry>>, waiting: &AtomicUsize) {
    let mut examples = Examples::default();
    let mut packed_bytes = 0;
    while let Ok(entry) = queue.recv() {
        let left = waiting.fetch_sub(1, Ordering::Relaxed) - 1;
        let Some(entry) = entry.upgrade() else { continue };
        packed_bytes += pack(&entry, &mut examples);
        drop(entry);
        if packed_bytes >= ROUND_BYTES {
            std::thread::sleep(rest_after(packed_bytes, left));
            packed_bytes = 0;
        }
    }
}

/// Packs an entry. Returns how many bytes that counts for: none where it was packed already. What rested while it was the newest of its
/// key comes once more when it has been replaced, and who deletes very much would wait for as much again.
fn pack(entry: &Entry, examples: &mut Examples) -> usize {
    if entry.rest(examples) { entry.value_len().max(LEAST_BYTES) } else { 0 }
}

/// For how long the thread rests after so many bytes, while so many entries wait.
fn rest_after(packed_bytes: usize, waiting: usize) -> Duration {
    if waiting > CROWD {
        return Duration::ZERO;
    }
    REST * u32::try_from(packed_bytes / ROUND_BYTES).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{HistoryLimits, MemStore};
    use crate::model::{Op, Store as _, Txn, Value};

    fn pod(number: u32) -> Vec<u8> {
        let image = "registry.example.com/of/something/that/is/long/enough:1";
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"resourceVersion\":\"\",\"name\":\"pod-{number}\"}},\
             \"spec\":{{\"containers\":[{{\"image\":\"{image}\",\"name\":\"one\"}},{{\"image\":\"{image}\",\"name\":\"two\"}}]}}}}"
        )
        .into()
    }

    /// How many bytes the store takes for each of ten pods, whose history is kept for three; and that all are as they were put.
    fn held(put: impl Fn(&MemStore, u32)) -> Vec<bool> {
        let store = MemStore::new(HistoryLimits { events: 3, ..HistoryLimits::default() }, 16);
        (0..10).for_each(|number| put(&store, number));
        let entry = |number: u32| {
            let key = format!("/pods/pod-{number}");
            let entry = futures::executor::block_on(store.get(&key)).expect("a store").0.expect("an entry");
            let revision = entry.mod_revision.to_string();
            let text = String::from_utf8(pod(number)).expect("text");
            let stamped = text.replace("\"resourceVersion\":\"\"", &format!("\"resourceVersion\":\"{revision}\""));
            assert_eq!(entry.value(), stamped);
            let mut appended = b"before".to_vec();
            entry.append_to(&mut appended);
            assert_eq!(appended, format!("before{stamped}").into_bytes());
            assert!(stamped[entry.front_len()..].starts_with(&revision));
            entry.held_bytes() * 3 < entry.value_len()
        };
        (0..10).map(entry).collect()
    }

    fn put(store: &MemStore, number: u32) {
        let bytes = pod(number);
        let stamp_at = crate::model::stamp_place(&bytes);
        let value = Value { bytes: bytes.into(), stamp_at };
        let ops = vec![Op::Put(format!("/pods/pod-{number}").into(), value)];
        store.commit(Txn { checks: Vec::new(), ops }).expect("committed");
    }

    #[test]
    fn what_is_long_is_rested_after_for_longer() {
        for (packed_bytes, waiting, rests) in [
            (ROUND_BYTES, 0, 1),
            (ROUND_BYTES + LEAST_BYTES, CROWD, 1),
            (6 * ROUND_BYTES, 9, 6),
            (ROUND_BYTES, CROWD + 1, 0),
        ] {
            assert_eq!(rest_after(packed_bytes, waiting), REST * rests, "{packed_bytes} {waiting}");
        }
    }

    #[test]
    fn what_is_packed_already_counts_for_nothing() {
        use crate::model::Revision;

        let mut examples = Examples::default();
        let entry = |number| Entry::new("/pods/p".into(), pod(number).into(), Revision(2), Revision(2));
        let (example, other) = (entry(1), entry(2));
        let mut count = |entry: &Entry| pack(entry, &mut examples);
        // The first of its kind is what others are packed by, and is packed itself only when it comes again.
        assert_eq!([count(&example), count(&example)], [LEAST_BYTES, LEAST_BYTES]);
        assert_eq!([count(&other), count(&other)], [LEAST_BYTES, 0]);
    }

    #[test]
    fn what_history_has_forgotten_is_packed() {
        let (packed, open) = (true, false);
        // The first is the example.
        assert_eq!(held(put), [open, packed, packed, packed, packed, packed, packed, open, open, open]);
        // What changes again is open again.
        let again = |store: &MemStore, number: u32| {
            put(store, number);
            put(store, 2);
        };
        assert_eq!(held(again), [open, packed, open, packed, packed, packed, packed, packed, packed, open]);
    }

    #[test]
    fn what_was_changed_long_ago_is_packed() {
        let store = MemStore::default();
        // The first is replaced before, and is the example.
        put(&store, 0);
        put(&store, 0);
        put(&store, 1);
        let get = || futures::executor::block_on(store.get("/pods/pod-1")).expect("a store").0.expect("an entry");
        let replaced = get();
        put(&store, 1);
        let newest = get();
        let is_packed = |entry: &crate::model::Entry| entry.held_bytes() < entry.value_len();
        (0..999).for_each(|_| put(&store, 0));
        assert!(!is_packed(&replaced) && !is_packed(&newest), "a watcher may be about to read them");
        put(&store, 0);
        assert!(is_packed(&replaced) && is_packed(&newest));
    }
}
