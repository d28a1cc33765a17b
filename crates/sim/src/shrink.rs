//! A failing run made smaller: with fewer kinds of faults, less who takes part, less work and less trouble, as long as the same
//! invariant breaks.
//!
//! ```text
//!   faults and who takes part ─▶ parts of the work ─▶ when trouble ends ─┐
//!     ▲        halves of what is left, then quarters, … one by one       │
//!     └────────────────── as long as something was left out ◀────────────┘
//! ```
//!
//! A replay is the same seed with something left out: that is cleared after all is drawn, so that what remains is what it was,
//! and it can be said on the command line ([`Options::replay`]). The replays and their order follow from the seed and its
//! options; who looks on may end them early.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{Rng, Time};

use crate::drains::Drains;
use crate::options::{Options, PARTS, SWITCHES, Swarm};
use crate::small::{self, Base};
use crate::statics::Statics;
use crate::workload::User;
use crate::world::{Outcome, run};

/// How many replays there are at the most.
pub const MOST_REPLAYS: u32 = 250;

/// What came of a failing run.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smallest run found in which the invariant breaks.
    pub options: Options,
    /// How it went.
    pub outcome: Outcome,
    /// How many runs were played for it.
    pub replays: u32,
    /// Whether nothing more can be left out, as far as was looked for; not, where the search was ended early.
    pub complete: bool,
}

impl Shrunk {
    /// What is left of a run, by name: faults and who takes part, then parts of the work.
    #[must_use]
    pub fn left(&self) -> String {
        let names = |names: Vec<&str>| if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        let Self { options, outcome, .. } = self;
        let (on, done) = (on(outcome.seed, options), done(outcome.seed, options));
        format!("what it takes: {}; of the parts of the work: {}", names(on), names(done))
    }
}

/// Plays a failing run again and again with less. Before each replay somebody is told how many there were, and says whether to
/// go on.
///
/// None: the run has not failed.
pub fn shrink(failed: &Outcome, options: &Options, go_on: &mut dyn FnMut(u32) -> bool) -> Option<Shrunk> {
    let failure = failed.failure.as_ref()?;
    let mut search = Search {
        invariant: failure.invariant,
        options: Options { keep_trace: false, draw: false, ..options.clone() },
        outcome: failed.clone(),
        tried: BTreeSet::new(),
        replays: 0,
        ended: false,
        go_on,
    };
    let mut before = String::new();
    // Less work may need fewer faults, and the other way round.
    while !search.ended && before != search.command() {
        before = search.command();
        search.leave_out_faults();
        search.leave_out_work();
        search.end_trouble_sooner();
    }
    let Search { options, outcome, replays, ended, .. } = search;
    Some(Shrunk { options, outcome, replays, complete: !ended })
}

/// The smallest run so far, and what was tried.
struct Search<'a> {
    invariant: &'static str,
    options: Options,
    outcome: Outcome,
    /// Commands of replays that were no use.
    tried: BTreeSet<String>,
    replays: u32,
    /// No more replays.
    ended: bool,
    go_on: &'a mut dyn FnMut(u32) -> bool,
}

