//! Planted bugs of when images are pulled.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_PULLS: &[Plant] = &[
    Plant {
        name: "pulls-at-once",
        what: "a kubelet pulls images as soon as they are asked for, however many it may pull at a time",
        found_by: crate::pulling::NAME,
        also: &[],
        bug: Bug::PullsAtOnce,
    },
    Plant {
        name: "failed-pulls-hold",
        what: "a pull that has failed keeps its place, and those behind it wait for good",
        found_by: "liveness",
        also: &[],
        bug: Bug::FailedPullsHold,
    },
];
