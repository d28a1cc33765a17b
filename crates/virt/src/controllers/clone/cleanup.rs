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
        Some(Planted::NamesClearedEarly | Planted::RestoreNotCreatedYet | Planted::RandomNames) if kept => {
            hastily(world)
        }
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
        let left: Vec<&String> =
            clone.metadata.finalizers.iter().flatten().filter(|finalizer| *finalizer != names::FINALIZER).collect();
        plan.patch(clone, json!({"metadata": {"finalizers": left}}))
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

/// Upstream's way, which the simulator plants: both are deleted at one go, and known by the names in the status alone.
fn hastily(world: &World<'_>) -> Plan {
    let (clone, status) = (world.clone, &world.status);
    let Some(name) = &status.restore_name else { return Plan::none() };
    let restore = match world.restore {
        Child::Own(restore) => restore,
        _ if world.planted == Some(Planted::RandomNames) => return cleared(world, Plan::none()),
        _ => return Plan::failed(format!("restore {name} is not created yet for clone {}", clone.name())),
    };
    let claims =
        restore.status.iter().flat_map(|status| &status.restores).map(|made| &made.persistent_volume_claim_name);
    let mut claims = claims.filter_map(|name| world.view.get::<PersistentVolumeClaim>(world.namespace(), name));
    if claims.any(|claim| is_pending(claim)) {
        return Plan::none();
    }
    let delete = |mut plan: Plan| {
        plan = plan.delete(restore);
        if let Child::Own(snapshot) = world.snapshot {
            plan = plan.delete(snapshot);
        }
        plan
    };
    if world.planted == Some(Planted::NamesClearedEarly) {
        return delete(cleared(world, Plan::none()));
    }
    cleared(world, delete(Plan::none()))
}

fn cleared(world: &World<'_>, plan: Plan) -> Plan {
    plan.patch_status(world.clone, json!({"status": {"snapshotName": null, "restoreName": null}}))
}
