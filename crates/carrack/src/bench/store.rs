#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! How many writes a second the embedded store makes durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use carrack_store::embedded::Options;
use carrack_store::{Check, EmbeddedStore, Op, Store as _, Txn, Value};
use tokio::task::JoinSet;

use super::scratch::Scratch;

const WRITERS: usize = 64;
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;

/// The size of a small object, in bytes.
const OBJECT_BYTES: usize = 1024;

/// Writes for some rounds; the rate of each.
///
/// # Errors
/// The store cannot be opened or written.
pub async fn writes_per_s() -> anyhow::Result<Vec<f64>> {
    let dir = Scratch::new("store")?;
    let opened = EmbeddedStore::open(dir.path(), Options::default()).context("cannot open a store for measuring")?;
    let store = Arc::new(opened);
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let began = Instant::now();
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write(store.clone(), format!("/bench/{round}/{writer}/"), began + ROUND));
        }
        let counts: anyhow::Result<Vec<u32>> = writers.join_all().await.into_iter().collect();
        rates.push(f64::from(counts?.iter().sum::<u32>()) / began.elapsed().as_secs_f64());
    }
    Ok(rates)
}

async fn write(store: Arc<EmbeddedStore>, prefix: String, until: Instant) -> anyhow::Result<u32> {
    let mut count = 0;
    while Instant::now() < until {
        let key: Arc<str> = format!("{prefix}{count}").into();
        let value = Value { bytes: vec![b'x'; OBJECT_BYTES].into(), stamp_at: None };
        let txn = Txn { checks: vec![Check::Absent(key.clone())], ops: vec![Op::Put(key, value)] };
        store.transact(txn).await.context("a write failed")?;
        count += 1;
    }
    Ok(count)
}
