//! What passes between scheduler and extender: questions and answers that take their time, are lost, or come twice.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_gpu_extender::Verb;

use crate::chance::{Delay, below, between};

/// What becomes of a question or an answer: when it arrives, each time.
pub(crate) type Fate = Vec<Duration>;

/// The way between the two.
pub(crate) struct Link {
    rng: Rng,
    latency: Delay,
    lose_one_in: u64,
    twice_one_in: u64,
    late_one_in: u64,
    next: u64,
    /// By call of the extender: the scheduler's question, and the life of the scheduler that asked it.
    asked: BTreeMap<u64, (u64, u32)>,
}

impl Link {
    /// A link whose faults the seed chooses.
    pub(crate) fn new(mut rng: Rng, faults: bool) -> Self {
        let mut on = |most: u64| if rng.one_in(2) && faults { 4 + rng.below(most) } else { 0 };
        let (lose_one_in, twice_one_in, late_one_in) = (on(60), on(30), on(40));
        let latency = Delay {
            base: between(&mut rng, Duration::from_micros(100), Duration::from_millis(5)),
            slow_one_in: 10,
            slow: Duration::from_millis(50),
        };
        Self { rng, latency, lose_one_in, twice_one_in, late_one_in, next: 1, asked: BTreeMap::new() }
    }
    /// Draws other chances from here on, and what its faults are.
    pub(crate) fn reseed(&mut self, rng: Rng, faults: bool) {
        let (next, asked) = (self.next, std::mem::take(&mut self.asked));
        *self = Self { next, asked, ..Self::new(rng, faults) };
    }
    /// Nothing is lost any more.
    pub(crate) fn heal(&mut self) {
        (self.lose_one_in, self.twice_one_in, self.late_one_in) = (0, 0, 0);
    }
    /// What becomes of something that is sent now.
    pub(crate) fn pass(&mut self) -> Fate {
        let usual = self.latency.draw(&mut self.rng);
        if self.rng.one_in(self.lose_one_in) {
            return Fate::new();
        }
        if self.rng.one_in(self.late_one_in) {
            return vec![usual + below(&mut self.rng, Duration::from_secs(12))];
        }
        if self.rng.one_in(self.twice_one_in) {
            return vec![usual, usual + below(&mut self.rng, Duration::from_secs(2))];
        }
        vec![usual]
    }
    /// Names a call of the extender for a question.
    pub(crate) fn call(&mut self, question: u64, scheduler_life: u32) -> u64 {
        let call = self.next;
        self.next += 1;
        self.asked.insert(call, (question, scheduler_life));
        call
    }
    /// For which question of which scheduler a call was.
    pub(crate) fn question(&mut self, call: u64) -> Option<(u64, u32)> {
        self.asked.remove(&call)
    }
}

/// The extender's verb of a name.
pub(crate) fn verb(name: &str) -> Option<Verb> {
    Some(match name {
        "predicates" => Verb::Filter,
        "priorities" => Verb::Prioritize,
        "preemption" => Verb::Preempt,
        "bind" => Verb::Bind,
        _ => return None,
    })
}
