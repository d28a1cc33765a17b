//! What happens next: events ordered by time, and by number where the times are equal.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;

/// A queue of events, and the clock that it drives.
pub(crate) struct Queue<E> {
    now: Time,
    next: u64,
    events: BTreeMap<(Time, u64), E>,
}

impl<E> Queue<E> {
    pub(crate) fn new(now: Time) -> Self {
        Self { now, next: 0, events: BTreeMap::new() }
    }

    /// The time of the event that was taken last.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Puts an event at a time; one in the past happens now.
    pub(crate) fn at(&mut self, at: Time, event: E) {
        self.next += 1;
        self.events.insert((at.max(self.now), self.next), event);
    }

    pub(crate) fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Takes the next event and moves the clock to it.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_in_order() {
        let start = Time::from_unix_s(100);
        let mut queue = Queue::new(start);
        queue.after(Duration::from_secs(2), "c");
        queue.after(Duration::from_secs(1), "a");
        queue.after(Duration::from_secs(1), "b");
        queue.at(Time::from_unix_s(1), "now");
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), ["now", "a", "b", "c"]);
        assert_eq!(queue.now(), start + Duration::from_secs(2));
    }
}
