#![expect(clippy::disallowed_methods, reason = "shell: waits for conditions with a deadline")]
//! Where a drill is played: a directory of its own, a network of its own, and ways to wait that an interruption ends.
//!
//! ```text
//!   story (this thread) ── step, wait, must ──► journal ◄── check ── watches (threads that look all the time)
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::cluster::Programs;
use super::journal::Journal;
use super::rules::Rule;

/// How often a condition is asked for.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What a drill was asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// What to break on purpose.
    pub plant: Option<&'static str>,
    /// How often to do again what is done in rounds.
    pub rounds: u32,
    /// How long what is out stays out, in drills that say so.
    pub outage: Duration,
    /// Who plays which role.
    pub programs: Programs,
    /// Where images are built.
    pub images_dir: PathBuf,
}

/// A drill that is being played.
#[derive(Debug)]
pub struct Stage {
    /// What it saw and did.
    pub journal: Arc<Journal>,
    /// What it was asked for.
    pub options: Options,
    /// Everything of it lies below.
    pub dir: PathBuf,
    /// For what does not wait.
    pub runtime: Runtime,
    stop: CancellationToken,
}

impl Stage {
    /// An empty stage.
    pub fn new(title: &str, options: Options, dir: &Path, runtime: Runtime, stop: CancellationToken) -> Self {
        Self { journal: Arc::new(Journal::new(title)), options, dir: dir.to_owned(), runtime, stop }
    }

    /// Whether this wrong was planted.
    pub fn planted(&self, wrong: &str) -> bool {
        self.options.plant == Some(wrong)
    }

    /// The drill does something.
    pub fn step(&self, text: impl AsRef<str>) {
        self.journal.step(text.as_ref());
    }

    /// Whether it is to go on.
    ///
    /// # Errors
    /// Somebody interrupted it, or an invariant broke: what follows would prove nothing.
    pub fn going(&self) -> anyhow::Result<()> {
        if self.stop.is_cancelled() {
            bail!("interrupted");
        }
        if self.journal.is_broken() {
            bail!("an invariant broke");
        }
        Ok(())
    }

    /// Asks until the answer is there.
    ///
    /// # Errors
    /// It is not there in time, or the drill is over.
    pub fn wait<T>(&self, what: &str, limit_s: u64, ask: impl FnMut() -> Result<T, String>) -> anyhow::Result<T> {
        self.until(what, limit_s, ask)?.map_err(anyhow::Error::msg)
    }

    /// As [`Self::wait`], for what an invariant promises: if it does not come, that one broke.
    ///
    /// # Errors
    /// As for [`Self::wait`].
    pub fn must<T>(
        &self,
        rule: &Rule,
        what: &str,
        limit_s: u64,
        ask: impl FnMut() -> Result<T, String>,
    ) -> anyhow::Result<T> {
        let outcome = self.until(what, limit_s, ask)?;
        self.journal.check(rule, outcome.as_ref().map(drop).map_err(Clone::clone));
        outcome.map_err(anyhow::Error::msg)
    }

    /// Asks until the answer is there, or the time is over. That the drill is over is another matter.
    fn until<T>(
        &self,
        what: &str,
        limit_s: u64,
        mut ask: impl FnMut() -> Result<T, String>,
    ) -> anyhow::Result<Result<T, String>> {
        let deadline = Instant::now() + Duration::from_secs(limit_s);
        loop {
            self.going()?;
            match ask() {
                Ok(answer) => return Ok(Ok(answer)),
                Err(why) if Instant::now() >= deadline => {
                    return Ok(Err(format!("{what}: not within {limit_s} s: {why}")));
                }
                Err(_) => std::thread::sleep(ASK_AGAIN),
            }
        }
    }

    /// Lets something last this long, while others look.
    ///
    /// # Errors
    /// The drill is over.
    pub fn lasts(&self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.going()?;
            std::thread::sleep(ASK_AGAIN);
        }
        Ok(())
    }

    /// Looks again and again until what this returns is dropped.
    ///
    /// # Errors
    /// There are no threads to be had.
    pub fn watch(&self, every: Duration, mut look: impl FnMut(&Journal) + Send + 'static) -> anyhow::Result<Watch> {
        let over = Arc::new(AtomicBool::new(false));
        let (seen, journal) = (over.clone(), self.journal.clone());
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                look(&journal);
                std::thread::sleep(every);
            }
        });
        Ok(Watch { over, thread: Some(thread.context("cannot start a thread")?) })
    }
}

/// Somebody who looks all the time. It has looked for the last time when this is dropped.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a watch panicked");
        }
    }
}
