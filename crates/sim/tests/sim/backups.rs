//! Machines on whole nodes that are snapshotted while they run, cloned and restored, with all that is between a claim and a disk.

use std::time::Duration;

use carrack_sim::{Options, run};

use crate::{must_hold, seeds_played};

fn options(faults: bool) -> Options {
    Options { faults, only: Some(vec!["backups"]), safety: Duration::from_secs(60), ..Options::default() }
}

#[test]
fn a_machine_is_snapshotted_and_cloned_where_nothing_fails() {
    let outcome = run(1, &Options { keep_trace: true, ..options(false) });
    must_hold("quiet", &outcome);
    let said = outcome.trace.text();
    for what in ["vmsnapshot default/backed0-s0: phase Succeeded", "clone default/backed0-clone: phase Succeeded"] {
        assert!(said.contains(what), "{what:?} is not said");
    }
}

#[test]
fn backups_in_trouble_end_as_they_should() {
    let seeds = seeds_played(2);
    for seed in 1..=seeds {
        must_hold(&format!("seed {seed}"), &run(seed, &options(true)));
    }
}
