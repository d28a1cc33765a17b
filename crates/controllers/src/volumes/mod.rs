//! Claims and volumes: who gets which, who may go, and what is attached where.
//!
//! ```text
//!   PersistentVolumeClaim ◀── Binder ──▶ PersistentVolume ──▶ AttachDetach ──▶ VolumeAttachment (attachers act on it)
//!        ▲   ▲                                ▲                    │         ▲
//!   EphemeralVolumes  Expansion         Protection  node.status.volumesAttached  InlineAttachDetach ◀── Pod (FlexVolumes)
//! ```

mod attach;
mod binder;
mod ephemeral;
mod expansion;
mod inline;
mod matching;
mod protection;
mod told;

use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use carrack_types::well_known::storage::CLASS_ANNOTATION;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

pub use attach::AttachDetach;
pub use binder::PersistentVolumeBinder;
pub use ephemeral::EphemeralVolumes;
pub use expansion::Expansion;
pub use inline::InlineAttachDetach;
pub use protection::{AttributesClassProtection, ClaimProtection, VolumeProtection};

/// What a volume's storage class is called; empty for none.
pub(crate) fn class_of_volume(volume: &PersistentVolume) -> &str {
    volume
        .annotation(CLASS_ANNOTATION)
        .or_else(|| volume.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()))
        .unwrap_or_default()
}

/// How much a volume holds.
pub(crate) fn capacity(volume: &PersistentVolume) -> Quantity {
    let capacity = volume.spec.as_ref().and_then(|s| s.capacity.as_ref());
    capacity.and_then(|c| c.get("storage")).and_then(|q| Quantity::try_from(q).ok()).unwrap_or_default()
}

/// The claim that a volume says it belongs to, if it says so by UID.
pub(crate) fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).is_some_and(|r| {
        r.namespace.as_deref() == Some(claim.namespace())
            && r.name.as_deref() == Some(claim.name())
            && r.uid.as_deref() == Some(claim.uid())
    })
}
