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
    let mut reader = Reader { finder: Finder::new(MARK), latencies_us: Vec::with_capacity(events), cut: Vec::new() };
    while reader.latencies_us.len() < events {
        let seen = reader.latencies_us.len();
        let piece = connection.piece().await?;
        let piece = piece.with_context(|| format!("the watch ended after {seen} of {events} events"))?;
        reader.take(piece, began.elapsed().as_micros());
    }
    Ok((reader.latencies_us, Instant::now()))
}

/// Finds the marks in what comes.
struct Reader {
    finder: Finder<'static>,
    latencies_us: Vec<u32>,
    /// The beginning of a line whose end has not come.
    cut: Vec<u8>,
}

impl Reader {
    /// Takes a piece that came at this time.
    fn take(&mut self, mut piece: &[u8], now_us: u128) {
        if !self.cut.is_empty() {
            let Some(end) = memchr::memchr(b'\n', piece) else { return self.cut.extend_from_slice(piece) };
            let mut line = std::mem::take(&mut self.cut);
            line.extend_from_slice(&piece[..=end]);
            self.line(&line, now_us);
            line.clear();
            self.cut = line;
            piece = &piece[end + 1..];
        }
        let whole = memchr::memrchr(b'\n', piece).map_or(0, |end| end + 1);
        // One mark a line, so that it is enough to find the marks.
        let mut lines = &piece[..whole];
        while let Some(at) = self.finder.find(lines) {
            let (_, mark) = lines.split_at(at);
            self.mark(&mark[MARK.len()..], now_us);
            lines = memchr::memchr(b'\n', mark).map_or(&[], |end| &mark[end + 1..]);
        }
        self.cut.extend_from_slice(&piece[whole..]);
    }

    fn line(&mut self, line: &[u8], now_us: u128) {
        if let Some(at) = self.finder.find(line) {
            self.mark(&line[at + MARK.len()..], now_us);
        }
    }

    fn mark(&mut self, text: &[u8], now_us: u128) {
        let sent_us = text
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .fold(0_u128, |number, digit| number * 10 + u128::from(digit - b'0'));
        self.latencies_us.push(u32::try_from(now_us.saturating_sub(sent_us)).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_however_the_lines_are_cut() {
        let text: String =
            (1..=5).map(|at| format!("{{\"a\":{{{MARK}{at}\",\"b\":1}}}}\n{{\"other\":{at}}}\n")).collect();
        for size in 1..text.len() {
            let mut reader = Reader { finder: Finder::new(MARK), latencies_us: Vec::new(), cut: Vec::new() };
            text.as_bytes().chunks(size).for_each(|piece| reader.take(piece, 10));
            assert_eq!(reader.latencies_us, [9, 8, 7, 6, 5], "pieces of {size}");
        }
    }
}
