//! The simulator itself: a seed decides everything, a cluster in trouble keeps its promises, and bugs
//! that are put in are found.

mod first;
mod writes;

use std::time::Duration;

use carrack_sim::{Options, Outcome, plants, run};

use self::first::Run;
use crate::{must_hold, seeds_played};

fn options() -> Options {
    Options { safety: Duration::from_secs(90), ..Options::default() }
}

#[test]
fn a_quiet_cluster_boots_a_machine_soon() {
    let outcome = run(1, &Options { faults: false, keep_trace: true, ..options() });
    must_hold("quiet", &outcome);
    writes::are_few(&outcome);
}

/// Machines and pods on whole nodes, and all workloads beside them on hollow ones, under one scheduler and the same controllers.
#[test]
fn a_whole_cluster_with_all_work_at_once_keeps_its_promises() {
    let seeds = seeds_played(1);
    for seed in 1..=seeds {
        must_hold(
            &format!("seed {seed}"),
            &run(seed, &Options { whole: true, safety: Duration::from_secs(40), ..options() }),
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let options = Options { keep_trace: true, safety: Duration::from_secs(30), ..options() };
    let [first, other] = [1, 2].map(|seed| {
        let (first, second) = (run(seed, &options), run(seed, &options));
        assert!(first.trace.len() > 1000, "seed {seed}: hardly anything happened");
        let differs = first.trace.text().lines().zip(second.trace.text().lines()).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        first.trace_hash
    });
    assert_ne!(first, other);
}

#[test]
fn a_cluster_in_trouble_keeps_its_promises() {
    for seed in 1..6 {
        must_hold(&format!("seed {seed}"), &run(seed, &options()));
    }
}

/// What people have in the end is what they would have if nothing had gone wrong.
#[test]
fn trouble_changes_nothing_of_what_people_have() {
    let options = Options { compares: true, safety: Duration::from_secs(60), ..options() };
    let seeds = seeds_played(1);
    for seed in 1..=seeds {
        must_hold(&format!("seed {seed}"), &run(seed, &options));
    }
}

/// How long a cluster with a planted bug has at first to come to rest, in simulated time. It need not come to rest at all, and a run
/// that does not find the bug is mostly one that waits: what shows in this time is looked for there first.
const SOON: Duration = Duration::from_secs(400);
/// With how many seeds.
const SOON_SEEDS: u64 = 8;
/// Whether a run found its planted bug. Until it is found nothing else may break but what the plant says may: a fault that only shows
/// beside a plant is a fault. A cluster with a bug need not come to rest.
fn finds(plant: &plants::Plant, outcome: &Outcome) -> bool {
    let Some(failure) = &outcome.failure else { return false };
    let own = failure.invariant == plant.found_by;
    let known = plant.also.contains(&failure.invariant) || failure.invariant == "liveness";
    assert!(own || known, "{}: another invariant breaks\n{failure}", plant.name);
    own
}

/// The run that finds a planted bug: the one that is noted, else the first of many.
fn search(plant: &'static plants::Plant) -> Option<Run> {
    let soon = if plant.found_by == "liveness" { 0 } else { SOON_SEEDS };
    let others = (1..=soon).map(Run::Soon).chain((1..40).map(Run::Whole));
    first::of(plant.name).into_iter().chain(others).find(|run| finds(plant, &run.play(plant)))
}

/// Finds one in so many planted bugs, from this one on. The parts run side by side.
fn are_found(part: usize, parts: usize) {
    // `PLANT=<name>` looks for one alone.
    let only = std::env::var("PLANT").ok();
    let wanted = |plant: &&plants::Plant| only.as_ref().is_none_or(|name| name == plant.name);
    let mut missed = Vec::new();
    for plant in plants::PLANTS.iter().skip(part).step_by(parts).filter(wanted) {
        match search(plant) {
            Some(run) => println!("{} is found by {run:?}", plant.name),
            None => missed.push(format!("{}: {}", plant.name, plant.what)),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

#[test]
fn seeds_are_noted_of_planted_bugs() {
    for (name, run) in first::FIRST {
        assert!(plants::find(name).is_some(), "{name} is no planted bug");
        assert_eq!(first::of(name), Some(*run), "{name} is there twice");
    }
}

#[test]
fn planted_bugs_are_found_1() {
    are_found(0, 4);
}

#[test]
fn planted_bugs_are_found_2() {
    are_found(1, 4);
}

#[test]
fn planted_bugs_are_found_3() {
    are_found(2, 4);
}

#[test]
fn planted_bugs_are_found_4() {
    are_found(3, 4);
}
