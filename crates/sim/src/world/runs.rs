//! One run, from its seed to its outcome; and once more without trouble, where its end is to be compared.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::{BEGIN, Failure, Outcome, World};
use crate::clones::Counts;
use crate::options::Options;
use crate::small::Base;
use crate::trace::Trace;
use crate::world::Born;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "ends-as-without-trouble";

/// Plays one seed.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Outcome {
    let outcome = once(seed, options);
    if outcome.failure.is_some() || !options.is_compared() {
        return outcome;
    }
    let calm = once(seed, &options.without_trouble());
    // What breaks where nothing fails is told as such.
    if calm.failure.is_some() { calm } else { compared(outcome, &calm, &options.replay(seed)) }
}

fn once(seed: u64, options: &Options) -> Outcome {
    let world = if options.small {
        Born::new(Base::of(seed), options).map(|born| born.world(seed))
    } else {
        World::new(seed, options)
    };
    match world {
        Ok(mut world) => world.play(seed, &options.replay(seed)),
        Err(why) => {
            let trace = Trace::new(BEGIN, false);
            let replay = options.replay(seed);
            let failure = Failure { invariant: "liveness", message: why, timeline: String::new(), replay };
            let (trace_hash, simulated) = (trace.hash(), Duration::ZERO);
            let (end, results, counts) = (BTreeMap::new(), BTreeMap::new(), Counts::default());
            let (failure, picture) = (Some(failure), String::new());
            Outcome { seed, trace_hash, simulated, steps: 0, failure, trace, picture, end, results, counts }
        }
    }
}

/// A run that held, held against the same without trouble.
fn compared(outcome: Outcome, calm: &Outcome, replay: &str) -> Outcome {
    let Some(message) = crate::results::difference(&outcome.results, &calm.results) else { return outcome };
    let (timeline, replay) = (outcome.trace.timeline(), replay.to_owned());
    Outcome { failure: Some(Failure { invariant: NAME, message, timeline, replay }), ..outcome }
}

impl World {
    /// What people have.
    pub(super) fn results(&self) -> BTreeMap<String, Value> {
        let Some(user) = self.user() else { return BTreeMap::new() };
        let mut results = crate::results::of(user.wants(), &self.observer, &self.nodes);
        if self.options.workloads {
            results.extend(crate::controllers::end(&self.observer));
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end that is otherwise without trouble breaks a run that held, and one that is not does not.
    #[test]
    fn ends_are_compared() {
        let options = Options { small: true, faults: false, ..Options::default() };
        let held = once(1, &options);
        assert!(held.failure.is_none(), "{:?}", held.failure);
        assert!(compared(held.clone(), &held, "again").failure.is_none());
        let mut other = held.clone();
        other.results.insert("vm default/a".to_owned(), 1.into());
        let failure = compared(held, &other, "again").failure.expect("it breaks");
        assert_eq!((failure.invariant, &*failure.replay), (NAME, "again"));
    }
}
