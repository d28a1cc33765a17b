//! Machines that are copied while they run, and machines that would start while a pod copies or fills their disks.

use std::time::Duration;

use carrack_sim::{Options, Scene, run};

use crate::{must_hold, seeds_played};

#[test]
fn a_machine_is_cloned_while_it_runs() {
    let options = Options {
        clones: true,
        faults: false,
        scene: Some(Scene::Running),
        safety: Duration::from_secs(12),
        ..Options::default()
    };
    // It has to succeed, and the clone's disks hold what the machine's do.
    must_hold("quiet", &run(1, &options));
    must_hold("without an agent", &run(1, &Options { scene: Some(Scene::Speechless), ..options }));
}

#[test]
fn what_firmware_keeps_is_kept_or_waited_for() {
    let play = |scene, seed, faults| {
        let safety = Duration::from_secs(20);
        let options = Options { clones: true, faults, scene: Some(scene), safety, ..Options::default() };
        let outcome = run(seed, &options);
        must_hold(&format!("{scene:?}, seed {seed}"), &outcome);
        outcome.end
    };
    // The target is snapshotted before its restore is complete.
    for (seed, faults) in [(1, false), (2, true)] {
        assert_eq!(play(Scene::Hasty, seed, faults)["vmcontents"], 1);
    }
    let end = play(Scene::Unkept, 1, false);
    let waits = ["Pending", "does not support snapshots"]
        .iter()
        .all(|word| end["clone default/copying"].to_string().contains(word));
    assert!(waits && end["vmcontents"] == 0, "{end:?}");
}

#[test]
fn what_is_over_of_a_machine_is_not_in_the_way_of_its_snapshot() {
    for (seed, faults) in [(1, false), (2, true)] {
        let safety = Duration::from_secs(25);
        let options = Options { clones: true, faults, scene: Some(Scene::Spent), safety, ..Options::default() };
        must_hold(&format!("seed {seed}"), &run(seed, &options));
    }
}

#[test]
fn a_pod_that_comes_late_copies_nothing_that_runs() {
    for (seed, faults) in [(1, false), (2, true)] {
        let safety = Duration::from_secs(25);
        let options = Options { clones: true, faults, scene: Some(Scene::Awoken), safety, ..Options::default() };
        must_hold(&format!("seed {seed}"), &run(seed, &options));
    }
}

#[test]
fn copies_in_trouble_leave_machines_as_they_were_asked_to_be() {
    let seeds = seeds_played(3);
    for seed in 1..=seeds {
        let options = Options { copies: true, safety: Duration::from_secs(60), ..Options::default() };
        must_hold(&format!("seed {seed}"), &run(seed, &options));
    }
}
