//! Planted bugs of devices that are ill, disks that are full, and a store that is.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_SHORTAGES: &[Plant] = &[
    Plant {
        name: "ill-devices-given",
        what: "a device plugin is asked for what was chosen of its devices, whatever it has said of them since",
        found_by: crate::node::WELL,
        also: &[],
        bug: Bug::IllDevicesGiven,
    },
    Plant {
        name: "pre-starts-ignored",
        what: "a container starts whatever its device plugin has answered when it was told of it",
        found_by: crate::node::TOLD,
        also: &[],
        bug: Bug::PreStartsIgnored,
    },
    Plant {
        name: "full-disk-forgets",
        what: "a device checkpoint that could not be written counts as written",
        found_by: crate::node::NOTED,
        also: &[],
        bug: Bug::UnwrittenCounts,
    },
    Plant {
        name: "full-store-nods",
        what: "what the store refuses of Leases for lack of room is answered as written",
        found_by: crate::world::ANSWERED,
        also: &[],
        bug: Bug::RefusedCounts,
    },
];
