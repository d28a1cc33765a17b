#![expect(clippy::disallowed_methods, reason = "shell: waits for another process with a deadline")]
//! Whose a data directory is: one process holds its lock, and says in the pidfile which one it is, and when it ends.
//!
//! ```text
//!   try the lock ── free ───────────────────────────────────────▶ held: this process is in the pidfile
//!        ▲    └──── taken ── by one that runs ──────────────────▶ a cluster runs
//!        │              └── by one that ends, or was killed ─┐ ── too long ──▶ refused
//!        └──────────────────── a moment later ───────────────┘ ── a signal ──▶ stopped
//! ```

use std::fs::{self, File};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_noderuntime::process::ProcessId;
use carrack_noderuntime::{Layout, lock};
use tokio_util::sync::CancellationToken;

use crate::down::UP_GRACE;

/// How long a process that was killed may hold the lock, at the most.
const LET_GO: Duration = Duration::from_secs(5);
/// Between two looks whether the lock is free.
const LOOK: Duration = Duration::from_millis(10);

/// What becomes of who wants a data directory.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It is this process's, as long as this is kept.
    Held(File),
    /// A cluster runs there, which this says.
    Runs(String),
    /// This process is to end itself, and has taken nothing.
    Stopped,
}

/// Takes the data directory for this process, and says so in the pidfile. The lock ends with the process, however it
/// ends; one that has said that it ends is waited for, which is told once, and no longer than until `stop`.
///
/// # Errors
/// The directory cannot be written, or somebody who is no cluster that runs does not let go of it.
pub(crate) async fn take(
    layout: &Layout,
    stop: &CancellationToken,
    say: &(dyn Fn(&str) + Send + Sync),
) -> anyhow::Result<Taken> {
    let (path, pidfile) = (layout.lockfile(), layout.pidfile());
    let (began, mut limit, mut told) = (Instant::now(), LET_GO, false);
    let file = loop {
        if stop.is_cancelled() {
            return Ok(Taken::Stopped);
        }
        if let Some(file) = lock::try_lock(layout).with_context(|| format!("cannot write {}", path.display()))? {
            break file;
        }
        let holder = ProcessId::from_pidfile(&pidfile).map(|other| other.pid);
        let ends = ProcessId::is_ending(&pidfile);
        if ends {
            limit = UP_GRACE + LET_GO;
            if !told {
                told = true;
                let pid = holder.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                say(&format!("waiting for the process before this one{pid}, which ends"));
            }
        }
        match holder {
            Some(pid) if !ends => return Ok(Taken::Runs(runs(layout, pid))),
            _ if began.elapsed() >= limit => bail!(in_use(layout, holder)),
            // One that was killed lets go when its last thread has ended, a moment after it stopped counting as running.
            _ => {}
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    };
    let own = i32::try_from(std::process::id()).ok().and_then(ProcessId::of).context("this process is not in /proc")?;
    own.write_pidfile(&pidfile).with_context(|| format!("cannot write {}", pidfile.display()))?;
    Ok(Taken::Held(file))
}

/// That a cluster runs.
pub(super) fn runs(layout: &Layout, pid: i32) -> String {
    format!("the cluster in {} runs already (pid {pid})", layout.data_dir().display())
}

/// Why the data directory is not to be had: a cluster there does not come to its end, or somebody without a pidfile holds it.
fn in_use(layout: &Layout, ending: Option<i32>) -> String {
    let dir = layout.data_dir().display();
    match ending {
        Some(pid) => format!("the cluster in {dir} does not come to its end (pid {pid})"),
        None => format!("another process starts the cluster in {dir}, or takes it down: try again when that has ended"),
    }
}

/// Says in the pidfile that this process ends, which takes as long as its roles take: whoever starts a cluster meanwhile waits,
/// rather than to be told that it runs.
pub(super) fn say_ending(layout: &Layout) {
    let pidfile = layout.pidfile();
    let said = ProcessId::from_pidfile(&pidfile).map_or(Ok(()), |own| own.write_ending(&pidfile));
    if let Err(error) = said {
        tracing::warn!(%error, "the pidfile does not say that this process ends");
    }
}

pub(super) fn remove_pidfile(layout: &Layout) {
    if let Err(error) = fs::remove_file(layout.pidfile()) {
        tracing::warn!(%error, "the pidfile stays");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A data directory, what was said of a wait for it, and what ends that wait.
    struct Rig {
        _dir: tempfile::TempDir,
        layout: Layout,
        said: Mutex<Vec<String>>,
        stop: CancellationToken,
    }

    fn own() -> ProcessId {
        i32::try_from(std::process::id()).ok().and_then(ProcessId::of).expect("it runs")
    }

    impl Rig {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a temp dir");
            let (layout, stop) = (Layout::new(dir.path()), CancellationToken::new());
            Self { _dir: dir, layout, said: Mutex::default(), stop }
        }

        /// Somebody holds it, and this process is named as who does: one that runs.
        fn held(&self) -> File {
            let held = lock::try_lock(&self.layout).expect("a lock file").expect("nobody has it");
            own().write_pidfile(&self.layout.pidfile()).expect("written");
            held
        }

        async fn take(&self) -> anyhow::Result<Taken> {
            let say = |text: &str| self.said.lock().expect("whole").push(text.to_owned());
            take(&self.layout, &self.stop, &say).await
        }

        fn said(&self) -> usize {
            self.said.lock().expect("whole").len()
        }
    }

    #[tokio::test]
    async fn what_nobody_has_is_taken_at_once() {
        let rig = Rig::new();
        assert!(matches!(rig.take().await, Ok(Taken::Held(_))));
        assert_eq!(ProcessId::from_pidfile(&rig.layout.pidfile()), Some(own()));
        assert_eq!(rig.said(), 0);
    }

    #[tokio::test]
    async fn a_cluster_that_runs_is_not_waited_for() {
        let rig = Rig::new();
        let _held = rig.held();
        let taken = rig.take().await.expect("an answer");
        assert!(matches!(&taken, Taken::Runs(text) if text.contains("runs already")), "{taken:?}");
        assert_eq!(rig.said(), 0);
    }

    #[tokio::test]
    async fn one_that_ends_is_waited_for_and_that_is_said_once() {
        let rig = Rig::new();
        let held = rig.held();
        say_ending(&rig.layout);
        let lets_go = async {
            tokio::time::sleep(LOOK * 3).await;
            drop(held);
        };
        let (taken, ()) = tokio::join!(rig.take(), lets_go);
        assert!(matches!(taken, Ok(Taken::Held(_))), "{taken:?}");
        assert_eq!(rig.said(), 1);
    }

    #[tokio::test]
    async fn of_two_that_wait_one_has_it_and_the_other_learns_that_it_runs() {
        let rig = Rig::new();
        let held = rig.held();
        say_ending(&rig.layout);
        let lets_go = async { drop(held) };
        let (one, other, ()) = tokio::join!(rig.take(), rig.take(), lets_go);
        let all = [one.expect("an answer"), other.expect("an answer")];
        assert!(all.iter().any(|taken| matches!(taken, Taken::Held(_))), "{all:?}");
        assert!(all.iter().any(|taken| matches!(taken, Taken::Runs(_))), "{all:?}");
    }

    #[tokio::test]
    async fn a_signal_ends_the_wait() {
        let rig = Rig::new();
        let _held = rig.held();
        say_ending(&rig.layout);
        let (taken, ()) = tokio::join!(rig.take(), async { rig.stop.cancel() });
        assert!(matches!(taken, Ok(Taken::Stopped)), "{taken:?}");
        assert!(ProcessId::is_ending(&rig.layout.pidfile()), "it is the other one's still");
    }

    #[test]
    fn who_takes_a_cluster_down_is_not_called_the_cluster() {
        let layout = Layout::new("/d");
        assert_eq!(runs(&layout, 7), "the cluster in /d runs already (pid 7)");
        assert!(in_use(&layout, Some(7)).contains("pid 7"));
        assert!(in_use(&layout, None).contains("takes it down"));
    }
}
