//! Bugs that the simulator plants in the controllers of machines: what once was done upstream.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A node without a heartbeat counts as one that is heard (KubeVirt's node controller).
    MissingHeartbeat,
    /// Nobody looks at instances of a node of which neither an object nor a Lease is left.
    VanishedNode,
    /// Nobody clears up the pods of instances that ended just before their node died.
    EndedOnDeadNode,
    /// Nobody writes that a dead machine's disks are left by it.
    KeptDisks,
    /// A machine's disks count as left by it as soon as its node is silent.
    BuriedAlive,
    /// The taint of a node that is out of service counts on one that is ready, too.
    TaintedAlive,
    /// What a machine keeps beside its disks belongs to its instance.
    StateOfInstances,
    /// A machine takes an instance over without asking whether it is there itself.
    AdoptedUnasked,
    /// A machine starts whether or not its DataVolumes are done.
    UnfilledDisksStart,
    /// Disks count as copied as soon as a pod is there that copies them.
    CopiesUnread,
    /// A machine is started whether or not a pod copies or fills its disks.
    StartsWhatIsCopied,
    /// A pod that copies a machine's disks is made whether or not the machine has been started meanwhile.
    CopiesWhatRuns,
    /// Nobody freezes the guest of a running machine whose disks are taken one by one.
    UnfrozenDisks,
    /// What a restored machine keeps beside its disks is left out of its snapshots as long as it does not own it.
    StateUnowned,
    /// A restored machine goes on with what it keeps beside its disks, or with nothing.
    StateLeftBehind,
    /// What is over of a machine that stays down is left where it is while a snapshot of the machine is taken.
    SpentStay,
    /// A node's silence is counted from when its Lease says that it was renewed (KubeVirt's node controller).
    LeaseByWallClock,
}
