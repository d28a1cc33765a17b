//! The device plugin for shared GPUs, one on each node with GPUs.
//!
//! ```text
//!   NVML, or made-up GPUs ─▶ Inventory ─▶ devices: 100 cores a GPU, a unit of memory each ─▶ kubelet
//!                                   └──▶ the node's annotation gpu-devices ─▶ GPU extender
//!   kubelet ── Allocate(devices) ─▶ owner: whose is it? ─▶ the pod's annotations ─▶ environment, device files
//! ```
//!
//! Which devices the kubelet picks says only how many there are; which GPUs a container gets is what the extender wrote into
//! its pod's annotations. An Allocate does not tell for which pod it is. [`owner`] finds that out: from the kubelet's
//! checkpoint where the kubelet notes its intention first (Carrack's does), else by the order in which pods were given their
//! GPUs, as upstream's plugin does; and before a container starts it is checked against what the kubelet has noted then.
//! A container that was given another one's GPUs never starts.
//!
//! The plugin writes nothing about pods, and keeps nothing that a restart would lose: which numbers its GPUs have it reads from the
//! node's annotation when it starts (module `numbers`).

pub mod checkpoint;
pub mod inventory;
mod numbers;
mod nvml;
pub mod owner;
mod plugin;
mod taken;

pub use inventory::{Device, Inventory, MEMORY_UNIT_MIB};
pub use plugin::{Config, Source, look, run};
