//! Planted bugs of what pods' statuses say: of probes, of gates, and of containers that have ended.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_STATUSES: &[Plant] = &[
    Plant {
        name: "probes-unnoted",
        what: "a container that is stopped for its probe is taken for one that has ended by itself",
        found_by: crate::probed::NAME,
        also: &[],
        bug: Bug::ProbesUnnoted,
    },
    Plant {
        name: "ready-unasked",
        what: "a container that nobody has asked yet is told to have started, and to be ready",
        found_by: crate::asked::NAME,
        also: &[],
        bug: Bug::ReadyUnasked,
    },
    Plant {
        name: "statuses-overwrite",
        what: "a kubelet writes a pod's status as it has it, over what others have said there since",
        found_by: crate::gates::KEPT,
        also: &[],
        bug: Bug::StatusesOverwrite,
    },
    Plant {
        name: "gates-unread",
        what: "a pod is ready when its containers are, whatever its readiness gates say",
        found_by: crate::gates::HEEDED,
        also: &[],
        bug: Bug::GatesUnread,
    },
    Plant {
        name: "debugged-again",
        what: "an ephemeral container that has ended is started again, as others are",
        found_by: crate::debuggers::ONCE,
        // Another one of its name is told of in its place.
        also: &[crate::debuggers::TOLD],
        bug: Bug::DebuggedAgain,
    },
    Plant {
        name: "debuggers-forgotten",
        what: "a kubelet tells of an ephemeral container only while it runs",
        found_by: crate::debuggers::TOLD,
        also: &[],
        bug: Bug::DebuggersForgotten,
    },
];
