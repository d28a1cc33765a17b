//! Binds claims and volumes, and says what becomes of a volume whose claim is gone.
//!
//! ```text
//!   claim:   Pending ──▶ Bound ──▶ Lost (its volume is surely gone, or somebody else's)
//!   volume:  Available ──▶ Bound ──▶ Released (its claim is surely gone) ──▶ deleted by its provisioner, or kept
//! ```
//!
//! A volume names its claim by UID before the claim names the volume, so that of two claims one gets it, and a claim
//! that was made anew never gets what the one before it had. Volumes are made by external provisioners, which the
//! claim's annotation calls. Behaviour follows kube-controller-manager's persistent volume binder
//! (pkg/controller/volume/persistentvolume).

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Source, Time, View};
use carrack_types::pod::is_terminal;
use carrack_types::quantity::Quantity;
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::volume::{SELECTED_NODE, class_of_claim, is_default_class};
use carrack_types::well_known::storage::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, CLASS_ANNOTATION, PROVISIONED_BY, PROVISIONERS,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use serde_json::{Value, json};

use super::attach::{BY_VOLUME, by_volume, unique_name};
use super::told::{names_in_use, reports_in_use};
use super::{class_of_volume, is_bound_to, matching};
use crate::Planted;
use crate::pods::{self, BY_CLAIM};

/// What provisioners are called that upstream had built in. `kubernetes.io/no-provisioner` is none of them either.
const BUILT_IN: &str = "kubernetes.io/";
/// How large a volume's file system is, where that has not been made as large as the volume since the claim before.
const PRE_RESIZE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// How soon to tell again what a claim waits for: nobody keeps events for long.
const TELL_AGAIN: Duration = Duration::from_secs(600);

/// The binder. Its keys name claims, and volumes (without a namespace).
#[derive(Default)]
pub struct PersistentVolumeBinder {
    /// A planted bug.
    planted: Option<Planted>,
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default()
}

/// The claim waits for this; nothing is written when it does already.
fn pending(claim: &PersistentVolumeClaim, why: EventRecord) -> Plan {
    let plan = match claim_phase(claim) {
        "Pending" => Plan::none(),
        _ => Plan::none().patch_status(claim, json!({"status": {"phase": "Pending"}})),
    };
    plan.event(why).requeue_after(TELL_AGAIN)
}

fn lost(claim: &PersistentVolumeClaim, before: Plan, reason: &str, why: &str) -> Plan {
    if claim_phase(claim) == "Lost" {
        return Plan::none();
    }
    // What the claim had is not there any more, and says so by having no capacity.
    before
        .patch_status(
            claim,
            json!({"status": {"phase": "Lost", "capacity": null, "accessModes": null,
                "currentVolumeAttributesClassName": null}}),
        )
        .told(EventRecord::warning(claim, reason, why))
}

fn set_volume(volume: &PersistentVolume, before: Plan, phase: &str, message: &str, now: Time) -> Plan {
    if volume_phase(volume) == phase {
        return Plan::none();
    }
    let status = json!({"phase": phase, "message": Some(message).filter(|m| !m.is_empty()),
        "lastPhaseTransitionTime": now.rfc3339()});
    before.patch_status(volume, json!({ "status": status }))
}

