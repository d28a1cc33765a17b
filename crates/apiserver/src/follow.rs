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
        let mut wanted = store.revision();
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                // Between two writes, whoever asks finds it settled. One that was settled further on may be of before the store was
                // put back to an older state.
                if !state.watches.is_empty() && (state.settled == wanted || state.drain(wanted)) {
                    state.settled = state.settled.max(wanted);
                    return Ok(read(&mut state.value));
                }
                state.watches.clear();
                state.settled = Revision(0);
            }
            let mut lists = Vec::new();
            for prefix in &self.prefixes {
                let range = Range { prefix: prefix.clone(), after: None, limit: 0, at: None };
                let page = store.range(range).await?;
                // What is wanted may be there no more, if the store was put back meanwhile.
                wanted = wanted.min(page.revision);
                lists.push(page);
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use carrack_store::{MemStore, Op, RangePage, StoreFuture, Txn, Value};
    use futures::future::join;
    use futures::stream;

    use super::*;

    /// A store that takes its time to read a range.
    struct Slow<S>(S);

    impl<S: Store> carrack_store::Layer for Slow<S> {
        fn below(&self) -> &dyn Store {
            &self.0
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
    }

    /// A store that is put back to another state, with which its watches end: etcd after a restore.
    #[derive(Default)]
    struct Restored {
        before: MemStore,
        after: MemStore,
        is_restored: Arc<AtomicBool>,
    }

    impl Restored {
        fn present(&self) -> &MemStore {
            if self.is_restored.load(Ordering::Relaxed) { &self.after } else { &self.before }
        }
    }

    impl carrack_store::Layer for Restored {
        fn below(&self) -> &dyn Store {
            self.present()
        }
        fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
            let (mut watch, is_restored) = (self.present().watch(prefix, after)?, Arc::clone(&self.is_restored));
            let was_restored = is_restored.load(Ordering::Relaxed);
            Ok(Box::pin(stream::poll_fn(move |cx| {
                let goes_on = is_restored.load(Ordering::Relaxed) == was_restored;
                if goes_on { Pin::as_mut(&mut watch).poll_next(cx) } else { Poll::Ready(None) }
            })))
        }
    }

    fn put(store: &MemStore, key: &str) {
        let op = Op::Put(key.into(), Value { bytes: "{}".into(), stamp_at: None });
        store.commit(Txn { checks: Vec::new(), ops: vec![op] }).expect("stored");
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
        let (store, follower) = (Slow(MemStore::default()), Follower::new(vec!["/a/".to_owned()], Folded::default()));
        put(&store.0, "/a/1");
        let mut cx = Context::from_waker(Waker::noop());
        let mut all = pin!(join(follower.with(&store, |folded| *folded), follower.with(&store, |folded| *folded)));
        assert!(all.as_mut().poll(&mut cx).is_pending(), "both list");
        let Poll::Ready((one, other)) = all.as_mut().poll(&mut cx) else { panic!("there is nothing more to wait for") };
        let want = Folded { times: 1, entries: 1 };
        assert_eq!((one.expect("read"), other.expect("read")), (want, want));
        // Who comes later reads on.
        put(&store.0, "/a/2");
        let later = pin!(follower.with(&store, |folded| *folded)).poll(&mut cx);
        assert!(matches!(later, Poll::Ready(Ok(Folded { times: 1, entries: 2 }))), "{later:?}");
    }

    /// What was folded of a later state says nothing, and nobody waits for a revision that is there no more.
    #[test]
    fn a_store_may_be_put_back() {
        let follower = || Follower::new(vec!["/a/".to_owned()], Folded::default());
        let (store, known, new) = (Slow(Restored::default()), follower(), follower());
        for key in ["/a/1", "/a/2", "/a/3"] {
            put(&store.0.before, key);
        }
        put(&store.0.after, "/a/1");
        let mut cx = Context::from_waker(Waker::noop());
        let mut before = pin!(known.with(&store, |folded| *folded));
        assert!(before.as_mut().poll(&mut cx).is_pending(), "it lists");
        let first = before.as_mut().poll(&mut cx);
        assert!(matches!(first, Poll::Ready(Ok(Folded { times: 1, entries: 3 }))), "{first:?}");
        let mut meanwhile = pin!(new.with(&store, |folded| *folded));
        assert!(meanwhile.as_mut().poll(&mut cx).is_pending(), "it lists");
        store.0.is_restored.store(true, Ordering::Relaxed);
        let there = meanwhile.as_mut().poll(&mut cx);
        assert!(matches!(there, Poll::Ready(Ok(Folded { times: 1, entries: 1 }))), "{there:?}");
        let mut since = pin!(known.with(&store, |folded| *folded));
        assert!(since.as_mut().poll(&mut cx).is_pending(), "it lists anew");
        let second = since.as_mut().poll(&mut cx);
        assert!(matches!(second, Poll::Ready(Ok(Folded { times: 2, entries: 1 }))), "{second:?}");
    }
}
