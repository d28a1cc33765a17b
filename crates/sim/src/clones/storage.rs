//! What stands beside a storage system that takes snapshots, and one that does not: a provisioner, a snapshot controller, and
//! a node that runs the pods which copy disks.
//!
//! Of a claim whose name begins with `bad` no snapshot is ever taken.

use std::sync::Arc;

use carrack_engine::{Controller, Key, Manager, Plan, Premise, Rng, Setup, Time, View, fnv1a};
use carrack_types::kubevirt::snapshot::names::COPYING_LABEL;
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::room::{INSTANT, Room};
use crate::provisioner::{DATA, Provisioner, TAKES, left, takes};

/// The driver, and what its classes call it.
pub(super) const DRIVER: &str = "shelf.carrack.io";
/// A driver that takes no snapshots.
pub(super) const PLAIN: &str = "plain.carrack.io";
const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";

/// All three; where machines run, their node has the copying pods (see `host`).
pub(crate) fn manager(rng: Rng, copies: bool, room: &Room) -> Manager {
    let provisioner = Provisioner { drivers: &[DRIVER, PLAIN], snapshots: true };
    let storage = Manager::new("storage", rng).with(provisioner).with(Snapshotter(room.clone()));
    if copies { storage.with(Copier) } else { storage }
}

/// Watches claims and their volumes on behalf of the pods of their namespaces.
pub(super) fn watch_volumes(setup: &mut Setup<'_>) {
    let of_namespace = |namespace: &str, view: &View<'_>| {
        view.cache::<Pod>().in_namespace(namespace).map(|pod| Key::of(pod.as_ref())).collect()
    };
    setup.watch::<PersistentVolumeClaim>(move |claim, view| of_namespace(claim.namespace(), view));
    setup.watch::<PersistentVolume>(move |volume, view| {
        let of = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.namespace.as_deref());
        of_namespace(of.unwrap_or_default(), view)
    });
}

/// The volume of a claim, once that is bound: as a kubelet, nobody takes a claim that is on its way to be.
pub(super) fn bound<'a>(view: &'a View<'_>, namespace: &str, claim: &str) -> Option<&'a PersistentVolume> {
    let claim = view.get::<PersistentVolumeClaim>(namespace, claim)?;
    claim.status.as_ref().filter(|status| status.phase.as_deref() == Some("Bound"))?;
    view.get::<PersistentVolume>("", claim.spec.as_ref()?.volume_name.as_deref()?).map(AsRef::as_ref)
}

/// Runs pods that copy disks, as a node would: what a source holds is written to its target, and then the pod has succeeded.
/// Every fourth pod fails.
struct Copier;

impl Controller for Copier {
    fn name(&self) -> &'static str {
        "copier"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Pod>();
        watch_volumes(setup);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(pod) = view.get::<Pod>(&key.namespace, &key.name) else { return Plan::none() };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_over = matches!(phase, Some("Succeeded" | "Failed"));
        if pod.label(COPYING_LABEL).is_none() || pod.is_deleting() || is_over {
            return Plan::none();
        }
        let left = left(pod.as_ref(), TAKES, now);
        if !left.is_zero() {
            return Plan::none().requeue_after(left);
        }
        let ends = |phase: &str| Plan::none().patch_status(pod.as_ref(), json!({"status": {"phase": phase}}));
        if fnv1a(pod.uid().as_bytes()).is_multiple_of(4) {
            return ends("Failed");
        }
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let volume = |name: &str| {
            let claim = volumes.clone().find(|volume| volume.name == name)?.persistent_volume_claim.as_ref()?;
            bound(view, &key.namespace, &claim.claim_name)
        };
        let mut plan = Plan::none();
        for number in 0..volumes.clone().count() / 2 {
            let pair = (volume(&format!("source-{number}")), volume(&format!("target-{number}")));
            let (Some(source), Some(target)) = pair else { return Plan::none() };
            let data = source.annotation(DATA);
            if target.annotation(DATA) != data {
                plan = plan.patch(target, json!({"metadata": {"annotations": {DATA: data}}}));
            }
        }
        if plan.is_none() { ends("Succeeded") } else { plan }
    }
}

/// The snapshots of a claim.
fn snapshots_of(namespace: &str, claim: &str, view: &View<'_>) -> Vec<Key> {
    let of = |s: &&Arc<VolumeSnapshot>| s.spec.source.persistent_volume_claim_name.as_deref() == Some(claim);
    let snapshots = view.cache::<VolumeSnapshot>().in_namespace(namespace);
    snapshots.filter(of).map(|snapshot| Key::of(snapshot.as_ref())).collect()
}

/// Takes snapshots of volumes, as they are when it makes their contents.
struct Snapshotter(Room);

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
        setup.watch::<PersistentVolumeClaim>(|claim, view| snapshots_of(claim.namespace(), claim.name(), view));
        // It may be heard of after its claim.
        setup.watch::<PersistentVolume>(|volume, view| {
            let Some(of) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return Vec::new() };
            let (namespace, name) = (of.namespace.as_deref(), of.name.as_deref());
            snapshots_of(namespace.unwrap_or_default(), name.unwrap_or_default(), view)
        });
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
        self.take(snapshot, content.map(AsRef::as_ref), &content_name, view, now)
    }
}

impl Snapshotter {
    fn take(
        &self,
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
            let mut annotations = json!({DATA: volume.annotation(DATA)});
            if let Some(wrote) = self.0.wrote(volume.name()) {
                annotations[INSTANT] = wrote.rfc3339_micros().into();
            }
            let content = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": volume.uid()},
                "volumeSnapshotRef": {"namespace": snapshot.namespace(), "name": snapshot.name(), "uid": snapshot.uid()}}});
            return match carrack_types::json::from_value::<VolumeSnapshotContent>(content) {
                Ok(content) => Plan::none().create(&content).resting_on(&Premise::unchanged(snapshot)),
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
}
