//! What stands beside a storage system: a provisioner, and an attacher that does what VolumeAttachments say.

use carrack_engine::{Controller, Key, Manager, Plan, Rng, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use crate::provisioner::{Provisioner, TAKES};

/// The driver, and what its classes call it.
pub(crate) const DRIVER: &str = "sim.carrack.io";
const FINALIZER: &str = "external-attacher/sim-carrack-io";

/// Both.
pub(crate) fn manager(rng: Rng) -> Manager {
    Manager::new("storage", rng).with(Provisioner { drivers: &[DRIVER], snapshots: false }).with(Attacher)
}

struct Attacher;

impl Controller for Attacher {
    fn name(&self) -> &'static str {
        "attacher"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VolumeAttachment>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(attachment) = view.get::<VolumeAttachment>("", &key.name) else { return Plan::none() };
        if ![DRIVER, super::attachments::DRIVER].contains(&&*attachment.spec.attacher) {
            return Plan::none();
        }
        let since = |t: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            TAKES.saturating_sub(now.since(t.map_or(now, Time::from)))
        };
        let holds = attachment.has_finalizer(FINALIZER);
        if let Some(at) = &attachment.metadata.deletion_timestamp {
            let left = since(Some(at));
            return match (holds, left.is_zero()) {
                (false, _) => Plan::none(),
                (true, false) => Plan::none().requeue_after(left),
                (true, true) => Plan::none().patch(attachment.as_ref(), json!({"metadata": {"finalizers": null}})),
            };
        }
        if !holds {
            return Plan::none().patch(attachment.as_ref(), json!({"metadata": {"finalizers": [FINALIZER]}}));
        }
        if attachment.status.as_ref().is_some_and(|s| s.attached) {
            return Plan::none();
        }
        let left = since(attachment.metadata.creation_timestamp.as_ref());
        if left.is_zero() {
            Plan::none().patch_status(attachment.as_ref(), json!({"status": {"attached": true}}))
        } else {
            Plan::none().requeue_after(left)
        }
    }
}
