//! Clones in trouble: whatever lags, is lost, comes twice or in another order, and whoever dies, a clone makes its children
//! once, forgets them only when they are gone, and ends as it would have ended without any of that.

use std::time::Duration;

use carrack_sim::{Mishap, Options, Outcome, Scene, run};

use crate::{must_hold, seeds_played};

#[test]
fn clones_in_trouble_leave_nothing_behind() {
    let options = |faults| Options { clones: true, faults, ..Options::default() };
    must_hold("seed 1 without faults", &run(1, &options(false)));
    let seeds = seeds_played(4);
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

/// Plays a scene, in which a mishap may happen. The controller of clones has the caches of all controllers of machines, or those of
/// a process of its own.
fn play(scene: Scene, apart: bool, mishap: Option<Mishap>) -> Outcome {
    let options = Options {
        clones: true,
        faults: false,
        scene: Some(scene),
        mishap,
        cloner_apart: Some(apart),
        safety: Duration::from_secs(if scene == Scene::Forsaken { 110 } else { 12 }),
        ..Options::default()
    };
    let outcome = run(1, &options);
    must_hold(&format!("{scene:?} with {mishap:?}"), &outcome);
    outcome
}

/// Plays a scene without trouble, and then with each of these mishaps: the ends must be the same.
fn sweep(scene: Scene, apart: bool, mishaps: impl Fn(&Outcome) -> Vec<Mishap>) {
    let quiet = play(scene, apart, None);
    let mishaps = mishaps(&quiet);
    assert!(!mishaps.is_empty(), "{scene:?}: nothing could have gone wrong: {:?}", quiet.counts);
    for mishap in mishaps {
        assert_eq!(play(scene, apart, Some(mishap)).end, quiet.end, "{scene:?} with {mishap:?}");
    }
}

/// How many of all possible mishaps are played: one in `usually`, or all of them when the environment has `EVERY`.
fn step(usually: usize) -> usize {
    if std::env::var_os("EVERY").is_some() { 1 } else { usually }
}

/// All crashes, or one in so many.
fn crashes(scene: Scene, apart: bool, usually: usize) {
    sweep(scene, apart, |quiet| (0..quiet.counts.effects).step_by(step(usually)).map(Mishap::Crash).collect());
}

fn deletes(scene: Scene, apart: bool) {
    sweep(scene, apart, |quiet| {
        let all = 0..quiet.counts.deletes;
        all.clone().map(Mishap::LostDelete).chain(all.map(Mishap::UnansweredDelete)).collect()
    });
}

fn delays(scene: Scene, apart: bool, usually: usize) {
    sweep(scene, apart, |quiet| (0..quiet.counts.lines).step_by(step(usually)).map(Mishap::LateLine).collect());
}

/// What was asked for is given up at each stage, or at one in so many, and the controller may die with it: in the end it is as if
/// nobody had ever asked, or as if it had been given up when all was done.
fn given_up(scene: Scene, apart: bool, usually: usize) {
    let effects = play(scene, apart, None).counts.effects;
    let end = |mishap| play(scene, apart, Some(mishap)).end;
    let (never, late) = (end(Mishap::GivenUp(0)), end(Mishap::GivenUp(effects - 1)));
    assert_ne!(never, late, "{scene:?}: it comes to nothing in any case");
    for number in (1..effects - 1).step_by(step(usually)) {
        for mishap in [Mishap::GivenUp(number), Mishap::GivenUpInCrash(number)] {
            let end = end(mishap);
            if end != never {
                assert_eq!(end, late, "{scene:?} with {mishap:?}");
            }
        }
    }
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
fn a_clone_of_a_snapshot_that_comes_later_survives_crashes() {
    crashes(Scene::Later, true, 5);
}

#[test]
fn a_clone_with_what_its_machine_keeps_survives_crashes() {
    crashes(Scene::Kept, true, 7);
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
fn restores_survive_crashes_of_all_controllers() {
    crashes(Scene::Anew, false, 13);
    crashes(Scene::Back, false, 17);
    crashes(Scene::InPlace, false, 13);
}

#[test]
fn every_delete_may_fail() {
    for scene in [Scene::OfMachine, Scene::Copied, Scene::OfSnapshot, Scene::Hopeless, Scene::Forsaken, Scene::Kept] {
        deletes(scene, true);
    }
    deletes(Scene::InPlace, false);
}

#[test]
fn clones_may_be_given_up_at_each_stage() {
    given_up(Scene::OfMachine, true, 7);
    given_up(Scene::Later, true, 13);
    given_up(Scene::Kept, true, 17);
}

#[test]
fn restores_may_be_given_up_at_each_stage() {
    given_up(Scene::Anew, false, 29);
    given_up(Scene::Back, false, 31);
}

#[test]
fn every_line_of_a_watch_may_be_late_1() {
    delays(Scene::OfMachine, true, 1);
}

#[test]
fn every_line_of_a_watch_may_be_late_2() {
    delays(Scene::OfSnapshot, true, 1);
}

#[test]
fn lines_of_other_watches_may_be_late() {
    delays(Scene::Later, true, 11);
    delays(Scene::Kept, true, 17);
    delays(Scene::Anew, false, 41);
    delays(Scene::InPlace, false, 41);
}
