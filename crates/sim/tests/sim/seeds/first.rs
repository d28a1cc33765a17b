//! Which run finds a planted bug, where whole runs do not find it soon or a small one does, which costs a hundredth.
//!
//! Each is one that has found its bug: `planted_bugs_are_found_*` print which run does, and `carrack sim --small --plant NAME --runs N`
//! which small one. What a seed plays changes with the code. One that finds its bug no more costs a run, and is to be replaced; all others
//! are played after it.

use carrack_sim::{Options, Outcome, plants, run};

use super::{SOON, options};

/// A run with a planted bug, by its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Of a slice of a cluster.
    Small(u64),
    /// Of a whole cluster, which has little time to come to rest.
    Soon(u64),
    /// Of a whole cluster.
    Whole(u64),
}

impl Run {
    /// What is played.
    pub(super) fn options(self, plant: &'static plants::Plant) -> Options {
        let played = match self {
            Self::Small(_) => Options { small: true, ..Options::default() },
            Self::Soon(_) => Options { liveness: SOON, ..options() },
            Self::Whole(_) => options(),
        };
        Options { plant: Some(plant), ..played }
    }

    /// Plays it.
    pub(super) fn play(self, plant: &'static plants::Plant) -> Outcome {
        let (Self::Small(seed) | Self::Soon(seed) | Self::Whole(seed)) = self;
        run(seed, &self.options(plant))
    }
}

/// Plants by name, each with its run.
pub(super) const FIRST: &[(&str, Run)] = &[
    ("absence-remembered", Run::Soon(3)),
    ("acts-before-it-looks", Run::Soon(2)),
    ("adopted-unasked", Run::Soon(2)),
    ("amounts-forgotten", Run::Soon(2)),
    ("baseless-bindings", Run::Soon(6)),
    ("baseless-writes", Run::Soon(8)),
    ("blind-handler", Run::Whole(13)),
    ("bounds-forgotten", Run::Soon(2)),
    ("broken-promise", Run::Whole(12)),
    ("buried-alive", Run::Soon(3)),
    ("careless-inline-detach", Run::Soon(2)),
    ("charges-lost", Run::Soon(2)),
    ("chosen-before", Run::Small(42)),
    ("content-forgotten", Run::Whole(1)),
    ("copies-unread", Run::Soon(2)),
    ("critical-evicted", Run::Soon(3)),
    ("deaf-nominees", Run::Soon(3)),
    ("deaf-observer", Run::Soon(3)),
    ("deaf-queue", Run::Soon(5)),
    ("deaf-thaws", Run::Whole(9)),
    ("desired-state-alone", Run::Small(1)),
    ("ended-on-dead-node", Run::Soon(2)),
    ("endless-calls", Run::Soon(15)),
    ("endless-terms", Run::Soon(2)),
    ("ends-forgotten", Run::Small(29)),
    ("ends-taken-back", Run::Soon(2)),
    ("failed-pulls-hold", Run::Whole(1)),
    ("final-rejection", Run::Small(1)),
    ("forgotten-allocations", Run::Soon(2)),
    ("forgotten-checkpoint", Run::Soon(6)),
    ("forgotten-kinds", Run::Whole(3)),
    ("forgotten-memory", Run::Soon(3)),
    ("forgotten-mounts", Run::Small(1)),
    ("forgotten-pulls", Run::Soon(2)),
    ("full-disk-forgets", Run::Whole(26)),
    ("grants-forgotten", Run::Whole(40)),
    ("growth-aside", Run::Soon(3)),
    ("growth-unheard", Run::Soon(3)),
    ("growth-unproved", Run::Whole(10)),
    ("guessed-loss", Run::Soon(2)),
    ("hasty-orphans", Run::Small(36)),
    ("judged-again", Run::Soon(2)),
    ("kept-disks", Run::Soon(3)),
    ("last-words-lost", Run::Soon(2)),
    ("late-hooks", Run::Soon(2)),
    ("launchers-by-label", Run::Whole(1)),
    ("leaked-assumptions", Run::Soon(2)),
    ("limits-kept", Run::Soon(2)),
    ("limits-unheard", Run::Soon(2)),
    ("makes-room", Run::Soon(5)),
    ("mounts-untold", Run::Whole(18)),
    ("nominations-kept", Run::Soon(2)),
    ("orphaned-calls", Run::Soon(7)),
    ("orphans-held", Run::Whole(1)),
    ("outdated-is-current", Run::Whole(127)),
    ("random-clone-names", Run::Soon(5)),
    ("raw-names", Run::Whole(1)),
    ("ready-unasked", Run::Whole(15)),
    ("records-are-mounts", Run::Soon(3)),
    ("releases-unheard", Run::Whole(8)),
    ("secrets-overlooked", Run::Soon(3)),
    ("shared-tokens", Run::Soon(2)),
    ("snapshots-at-once", Run::Whole(1)),
    ("stale-reads", Run::Small(16)),
    ("starts-what-is-copied", Run::Soon(3)),
    ("stopped-calls", Run::Soon(15)),
    ("stored-nominations", Run::Small(52)),
    ("taken-claims", Run::Soon(2)),
    ("termless-bindings", Run::Soon(5)),
    ("unfilled-disks-start", Run::Soon(2)),
    ("unfrozen-guests", Run::Soon(4)),
    ("unknown-is-over", Run::Whole(22)),
    ("unplaced-stay", Run::Whole(1)),
    ("unread-files", Run::Soon(4)),
    ("unread-is-absent", Run::Soon(2)),
    ("unread-is-unwanted", Run::Soon(3)),
    ("unread-pods-hold", Run::Soon(7)),
    ("unread-volumes-hold", Run::Soon(2)),
    ("unwanted-copies", Run::Soon(3)),
];

/// The run of a plant, if one is noted.
pub(super) fn of(plant: &str) -> Option<Run> {
    FIRST.iter().find(|(name, _)| *name == plant).map(|(_, run)| *run)
}
