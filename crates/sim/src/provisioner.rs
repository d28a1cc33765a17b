//! A provisioner beside a storage system: it makes the volumes of claims and deletes them when they are given back. It is as
//! simple as one can be, and keeps its part of the bargain.
//!
//! A volume has data, which is a word: that of a claim without a source is the claim's name, that of one made from a snapshot is
//! the snapshot's. Claims whose data begins with `slow` take their time.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object;
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use carrack_types::volume::SELECTED_NODE;
use carrack_types::well_known::storage::{PROVISIONED_BY, PROVISIONER};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use serde_json::json;

/// Annotation of volumes, and of contents of snapshots: their data.
pub(crate) const DATA: &str = "sim.carrack.io/data";
/// How long a storage system takes.
pub(crate) const TAKES: Duration = Duration::from_millis(300);
const SLOWLY: Duration = Duration::from_secs(7);

/// How long a storage system takes for something of this name.
pub(crate) fn takes(name: &str) -> Duration {
    if name.starts_with("slow") { SLOWLY } else { TAKES }
}

/// How much of the time that something takes is left.
pub(crate) fn left<K: Object>(object: &K, takes: Duration, now: Time) -> Duration {
    let begun = object.meta().creation_timestamp.as_ref().map_or(now, Time::from);
    takes.saturating_sub(now.since(begun))
}

/// The provisioner.
pub(crate) struct Provisioner {
    /// What its classes call it, each of them.
    pub drivers: &'static [&'static str],
    /// Whether there are snapshots to make volumes from; else nobody knows these kinds.
    pub snapshots: bool,
}

impl Controller for Provisioner {
    fn name(&self) -> &'static str {
        "provisioner"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch_own::<PersistentVolume>();
        // A claim may be seen before its class.
        setup.watch::<StorageClass>(|class, view| {
            let of = |claim: &&Arc<PersistentVolumeClaim>| {
                claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some(class.name())
            };
            let claims = view.cache::<PersistentVolumeClaim>().iter().filter(of);
            claims.map(|claim| Key::of(claim.as_ref())).collect()
        });
        setup.watch::<VolumeAttachment>(|a, _| {
            a.spec.source.persistent_volume_name.iter().map(|name| Key::new("", name.clone())).collect()
        });
        if !self.snapshots {
            return;
        }
        setup.watch::<VolumeSnapshot>(|snapshot, view| {
            let (namespace, name) = (snapshot.namespace().to_owned(), snapshot.name().to_owned());
            let claims = view.cache::<PersistentVolumeClaim>().in_namespace(&namespace);
            claims.filter(|claim| source(claim) == Some(name.as_str())).map(|claim| Key::of(claim.as_ref())).collect()
        });
        setup.read::<VolumeSnapshotContent>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        if key.namespace.is_empty() {
            return match view.get::<PersistentVolume>("", &key.name) {
                Some(volume) => self.delete(volume, view),
                None => Plan::none(),
            };
        }
        match view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) {
            Some(claim) if !claim.is_deleting() => self.provision(claim, view, now),
            _ => Plan::none(),
        }
    }
}

/// The snapshot that a claim is to be made from.
fn source(claim: &PersistentVolumeClaim) -> Option<&str> {
    let spec = claim.spec.as_ref()?;
    let of_ref = spec.data_source_ref.as_ref().map(|source| source.name.as_str());
    of_ref.or_else(|| spec.data_source.as_ref().map(|source| source.name.as_str()))
}

/// The data of a claim's volume; none while its snapshot is not ready.
fn data(claim: &PersistentVolumeClaim, view: &View<'_>) -> Option<String> {
    let Some(snapshot) = source(claim) else { return Some(claim.name().to_owned()) };
    let snapshot = view.get::<VolumeSnapshot>(claim.namespace(), snapshot)?;
    let status = snapshot.status.as_ref().filter(|status| status.ready_to_use == Some(true))?;
    let content = view.get::<VolumeSnapshotContent>("", status.bound_volume_snapshot_content_name.as_deref()?)?;
    Some(content.annotation(DATA).unwrap_or_default().to_owned())
}

impl Provisioner {
    /// Makes the volume of a claim that calls for one; its name is the claim's UID.
    fn provision(&self, claim: &PersistentVolumeClaim, view: &View<'_>, now: Time) -> Plan {
        let Some(spec) = &claim.spec else { return Plan::none() };
        let class = view.get::<StorageClass>("", spec.storage_class_name.as_deref().unwrap_or_default());
        let waits = class.is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        let driver = claim.annotation(PROVISIONER).unwrap_or_default();
        let called = self.drivers.contains(&driver) && class.is_some();
        let name = format!("pvc-{}", claim.uid());
        if !called
            || spec.volume_name.is_some()
            || waits && claim.annotation(SELECTED_NODE).is_none()
            || view.get::<PersistentVolume>("", &name).is_some()
        {
            return Plan::none();
        }
        let Some(data) = data(claim, view) else { return Plan::none().requeue_after(Duration::from_secs(2)) };
        let left = left(claim, takes(&data), now);
        if !left.is_zero() {
            return Plan::none().requeue_after(left);
        }
        let storage = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("storage").cloned());
        let volume = json!({"metadata": {"name": name, "annotations": {PROVISIONED_BY: driver, DATA: data}},
            "spec": {"capacity": {"storage": storage}, "accessModes": spec.access_modes, "storageClassName": spec.storage_class_name,
                "persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": driver, "volumeHandle": claim.uid()},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                    "name": claim.name(), "uid": claim.uid()}}});
        match carrack_types::json::from_value::<PersistentVolume>(volume) {
            Ok(volume) => Plan::none().create(&volume),
            Err(error) => Plan::failed(error.to_string()),
        }
    }

    /// Deletes a volume of its own that was given back and is nowhere attached.
    fn delete(&self, volume: &PersistentVolume, view: &View<'_>) -> Plan {
        let own = volume.annotation(PROVISIONED_BY).is_some_and(|driver| self.drivers.contains(&driver));
        let released = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released");
        let mut attachments = view.cache::<VolumeAttachment>().iter();
        let attached = attachments.any(|a| a.spec.source.persistent_volume_name.as_deref() == Some(volume.name()));
        if own && released && !attached && !volume.is_deleting() { Plan::none().delete(volume) } else { Plan::none() }
    }
}
