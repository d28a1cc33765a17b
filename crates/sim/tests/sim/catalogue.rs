//! The lists of invariants and of planted bugs hold together: each invariant has a name and a sentence, and a bug that trips it.
//! That it does is shown in `seeds.rs`.

use std::collections::BTreeSet;

use carrack_sim::plants::PLANTS;
use carrack_sim::{INVARIANTS, Request, simulate};

#[test]
fn names_are_unique_and_sentences_are_sentences() {
    let mut names = BTreeSet::new();
    for invariant in INVARIANTS {
        assert!(names.insert(invariant.name), "{} is there twice", invariant.name);
        let sentence = invariant.sentence;
        assert!(sentence.ends_with('.') && sentence.split(' ').count() > 5, "{}: {sentence:?}", invariant.name);
    }
    let mut names = BTreeSet::new();
    for plant in PLANTS {
        assert!(names.insert(plant.name), "{} is there twice", plant.name);
        assert!(!plant.what.is_empty(), "{} says nothing", plant.name);
    }
}

#[test]
fn each_invariant_is_tripped_by_a_planted_bug() {
    for invariant in INVARIANTS {
        let name = invariant.name;
        assert!(PLANTS.iter().any(|plant| plant.found_by == name), "no planted bug trips {name}");
    }
    for plant in PLANTS {
        for name in std::iter::once(&plant.found_by).chain(plant.also) {
            let found = INVARIANTS.iter().any(|invariant| invariant.name == *name);
            assert!(found, "{} is to be found by {name}, which is no invariant", plant.name);
        }
        assert!(!plant.also.contains(&plant.found_by), "{} names {} twice", plant.name, plant.found_by);
    }
}

#[test]
fn the_list_of_invariants_names_the_plants_that_trip_them() {
    let request = Request { list_invariants: true, ..Request::default() };
    let mut printed = Vec::new();
    assert!(simulate(&request, &mut printed).expect("it is printed"));
    let printed = String::from_utf8(printed).expect("text");
    for plant in PLANTS {
        let entry = printed.split("\n\n").find(|entry| entry.lines().next() == Some(plant.found_by));
        let entry = entry.unwrap_or_default();
        let named = entry.lines().any(|line| line == format!("    --plant {}", plant.name));
        assert!(named, "{}: {entry:?}", plant.found_by);
    }
}
