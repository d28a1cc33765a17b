//! Token buckets, each under a key, of which those stay that were used last.
//!
//! Upstream: `k8s.io/client-go/util/flowcontrol` (`NewTokenBucketRateLimiterWithClock`).

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::bucket::Bucket;
use jiff::Timestamp;

/// How fast buckets fill, and how much they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// Tokens a second.
    pub per_s: u32,
    /// Tokens in a full one.
    pub burst: u32,
}

/// Buckets of one rate. What was not used for longest is forgotten when there are too many; it is full when it comes again.
#[derive(Debug)]
pub(super) struct Buckets {
    rate: Rate,
    most: usize,
    /// When each was used last, as a number.
    by_key: BTreeMap<Arc<str>, (u64, Bucket)>,
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
}

impl Buckets {
    /// None yet, and never more than `most`.
    pub(super) fn new(rate: Rate, most: usize) -> Buckets {
        Buckets { rate, most, by_key: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// Takes a token from the bucket of this key, if there is one.
    pub(super) fn take(&mut self, key: &str, now: Timestamp) -> bool {
        self.uses += 1;
        let (key, mut bucket) = match self.by_key.remove_entry(key) {
            Some((key, (before, bucket))) => {
                self.by_use.remove(&before);
                (key, bucket)
            }
            None => {
                if self.by_key.len() >= self.most
                    && let Some((_, oldest)) = self.by_use.pop_first()
                {
                    self.by_key.remove(&oldest);
                }
                (Arc::from(key), Bucket::new(self.rate.per_s, self.rate.burst))
            }
        };
        let taken = bucket.take(now.into()).is_ok();
        self.by_use.insert(self.uses, Arc::clone(&key));
        self.by_key.insert(key, (self.uses, bucket));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + ms).expect("in range")
    }

    #[test]
    fn a_bucket_gives_what_is_in_it_and_fills_at_its_rate() {
        let mut buckets = Buckets::new(Rate { per_s: 2, burst: 3 }, 1);
        for (at, want) in [
            (0, true),
            (0, true),
            (0, true),
            (0, false),
            // Half a second is one of two a second, however often it was asked meanwhile.
            (250, false),
            (499, false),
            (500, true),
            (500, false),
            // Never more than is room for.
            (60_000, true),
            (60_000, true),
            (60_000, true),
            (60_000, false),
            // The clock is set back: nothing is filled in for that, and from then on as ever.
            (10_000, false),
            (10_499, false),
            (10_500, true),
        ] {
            assert_eq!(buckets.take("", at_ms(at)), want, "at {at} ms");
        }
    }

    #[test]
    fn the_largest_rate_does_not_overflow() {
        let most = i32::MAX.unsigned_abs();
        let mut buckets = Buckets::new(Rate { per_s: most, burst: most }, 1);
        assert!(buckets.take("", Timestamp::UNIX_EPOCH));
        assert!(buckets.take("", Timestamp::MAX));
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten() {
        let mut buckets = Buckets::new(Rate { per_s: 1, burst: 1 }, 2);
        for (key, want) in [("a", true), ("b", true), ("a", false), ("c", true), ("a", false), ("b", true), ("c", true)]
        {
            assert_eq!(buckets.take(key, at_ms(0)), want, "{key}");
            assert!(buckets.by_key.len() <= 2 && buckets.by_key.len() == buckets.by_use.len());
        }
    }
}
