//! A token bucket: so many at once, and so many a second after that, as client-go's `flowcontrol` has it.
//!
//! It is told what time it is; a clock that was set back fills nothing in, and from then on as ever.

use std::time::Duration;

use crate::Time;

/// How often something may be done.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// How long one more takes to come.
    every: Duration,
    /// How long all of them take.
    whole: Duration,
    /// When it is full again, if nothing is taken meanwhile.
    full_at: Time,
}

impl Bucket {
    /// A full one. Less than one a second, or at once, is one.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let every = Duration::from_secs(1) / per_second.max(1);
        Self { every, whole: every * burst.max(1), full_at: Time::default() }
    }

    /// Takes one.
    ///
    /// # Errors
    /// When the next one is there, if none is now.
    pub fn take(&mut self, now: Time) -> Result<(), Time> {
        // An empty one takes no longer than that, whatever the clock said before.
        self.full_at = self.full_at.clamp(now, now + self.whole);
        let full_at = self.full_at + self.every;
        let next = full_at - self.whole;
        if next > now {
            return Err(next);
        }
        self.full_at = full_at;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_and_so_many_a_second() {
        let start = Time::from_unix_s(1_000);
        let ms = Duration::from_millis;
        let mut bucket = Bucket::new(10, 3);
        for (after_ms, expected_ms) in [
            (0, None),
            (0, None),
            (0, None),
            (0, Some(100)),
            (99, Some(100)),
            (100, None),
            (100, Some(200)),
            (350, None),
            (350, None),
            (350, Some(400)),
            // It is never more than full.
            (9_000, None),
            (9_000, None),
            (9_000, None),
            (9_000, Some(9_100)),
            // The clock is set back.
            (5_000, Some(5_100)),
            (5_099, Some(5_100)),
            (5_100, None),
        ] {
            let expected = expected_ms.map_or(Ok(()), |at| Err(start + ms(at)));
            assert_eq!(bucket.take(start + ms(after_ms)), expected, "{after_ms}");
        }
    }
}
