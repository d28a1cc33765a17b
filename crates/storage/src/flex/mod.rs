//! FlexVolume drivers beside the controllers: what kube-controller-manager asks of them (pkg/volume/flexvolume).
//!
//! ```text
//!   PersistentVolume ─▶ init ─▶ annotation: whether its driver attaches ─▶ AttachDetach ─▶ VolumeAttachment
//!   pod with a FlexVolume ─▶ init ─▶ annotation: which drivers attach ─▶ InlineAttachDetach ─▶ VolumeAttachment
//!   VolumeAttachment ─▶ finalizer ─▶ attach ─▶ attached, with the device ─▶ isattached, now and then
//!   VolumeAttachment, going ─▶ detach ─▶ no finalizer
//!   claim larger than its volume ─▶ expandvolume ─▶ volume's capacity ─▶ expandfs, by the kubelet
//! ```
//!
//! Upstream's controller keeps in memory what it has attached, and learns it again from what nodes report. Here a
//! VolumeAttachment stands for it, as for CSI: the same proofs begin and end it, and a controller that is killed in the
//! middle of a call has lost nothing. Nodes are told as upstream's are, by `volumesAttached` alone.

mod attacher;
pub mod calls;
mod drivers;
mod resize;
pub mod shell;
#[cfg(test)]
mod tests;

use carrack_engine::Controller;
use k8s_openapi::api::core::v1::{FlexPersistentVolumeSource, PersistentVolume};

pub use calls::Calls;

/// The controllers; what they ask comes out of the calls.
#[must_use]
pub fn controllers(calls: &Calls) -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(drivers::Drivers::new(calls.clone())),
        Box::new(drivers::DriversOfPods::new(calls.clone())),
        Box::new(attacher::Attacher::new(calls.clone())),
        Box::new(crate::resize::Resize(resize::Flex(calls.clone()))),
    ]
}

/// The same with a planted bug: a disk whose driver does not say whether it is attached is detached, to be attached anew. For
/// the simulator, which must find it.
#[must_use]
pub fn with_planted_guess(calls: &Calls) -> Vec<Box<dyn Controller>> {
    let attacher = attacher::Attacher::new(calls.clone()).guessing();
    vec![
        Box::new(drivers::Drivers::new(calls.clone())),
        Box::new(drivers::DriversOfPods::new(calls.clone())),
        Box::new(attacher),
    ]
}

/// What a volume says of its driver, if that is one.
fn source(volume: &PersistentVolume) -> Option<&FlexPersistentVolumeSource> {
    volume.spec.as_ref()?.flex_volume.as_ref()
}
