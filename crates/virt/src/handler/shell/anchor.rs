//! Turns the core's times into times of the machine's own clock, which other processes on it share.

use std::sync::Mutex;
use std::time::Duration;

use carrack_engine::Time;
use carrack_engine::shell::Clock;
use carrack_launcher::promise::now_ns;

use super::lock;
use crate::handler::effects::OpError;

/// The core's clock stands still while the machine is suspended, the machine's own does not: a difference above this is a
/// suspension.
const SUSPENDED: Duration = Duration::from_millis(100);

/// How often both clocks are read for a moment at which nothing comes between.
const READINGS: u32 = 16;

/// One moment on both clocks, and what is known of suspensions.
struct Known {
    boot_ns: u64,
    now: Time,
    /// When the last suspension was found out, on the core's clock.
    resumed: Option<Time>,
}

/// What relates the two clocks.
pub(super) struct Anchor {
    clock: Clock,
    known: Mutex<Known>,
}

/// Reads both clocks, the machine's first: a pause between the two makes what is converted with them earlier, never later. But
/// whoever compares them later would take it for a suspension, so that they are read anew where there was one.
fn both(mut machine_ns: impl FnMut() -> u64, mut core: impl FnMut() -> Time) -> (u64, Time) {
    let mut read = || (machine_ns(), core(), machine_ns());
    let close = |(first, _, last): &(u64, Time, u64)| Duration::from_nanos(last.saturating_sub(*first)) < SUSPENDED / 2;
    let mut found = read();
    for _ in 1..READINGS {
        if close(&found) {
            break;
        }
        found = read();
    }
    (found.0, found.1)
}

impl Anchor {
    pub fn new(clock: Clock) -> Self {
        let (boot_ns, now) = both(now_ns, || clock.now());
        Self { clock, known: Mutex::new(Known { boot_ns, now, resumed: None }) }
    }

    /// A time of the core on the machine's clock since boot, in nanoseconds. It lies `after` what it rests on: the moment at
    /// which the Lease's renewal was sent.
    ///
    /// # Errors
    /// What it rests on was before the machine was suspended.
    pub fn boot_ns(&self, at: Time, after: Duration) -> Result<u64, OpError> {
        let (boot_ns, now) = both(now_ns, || self.clock.now());
        if lock(&self.known).look(boot_ns, now).is_some_and(|resumed| at <= resumed + after) {
            return Err(OpError("the machine was suspended; nothing from before counts".to_owned()));
        }
        Ok(boot_ns.saturating_add(u64::try_from(at.since(now).as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Known {
    /// Sees both clocks. Returns when the last suspension was found out: at every look after it, whoever asked first.
    fn look(&mut self, boot_ns: u64, now: Time) -> Option<Time> {
        let (passed, counted) = (Duration::from_nanos(boot_ns.saturating_sub(self.boot_ns)), now.since(self.now));
        if passed > counted + SUSPENDED {
            self.resumed = Some(now);
        }
        (self.boot_ns, self.now) = (self.boot_ns.max(boot_ns), self.now.max(now));
        self.resumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_is_known_to_whoever_asks_after_it() {
        let at = |ms: u64| Time::from_unix_s(1000) + Duration::from_millis(ms);
        let mut known = Known { boot_ns: 5_000_000_000, now: at(0), resumed: None };
        assert_eq!(known.look(6_000_000_000, at(1000)), None);
        assert_eq!(known.look(5_900_000_000, at(900)), None, "who was overtaken");
        assert_eq!(known.look(7_050_000_000, at(2000)), None, "a short pause between the two clocks");
        assert_eq!(known.look(60_000_000_000, at(2100)), Some(at(2100)));
        assert_eq!(known.look(61_000_000_000, at(3100)), Some(at(2100)), "and the next one, too");
    }

    #[test]
    fn a_pause_between_the_two_clocks_is_no_suspension() {
        let at = |ms: u64| Time::from_unix_s(1000) + Duration::from_millis(ms);
        let mut known = Known { boot_ns: 5_000_000_000, now: at(0), resumed: None };
        // The process is held up for a second between the first two of these.
        let mut machine = [6_000_000_000, 7_000_000_001, 7_000_000_002, 7_000_000_003].into_iter();
        let mut core = [at(2000), at(2000)].into_iter();
        let (boot_ns, now) = both(|| machine.next().expect("no more"), || core.next().expect("no more"));
        assert_eq!(boot_ns, 7_000_000_002);
        assert_eq!(known.look(boot_ns, now), None);
        assert_eq!(known.look(8_000_000_000, at(3000)), None);
    }

    #[test]
    fn what_rests_on_a_time_before_a_suspension_is_refused_for_good() {
        let clock = Clock::default();
        let (anchor, now) = (Anchor::new(clock), clock.now());
        let (promise, second) = (Duration::from_secs(8), Duration::from_secs(1));
        assert!(anchor.boot_ns(now + promise, promise).is_ok());
        lock(&anchor.known).resumed = Some(now);
        assert!(anchor.boot_ns(now + promise - second, promise).is_err());
        assert!(anchor.boot_ns(now + promise - second, promise).is_err());
        assert!(anchor.boot_ns(now + promise + second, promise).is_ok(), "renewed since");
    }
}
