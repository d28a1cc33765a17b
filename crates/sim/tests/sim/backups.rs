//! Machines on whole nodes that are snapshotted while they run, cloned and restored, with all that is between a claim and a disk:
//! by storage that takes snapshots, and by pods that copy.

use std::time::Duration;

use carrack_sim::{Options, plants, run};

use crate::{must_hold, seeds_played};

/// The parts of the work: where storage takes snapshots, and where it does not.
const PARTS: [&str; 2] = ["backups", COPIED];
const COPIED: &str = "copied-backups";

fn options(part: &'static str, faults: bool) -> Options {
    Options { faults, only: Some(vec![part]), safety: Duration::from_secs(60), ..Options::default() }
}

#[test]
fn a_machine_is_snapshotted_and_cloned_where_nothing_fails() {
    for part in PARTS {
        let outcome = run(1, &Options { keep_trace: true, ..options(part, false) });
        must_hold(&format!("{part}, quiet"), &outcome);
        let said = outcome.trace.text();
        for what in ["vmsnapshot default/backed0-s0: phase Succeeded", "clone default/backed0-clone: phase Succeeded"] {
            assert!(said.contains(what), "{part}: {what:?} is not said");
        }
        assert_eq!(said.contains("begins to copy"), part == COPIED, "{part}");
    }
}

#[test]
fn backups_in_trouble_end_as_they_should() {
    let seeds = seeds_played(2);
    for part in PARTS {
        for seed in 1..=seeds {
            must_hold(&format!("{part}, seed {seed}"), &run(seed, &options(part, true)));
        }
    }
}

/// What finds bugs of copies where nodes only pretend finds them on whole nodes, too.
#[test]
fn planted_bugs_of_copies_are_found_on_whole_nodes() {
    for name in ["copies-unread", "starts-what-is-copied", "copies-one-by-one"] {
        let plant = plants::find(name).expect("a planted bug");
        let liveness = Duration::from_secs(120);
        let finds = |seed: u64| {
            let outcome = run(seed, &Options { plant: Some(plant), liveness, ..options(COPIED, false) });
            let Some(failure) = outcome.failure else { return false };
            let known = plant.also.contains(&failure.invariant) || failure.invariant == "liveness";
            assert!(known || failure.invariant == plant.found_by, "{name}, seed {seed}: {failure}");
            failure.invariant == plant.found_by
        };
        assert!((1..=12).any(finds), "{name} is not found");
    }
}
