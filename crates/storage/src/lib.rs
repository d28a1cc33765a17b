//! `carrack-local`: volumes on a node's own disk.
//!
//! ```text
//!   PersistentVolumeClaim ─▶ provision (a core, one on each node) ──CSI──▶ driver ─▶ volumes/<id>/disk, a file
//!        ▲  PersistentVolume ◀──┘                                            ▲          as a loop device
//!        └─ VolumeSnapshot, capacity                    kubelet ──CSI────────┘
//! ```
//!
//! The driver is an ordinary CSI driver, and the kubelet knows it as one. What sidecars do beside other drivers
//! (external-provisioner, -resizer, -snapshotter) is done here by controllers that act for this driver's name alone, and
//! that speak CSI to it through its socket. Each node has both; a claim is served by the node that it is meant for.
//!
//! FlexVolume drivers have no sidecars, and kube-controller-manager calls them itself. That is [`flex`]: an attacher and a
//! resizer, which stand beside the other controllers.

pub mod asking;
pub mod driver;
pub mod flex;
pub mod install;
pub mod provision;
mod resize;

/// Name of the driver, of its provisioner and of its attacher.
pub const DRIVER: &str = "local.carrack.io";
/// The default storage class.
pub const STORAGE_CLASS: &str = "carrack-local";
/// Label of nodes, and the key of the driver's topology: which node a volume is on.
pub const TOPOLOGY: &str = "local.carrack.io/node";
