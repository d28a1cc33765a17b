//! Snapshots: the work of snapshot-controller and csi-snapshotter, for this driver alone.
//!
//! ```text
//!   VolumeSnapshot of a claim of ours ─▶ finalizer, and this node's name ─▶ VolumeSnapshotContent ─▶ CreateSnapshot
//!      ▲ status ◀──────────────────────────────────────────────────────────────┘ status ◀────────────┘
//!   deleted ─▶ content deleted ─▶ DeleteSnapshot ─▶ content goes ─▶ snapshot goes
//! ```
//!
//! A snapshot lies at the node of its volume. The name of that node is on snapshot and content, since volume and claim may
//! be gone before them.
//!
//! What was taken stays as long as its VolumeSnapshot does, whoever deletes the content: that waits, and is gone when the
//! snapshot goes. A snapshot whose content is gone all the same is not taken again, as it would be of another time; and one
//! that is deleted goes when the volumes that were to be made from it by then are there.
//!
//! A content may also be made by hand, of a snapshot that was kept: it names the driver's handle, and the VolumeSnapshot
//! that is to have it (`syncUnreadySnapshot` in snapshot-controller).
//!
//! ```text
//!   content with a handle ─▶ the node that has it writes its name there ─▶ VolumeSnapshot ─▶ its UID in the content
//! ```

use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Setup, Time, View};
use carrack_types::quantity::{Form, Quantity};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::snapshots::{
    VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, VolumeSnapshotContentSource, VolumeSnapshotContentSpec,
};
use carrack_types::well_known::storage::DEFAULT_SNAPSHOT_CLASS;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::calls::{Answer, Call, Calls, From};
use super::sources::SOURCE;
use super::{finalizers, is_here};
use crate::DRIVER;
use crate::asking::ANOTHER_ANSWER;

const SNAPSHOTS: &str = "carrack-local-snapshots";
const CONTENTS: &str = "carrack-local-snapshotter";
/// Annotation of snapshots and contents: the node at which the data is.
const NODE: &str = "local.carrack.io/node";
/// Finalizer of a snapshot that has a content.
const BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Finalizer of a content: its data goes before it does.
const DATA: &str = "local.carrack.io/snapshot-data";
/// What a snapshot says that has lost its content.
const LOST: &str = "its VolumeSnapshotContent is gone, and with it what was taken";
/// How soon to look again whether the snapshots are known as far as a content.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Annotation of a content: who may write contents lets files be made of what was a device, or a device of files
/// (`prevent-volume-mode-conversion` in external-provisioner, KEP-3141).
const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// Name of a snapshot's content. Of one that was made by hand the snapshot says it.
fn content_name(snapshot: &VolumeSnapshot) -> String {
    let by_hand = snapshot.spec.source.volume_snapshot_content_name.clone();
    by_hand.unwrap_or_else(|| format!("snapcontent-{}", snapshot.uid()))
}

/// What follows is done if nothing has the name of a snapshot's content.
fn without_content(snapshot: &VolumeSnapshot) -> Plan {
    Plan::none().confirm_absent(&VolumeSnapshotContent::resource(), Key::new("", content_name(snapshot)), "")
}

/// Whether a content is meant for a snapshot: one that was made by hand names it without its UID.
fn is_for(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    let of = &content.spec.volume_snapshot_ref;
    content.spec.driver == DRIVER
        && (of.namespace.as_deref(), of.name.as_deref()) == (Some(snapshot.namespace()), Some(snapshot.name()))
        && (is_free(content) || of.uid.as_deref() == Some(snapshot.uid()))
}

/// Whether a content is bound to no snapshot yet.
fn is_free(content: &VolumeSnapshotContent) -> bool {
    content.spec.volume_snapshot_ref.uid.as_deref().unwrap_or_default().is_empty()
}

/// Whether a node has taken a snapshot on, or will keep what was made by hand for it.
pub(super) fn is_marked(snapshot: &VolumeSnapshot) -> bool {
    snapshot.has_finalizer(BOUND) && snapshot.annotation(NODE).is_some()
}

/// Whether a snapshot has its point in time.
pub(super) fn is_taken(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|s| s.creation_time.is_some())
}

