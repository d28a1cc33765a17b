//! With which seed a planted bug is looked for first, where the first ones do not show it.
//!
//! Each is one that has found its bug: `planted_bugs_are_found_*` print which seed does, and after how many events. What a seed plays
//! changes with the code. One that finds its bug no more costs a run, and is to be replaced; all others are played after it.

/// Plants by name, each with its seed.
pub(super) const FIRST: &[(&str, u64)] = &[
    ("absence-remembered", 3),
    ("adopted-unasked", 2),
    ("baseless-writes", 5),
    ("broken-promise", 10),
    ("buried-alive", 3),
    ("careless-detach", 2),
    ("charges-lost", 2),
    ("chosen-before", 2),
    ("clocks-of-another", 2),
    ("deaf-nominees", 3),
    ("deaf-observer", 3),
    ("deaf-queue", 5),
    ("endless-calls", 15),
    ("endless-terms", 2),
    ("ends-forgotten", 3),
    ("forgotten-allocations", 2),
    ("forgotten-kinds", 2),
    ("forgotten-memory", 3),
    ("forgotten-mounts", 2),
    ("forgotten-pulls", 2),
    ("grants-forgotten", 4),
    ("growth-aside", 3),
    ("growth-unheard", 3),
    ("growth-unproved", 7),
    ("hasty-orphans", 2),
    ("hasty-release", 8),
    ("kept-disks", 2),
    ("late-hooks", 2),
    ("late-writer", 2),
    ("makes-room", 4),
    ("mounts-untold", 3),
    ("nominations-kept", 2),
    ("orphaned-calls", 2),
    ("records-are-mounts", 3),
    ("shared-tokens", 2),
    ("stale-dependents", 3),
    ("stale-grants", 2),
    ("starts-what-is-copied", 3),
    ("stopped-calls", 15),
    ("taken-claims", 2),
    ("termless-bindings", 5),
    ("times-twice", 4),
    ("unread-files", 4),
    ("unread-is-absent", 2),
    ("unwanted-copies", 2),
];

/// The seed of a plant, if one is noted.
pub(super) fn of(plant: &str) -> Option<u64> {
    FIRST.iter().find(|(name, _)| *name == plant).map(|(_, seed)| *seed)
}
