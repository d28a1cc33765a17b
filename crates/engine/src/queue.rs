//! The work queue of controllers: a key is in it once, is worked on by one at a time, and comes back
//! later and later while it fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::{Rng, Time};

/// First delay after a failure, unless a controller has another; doubles with each further one (client-go's item exponential
/// backoff starts at 5 ms too).
pub(crate) const FIRST_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(300);

/// A queue of keys.
#[derive(Debug)]
pub struct WorkQueue<K> {
    ready: VecDeque<K>,
    /// Everything in `ready`.
    queued: BTreeSet<K>,
    /// Being worked on; true if it was asked for again meanwhile.
    active: BTreeMap<K, bool>,
    delayed: BTreeSet<(Time, K)>,
    delayed_until: BTreeMap<K, Time>,
    failures: BTreeMap<K, u32>,
    first_delay: Duration,
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            active: BTreeMap::new(),
            delayed: BTreeSet::new(),
            delayed_until: BTreeMap::new(),
            failures: BTreeMap::new(),
            first_delay: FIRST_DELAY,
        }
    }
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// A queue in which a key comes back so long after its first failure.
    #[must_use]
    pub fn with_first_delay(first_delay: Duration) -> Self {
        Self { first_delay, ..Self::default() }
    }
    /// Asks for a key to be worked on.
    pub fn add(&mut self, key: K) {
        if let Some(again) = self.active.get_mut(&key) {
            *again = true;
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }
    /// Asks for a key to be worked on at a time; the earliest such time counts.
    pub fn add_at(&mut self, key: K, at: Time) {
        match self.delayed_until.get(&key) {
            Some(&old) if old <= at => {}
            old => {
                if let Some(&old) = old {
                    self.delayed.remove(&(old, key.clone()));
                }
                self.delayed_until.insert(key.clone(), at);
                self.delayed.insert((at, key));
            }
        }
    }
    /// Asks for a key again after a failure, later each time.
    pub fn add_failed(&mut self, key: K, now: Time, rng: &mut Rng) {
        let n = self.failures.entry(key.clone()).or_insert(0);
        let delay = self.first_delay.saturating_mul(2_u32.saturating_pow((*n).min(20))).min(MAX_DELAY);
        *n = n.saturating_add(1);
        self.add_at(key, now + rng.jitter(delay, 20));
    }
    /// How often a key has failed since it last succeeded.
    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }
    /// Forgets a key's failures.
    pub fn succeeded(&mut self, key: &K) {
        self.failures.remove(key);
    }
    /// The next key to work on, if any. It stays active until [`Self::done`].
    pub fn take(&mut self, now: Time) -> Option<K> {
        while let Some((at, key)) = self.delayed.first().cloned() {
            if at > now {
                break;
            }
            self.delayed.remove(&(at, key.clone()));
            self.delayed_until.remove(&key);
            self.add(key);
        }
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.active.insert(key.clone(), false);
        Some(key)
    }
    /// Work on a key ended; it is queued again if it was asked for meanwhile.
    pub fn done(&mut self, key: &K) {
        if self.active.remove(key) == Some(true) {
            self.add(key.clone());
        }
    }
    /// When the next delayed key is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.delayed.first().map(|(at, _)| *at)
    }
    /// Whether nothing is ready or active. Delayed keys don't count.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.active.is_empty()
    }
    /// How many keys are ready.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ready.len()
    }
    /// Whether no key is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_once_and_worked_on_by_one() {
        let mut q = WorkQueue::default();
        let now = Time::from_unix_s(1);
        q.add("a");
        q.add("a");
        assert_eq!(q.take(now), Some("a"));
        q.add("a");
        assert_eq!(q.take(now), None, "a is being worked on");
        q.done(&"a");
        assert_eq!(q.take(now), Some("a"), "it was asked for meanwhile");
        q.done(&"a");
        assert_eq!(q.take(now), None);
    }

    #[test]
    fn failures_come_back_later_each_time_and_success_forgets() {
        let mut q = WorkQueue::default();
        let mut rng = Rng::new(1);
        let now = Time::from_unix_s(1);
        let mut last = Duration::ZERO;
        for _ in 0..30 {
            q.add_failed("a", now, &mut rng);
            let due = q.next_due().expect("delayed").since(now);
            assert!(due >= last.min(MAX_DELAY), "{due:?} after {last:?}");
            assert!(due <= MAX_DELAY * 6 / 5);
            last = due * 5 / 6;
            assert_eq!(q.take(now), None);
            assert_eq!(q.take(now + due), Some("a"));
            q.done(&"a");
        }
        q.succeeded(&"a");
        q.add_failed("a", now, &mut rng);
        assert!(q.next_due().expect("delayed").since(now) < FIRST_DELAY * 2);
    }

    #[test]
    fn the_first_delay_is_the_controllers() {
        let (now, mut rng) = (Time::from_unix_s(1), Rng::new(1));
        let mut q = WorkQueue::with_first_delay(Duration::from_secs(1));
        for least_s in [1, 2, 4] {
            q.add_failed("a", now, &mut rng);
            let due = q.next_due().expect("delayed").since(now);
            let least = Duration::from_secs(least_s);
            assert!((least * 4 / 5..=least * 6 / 5).contains(&due), "{due:?}");
            assert_eq!(q.take(now + due), Some("a"));
            q.done(&"a");
        }
    }

    #[test]
    fn the_earliest_time_counts() {
        let mut q = WorkQueue::default();
        q.add_at("a", Time::from_unix_s(9));
        q.add_at("a", Time::from_unix_s(5));
        q.add_at("a", Time::from_unix_s(7));
        assert_eq!(q.next_due(), Some(Time::from_unix_s(5)));
        assert_eq!(q.take(Time::from_unix_s(5)), Some("a"));
        assert_eq!(q.next_due(), None);
    }
}
