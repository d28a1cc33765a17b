//! The claims that a restore makes from the snapshots of volumes.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{EventRecord, Key, Plan, Premise, controller_ref};
use carrack_types::kubevirt::snapshot::names::{
    LAST_RESTORE_ANNOTATION, RESTORE_NAME_ANNOTATION, RESTORE_OWNED_BY_VM_ANNOTATION, RESTORE_SOURCE_NAME_LABEL,
    RESTORE_SOURCE_NAMESPACE_LABEL, VOLUME_SIZE_ANNOTATION,
};
use carrack_types::kubevirt::snapshot::{
    SourceVirtualMachine, VolumeBackup, VolumeRestore, volume_ownership, volume_restore,
};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineRestore};
use carrack_types::quantity::Quantity;
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::snapshots::VolumeSnapshot;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::{Held, Stop, World, filling, is_by, mark, off, under_way};
use crate::controllers::snapshot::classes::{self, VOLUME_SNAPSHOT_GROUP};
use crate::controllers::vmi::state;
use crate::controllers::{Planted, copies};
use crate::identity::{filler_of, label_value};

/// Annotations of a claim that are about its volume and not about what it is for.
const NOT_RESTORED: [&str; 6] = [
    "pv.kubernetes.io",
    "volume.beta.kubernetes.io",
    "cdi.kubevirt.io",
    "volume.kubernetes.io",
    "k8s.io/CloneRequest",
    "k8s.io/CloneOf",
];

fn is_in_place(restore: &VirtualMachineRestore) -> bool {
    restore.spec.volume_restore_policy.as_deref() == Some(volume_restore::IN_PLACE)
}

/// Name of the claim for a volume. `claim` is the name of the one that was snapshotted. State has no place of its own in the
/// machine: nothing is to make room for it, and what was there stays until the restore is complete.
fn name_of(restore: &VirtualMachineRestore, volume: &str, claim: &str, is_state: bool) -> String {
    let mut overrides = restore.spec.volume_restore_overrides.iter();
    if let Some(wanted) = overrides.find(|wanted| wanted.volume_name == volume && !wanted.restore_name.is_empty()) {
        return wanted.restore_name.clone();
    }
    match restore.spec.volume_restore_policy.as_deref() {
        Some(volume_restore::IN_PLACE) if !is_state => claim.to_owned(),
        Some(volume_restore::PREFIX_TARGET_NAME) => format!("{}-{volume}", restore.spec.target.name),
        _ => format!("restore-{}-{volume}", restore.uid()),
    }
}

/// The machine that was snapshotted.
pub(super) fn machine<'a>(held: &Held<'a>) -> Result<&'a SourceVirtualMachine, Stop> {
    held.content.spec.source.virtual_machine.as_ref().ok_or_else(|| Stop::for_good("unexpected snapshot source"))
}

/// The claims that are to be made, in the order of the content. A dump of memory is not restored.
fn wanted(world: &World<'_>, held: &Held<'_>) -> Result<Vec<VolumeRestore>, Stop> {
    let template = machine(held)?.spec.template.as_ref();
    let dumps: Vec<&str> = template
        .iter()
        .flat_map(|template| &template.spec.volumes)
        .filter(|volume| volume.memory_dump.is_some())
        .map(|volume| volume.name.as_str())
        .collect();
    let status = world.restore.status.as_ref();
    let mut all = Vec::new();
    let mut names = BTreeSet::new();
    for backup in &held.content.spec.volume_backups {
        if dumps.contains(&backup.volume_name.as_str()) {
            continue;
        }
        let mut there = status.iter().flat_map(|status| &status.restores);
        let volume = match there.find(|volume| volume.volume_name == backup.volume_name) {
            Some(volume) => volume.clone(),
            None => {
                let snapshot = backup.volume_snapshot_name.clone();
                let missing = || Stop::for_good(format!("VolumeSnapshotName missing for {}", backup.volume_name));
                let claim = backup.persistent_volume_claim.metadata.name.as_deref().unwrap_or_default();
                VolumeRestore {
                    volume_name: backup.volume_name.clone(),
                    persistent_volume_claim_name: name_of(
                        world.restore,
                        &backup.volume_name,
                        claim,
                        copies::is_state(held.content, &backup.volume_name),
                    ),
                    volume_snapshot_name: snapshot.ok_or_else(missing)?,
                    data_volume_name: None,
                }
            }
        };
        if !names.insert(volume.persistent_volume_claim_name.clone()) {
            let name = &volume.persistent_volume_claim_name;
            return Err(Stop::for_good(format!("several volumes would be restored to the claim {name}")));
        }
        all.push(volume);
    }
    Ok(all)
}

