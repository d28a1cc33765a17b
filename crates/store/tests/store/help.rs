//! Short ways to say what the tests need.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use carrack_store::{
    Check, Entry, Event, Op, Range, Revision, Store, StoreError, Txn, TxnOutcome, Value, Watch, WatchItem,
};
use futures::StreamExt;
use futures::executor::block_on;

pub fn value(text: impl Into<Vec<u8>>) -> Value {
    Value { bytes: text.into().into(), stamp_at: None }
}

/// A value that gets its revision between these two.
pub fn stamped(front: &str, back: &str) -> Value {
    Value { bytes: format!("{front}{back}").into(), stamp_at: Some(front.len()) }
}

pub fn put(key: &str, text: impl Into<Vec<u8>>) -> Op {
    Op::Put(key.into(), value(text))
}

pub fn delete(key: &str) -> Op {
    Op::Delete(key.into())
}

pub fn txn(checks: Vec<Check>, ops: Vec<Op>) -> Txn {
    Txn { checks, ops }
}

/// Commits changes that have no preconditions.
pub fn commit(store: &impl Store, ops: Vec<Op>) -> (Revision, Vec<Option<Arc<Entry>>>) {
    match block_on(store.transact(txn(vec![], ops))) {
        Ok(TxnOutcome::Committed { revision, entries }) => (revision, entries),
        other => panic!("not committed: {other:?}"),
    }
}

pub fn get(store: &impl Store, key: &str) -> Option<Arc<Entry>> {
    block_on(store.get(key)).expect("reads cannot fail").0
}

pub fn text(entry: &Entry) -> String {
    String::from_utf8_lossy(&entry.value()).into_owned()
}

pub fn range(prefix: &str) -> Range {
    Range { prefix: prefix.into(), after: None, limit: 0, at: None }
}

/// The keys of a range, and how many remain.
pub fn keys(store: &impl Store, range: Range) -> (Vec<String>, usize) {
    let page = block_on(store.range(range)).expect("the range is readable");
    (page.entries.iter().map(|entry| entry.key.to_string()).collect(), page.remaining)
}

/// Each event in words: `revision+key=value` or `revision-key`.
pub fn words(item: &Result<WatchItem, StoreError>) -> Vec<String> {
    let event = |event: &Event| match (&event.current, &event.previous) {
        (Some(entry), _) => format!("{}+{}={}", event.revision, entry.key, text(entry)),
        (None, Some(entry)) => format!("{}-{}", event.revision, entry.key),
        (None, None) => "nothing".to_owned(),
    };
    match item {
        Ok(WatchItem::Events(events)) => events.iter().map(event).collect(),
        Ok(WatchItem::Progress(revision)) => vec![format!("..{revision}")],
        Err(error) => vec![format!("!{error}")],
    }
}

/// What a watch yields without waiting.
pub fn drain(watch: &mut Watch) -> Vec<String> {
    let mut items = Vec::new();
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(item) = watch.as_mut().poll_next(&mut cx) {
        let Some(item) = item else {
            items.push("end".to_owned());
            return items;
        };
        items.extend(words(&item));
    }
    items
}

/// Waits for the next item of a watch.
pub fn next(watch: &mut Watch) -> String {
    block_on(watch.next()).map_or("end".to_owned(), |item| words(&item).join(" "))
}
