//! Indexes that follow a prefix of the store: the catalog of custom resources, the RBAC index.
//!
//! A follower keeps a watch and folds what it has yielded into a value whenever somebody asks, up
//! to the store's revision at that moment. So a request sees every change that was acknowledged
//! before it came, with no task in the background. A watch that broke is replaced by a new list: many may make one then, as when
//! a server starts, but only the first of these is folded.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use carrack_store::{Entry, Range, Revision, Store, StoreError, Watch, WatchItem};

/// A value made of the entries under some prefixes.
pub(crate) trait Fold: Send {
    /// Forgets everything; a full list follows.
    fn clear(&mut self);
    /// An entry came or changed (`Some`), or went.
    fn apply(&mut self, key: &str, entry: Option<&Entry>);
    /// All changes that were to be had have been applied.
    fn settle(&mut self) {}
}

pub(crate) struct Follower<T> {
    prefixes: Vec<String>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: T,
    /// One for each prefix; empty when a list is needed.
    watches: Vec<(Watch, Revision)>,
    /// The value has everything up to this revision.
    settled: Revision,
}

impl<T: Fold> Follower<T> {
    pub(crate) fn new(prefixes: Vec<String>, value: T) -> Self {
        Follower { prefixes, state: Mutex::new(State { value, watches: Vec::new(), settled: Revision(0) }) }
    }

    /// Hands the value, brought up to the store's present revision, to `read`.
    pub(crate) async fn with<R>(&self, store: &dyn Store, read: impl FnOnce(&mut T) -> R) -> Result<R, StoreError> {
        let wanted = store.revision();
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                // Between two writes, whoever asks finds it settled.
                if !state.watches.is_empty() && (state.settled >= wanted || state.drain(wanted)) {
                    state.settled = state.settled.max(wanted);
                    return Ok(read(&mut state.value));
                }
                state.watches.clear();
                state.settled = Revision(0);
            }
            let mut lists = Vec::new();
            for prefix in &self.prefixes {
                let range = Range { prefix: prefix.clone(), after: None, limit: 0, at: None };
                lists.push(store.range(range).await?);
            }
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Somebody else was faster, and what is still missing there its watches tell. To fold all anew takes its time, and
            // everybody else waits for each who does so.
            if !state.watches.is_empty() {
                continue;
            }
            state.value.clear();
            let mut watches = Vec::new();
            for (prefix, page) in self.prefixes.iter().zip(lists) {
                for entry in &page.entries {
                    state.value.apply(&entry.key, Some(entry));
                }
                watches.push((store.watch(prefix, page.revision)?, page.revision));
            }
            state.value.settle();
            state.watches = watches;
        }
    }
}

impl<T> Follower<T> {
    /// Hands the value to `read` as it is, without a look at the store, which may be further on or not to be had.
    pub(crate) fn at_hand<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.state.lock().unwrap_or_else(PoisonError::into_inner).value)
    }
}

impl<T: Fold> State<T> {
    /// Applies what is there; false when a watch has ended or does not know all up to `wanted`.
    fn drain(&mut self, wanted: Revision) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let mut changed = false;
        let mut complete = true;
        for (watch, known) in &mut self.watches {
            loop {
                match Pin::as_mut(watch).poll_next(&mut cx) {
                    Poll::Ready(Some(Ok(WatchItem::Events(events)))) => {
                        for event in &**events {
                            if let Some(entry) = event.current.as_ref().or(event.previous.as_ref()) {
                                self.value.apply(&entry.key, event.current.as_deref());
                                changed = true;
                            }
                            *known = event.revision;
                        }
                    }
                    Poll::Ready(Some(Ok(WatchItem::Progress(revision)))) => *known = revision,
                    Poll::Ready(Some(Err(_)) | None) => {
                        complete = false;
                        break;
                    }
                    Poll::Pending => {
                        complete &= *known >= wanted;
                        break;
                    }
                }
            }
        }
        if changed {
            self.value.settle();
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use carrack_store::{MemStore, Op, RangePage, StoreFuture, Txn, TxnOutcome, Value};
    use futures::future::join;

    use super::*;

    /// A store that takes its time to read a range.
    #[derive(Default)]
    struct Slow(MemStore);

    impl Store for Slow {
        fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
            self.0.transact(txn)
        }
        fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)> {
            self.0.get(key)
        }
        fn range(&self, range: Range) -> StoreFuture<'_, RangePage> {
            Box::pin(async move {
                let mut was_asked = false;
                let once = |_: &mut Context<'_>| {
                    if std::mem::replace(&mut was_asked, true) { Poll::Ready(()) } else { Poll::Pending }
                };
                std::future::poll_fn(once).await;
                self.0.range(range).await
            })
        }
        fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
            self.0.watch(prefix, after)
        }
        fn revision(&self) -> Revision {
            self.0.revision()
        }
        fn compact(&self, revision: Revision) -> StoreFuture<'_, ()> {
            self.0.compact(revision)
        }
    }

    /// Counts how often all was folded, and what.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Folded {
        times: usize,
        entries: usize,
    }

    impl Fold for Folded {
        fn clear(&mut self) {
            *self = Folded { times: self.times + 1, entries: 0 };
        }
        fn apply(&mut self, _: &str, _: Option<&Entry>) {
            self.entries += 1;
        }
    }

    #[test]
    fn of_those_who_list_at_a_time_one_folds() {
        let (store, follower) = (Slow::default(), Follower::new(vec!["/a/".to_owned()], Folded::default()));
        let put = |key: &str| {
            let op = Op::Put(key.into(), Value { bytes: "{}".into(), stamp_at: None });
            store.0.commit(Txn { checks: Vec::new(), ops: vec![op] }).expect("stored");
        };
        put("/a/1");
        let mut cx = Context::from_waker(Waker::noop());
        let mut all = pin!(join(follower.with(&store, |folded| *folded), follower.with(&store, |folded| *folded)));
        assert!(all.as_mut().poll(&mut cx).is_pending(), "both list");
        let Poll::Ready((one, other)) = all.as_mut().poll(&mut cx) else { panic!("there is nothing more to wait for") };
        let want = Folded { times: 1, entries: 1 };
        assert_eq!((one.expect("read"), other.expect("read")), (want, want));
        // Who comes later reads on.
        put("/a/2");
        let later = pin!(follower.with(&store, |folded| *folded)).poll(&mut cx);
        assert!(matches!(later, Poll::Ready(Ok(Folded { times: 1, entries: 2 }))), "{later:?}");
    }
}
