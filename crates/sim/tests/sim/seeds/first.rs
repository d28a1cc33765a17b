//! With which seed a planted bug is looked for first, where the first ones do not show it.
//!
//! Each is one that has found its bug: `planted_bugs_are_found_*` print which seed does, and after how many events. What a seed plays
//! changes with the code. One that finds its bug no more costs a run, and is to be replaced; all others are played after it.

/// Plants by name, each with its seed.
pub(super) const FIRST: &[(&str, u64)] = &[];

/// The seed of a plant, if one is noted.
pub(super) fn of(plant: &str) -> Option<u64> {
    FIRST.iter().find(|(name, _)| *name == plant).map(|(_, seed)| *seed)
}
