//! Controllers that call drivers: calls are questions that a reconcile asks.
//!
//! ```text
//!   reconcile ── asks ──▶ Calls ──▶ the shell calls the driver ──▶ answered: the key is looked at again ──▶ reconcile
//! ```
//!
//! All calls of the protocols may be made twice, and are named by what they say. So a reconcile simply asks; what has not
//! been answered yet is on its way, and when the answer comes the key is looked at again. An answer is given once: who
//! needs it again asks again. Nothing is remembered beyond that, so a process that was killed has lost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrack_engine::{Core, Effects, Input, Key, Manager, Never, Time};

/// A call of a protocol.
pub trait Call: Clone + Ord {
    /// How it ends.
    type Outcome: Clone;
    /// What it is about, if another call about that must not run beside it: a driver that is asked for both at once may do
    /// them in any order.
    fn subject(&self) -> Option<&str>;
    /// Whether it failed, and is not to be made again at once: until then, the same is said to who asks. A queue's own backoff
    /// knows nothing of calls, since a look that only asks is no failure.
    fn pauses(&self, _: &Self::Outcome) -> bool {
        false
    }
}

/// How long a call that failed is not made again, at first and at most (upstream's for operations on volumes).
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(122);

/// What is said of an answer that does not go with its call.
pub(crate) const ANOTHER_ANSWER: &str = "the driver's answer was about something else";

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out<C> {
    /// A call to a driver.
    Call {
        /// Names it.
        id: u64,
        /// What to call.
        call: C,
    },
    /// By then calls must be over, those under way and those to come, unless another time is told: this process leads so
    /// long, and whoever leads after it makes calls of its own. Who takes part in no election never says it.
    MayCallUntil(Time),
}

/// A call's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct In<O> {
    /// Which.
    pub id: u64,
    /// How.
    pub outcome: O,
}

/// Who asks: a controller, and the key that it looks at.
type Asker = (&'static str, Key);

struct Entry<O> {
    id: u64,
    askers: BTreeSet<Asker>,
    outcome: Option<O>,
}

/// A call that failed.
struct Failed<O> {
    times: u32,
    until: Time,
    outcome: O,
}

struct Questions<C: Call> {
    now: Time,
    failed: BTreeMap<C, Failed<C::Outcome>>,
    entries: BTreeMap<C, Entry<C::Outcome>>,
    outbox: Vec<(u64, C)>,
    last: u64,
    /// A planted bug: calls about the same run beside each other.
    at_once: bool,
}

/// The questions of all controllers of a process. They run in one task; the lock only says so to the compiler.
pub struct Calls<C: Call>(Arc<Mutex<Questions<C>>>);

impl<C: Call> Default for Calls<C> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Questions {
            now: Time::default(),
            failed: BTreeMap::new(),
            entries: BTreeMap::new(),
            outbox: Vec::new(),
            last: 0,
            at_once: false,
        })))
    }
}

impl<C: Call> Clone for Calls<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Call> Questions<C> {
    /// Takes note of how a call ended.
    fn remember(&mut self, call: C, outcome: &C::Outcome) {
        let times = self.failed.remove(&call).map_or(0, |failed| failed.times);
        // What nobody has asked for again for long is asked for by nobody.
        let old = LONGEST * 4;
        self.failed.retain(|_, failed| self.now.since(failed.until) < old);
        if call.pauses(outcome) {
            let pause = FIRST.saturating_mul(1 << times.min(8)).min(LONGEST);
            let failed = Failed { times: times + 1, until: self.now + pause, outcome: outcome.clone() };
            self.failed.insert(call, failed);
        }
    }
}

impl<C: Call> Calls<C> {
    /// Plants the bug that calls about the same run beside each other. For the simulator, which must find it.
    pub(crate) fn with_planted_at_once() -> Self {
        let calls = Self::default();
        calls.lock().at_once = true;
        calls
    }

    /// Tells the time.
    pub(crate) fn tick(&self, now: Time) {
        self.lock().now = now;
    }

