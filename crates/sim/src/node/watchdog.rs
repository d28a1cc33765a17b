//! A machine's watchdog, behind virt-handler's effects.
//!
//! The kernel's own rules: who opens it starts it, or takes over one that runs; who is gone without having closed it leaves it
//! running; when it was not petted for its time, the machine is reset, and it is off.
//!
//! Who may pet it follows from what the machine and the network show, and not from what an agent says: until when the node's
//! promise lets guests live, by the renewals of its Lease that its agent knows of, and whether there are any guests at all.

use std::time::Duration;

use carrack_engine::Time;
use carrack_virt::fence::{GUEST_RUNS, RESET_AFTER};
use carrack_virt::handler::Reply;
use carrack_virt::handler::effects::{Armed, OpError, Outcome, WatchdogCall};

/// The invariant: who may pet a watchdog does.
pub(crate) const NAME: &str = "healthy-hosts-stay-up";
/// For so long an agent must have been able to pet the watchdog before a reset is its fault: it tries again every two seconds
/// to open it.
const ENOUGH: Duration = Duration::from_secs(4);
/// When no guest has been there for so long, an agent knows it.
const KNOWN_AFTER: Duration = Duration::from_secs(20);
/// What an agent asks for, in seconds; it takes it that a device which it left running is still set to that.
const ASKED_FOR_S: u32 = 8;
/// The most that an agent that has not opened the device must be ready for, in seconds.
const MOST_S: u32 = 10;
/// The device takes at most so long.
pub(super) const SLOWEST: Duration = Duration::from_millis(1500);

/// The device of one machine.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    /// What its driver makes of the time that it is asked for, in seconds; none where there is no device.
    pub timeout_s: Option<u32>,
    /// A planted bug: something pets it that knows nothing of promises.
    pub tame: bool,
    /// A planted bug: it is taken for closed when it did not take its closing.
    pub half_closed: bool,
    bites: Option<Time>,
    /// The agent that is there has opened it, and knows that.
    opened: bool,
    /// Since when an agent has been there that may pet it without a gap, and until when it may.
    may_pet: Option<(Time, Time)>,
    /// Since when an agent has been there and no guest.
    idle_since: Option<Time>,
}

impl Watchdog {
    /// What an agent that starts finds written down: what the device is set to, if it was left running.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.bites.and(self.timeout_s).map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// An agent is there and gets to do something. The newest renewal of the node's Lease that it knows of was sent then; and
    /// there may be no guests.
    pub(super) fn agent_is_there(&mut self, now: Time, renewed: Option<Time>, idle: bool) {
        self.idle_since = if idle { self.idle_since.or(Some(now)) } else { None };
        let by_lease = renewed.map(|sent| sent + GUEST_RUNS + RESET_AFTER - self.known_timeout());
        let by_idleness = self.idle_since.filter(|since| *since + KNOWN_AFTER <= now).map(|_| Time(i64::MAX));
        let until = by_idleness.or(by_lease);
        let since = self.may_pet.filter(|(_, until)| now <= *until).map_or(now, |(since, _)| since);
        self.may_pet = until.filter(|until| now <= *until).map(|until| (since, until));
    }

    /// There is no agent any more.
    pub(super) fn agent_died(&mut self) {
        self.opened = false;
        self.may_pet = None;
        self.idle_since = None;
    }

    /// After how long without a petting it bites, as far as the agent can know.
    fn known_timeout(&self) -> Duration {
        let known = self.timeout_s.filter(|timeout_s| self.opened || *timeout_s == ASKED_FOR_S);
        Duration::from_secs(known.unwrap_or(MOST_S).into())
    }

    /// Whether somebody could have petted it for long enough.
    pub(crate) fn was_neglected(&self, now: Time) -> bool {
        self.may_pet.is_some_and(|(since, until)| since + ENOUGH <= now && now <= until)
    }

    /// It refuses a call, before or after its effect.
    pub(super) fn refuse(&mut self, call: WatchdogCall, before: bool, now: Time) -> (Outcome, Option<Duration>) {
        if self.half_closed && call == WatchdogCall::Close {
            return (Ok(Reply::Done), None);
        }
        if let Some((since, _)) = &mut self.may_pet {
            *since = now;
        }
        self.opened &= matches!(call, WatchdogCall::Pet { .. });
        // Who has opened it knows that.
        let before = before || matches!(call, WatchdogCall::Open { .. });
        let look = if before { None } else { self.call(call, now).1 };
        (Err(OpError("the watchdog hiccups".into())), look)
    }

    /// A call takes effect. Returns after how long the machine is to be looked at.
    pub(super) fn call(&mut self, call: WatchdogCall, now: Time) -> (Outcome, Option<Duration>) {
        let Some(timeout_s) = self.timeout_s else {
            return (Err(OpError("the machine has no watchdog".into())), None);
        };
        let timeout = Duration::from_secs(timeout_s.into());
        let late = |limit: Option<Time>| limit.is_some_and(|limit| limit <= now);
        match call {
            WatchdogCall::Open { not_after, .. } | WatchdogCall::Pet { not_after } if late(not_after) => {
                (Ok(Reply::TooLate), None)
            }
            WatchdogCall::Open { .. } => {
                self.bites = Some(now + timeout);
                self.opened = true;
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
                self.opened = false;
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
        self.opened = false;
    }
}
