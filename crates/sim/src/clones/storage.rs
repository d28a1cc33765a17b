//! What stands beside a storage system that takes snapshots: a provisioner, and a snapshot controller.
//!
//! A volume has data, which is a word: that of a claim without a source is the claim's name, that of another one is its
//! source's. Claims whose name begins with `slow` take their time, and no snapshot of one that begins with `bad` is ever taken.

use std::time::Duration;

use carrack_engine::{Controller, Key, Manager, Plan, Rng, Setup, Time, View};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

/// The driver, and what its classes call it.
pub(super) const DRIVER: &str = "shelf.carrack.io";
/// Annotation of volumes and contents: their data.
pub(super) const DATA: &str = "sim.carrack.io/data";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// How long the storage system takes.
const TAKES: Duration = Duration::from_millis(300);
const SLOWLY: Duration = Duration::from_secs(7);

/// Both.
pub(crate) fn manager(rng: Rng) -> Manager {
    Manager::new("storage", rng).with(Provisioner).with(Snapshotter)
}

fn takes(name: &str) -> Duration {
    if name.starts_with("slow") { SLOWLY } else { TAKES }
}

/// How much of the time that something takes is left.
fn left<K: carrack_types::resource::Object>(object: &K, takes: Duration, now: Time) -> Duration {
    let begun = object.meta().creation_timestamp.as_ref().map_or(now, Time::from);
    takes.saturating_sub(now.since(begun))
}

struct Provisioner;

impl Controller for Provisioner {
    fn name(&self) -> &'static str {
        "provisioner"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch_own::<PersistentVolume>();
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
                Some(volume) => delete(volume),
                None => Plan::none(),
            };
        }
        match view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) {
            Some(claim) if !claim.is_deleting() => provision(claim, view, now),
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

/// Makes the volume of a claim that calls for one; its name is the claim's UID.
fn provision(claim: &PersistentVolumeClaim, view: &View<'_>, now: Time) -> Plan {
    let Some(spec) = &claim.spec else { return Plan::none() };
    let name = format!("pvc-{}", claim.uid());
    let called = claim.annotation(PROVISIONER) == Some(DRIVER);
    if !called || spec.volume_name.is_some() || view.get::<PersistentVolume>("", &name).is_some() {
        return Plan::none();
    }
    let data = match source(claim) {
        None => claim.name().to_owned(),
        Some(snapshot) => {
            let snapshot = view.get::<VolumeSnapshot>(claim.namespace(), snapshot);
            let status = snapshot.and_then(|snapshot| snapshot.status.as_ref());
            let ready = status.filter(|status| status.ready_to_use == Some(true));
            let content = ready.and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
            let Some(content) = content.and_then(|name| view.get::<VolumeSnapshotContent>("", name)) else {
                return Plan::none().requeue_after(Duration::from_secs(2));
            };
            content.annotation(DATA).unwrap_or_default().to_owned()
        }
    };
    let left = left(claim, takes(&data), now);
    if !left.is_zero() {
        return Plan::none().requeue_after(left);
    }
    let storage = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("storage").cloned());
    let volume = json!({"metadata": {"name": name, "annotations": {PROVISIONED_BY: DRIVER, DATA: data}},
        "spec": {"capacity": {"storage": storage}, "accessModes": spec.access_modes, "storageClassName": spec.storage_class_name,
            "persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": DRIVER, "volumeHandle": claim.uid()},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                "name": claim.name(), "uid": claim.uid()}}});
    match serde_json::from_value::<PersistentVolume>(volume) {
        Ok(volume) => Plan::none().create(&volume),
        Err(error) => Plan::failed(error.to_string()),
    }
}

/// Deletes a volume that was given back.
fn delete(volume: &PersistentVolume) -> Plan {
    let released = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released");
    let own = volume.annotation(PROVISIONED_BY) == Some(DRIVER);
    if own && released && !volume.is_deleting() { Plan::none().delete(volume) } else { Plan::none() }
}

struct Snapshotter;

impl Controller for Snapshotter {
    fn name(&self) -> &'static str {
        "snapshotter"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VolumeSnapshot>();
        setup.watch::<VolumeSnapshotContent>(|content, _| {
            let of = &content.spec.volume_snapshot_ref;
            vec![Key::new(of.namespace.clone().unwrap_or_default(), of.name.clone().unwrap_or_default())]
        });
        setup.watch::<PersistentVolumeClaim>(|claim, view| {
            let (namespace, name) = (claim.namespace().to_owned(), claim.name().to_owned());
            let snapshots = view.cache::<VolumeSnapshot>().in_namespace(&namespace);
            let of = |s: &&std::sync::Arc<VolumeSnapshot>| {
                s.spec.source.persistent_volume_claim_name.as_ref() == Some(&name)
            };
            snapshots.filter(of).map(|snapshot| Key::of(snapshot.as_ref())).collect()
        });
        setup.read::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(snapshot) = view.get::<VolumeSnapshot>(&key.namespace, &key.name) else { return Plan::none() };
        let content_name = format!("snapcontent-{}", snapshot.uid());
        let content = view.get::<VolumeSnapshotContent>("", &content_name);
        let holds = snapshot.has_finalizer(FINALIZER);
        if snapshot.is_deleting() {
            return match content {
                Some(content) if content.is_deleting() => Plan::none(),
                Some(content) => Plan::none().delete(content.as_ref()),
                None if !holds => Plan::none(),
                None => Plan::none()
                    .confirm_absent(&VolumeSnapshotContent::resource(), Key::new("", content_name), "")
                    .patch(snapshot.as_ref(), json!({"metadata": {"finalizers": null}})),
            };
        }
        if !holds {
            return Plan::none().patch(snapshot.as_ref(), json!({"metadata": {"finalizers": [FINALIZER]}}));
        }
        take(snapshot, content.map(AsRef::as_ref), &content_name, view, now)
    }
}

fn take(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
    name: &str,
    view: &View<'_>,
    now: Time,
) -> Plan {
    let say = |status: Value| match json!(snapshot.status.clone().unwrap_or_default()) == status {
        true => Plan::none(),
        false => Plan::none().patch_status(snapshot, json!({"status": status})),
    };
    let of = snapshot.spec.source.persistent_volume_claim_name.as_deref().unwrap_or_default();
    if of.starts_with("bad") {
        return say(json!({"error": {"message": "the shelf is full"}}));
    }
    let Some(content) = content else {
        let claim = view.get::<PersistentVolumeClaim>(snapshot.namespace(), of);
        let volume = claim.and_then(|claim| claim.spec.as_ref()?.volume_name.as_deref());
        let Some(volume) = volume.and_then(|volume| view.get::<PersistentVolume>("", volume)) else {
            return Plan::none();
        };
        let content = json!({"metadata": {"name": name, "annotations": {DATA: volume.annotation(DATA)}},
            "spec": {"driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": volume.uid()},
                "volumeSnapshotRef": {"namespace": snapshot.namespace(), "name": snapshot.name(), "uid": snapshot.uid()}}});
        return match serde_json::from_value::<VolumeSnapshotContent>(content) {
            Ok(content) => Plan::none().create(&content),
            Err(error) => Plan::failed(error.to_string()),
        };
    };
    if snapshot.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true)) {
        return Plan::none();
    }
    let left = left(content, takes(of), now);
    if left.is_zero() {
        return say(json!({"boundVolumeSnapshotContentName": name, "readyToUse": true, "restoreSize": "1Gi",
            "creationTime": now.rfc3339()}));
    }
    say(json!({"boundVolumeSnapshotContentName": name, "readyToUse": false})).requeue_after(left)
}
