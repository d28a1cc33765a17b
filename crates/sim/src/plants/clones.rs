//! Planted bugs of clones: of their controller, and of machines whose disks are copied.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_CLONES: &[Plant] = &[
    Plant {
        name: "random-clone-names",
        what: "the name of a clone's snapshot is drawn, and known from the clone's status alone (incident 3)",
        found_by: "clones-make-once",
        also: &[],
        bug: Bug::RandomCloneNames,
    },
    Plant {
        name: "names-cleared-early",
        what: "a clone forgets its snapshot and its restore whether they could be deleted or not",
        found_by: "clones-forget-what-is-gone",
        also: &[],
        bug: Bug::NamesClearedEarly,
    },
    Plant {
        name: "restore-not-created-yet",
        what: "a clone waits for a restore that it has deleted itself, and never deletes the snapshot",
        found_by: "liveness",
        also: &[],
        bug: Bug::RestoreNotCreatedYet,
    },
    Plant {
        name: "cache-miss-is-terminal",
        what: "a clone fails because a cache does not show the content of its snapshot",
        found_by: "clones-fail-on-proof",
        also: &[],
        bug: Bug::CacheMissIsTerminal,
    },
    Plant {
        name: "copies-unread",
        what: "disks count as copied as soon as there is a pod that copies them",
        found_by: "copies-are-whole",
        also: &["liveness"],
        bug: Bug::CopiesUnread,
    },
    Plant {
        name: "starts-what-is-copied",
        what: "a machine is started whether or not a pod copies or fills its disks",
        found_by: crate::clones::COPIED_DISKS_REST,
        also: &["copies-are-whole"],
        bug: Bug::StartsWhatIsCopied,
    },
    Plant {
        name: "copies-what-runs",
        what: "a pod that copies a machine's disks is made whether or not the machine was started meanwhile",
        found_by: crate::clones::COPIED_DISKS_REST,
        also: &["copies-are-whole"],
        bug: Bug::CopiesWhatRuns,
    },
    Plant {
        name: "copies-one-by-one",
        what: "a guest begins to copy a disk when it has copied the one before",
        found_by: crate::clones::ONE_INSTANT,
        also: &[],
        bug: Bug::CopiesOneByOne,
    },
    Plant {
        name: "unfrozen-disks",
        what: "nobody freezes a guest whose disks are taken one by one, by storage and by its own copying",
        found_by: crate::clones::ONE_INSTANT,
        also: &[],
        bug: Bug::UnfrozenDisks,
    },
    Plant {
        name: "state-left-behind",
        what: "a restored machine does not get what its snapshot has of the variables that its firmware keeps",
        found_by: crate::clones::RESTORED_STATE,
        also: &[],
        bug: Bug::StateLeftBehind,
    },
    Plant {
        name: "state-unowned",
        what: "a snapshot leaves out what firmware keeps that its machine was restored with, and does not own yet",
        found_by: crate::clones::KEPT_STATE,
        also: &[],
        bug: Bug::StateUnowned,
    },
    Plant {
        name: "state-unminded",
        what: "a machine is cloned whether or not anything can keep what its firmware does",
        found_by: crate::clones::CLONED_STATE,
        also: &[],
        bug: Bug::StateUnminded,
    },
    Plant {
        name: "spent-stay",
        what: "what is over of a machine that does not start again stays, and nobody can copy its disks for a snapshot",
        found_by: "liveness",
        also: &[],
        bug: Bug::SpentStay,
    },
    Plant {
        name: "unwanted-copies",
        what: "a guest goes on copying its disks when the pod that waited for it is gone",
        found_by: crate::clones::COPIED_DISKS_REST,
        also: &["copies-are-whole"],
        bug: Bug::UnwantedCopies,
    },
    Plant {
        name: "adopts-anything",
        what: "a clone takes what has the name of its snapshot for its snapshot, whoever made it",
        found_by: "clones-name-their-own",
        also: &[],
        bug: Bug::AdoptsAnything,
    },
    Plant {
        name: "target-drawn-late",
        what: "the name of a clone's target is drawn when it is restored, and looked for in the clone's spec",
        found_by: "liveness",
        also: &[],
        bug: Bug::TargetDrawnLate,
    },
];
