//! When the machine's watchdog is opened, petted and closed: what ends guests when no process on the node does.
//!
//! ```text
//!   handler: sent ─▶ acknowledged     guests stop   what is left is killed      reset at the latest
//!              │ ◀────────── 8 s ─────────▶│ ◀── 1 s ──▶│                              │
//!              │ ◀─ petted by then ─▶ ◀─────────── the watchdog's time ───────────────▶│   observer's 13 s: later
//! ```
//!
//! Monitors keep the node's promise (see [`crate::fence`]), and the handler kills what they leave. Where neither can, because
//! every process of ours is dead or hangs, the kernel's watchdog resets the machine: it is petted only as long as the reset
//! that would follow the last petting comes within [`RESET_AFTER`] of the promise's end, or while no guest is left that runs
//! under the promise. A late petting would be a broken promise, so the shell looks at the time once more.
//!
//! ```text
//!   closed ─ a guest is about to run under the Lease ─▶ open ─▶ armed ─ none is left ─▶ closed (in good order)
//!                                                        └─▶ failed ─ a little later ─▶ open …
//! ```
//!
//! It is armed only while such a guest is there: an agent that is killed, or put to another version, on a node without any
//! costs nothing. A watchdog that its driver lets nobody close is petted from then on, whatever runs.
//!
//! Upstream of the device's behaviour: the kernel's `Documentation/watchdog/watchdog-api.rst`.

use std::time::Duration;

use carrack_engine::Time;

use crate::fence::{GUEST_RUNS, RESET_AFTER};
use crate::handler::effects::{Armed, Outcome, Reply, WatchdogCall};

/// What the watchdog is set to: a handler may hang for as long as guests may run without it.
const TIMEOUT: Duration = GUEST_RUNS;
/// A driver may make less of it, or more: with less than this the machine would be reset for nothing, with more there would
/// hardly be a time at which it may be petted.
const USABLE: std::ops::RangeInclusive<Duration> = Duration::from_secs(6)..=Duration::from_secs(10);
/// Wait before a watchdog is tried again that cannot be had: a former process of ours may be about to let go of it.
const RETRY: Duration = Duration::from_secs(2);
/// Wait before one is tried again that is of no use.
const RETRY_UNFIT: Duration = Duration::from_secs(600);
/// Wait after a petting that failed.
const PET_AGAIN: Duration = Duration::from_millis(500);
/// The last petting before nobody may is sent so much earlier, for its way.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// What a call in flight is; until when it may pet, and when it was decided.
#[derive(Clone, Copy, Debug)]
enum Flight {
    Opens(Option<Time>),
    Pets(Option<Time>, Time),
    Closes,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed,
    /// It cannot be had, or not be used. Not tried before that time.
    Failed(Time),
    Armed {
        /// It resets the machine so long after a petting.
        timeout: Duration,
        /// Closing does not stop it.
        stays: bool,
    },
}

/// What the node's guests ask of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::handler) struct Need {
    /// A guest runs under the Lease, or is about to.
    pub wanted: bool,
    /// It is a fact that none runs.
    pub clean: bool,
    /// Until when guests were last promised to run.
    pub promised: Option<Time>,
}

/// The machine's watchdog.
pub(in crate::handler) struct Watchdog {
    asked_for: bool,
    timeout: Duration,
    /// None is left that an earlier process may have left armed, which is taken over whatever runs.
    tried: bool,
    /// What an earlier process has set it to, as the kernel shows it.
    set_to: Option<Duration>,
    state: State,
    flight: Option<Flight>,
    due: Time,
    /// After a petting that failed, not before that.
    not_before: Time,
    /// When it was petted last, as the core knows.
    petted: Time,
    /// It has bitten by then, unless it is petted again.
    bites_by: Time,
    said: Option<String>,
}

impl Watchdog {
    /// One that nobody asked for is never touched.
    pub fn new(asked_for: bool) -> Self {
        Self {
            asked_for,
            timeout: TIMEOUT,
            tried: true,
            set_to: None,
            state: State::Closed,
            flight: None,
            due: Time::default(),
            not_before: Time::default(),
            petted: Time::default(),
            bites_by: Time::default(),
            said: None,
        }
    }

