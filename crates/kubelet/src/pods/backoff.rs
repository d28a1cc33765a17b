//! How long a container or an image waits before it is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;

const FIRST: Duration = Duration::from_secs(10);
/// The longest wait, unless the node has another one (`crashLoopBackOff.maxContainerRestartPeriod`).
pub const MAX: Duration = Duration::from_secs(300);
/// Without trouble for this long, the next wait is the first again.
const RESET: Duration = Duration::from_secs(600);

/// Doubling waits by key: none before the first repetition, then 10 s, 20 s, up to 5 min.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    last: Time,
}

impl Backoff {
    /// Until when to wait after something ended, if there is a wait.
    #[must_use]
    pub fn until(&self, key: &str, ended: Time) -> Option<Time> {
        let e = self.entries.get(key).filter(|e| ended.since(e.last) <= RESET)?;
        Some(ended + e.delay)
    }
    /// How long the wait is at present.
    #[must_use]
    pub fn delay(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |e| e.delay)
    }
    /// When it was tried last.
    #[must_use]
    pub fn last_tried(&self, key: &str) -> Option<Time> {
        self.entries.get(key).map(|e| e.last)
    }
    /// It is tried again now.
    pub fn tried(&mut self, key: &str, now: Time, longest: Duration) {
        let delay = match self.entries.get(key) {
            Some(e) if now.since(e.last) <= RESET => (e.delay * 2).min(longest),
            _ => FIRST.min(longest),
        };
        self.entries.insert(key.to_owned(), Entry { delay, last: now });
    }
    /// All is well.
    pub fn clear(&mut self, key: &str) {
        self.entries.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_minutes_and_start_over_after_ten() {
        let mut b = Backoff::default();
        let mut now = Time::from_unix_s(1000);
        assert_eq!(b.until("c", now), None, "the first restart is immediate");
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            b.tried("c", now, MAX);
            let ended = now + Duration::from_secs(1);
            assert_eq!(b.until("c", ended), Some(ended + Duration::from_secs(seconds)));
            now = ended + Duration::from_secs(seconds);
        }
        assert_eq!(b.until("c", now + RESET + Duration::from_secs(400)), None);
    }
}
