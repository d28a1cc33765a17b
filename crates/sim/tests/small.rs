//! Small runs: many of them are clean, and each is the same wherever it is played.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use carrack_sim::small::{Brief, play};
use carrack_sim::{Options, run};

/// How many runs all parts play together; the environment may say otherwise.
const RUNS: u64 = 400;
const PARTS: u64 = 4;

fn options() -> Options {
    Options { small: true, ..Options::default() }
}

/// Plays the runs of a part. Each has clusters of its own to begin with: a remainder of four is a variant of each slice.
fn are_clean(part: u64) {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let seeds = (1..=runs).filter(|seed| seed % PARTS == part);
    let mut played = 0;
    let ended = play(seeds, &options(), &mut |brief, outcome| {
        if let Some(failure) = outcome.and_then(|outcome| outcome.failure.as_ref()) {
            panic!("seed {}: {failure}", brief.seed);
        }
        played += 1;
        true
    });
    assert!(ended.is_ok() && played >= runs / PARTS, "{played} runs, {ended:?}");
}

#[test]
fn small_runs_are_clean_1() {
    are_clean(0);
}

#[test]
fn small_runs_are_clean_2() {
    are_clean(1);
}

#[test]
fn small_runs_are_clean_3() {
    are_clean(2);
}

#[test]
fn small_runs_are_clean_4() {
    are_clean(3);
}

/// A run is its seed's alone: what was played before it does not matter, nor whether it is played in a copy of the process.
#[test]
fn a_small_run_is_the_same_wherever_it_is_played() {
    let briefs = |seeds: &[u64]| {
        let mut told: BTreeMap<u64, Brief> = BTreeMap::new();
        let ended = play(seeds.iter().copied(), &options(), &mut |brief, _| {
            told.insert(brief.seed, *brief);
            brief.held
        });
        assert!(ended.is_ok(), "{ended:?}");
        told
    };
    // Three begin with the same cluster, the others with others.
    let many = briefs(&[1, 53, 105, 22, 30]);
    assert_eq!(briefs(&[105])[&105], many[&105]);
    for seed in [53, 22] {
        let outcome = run(seed, &options());
        assert!(outcome.steps > 100, "hardly anything happened");
        assert_eq!((outcome.trace_hash, outcome.steps), (many[&seed].trace_hash, many[&seed].steps), "seed {seed}");
    }
    assert_ne!(many[&1].trace_hash, many[&53].trace_hash);
}
