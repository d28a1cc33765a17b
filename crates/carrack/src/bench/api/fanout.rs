#![expect(clippy::disallowed_methods, reason = "shell: it measures time")]
//! Many watchers of one collection: how soon each of them hears of each change.
//!
//! Every change carries the moment at which it was sent, in an annotation. A watcher looks for that text
//! alone, so that the reading side costs little beside the server.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use memchr::memmem::Finder;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::figures::Figure;
use crate::wire::{Connection, Endpoint};

/// The annotation that says when a change was sent, in microseconds of a run, before its value.
const MARK: &str = "\"carrack.dev/bench-at\":\"";

/// Watches that are open.
pub struct Watchers {
    tasks: JoinSet<anyhow::Result<(Vec<u32>, Instant)>>,
    began: Instant,
}

impl Watchers {
    /// Opens so many watches from a revision on; each ends after `events` marked events.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn open(endpoint: &Endpoint, path: &str, count: usize, events: usize) -> anyhow::Result<Self> {
        let began = Instant::now();
        let (opened, mut tasks) = (Arc::new(Semaphore::new(0)), JoinSet::new());
        for _ in 0..count {
            let mut connection = endpoint.connect().await?;
            let status = connection.stream(endpoint, path).await?;
            ensure!(status == 200, "GET {path}: {status}");
            let opened = Arc::clone(&opened);
            tasks.spawn(async move {
                opened.add_permits(1);
                follow(connection, events, began).await
            });
        }
        let all = u32::try_from(count).context("too many watchers")?;
        opened.acquire_many(all).await.context("the watchers are gone")?.forget();
        Ok(Self { tasks, began })
    }

    /// The merge patch of a change sent now.
    pub fn patch(began: Instant) -> Vec<u8> {
        let at = began.elapsed().as_micros();
        format!("{{\"metadata\":{{\"annotations\":{{{MARK}{at}\"}}}}}}").into_bytes()
    }

    /// When the run began that the marks count from.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Waits until all have seen all; the rate is counted from `first`.
    ///
    /// # Errors
    /// A watch broke.
    pub async fn finish(mut self, name: &'static str, first: Instant) -> anyhow::Result<Figure> {
        let (mut latencies_us, mut last) = (Vec::new(), first);
        while let Some(task) = self.tasks.join_next().await {
            let (own, ended) = task.context("a watcher panicked")??;
            latencies_us.extend(own);
            last = last.max(ended);
        }
        Ok(Figure::of(name, latencies_us, (last - first).as_secs_f64()))
    }
}

async fn follow(mut connection: Connection, events: usize, began: Instant) -> anyhow::Result<(Vec<u32>, Instant)> {
    let finder = Finder::new(MARK);
    let (mut latencies_us, mut text) = (Vec::with_capacity(events), Vec::new());
    while latencies_us.len() < events {
        // All that has come, before it is looked at: an event may be cut anywhere.
        ensure!(connection.chunk(&mut text).await?, "the watch ended after {} of {events} events", latencies_us.len());
        let Some(end) = memchr::memrchr(b'\n', &text) else { continue };
        let now_us = began.elapsed().as_micros();
        for line in text[..=end].split_inclusive(|byte| *byte == b'\n') {
            if let Some(at) = finder.find(line) {
                let digits = &line[at + MARK.len()..];
                let sent_us = digits
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit())
                    .fold(0_u128, |number, digit| number * 10 + u128::from(digit - b'0'));
                latencies_us.push(u32::try_from(now_us.saturating_sub(sent_us)).unwrap_or(u32::MAX));
            }
        }
        text.drain(..=end);
    }
    Ok((latencies_us, Instant::now()))
}
