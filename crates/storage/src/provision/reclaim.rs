//! Volumes whose claims are gone, and which are to go with their data.
//!
//! That a volume is `Released` is the binder's proof that no claim, no pod and no node has it any more; and the driver
//! refuses to delete what is attached. The PersistentVolume goes when the data has gone: by a finalizer, which a volume
//! has as long as its data is to go with it. Whoever changes the reclaim policy changes that, too (upstream:
//! `handleProtectionFinalizer` and `shouldDelete` in sig-storage-lib-external-provisioner).

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use carrack_types::well_known::storage::PROVISIONED_BY;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::calls::{Call, Calls};
use super::{DATA, is_here};
use crate::DRIVER;

const NAME: &str = "carrack-local-reclaimer";

/// The controller.
pub(super) struct Reclaim {
    node: String,
    calls: Calls,
}

impl Reclaim {
    pub fn new(node: &str, calls: Calls) -> Self {
        Self { node: node.to_owned(), calls }
    }
}

impl Controller for Reclaim {
    fn name(&self) -> &'static str {
        NAME
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(volume) = view.get::<PersistentVolume>("", &key.name) else { return Plan::none() };
        let Some(spec) = &volume.spec else { return Plan::none() };
        // Nobody's name is on what was made by hand (`isProvisionerForVolume`).
        let is_own = volume.annotation(PROVISIONED_BY).is_none_or(|by| by == DRIVER);
        if !is_own || !is_here(volume, &self.node) {
            return Plan::none();
        }
        let policy = spec.persistent_volume_reclaim_policy.as_deref();
        let goes = policy == Some("Delete");
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let has = volume.has_finalizer(DATA);
        // What stays needs nobody's leave.
        let stays = has && matches!(policy, Some("Retain" | "Recycle"));
        let is_to_go = !has && goes && !volume.is_deleting() && phase == Some("Bound");
        if stays {
            return Plan::none().without_finalizer(volume.as_ref(), DATA);
        }
        if is_to_go {
            return Plan::none().with_finalizer(volume.as_ref(), DATA);
        }
        // Of one that is being deleted without it the data has gone already (`shouldDelete`).
        let is_done = volume.is_deleting() && !has;
        if is_done || !goes || phase != Some("Released") {
            return Plan::none();
        }
        let handle = spec.csi.as_ref().map(|c| c.volume_handle.clone()).unwrap_or_default();
        match self.calls.ask(NAME, key, Call::Delete(handle)) {
            None => Plan::none(),
            Some(Err(e)) => {
                let told = EventRecord::warning(volume.as_ref(), "VolumeFailedDelete", e.message.clone());
                Plan::failed(e.message).event(told)
            }
            Some(Ok(_)) => {
                // The finalizer goes first: deleting changes the volume, and would have the driver asked once more.
                let gone = if has { Plan::none().without_finalizer(volume.as_ref(), DATA) } else { Plan::none() };
                if volume.is_deleting() { gone } else { gone.delete(volume.as_ref()) }
            }
        }
    }
}