/// The next step to having the claims; nothing when they are there.
pub(super) fn prepare(world: &World<'_>, held: &Held<'_>) -> Result<Option<Plan>, Stop> {
    let restores = wanted(world, held)?;
    let waits = |plan: Plan| Some(plan.then(under_way(world, true, "Creating new PVCs", "Waiting for new PVCs")));
    if world.restore.status.as_ref().map(|status| &status.restores) != Some(&restores) {
        let plan = super::say(world, |status, now| {
            status.restores = restores;
            super::progressing(&mut status.conditions, true, "Creating new PVCs", now);
            super::ready(&mut status.conditions, false, "Waiting for new PVCs", now);
        });
        return Ok(Some(plan));
    }
    let mut writes = Plan::none();
    let mut waiting = false;
    for volume in &restores {
        let namespace = world.restore.namespace();
        let claim = classes::claim(world.view, namespace, &volume.persistent_volume_claim_name);
        match claim {
            None => writes = writes.create(&new_claim(world, held, volume)?),
            Some(claim) if is_by(world.restore, claim) => waiting |= is_pending(world, claim)?,
            Some(claim) if !is_in_place(world.restore) => {
                let why = format!(
                    "PersistentVolumeClaim {namespace}/{} exists and was not made by this restore",
                    claim.name()
                );
                return Err(Stop::ForGood { why, while_there: Some(Box::new(Premise::present(claim))) });
            }
            Some(claim) if claim.is_deleting() => waiting = true,
            Some(claim) => writes = writes.then(make_room(world, held, volume, claim)?),
        }
    }
    if writes.is_none() {
        return Ok(if waiting { waits(writes) } else { None });
    }
    let plan = while_off(world, writes);
    Ok(waits(plan))
}

/// Writes that rest on the restore, and on the target being off, or not there.
pub(super) fn while_off(world: &World<'_>, writes: Plan) -> Plan {
    let restore = Premise::present(world.restore);
    match world.vm {
        Some(vm) => {
            let (proof, premise) = off(vm);
            proof.then(writes.resting_on(&premise).resting_on(&Premise::present(vm)).resting_on(&restore))
        }
        None => {
            let (resource, key) = (VirtualMachine::resource(), target_key(world));
            let premise = Premise::absent(&resource, key.clone());
            Plan::none().confirm_absent(&resource, key, "").then(writes.resting_on(&premise).resting_on(&restore))
        }
    }
}

/// The target, by name.
pub(super) fn target_key(world: &World<'_>) -> Key {
    Key::new(world.restore.namespace(), world.restore.spec.target.name.clone())
}

/// Whether a claim of ours has no volume yet, and gets one before somebody uses it.
fn is_pending(world: &World<'_>, claim: &PersistentVolumeClaim) -> Result<bool, Stop> {
    if claim.is_deleting() {
        return Ok(true);
    }
    match claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending") {
        "Bound" => Ok(false),
        "Pending" => {
            let Some(name) = classes::storage_class(claim) else { return Ok(true) };
            let class = world.view.get::<StorageClass>("", name);
            let class = class.ok_or_else(|| Stop::ForNow(format!("StorageClass {name} does not exist")))?;
            Ok(class.volume_binding_mode.as_deref().is_none_or(|mode| mode == "Immediate"))
        }
        other => Err(Stop::ForNow(format!("PVC {}/{} in status \"{other}\"", claim.namespace(), claim.name()))),
    }
}

/// A claim whose place the restored one takes is deleted, once it is sure that there is something to restore, and that no
/// other machine has it.
fn make_room(
    world: &World<'_>,
    held: &Held<'_>,
    volume: &VolumeRestore,
    claim: &PersistentVolumeClaim,
) -> Result<Plan, Stop> {
    if filler_of(claim).is_some() {
        // Whoever keeps that would make the claim and fill it as it was at first, before the snapshot's is there.
        let claim = claim.name();
        let why = format!("PersistentVolumeClaim {claim} belongs to a DataVolume, and is not restored in place");
        return Err(Stop::for_good(why));
    }
    let uses = |vm: &VirtualMachine| has(vm, claim.name());
    let target = world.restore.spec.target.name.as_str();
    let mut machines = world.view.cache::<VirtualMachine>().in_namespace(claim.namespace());
    if let Some(other) = machines.find(|vm| vm.name() != target && uses(vm)) {
        let (claim, vm) = (claim.name(), other.name());
        return Err(Stop::ForNow(format!("PersistentVolumeClaim {claim} is used by VirtualMachine {vm}")));
    }
    let alive = match origin(world, held, volume)? {
        Origin::Snapshot(snapshot) => Plan::none().confirm_alive(snapshot),
        Origin::Copy(copy) => Plan::none().confirm_alive(copy),
    };
    Ok(alive.delete_unchanged(claim))
}

