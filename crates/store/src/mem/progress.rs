//! When watchers that a commit does not concern are told that they know everything up to it.
//!
//! Whoever waits until a cache has reached a revision waits for this, so it is soon. But it is a line to every watcher, and
//! so it must neither follow every heartbeat nor grow with the crowd: what only heartbeats have moved on is told at leisure,
//! and no more than [`ROUND`] watchers are told at a time, those that are left after another [`SOON`].

use std::ops::Add;
use std::time::Duration;

use super::published::Published;
use super::state::event_key;
use super::watch::WatcherId;
use crate::model::Event;

/// How long after a commit its revision is told.
const SOON: Duration = Duration::from_millis(50);
/// The same, when all that it did is to renew Leases and to tell events: nobody decides anything by them but who watches them.
/// Who begins to hold a Lease waits until it knows what was written before.
const LEISURE: Duration = Duration::from_secs(1);
/// Where those are, in upstream's layout of keys.
const LEASES: &str = "/registry/leases/";
const EVENTS: &str = "/registry/events/";
/// What a renewal of a Lease leaves as it was.
const HELD_SINCE: &[u8] = b"\"acquireTime\":";
/// How many watchers are told at a time.
pub(crate) const ROUND: usize = 256;

/// After how long the revision of a commit with these changes is told.
pub(crate) fn wait_after(events: &[Event]) -> Duration {
    let is_heartbeat = |event: &Event| {
        let key = event_key(event);
        key.starts_with(EVENTS) || key.starts_with(LEASES) && is_renewal(event)
    };
    if events.iter().all(is_heartbeat) { LEISURE } else { SOON }
}

/// Whether a Lease is held as it was before. In doubt it is: a node's Lease does not tell since when.
fn is_renewal(event: &Event) -> bool {
    let (Some(before), Some(now)) = (&event.previous, &event.current) else { return true };
    held_since(&before.value()) == held_since(&now.value())
}

fn held_since(lease: &[u8]) -> Option<&[u8]> {
    let at = lease.windows(HELD_SINCE.len()).position(|part| part == HELD_SINCE)? + HELD_SINCE.len();
    let rest = &lease[at..];
    rest.iter().position(|byte| matches!(byte, b',' | b'}')).map(|end| &rest[..end])
}

/// The pace of a store with a clock.
pub(crate) struct Pace<T> {
    due: Option<T>,
    /// The last watcher of the round before.
    after: WatcherId,
}

impl<T: Copy + Ord + Add<Duration, Output = T>> Pace<T> {
    pub(crate) fn new() -> Self {
        Self { due: None, after: WatcherId::default() }
    }

    /// When [`Pace::tell`] is to be called.
    pub(crate) fn due(&self) -> Option<T> {
        self.due
    }

    /// The revision has moved on, with these changes or with none that are seen here.
    pub(crate) fn committed(&mut self, now: T, events: &[Event]) {
        self.due_at(now + wait_after(events));
    }

