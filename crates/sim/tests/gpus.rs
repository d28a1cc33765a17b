//! GPUs shared in a cluster in trouble: no GPU is given out twice, none is lost, and every pod that has room runs in the end.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use carrack_sim::{Options, Outcome, run};

fn options(faults: bool) -> Options {
    Options { gpus: true, faults, ..Options::default() }
}

fn must_hold(outcome: &Outcome) {
    if let Some(failure) = &outcome.failure {
        panic!("{failure}");
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

/// Beside Deployments and all the others, on nodes that lose their power or are taken out of the cluster.
#[test]
fn gpus_are_neither_given_out_twice_nor_lost_beside_workloads() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    for seed in 1..=seeds {
        must_hold(&run(seed, &Options { workloads: true, ..options(true) }));
    }
}
