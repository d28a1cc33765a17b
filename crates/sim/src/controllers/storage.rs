//! What stands beside a storage system: a provisioner that makes and deletes volumes, and an attacher that does what
//! VolumeAttachments say. Both are as simple as they can be, and keep their part of the bargain.

use std::time::Duration;

use carrack_engine::{Controller, Key, Manager, Plan, Rng, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use serde_json::json;

/// The driver, and what its classes call it.
pub(crate) const DRIVER: &str = "sim.carrack.io";
const FINALIZER: &str = "external-attacher/sim-carrack-io";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// How long the storage system takes.
const TAKES: Duration = Duration::from_millis(300);

/// Both.
pub(crate) fn manager(rng: Rng) -> Manager {
    Manager::new("storage", rng).with(Provisioner).with(Attacher)
}

struct Provisioner;

impl Controller for Provisioner {
    fn name(&self) -> &'static str {
        "provisioner"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch_own::<PersistentVolume>();
        setup.read::<StorageClass>();
        setup.watch::<VolumeAttachment>(|a, _| {
            a.spec.source.persistent_volume_name.iter().map(|name| Key::new("", name.clone())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        if key.namespace.is_empty() {
            return match view.get::<PersistentVolume>("", &key.name) {
                Some(volume) => delete(volume, view),
                None => Plan::none(),
            };
        }
        match view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) {
            Some(claim) if !claim.is_deleting() => provision(claim, view),
            _ => Plan::none(),
        }
    }
}

/// Makes the volume of a claim that calls for one; its name is the claim's UID.
fn provision(claim: &PersistentVolumeClaim, view: &View<'_>) -> Plan {
    let Some(spec) = &claim.spec else { return Plan::none() };
    let class = view.get::<StorageClass>("", spec.storage_class_name.as_deref().unwrap_or_default());
    let waits = class.is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let called = claim.annotation(PROVISIONER) == Some(DRIVER) && class.is_some();
    if !called || spec.volume_name.is_some() || waits && claim.annotation(SELECTED_NODE).is_none() {
        return Plan::none();
    }
    let name = format!("pvc-{}", claim.uid());
    if view.get::<PersistentVolume>("", &name).is_some() {
        return Plan::none();
    }
    let storage = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("storage").cloned());
    let volume = json!({"metadata": {"name": name, "annotations": {PROVISIONED_BY: DRIVER}},
        "spec": {"capacity": {"storage": storage}, "accessModes": spec.access_modes, "storageClassName": spec.storage_class_name,
            "persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": DRIVER, "volumeHandle": claim.uid()},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                "name": claim.name(), "uid": claim.uid()}}});
    match serde_json::from_value::<PersistentVolume>(volume) {
        Ok(volume) => Plan::none().create(&volume),
        Err(error) => Plan::failed(error.to_string()),
    }
}

/// Deletes a volume of its own that was given back and is nowhere attached.
fn delete(volume: &PersistentVolume, view: &View<'_>) -> Plan {
    let own = volume.annotation(PROVISIONED_BY) == Some(DRIVER);
    let released = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released");
    let attached = view
        .cache::<VolumeAttachment>()
        .iter()
        .any(|a| a.spec.source.persistent_volume_name.as_deref() == Some(volume.name()));
    if own && released && !attached && !volume.is_deleting() { Plan::none().delete(volume) } else { Plan::none() }
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