impl Search<'_> {
    fn command(&self) -> String {
        self.options.replay(self.outcome.seed)
    }

    /// Whether the same invariant breaks in such a run, which is the smallest one then.
    fn breaks(&mut self, options: Options) -> bool {
        let command = options.replay(self.outcome.seed);
        if self.ended || self.tried.contains(&command) {
            return false;
        }
        if self.replays == MOST_REPLAYS || !(self.go_on)(self.replays) {
            self.ended = true;
            return false;
        }
        self.replays += 1;
        let outcome = run(self.outcome.seed, &options);
        if outcome.failure.as_ref().is_none_or(|failure| failure.invariant != self.invariant) {
            self.tried.insert(command);
            return false;
        }
        (self.options, self.outcome) = (options, outcome);
        true
    }

    fn leave_out_faults(&mut self) {
        let (before, on) = (self.options.without.clone(), on(self.outcome.seed, &self.options));
        fewest(&on, &mut |kept| {
            let off = on.iter().copied().filter(|name| !kept.contains(name));
            let without = before.iter().copied().chain(off).collect();
            self.breaks(Options { without, ..self.options.clone() })
        });
    }

    fn leave_out_work(&mut self) {
        let done = done(self.outcome.seed, &self.options);
        fewest(&done, &mut |kept| self.breaks(Options { kept_parts: Some(kept.to_vec()), ..self.options.clone() }));
    }

    /// Looks for the second in which trouble may end at the earliest, by halves.
    fn end_trouble_sooner(&mut self) {
        let (own, _) = drawn(self.outcome.seed, &self.options);
        let usual_s = own.trouble().as_secs();
        // Whatever is to come when it has failed does not matter.
        let failed_s = self.outcome.simulated.as_secs() + 1;
        let mut ends = |after_s: u64| {
            let heal_after = Some(Duration::from_secs(after_s));
            self.breaks(Options { heal_after, ..self.options.clone() })
        };
        let (mut least_s, mut most_s) = (0, usual_s);
        if failed_s < usual_s && ends(failed_s) {
            most_s = failed_s;
        }
        while least_s < most_s {
            let middle_s = least_s.midpoint(most_s);
            if ends(middle_s) {
                most_s = middle_s;
            } else {
                least_s = middle_s + 1;
            }
        }
    }
}

/// What is left of some things when those are taken away without which a test still holds: all at once, then halves, quarters, …
/// and at last one by one, until none of them can go. The test is not asked about all of them.
fn fewest<T: Copy>(all: &[T], holds: &mut dyn FnMut(&[T]) -> bool) -> Vec<T> {
    let mut kept = all.to_vec();
    let mut size = kept.len();
    while size > 0 && !kept.is_empty() {
        let (mut from, before) = (0, kept.len());
        while from < kept.len() {
            let to = (from + size).min(kept.len());
            let rest: Vec<T> = kept.iter().take(from).chain(kept.iter().skip(to)).copied().collect();
            if holds(&rest) {
                kept = rest;
            } else {
                from = to;
            }
        }
        // What could not go alone may go now that another one has.
        if size > 1 || kept.len() == before {
            size /= 2;
        }
    }
    kept
}

/// What a run is like.
fn drawn(seed: u64, options: &Options) -> (Options, Swarm) {
    let root = Rng::new(seed);
    if options.small {
        let base = Base::of(seed);
        let cluster = base.options(options);
        let own = small::options(seed, &root, &cluster);
        let swarm = small::swarm(&root, &own, &base.swarm(&cluster));
        return (own, swarm);
    }
    let own = options.of_seed(&root);
    let swarm = Swarm::draw(&root, &own);
    (own, swarm)
}

/// The switches that make a run another one.
fn on(seed: u64, options: &Options) -> Vec<&'static str> {
    let drawn = |options: &Options| format!("{:?}", drawn(seed, options).1);
    let as_it_is = drawn(options);
    let matters = |name: &&'static str| {
        let without = options.without.iter().copied().chain([*name]).collect();
        drawn(&Options { without, ..options.clone() }) != as_it_is
    };
    SWITCHES.iter().map(|switch| switch.name).filter(matters).collect()
}

