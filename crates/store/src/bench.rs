//! What a store costs on this machine: acknowledged writes with their real flushes, and watches.
//!
//! Latencies are from handing in a transaction to its acknowledgement. All writers run on one
//! thread, as the API server's requests run on few.

#![expect(clippy::disallowed_methods, reason = "shell: it measures time")]

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;

use crate::embedded::{EmbeddedStore, OpenError, Options};
use crate::model::{Op, Store, StoreError, Txn, Value, Watch, WatchItem};

/// What is measured with.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of each value; a small pod has about 2 KB.
    pub value_bytes: usize,
    /// How long each number of writers writes.
    pub duration: Duration,
    /// How many watchers the fan-out has.
    pub watchers: usize,
    /// How many events each of them gets.
    pub events: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { value_bytes: 2048, duration: Duration::from_secs(3), watchers: 1000, events: 200 }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Report {
    /// With one writer, and with many.
    pub writes: Vec<Writes>,
    /// Watchers of one prefix.
    pub fan_out: FanOut,
    /// How long it took to open the store that all this left behind.
    pub reopen_ms: f64,
}

/// Acknowledged writes.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    /// How many writers there were, each with one write in flight.
    pub writers: usize,
    /// Acknowledged writes each second.
    pub writes_per_s: f64,
    /// Median latency.
    pub p50_us: u64,
    /// 99th percentile of the latency.
    pub p99_us: u64,
}

/// One stream of changes, many watchers.
#[derive(Clone, Copy, Debug)]
pub struct FanOut {
    /// How many watchers got each event.
    pub watchers: usize,
    /// Events delivered each second, over all watchers, the writes included.
    pub deliveries_per_s: f64,
    /// Reading alone: how long one delivery takes.
    pub delivery_ns: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for writes in &self.writes {
            writeln!(
                f,
                "{:>4} writers: {:>8.0} writes/s, ack p50 {} us, p99 {} us",
                writes.writers, writes.writes_per_s, writes.p50_us, writes.p99_us
            )?;
        }
        let FanOut { watchers, deliveries_per_s, delivery_ns } = self.fan_out;
        writeln!(
            f,
            "{watchers:>4} watchers: {deliveries_per_s:>7.0} events/s delivered while writing, {delivery_ns:.0} ns each to read"
        )?;
        write!(f, "reopened in {:.1} ms", self.reopen_ms)
    }
}

/// Why nothing came out.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The store could not be opened.
    #[error("cannot open a store to measure")]
    Open(#[from] OpenError),
    /// The store failed meanwhile.
    #[error("the store failed while it was measured")]
    Store(#[from] StoreError),
}

/// Measures a new store in a directory, which should be empty and on the disk in question.
///
/// # Errors
/// See [`BenchError`].
pub fn run(dir: &Path, load: &Load) -> Result<Report, BenchError> {
    let store = EmbeddedStore::open(dir, Options::default())?;
    let mut writes = Vec::new();
    for writers in [1, 64] {
        writes.push(block_on(write(&store, writers, load))?);
    }
    let fan_out = block_on(fan_out(&store, load))?;
    drop(store);
    let started = Instant::now();
    drop(EmbeddedStore::open(dir, Options::default())?);
    let reopen_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(Report { writes, fan_out, reopen_ms })
}

async fn write(store: &EmbeddedStore, writers: usize, load: &Load) -> Result<Writes, StoreError> {
    let started = Instant::now();
    let mut latencies_us = Vec::new();
    let one = |writer: usize| async move {
        let mut latencies_us = Vec::new();
        while started.elapsed() < load.duration {
            let key = format!("bench/{writer}/{}", latencies_us.len() % 16);
            let begun = Instant::now();
            store.transact(put(&key, load.value_bytes)).await?;
            latencies_us.push(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        Ok::<_, StoreError>(latencies_us)
    };
    let mut running: FuturesUnordered<_> = (0..writers).map(one).collect();
    while let Some(done) = running.next().await {
        latencies_us.extend(done?);
    }
    let elapsed_s = started.elapsed().as_secs_f64();
    latencies_us.sort_unstable();
    let percentile =
        |percent: usize| latencies_us.get((latencies_us.len() * percent / 100).saturating_sub(1)).copied().unwrap_or(0);
    Ok(Writes {
        writers,
        writes_per_s: latencies_us.len() as f64 / elapsed_s,
        p50_us: percentile(50),
        p99_us: percentile(99),
    })
}

async fn fan_out(store: &EmbeddedStore, load: &Load) -> Result<FanOut, StoreError> {
    let after = store.revision();
    let watches: Vec<Watch> = (0..load.watchers).map(|_| store.watch("fan/", after)).collect::<Result<_, _>>()?;
    let started = Instant::now();
    for event in 0..load.events {
        store.transact(put(&format!("fan/{event}"), load.value_bytes)).await?;
    }
    let reading = Instant::now();
    for mut watch in watches {
        let mut left = load.events;
        while left > 0 {
            match watch.next().await {
                Some(Ok(WatchItem::Events(events))) => left = left.saturating_sub(events.len()),
                Some(Ok(WatchItem::Progress(_))) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(StoreError::Closed),
            }
        }
    }
    let deliveries = (load.watchers * load.events).max(1) as f64;
    Ok(FanOut {
        watchers: load.watchers,
        deliveries_per_s: deliveries / started.elapsed().as_secs_f64(),
        delivery_ns: reading.elapsed().as_secs_f64() * 1e9 / deliveries,
    })
}

fn put(key: &str, value_bytes: usize) -> Txn {
    let bytes = vec![b'x'; value_bytes].into();
    let value = Value { bytes, stamp_at: Some(0) };
    Txn { checks: Vec::new(), ops: vec![Op::Put(Arc::from(key), value)] }
}
