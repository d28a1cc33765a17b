//! A machine's watchdog, behind virt-handler's effects.
//!
//! The kernel's own rules: who opens it starts it, or takes over one that runs; who is gone without having closed it leaves it
//! running; when it was not petted for its time, the machine is reset, and it is off.

use std::time::Duration;

use carrack_engine::Time;
use carrack_virt::handler::Reply;
use carrack_virt::handler::effects::{Armed, OpError, Outcome, WatchdogCall};

/// The device of one machine.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    /// What its driver makes of the time that it is asked for, in seconds; none where there is no device.
    pub timeout_s: Option<u32>,
    /// A planted bug: something pets it that knows nothing of promises.
    pub tame: bool,
    bites: Option<Time>,
}

impl Watchdog {
    /// A call takes effect. Returns after how long the machine is to be looked at.
    pub(super) fn call(&mut self, call: WatchdogCall, now: Time) -> (Outcome, Option<Duration>) {
        let Some(timeout_s) = self.timeout_s else {
            return (Err(OpError("the machine has no watchdog".into())), None);
        };
        let timeout = Duration::from_secs(timeout_s.into());
        let late = |limit: Option<Time>| limit.is_some_and(|limit| limit <= now);
        match call {
            WatchdogCall::Open { not_after, .. } | WatchdogCall::Pet { not_after } if late(not_after) => {
                (Err(OpError("it is too late for petting".into())), None)
            }
            WatchdogCall::Open { .. } => {
                self.bites = Some(now + timeout);
                let armed = Armed { identity: "simulated".into(), timeout_s, stays: false };
                (Ok(Reply::Armed(armed)), Some(timeout))
            }
            WatchdogCall::Pet { .. } if self.bites.is_none() => (Err(OpError("it is not open".into())), None),
            WatchdogCall::Pet { .. } => {
                self.bites = Some(now + timeout);
                (Ok(Reply::Done), Some(timeout))
            }
            WatchdogCall::Close => {
                self.bites = None;
                (Ok(Reply::Done), None)
            }
        }
    }

    /// Whether it resets the machine now.
    pub(super) fn bites(&self, now: Time) -> bool {
        !self.tame && self.bites.is_some_and(|at| at <= now)
    }

    /// Whether it runs, so that nobody else needs to see to the end of guests.
    pub(crate) fn runs(&self) -> bool {
        self.bites.is_some()
    }

    /// The machine is reset, or has no power.
    pub(super) fn power_off(&mut self) {
        self.bites = None;
    }
}
