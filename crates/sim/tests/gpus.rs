//! GPUs shared in a cluster in trouble: no GPU is given out twice, none is lost, and every pod that has room runs in the end.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use carrack_sim::{Options, Outcome, run};

fn options(faults: bool) -> Options {
    Options { gpus: true, faults, ..Options::default() }
}

fn must_hold(outcome: &Outcome) {
    if let Some(failure) = &outcome.failure {
        panic!(
            "{}\nseed {}: {} is broken: {}\nreplay: carrack sim --gpus --seed {} --trace",
            failure.timeline, outcome.seed, failure.invariant, failure.message, outcome.seed
        );
    }
}

#[test]
fn gpus_are_neither_given_out_twice_nor_lost() {
    must_hold(&run(1, &options(false)));
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    for seed in 1..=seeds {
        must_hold(&run(seed, &options(true)));
    }
}
