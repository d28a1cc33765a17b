//! Packs entries that have come to rest: those whose change hardly a watcher still has to hear of, whether they are still what there
//! is or history alone holds them.
//!
//! A store with a thread for it packs aside, at a low priority: where requests want the core they have most of it. Nor does it take
//! more than a few hundredths of a core where there is room, since nothing waits for it: after a start everything is packed
//! so. What comes to rest meanwhile goes first, and the more of it waits the less the thread rests: much is written or deleted then,
//! and until it is packed history holds it in full. Without a thread it is done at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use carrack_pack::Examples;

use crate::model::Entry;

/// After so many bytes of values the thread rests for so long while nothing waits that came to rest just now, and the longer the more
/// there were.
const ROUND_BYTES: usize = 256 << 10;
const REST: Duration = Duration::from_millis(20);
/// As many bytes as a short value counts for: it is held against all examples like any other.
const LEAST_BYTES: usize = 4 << 10;
/// When so many wait that came to rest just now there is no rest: of pods, as many as take 4 MB.
const CROWD: u32 = 512;
/// By how much the thread is nicer than the process: where all cores are wanted it has about a fifth of one. With much less, history
/// would fill with what waits just while most is written.
const NICER: i32 = 5;

pub(crate) enum Packer {
    /// In the thread that asks for it.
    AtOnce(Mutex<Examples>),
    /// In its own. What is gone before its turn costs nothing but its place in the queue. How many wait that came to rest just now is
    /// counted.
    Aside(Sender<Waiting>, Arc<AtomicUsize>),
}

/// What is to be packed.
pub(crate) enum Waiting {
    /// What came to rest just now.
    Rested(Weak<Entry>),
    /// All that was there at a start; what was found before is gone.
    Found(Vec<Weak<Entry>>),
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

