//! GPUs shared in a cluster in trouble: no GPU is given out twice, none is lost, and every pod that has room runs in the end.

use carrack_sim::{Options, run};

use crate::{must_hold, seeds_played};

fn options(faults: bool) -> Options {
    Options { gpus: true, faults, ..Options::default() }
}

#[test]
fn gpus_are_neither_given_out_twice_nor_lost() {
    must_hold("quiet", &run(1, &options(false)));
    let seeds = seeds_played(12);
    for seed in 1..=seeds {
        must_hold(&format!("seed {seed}"), &run(seed, &options(true)));
    }
}

/// Beside Deployments and all the others, on nodes that lose their power or are taken out of the cluster.
#[test]
fn gpus_are_neither_given_out_twice_nor_lost_beside_workloads() {
    let seeds = seeds_played(6);
    for seed in 1..=seeds {
        must_hold(&format!("seed {seed}"), &run(seed, &Options { workloads: true, ..options(true) }));
    }
}
