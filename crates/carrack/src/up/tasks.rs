#![expect(clippy::disallowed_methods, reason = "shell: waits before a role is started again")]
//! Roles as tasks of one process. A role that ends before it was told to, by an error or a panic, takes nobody with it:
//! the reason is logged, and it starts again after a growing pause.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pauses between starts of a role that ends again and again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A role that ran this long before it failed begins with the shortest pause again.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// Keeps a role running until `stop`. `start` makes one run of it.
pub async fn keep<F>(name: &'static str, stop: CancellationToken, mut start: impl FnMut() -> F)
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
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
        if began.elapsed() > GOOD_RUN {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