    /// An earlier process may have left it armed, set to this time where that is known.
    pub fn taking_over(mut self, set_to: Option<Duration>) -> Self {
        self.tried = false;
        self.set_to = set_to;
        self
    }

    /// Set to less than usual.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether guests may start under a promise: it bites in time, or it is known that it cannot. While nobody ran it may
    /// have been petted, or be about to be, when that would be too late for a guest.
    pub fn is_settled(&self, promised: Option<Time>) -> bool {
        match self.state {
            _ if !self.asked_for => true,
            State::Closed => false,
            State::Failed(_) if matches!(self.flight, Some(Flight::Opens(_))) => false,
            State::Armed { timeout, .. } if USABLE.contains(&timeout) => {
                let unbounded = matches!(self.flight, Some(Flight::Opens(None) | Flight::Pets(None, _)));
                !unbounded && promised.is_some_and(|until| self.bites_by <= until + RESET_AFTER)
            }
            State::Failed(_) | State::Armed { .. } => true,
        }
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Armed { .. })
    }

    /// How it stands, for people.
    pub fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// Until when petting is allowed, for a watchdog that bites so long after; `Err` when it is not, by what is known now.
    fn not_after(need: &Need, timeout: Duration) -> Result<Option<Time>, ()> {
        if need.clean {
            return Ok(None);
        }
        let until = need.promised.ok_or(())?;
        Ok(Some(until + RESET_AFTER - timeout))
    }

    /// What it will be set to once it is open, at most: what its driver makes of the time is not known before, unless one who
    /// asked for the same has got exactly that.
    fn at_most(&self) -> Duration {
        self.set_to.filter(|set_to| *set_to == self.timeout).unwrap_or(*USABLE.end())
    }

    /// What to ask of it now, and when to look again at the latest.
    pub fn next(&mut self, now: Time, need: &Need) -> (Option<WatchdogCall>, Option<Time>) {
        if !self.asked_for || self.flight.is_some() {
            return (None, None);
        }
        match self.state {
            State::Failed(until) if now < until => (None, (need.wanted || !self.tried).then_some(until)),
            State::Closed | State::Failed(_) => {
                let limit = Self::not_after(need, self.at_most());
                match limit.ok().filter(|_| need.wanted || !self.tried) {
                    Some(_) if now < self.not_before => (None, Some(self.not_before)),
                    Some(not_after) if not_after.is_none_or(|limit| now <= limit) => {
                        self.flight = Some(Flight::Opens(not_after));
                        let timeout_s = u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX);
                        (Some(WatchdogCall::Open { timeout_s, not_after }), None)
                    }
                    _ => (None, None),
                }
            }
            State::Armed { timeout, stays } => {
                let guards = USABLE.contains(&timeout);
                if !stays && (!guards || need.clean && !need.wanted) {
                    self.flight = Some(Flight::Closes);
                    self.state = if guards { State::Closed } else { State::Failed(now + RETRY_UNFIT) };
                    return (Some(WatchdogCall::Close), None);
                }
                // One that cannot guard and cannot be stopped is only kept from biting.
                let limit = if guards { Self::not_after(need, timeout) } else { Ok(None) };
                let Ok(not_after) = limit else { return (None, None) };
                let mut at = self.due;
                if let Some(limit) = not_after {
                    let last = limit - ON_ITS_WAY;
                    if limit < now || last <= self.petted {
                        return (None, None);
                    }
                    at = at.min(last);
                }
                at = at.max(self.not_before);
                if now < at {
                    return (None, Some(at));
                }
                self.flight = Some(Flight::Pets(not_after, now));
                (Some(WatchdogCall::Pet { not_after }), None)
            }
        }
    }

    /// How a call ended.
    pub fn done(&mut self, now: Time, outcome: Outcome) {
        let Some(flight) = self.flight.take() else { return };
        match (flight, outcome) {
            (Flight::Opens(limit), Ok(Reply::Armed(armed))) => self.opened(now, limit, &armed),
            // That says nothing of the device.
            (Flight::Opens(_), Ok(Reply::TooLate)) => {
                self.state = State::Closed;
                self.not_before = now + PET_AGAIN;
            }
            (Flight::Pets(..), Ok(Reply::TooLate)) => {
                self.due = now;
                self.not_before = now + PET_AGAIN;
            }
            (Flight::Opens(_), Ok(_)) => self.failed(now, "it gave no answer"),
            (Flight::Opens(_), Err(error)) => self.failed(now, &error.0),
            (Flight::Pets(limit, sent), outcome) => {
                let State::Armed { timeout, .. } = self.state else { return };
                // It may have been petted all the same.
                self.bites_by = limit.map_or(now, |limit| limit.min(now)) + timeout;
                if let Err(error) = outcome {
                    tracing::warn!(%error, "the watchdog was not petted");
                    self.due = now;
                    self.not_before = now + PET_AGAIN;
                } else {
                    self.petted = sent;
                    self.due = sent + timeout / 4;
                }
            }
            (Flight::Closes, Ok(_)) => {}
            (Flight::Closes, Err(error)) => {
                tracing::error!(%error, "the watchdog was not closed in good order");
                // It may run on, and is opened again to be closed.
                self.tried = false;
                self.state = State::Failed(now + RETRY);
            }
        }
    }

    fn opened(&mut self, now: Time, limit: Option<Time>, armed: &Armed) {
        let timeout = Duration::from_secs(armed.timeout_s.into());
        self.tried = true;
        self.set_to = Some(timeout);
        self.petted = Time::default();
        self.due = now + timeout / 4;
        self.bites_by = limit.map_or(now, |limit| limit.min(now)) + timeout;
        self.state = State::Armed { timeout, stays: armed.stays };
        let Armed { identity, timeout_s, stays } = armed;
        let lasting = if *stays { ", and cannot be stopped" } else { "" };
        if USABLE.contains(&timeout) {
            tracing::info!(identity, timeout_s, stays, "the machine's watchdog guards guests with a promise");
            self.said = Some(format!("ready: {identity} resets the machine after {timeout_s} s{lasting}"));
        } else {
            let (least, most) = (USABLE.start().as_secs(), USABLE.end().as_secs());
            let why = format!("{identity} makes {timeout_s} s of the {} s asked for{lasting}", self.timeout.as_secs());
            tracing::warn!("the watchdog is of no use: {why}; {least} to {most} s would do");
            self.said = Some(format!("failed: {why}; {least} to {most} s would do"));
        }
    }

    fn failed(&mut self, now: Time, why: &str) {
        self.state = State::Failed(now + RETRY);
        let said = format!("failed: {why}");
        if self.said.as_ref() != Some(&said) {
            tracing::warn!("there is no watchdog to guard guests with a promise: {why}");
        }
        self.said = Some(said);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{LEASE_DURATION, MARGIN};
    use crate::handler::effects::OpError;

    fn at(ms: u64) -> Time {
        Time::from_unix_s(1000) + Duration::from_millis(ms)
    }

    fn need(wanted: bool, clean: bool, promised_ms: u64) -> Need {
        Need { wanted, clean, promised: (promised_ms > 0).then(|| at(promised_ms)) }
    }

    fn armed(timeout_s: u32, stays: bool) -> Outcome {
        Ok(Reply::Armed(Armed { identity: "dog".to_owned(), timeout_s, stays }))
    }

    /// A watchdog that a guest has asked for, with what its driver made of its time.
    fn opened(timeout_s: u32, stays: bool) -> Watchdog {
        let mut dog = Watchdog::new(true);
        let open = WatchdogCall::Open { timeout_s: 8, not_after: None };
        assert_eq!(dog.next(at(0), &need(true, true, 0)), (Some(open), None));
        assert!(!dog.is_settled(Some(at(8000))));
        dog.done(at(0), armed(timeout_s, stays));
        assert!(dog.is_settled(Some(at(8000))));
        dog
    }

    fn pet(dog: &mut Watchdog, ms: u64, need: &Need) -> bool {
        let (call, _) = dog.next(at(ms), need);
        let pets = matches!(call, Some(WatchdogCall::Pet { .. }));
        if pets {
            dog.done(at(ms), Ok(Reply::Done));
        }
        pets
    }

    #[test]
    fn the_last_petting_leaves_a_reset_before_anybody_takes_the_guests_for_dead() {
        for timeout_s in [6, 8, 10] {
            let mut dog = opened(timeout_s, false);
            // Renewed at 0: guests run until 8 s.
            let promise = need(true, false, 8000);
            let pets: Vec<u64> = (0..20_000).step_by(100).filter(|ms| pet(&mut dog, *ms, &promise)).collect();
            let bites = pets.last().expect("it was petted") + u64::from(timeout_s) * 1000;
            assert!((11_700..=12_000).contains(&bites), "{timeout_s}: it bites at {bites}");
            assert!(Duration::from_millis(bites) < LEASE_DURATION + MARGIN);
            assert!(pets.windows(2).all(|two| two[1] - two[0] <= u64::from(timeout_s) * 500), "{timeout_s}: {pets:?}");
            // Renewed, or nobody left: it goes on.
            assert!(pet(&mut dog, 20_000, &need(true, false, 28_000)));
            assert!(!pet(&mut dog, 40_000, &need(true, false, 28_000)));
            assert!(pet(&mut dog, 40_000, &need(true, true, 28_000)));
        }
    }

    #[test]
    fn what_an_earlier_process_left_is_opened_with_a_promise_only_and_closed_when_nobody_needs_it() {
        let mut dog = Watchdog::new(true);
        assert_eq!(dog.next(at(0), &need(true, false, 0)), (None, None), "no promise, and guests run");
        assert_eq!(dog.next(at(5000), &need(true, false, 10_000)), (None, None), "too late for this promise");
        let (call, _) = dog.next(at(3000), &need(true, false, 10_000));
        assert_eq!(call, Some(WatchdogCall::Open { timeout_s: 8, not_after: Some(at(4000)) }));
        assert_eq!(Watchdog::new(true).next(at(0), &need(false, true, 0)), (None, None), "nothing was left");
        let mut dog = Watchdog::new(true).taking_over(None);
        assert!(matches!(dog.next(at(0), &need(false, true, 0)).0, Some(WatchdogCall::Open { .. })));
        dog.done(at(0), Err(OpError("busy".to_owned())));
        assert_eq!(dog.next(at(100), &need(false, true, 0)), (None, Some(at(2000))), "it is tried until it is had");
        assert!(matches!(dog.next(at(2000), &need(false, true, 0)).0, Some(WatchdogCall::Open { .. })));
        dog.done(at(0), armed(8, false));
        assert_eq!(dog.next(at(0), &need(false, true, 0)).0, Some(WatchdogCall::Close));
        dog.done(at(0), Ok(Reply::Done));
        assert_eq!(dog.next(at(10), &need(false, true, 0)), (None, None));
        assert!(matches!(dog.next(at(20), &need(true, true, 0)).0, Some(WatchdogCall::Open { .. })));
        assert_eq!(Watchdog::new(false).next(at(0), &need(true, true, 0)), (None, None));
    }

    #[test]
    fn no_guest_starts_before_it_would_bite_in_time() {
        let mut dog = opened(8, false);
        let (nobody, promise) = (need(true, true, 8000), |ms| Some(at(ms)));
        // Nobody runs, so that it may be petted at any time, and bites up to eight seconds later.
        assert!(matches!(dog.next(at(5000), &nobody).0, Some(WatchdogCall::Pet { not_after: None })));
        assert!(!dog.is_settled(promise(20_000)), "who knows when that arrives");
        dog.done(at(5500), Err(OpError("no answer".to_owned())));
        assert!(!dog.is_settled(promise(9000)) && !dog.is_settled(None));
        assert!(dog.is_settled(promise(9500)));
        assert!(!pet(&mut dog, 5600, &nobody) && pet(&mut dog, 6000, &nobody));
        assert!(!dog.is_settled(promise(9500)) && dog.is_settled(promise(10_000)));
    }

    #[test]
    fn guests_that_end_are_waited_for_before_it_is_closed() {
        let mut dog = opened(8, false);
        assert!(pet(&mut dog, 2000, &need(true, false, 8000)));
        // Its instance is gone, and whether its guest still runs is not known.
        assert!(!matches!(dog.next(at(2100), &need(false, false, 8000)).0, Some(WatchdogCall::Close)));
        assert_eq!(dog.next(at(2200), &need(false, true, 8000)).0, Some(WatchdogCall::Close));
    }

    #[test]
    fn one_that_cannot_be_had_holds_nobody_back_and_is_tried_again() {
        let mut dog = Watchdog::new(true);
        let wants = need(true, true, 8000);
        assert!(dog.next(at(0), &wants).0.is_some());
        dog.done(at(0), Err(OpError("busy".to_owned())));
        assert!(dog.is_settled(Some(at(8000))));
        assert_eq!(dog.said(), Some("failed: busy"));
        assert_eq!(dog.next(at(1000), &wants), (None, Some(at(2000))));
        assert!(matches!(dog.next(at(2000), &wants).0, Some(WatchdogCall::Open { .. })));
    }

    #[test]
    fn a_time_that_is_of_no_use_is_given_back_or_kept_from_biting() {
        for timeout_s in [1, 60] {
            let mut dog = opened(timeout_s, false);
            assert!(dog.said().is_some_and(|said| said.starts_with("failed: dog makes")), "{:?}", dog.said());
            assert_eq!(dog.next(at(0), &need(true, false, 8000)).0, Some(WatchdogCall::Close));
            dog.done(at(0), Ok(Reply::Done));
            assert!(dog.is_settled(Some(at(8000))) && dog.next(at(100), &need(true, false, 8000)).0.is_none());
            let mut dog = opened(timeout_s, true);
            assert!(
                pet(&mut dog, 30_000, &need(true, false, 8000)),
                "the promise is over, and it would bite for nothing"
            );
        }
        // It guards, and goes on when nobody needs it.
        let mut dog = opened(8, true);
        assert!(pet(&mut dog, 2000, &need(false, true, 0)));
        assert!(!pet(&mut dog, 30_000, &need(true, false, 8000)));
    }

    #[test]
    fn what_was_left_is_taken_over_for_as_long_as_its_time_allows() {
        let opens = |set_to: Option<u64>, ms: u64| {
            let mut dog = Watchdog::new(true).taking_over(set_to.map(Duration::from_secs));
            dog.next(at(ms), &need(true, false, 8000)).0.is_some()
        };
        // Renewed at 0. Its driver may make ten seconds of the eight, unless it has made eight of them before.
        assert!(opens(None, 2000) && !opens(None, 2001));
        assert!(opens(Some(8), 4000) && !opens(Some(8), 4001));
        for another in [6, 10, 60] {
            assert!(opens(Some(another), 2000) && !opens(Some(another), 2001), "{another}");
        }
    }

    #[test]
    fn what_came_too_late_says_nothing_of_the_device() {
        let mut dog = Watchdog::new(true);
        let wants = need(true, false, 8000);
        assert!(dog.next(at(0), &wants).0.is_some());
        dog.done(at(1000), Ok(Reply::TooLate));
        assert!(!dog.is_settled(Some(at(8000))), "no guest starts without it");
        assert_eq!(dog.said(), None);
        assert_eq!(dog.next(at(1000), &wants), (None, Some(at(1500))));
        assert!(dog.next(at(1500), &wants).0.is_some());
        dog.done(at(1500), Err(OpError("busy".to_owned())));
        assert!(dog.is_settled(Some(at(8000))));
        // While it is tried again, who knows when it will bite.
        assert!(dog.next(at(3500), &need(true, true, 8000)).0.is_some());
        assert!(!dog.is_settled(Some(at(8000))));
        let mut dog = opened(8, false);
        assert!(matches!(dog.next(at(2000), &wants).0, Some(WatchdogCall::Pet { .. })));
        dog.done(at(2500), Ok(Reply::TooLate));
        assert!(!dog.is_settled(Some(at(3500))) && dog.is_settled(Some(at(4000))), "it bites when it would have");
        assert!(!pet(&mut dog, 2900, &wants) && pet(&mut dog, 3000, &wants));
    }

    #[test]
    fn a_petting_that_failed_is_tried_again_soon() {
        let mut dog = opened(8, false);
        assert_eq!(dog.next(at(0), &need(true, false, 8000)), (None, Some(at(2000))));
        assert!(matches!(dog.next(at(2000), &need(true, false, 8000)).0, Some(WatchdogCall::Pet { .. })));
        assert_eq!(dog.next(at(2100), &need(true, false, 8000)), (None, None), "one at a time");
        dog.done(at(2100), Err(OpError("no".to_owned())));
        assert_eq!(dog.next(at(2100), &need(true, false, 8000)), (None, Some(at(2600))));
        assert!(pet(&mut dog, 2600, &need(true, false, 8000)));
    }
}
