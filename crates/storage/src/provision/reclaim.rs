//! Volumes whose claims are gone, and which are to go with their data.
//!
//! That a volume is `Released` is the binder's proof that no claim, no pod and no node has it any more; and the driver
//! refuses to delete what is attached. The PersistentVolume goes when the data has gone.

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
        let released = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released");
        let goes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
            && volume.annotation(PROVISIONED_BY) == Some(DRIVER);
        if !released || !goes || !is_here(volume, &self.node) {
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
                let has = volume.metadata.finalizers.iter().flatten().any(|f| f == DATA);
                let plan = if volume.is_deleting() { Plan::none() } else { Plan::none().delete(volume.as_ref()) };
                // Deleting changes it; the finalizer goes at the next look, or here if it is being deleted already.
                match has && volume.is_deleting() {
                    true => {
                        let list = finalizers(volume.metadata.finalizers.as_ref(), DATA, false);
                        plan.patch(volume.as_ref(), json!({"metadata": {"finalizers": list}}))
                    }
                    false => plan,
                }
            }
        }
    }
}
