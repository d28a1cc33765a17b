#![expect(clippy::disallowed_methods, reason = "shell: it measures how long nothing has happened")]
//! How a step of the benchmark is waited for: as long as it goes on, telling how far it is.
//!
//! A limit for the whole would have to know how fast the machine is. What has stood still for a while, however, does not come
//! to its end, and says where it stands.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::roles::ENDED;

/// How often it is looked whether anything happened.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often somebody who waits is told how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// How long a step may stand still, and who is told how far it is.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Time without anything done after which a step is given up.
    pub limit: Duration,
    /// Takes lines for the person who waits.
    pub tell: UnboundedSender<String>,
    /// Ends the waiting.
    pub stop: CancellationToken,
}

/// How much of a step is done.
#[derive(Clone, Debug, Default)]
pub struct Done(Arc<AtomicUsize>);

impl Done {
    /// One more.
    pub fn one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    /// So many in all.
    pub fn set(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }
    /// How many.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Patience {
    /// Waits for the end of `work`, which counts in `done` what it does of `all`, `what` in words.
    ///
    /// # Errors
    /// The work's own, that it stands still, or that it was ended.
    pub async fn wait<T>(
        &self,
        what: &str,
        all: usize,
        done: &Done,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut work = std::pin::pin!(work);
        let (mut last, mut told) = ((done.count(), Instant::now()), Instant::now());
        loop {
            tokio::select! {
                result = &mut work => return result,
                () = self.stop.cancelled() => bail!(ENDED),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let count = done.count();
            if count != last.0 {
                last = (count, Instant::now());
            }
            if last.1.elapsed() >= self.limit {
                bail!("{count} of {all} {what}, and no more for {} s", self.limit.as_secs());
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                // Who waits may have gone.
                drop(self.tell.send(format!("{count} of {all} {what}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn what_stands_still_is_given_up_and_what_goes_on_is_not() {
        let (tell, _told) = unbounded_channel();
        let stop = CancellationToken::new();
        let patience = Patience { limit: Duration::from_secs(1), tell, stop: stop.clone() };
        let done = Done::default();
        let slow = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(600)).await;
                done.one();
            }
            Ok(())
        };
        patience.wait("steps are made", 3, &done, slow).await.expect("it goes on");
        let never = std::future::pending::<anyhow::Result<()>>;
        let error = patience.wait("steps are made", 4, &done, never()).await;
        assert_eq!(error.expect_err("it stands still").to_string(), "3 of 4 steps are made, and no more for 1 s");
        stop.cancel();
        let error = patience.wait("steps are made", 4, &done, never()).await;
        assert_eq!(error.expect_err("it was ended").to_string(), ENDED);
    }
}