/// What a claim is made from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Snapshot(&'a VolumeSnapshot),
    /// A claim with a copy.
    Copy(&'a PersistentVolumeClaim),
}

/// What the claim of a volume is made from.
pub(super) fn origin<'a>(world: &World<'a>, held: &Held<'a>, volume: &VolumeRestore) -> Result<Origin<'a>, Stop> {
    let name = &volume.volume_snapshot_name;
    let content = held.content;
    if let Some(copy) = copies::of(content, world.view).into_iter().find(|copy| copy.name == name) {
        let found = copy.claim.filter(|claim| !claim.is_deleting());
        let found = found.ok_or_else(|| Stop::ForNow(format!("missing copy {name}")))?;
        if !copy.is_own(content) {
            return Err(Stop::ForNow(format!("copy {name} does not belong to {}", content.name())));
        }
        return Ok(Origin::Copy(found));
    }
    let found = classes::volume_snapshot(world.view, world.restore.namespace(), name)
        .filter(|snapshot| !snapshot.is_deleting())
        .ok_or_else(|| Stop::ForNow(format!("missing volumeSnapshot {name}")))?;
    if found.controller_uid() != Some(content.uid()) {
        return Err(Stop::ForNow(format!("volumeSnapshot {name} does not belong to {}", content.name())));
    }
    Ok(Origin::Snapshot(found))
}

/// The claim of a volume, as it is to be made.
fn new_claim(world: &World<'_>, held: &Held<'_>, volume: &VolumeRestore) -> Result<PersistentVolumeClaim, Stop> {
    let restore = world.restore;
    let backups = &held.content.spec.volume_backups;
    let backup = backups.iter().find(|backup| backup.volume_name == volume.volume_name);
    let missing = || Stop::for_good(format!("volume backup for volume {} not found", volume.volume_name));
    let backup = backup.ok_or_else(missing)?;
    let origin = origin(world, held, volume)?;
    let vm = machine(held)?;
    let mut metadata = metadata(restore, backup, vm);
    metadata.name = Some(volume.persistent_volume_claim_name.clone());
    metadata.namespace.clone_from(&restore.metadata.namespace);
    let is_state = copies::is_state(held.content, &backup.volume_name);
    if is_state {
        let target = label_value(&restore.spec.target.name);
        metadata.labels.get_or_insert_default().insert(state::LABEL.to_owned(), target);
    }
    // What a machine keeps beside its volumes is nobody else's.
    if is_state || restore.spec.volume_ownership_policy.as_deref() != Some(volume_ownership::NONE) {
        match world.vm {
            Some(vm) => metadata.owner_references = Some(vec![controller_ref(vm)]),
            // Its machine comes later, and owns it then, as the one before owned the one before.
            None if is_state || was_owned(backup, vm) => {
                let annotations = metadata.annotations.get_or_insert_default();
                annotations.insert(RESTORE_OWNED_BY_VM_ANNOTATION.to_owned(), restore.name().to_owned());
            }
            None => {}
        }
    }
    Ok(PersistentVolumeClaim { metadata, spec: Some(spec(backup, origin)), status: None })
}

fn was_owned(backup: &VolumeBackup, vm: &SourceVirtualMachine) -> bool {
    let uid = vm.metadata.as_ref().and_then(|metadata| metadata.uid.as_deref());
    let owners = backup.persistent_volume_claim.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.kind == "VirtualMachine" && Some(owner.uid.as_str()) == uid)
}

