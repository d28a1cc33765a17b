//! How often an instance's status is written.
//!
//! What a guest does with its devices, and whoever is in its container, changes the status as often as they like: the port of
//! an agent that opens and closes is two changes. Each of them would be a write, and news for all that watch instances. A guest
//! has some writes at once, which is more than one that behaves ever needs, and then one every few seconds. Its phase is told
//! at any time.

use std::time::Duration;

use carrack_engine::Time;

/// How often one may be written in the long run.
const SHARE: Duration = Duration::from_secs(2);
/// How much of that may be taken in advance: thirty writes and the next.
const ADVANCE: Duration = Duration::from_secs(60);

/// The writes of one instance's status.
#[derive(Default)]
pub(super) struct Pace {
    /// When they would be over, had each had its time.
    until: Option<Time>,
    /// A timer is set for this time.
    pub wake_at: Option<Time>,
}

impl Pace {
    /// It was written.
    pub fn wrote(&mut self, now: Time) {
        self.until = Some(self.until.map_or(now, |until| until.max(now)) + SHARE);
    }

    /// When it may be written again, if it may not yet.
    pub fn waits_until(&self, now: Time) -> Option<Time> {
        let ahead = self.until?.since(now);
        ahead.checked_sub(ADVANCE).filter(|wait| !wait.is_zero()).map(|wait| now + wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_at_once_and_then_one_every_two_seconds() {
        let mut pace = Pace::default();
        let mut now = Time::from_unix_s(1_000_000);
        let writes = |pace: &mut Pace, now: Time| {
            let mut count = 0;
            while pace.waits_until(now).is_none() && count < 1000 {
                pace.wrote(now);
                count += 1;
            }
            count
        };
        assert_eq!(writes(&mut pace, now), 31);
        assert_eq!(pace.waits_until(now), Some(now + SHARE));
        now = now + SHARE;
        assert_eq!(writes(&mut pace, now), 1);
        now = now + Duration::from_secs(20);
        assert_eq!(writes(&mut pace, now), 10);
        now = now + Duration::from_secs(3600);
        assert_eq!(writes(&mut pace, now), 31);
    }
}
