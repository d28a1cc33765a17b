//! Clones in trouble: whatever lags, is lost, comes twice or in another order, and whoever dies, a clone makes its children
//! once, forgets them only when they are gone, and ends as it would have ended without any of that.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use carrack_sim::{Mishap, Options, Outcome, Scene, run};

fn must_hold(what: &str, outcome: &Outcome) {
    if let Some(failure) = &outcome.failure {
        panic!("{what}: {failure}");
    }
}

#[test]
fn clones_in_trouble_leave_nothing_behind() {
    let options = |faults| Options { clones: true, faults, ..Options::default() };
    must_hold("seed 1 without faults", &run(1, &options(false)));
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    for seed in 1..=seeds {
        must_hold(&format!("seed {seed}"), &run(seed, &options(true)));
    }
}

#[test]
fn a_hundred_clones_of_one_machine() {
    let options = |faults| Options { clones: true, faults, scene: Some(Scene::Hundred), ..Options::default() };
    let quiet = run(1, &options(false));
    must_hold("without faults", &quiet);
    let troubled = run(2, &options(true));
    must_hold("with faults", &troubled);
    assert_eq!(quiet.end, troubled.end);
}

#[test]
fn a_clone_costs_a_few_writes() {
    let options = Options { clones: true, faults: false, scene: Some(Scene::OfMachine), ..Options::default() };
    let outcome = run(1, &options);
    must_hold("quiet", &outcome);
    // The clone's own are nine; the others are of its snapshot and its restore, and of the machines.
    assert!((10..60).contains(&outcome.counts.writes), "{:?}", outcome.counts);
}

/// Plays a scene without trouble, and then with each of these mishaps: the ends must be the same. The controller of clones has
/// the caches of all controllers of machines, or those of a process of its own.
fn sweep(scene: Scene, apart: bool, mishaps: impl Fn(&Outcome) -> Vec<Mishap>) {
    let options = |mishap| Options {
        clones: true,
        faults: false,
        scene: Some(scene),
        mishap,
        cloner_apart: Some(apart),
        safety: Duration::from_secs(if scene == Scene::Forsaken { 110 } else { 12 }),
        ..Options::default()
    };
    let quiet = run(1, &options(None));
    must_hold(&format!("{scene:?}"), &quiet);
    let mishaps = mishaps(&quiet);
    assert!(!mishaps.is_empty(), "{scene:?}: nothing could have gone wrong: {:?}", quiet.counts);
    for mishap in mishaps {
        let outcome = run(1, &options(Some(mishap)));
        must_hold(&format!("{scene:?} with {mishap:?}"), &outcome);
        assert_eq!(outcome.end, quiet.end, "{scene:?} with {mishap:?}");
    }
}

/// All crashes, or one in so many.
fn crashes(scene: Scene, apart: bool, step: usize) {
    sweep(scene, apart, |quiet| (0..quiet.counts.effects).step_by(step).map(Mishap::Crash).collect());
}

fn deletes(scene: Scene) {
    sweep(scene, true, |quiet| {
        let all = 0..quiet.counts.deletes;
        all.clone().map(Mishap::LostDelete).chain(all.map(Mishap::UnansweredDelete)).collect()
    });
}

fn delays(scene: Scene) {
    sweep(scene, true, |quiet| (0..quiet.counts.lines).map(Mishap::LateLine).collect());
}

#[test]
fn a_clone_of_a_machine_survives_every_crash() {
    crashes(Scene::OfMachine, true, 1);
}

#[test]
fn a_clone_of_a_machine_survives_crashes_of_all_controllers() {
    crashes(Scene::OfMachine, false, 7);
}

#[test]
fn a_clone_of_a_snapshot_survives_crashes() {
    crashes(Scene::OfSnapshot, true, 3);
}

#[test]
fn a_clone_by_copies_survives_crashes() {
    crashes(Scene::Copied, true, 7);
    crashes(Scene::Copied, false, 9);
}

#[test]
fn a_clone_without_hope_survives_crashes() {
    crashes(Scene::Hopeless, true, 5);
}

#[test]
fn a_clone_goes_after_its_target_after_crashes() {
    crashes(Scene::Forsaken, true, 5);
}

#[test]
fn every_delete_may_fail() {
    for scene in [Scene::OfMachine, Scene::Copied, Scene::OfSnapshot, Scene::Hopeless, Scene::Forsaken] {
        deletes(scene);
    }
}

#[test]
fn every_line_of_a_watch_may_be_late_1() {
    delays(Scene::OfMachine);
}

#[test]
fn every_line_of_a_watch_may_be_late_2() {
    delays(Scene::OfSnapshot);
}
