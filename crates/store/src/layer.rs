//! Stores on top of another one: they count, hold up or refuse what goes through them, and pass on all else.

use std::sync::Arc;

use crate::model::{Entry, Range, RangePage, Revision, Store, StoreError, StoreFuture, Txn, TxnOutcome, Watch};

/// A [`Store`] that does some of what it is asked in its own way, and has the one below do the rest. Whatever a store can be
/// asked is passed on, unless it is said here how.
#[expect(missing_docs, reason = "they are those of a store")]
#[expect(clippy::missing_errors_doc, reason = "they are those of a store")]
pub trait Layer: Send + Sync + 'static {
    /// The store that has what this one shows.
    fn below(&self) -> &dyn Store;
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        self.below().transact(txn)
    }
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)> {
        self.below().get(key)
    }
    fn range(&self, range: Range) -> StoreFuture<'_, RangePage> {
        self.below().range(range)
    }
    fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        self.below().watch(prefix, after)
    }
    fn health(&self) -> StoreFuture<'_, ()> {
        self.below().health()
    }
}

impl<T: Layer> Store for T {
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        Layer::transact(self, txn)
    }
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)> {
        Layer::get(self, key)
    }
    fn range(&self, range: Range) -> StoreFuture<'_, RangePage> {
        Layer::range(self, range)
    }
    fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        Layer::watch(self, prefix, after)
    }
    fn revision(&self) -> Revision {
        self.below().revision()
    }
    fn sync(&self) -> StoreFuture<'_, Revision> {
        self.below().sync()
    }
    fn fault(&self) -> Option<StoreError> {
        self.below().fault()
    }
    fn health(&self) -> StoreFuture<'_, ()> {
        Layer::health(self)
    }
    fn size_bytes(&self) -> Option<u64> {
        self.below().size_bytes()
    }
    fn compact(&self, revision: Revision) -> StoreFuture<'_, ()> {
        self.below().compact(revision)
    }
}