    /// Tells those whose turn it is, when it is time.
    pub(crate) fn tell(&mut self, now: T, published: &Published) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        if let Some(last) = published.wake_some_behind(self.after, ROUND) {
            self.after = last;
            self.due_at(now + SOON);
        }
    }

    fn due_at(&mut self, at: T) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use futures::StreamExt as _;

    use super::*;
    use crate::mem::State;
    use crate::model::{Op, Txn, Value, Watch, WatchItem};
    use crate::packer::Packer;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A store's parts under a crowd of watchers that have drained everything, and count how often they are woken.
    struct Crowd {
        published: Arc<Published>,
        watches: Vec<(Watch, Arc<Count>)>,
        pace: Pace<Duration>,
    }

    impl Crowd {
        fn new(count: usize) -> Self {
            let published = Published::new(State::new(), 16, Packer::at_once());
            let watches = (0..count)
                .map(|i| {
                    let watch = published.watch(&format!("/registry/pods/{i}/"), published.visible()).expect("a watch");
                    (watch, Arc::new(Count(AtomicUsize::new(0))))
                })
                .collect();
            let mut crowd = Self { published, watches, pace: Pace::new() };
            crowd.drain(true);
            crowd
        }

        /// Polls those that were woken, or all, until they wait. Returns how many were told of progress.
        fn drain(&mut self, all: bool) -> usize {
            let mut told = 0;
            for (watch, count) in &mut self.watches {
                if count.0.swap(0, Ordering::Relaxed) == 0 && !all {
                    continue;
                }
                let waker = Waker::from(Arc::clone(count));
                let mut cx = Context::from_waker(&waker);
                while let std::task::Poll::Ready(Some(item)) = watch.poll_next_unpin(&mut cx) {
                    told += usize::from(matches!(item, Ok(WatchItem::Progress(_))));
                }
            }
            told
        }

        fn commit(&mut self, now: Duration, key: &str) {
            self.put(now, key, "{}");
        }

        fn put(&mut self, now: Duration, key: &str, value: &'static str) {
            let mut state = State::clone(&self.published.state());
            let mut events = Vec::new();
            let value = Value { bytes: value.into(), stamp_at: None };
            let ops = vec![Op::Put(key.into(), value)];
            state.apply(Txn { checks: Vec::new(), ops }, &mut events).expect("it holds");
            self.published.publish(state, &events);
            self.pace.committed(now, &events);
        }

        fn tell(&mut self, now: Duration) -> usize {
            self.pace.tell(now, &self.published);
            self.drain(false)
        }
    }

    #[test]
    fn heartbeats_are_told_at_leisure_and_all_else_soon() {
        let mut crowd = Crowd::new(3);
        crowd.commit(Duration::ZERO, "/registry/leases/a/b");
        assert_eq!(crowd.pace.due(), Some(LEISURE));
        crowd.commit(SOON, "/registry/events/a/b");
        assert_eq!(crowd.pace.due(), Some(LEISURE), "the first one counts");
        crowd.commit(SOON, "/registry/services/specs/a/b");
        assert_eq!(crowd.pace.due(), Some(SOON * 2));
        assert_eq!(crowd.tell(SOON), 0, "not yet");
        assert_eq!(crowd.tell(SOON * 2), 3);
        assert_eq!(crowd.pace.due(), None);
        assert_eq!(crowd.tell(LEISURE), 0, "all have been told");
    }

    /// A leader that takes over acts once it knows what was written before.
    #[test]
    fn who_begins_to_hold_a_lease_is_told_soon() {
        let mut crowd = Crowd::new(1);
        for (value, due) in [
            (r#"{"spec":{"acquireTime":"1","renewTime":"1"}}"#, LEISURE),
            (r#"{"spec":{"acquireTime":"1","renewTime":"2"}}"#, LEISURE),
            (r#"{"spec":{"acquireTime":"3","renewTime":"3"}}"#, SOON),
            (r#"{"spec":{"renewTime":"4"}}"#, SOON),
            (r#"{"spec":{"renewTime":"5"}}"#, LEISURE),
        ] {
            crowd.put(Duration::ZERO, "/registry/leases/kube-system/l", value);
            assert_eq!(crowd.pace.due(), Some(due), "{value}");
            crowd.pace.due = None;
        }
    }

    #[test]
    fn a_crowd_is_told_in_rounds_and_nobody_is_left_out() {
        let mut crowd = Crowd::new(ROUND * 2 + 10);
        crowd.commit(Duration::ZERO, "/registry/services/specs/a/b");
        let mut told = Vec::new();
        let mut now = SOON;
        while crowd.pace.due().is_some() {
            told.push(crowd.tell(now));
            if told.len() == 1 {
                // What is committed meanwhile does not put those off whose turn it is.
                crowd.commit(now, "/registry/services/specs/a/c");
            }
            now += SOON;
        }
        assert_eq!(told, [ROUND, ROUND, ROUND, 10]);
    }
}
