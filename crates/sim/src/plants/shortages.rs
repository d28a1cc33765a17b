//! Planted bugs of devices that are ill, disks that are full, a store that is, and nodes that run low.

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
    Plant {
        name: "unread-is-full",
        what: "a machine whose facts cannot be read counts as one that has no memory left, and pods go for that",
        found_by: crate::pressure::PROOF,
        also: &[],
        bug: Bug::UnreadIsFull,
    },
    Plant {
        name: "outdated-is-current",
        what: "a pod goes by facts that were read before the last one that had to go had ended",
        found_by: crate::pressure::PROOF,
        also: &[],
        bug: Bug::OutdatedIsCurrent,
    },
    Plant {
        name: "evicts-at-once",
        what: "a node that runs low evicts another pod while the last one still runs",
        found_by: crate::pressure::ONE,
        also: &[],
        bug: Bug::EvictsAtOnce,
    },
    Plant {
        name: "critical-evicted",
        what: "a pod that its node cannot do without is evicted as any other",
        found_by: crate::pressure::CRITICAL,
        also: &[],
        bug: Bug::CriticalEvicted,
    },
];
