//! The last step: the target is there; and what becomes of the clone when it is not any more.

use carrack_engine::{EventRecord, Plan, derived_suffix};
use carrack_types::kubevirt::clone::{names, phase};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineClone, VirtualMachineCloneStatus};
use carrack_types::resource::{Kind as _, Object};

use super::{Planted, World, cleanup};
use crate::admission::target_name;

/// The target's name. Admission gives one to every clone; where there is none, it follows from the clone's UID.
pub(super) fn name(clone: &VirtualMachineClone) -> String {
    let given = clone.spec.target.as_ref().map(|target| target.name.as_str()).unwrap_or_default();
    if !given.is_empty() {
        return given.to_owned();
    }
    let source = clone.spec.source.as_ref().map(|source| source.name.as_str()).unwrap_or_default();
    target_name(source, &derived_suffix(&[clone.uid(), names::MACHINE], 5))
}

/// The name that a restore is made for.
pub(super) fn choose(world: &World<'_>) -> String {
    let given = world.clone.spec.target.as_ref().is_some_and(|target| !target.name.is_empty());
    match world.planted {
        Some(Planted::TargetDrawnLate) if !given => {
            let source = world.clone.spec.source.as_ref().map(|source| source.name.clone()).unwrap_or_default();
            target_name(&source, &derived_suffix(&[&world.now.0.to_string()], 5))
        }
        _ => name(world.clone),
    }
}

/// The restore is done, so the target was there: the clone has succeeded once it is seen. `said` is the status with what the
/// restore says of its target.
pub(super) fn appear(world: &World<'_>, said: &VirtualMachineCloneStatus) -> Plan {
    let clone = world.clone;
    let name = match world.planted {
        Some(Planted::TargetDrawnLate) => {
            clone.spec.target.as_ref().map(|target| target.name.clone()).unwrap_or_default()
        }
        _ => said.target_name.clone().unwrap_or_else(|| name(clone)),
    };
    let known = clone.phase() == phase::CREATING_TARGET_VM;
    let restored =
        format!("restore {} for clone {} is ready to use", said.restore_name.clone().unwrap_or_default(), clone.name());
    let restored = (!known).then(|| EventRecord::normal(clone, "RestoreReady", restored));
    let note = world.report().with(|status| status.target_name = said.target_name.clone());
    if world.view.get::<VirtualMachine>(world.namespace(), &name).is_some() {
        let created = format!("created target VM {name} for clone {}", clone.name());
        let created = EventRecord::normal(clone, "TargetVMCreated", created);
        return restored.into_iter().chain([created]).fold(note.succeeded().plan(), Plan::told);
    }
    if !known {
        return restored.into_iter().fold(note.working(phase::CREATING_TARGET_VM).plan(), Plan::told);
    }
    if world.planted == Some(Planted::TargetDrawnLate) {
        return Plan::failed(format!("target VM {name} is not created yet for clone {}", clone.name()));
    }
    leave(world, &name)
}

/// The target was deleted, and the clone goes after it.
fn leave(world: &World<'_>, name: &str) -> Plan {
    Plan::none().confirm_absent(&VirtualMachine::resource(), world.key(name), "").delete(world.clone)
}

/// Clears up after a clone that has succeeded; deletes the clone when its target is gone.
pub(super) fn keep(world: &World<'_>) -> Plan {
    let name = world.status.target_name.clone().unwrap_or_else(|| name(world.clone));
    if world.view.get::<VirtualMachine>(world.namespace(), &name).is_none() {
        return leave(world, &name);
    }
    cleanup::clear(world)
}
