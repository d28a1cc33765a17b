//! What the kubelet tells the API: the status of pods, and the Node.

pub mod declared;
pub mod mounts;
pub mod node;
pub mod pod;
pub mod resize;
pub mod same;
pub mod urgency;
