//! Bugs put in on purpose. Each is a switch that a run can be given; the simulator must find it.

/// A planted bug.
#[derive(Debug, PartialEq, Eq)]
pub struct Plant {
    /// Its name.
    pub name: &'static str,
    /// What goes wrong.
    pub what: &'static str,
    /// The invariant that finds it.
    pub found_by: &'static str,
    pub(crate) bug: Bug,
}

/// What a planted bug changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    StaleReads,
    ForgottenCheckpoint,
    BlindHandler,
    SetsBySpec,
    EndsForgotten,
    FinalRejection,
    DeafObserver,
    StoredNominations,
    LostEvent,
    DesiredStateAlone,
}

/// All planted bugs.
pub const PLANTS: &[Plant] = &[
    Plant {
        name: "stale-reads",
        what: "controllers reconcile on caches that do not show their own writes yet",
        found_by: "no-child-made-twice",
        bug: Bug::StaleReads,
    },
    Plant {
        name: "forgotten-checkpoint",
        what: "the node's disk loses the device checkpoint when the kubelet restarts",
        found_by: "device-held-once",
        bug: Bug::ForgottenCheckpoint,
    },
    Plant {
        name: "blind-handler",
        what: "a virt-handler takes silence for death: whoever looks for processes of a vanished pod sees none",
        found_by: "one-guest-per-vm",
        bug: Bug::BlindHandler,
    },
    Plant {
        name: "final-rejection",
        what: "a pod whose device plugin is not there after a reboot is rejected for good (incident 1)",
        found_by: "plugin-absence-never-fails-a-pod",
        bug: Bug::FinalRejection,
    },
    Plant {
        name: "sets-by-spec",
        what: "a Deployment counts its ReplicaSets by their specs, and not by the pods that they still have",
        found_by: "rollouts-keep-their-bounds",
        bug: Bug::SetsBySpec,
    },
    Plant {
        name: "ends-forgotten",
        what: "a Job takes a pod's end for counted before the pod has let go of its finalizer",
        found_by: "ends-count-once",
        bug: Bug::EndsForgotten,
    },
    Plant {
        name: "deaf-observer",
        what: "the node lifecycle controller takes a time in which it could hear nobody for the nodes' silence",
        found_by: "eviction-needs-a-silent-node",
        bug: Bug::DeafObserver,
    },
    Plant {
        name: "stored-nominations",
        what: "the scheduler stores nominations beside its queue, lets updates put pods in flight back into it, and preempts \
               without asking the extender",
        found_by: "nominations-follow-the-queue",
        bug: Bug::StoredNominations,
    },
    Plant {
        name: "lost-event",
        what: "a watch leaves out a change now and then",
        found_by: crate::ledger::NAME,
        bug: Bug::LostEvent,
    },
    Plant {
        name: "desired-state-alone",
        what: "a disk goes from its node when no pod is known to want it, whatever is still mounted (incident 5)",
        found_by: "disk-in-use-stays",
        bug: Bug::DesiredStateAlone,
    },
];

/// The planted bug of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Plant> {
    PLANTS.iter().find(|plant| plant.name == name)
}

impl Bug {
    /// Whether it is one of controllers of workloads.
    pub(crate) fn is_of_workloads(self) -> bool {
        matches!(self, Self::SetsBySpec | Self::EndsForgotten)
    }
}
