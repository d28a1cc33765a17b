//! The machine that is restored: what it becomes, and what is left to do once it is so.

use carrack_engine::{EventRecord, Plan, Premise, Write, to_value};
use carrack_types::kubevirt::snapshot::VolumeRestore;
use carrack_types::kubevirt::snapshot::names::LAST_RESTORE_ANNOTATION;
use carrack_types::kubevirt::volumes::PersistentVolumeClaimSource;
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineClone, VirtualMachineRestore, VirtualMachineSpec, Volume, run_strategy,
};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::well_known::kubevirt::STATE_CLAIM_ANNOTATION;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::claims::{self, target_key};
use super::{AGAIN, Held, Stop, World, encountered, filling, let_go, mark, off, progressing, ready, say, under_way};
use crate::controllers::snapshot::KINDS_AGAIN;
use crate::controllers::vm::identify;
use crate::diff::merge_patch;
use crate::instancetype::{instancetype_place, object_of, preference_place, referenced, revision_of};
use crate::patches;

/// Makes the machine what the snapshot holds.
pub(super) fn apply(world: &World<'_>, held: &Held<'_>) -> Result<Plan, Stop> {
    let plan = match world.vm {
        Some(vm) if vm.is_deleting() => {
            return Err(Stop::ForNow(format!("VirtualMachine {} is being deleted", vm.name())));
        }
        Some(vm) => change(world, held, vm)?,
        None => make(world, held)?,
    };
    Ok(plan.then(under_way(world, true, "Updating target spec", "Waiting for target update")))
}

/// What the snapshot's machine was to be, with the restored claims.
fn spec(restore: &VirtualMachineRestore, held: &Held<'_>) -> Result<VirtualMachineSpec, Stop> {
    let mut spec = claims::machine(held)?.spec.clone();
    if let Some(template) = &mut spec.template {
        // A dump of memory is of what was, and of no use to what will be.
        template.spec.volumes.retain(|volume| volume.memory_dump.is_none());
        // A volume that is restored has its claim from the restore, and no template is of use for it.
        let is_restored = |volume: &Volume| restored(volume, restore).is_some();
        let claims = template.spec.volumes.iter().filter(|volume| is_restored(volume)).filter_map(Volume::claim_name);
        let filled: Vec<String> = claims.map(str::to_owned).collect();
        let templates = &mut spec.data_volume_templates;
        templates.retain(|of| !filled.iter().any(|name| of["metadata"]["name"] == name.as_str()));
        template.spec.volumes.iter_mut().for_each(|volume| replace(volume, restore));
    }
    Ok(spec)
}

/// What became of a volume.
fn restored<'a>(volume: &Volume, restore: &'a VirtualMachineRestore) -> Option<&'a VolumeRestore> {
    let mut restores = restore.status.iter().flat_map(|status| &status.restores);
    restores.find(|restored| restored.volume_name == volume.name)
}

fn replace(volume: &mut Volume, restore: &VirtualMachineRestore) {
    let Some(restored) = restored(volume, restore) else { return };
    let claim_name = restored.persistent_volume_claim_name.clone();
    if volume.data_volume.take().is_some() {
        volume.persistent_volume_claim = Some(PersistentVolumeClaimSource { claim_name, ..Default::default() });
    } else if let Some(claim) = &mut volume.persistent_volume_claim {
        claim.claim_name = claim_name;
    }
}

/// A machine that is there keeps its run strategy, name and labels.
fn change(world: &World<'_>, held: &Held<'_>, vm: &VirtualMachine) -> Result<Plan, Stop> {
    let mut new = spec(world.restore, held)?;
    if vm.spec.running.is_some() {
        new.running = Some(false);
        new.run_strategy = None;
    } else {
        new.running = None;
        new.run_strategy = Some(vm.run_strategy().to_owned());
    }
    let mut patch = json!({"metadata": {"annotations": {LAST_RESTORE_ANNOTATION: mark(world.restore)}}});
    // A snapshot without any leaves the machine what it has.
    if let Some(claim) = claims::state_of(world, held) {
        patch["metadata"]["annotations"][STATE_CLAIM_ANNOTATION] = json!(claim);
    }
    if let Some(spec) = merge_patch(&vm.spec, &new) {
        patch["spec"] = spec;
    }
    let (proof, premise) = off(vm);
    let plan = Plan::none().patch(vm, patch).resting_on(&premise).resting_on(&Premise::present(world.restore));
    Ok(proof.then(plan))
}

