//! A failing run is made smaller: less goes wrong, the same invariant breaks, and the run is its options' alone.

use carrack_sim::{Options, Outcome, plants, run, shrink};

#[test]
fn a_failing_run_shrinks_to_what_it_takes() {
    let plant = plants::find("desired-state-alone").expect("a planted bug");
    let options = Options { small: true, plant: Some(plant), ..Options::default() };
    let finds = |outcome: &Outcome| {
        let failure = outcome.failure.as_ref();
        failure.is_some_and(|failure| failure.invariant == plant.found_by)
    };
    let failed = (1..60).map(|seed| run(seed, &options)).find(finds).expect("it is found");
    let mut told = Vec::new();
    let shrunk = shrink(&failed, &options, &mut |replays| {
        told.push(replays);
        replays < 30
    });
    let shrunk = shrunk.expect("it has failed");
    assert!(finds(&shrunk.outcome), "another invariant breaks: {:?}", shrunk.outcome.failure);
    assert!(shrunk.options.without.len() > 2, "{:?}", shrunk.options);
    assert!(told.is_sorted() && told.len() > 1, "{told:?}");
    assert!(shrunk.left().starts_with("what it takes: "), "{}", shrunk.left());
    let again = run(failed.seed, &shrunk.options);
    assert_eq!(again.trace_hash, shrunk.outcome.trace_hash);
}

#[test]
fn a_run_that_holds_has_nothing_to_shrink() {
    let options = Options { small: true, faults: false, ..Options::default() };
    let outcome = run(1, &options);
    assert!(shrink(&outcome, &options, &mut |_| true).is_none());
}
