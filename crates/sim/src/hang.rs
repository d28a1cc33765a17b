//! A process that hangs: what reaches it meanwhile is observed when it goes on, all of it, in the order in which it came.
//!
//! Another pause may begin before one is over. What came first is observed first even so: a watch that told of a bookmark
//! before the changes that it stands for would be no watch.
//!
//! A process that is stopped for long goes on with what it thinks it knows: its timers are due before it hears anything.

use std::collections::VecDeque;
use std::time::Duration;

use carrack_engine::Time;

/// A process that hung so lately may not have done yet what it had to.
const LATELY: Duration = Duration::from_secs(4);

/// Until when a process hangs, and what waits for it.
#[derive(Debug)]
pub(crate) struct Hang<T> {
    until: Time,
    /// What is due by itself goes before what is heard.
    own_first: bool,
    own: VecDeque<T>,
    held: VecDeque<T>,
}

impl<T> Default for Hang<T> {
    fn default() -> Self {
        Self { until: Time::default(), own_first: false, own: VecDeque::new(), held: VecDeque::new() }
    }
}

/// What becomes of something that reaches a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<T> {
    /// It is observed at once.
    Observed(T),
    /// It waits behind others.
    Waits,
    /// It waits, the first to do so: the process is to be looked at then.
    WaitsUntil(Time),
}

/// What a process observes that goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    Observed(T),
    /// It hangs once more.
    Hangs(Time),
    Nothing,
}

impl<T> Hang<T> {
    /// It hangs until then, or for as long as it would have hung anyway.
    pub(crate) fn hang(&mut self, until: Time) {
        self.until = self.until.max(until);
    }
    /// The same, and its own timers come first when it goes on.
    pub(crate) fn stall(&mut self, until: Time) {
        self.hang(until);
        self.own_first = true;
    }
    pub(crate) fn hangs(&self, now: Time) -> bool {
        now < self.until
    }
    /// Whether it hangs, or did a few seconds ago.
    pub(crate) fn hung(&self, now: Time) -> bool {
        now < self.until + LATELY
    }
    fn is_empty(&self) -> bool {
        self.own.is_empty() && self.held.is_empty()
    }
    /// Something reaches the process; a timer of its own, or something that it hears.
    pub(crate) fn arrive(&mut self, now: Time, thing: T, is_own: bool) -> Arrival<T> {
        let (first, hangs) = (self.is_empty(), self.hangs(now));
        self.own_first &= hangs || !first;
        if first && !hangs {
            return Arrival::Observed(thing);
        }
        let line = if is_own && hangs && self.own_first { &mut self.own } else { &mut self.held };
        line.push_back(thing);
        if first { Arrival::WaitsUntil(self.until) } else { Arrival::Waits }
    }
    /// What it observes next of what has waited.
    pub(crate) fn next(&mut self, now: Time) -> Next<T> {
        if self.hangs(now) && !self.is_empty() {
            return Next::Hangs(self.until);
        }
        self.own.pop_front().or_else(|| self.held.pop_front()).map_or(Next::Nothing, Next::Observed)
    }
    /// The process is gone, and with it what waited.
    pub(crate) fn forget(&mut self) {
        // Whoever was stopped is gone, and the next one is not.
        if std::mem::take(&mut self.own_first) {
            self.until = Time::default();
        }
        self.own.clear();
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Time {
        Time::from_unix_s(s)
    }

    /// What is observed, and when: pauses and arrivals, in the order of time.
    fn check(pauses: &[(i64, i64)], arrivals: &[(i64, char)], expected: &str) {
        let mut hang = Hang::default();
        let mut looks = std::collections::BTreeSet::new();
        let mut seen = String::new();
        for now in 0..40 {
            for (_, until) in pauses.iter().filter(|(begins, _)| *begins == now) {
                hang.hang(at(*until));
            }
            if looks.remove(&at(now)) {
                while let Next::Observed(thing) = hang.next(at(now)) {
                    seen.push(thing);
                }
                if let Next::Hangs(until) = hang.next(at(now)) {
                    looks.insert(until);
                }
                seen.push('|');
            }
            for (_, thing) in arrivals.iter().filter(|(arrives, _)| *arrives == now) {
                match hang.arrive(at(now), *thing, false) {
                    Arrival::Observed(thing) => seen.push(thing),
                    Arrival::Waits => {}
                    Arrival::WaitsUntil(until) => _ = looks.insert(until),
                }
            }
        }
        assert_eq!(seen, expected, "{pauses:?}");
    }

    #[test]
    fn what_waits_is_observed_in_its_order_however_pauses_overlap() {
        let arrivals = [(1, 'a'), (6, 'b'), (12, 'c'), (18, 'd')];
        check(&[], &arrivals, "abcd");
        check(&[(5, 10)], &arrivals, "ab|cd");
        // The second one ends before the first one does.
        check(&[(5, 15), (7, 9)], &arrivals, "abc|d");
        // It ends after the first one does.
        check(&[(5, 10), (7, 15)], &arrivals, "a|bc|d");
        check(&[(5, 13), (13, 20)], &arrivals, "a|bcd|");
    }

    #[test]
    fn who_was_stopped_for_long_acts_before_it_hears() {
        for (stalls, expected) in [(false, "haTb"), (true, "Thab")] {
            let mut hang = Hang::default();
            if stalls {
                hang.stall(at(90));
            } else {
                hang.hang(at(90));
            }
            let mut wakes = Vec::new();
            // What is heard in small letters, and one timer.
            for (s, thing) in [(1, 'h'), (2, 'a'), (50, 'T'), (60, 'b')] {
                match hang.arrive(at(s), thing, thing == 'T') {
                    Arrival::WaitsUntil(until) => wakes.push(until),
                    other => assert_eq!(other, Arrival::Waits),
                }
            }
            assert_eq!((wakes, hang.next(at(89))), (vec![at(90)], Next::Hangs(at(90))));
            let mut seen = String::new();
            while let Next::Observed(thing) = hang.next(at(90)) {
                seen.push(thing);
                // What is due from now on has not waited.
                if seen.len() == 1 {
                    assert_eq!(hang.arrive(at(90), 'N', true), Arrival::Waits);
                }
            }
            assert_eq!(seen, format!("{expected}N"));
            assert_eq!(hang.arrive(at(91), 'x', true), Arrival::Observed('x'));
        }
    }
}
