//! Many who change the same key: nobody is the last for ever.

use std::sync::Arc;

use carrack_store::embedded::{EmbeddedStore, Options};
use carrack_store::{Check, Store, TxnOutcome};
use futures::StreamExt;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;

use crate::help::{commit, put, txn};

const KEY: &str = "k";
const RIVALS: usize = 8;
const WINS: usize = 50;

/// Wins so often against the others; returns how often it lost in a row at worst.
async fn rival(store: &EmbeddedStore) -> usize {
    let (mut wins, mut losses, mut worst) = (0, 0, 0);
    while wins < WINS {
        let entry = store.get(KEY).await.expect("reads cannot fail").0.expect("it is there");
        let check = Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision);
        match store.transact(txn(vec![check], vec![put(KEY, "1")])).await.expect("the store takes it") {
            TxnOutcome::Committed { .. } => (wins, losses) = (wins + 1, 0),
            TxnOutcome::Failed { .. } => losses += 1,
        }
        worst = worst.max(losses);
    }
    worst
}

#[test]
fn who_loses_has_its_turn() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(dir.path(), Options::default()).expect("a new store opens");
    commit(&store, vec![put(KEY, "0")]);
    // Polled in the order in which they are woken, as one thread of a runtime does it.
    let rivals: FuturesUnordered<_> = (0..RIVALS).map(|_| rival(&store)).collect();
    let worst = block_on(rivals.collect::<Vec<_>>());
    assert!(worst.iter().all(|losses| *losses < WINS), "lost in a row: {worst:?}");
}
