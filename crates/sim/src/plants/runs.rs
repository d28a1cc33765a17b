//! Planted bugs of what is answered to whoever reads without a cache, and of how a run as a whole ends.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_RUNS: &[Plant] = &[
    Plant {
        name: "new-is-absent",
        what: "an API server says of what was just made that it is not there",
        found_by: "lists-are-newest",
        also: &[],
        bug: Bug::NewIsAbsent,
    },
    Plant {
        name: "beginnings-cut",
        what: "a watch without a revision begins with nothing, whatever there is",
        found_by: crate::ledger::NAME,
        also: &[],
        bug: Bug::BeginningsCut,
    },
    Plant {
        name: "panics-at-work",
        what: "a scheduler that has something to do panics",
        found_by: crate::world::PANICS,
        also: &[],
        bug: Bug::PanicsAtWork,
    },
    Plant {
        name: "amounts-forgotten",
        what: "a controller of machines that starts anew writes down another amount of memory for them than people asked for",
        found_by: crate::world::ENDS,
        also: &[],
        bug: Bug::AmountsForgotten,
    },
];
