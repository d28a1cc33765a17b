//! Bugs that the simulator plants in the controllers of machines: what once was done, here or upstream.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A launcher asks for the devices that nodes offer at the moment, and so for none after a reboot.
    DevicesOfTheMoment,
    /// A write that fails an instance of a silent node rests on nothing (KubeVirt's node controller).
    UnconditionalVerdict,
    /// A node without a heartbeat counts as one that is heard (KubeVirt's node controller).
    MissingHeartbeat,
    /// A silent node is not looked after without its Node object (KubeVirt's node controller).
    VanishedNode,
    /// An instance goes while its pods are still there.
    HastyFinalizer,
    /// A machine whose instance has failed for its node is not started again.
    LostForGood,
}