fn metadata(restore: &VirtualMachineRestore, backup: &VolumeBackup, vm: &SourceVirtualMachine) -> ObjectMeta {
    let source = &backup.persistent_volume_claim.metadata;
    let of = vm.metadata.clone().unwrap_or_default();
    let mut labels = source.labels.clone().unwrap_or_default();
    let own = [
        (RESTORE_SOURCE_NAME_LABEL, label_value(of.name.as_deref().unwrap_or_default())),
        (RESTORE_SOURCE_NAMESPACE_LABEL, of.namespace.clone().unwrap_or_default()),
    ];
    labels.extend(own.map(|(key, value)| (key.to_owned(), value)));
    let mut annotations: BTreeMap<String, String> = source.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !NOT_RESTORED.iter().any(|prefix| key.starts_with(prefix)));
    annotations.remove(RESTORE_OWNED_BY_VM_ANNOTATION);
    for wanted in restore.spec.volume_restore_overrides.iter().filter(|o| o.volume_name == backup.volume_name) {
        labels.extend(wanted.labels.clone());
        annotations.extend(wanted.annotations.clone());
    }
    annotations.insert(RESTORE_NAME_ANNOTATION.to_owned(), restore.name().to_owned());
    annotations.insert(LAST_RESTORE_ANNOTATION.to_owned(), mark(restore));
    ObjectMeta { labels: Some(labels), annotations: Some(annotations), ..ObjectMeta::default() }
}

fn spec(backup: &VolumeBackup, origin: Origin<'_>) -> PersistentVolumeClaimSpec {
    let source = backup.persistent_volume_claim.spec.clone();
    let mut resources = source.resources.unwrap_or_default();
    let least = match origin {
        Origin::Snapshot(snapshot) => snapshot.status.as_ref().and_then(|status| status.restore_size.as_deref()),
        Origin::Copy(copy) => copy.annotation(VOLUME_SIZE_ANNOTATION),
    };
    if let Some((text, least)) = least.and_then(|text| Some((text, Quantity::parse(text).ok()?))) {
        let requests = resources.requests.get_or_insert_default();
        let asked = requests.get("storage").and_then(|asked| Quantity::parse(&asked.0).ok());
        if asked.is_none_or(|asked| asked < least) {
            requests.insert("storage".to_owned(), ApiQuantity(text.to_owned()));
        }
    }
    let mut spec = PersistentVolumeClaimSpec {
        access_modes: source.access_modes,
        resources: Some(resources),
        storage_class_name: source.storage_class_name,
        volume_mode: source.volume_mode,
        ..PersistentVolumeClaimSpec::default()
    };
    match origin {
        Origin::Snapshot(snapshot) => {
            let (group, kind, name) =
                (VOLUME_SNAPSHOT_GROUP.to_owned(), "VolumeSnapshot".to_owned(), snapshot.name().to_owned());
            spec.data_source = Some(TypedLocalObjectReference {
                api_group: Some(group.clone()),
                kind: kind.clone(),
                name: name.clone(),
            });
            spec.data_source_ref = Some(TypedObjectReference { api_group: Some(group), kind, name, namespace: None });
        }
        // The source's class may make no volumes; that of the copy does. Whether that makes any which several nodes can
        // have, as the source's may be, is not known: the copy's own is one node's.
        Origin::Copy(copy) => {
            let class = classes::storage_class(copy).map(str::to_owned);
            if class != spec.storage_class_name {
                spec.access_modes = copy.spec.as_ref().and_then(|of| of.access_modes.clone());
            }
            spec.storage_class_name = class;
        }
    }
    spec
}

/// Claims of the restore, by the names in its status.
fn made<'a>(world: &World<'a>) -> impl Iterator<Item = (&'a str, Option<&'a PersistentVolumeClaim>)> {
    let (view, restore) = (world.view, world.restore);
    let restores = restore.status.iter().flat_map(|status| &status.restores);
    restores.map(move |volume| {
        let name = volume.persistent_volume_claim_name.as_str();
        (name, classes::claim(view, restore.namespace(), name).filter(|claim| is_by(restore, *claim)))
    })
}

/// Claims of the restore that are there.
pub(super) fn own<'a>(world: &World<'a>) -> impl Iterator<Item = &'a PersistentVolumeClaim> {
    made(world).filter_map(|(_, claim)| claim)
}

/// Gives the restored machine the claims that are to be its own: those that were made before it was there.
pub(super) fn given_owners(world: &World<'_>) -> Plan {
    let Some(vm) = world.vm.filter(|vm| is_by(world.restore, *vm)) else { return Plan::none() };
    let mut plan = Plan::none();
    for claim in own(world).filter(|claim| !claim.is_deleting()) {
        let wanted = claim.annotation(RESTORE_OWNED_BY_VM_ANNOTATION) == Some(world.restore.name());
        if wanted && claim.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
            let owner = json!({"metadata": {"ownerReferences": [controller_ref(vm)],
                "annotations": {RESTORE_OWNED_BY_VM_ANNOTATION: null}}});
            plan = plan.confirm_alive(vm).patch(claim, owner);
        }
    }
    plan
}

