//! Draws: how long something takes, whether something fails.

use std::time::Duration;

use carrack_engine::Rng;

/// How long something takes: mostly near the base, now and then much longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay {
    pub base: Duration,
    /// One in so many takes up to `slow` longer; 0 is never.
    pub slow_one_in: u64,
    pub slow: Duration,
}

impl Delay {
    pub(crate) const fn micros(us: u64) -> Self {
        Self { base: Duration::from_micros(us), slow_one_in: 0, slow: Duration::ZERO }
    }
    pub(crate) const fn millis(ms: u64) -> Self {
        Self::micros(ms * 1000)
    }
    pub(crate) fn draw(&self, rng: &mut Rng) -> Duration {
        let usual = rng.jitter(self.base / 2, 200);
        if rng.one_in(self.slow_one_in) { usual + below(rng, self.slow) } else { usual }
    }
}

/// A duration spread evenly over zero to `most`.
pub(crate) fn below(rng: &mut Rng, most: Duration) -> Duration {
    Duration::from_nanos(rng.below(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX)))
}

/// A duration spread evenly between two.
pub(crate) fn between(rng: &mut Rng, least: Duration, most: Duration) -> Duration {
    least + below(rng, most.saturating_sub(least))
}

/// One of these, each as likely as any other; none of none.
pub(crate) fn pick<T: Clone>(rng: &mut Rng, all: &[T]) -> Option<T> {
    let n = usize::try_from(rng.below(u64::try_from(all.len()).unwrap_or(0))).unwrap_or(0);
    all.get(n).cloned()
}