/// A machine that is not there is made, off, with the patches that were asked for.
fn make(world: &World<'_>, held: &Held<'_>) -> Result<Plan, Stop> {
    let restore = world.restore;
    let name = restore.spec.target.name.as_str();
    let source = claims::machine(held)?.metadata.clone().unwrap_or_default();
    let mut spec = spec(restore, held)?;
    if spec.running.is_some() {
        spec.running = Some(false);
    } else {
        spec.run_strategy = Some(run_strategy::HALTED.to_owned());
    }
    // A machine that comes again is the same to its guest: what was not given followed from the UID that it had. A clone is
    // another one, whatever it is called.
    let again = source.name.as_deref() == Some(name) && !is_of_clone(restore);
    if let (Some(template), Some(uid)) = (&mut spec.template, source.uid.filter(|_| again)) {
        identify(&mut template.spec, &uid);
    }
    let vm = VirtualMachine {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: restore.metadata.namespace.clone(),
            labels: source.labels,
            annotations: source.annotations,
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    };
    let mut object = to_value(&vm);
    patches::apply(&mut object, &restore.spec.patches)
        .map_err(|why| Stop::for_good(format!("error patching VM {name}: {why}")))?;
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    object["metadata"]["annotations"][LAST_RESTORE_ANNOTATION] = Value::String(mark(restore));
    // Of the machine in the snapshot it is another one.
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(STATE_CLAIM_ANNOTATION);
        let own = claims::state_of(world, held);
        annotations.extend(own.map(|claim| (STATE_CLAIM_ANNOTATION.to_owned(), json!(claim))));
    }
    let (resource, key) = (VirtualMachine::resource(), target_key(world));
    let create = Plan::none()
        .confirm_absent(&resource, key.clone(), "")
        .write(Write::Create { resource: resource.clone(), object })
        .resting_on(&Premise::absent(&resource, key))
        .resting_on(&Premise::present(restore));
    Ok(create)
}

/// Whether a restore makes a clone.
fn is_of_clone(restore: &VirtualMachineRestore) -> bool {
    let mut owners = restore.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == VirtualMachineClone::resource().kind)
}

/// Whether a machine has made what the snapshot kept of its instance type and its preference its own.
enum Sizes {
    /// It has nothing to do with the snapshot's any more.
    Kept,
    /// Not yet.
    Awaited,
    /// It has: its spec is not to name the snapshot's revisions any more, which go with the snapshot.
    Named(Value),
}

fn sizes(world: &World<'_>, vm: &VirtualMachine) -> Sizes {
    let status = vm.status.clone().unwrap_or_default();
    let mut patch = json!({});
    for (field, place, has) in [
        ("instancetype", instancetype_place(&vm.spec, vm.namespace()), status.instancetype_ref),
        ("preference", preference_place(&vm.spec, vm.namespace()), status.preference_ref),
    ] {
        let Some((place, name)) = place.and_then(|place| Some((place.clone(), place.revision?))) else { continue };
        let kept = world.view.get::<ControllerRevision>(vm.namespace(), name);
        let own = kept.and_then(|kept| object_of(kept)).map(|kept| revision_of(vm, kept));
        // A revision that the cache has not seen yet is there.
        let unseen = own.is_none() && world.view.revision::<ControllerRevision>() < vm.revision();
        if unseen || own.is_some_and(|own| referenced(has.as_ref(), &place) != Some(own.name())) {
            return Sizes::Awaited;
        }
        patch[field] = json!({"revisionName": null});
    }
    if patch == json!({}) { Sizes::Kept } else { Sizes::Named(patch) }
}

/// The machine is what it should be: it gets its claims, is let go, and that is said.
pub(super) fn complete(world: &World<'_>) -> Plan {
    let restore = world.restore;
    if let Some(plan) = filling::clear(world) {
        return plan;
    }
    let sizes = world.vm.map_or(Sizes::Kept, |vm| sizes(world, vm));
    let conditions = world.vm.and_then(|vm| vm.status.as_ref()).map_or(&[][..], |status| &status.conditions);
    let trouble = conditions.iter().find(|condition| condition.r#type == "Failure" && condition.is_true());
    if let (Sizes::Awaited, Some(trouble)) = (&sizes, trouble) {
        return encountered(world, &trouble.message).requeue_after(AGAIN);
    }
    if let Sizes::Awaited = sizes {
        return under_way(world, true, "Updating target spec", "Waiting for target update").requeue_after(KINDS_AGAIN);
    }
    let mut plan = filling::confirm_cleared(world).then(claims::drop_old_state(world));
    if let (Some(vm), Sizes::Named(patch)) = (world.vm, sizes) {
        plan = plan.patch(vm, json!({ "spec": patch }));
    }
    plan = plan.then(claims::given_owners(world));
    if let Some(free) = let_go(world) {
        plan = plan.then(free);
    }
    let message = format!("Successfully completed VirtualMachineRestore {}", restore.name());
    let done = say(world, |status, now| {
        status.complete = Some(true);
        status.restore_time = Some(now.meta());
        progressing(&mut status.conditions, false, "Operation complete", now);
        ready(&mut status.conditions, true, "Operation complete", now);
    });
    plan.then(done).told(EventRecord::normal(restore, "VirtualMachineRestoreComplete", message))
}