/// The parts of the work in which something is done in a run.
fn done(seed: u64, options: &Options) -> Vec<&'static str> {
    let (own, swarm) = drawn(seed, options);
    let root = Rng::new(seed);
    let work = |own: &Options| {
        let user = User::new(&root.fork("workload"), own);
        // What is done with nodes, and with manifests on them, goes by what becomes of them, and so is no list of acts.
        let drains = Drains::new(Time::default(), &root, swarm.nodes, own);
        let statics = Statics::new(Time::default(), &root, swarm.nodes, own);
        format!("{:?} {drains:?} {statics:?}", user.acts())
    };
    let as_it_is = work(&own);
    let names = PARTS.iter().map(|part| part.name);
    let names: Vec<&str> =
        names.filter(|name| own.kept_parts.as_ref().is_none_or(|kept| kept.contains(name))).collect();
    let matters = |name: &&'static str| {
        let kept = names.iter().copied().filter(|other| other != name).collect();
        work(&Options { kept_parts: Some(kept), ..own.clone() }) != as_it_is
    };
    names.iter().copied().filter(matters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_are_left_as_it_takes() {
        let check = |count: u32, needed: &[u32], most_asked: usize| {
            let all: Vec<u32> = (0..count).collect();
            let mut asked = 0;
            let left = fewest(&all, &mut |kept| {
                asked += 1;
                assert!(kept.len() < all.len() && kept.is_sorted(), "{kept:?}");
                needed.iter().all(|number| kept.contains(number))
            });
            assert_eq!(left, needed, "of {count}");
            assert!(asked <= most_asked, "{asked} for {needed:?} of {count}");
        };
        check(0, &[], 0);
        check(1, &[], 1);
        check(1, &[0], 2);
        check(64, &[], 1);
        check(64, &[17], 16);
        check(64, &[0, 63], 26);
        check(64, &[3, 30, 31, 50], 50);
        check(3, &[0, 1, 2], 7);
    }

    /// The second of these can go only when the third has.
    #[test]
    fn what_could_not_go_first_goes_later() {
        let all = ["a", "b", "c"];
        let left = fewest(&all, &mut |kept| kept.contains(&"a") && (kept.contains(&"b") || !kept.contains(&"c")));
        assert_eq!(left, ["a"]);
    }

    #[test]
    fn what_a_small_run_begins_with_stays() {
        for seed in 1..=60 {
            let options = Options { small: true, ..Options::default() };
            let all: Vec<&str> = SWITCHES.iter().map(|switch| switch.name).collect();
            let cluster = |without: Vec<&'static str>| {
                let base = Base::of(seed);
                let own = base.options(&Options { without, ..options.clone() });
                format!("{:?}", base.swarm(&own))
            };
            assert_eq!(cluster(Vec::new()), cluster(all), "seed {seed}");
            let cannot_go = ["second-node", "more-servers", "elections", "failing-attacher", "skew"];
            assert!(on(seed, &options).iter().all(|name| !cannot_go.contains(name)), "seed {seed}");
        }
    }

    /// What people do with nodes is one of the parts, in whole runs and in small ones.
    #[test]
    fn drains_can_be_left_out() {
        let part = crate::drains::PART;
        for options in [Options::default(), Options { small: true, ..Options::default() }] {
            let all = |seed: u64| done(seed, &options);
            let seed = (1..60).find(|seed| all(*seed).contains(&part)).expect("a run with drains");
            let others: Vec<&str> = all(seed).into_iter().filter(|name| *name != part).collect();
            let without = Options { kept_parts: Some(others.clone()), ..options.clone() };
            assert_eq!(done(seed, &without), others, "seed {seed} of {options:?}");
        }
    }

    /// Whichever kind of run it is, there is something to leave out, and nothing when all is left out.
    #[test]
    fn what_is_left_out_is_not_there() {
        let usual = Options::default();
        for options in [
            usual.clone(),
            Options { small: true, ..usual.clone() },
            Options { workloads: true, gpus: true, ..usual.clone() },
            Options { whole: true, ..usual.clone() },
            Options { swarm: true, ..usual },
        ] {
            for seed in 1..=2 {
                let (on_first, done_first) = (on(seed, &options), done(seed, &options));
                assert!(!on_first.is_empty(), "seed {seed} of {options:?}");
                let none = Options { without: on_first, kept_parts: Some(Vec::new()), ..options.clone() };
                let left = [on(seed, &none), done(seed, &none)].concat();
                assert!(left.is_empty(), "seed {seed} of {options:?}: {left:?}");
                // What is kept by name is kept as it is.
                let same = Options { kept_parts: Some(done_first.clone()), ..options.clone() };
                assert_eq!(done(seed, &same), done_first, "seed {seed} of {options:?}");
            }
        }
    }
}
