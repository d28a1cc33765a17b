#![expect(clippy::disallowed_methods, reason = "shell: waits for conditions with a deadline")]
//! Where a drill is played: a directory of its own, a network of its own, and ways to wait that an interruption ends.
//!
//! ```text
//!   story (this thread) ── step, wait, must ──► journal ◄── check ── watches (threads that look all the time)
//!                                  │
//!                                  └── going? not after an interruption, a broken invariant, or a role's own end
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_plot::Tone;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::cluster::Programs;
use super::journal::Journal;
use super::rules::Rule;
use super::running::Running;

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
    /// The roles that it has started.
    pub running: Running,
    left: Mutex<Vec<String>>,
    stop: CancellationToken,
}

impl Stage {
    /// An empty stage.
    pub fn new(title: &str, options: Options, dir: &Path, runtime: Runtime, stop: CancellationToken) -> Self {
        let (journal, dir) = (Arc::new(Journal::new(title)), dir.to_owned());
        Self { journal, options, dir, runtime, running: Running::default(), left: Mutex::default(), stop }
    }

    /// Something of the drill could not be taken away.
    pub fn leaves(&self, what: Vec<String>) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(what);
    }

    /// What could not be taken away.
    pub fn left(&self) -> Vec<String> {
        std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner))
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
    /// Somebody interrupted it, an invariant broke, or a role has ended by itself: what follows would prove nothing.
    pub fn going(&self) -> anyhow::Result<()> {
        if self.stop.is_cancelled() {
            bail!("interrupted");
        }
        if self.journal.is_broken() {
            bail!("an invariant broke");
        }
        if let Some((role, how)) = self.running.fallen() {
            self.journal.state(role.name(), "ended by itself", Tone::Bad);
            bail!(how);
        }
        Ok(())
    }

    /// Does something that takes its time. It is dropped when somebody interrupts the drill: what it has started may be out of
    /// reach of the key that does so.
    ///
    /// # Errors
    /// Its own, or the drill is over.
    pub fn does<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        self.going()?;
        self.runtime.block_on(async {
            tokio::select! {
                outcome = work => outcome,
                () = self.stop.cancelled() => Err(anyhow::anyhow!("interrupted")),
            }
        })
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
        ask: impl FnMut() -> Result<T, String>,
    ) -> anyhow::Result<Result<T, String>> {
        ask_while(|| self.going(), what, limit_s, ask)
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

/// As [`Stage::wait`], also when the drill is over: what is taken back is waited for after an interruption, too.
///
/// # Errors
/// The answer is not there in time.
pub fn settles(what: &str, limit_s: u64, ask: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    ask_while(|| Ok(()), what, limit_s, ask).unwrap_or_else(|error| Err(format!("{error:#}")))
}

/// Asks until the answer is there, the time is over, or it is not to go on.
fn ask_while<T>(
    going: impl Fn() -> anyhow::Result<()>,
    what: &str,
    limit_s: u64,
    mut ask: impl FnMut() -> Result<T, String>,
) -> anyhow::Result<Result<T, String>> {
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    loop {
        going()?;
        match ask() {
            Ok(answer) => return Ok(Ok(answer)),
            Err(_) if Instant::now() < deadline => std::thread::sleep(ASK_AGAIN),
            Err(why) => {
                // Who has just ended is the reason, and no promise that is not kept.
                going()?;
                return Ok(Err(format!("{what}: not within {limit_s} s: {why}")));
            }
        }
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::roles::Role;
    use super::super::rules;
    use super::*;

    fn stage(dir: &Path) -> Stage {
        let options = Options {
            plant: None,
            rounds: 1,
            outage: Duration::ZERO,
            programs: Programs::default(),
            images_dir: dir.to_owned(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        Stage::new("test", options, dir, runtime, CancellationToken::new())
    }

    #[test]
    fn a_role_that_ended_ends_every_wait_and_breaks_no_invariant() {
        let dir = tempfile::tempdir().expect("a directory");
        let stage = stage(dir.path());
        let log = dir.path().join("log");
        std::fs::write(&log, "unknown flag: --config\n").expect("written");
        let child = Command::new("sh").args(["-c", "exit 4"]).spawn().expect("a shell");
        stage.running.add(Role::Scheduler, child, log);
        let never = || Err::<(), _>("it is not there".to_owned());
        let waits: [&dyn Fn() -> anyhow::Result<()>; 3] = [
            &|| stage.wait("something", 60, never),
            &|| stage.must(&rules::ROOM_IS_USED, "something", 60, never),
            &|| stage.lasts(Duration::from_secs(60)),
        ];
        for wait in waits {
            let why = wait().expect_err("the role has ended").to_string();
            for part in ["scheduler", "exit status: 4", "unknown flag: --config"] {
                assert!(why.contains(part), "{part} is missing in {why}");
            }
        }
        assert!(!stage.journal.is_broken());
        assert!(stage.journal.now() < Duration::from_secs(50));
    }

    #[test]
    fn an_interruption_ends_what_takes_its_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let stage = stage(dir.path());
        assert_eq!(stage.does(async { Ok(4) }).expect("it is done"), 4);
        let stop = stage.stop.clone();
        let hangs = async {
            stop.cancel();
            std::future::pending::<anyhow::Result<()>>().await
        };
        assert_eq!(stage.does(hangs).expect_err("it is interrupted").to_string(), "interrupted");
        assert!(stage.does(async { Ok(()) }).is_err() && !stage.journal.is_broken());
    }

    #[test]
    fn a_promise_that_is_not_kept_in_time_breaks_its_invariant() {
        let dir = tempfile::tempdir().expect("a directory");
        let stage = stage(dir.path());
        let never = || Err::<(), _>("it is not there".to_owned());
        assert!(stage.wait("something", 0, never).is_err() && !stage.journal.is_broken());
        assert!(stage.must(&rules::ROOM_IS_USED, "something", 0, never).is_err() && stage.journal.is_broken());
        // The drill is over; what it brought is taken back all the same.
        assert!(stage.going().is_err());
        assert_eq!(settles("the end", 0, || Ok(())), Ok(()));
        assert_eq!(settles("the end", 0, never), Err("the end: not within 0 s: it is not there".to_owned()));
    }
}
