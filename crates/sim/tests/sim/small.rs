//! Small runs: many of them are clean, and each is the same wherever it is played.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_sim::small::{Brief, play};
use carrack_sim::{Options, Request, run, simulate};

/// How many runs all parts play together; the environment may say otherwise.
const RUNS: u64 = 1300;
/// How many parts there are. Each begins with clusters of its own, four of the 52 that there are: a variant of each kind.
const PARTS: u64 = 13;

fn options() -> Options {
    Options { small: true, ..Options::default() }
}

/// Plays the runs of a part.
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

/// A test of each part, which run side by side.
macro_rules! parts {
    ($($name:ident: $part:literal),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                are_clean($part);
            }
        )*

        #[test]
        fn all_parts_are_played() {
            assert_eq!(BTreeSet::from([$($part),*]), (0..PARTS).collect());
        }
    };
}

parts! {
    small_runs_are_clean_1: 0,
    small_runs_are_clean_2: 1,
    small_runs_are_clean_3: 2,
    small_runs_are_clean_4: 3,
    small_runs_are_clean_5: 4,
    small_runs_are_clean_6: 5,
    small_runs_are_clean_7: 6,
    small_runs_are_clean_8: 7,
    small_runs_are_clean_9: 8,
    small_runs_are_clean_10: 9,
    small_runs_are_clean_11: 10,
    small_runs_are_clean_12: 11,
    small_runs_are_clean_13: 12,
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

/// What is under way then is played to its end: of small runs the first one.
#[test]
fn no_run_begins_once_the_time_is_over() {
    for (options, played) in [(Options::default(), 0), (options(), 1)] {
        let request = Request { runs: 50, end_after: Some(Duration::ZERO), options, ..Request::default() };
        let mut printed = Vec::new();
        assert!(simulate(&request, &mut printed).expect("it is printed"));
        let printed = String::from_utf8(printed).expect("text");
        assert!(printed.starts_with(&format!("{played} runs, ")), "{printed}");
    }
}
