//! A program that is run with all that it starts: a process group, which ends with whoever waits for it.

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;

/// The processes of a program that leads a group of its own. They are killed when nobody waits for them any more.
#[derive(Debug)]
pub struct Group(Option<Pid>);

impl Group {
    /// That which a child leads, since it was started as the first of one.
    #[must_use]
    pub fn of(leader: &Child) -> Self {
        Self(leader.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// The leader has ended, and was waited for: what it left behind goes on, and its number may be another's by now.
    pub fn ended(&mut self) {
        self.0 = None;
    }

    /// Kills all of them.
    pub fn kill(&self) {
        if let Some(pid) = self.0
            && let Err(error) = kill_process_group(pid, Signal::KILL)
        {
            tracing::debug!(%error, "the processes of a program are gone");
        }
    }

    /// Whether there is none of them any more. The leader is one until it was waited for.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.is_none_or(|pid| test_kill_process_group(pid).is_err())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads an output of a program to its end, and keeps so many bytes of it from the beginning: who writes more is not held up.
pub async fn read(from: Option<impl AsyncRead + Unpin>, most: usize, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut some = [0; 4096];
    // What cannot be read any more has ended.
    while let Ok(count @ 1..) = from.read(&mut some).await {
        into.extend(some.iter().take(count.min(most.saturating_sub(into.len()))));
    }
}
