//! Fills the claims of volumes that are kept as copies, by a pod (`controllers::copies`).
//!
//! The pod is made when all claims are there, and before the target is anything; it succeeds before the target is changed, and
//! is gone before the restore is complete. Where the target is there, the pod has the name that keeps it from starting;
//! where it is not, a name of the restore's own.
//!
//! Claims that are restored in place are the machine's as soon as they are there, and blank until they are filled. So a restore
//! that fails before they are does not let the machine go, and one that is deleted takes them with it: a machine that
//! misses a claim says so, and one with a blank disk runs.

use carrack_engine::{EventRecord, Plan, Premise};
use carrack_types::kubevirt::snapshot::names::FILLED_ANNOTATION;
use carrack_types::kubevirt::snapshot::{VolumeRestore, copy_name, copying_pod_name};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::json;

use super::claims::{self, Origin};
use super::{Held, Stop, World, encountered, is_by, mark, under_way};
use crate::controllers::copies::{self, Job, Pair, Place, Purpose, Stage};
use crate::controllers::snapshot::classes;

/// Whose UIDs the pod's name may follow from: the target's, which owns the restore if it was there, and the restore's.
fn uids<'a>(world: &World<'a>) -> impl Iterator<Item = &'a str> {
    let metadata = &world.restore.metadata;
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let target = world.vm.map(|vm| vm.uid()).or(owner.map(|owner| owner.uid.as_str()));
    target.into_iter().chain(metadata.uid.as_deref())
}

/// Whether a volume is made from a copy, by the name of what it is made from.
fn is_copied(volume: &VolumeRestore) -> bool {
    let content = volume.volume_snapshot_name.strip_suffix(&copy_name("", &volume.volume_name));
    content.is_some_and(|content| !content.is_empty())
}

fn copied<'a>(world: &World<'a>) -> impl Iterator<Item = &'a VolumeRestore> {
    let restores = world.restore.status.iter().flat_map(|status| &status.restores);
    restores.into_iter().filter(|volume| is_copied(volume))
}

/// What is to be copied; nothing when nothing is.
fn job<'a>(world: &World<'a>, held: &Held<'a>) -> Result<Option<Job<'a>>, Stop> {
    let mut pairs = Vec::new();
    for volume in copied(world) {
        let Origin::Copy(copy) = claims::origin(world, held, volume)? else { continue };
        let mut backups = held.content.spec.volume_backups.iter();
        let backup = backups.find(|backup| backup.volume_name == volume.volume_name);
        let name = &volume.persistent_volume_claim_name;
        let target = classes::claim(world.view, world.restore.namespace(), name);
        let target = target.ok_or_else(|| Stop::ForNow(format!("PersistentVolumeClaim {name} is not there")))?;
        pairs.push(Pair {
            source: copy.name().to_owned(),
            target: volume.persistent_volume_claim_name.clone(),
            target_uid: target.uid().to_owned(),
            place: backup.map_or(Place::Disk, |backup| copies::place(held.content, backup)),
        });
    }
    let machine = claims::machine(held)?.spec.template.as_ref().map(|template| &template.spec);
    let uid = world.vm.map_or(world.restore.uid(), |vm| vm.uid());
    let name = copying_pod_name(uid);
    Ok((!pairs.is_empty()).then_some(Job { name, purpose: Purpose::Restore, pairs, machine }))
}

/// The next step to having the claims filled; nothing when they are.
pub(super) fn fill(world: &World<'_>, held: &Held<'_>) -> Result<Option<Plan>, Stop> {
    let Some(job) = job(world, held)? else { return Ok(None) };
    let waits = |plan: Plan| Some(plan.then(under_way(world, true, "Filling new PVCs", "Waiting for new PVCs")));
    Ok(match job.stage(world.restore, world.view) {
        Stage::Done => None,
        Stage::Running(_, None) => waits(Plan::none()),
        Stage::Running(pod, Some(why)) if copies::is_hopeless(pod) => {
            return Err(Stop::ForGood { why, while_there: Some(Box::new(Premise::unchanged(pod))) });
        }
        Stage::Running(_, Some(trouble)) => Some(encountered(world, &trouble)),
        Stage::Absent => {
            let message = format!("Successfully created Pod {} that fills PVCs", job.name);
            let event = EventRecord::normal(world.restore, "SuccessfulCopyingPodCreate", message);
            let create = Plan::none().create(&job.pod(world.restore, world.image));
            let create = create.resting_on(&Premise::present(held.content));
            waits(claims::while_off(world, create).told(event))
        }
        Stage::Foreign => {
            return Err(Stop::ForNow(format!("pod {} is there, and copies for somebody else", job.name)));
        }
        Stage::Useless(pod) => {
            let why = copies::trouble(pod).unwrap_or_else(|| format!("copying pod {} came to nothing", job.name));
            let left = copies::pause_left(pod, world.restore, world.now);
            if !left.is_zero() {
                return Ok(Some(encountered(world, &why).requeue_after(left)));
            }
            Some(copies::remove(pod).then(encountered(world, &why)))
        }
    })
}

/// Claims that the target names and that this restore made in the place of what was there, but has not filled: a machine that
/// started would have blank disks. What is made from a VolumeSnapshot is never blank.
pub(super) fn blank<'a>(world: &World<'a>) -> Vec<&'a PersistentVolumeClaim> {
    let World { restore, vm, .. } = *world;
    if restore.is_complete() || vm.is_some_and(|vm| is_by(restore, vm)) {
        return Vec::new();
    }
    let is_copied =
        |claim: &PersistentVolumeClaim| copied(world).any(|volume| volume.persistent_volume_claim_name == claim.name());
    let is_filled = |claim: &PersistentVolumeClaim| claim.annotation(FILLED_ANNOTATION) == Some(mark(restore).as_str());
    let named = claims::own(world).filter(|claim| claims::is_used(world, claim.name()));
    named.filter(|claim| is_copied(claim) && !is_filled(claim)).collect()
}

/// The next step to having no pod; nothing when there is none, as far as the cache knows. What the pod alone could say, that
/// claims of a machine which was not changed yet are filled, is written on them first.
pub(super) fn clear(world: &World<'_>) -> Option<Plan> {
    let pod = world.view.cache::<Pod>().by_owner(world.restore.uid()).next()?;
    if copies::has_succeeded(pod) {
        let filled = json!({"metadata": {"annotations": {FILLED_ANNOTATION: mark(world.restore)}}});
        let open = blank(world).into_iter().filter(|claim| !claim.is_deleting());
        let plan = open.fold(Plan::none(), |plan, claim| plan.patch(claim, filled.clone()));
        if !plan.is_none() {
            return Some(plan);
        }
    }
    Some(copies::remove(pod))
}

/// Makes sure that there is none, if there can have been one.
pub(super) fn confirm_cleared(world: &World<'_>) -> Plan {
    if copied(world).next().is_none() {
        return Plan::none();
    }
    let names = uids(world).map(copying_pod_name);
    names.fold(Plan::none(), |plan, name| plan.then(copies::confirm_none(world.restore, &name)))
}
