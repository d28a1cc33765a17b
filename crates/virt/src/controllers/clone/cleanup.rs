//! Takes away what was made for a clone, and forgets it only when it is proved gone.
//!
//! ```text
//!   restore ──claims bound──▶ deleted ──gone──▶ snapshot deleted ──gone──▶ live reads ──▶ names cleared, finalizer away
//! ```
//!
//! What is there is looked for under the derived names, whatever the status says: so a child that came late is found,
//! and a status that was lost costs nothing. The snapshot goes only when a live read shows no restore. A restore that is
//! done stays until all its claims are bound: they are made from the snapshot.

use carrack_engine::{EventRecord, Plan, Premise};
use carrack_types::kubevirt::clone::{self, names, phase};
use carrack_types::kubevirt::{VirtualMachineRestore, VirtualMachineSnapshot};
use carrack_types::resource::{Kind, Object as _};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::{Child, Planted, World};

/// One step.
pub(super) fn clear(world: &World<'_>) -> Plan {
    let kept = world.clone.phase() == phase::SUCCEEDED && !world.clone.is_deleting();
    match world.planted {
        Some(Planted::NamesClearedEarly | Planted::RestoreNotCreatedYet) if kept => hastily(world),
        _ => carefully(world),
    }
}

fn carefully(world: &World<'_>) -> Plan {
    if let Child::Own(restore) = world.restore {
        return take_away(world, restore);
    }
    let restore_gone = absent::<VirtualMachineRestore>(world, Plan::none(), clone::restore_name(world.clone.uid()));
    if let Child::Own(snapshot) = world.snapshot {
        return if snapshot.is_deleting() { Plan::none() } else { restore_gone.delete(snapshot) };
    }
    forget(world, restore_gone)
}

/// Goes on only if the clone has no such child, by a live read.
fn absent<K: Kind>(world: &World<'_>, plan: Plan, name: String) -> Plan {
    plan.confirm_no_child(&K::resource(), world.key(name), world.clone.uid())
}

/// Deletes a restore, unless claims are still being made from its snapshot.
fn take_away(world: &World<'_>, restore: &VirtualMachineRestore) -> Plan {
    if restore.is_deleting() {
        return Plan::none();
    }
    if !restore.is_complete() {
        return Plan::none().delete(restore);
    }
    let mut plan = Plan::none();
    for made in restore.status.iter().flat_map(|status| &status.restores) {
        let name = &made.persistent_volume_claim_name;
        match world.view.get::<PersistentVolumeClaim>(world.namespace(), name) {
            Some(claim) if is_pending(claim) => return Plan::none(),
            Some(_) => {}
            // One that was deleted needs no snapshot any more.
            None => plan = plan.confirm_absent(&PersistentVolumeClaim::resource(), world.key(name), ""),
        }
    }
    let message = format!("all PVC for clone {} are bound", world.clone.name());
    plan.delete(restore).told(EventRecord::normal(world.clone, "PVCBound", message))
}

fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    !claim.is_deleting() && !matches!(phase, Some("Bound" | "Lost"))
}

/// Both are gone, as far as caches know: what names them is cleared once live reads have said so.
fn forget(world: &World<'_>, restore_gone: Plan) -> Plan {
    let (clone, status) = (world.clone, &world.status);
    let (snapshot, restore) = (clone::snapshot_name(clone.uid()), clone::restore_name(clone.uid()));
    let named = status.snapshot_name.is_some() || status.restore_name.is_some();
    if !clone.is_deleting() && !named {
        return Plan::none();
    }
    let mut plan = absent::<VirtualMachineSnapshot>(world, restore_gone, snapshot.clone());
    plan = if clone.is_deleting() {
        plan.without_finalizer(clone, names::FINALIZER)
    } else {
        plan.patch_status(clone, json!({"status": {"snapshotName": null, "restoreName": null}}))
    };
    // In the same transaction, besides; where a stranger has a name, the live read is all there is.
    if matches!(world.snapshot, Child::Absent) {
        plan = plan.resting_on(&Premise::absent(&VirtualMachineSnapshot::resource(), world.key(snapshot)));
    }
    if matches!(world.restore, Child::Absent) {
        plan = plan.resting_on(&Premise::absent(&VirtualMachineRestore::resource(), world.key(restore)));
    }
    plan
}

/// Upstream's way, which the simulator plants: both are deleted at one go, and a restore that is not there is waited for.
fn hastily(world: &World<'_>) -> Plan {
    let (clone, early) = (world.clone, world.planted == Some(Planted::NamesClearedEarly));
    if world.status.restore_name.is_none() {
        return Plan::none();
    }
    let Child::Own(restore) = world.restore else {
        return match world.snapshot {
            Child::Own(_) => Plan::failed(format!("the restore is not created yet for clone {}", clone.name())),
            _ => carefully(world),
        };
    };
    let delete = take_away(world, restore);
    if delete.is_none() {
        return delete;
    }
    let delete = match world.snapshot {
        Child::Own(snapshot) => delete.delete(snapshot),
        _ => delete,
    };
    if early {
        let clear = json!({"status": {"snapshotName": null, "restoreName": null}});
        return Plan::none().patch_status(clone, clear).then(delete);
    }
    delete
}
