//! The work queue of controllers: a key is in it once, is worked on by one at a time, and comes back
//! later and later while it fails.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::page::{Bounds, Histogram, Page};
use crate::{Rng, Time};

/// First delay after a failure, unless a controller has another; doubles with each further one (client-go's item exponential
/// backoff starts at 5 ms too).
pub(crate) const FIRST_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(300);

/// Upper bounds of times in a queue and of times of work, from 1 µs, in seconds.
const TIMES: Bounds = Bounds { first: 0.000_001, factor: 10.0, count: 10 };

/// A queue of keys.
#[derive(Debug)]
pub struct WorkQueue<K> {
    ready: VecDeque<K>,
    /// Everything in `ready`, and since when.
    queued: BTreeMap<K, Time>,
    active: BTreeMap<K, Active>,
    delayed: BTreeSet<(Time, K)>,
    delayed_until: BTreeMap<K, Time>,
    failures: BTreeMap<K, u32>,
    first_delay: Duration,
    counts: Counts,
}

/// A key that is being worked on.
#[derive(Debug)]
struct Active {
    since: Time,
    /// When it was asked for again meanwhile.
    again: Option<Time>,
}

/// What a queue has counted. Nothing is decided by it.
#[derive(Debug)]
struct Counts {
    adds: u64,
    retries: u64,
    waited: Histogram,
    worked: Histogram,
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: BTreeMap::new(),
            active: BTreeMap::new(),
            delayed: BTreeSet::new(),
            delayed_until: BTreeMap::new(),
            failures: BTreeMap::new(),
            first_delay: FIRST_DELAY,
            counts: Counts { adds: 0, retries: 0, waited: Histogram::new(TIMES), worked: Histogram::new(TIMES) },
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
    pub fn add(&mut self, key: K, now: Time) {
        if let Some(active) = self.active.get_mut(&key) {
            if active.again.is_none() {
                self.counts.adds += 1;
                active.again = Some(now);
            }
        } else if let Entry::Vacant(place) = self.queued.entry(key) {
            self.counts.adds += 1;
            self.ready.push_back(place.key().clone());
            place.insert(now);
        }
    }
    /// Asks for a key to be worked on at a time; the earliest such time counts.
    pub fn add_at(&mut self, key: K, at: Time) {
        self.counts.retries += 1;
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
            self.add(key, at);
        }
        let key = self.ready.pop_front()?;
        let since = self.queued.remove(&key).unwrap_or(now);
        self.counts.waited.observe(now.since(since));
        self.active.insert(key.clone(), Active { since: now, again: None });
        Some(key)
    }
    /// Work on a key ended; it is queued again if it was asked for meanwhile.
    pub fn done(&mut self, key: &K, now: Time) {
        let Some(Active { since, again }) = self.active.remove(key) else { return };
        self.counts.worked.observe(now.since(since));
        if let Some(asked) = again {
            self.queued.insert(key.clone(), asked);
            self.ready.push_back(key.clone());
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

/// Writes one measure of a queue.
type Write<'a, K> = &'a dyn Fn(&mut Page, &[(&str, &str)], &WorkQueue<K>);

/// Writes what queues have counted, each under its name. The families are upstream's, whose meaning they have
/// (`k8s.io/component-base/metrics/prometheus/workqueue`, `k8s.io/client-go/util/workqueue/metrics.go`), with something before their
/// names where a component has that.
pub(crate) fn tell<K>(page: &mut Page, prefix: &str, queues: &[(&str, &WorkQueue<K>)], now: Time) {
    let mut family = |name: &str, kind: &str, help: &str, write: Write<'_, K>| {
        page.family(&format!("{prefix}workqueue_{name}"), kind, help);
        for (name, queue) in queues {
            write(page, &[("name", *name)], queue);
        }
    };
    family("depth", "gauge", "Current depth of workqueue", &|page, labels, queue| {
        let again = queue.active.values().filter(|active| active.again.is_some()).count();
        page.value(labels, queue.ready.len() + again);
    });
    family("adds_total", "counter", "Total number of adds handled by workqueue", &|page, labels, queue| {
        page.value(labels, queue.counts.adds);
    });
    family(
        "queue_duration_seconds",
        "histogram",
        "How long in seconds an item stays in workqueue before being requested",
        &|page, labels, queue| {
            page.histogram(labels, &queue.counts.waited);
        },
    );
    family(
        "work_duration_seconds",
        "histogram",
        "How long in seconds processing an item from workqueue takes, its writes and the wait for caches that show them included",
        &|page, labels, queue| {
            page.histogram(labels, &queue.counts.worked);
        },
    );
    let times = |queue: &WorkQueue<K>| -> Vec<Duration> {
        queue.active.values().map(|active| now.since(active.since)).collect()
    };
    family(
        "unfinished_work_seconds",
        "gauge",
        "How many seconds of work is in progress that work_duration has not observed",
        &|page, labels, queue| {
            page.value(labels, times(queue).iter().sum::<Duration>().as_secs_f64());
        },
    );
    family(
        "longest_running_processor_seconds",
        "gauge",
        "How many seconds has the longest running processor for workqueue been running",
        &|page, labels, queue| {
            page.value(labels, times(queue).into_iter().max().unwrap_or_default().as_secs_f64());
        },
    );
    family("retries_total", "counter", "Total number of retries handled by workqueue", &|page, labels, queue| {
        page.value(labels, queue.counts.retries);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_once_and_worked_on_by_one() {
        let mut q = WorkQueue::default();
        let now = Time::from_unix_s(1);
        q.add("a", now);
        q.add("a", now);
        assert_eq!(q.take(now), Some("a"));
        q.add("a", now);
        assert_eq!(q.take(now), None, "a is being worked on");
        q.done(&"a", now);
        assert_eq!(q.take(now), Some("a"), "it was asked for meanwhile");
        q.done(&"a", now);
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
            q.done(&"a", now);
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
            q.done(&"a", now);
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

    #[test]
    fn what_queues_do_is_counted() {
        let (mut q, mut rng) = (WorkQueue::default(), Rng::new(1));
        let at = |ms: i64| Time(ms * 1_000_000);
        q.add("a", at(0));
        q.add("a", at(1));
        assert_eq!(q.take(at(5)), Some("a"));
        // Asked for twice while it is worked on, and so once more.
        q.add("a", at(6));
        q.add("a", at(7));
        q.add("b", at(7));
        q.add_at("c", at(9000));
        q.add_failed("d", at(8000), &mut rng);
        let text = |q: &WorkQueue<&str>, now: Time| {
            let mut page = Page::default();
            tell(&mut page, "x_", &[("q", q)], now);
            page.text()
        };
        let check = |text: &str, lines: &[&str]| {
            for line in lines {
                assert!(text.lines().any(|told| told == *line), "{line} in\n{text}");
            }
        };
        check(
            &text(&q, at(2005)),
            &[
                "# TYPE x_workqueue_depth gauge",
                "x_workqueue_depth{name=\"q\"} 2",
                "x_workqueue_adds_total{name=\"q\"} 3",
                "x_workqueue_retries_total{name=\"q\"} 2",
                "x_workqueue_queue_duration_seconds_bucket{name=\"q\",le=\"1e-06\"} 0",
                "x_workqueue_queue_duration_seconds_sum{name=\"q\"} 0.005",
                "x_workqueue_work_duration_seconds_count{name=\"q\"} 0",
                "x_workqueue_unfinished_work_seconds{name=\"q\"} 2",
                "x_workqueue_longest_running_processor_seconds{name=\"q\"} 2",
            ],
        );
        q.done(&"a", at(25));
        // First b, which was there before a came back; then a, which has waited since it was asked for again.
        assert_eq!((q.take(at(27)), q.take(at(27))), (Some("b"), Some("a")));
        check(
            &text(&q, at(30)),
            &[
                "x_workqueue_depth{name=\"q\"} 0",
                "x_workqueue_adds_total{name=\"q\"} 3",
                "x_workqueue_queue_duration_seconds_count{name=\"q\"} 3",
                "x_workqueue_work_duration_seconds_sum{name=\"q\"} 0.02",
                "x_workqueue_unfinished_work_seconds{name=\"q\"} 0.006",
            ],
        );
    }
}
