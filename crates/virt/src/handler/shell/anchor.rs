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

/// One moment on both clocks.
pub(super) struct Anchor {
    clock: Clock,
    at: Mutex<(u64, Time)>,
}

impl Anchor {
    pub fn new(clock: Clock) -> Self {
        Self { clock, at: Mutex::new((now_ns(), clock.now())) }
    }

    /// A time of the core on the machine's clock since boot, in nanoseconds.
    ///
    /// # Errors
    /// The machine was suspended since the last call: what the core said rests on a time before.
    pub fn boot_ns(&self, at: Time) -> Result<u64, OpError> {
        // In this order: a pause between the two makes the result earlier, never later.
        let (boot_ns, now) = (now_ns(), self.clock.now());
        let mut last = lock(&self.at);
        let (passed, counted) = (Duration::from_nanos(boot_ns.saturating_sub(last.0)), now.since(last.1));
        *last = (boot_ns, now);
        if passed > counted + SUSPENDED {
            return Err(OpError("the machine was suspended; nothing from before counts".to_owned()));
        }
        Ok(boot_ns.saturating_add(u64::try_from(at.since(now).as_nanos()).unwrap_or(u64::MAX)))
    }
}
