//! All controllers of workloads in a cluster in trouble: whatever lags, is lost, comes twice or in another order, and
//! whoever restarts, bounds are kept at every step, and the cluster ends as it would have ended without any of that.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use carrack_sim::{Options, Outcome, run};

fn options(faults: bool) -> Options {
    Options { workloads: true, faults, ..Options::default() }
}

fn must_hold(outcome: &Outcome) {
    if let Some(failure) = &outcome.failure {
        panic!("{failure}");
    }
}

#[test]
fn trouble_changes_nothing_of_how_it_ends() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    for seed in 1..=seeds {
        let (quiet, troubled) = (run(seed, &options(false)), run(seed, &options(true)));
        must_hold(&quiet);
        must_hold(&troubled);
        assert_eq!(quiet.end, troubled.end, "seed {seed}");
    }
}