    /// Packs what has come to rest just now.
    pub(crate) fn pack_rested<'a>(&self, entries: impl Iterator<Item = &'a Arc<Entry>>) {
        match self {
            Self::AtOnce(examples) => pack_all(examples, entries),
            Self::Aside(queue, waiting) => {
                for entry in entries {
                    waiting.fetch_add(1, Ordering::Relaxed);
                    // Where there is no thread nobody takes them, and they stay as they are.
                    if queue.send(Waiting::Rested(Arc::downgrade(entry))).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Packs all that is there at a start. It is not urgent.
    pub(crate) fn pack_found<'a>(&self, entries: impl Iterator<Item = &'a Arc<Entry>>) {
        match self {
            Self::AtOnce(examples) => pack_all(examples, entries),
            Self::Aside(queue, _) => {
                if queue.send(Waiting::Found(entries.map(Arc::downgrade).collect())).is_err() {
                    tracing::trace!("there is no thread that packs values");
                }
            }
        }
    }
}

fn pack_all<'a>(examples: &Mutex<Examples>, entries: impl Iterator<Item = &'a Arc<Entry>>) {
    let mut examples = examples.lock().unwrap_or_else(PoisonError::into_inner);
    entries.for_each(|entry| _ = entry.rest(&mut examples));
}

#[expect(clippy::disallowed_methods, reason = "it waits for nothing: it takes no more of a core than its share")]
fn run(queue: &Receiver<Waiting>, waiting: &AtomicUsize) {
    give_way();
    let mut examples = Examples::default();
    let mut found = Vec::new();
    let mut packed_bytes = 0;
    while let Some(entry) = next(queue, &mut found, waiting) {
        let Some(entry) = entry.upgrade() else { continue };
        packed_bytes += pack(&entry, &mut examples);
        drop(entry);
        if packed_bytes >= ROUND_BYTES {
            std::thread::sleep(rest_after(packed_bytes, waiting.load(Ordering::Relaxed)));
            packed_bytes = 0;
        }
    }
}

/// From now on this thread has less of a core than others that want it.
fn give_way() {
    if let Err(error) = rustix::process::nice(NICER) {
        tracing::debug!(%error, "values are packed at the priority of requests");
    }
}

/// What is packed next: first what came to rest just now. None: nothing will come any more.
fn next(queue: &Receiver<Waiting>, found: &mut Vec<Weak<Entry>>, waiting: &AtomicUsize) -> Option<Weak<Entry>> {
    loop {
        let more = if found.is_empty() {
            // Its room goes with what was in it.
            *found = Vec::new();
            queue.recv().ok()?
        } else {
            match queue.try_recv() {
                Ok(more) => more,
                Err(TryRecvError::Empty) => return found.pop(),
                Err(TryRecvError::Disconnected) => return None,
            }
        };
        match more {
            Waiting::Rested(entry) => {
                waiting.fetch_sub(1, Ordering::Relaxed);
                return Some(entry);
            }
            Waiting::Found(entries) => *found = entries,
        }
    }
}

/// Packs an entry. Returns how many bytes that counts for: none where it was packed already. What rested while it was the newest of its
/// key comes once more when it has been replaced, and who deletes very much would wait for as much again.
fn pack(entry: &Entry, examples: &mut Examples) -> usize {
    if entry.rest(examples) { entry.value_len().max(LEAST_BYTES) } else { 0 }
}

/// For how long the thread rests after so many bytes, while so many entries wait that came to rest just now.
fn rest_after(packed_bytes: usize, waiting: usize) -> Duration {
    let calm = CROWD.saturating_sub(u32::try_from(waiting).unwrap_or(u32::MAX));
    let rounds = u32::try_from(packed_bytes / ROUND_BYTES).unwrap_or(u32::MAX);
    REST * rounds * calm / CROWD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{HistoryLimits, MemStore};
    use crate::model::{Op, Revision, Store as _, Txn, Value};

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
    fn what_is_long_is_rested_after_for_longer_and_less_where_much_waits() {
        for (packed_bytes, waiting, quarters) in [
            (ROUND_BYTES, 0, 4),
            (ROUND_BYTES + LEAST_BYTES, 0, 4),
            (6 * ROUND_BYTES, 0, 24),
            (ROUND_BYTES, 128, 3),
            (2 * ROUND_BYTES, 384, 2),
            (ROUND_BYTES, 512, 0),
            (9 * ROUND_BYTES, usize::MAX, 0),
        ] {
            assert_eq!(rest_after(packed_bytes, waiting), REST / 4 * quarters, "{packed_bytes} {waiting}");
        }
    }

    #[test]
    fn what_came_to_rest_just_now_goes_before_what_was_found() {
        let entry = |number: u64| Arc::new(Entry::new("/k".into(), "v".into(), Revision(number), Revision(number)));
        let entries: Vec<Arc<Entry>> = (0..6).map(entry).collect();
        let (sender, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let packer = Packer::Aside(sender, Arc::clone(&waiting));
        let mut found = Vec::new();
        let mut taken = |count: usize| -> Vec<u64> {
            let mut take = || next(&queue, &mut found, &waiting).and_then(|entry| entry.upgrade());
            (0..count).map_while(|_| take()).map(|entry| entry.mod_revision.0).collect()
        };
        packer.pack_found(entries[..3].iter());
        packer.pack_rested(entries[3..4].iter());
        assert_eq!(taken(2), [3, 2]);
        packer.pack_rested(entries[4..].iter());
        assert_eq!(waiting.load(Ordering::Relaxed), 2);
        assert_eq!(taken(3), [4, 5, 1]);
        // All is read anew: what is left of before is not looked for.
        packer.pack_found(entries[5..].iter());
        assert_eq!(taken(1), [5]);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
        drop(packer);
        assert!(taken(1).is_empty());
    }

    #[test]
    fn the_thread_that_packs_alone_gives_way() {
        let own = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).expect("a priority");
        let before = own();
        let given = std::thread::spawn(move || {
            give_way();
            own()
        });
        // Less than 19 there is not.
        assert_eq!(given.join().expect("a thread"), (before + NICER).min(19));
        assert_eq!(own(), before);
    }

    #[test]
    fn what_is_packed_already_counts_for_nothing() {
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
        let derived = |entry: &crate::model::Entry| {
            let made = std::cell::Cell::new(false);
            drop(entry.memo.get_or_make(|| {
                made.set(true);
                Arc::new(())
            }));
            made.get()
        };
        assert!(derived(&replaced) && derived(&newest), "nobody has asked before");
        (0..999).for_each(|_| put(&store, 0));
        assert!(!is_packed(&replaced) && !is_packed(&newest), "a watcher may be about to read them");
        assert!(!derived(&replaced) && !derived(&newest), "what was derived is kept as long");
        put(&store, 0);
        assert!(is_packed(&replaced) && is_packed(&newest));
        assert!(derived(&replaced) && derived(&newest), "it was forgotten");
        assert!(!derived(&replaced), "and is kept again");
    }
}
