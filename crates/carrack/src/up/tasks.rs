#![expect(clippy::disallowed_methods, reason = "shell: waits before a role is started again")]
//! Roles as tasks of one process. A role that ends before it was told to, by an error or a panic, takes nobody with it:
//! the reason is logged, and it starts again after a growing pause.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pauses between starts of a role that ends again and again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What ran this long before it failed begins with the shortest pause again.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// Pauses between the starts of something that ends again and again, each twice as long as the last.
pub struct Pauses {
    next: Duration,
    longest: Duration,
    began: Instant,
}

impl Pauses {
    /// Of what begins now; none of them is longer than this.
    pub fn up_to(longest: Duration) -> Self {
        Self { next: FIRST_PAUSE, longest, began: Instant::now() }
    }

    /// It begins now.
    pub fn begins(&mut self) {
        self.began = Instant::now();
    }

    /// It has ended: how long to wait until it begins again.
    pub fn ended(&mut self) -> Duration {
        self.after(self.began.elapsed())
    }

    /// How long to wait after a run that took so long. What ends once in a month ends as if it were for the first time.
    fn after(&mut self, run: Duration) -> Duration {
        let pause = if run > GOOD_RUN { FIRST_PAUSE } else { self.next };
        self.next = (pause * 2).min(self.longest);
        pause
    }
}

/// Keeps a role running until `stop`. `start` makes one run of it.
pub async fn keep<F>(name: &'static str, stop: CancellationToken, mut start: impl FnMut() -> F)
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut pauses = Pauses::up_to(LONGEST_PAUSE);
    loop {
        pauses.begins();
        // A task of its own, so that a panic ends up here; in a set, so that dropping us drops it.
        let mut run = JoinSet::new();
        run.spawn(start());
        match run.join_next().await {
            _ if stop.is_cancelled() => return,
            Some(Ok(Ok(()))) => tracing::error!(role = name, "ended by itself"),
            Some(Ok(Err(error))) => tracing::error!(role = name, "failed: {error:#}"),
            Some(Err(panic)) => tracing::error!(role = name, %panic, "panicked"),
            None => tracing::error!(role = name, "was never there"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pauses.ended()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn what_ran_well_begins_with_the_shortest_pause() {
        let mut pauses = Pauses::up_to(Duration::from_secs(1));
        for (ran_s, expected_ms) in
            [(1, 200), (60, 400), (1, 800), (1, 1000), (1, 1000), (61, 200), (1, 400), (86_400, 200), (86_400, 200)]
        {
            let pause = pauses.after(Duration::from_secs(ran_s));
            assert_eq!(pause, Duration::from_millis(expected_ms), "after {ran_s} s");
        }
    }

    #[tokio::test]
    async fn a_role_that_fails_or_panics_is_started_again_until_it_may_end() {
        let (runs, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let (counted, token) = (runs.clone(), stop.clone());
        keep("test", stop.clone(), move || {
            let (run, token) = (counted.fetch_add(1, Ordering::SeqCst), token.clone());
            async move {
                match run {
                    0 => anyhow::bail!("an error"),
                    1 => panic!("a panic"),
                    _ => {
                        token.cancel();
                        Ok(())
                    }
                }
            }
        })
        .await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }
}
