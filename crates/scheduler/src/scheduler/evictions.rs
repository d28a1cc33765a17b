//! Preemptions whose victims are being seen off, so that it is known how long that takes and whether it works. Upstream
//! has a goroutine for each, and measures that (`prepareCandidateAsync` in pkg/scheduler/framework/preemption).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;

/// One of them: what is asked of the API for each victim is not answered yet for so many.
#[derive(Debug)]
struct Eviction {
    begun: Time,
    left: usize,
    failed: bool,
}

/// All that are under way, by number.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    begun: u64,
    under_way: BTreeMap<u64, Eviction>,
}

impl Evictions {
    /// One begins, under a number of its own. It is under way as long as a victim is, so in this step one has to be
    /// added.
    pub fn begin(&mut self, now: Time) -> u64 {
        self.begun += 1;
        self.under_way.insert(self.begun, Eviction { begun: now, left: 0, failed: false });
        self.begun
    }
    /// Another victim is being seen off.
    pub fn add(&mut self, number: u64) {
        if let Some(eviction) = self.under_way.get_mut(&number) {
            eviction.left += 1;
        }
    }
    /// A victim has gone, or its deletion was asked for; or that has failed. Tells how long all of them took and
    /// whether none has failed, when it was the last one.
    pub fn over(&mut self, now: Time, number: u64, success: bool) -> Option<(Duration, bool)> {
        let eviction = self.under_way.get_mut(&number)?;
        eviction.left = eviction.left.saturating_sub(1);
        eviction.failed |= !success;
        if eviction.left > 0 {
            return None;
        }
        let eviction = self.under_way.remove(&number)?;
        Some((now.since(eviction.begun), !eviction.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_lasts_until_its_last_victim_and_succeeds_with_all() {
        let at = |s: i64| Time::from_unix_s(s);
        let mut evictions = Evictions::default();
        let (one, two) = (evictions.begin(at(0)), evictions.begin(at(1)));
        for number in [one, one, two] {
            evictions.add(number);
        }
        assert_eq!(evictions.over(at(2), one, false), None);
        assert_eq!(evictions.over(at(3), two, true), Some((Duration::from_secs(2), true)));
        assert_eq!(evictions.over(at(5), one, true), Some((Duration::from_secs(5), false)));
        assert_eq!(evictions.over(at(6), one, true), None, "it is over");
        assert!(evictions.under_way.is_empty());
    }
}
