//! The lists of invariants and of planted bugs hold together: each invariant has a name and a sentence, and a bug that trips
//! it, or it is known to lack one.

use std::collections::BTreeSet;

use carrack_sim::INVARIANTS;
use carrack_sim::plants::PLANTS;

/// Invariants that no planted bug trips yet, each with what a bug would have to change.
const WITHOUT_A_PLANT: &[(&str, &str)] = &[
    ("pod-bound-once", "the API server's binding would have to overwrite a node that a pod has"),
    ("pod-runs-where-bound", "a kubelet would have to watch pods of other nodes, and be allowed to"),
    ("pod-end-is-final", "a kubelet would have to report what its runtime says over what it has reported"),
    ("nodes-are-not-overcommitted", "the scheduler would have to leave pods out that it has assumed"),
    ("volume-in-use-stays", "the kubelet would have to unmount for a deletion and not for an end"),
    ("claimed-data-stays", "the provisioner would have to delete by a cache that shows no claim"),
    ("gone-means-stopped", "the kubelet would have to delete an object before its sandbox has stopped"),
    ("one-pod-for-one-place", "a DaemonSet would have to name its pods by chance"),
    ("one-filter-a-pop", "the scheduler would have to ask an extender again within a cycle"),
    ("seats-are-bounded", "the API server would have to hand out seats without counting them"),
    ("roles-do-not-spin", "a controller would have to write what is there already, and be woken by it"),
    ("roles-do-not-give-up", "a role would have to end when it loses its Lease, as upstream's do"),
];

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
fn each_invariant_is_tripped_or_known_not_to_be() {
    let tripped: BTreeSet<&str> = PLANTS.iter().map(|plant| plant.found_by).collect();
    let known: BTreeSet<&str> = WITHOUT_A_PLANT.iter().map(|(name, _)| *name).collect();
    for invariant in INVARIANTS {
        let name = invariant.name;
        assert!(tripped.contains(name) || known.contains(name), "no planted bug trips {name}");
    }
    for (name, _) in WITHOUT_A_PLANT {
        assert!(INVARIANTS.iter().any(|invariant| invariant.name == *name), "there is no invariant {name}");
    }
    for plant in PLANTS {
        let found = INVARIANTS.iter().any(|invariant| invariant.name == plant.found_by);
        assert!(found, "{} is to be found by {}, which is no invariant", plant.name, plant.found_by);
    }
}