/// Whether the target has a claim of this name.
pub(super) fn is_used(world: &World<'_>, name: &str) -> bool {
    world.vm.is_some_and(|vm| has(vm, name))
}

/// Whether a machine has a claim of this name, for a volume or for what it keeps beside them.
fn has(vm: &VirtualMachine, name: &str) -> bool {
    classes::volumes(vm).any(|volume| volume.claim_name() == Some(name)) || state::of_machine(vm) == name
}

/// The claim that the restored machine keeps its state on from now on, if the snapshot has any.
pub(super) fn state_of<'a>(world: &World<'a>, held: &Held<'_>) -> Option<&'a str> {
    if world.planted == Some(Planted::StateLeftBehind) {
        return None;
    }
    let mut restores = world.restore.status.iter().flat_map(|status| &status.restores);
    let restored = restores.find(|volume| copies::is_state(held.content, &volume.volume_name))?;
    Some(&restored.persistent_volume_claim_name)
}

/// Deletes the claims for its state that a restored machine has no more: nothing else names them. Upstream does so, too.
pub(super) fn drop_old_state(world: &World<'_>) -> Plan {
    let Some(vm) = world.vm else { return Plan::none() };
    let current = state::of_machine(vm);
    // The new one is there, or the old one might be all that there is.
    if !own(world).any(|claim| claim.name() == current) {
        return Plan::none();
    }
    let is_old = |claim: &&PersistentVolumeClaim| {
        let is_state = claim.label(state::LABEL).is_some() && claim.controller_uid() == Some(vm.uid());
        is_state && claim.name() != current && !claim.is_deleting()
    };
    let claims = world.view.cache::<PersistentVolumeClaim>().by_owner(vm.uid()).map(AsRef::as_ref);
    let plan = claims.filter(is_old).fold(Plan::none(), |plan, claim| plan.delete(claim));
    if plan.is_none() { plan } else { plan.resting_on(&Premise::unchanged(vm)) }
}

/// The next step to having no claims that are of no use, of a restore that came to nothing: those that nobody has, and those that
/// the target has but that are not filled. Nothing when there are none.
pub(super) fn drop_unused(world: &World<'_>) -> Option<Plan> {
    let blank = filling::blank(world);
    let is_blank = |claim: &PersistentVolumeClaim| blank.iter().any(|found| found.name() == claim.name());
    let useless = |claim: &PersistentVolumeClaim| !is_used(world, claim.name()) || is_blank(claim);
    let unused: Vec<&PersistentVolumeClaim> = own(world).filter(|claim| useless(claim)).collect();
    if unused.is_empty() {
        return None;
    }
    let open = unused.iter().filter(|claim| !claim.is_deleting());
    let plan = open.fold(Plan::none(), |plan, claim| {
        let plan = plan.delete(*claim);
        if !is_blank(claim) {
            return plan;
        }
        let target = &world.restore.spec.target.name;
        let message =
            format!("Deleted PersistentVolumeClaim {} of VirtualMachine {target}, which was not filled", claim.name());
        plan.told(EventRecord::warning(world.restore, "UnfilledPVCDeleted", message))
    });
    if plan.is_none() {
        return Some(plan);
    }
    Some(match world.vm {
        Some(vm) => Plan::none().confirm_unchanged(vm).then(plan.resting_on(&Premise::unchanged(vm))),
        None => {
            let (resource, key) = (VirtualMachine::resource(), target_key(world));
            let premise = Premise::absent(&resource, key.clone());
            Plan::none().confirm_absent(&resource, key, "").then(plan.resting_on(&premise))
        }
    })
}

/// Makes sure that those which the cache does not show are not there.
pub(super) fn confirm_dropped(world: &World<'_>) -> Plan {
    let resource = PersistentVolumeClaim::resource();
    let namespace = world.restore.namespace();
    let gone =
        made(world).filter(|(name, claim)| claim.is_none() && classes::claim(world.view, namespace, name).is_none());
    gone.fold(Plan::none(), |plan, (name, _)| plan.confirm_absent(&resource, Key::new(namespace, name), ""))
}