/// Whether a claim waits for a volume that is to be made from a snapshot, and did so before somebody deleted that
/// (`isVolumeBeingCreatedFromSnapshot` in snapshot-controller).
fn is_made_from(claim: &PersistentVolumeClaim, snapshot: &VolumeSnapshot) -> bool {
    let (group, kind) = SNAPSHOT;
    let bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    let asked = claim.metadata.creation_timestamp.as_ref().map(Time::from);
    let deleted = snapshot.metadata.deletion_timestamp.as_ref().map(Time::from);
    claim.namespace() == snapshot.namespace()
        && named(claim) == Some((group, kind, snapshot.name()))
        && bound.is_empty()
        && !claim.is_deleting()
        && deleted.is_none_or(|deleted| asked.is_some_and(|asked| asked <= deleted))
}

/// Whether the snapshot of a content goes, or is gone, or never had it: then what was taken may go, too. None as long as
/// that is not known.
fn is_let_go(content: &VolumeSnapshotContent, view: &View<'_>) -> Option<bool> {
    if is_free(content) {
        return Some(true);
    }
    let of = &content.spec.volume_snapshot_ref;
    let (namespace, name) = (of.namespace.as_deref().unwrap_or_default(), of.name.as_deref().unwrap_or_default());
    match view.get::<VolumeSnapshot>(namespace, name).filter(|s| of.uid.as_deref() == Some(s.uid())) {
        Some(snapshot) => Some(snapshot.is_deleting()),
        None => (view.revision::<VolumeSnapshot>() >= content.revision()).then_some(true),
    }
}

/// The class of a snapshot, if it is of this driver.
fn class_of<'a>(snapshot: &VolumeSnapshot, view: &'a View<'_>) -> Option<&'a VolumeSnapshotClass> {
    let class = match snapshot.spec.volume_snapshot_class_name.as_deref() {
        Some(name) => view.get::<VolumeSnapshotClass>("", name),
        None => view
            .cache::<VolumeSnapshotClass>()
            .iter()
            .find(|c| c.driver == DRIVER && c.annotation(DEFAULT_SNAPSHOT_CLASS) == Some("true")),
    };
    class.map(AsRef::as_ref).filter(|c| c.driver == DRIVER)
}

/// The volume of a claim, if both are each other's.
pub(super) fn volume_of<'a>(claim: &PersistentVolumeClaim, view: &'a View<'_>) -> Option<&'a PersistentVolume> {
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref())?;
    let volume = view.get::<PersistentVolume>("", name)?;
    let of = volume.spec.as_ref()?.claim_ref.as_ref()?;
    (of.uid.as_deref() == Some(claim.uid())).then_some(volume.as_ref())
}

/// Kinds that a driver makes volumes from, each with its group.
const SNAPSHOT: (&str, &str) = ("snapshot.storage.k8s.io", "VolumeSnapshot");
const CLAIM: (&str, &str) = ("", "PersistentVolumeClaim");

/// What a claim says that its volume is to be made from: group, kind and name.
fn named(claim: &PersistentVolumeClaim) -> Option<(&str, &str, &str)> {
    let spec = claim.spec.as_ref()?;
    let (group, kind, name) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(s), _) => (&s.api_group, &s.kind, &s.name),
        (None, Some(s)) => (&s.api_group, &s.kind, &s.name),
        (None, None) => return None,
    };
    Some((group.as_deref().unwrap_or_default(), kind, name))
}

/// Whether a claim's volume is somebody else's to make: that of a kind which no driver knows is a populator's.
/// (Upstream: `Provision` in external-provisioner.)
pub(super) fn is_populators(claim: &PersistentVolumeClaim) -> bool {
    named(claim).is_some_and(|(group, kind, _)| ![SNAPSHOT, CLAIM].contains(&(group, kind)))
}

/// A `volumeMode`, or what it is where nobody says.
fn mode(of: Option<&str>) -> &str {
    of.unwrap_or("Filesystem")
}

