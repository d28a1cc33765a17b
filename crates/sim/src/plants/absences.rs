//! Planted bugs of runtimes and drivers that are away for a while, and of drivers that lie.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_ABSENCES: &[Plant] = &[
    Plant {
        name: "silence-is-well",
        what: "a node is called ready whose runtime cannot be listed",
        found_by: crate::silence::NAME,
        also: &[],
        bug: Bug::SilenceIsWell,
    },
    Plant {
        name: "registers-once",
        what: "a CSI driver that was away is not heard to be there again",
        found_by: crate::registered::NAME,
        also: &[],
        bug: Bug::RegistersOnce,
    },
    Plant {
        name: "believed-drivers",
        what: "a volume counts as mounted for a pod as soon as its CSI driver says so, and nobody looks",
        found_by: "known-mounts-are-there",
        also: &[],
        bug: Bug::BelievedDrivers,
    },
    Plant {
        name: "small-volumes",
        what: "a claim gets what its driver has made for it, however small that is",
        found_by: crate::sizes::NAME,
        also: &[],
        bug: Bug::SmallVolumes,
    },
];
