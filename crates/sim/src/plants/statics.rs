//! Planted bugs of static pods and their mirrors.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_STATICS: &[Plant] = &[
    Plant {
        name: "mirrors-end-pods",
        what: "a static pod ends when somebody deletes its mirror",
        found_by: crate::statics::PICTURES,
        also: &[],
        bug: Bug::MirrorsEndPods,
    },
    Plant {
        name: "mirrors-left",
        what: "a mirror stays whose manifest is gone",
        found_by: crate::statics::MIRRORED,
        // One that somebody has deleted is not let go, either.
        also: &["deleted-pods-go"],
        bug: Bug::MirrorsLeft,
    },
    Plant {
        name: "namesakes-together",
        what: "what a manifest has become starts while what it was still ends",
        found_by: crate::statics::ONCE,
        also: &[],
        bug: Bug::NamesakesTogether,
    },
];
