//! Preemptions whose victims are being seen off, so that it is known how long that takes and whether it works. Upstream
//! has a goroutine for each, and measures that (`prepareCandidateAsync` in pkg/scheduler/framework/preemption).
//!
//! The last victim waits for the others, as upstream's does: where one of them cannot be made to go, the node will not
//! become free, and who is left may stay.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;

/// One of them: what is asked of the API for each victim is not answered yet for so many.
#[derive(Debug)]
struct Eviction<V> {
    begun: Time,
    left: usize,
    failed: bool,
    /// Who goes when all others do.
    last: Option<Box<V>>,
}

/// All that are under way, by number.
#[derive(Debug)]
pub(super) struct Evictions<V> {
    begun: u64,
    under_way: BTreeMap<u64, Eviction<V>>,
}

/// What comes next when a victim has been seen off.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<V> {
    /// The others.
    Others,
    /// The last one, which counts as being seen off now.
    Last(Box<V>),
    /// Nothing: how long all of them took, whether none has failed, and who may stay since one has.
    Over(Duration, bool, Option<Box<V>>),
}

impl<V> Default for Evictions<V> {
    fn default() -> Self {
        Self { begun: 0, under_way: BTreeMap::new() }
    }
}

impl<V> Evictions<V> {
    /// One begins, under a number of its own. It is under way as long as a victim is, so in this step one has to be
    /// added.
    pub fn begin(&mut self, now: Time) -> u64 {
        self.begun += 1;
        self.under_way.insert(self.begun, Eviction { begun: now, left: 0, failed: false, last: None });
        self.begun
    }
    /// Another victim is being seen off.
    pub fn add(&mut self, number: u64) {
        if let Some(eviction) = self.under_way.get_mut(&number) {
            eviction.left += 1;
        }
    }
    /// A victim waits for all others.
    pub fn keep_for_last(&mut self, number: u64, victim: V) {
        if let Some(eviction) = self.under_way.get_mut(&number) {
            eviction.last = Some(Box::new(victim));
        }
    }
    /// Whether a victim could not be made to go, so that no other one need go.
    pub fn has_failed(&self, number: u64) -> bool {
        self.under_way.get(&number).is_some_and(|eviction| eviction.failed)
    }
    /// A victim has gone, or its deletion was asked for; or that has failed. Nothing comes next where nothing is known
    /// of it.
    pub fn over(&mut self, now: Time, number: u64, success: bool) -> Option<Next<V>> {
        let eviction = self.under_way.get_mut(&number)?;
        eviction.left = eviction.left.saturating_sub(1);
        eviction.failed |= !success;
        if eviction.left > 0 {
            return Some(Next::Others);
        }
        if let Some(last) = eviction.last.take_if(|_| !eviction.failed) {
            eviction.left = 1;
            return Some(Next::Last(last));
        }
        let eviction = self.under_way.remove(&number)?;
        Some(Next::Over(now.since(eviction.begun), !eviction.failed, eviction.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_lasts_until_its_last_victim_and_succeeds_with_all() {
        let at = |s: i64| Time::from_unix_s(s);
        let mut evictions = Evictions::<()>::default();
        let (one, two) = (evictions.begin(at(0)), evictions.begin(at(1)));
        for number in [one, one, two] {
            evictions.add(number);
        }
        let over = |took_s: u64, success: bool| Some(Next::Over(Duration::from_secs(took_s), success, None));
        assert_eq!(evictions.over(at(2), one, false), Some(Next::Others));
        assert!(evictions.has_failed(one) && !evictions.has_failed(two));
        assert_eq!(evictions.over(at(3), two, true), over(2, true));
        assert_eq!(evictions.over(at(5), one, true), over(5, false));
        assert_eq!(evictions.over(at(6), one, true), None, "it is over");
        assert!(evictions.under_way.is_empty());
    }

    #[test]
    fn the_last_one_goes_only_when_all_others_do() {
        let at = |s: i64| Time::from_unix_s(s);
        for fails in [false, true] {
            let mut evictions = Evictions::default();
            let number = evictions.begin(at(0));
            evictions.add(number);
            evictions.add(number);
            evictions.keep_for_last(number, "last");
            assert_eq!(evictions.over(at(1), number, !fails), Some(Next::Others));
            let next = evictions.over(at(2), number, true);
            let last = Box::new("last");
            if fails {
                assert_eq!(next, Some(Next::Over(Duration::from_secs(2), false, Some(last))));
            } else {
                assert_eq!(next, Some(Next::Last(last)));
                let over = Next::Over(Duration::from_secs(3), true, None);
                assert_eq!(evictions.over(at(3), number, true), Some(over));
            }
            assert!(evictions.under_way.is_empty());
        }
    }
}
