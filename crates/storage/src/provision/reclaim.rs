//! Volumes whose claims are gone, and which are to go with their data.
//!
//! That a volume is `Released` is the binder's proof that no claim, no pod and no node has it any more; and the driver
//! refuses to delete what is attached. The PersistentVolume goes when the data has gone: by a finalizer, which a volume
//! has as long as its data is to go with it. Whoever changes the reclaim policy changes that, too (upstream:
//! `handleProtectionFinalizer` in sig-storage-lib-external-provisioner).

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;

use super::calls::{Call, Calls};
use super::{DATA, PROVISIONED_BY, finalizers, is_here};
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

/// The volume goes after its data, or without.
fn with_data(volume: &PersistentVolume, with: bool) -> Plan {
    let list = finalizers(volume.metadata.finalizers.as_ref(), DATA, with);
    Plan::none().patch(volume, json!({"metadata": {"finalizers": list}}))
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
        if stays || is_to_go {
            return with_data(volume, goes);
        }
        if !goes || phase != Some("Released") {
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
                // Deleting changes it; the finalizer goes at the next look, or here if it is being deleted already.
                match (volume.is_deleting(), has) {
                    (false, _) => Plan::none().delete(volume.as_ref()),
                    (true, true) => with_data(volume, false),
                    (true, false) => Plan::none(),
                }
            }
        }
    }
}
