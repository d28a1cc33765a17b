//! Bugs that the simulator plants: the third incident's, each of the holes that are left upstream after its fix, and others.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The snapshot's name is drawn, and known from the status alone (KubeVirt 0.59 to 1.1).
    RandomNames,
    /// The names of restore and snapshot are cleared whether they could be deleted or not.
    NamesClearedEarly,
    /// A restore that is not there is waited for, also when it was deleted a moment ago.
    RestoreNotCreatedYet,
    /// What is not in a cache makes the clone fail.
    CacheMissIsTerminal,
    /// Whatever has the name of a child is taken for it.
    AdoptsAnything,
    /// The name of a target that was given none is drawn when it is restored, and looked for in the clone's spec.
    TargetDrawnLate,
    /// A machine is cloned whether or not what it keeps beside its disks can be kept.
    StateUnminded,
}
