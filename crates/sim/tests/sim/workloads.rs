//! All controllers of workloads in a cluster in trouble: whatever lags, is lost, comes twice or in another order, and
//! whoever restarts, bounds are kept at every step, and the cluster ends as it would have ended without any of that.

use carrack_sim::{Options, run};

use crate::{must_hold, seeds_played};

fn options(faults: bool) -> Options {
    Options { workloads: true, faults, ..Options::default() }
}

#[test]
fn trouble_changes_nothing_of_how_it_ends() {
    let seeds = seeds_played(6);
    for seed in 1..=seeds {
        let (quiet, troubled) = (run(seed, &options(false)), run(seed, &options(true)));
        must_hold("quiet", &quiet);
        must_hold("troubled", &troubled);
        assert_eq!(quiet.end, troubled.end, "seed {seed}");
    }
}
