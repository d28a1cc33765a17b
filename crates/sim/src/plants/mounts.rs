//! Planted bugs of what a kubelet mounts and unmounts across its restarts, and while nobody serves the API (incident 5).

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_MOUNTS: &[Plant] = &[
    Plant {
        name: "mounts-anew",
        what: "a kubelet that has started anew mounts the volumes of pods that run once more (incident 5)",
        found_by: crate::kept_mounts::NAME,
        also: &[],
        bug: Bug::MountsAnew,
    },
    Plant {
        name: "unmounts-when-told",
        what: "a pod's volumes are unmounted only when the API server has taken down how it ended (incident 5)",
        found_by: crate::unwanted::NAME,
        also: &[],
        bug: Bug::UnmountsWhenTold,
    },
];
