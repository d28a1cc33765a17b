//! Whether the core goes on: one that hangs in a step, or that nobody steps any more, leaves every pod as it is, and only whoever
//! looks from outside can tell. Upstream reference: `SyncLoopHealthCheck` of `pkg/kubelet`, which also bears with a loop for
//! five minutes at least.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use carrack_engine::Time;
use carrack_engine::shell::Clock;

/// How long the core may take no step. It lists the runtime every second, so that this is never for want of work.
const LONGEST: Duration = Duration::from_secs(300);

/// When the core took its last step, for all who ask; nothing before its first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// The core's own, since the machine's may be set meanwhile.
    clock: Option<Clock>,
    last: Option<Time>,
}

impl Pulse {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        // Values are replaced whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock that steps are timed by.
    pub(crate) fn goes_by(&self, clock: Clock) {
        self.seen().clock = Some(clock);
    }

    /// A step begins.
    pub(crate) fn beat(&self, now: Time) {
        self.seen().last = Some(now);
    }

    /// Whether the core goes on.
    ///
    /// # Errors
    /// In upstream's words, that it does not.
    pub(crate) fn check(&self) -> Result<(), String> {
        let seen = self.seen();
        match (seen.clock, seen.last) {
            (Some(clock), Some(last)) if clock.now().since(last) > LONGEST => {
                Err("sync Loop took longer than expected".to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_stepped_for_long_is_not_well() {
        let (pulse, clock) = (Pulse::default(), Clock::default());
        assert_eq!(pulse.check(), Ok(()), "it has not begun");
        pulse.goes_by(clock);
        assert_eq!(pulse.check(), Ok(()), "nor now");
        let minute = Duration::from_secs(60);
        for (silent, is_well) in [(Duration::ZERO, true), (minute * 4, true), (minute * 6, false)] {
            pulse.beat(clock.now() - silent);
            assert_eq!(pulse.check().is_ok(), is_well, "{silent:?}");
        }
    }
}