    fn lock(&self) -> MutexGuard<'_, Questions<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, or takes the answer. None while it is awaited, or while another call about the same is.
    pub(crate) fn ask(&self, controller: &'static str, key: &Key, call: C) -> Option<C::Outcome> {
        let mut q = self.lock();
        if let Some(subject) = call.subject().filter(|_| !q.at_once) {
            let contrary = |other: &C| *other != call && other.subject() == Some(subject);
            // An answer that nobody took says nothing any more.
            q.entries.retain(|other, entry| entry.outcome.is_none() || !contrary(other));
            if let Some((_, entry)) = q.entries.iter_mut().find(|(other, _)| contrary(other)) {
                entry.askers.insert((controller, key.clone()));
                return None;
            }
        }
        if let Some(entry) = q.entries.get_mut(&call) {
            entry.askers.insert((controller, key.clone()));
            return match entry.outcome.is_some() {
                true => {
                    let outcome = q.entries.remove(&call)?.outcome?;
                    q.remember(call, &outcome);
                    Some(outcome)
                }
                false => None,
            };
        }
        if let Some(failed) = q.failed.get(&call).filter(|failed| q.now < failed.until) {
            return Some(failed.outcome.clone());
        }
        q.last += 1;
        let id = q.last;
        q.outbox.push((id, call.clone()));
        let askers = BTreeSet::from([(controller, key.clone())]);
        q.entries.insert(call, Entry { id, askers, outcome: None });
        None
    }

    /// What is to be sent.
    pub(crate) fn take(&self) -> Vec<(u64, C)> {
        std::mem::take(&mut self.lock().outbox)
    }

    /// An answer came. Returns who asked.
    pub(crate) fn answered(&self, id: u64, outcome: C::Outcome) -> Vec<Asker> {
        let mut q = self.lock();
        let Some(entry) = q.entries.values_mut().find(|e| e.id == id) else { return Vec::new() };
        entry.outcome = Some(outcome);
        entry.askers.iter().cloned().collect()
    }
}

/// The core: a manager, some of whose controllers ask.
pub struct Asking<C: Call> {
    manager: Manager,
    inner: Effects<Never>,
    calls: Calls<C>,
    /// What was told of how long calls may run.
    until: Option<Time>,
}

impl<C: Call> Asking<C> {
    /// Hosts a manager with the questions of its controllers.
    #[must_use]
    pub fn around(manager: Manager, calls: Calls<C>) -> Self {
        Self { manager, inner: Effects::new(), calls, until: None }
    }

    fn hand_on(&mut self, fx: &mut Effects<Out<C>>) {
        let until = self.manager.leads_until();
        if let Some(until) = until.filter(|_| until != self.until) {
            fx.own(Out::MayCallUntil(until));
        }
        self.until = until;
        while let Some(effect) = self.inner.pop() {
            fx.pass(effect);
        }
        for (id, call) in self.calls.take() {
            fx.own(Out::Call { id, call });
        }
    }
}

impl<C: Call> Core for Asking<C> {
    type In = In<C::Outcome>;
    type Out = Out<C>;

    fn step(&mut self, now: Time, input: Input<Self::In>, fx: &mut Effects<Self::Out>) {
        self.calls.tick(now);
        let input = match input {
            Input::Start => Input::Start,
            Input::Api { id, result } => Input::Api { id, result },
            Input::Watch { id, item } => Input::Watch { id, item },
            Input::Timer(id) => Input::Timer(id),
            Input::Own(In { id, outcome }) => {
                for (controller, key) in self.calls.answered(id, outcome) {
                    self.manager.look_again(now, controller, key, &mut self.inner);
                }
                return self.hand_on(fx);
            }
        };
        self.manager.step(now, input, &mut self.inner);
        self.hand_on(fx);
    }

    fn stop(&mut self, now: Time, fx: &mut Effects<Self::Out>) {
        self.manager.stop(now, &mut self.inner);
        self.hand_on(fx);
    }

    fn ended(&self) -> bool {
        self.manager.ended()
    }

    fn measures(&self, now: Time) -> String {
        self.manager.measures(now)
    }
}