/// Makes a volume the claim's.
fn take(before: Plan, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Plan {
    let mut patch = json!({"spec": {"claimRef": {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(), "name": claim.name(),
        "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version}}});
    if volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) {
        patch["metadata"]["annotations"][BOUND_BY_CONTROLLER] = "yes".into();
    }
    before.patch(volume, patch)
}

/// Makes them each other's, one write of each at a time: the volume first.
fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume, now: Time) -> Plan {
    if !is_bound_to(volume, claim) {
        return take(Plan::none(), claim, volume);
    }
    if volume_phase(volume) != "Bound" {
        return set_volume(volume, Plan::none(), "Bound", "", now);
    }
    let mut patch = json!({});
    if volume_name(claim) != volume.name() {
        patch["spec"]["volumeName"] = volume.name().into();
        patch["metadata"]["annotations"][BOUND_BY_CONTROLLER] = "yes".into();
    }
    if claim.annotation(BIND_COMPLETED).is_none() {
        patch["metadata"]["annotations"][BIND_COMPLETED] = "yes".into();
    }
    if patch != json!({}) {
        return Plan::none().patch(claim, patch);
    }
    let spec = volume.spec.clone().unwrap_or_default();
    if claim_phase(claim) == "Bound" {
        // How large it is changes as it grows, which others say.
        if claim.status.as_ref().and_then(|s| s.access_modes.as_ref()) == spec.access_modes.as_ref() {
            return Plan::none();
        }
        return Plan::none().patch_status(claim, json!({"status": {"accessModes": spec.access_modes}}));
    }
    let mut status = json!({"phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity});
    if let Some(size) = volume.annotation(PRE_RESIZE).filter(|size| Quantity::parse(size).is_ok()) {
        status["capacity"]["storage"] = size.into();
    }
    // From here on who modifies volumes says which class it has (`updateClaimStatus` in pv_controller.go).
    if let Some(class) = spec.volume_attributes_class_name.filter(|class| !class.is_empty()) {
        status["currentVolumeAttributesClassName"] = class.into();
    }
    Plan::none().patch_status(claim, json!({ "status": status }))
}

fn unbound_claim(claim: &PersistentVolumeClaim, view: &View<'_>, planted: Option<Planted>, now: Time) -> Plan {
    let wanted = volume_name(claim);
    if planted == Some(Planted::ClaimsByName)
        && wanted.is_empty()
        && let Some(volume) = view.cache::<PersistentVolume>().iter().find(|v| matching::names(v, claim))
    {
        return bind(claim, volume, now);
    }
    if wanted.is_empty() {
        let class = view.get::<StorageClass>("", class_of_claim(claim));
        let waits = class.is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        // Which of those that are free it gets is for the scheduler to say, which knows what its node reaches.
        let selected = claim.annotation(SELECTED_NODE).is_some();
        let delayed = waits && !(selected && planted == Some(Planted::TakesFree));
        // Of all volumes those that name it, and those of its class that are nobody's.
        let named = format!("{}/{}", claim.namespace(), claim.name());
        let volumes = view.cache::<PersistentVolume>();
        let free = volumes.by_index(BY_FREE, class_of_claim(claim));
        return match matching::find(volumes.by_index(BY_REFERENCE, &named).chain(free), claim, delayed) {
            // One of which nothing was heard may say that the claim waits: that there is none of its name is to be proved. Upstream's
            // binder takes any volume then (`IsDelayBindingMode` in volume/persistentvolume/util.go).
            Some(volume) if class.is_none() && !class_of_claim(claim).is_empty() && !is_bound_to(volume, claim) => {
                let name = Key::new("", class_of_claim(claim));
                take(Plan::none().confirm_absent(&StorageClass::resource(), name, ""), claim, volume)
            }
            Some(volume) => bind(claim, volume, now),
            None if waits && !selected => pending(claim, first_consumer(claim, view)),
            None => match default_class(view).filter(|_| has_no_class(claim)) {
                Some(class) => Plan::none().patch(claim, json!({"spec": {"storageClassName": class.name()}})),
                None => provision(claim, class.map(AsRef::as_ref)),
            },
        };
    }
    let Some(volume) = view.get::<PersistentVolume>("", wanted) else {
        // It may be made after its claim, which is nothing wrong.
        let why = format!("volume {wanted:?} not found");
        return pending(claim, EventRecord::normal(claim, "FailedBinding", why));
    };
    if matching::is_meant_for(volume, claim) {
        // Each names the other: whatever they are like.
        return bind(claim, volume, now);
    }
    if volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_some()) {
        let why = format!("volume {wanted:?} already bound to a different claim.");
        return pending(claim, EventRecord::warning(claim, "FailedBinding", why));
    }
    let going = || format!("the volume is marked for deletion {wanted:?}");
    let why = if volume.is_deleting() { Some(going()) } else { matching::mismatch(volume, claim).map(str::to_owned) };
    if let Some(why) = why {
        let why = format!("Cannot bind to requested volume {wanted:?}: {why}");
        return pending(claim, EventRecord::warning(claim, "VolumeMismatch", why));
    }
    bind(claim, volume, now)
}

fn first_consumer(claim: &PersistentVolumeClaim, view: &View<'_>) -> EventRecord {
    let key = format!("{}/{}", claim.namespace(), claim.name());
    let waits = |pod: &&Arc<Pod>| !is_terminal(pod) && !pod.is_deleting() && pods::node_of(pod).is_empty();
    let pods = view.cache::<Pod>().by_index(BY_CLAIM, &key).filter(waits);
    let pods: Vec<&str> = pods.map(|pod| pod.name()).collect();
    let (reason, message) = match &pods[..] {
        [] => ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".to_owned()),
        [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
        all => ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", all.join(","))),
    };
    EventRecord::normal(claim, reason, message)
}

/// Whether a claim says nothing of a class. One that names none (`""`) wants none.
fn has_no_class(claim: &PersistentVolumeClaim) -> bool {
    claim.annotation(CLASS_ANNOTATION).is_none() && claim.spec.as_ref().is_none_or(|s| s.storage_class_name.is_none())
}

fn is_default(class: &StorageClass) -> bool {
    is_default_class(|key| class.annotation(key))
}

/// The class for claims that were made before there was one: the newest default, and of those the first by name.
fn default_class<'a>(view: &'a View<'_>) -> Option<&'a Arc<StorageClass>> {
    let born = |class: &StorageClass| class.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let defaults = view.cache::<StorageClass>().iter().filter(|class| is_default(class) && !class.is_deleting());
    defaults.max_by(|a, b| born(a).cmp(&born(b)).then_with(|| b.name().cmp(a.name())))
}

/// Nothing suits the claim: a provisioner is called, if its class has one.
fn provision(claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Plan {
    let name = class_of_claim(claim);
    if name.is_empty() {
        let why = "no persistent volumes available for this claim and no storage class is set";
        return pending(claim, EventRecord::normal(claim, "FailedBinding", why));
    }
    let Some(class) = class else {
        let why = format!("storageclass.storage.k8s.io {name:?} not found");
        return pending(claim, EventRecord::warning(claim, "ProvisioningFailed", why));
    };
    if class.provisioner.starts_with(BUILT_IN) {
        let why = format!("no volume plugin matched name: {}", class.provisioner);
        return pending(claim, EventRecord::warning(claim, "ProvisioningFailed", why));
    }
    let why = format!(
        "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
         administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
         registered.",
        class.provisioner
    );
    let plan = pending(claim, EventRecord::normal(claim, "ExternalProvisioning", why));
    if PROVISIONERS.iter().all(|key| claim.annotation(key) == Some(&class.provisioner)) {
        return plan;
    }
    let mut patch = json!({});
    for key in PROVISIONERS {
        patch["metadata"]["annotations"][key] = class.provisioner.clone().into();
    }
    // The status write changes the claim's resourceVersion; the annotation comes with the next look.
    if plan.writes.is_empty() { plan.patch(claim, patch) } else { plan }
}

fn bound_claim(claim: &PersistentVolumeClaim, view: &View<'_>, now: Time) -> Plan {
    let name = volume_name(claim);
    if name.is_empty() {
        let why = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(claim, Plan::none(), "ClaimLost", why);
    }
    let Some(volume) = view.get::<PersistentVolume>("", name) else {
        // A cache that lags is no proof of a loss.
        let gone = Plan::none().confirm_absent(&PersistentVolume::resource(), Key::new("", name), "");
        let why = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost(claim, gone, "ClaimLost", why);
    };
    if is_bound_to(volume, claim) || volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) {
        return bind(claim, volume, now);
    }
    let unchanged = Plan::none().confirm_unchanged(volume.as_ref());
    let why = "Two claims are bound to the same volume, this one is bound incorrectly";
    lost(claim, unchanged, "ClaimMisbound", why)
}

/// The claim that a volume belongs to, and its UID; none where it names none by its UID.
fn owner(volume: &PersistentVolume) -> Option<(Key, &str)> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let uid = reference.uid.as_deref().filter(|uid| !uid.is_empty())?;
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    Some((Key::new(text(&reference.namespace), text(&reference.name)), uid))
}

/// A claim, unless it is gone, as far as is known.
fn claim_of<'a>(key: &Key, uid: &str, view: &'a View<'_>) -> Option<&'a Arc<PersistentVolumeClaim>> {
    view.get::<PersistentVolumeClaim>(&key.namespace, &key.name).filter(|claim| claim.uid() == uid)
}

/// Whether the claim of a volume is gone, as far as is known: it waits for whoever still has it.
fn is_left(volume: &PersistentVolume, view: &View<'_>) -> bool {
    owner(volume).is_some_and(|(key, uid)| claim_of(&key, uid, view).is_none())
}

/// Whether anything of the cluster may still use the volume's data.
fn in_use(volume: &PersistentVolume, claim: &Key, view: &View<'_>) -> bool {
    let attached = view.cache::<VolumeAttachment>().count(BY_VOLUME, volume.name()) > 0;
    let reported =
        unique_name(volume).is_some_and(|unique| view.cache::<Node>().iter().any(|node| reports_in_use(node, &unique)));
    // Pods that name the claim use this volume, unless the name belongs to a new claim by now.
    let reborn = view.get::<PersistentVolumeClaim>(&claim.namespace, &claim.name).is_some();
    let named = format!("{}/{}", claim.namespace, claim.name);
    let used = !reborn
        && view.cache::<Pod>().by_index(BY_CLAIM, &named).any(|p| !is_terminal(p) && !pods::node_of(p).is_empty());
    attached || reported || used
}

/// Whether there is nobody who could delete the volume with its data.
fn is_nobodys(volume: &PersistentVolume) -> bool {
    volume.annotation(PROVISIONED_BY).is_none() && volume.spec.as_ref().is_none_or(|s| s.csi.is_none())
}

/// A volume whose claim is gone.
fn released(volume: &PersistentVolume, claim: &Key, uid: &str, view: &View<'_>, now: Time) -> Plan {
    let policy = volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain");
    match volume_phase(volume) {
        "Released" | "Failed" => match policy {
            "Recycle" if volume_phase(volume) == "Released" => {
                let why = "Recycling is not supported: the volume keeps its data; delete it, or take its claimRef away";
                set_volume(volume, Plan::none(), "Failed", why, now).told(EventRecord::warning(
                    volume,
                    "VolumeFailedRecycle",
                    why,
                ))
            }
            // Its provisioner deletes it, data first; a CSI driver's is not asked for what it did not make.
            "Delete" if is_nobodys(volume) && volume_phase(volume) == "Released" => {
                let why = format!(
                    "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
                    volume.name()
                );
                set_volume(volume, Plan::none(), "Failed", &why, now).told(EventRecord::warning(
                    volume,
                    "VolumeFailedDelete",
                    why,
                ))
            }
            _ => Plan::none(),
        },
        // From `Released` on, the data may be deleted at any time. Who has it still is watched.
        _ if policy == "Delete" && in_use(volume, claim, view) => Plan::none(),
        _ => {
            let gone = Plan::none().confirm_absent(&PersistentVolumeClaim::resource(), claim.clone(), uid);
            set_volume(volume, gone, "Released", "", now)
        }
    }
}

/// A volume that is being deleted: nobody gets it any more, but that its claim is gone still has to be said, since its
/// provisioner waits for it with the data.
fn going(volume: &PersistentVolume, view: &View<'_>, now: Time) -> Plan {
    // One that is nobody's may go, whatever it was before.
    let Some((key, uid)) = owner(volume) else { return set_volume(volume, Plan::none(), "Available", "", now) };
    match claim_of(&key, uid, view) {
        Some(_) => Plan::none(),
        None => released(volume, &key, uid, view, now),
    }
}

fn volume(volume: &PersistentVolume, view: &View<'_>, now: Time) -> Plan {
    // It is nobody's, or is kept for a claim that has not taken it yet.
    let Some((key, uid)) = owner(volume) else { return set_volume(volume, Plan::none(), "Available", "", now) };
    let Some(claim) = claim_of(&key, uid, view) else { return released(volume, &key, uid, view, now) };
    let named = volume_name(claim);
    if named == volume.name() {
        return set_volume(volume, Plan::none(), "Bound", "", now);
    }
    if named.is_empty() {
        if !matching::modes_differ(volume, claim) {
            // The claim's own look goes on with it.
            return Plan::none();
        }
        let what = "due to incompatible volumeMode.";
        let of = format!("Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} {what}", claim.name());
        let to = format!("Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim {what}", volume.name());
        return Plan::none().event(EventRecord::warning(volume, "VolumeMismatch", of)).event(EventRecord::warning(
            claim.as_ref(),
            "VolumeMismatch",
            to,
        ));
    }
    // The claim has another volume. What was made for it is given back; what somebody reserved for it stays so.
    let dynamic = volume.annotation(PROVISIONED_BY).is_some()
        && volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
    if dynamic {
        let settled = Plan::none().confirm_unchanged(claim.as_ref());
        return match volume_phase(volume) {
            "Released" | "Failed" => Plan::none(),
            _ => set_volume(volume, settled, "Released", "", now),
        };
    }
    let settled = Plan::none().confirm_unchanged(claim.as_ref());
    let patch = if volume.annotation(BOUND_BY_CONTROLLER).is_some() {
        json!({"spec": {"claimRef": null}, "metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}})
    } else {
        json!({"spec": {"claimRef": {"uid": Value::Null}}})
    };
    settled.patch(volume, patch)
}

impl PersistentVolumeBinder {
    pub(crate) fn with_planted(self, planted: Option<Planted>) -> Self {
        Self { planted }
    }
}

impl Controller for PersistentVolumeBinder {
    fn name(&self) -> &'static str {
        "persistentvolume-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.index::<Pod>(BY_CLAIM, pods::by_claim);
        setup.watch::<PersistentVolumeClaim>(|claim, view| {
            let mut keys = vec![Key::of(claim)];
            keys.extend(Some(volume_name(claim)).filter(|n| !n.is_empty()).map(|n| Key::new("", n)));
            let named = format!("{}/{}", claim.namespace(), claim.name());
            keys.extend(view.cache::<PersistentVolume>().by_index(BY_REFERENCE, &named).map(|v| Key::of(v.as_ref())));
            keys
        });
        setup.index::<PersistentVolumeClaim>(BY_WANT, by_want);
        setup.index::<PersistentVolume>(BY_REFERENCE, by_reference);
        setup.index::<PersistentVolume>(BY_FREE, by_free);
        setup.index::<PersistentVolume>(BY_UNIQUE, by_unique);
        setup.index::<VolumeAttachment>(BY_VOLUME, by_volume);
        setup.watch::<PersistentVolume>(|volume, view| {
            let mut keys = vec![Key::of(volume)];
            let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
            match reference {
                Some(r) => {
                    keys.push(Key::new(r.namespace.clone().unwrap_or_default(), r.name.clone().unwrap_or_default()))
                }
                // Whoever waits may want it.
                None => keys.extend(
                    view.cache::<PersistentVolumeClaim>().by_index(BY_WANT, WANTING).map(|c| Key::of(c.as_ref())),
                ),
            }
            keys
        });
        setup.watch::<StorageClass>(|class, view| {
            let claims = view.cache::<PersistentVolumeClaim>().by_index(BY_WANT, WANTING);
            claims
                .filter(|c| class_of_claim(c) == class.name() || (is_default(class) && has_no_class(c)))
                .map(|c| Key::of(c.as_ref()))
                .collect()
        });
        setup.watch::<Pod>(|pod, view| {
            let keys = |name: String| match view.get::<PersistentVolumeClaim>(pod.namespace(), &name) {
                Some(claim) if claim.annotation(BIND_COMPLETED).is_none() => vec![Key::new(pod.namespace(), name)],
                Some(_) => Vec::new(),
                // It may be the last that has what a claim had that is gone.
                None => {
                    let named = format!("{}/{name}", pod.namespace());
                    let volumes = view.cache::<PersistentVolume>().by_index(BY_REFERENCE, &named);
                    volumes.map(|v| Key::of(v.as_ref())).collect()
                }
            };
            pods::claims_of(pod).into_iter().flat_map(keys).collect()
        });
        setup.watch::<VolumeAttachment>(|a, _| {
            a.spec.source.persistent_volume_name.iter().map(|name| Key::new("", name.clone())).collect()
        });
        if self.planted == Some(Planted::ReleasesUnheard) {
            setup.read::<Node>();
            return;
        }
        // A node that has let go, or has gone. As it was, it names what it names no more.
        let matters = |old: &Node, new: &Node| names_in_use(old) != names_in_use(new);
        setup.watch_changes::<Node>(Source::of::<Node>(), matters, |node, view| {
            let volumes = view.cache::<PersistentVolume>();
            let used = names_in_use(node).iter().flat_map(|unique| volumes.by_index(BY_UNIQUE, unique));
            used.filter(|volume| is_left(volume, view)).map(|volume| Key::of(volume.as_ref())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        if key.namespace.is_empty() {
            return match view.get::<PersistentVolume>("", &key.name) {
                Some(found) if found.is_deleting() => going(found, view, now),
                Some(found) => volume(found, view, now),
                None => Plan::none(),
            };
        }
        let Some(claim) = view.get::<PersistentVolumeClaim>(&key.namespace, &key.name).filter(|c| !c.is_deleting())
        else {
            return Plan::none();
        };
        if claim.annotation(BIND_COMPLETED).is_some() {
            return bound_claim(claim, view, now);
        }
        unbound_claim(claim, view, self.planted, now)
    }
}

/// Name of the index of volumes by the claim that they name.
pub(super) const BY_REFERENCE: &str = "claim";

pub(super) fn by_reference(volume: &PersistentVolume) -> Vec<String> {
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    reference.map(|r| format!("{}/{}", text(&r.namespace), text(&r.name))).into_iter().collect()
}

/// Name of the index of volumes that name no claim, by their class.
const BY_FREE: &str = "free";

fn by_free(volume: &PersistentVolume) -> Vec<String> {
    let is_free = volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_none());
    is_free.then(|| class_of_volume(volume).to_owned()).into_iter().collect()
}

/// Name of the index of volumes by the names under which nodes report them.
const BY_UNIQUE: &str = "unique name";

fn by_unique(volume: &PersistentVolume) -> Vec<String> {
    unique_name(volume).into_iter().collect()
}

/// Name of the index of claims that have no volume yet, all under one value.
const BY_WANT: &str = "wanting";
const WANTING: &str = "a volume";

fn by_want(claim: &PersistentVolumeClaim) -> Vec<String> {
    claim.annotation(BIND_COMPLETED).is_none().then(|| WANTING.to_owned()).into_iter().collect()
}

#[cfg(test)]
#[path = "binder_tests.rs"]
mod tests;