/// What a volume is to be made from, and at which node that is.
///
/// # Errors
/// Why that is not known, or cannot be.
pub(super) fn source(claim: &PersistentVolumeClaim, view: &View<'_>) -> Result<Option<(From, String)>, String> {
    let (Some(spec), Some((group, kind, name))) = (&claim.spec, named(claim)) else { return Ok(None) };
    if spec.data_source_ref.as_ref().is_some_and(|s| s.namespace.as_deref().is_some_and(|n| n != claim.namespace())) {
        return Err("data sources of other namespaces are not supported".to_owned());
    }
    match (group, kind) {
        SNAPSHOT => {
            let waits = || format!("snapshot {name} is not ready");
            let snapshot = view.get::<VolumeSnapshot>(claim.namespace(), name).ok_or_else(waits)?;
            let status = snapshot.status.clone().unwrap_or_default();
            let content = status.bound_volume_snapshot_content_name.unwrap_or_default();
            let content = view.get::<VolumeSnapshotContent>("", &content).ok_or_else(waits)?;
            if content.spec.driver != DRIVER || content.spec.volume_snapshot_ref.uid.as_deref() != Some(snapshot.uid())
            {
                return Err(format!("snapshot {name} is not one of {DRIVER}"));
            }
            // Who writes to a device can put a file system there that no kernel is made for.
            let was = content.spec.source_volume_mode.as_deref();
            let changes = was.is_some_and(|was| was != mode(spec.volume_mode.as_deref()));
            if changes && content.annotation(MODE_CHANGE) != Some("true") {
                let content = content.name();
                return Err(format!("snapshot {name} has another volumeMode, and {MODE_CHANGE} is not on {content}"));
            }
            let handle = content.status.clone().unwrap_or_default().snapshot_handle;
            let ready = status.ready_to_use == Some(true) && is_made_from(claim, snapshot);
            match (handle, content.annotation(NODE)) {
                (Some(handle), Some(node)) if ready => Ok(Some((From::Snapshot(handle), node.to_owned()))),
                _ => Err(waits()),
            }
        }
        CLAIM => {
            let waits = || format!("claim {name} has no volume of {DRIVER}");
            let of = view.get::<PersistentVolumeClaim>(claim.namespace(), name).ok_or_else(waits)?;
            let volume = volume_of(of, view).ok_or_else(waits)?;
            let node = super::node_of(volume).ok_or_else(waits)?;
            let was = volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
            if mode(was) != mode(spec.volume_mode.as_deref()) {
                return Err(format!("claim {name} has another volumeMode"));
            }
            let handle = volume.spec.as_ref().and_then(|s| s.csi.as_ref()).map(|c| c.volume_handle.clone());
            Ok(Some((From::Volume(handle.unwrap_or_default()), node.to_owned())))
        }
        _ => Err(format!("volumes cannot be made from {kind} {name}")),
    }
}

/// Snapshots and their contents.
pub(super) struct Snapshots {
    node: String,
    /// A planted bug: a content that its cache does not show is not there.
    forgets: bool,
}

