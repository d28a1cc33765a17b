//! Packs entries that have come to rest: whose change history has forgotten, while they are still what there is.
//!
//! A store with a thread for it packs aside, and no faster than this takes a few hundredths of a core, since nothing waits for it:
//! after a start everything is packed so. Without one it is done at once.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::model::Entry;
use crate::pack::Examples;

/// After so many entries the thread rests.
const ROUND: usize = 64;
const REST: Duration = Duration::from_millis(20);

pub(crate) enum Packer {
    /// In the thread that asks for it.
    AtOnce(Mutex<Examples>),
    /// In its own. What is gone before its turn costs nothing.
    Aside(Sender<Weak<Entry>>),
}

impl Packer {
    pub(crate) fn at_once() -> Self {
        Self::AtOnce(Mutex::default())
    }

    /// One with a thread, which ends with it.
    pub(crate) fn aside() -> Self {
        let (entries, queue) = channel();
        let spawned = std::thread::Builder::new().name("store-packer".into()).spawn(move || run(&queue));
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread that packs values: they take more memory");
        }
        Self::Aside(entries)
    }

    pub(crate) fn pack<'a>(&self, entries: impl Iterator<Item = &'a Arc<Entry>>) {
        match self {
            Self::AtOnce(examples) => {
                let mut examples = examples.lock().unwrap_or_else(PoisonError::into_inner);
                entries.for_each(|entry| entry.rest(&mut examples));
            }
            // Where there is no thread nobody takes them, and they stay as they are.
            Self::Aside(queue) => drop(entries.map(Arc::downgrade).try_for_each(|entry| queue.send(entry))),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it waits for nothing: it takes no more of a core than its share")]
fn run(queue: &Receiver<Weak<Entry>>) {
    let mut examples = Examples::default();
    let mut packed = 0;
    while let Ok(entry) = queue.recv() {
        let Some(entry) = entry.upgrade() else { continue };
        entry.rest(&mut examples);
        packed += 1;
        if packed == ROUND {
            packed = 0;
            std::thread::sleep(REST);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