impl Snapshots {
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), forgets: false }
    }

    /// The same with the bug, if it is planted, that caches are believed to show all contents.
    pub fn forgetting(self, forgets: bool) -> Self {
        Self { forgets, ..self }
    }

    fn mark(&self, snapshot: &VolumeSnapshot, with: bool) -> Plan {
        let list = finalizers(snapshot.metadata.finalizers.as_ref(), BOUND, with);
        let patch = json!({"metadata": {"finalizers": list, "annotations": {NODE: self.node}}});
        Plan::none().patch(snapshot, patch)
    }

    fn content(
        &self,
        snapshot: &VolumeSnapshot,
        class: &VolumeSnapshotClass,
        volume: &PersistentVolume,
    ) -> VolumeSnapshotContent {
        let spec = volume.spec.clone().unwrap_or_default();
        VolumeSnapshotContent {
            metadata: ObjectMeta {
                name: Some(content_name(snapshot)),
                annotations: Some([(NODE.to_owned(), self.node.clone())].into()),
                finalizers: Some(vec![DATA.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: VolumeSnapshotContentSpec {
                volume_snapshot_ref: ObjectReference {
                    api_version: Some("snapshot.storage.k8s.io/v1".into()),
                    kind: Some("VolumeSnapshot".into()),
                    namespace: snapshot.metadata.namespace.clone(),
                    name: snapshot.metadata.name.clone(),
                    uid: snapshot.metadata.uid.clone(),
                    ..ObjectReference::default()
                },
                deletion_policy: class.deletion_policy.clone(),
                driver: DRIVER.into(),
                volume_snapshot_class_name: Some(class.name().to_owned()),
                source: VolumeSnapshotContentSource {
                    volume_handle: spec.csi.map(|c| c.volume_handle),
                    snapshot_handle: None,
                },
                source_volume_mode: spec.volume_mode,
            },
            status: None,
        }
    }

    /// There is no such class, which somebody should hear; or it is another driver's.
    fn without_class(snapshot: &VolumeSnapshot, view: &View<'_>) -> Plan {
        let (reason, why) = match snapshot.spec.volume_snapshot_class_name.as_deref() {
            Some(name) if view.get::<VolumeSnapshotClass>("", name).is_some() => return Plan::none(),
            Some(name) => ("GetSnapshotClassFailed", format!("there is no VolumeSnapshotClass {name}")),
            None => ("SetDefaultSnapshotClassFailed", format!("{DRIVER} has no default VolumeSnapshotClass")),
        };
        Plan::none().event(EventRecord::warning(snapshot, reason, why))
    }

    /// What was taken is not there any more, and the snapshot says so, once that is sure.
    fn lost(snapshot: &VolumeSnapshot, now: Time) -> Plan {
        let status = snapshot.status.clone().unwrap_or_default();
        let said = status.error.and_then(|e| e.message);
        if status.ready_to_use == Some(false) && said.as_deref() == Some(LOST) {
            return Plan::none();
        }
        let error = json!({"message": LOST, "time": now.rfc3339()});
        let status = json!({"status": {"readyToUse": false, "error": error}});
        let says = without_content(snapshot).patch_status(snapshot, status);
        says.told(EventRecord::warning(snapshot, "SnapshotContentMissing", LOST))
    }

    fn follow(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Plan {
        let is = content.status.clone().unwrap_or_default();
        let time = is.creation_time.map(|ns| Time(ns).rfc3339());
        let size = is.restore_size.map(|bytes| Quantity::from_units(bytes, Form::BinarySi).to_string());
        let ready = is.ready_to_use == Some(true);
        let error = is.error.as_ref().map(|e| json!({"message": e.message, "time": e.time}));
        let wanted = json!({"boundVolumeSnapshotContentName": content.name(), "creationTime": time,
            "readyToUse": ready, "restoreSize": size, "error": error});
        let there = json!(snapshot.status.clone().unwrap_or_default());
        let differs = wanted.as_object().into_iter().flatten().any(|(key, value)| {
            let found = there.get(key).cloned().unwrap_or(Value::Null);
            found != *value
        });
        if !differs {
            return Plan::none();
        }
        let plan = Plan::none().patch_status(snapshot, json!({ "status": wanted }));
        let was = snapshot.status.as_ref().and_then(|s| s.ready_to_use) == Some(true);
        match (ready && !was, is.error.and_then(|e| e.message)) {
            (true, _) => plan.told(EventRecord::normal(
                snapshot,
                "SnapshotReady",
                format!("Snapshot {}/{} is ready to use.", snapshot.namespace(), snapshot.name()),
            )),
            (false, Some(why)) => plan.told(EventRecord::warning(snapshot, "SnapshotCreationFailed", why)),
            _ => plan,
        }
    }
}

impl Controller for Snapshots {
    fn name(&self) -> &'static str {
        SNAPSHOTS
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VolumeSnapshot>();
        setup.watch::<VolumeSnapshotContent>(|content, _| {
            let of = &content.spec.volume_snapshot_ref;
            of.namespace.clone().zip(of.name.clone()).map(|(ns, name)| Key::new(ns, name)).into_iter().collect()
        });
        setup.watch::<VolumeSnapshotClass>(|_, view| {
            let waits = view.cache::<VolumeSnapshot>().iter().filter(|s| s.status.is_none());
            waits.map(|s| Key::of(s.as_ref())).collect()
        });
        setup.watch::<PersistentVolumeClaim>(|claim, view| {
            let from = named(claim).filter(|(group, kind, _)| (*group, *kind) == SNAPSHOT).map(|(.., name)| name);
            let of = |s: &&std::sync::Arc<VolumeSnapshot>| {
                s.namespace() == claim.namespace()
                    && (s.spec.source.persistent_volume_claim_name.as_deref() == Some(claim.name())
                        || from == Some(s.name()))
            };
            view.cache::<VolumeSnapshot>().iter().filter(of).map(|s| Key::of(s.as_ref())).collect()
        });
        setup.read::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(snapshot) = view.get::<VolumeSnapshot>(&key.namespace, &key.name) else { return Plan::none() };
        let marked = snapshot.has_finalizer(BOUND) && snapshot.annotation(NODE) == Some(self.node.as_str());
        let by_hand = snapshot.spec.source.volume_snapshot_content_name.is_some();
        let found = view.get::<VolumeSnapshotContent>("", &content_name(snapshot));
        let content = found.filter(|c| is_for(c, snapshot));
        if snapshot.is_deleting() {
            let mut claims = view.cache::<PersistentVolumeClaim>().in_namespace(&key.namespace);
            if marked
                && is_taken(snapshot)
                && content.is_some()
                && let Some(claim) = claims.find(|claim| is_made_from(claim, snapshot))
            {
                let why = format!("the volume of claim {} is still to be made from it", claim.name());
                return Plan::none().event(EventRecord::warning(snapshot.as_ref(), "SnapshotDeletePending", why));
            }
            return match content {
                _ if !marked => Plan::none(),
                Some(c) if is_free(c) => self.mark(snapshot, false),
                Some(c) if c.spec.deletion_policy == "Delete" && c.is_deleting() => Plan::none(),
                Some(c) if c.spec.deletion_policy == "Delete" => Plan::none().delete(c.as_ref()),
                None if !by_hand && !self.forgets => {
                    // One that was made just before this process began may not have been seen; it would be nobody's to
                    // delete. None comes later, since it rests on the snapshot as it was.
                    without_content(snapshot).then(self.mark(snapshot, false))
                }
                _ => self.mark(snapshot, false),
            };
        }
        if let Some(content) = content {
            if by_hand && content.annotation(NODE) != Some(self.node.as_str()) {
                return Plan::none();
            }
            return match (marked, by_hand) {
                (false, true) => self.mark(snapshot, true),
                (false, false) => Plan::none(),
                (true, true) if is_free(content) => {
                    let patch = json!({"spec": {"volumeSnapshotRef": {"uid": snapshot.uid()}}});
                    Plan::none().patch(content.as_ref(), patch).resting_on(&Premise::unchanged(snapshot.as_ref()))
                }
                (true, _) => Self::follow(snapshot, content),
            };
        }
        if marked && is_taken(snapshot) {
            // What has the content's name, if anything does, is not this snapshot's.
            return if found.is_none() { Self::lost(snapshot, now) } else { Plan::none() };
        }
        let Some(claim) = snapshot.spec.source.persistent_volume_claim_name.as_deref() else { return Plan::none() };
        let Some(claim) = view.get::<PersistentVolumeClaim>(&key.namespace, claim) else { return Plan::none() };
        let Some(volume) = volume_of(claim, view).filter(|v| is_here(v, &self.node)) else { return Plan::none() };
        let Some(class) = class_of(snapshot, view) else { return Self::without_class(snapshot, view) };
        if !marked {
            return self.mark(snapshot, true);
        }
        // Until then nothing of the claim goes (`sources`); but one that goes already cannot be held any more.
        if !claim.has_finalizer(SOURCE) && !claim.is_deleting() {
            return Plan::none();
        }
        // What arrives after its snapshot has gone would be nobody's to delete.
        Plan::none().create(&self.content(snapshot, class, volume)).resting_on(&Premise::unchanged(snapshot.as_ref()))
    }
}

/// Contents and their data.
pub(super) struct Contents {
    node: String,
    calls: Calls,
}

impl Contents {
    pub fn new(node: &str, calls: Calls) -> Self {
        Self { node: node.to_owned(), calls }
    }

    fn release(content: &VolumeSnapshotContent) -> Plan {
        Plan::none().without_finalizer(content, DATA)
    }

    /// What was made by hand has its data here.
    fn mark(&self, content: &VolumeSnapshotContent) -> Plan {
        let list = finalizers(content.metadata.finalizers.as_ref(), DATA, true);
        Plan::none().patch(content, json!({"metadata": {"finalizers": list, "annotations": {NODE: self.node}}}))
    }

    /// It cannot be had yet; the content says why, unless it does already.
    fn failed(content: &VolumeSnapshotContent, why: String, now: Time) -> Plan {
        let before = content.status.as_ref().and_then(|s| s.error.as_ref()).and_then(|e| e.message.as_ref());
        let failed = Plan::failed(why.clone());
        if before == Some(&why) {
            return failed;
        }
        let error = json!({"message": why, "time": now.rfc3339()});
        failed.patch_status(content, json!({"status": {"readyToUse": false, "error": error}}))
    }
}

impl Controller for Contents {
    fn name(&self) -> &'static str {
        CONTENTS
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VolumeSnapshotContent>();
        setup.watch::<VolumeSnapshot>(|snapshot, _| vec![Key::new("", content_name(snapshot))]);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(content) = view.get::<VolumeSnapshotContent>("", &key.name) else { return Plan::none() };
        let at = content.annotation(NODE);
        let by_hand = content.spec.source.snapshot_handle.clone();
        if content.spec.driver != DRIVER
            || at.is_some_and(|node| node != self.node)
            || at.is_none() && (by_hand.is_none() || content.is_deleting())
        {
            return Plan::none();
        }
        // Derived from the snapshot's UID, as the content's own name is: taking it twice takes it once.
        let derived = || format!("snapshot-{}", content.spec.volume_snapshot_ref.uid.as_deref().unwrap_or_default());
        let name = by_hand.clone().unwrap_or_else(derived);
        if content.is_deleting() {
            if !content.has_finalizer(DATA) {
                return Plan::none();
            }
            // Who deletes a content by hand may not know that a snapshot has it (`shouldDelete` in csi-snapshotter).
            match is_let_go(content, view) {
                Some(true) => {}
                Some(false) => return Plan::none(),
                None => return Plan::none().requeue_after(LOOK_AGAIN),
            }
            if content.spec.deletion_policy != "Delete" {
                return Self::release(content);
            }
            return match self.calls.ask(CONTENTS, key, Call::DeleteSnapshot(name)) {
                None => Plan::none(),
                Some(Err(e)) => {
                    let told = EventRecord::warning(content.as_ref(), "SnapshotDeleteError", e.message.clone());
                    Plan::failed(e.message).event(told)
                }
                Some(Ok(_)) => Self::release(content),
            };
        }
        let marked = by_hand.is_none() || at.is_some() && content.has_finalizer(DATA);
        if marked && content.status.as_ref().is_some_and(|s| s.ready_to_use == Some(true)) {
            return Plan::none();
        }
        // What was made by hand is there already, and is only looked for.
        let volume = if by_hand.is_some() { Some(String::new()) } else { content.spec.source.volume_handle.clone() };
        let Some(volume) = volume else { return Plan::none() };
        match self.calls.ask(CONTENTS, key, Call::Snapshot(name.clone(), volume)) {
            None => Plan::none(),
            Some(Err(e)) if at.is_none() => Plan::failed(e.message),
            Some(Err(e)) => Self::failed(content, e.message, now),
            Some(Ok(Answer::Taken { .. })) if !marked => self.mark(content),
            Some(Ok(Answer::Taken { handle, bytes, made_unix_ns })) => {
                let size = i64::try_from(bytes).unwrap_or(i64::MAX);
                let status = json!({"snapshotHandle": handle, "creationTime": made_unix_ns, "restoreSize": size,
                    "readyToUse": true, "error": null});
                Plan::none().patch_status(content.as_ref(), json!({ "status": status }))
            }
            // Another node may have it.
            Some(Ok(Answer::Deleted)) if at.is_none() => Plan::none(),
            Some(Ok(Answer::Deleted)) => Self::failed(content, format!("snapshot {name} does not exist"), now),
            Some(Ok(_)) => Plan::failed(ANOTHER_ANSWER),
        }
    }
}

#[cfg(test)]
mod tests;
