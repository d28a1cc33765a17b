//! The second step: the snapshot is restored to the target.

use carrack_engine::{EventRecord, Plan};
use carrack_types::kubevirt::clone::{self, names, phase};
use carrack_types::kubevirt::snapshot::names::LAST_RESTORE_ANNOTATION;
use carrack_types::kubevirt::snapshot::{TypedLocalReference, VirtualMachineRestoreSpec};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
};
use carrack_types::resource::{Kind as _, Object};
use carrack_types::well_known::kubevirt;

use super::snapshot::may_lack_state;
use super::{Child, World, child, patches, target};

/// Has a restore of this snapshot.
pub(super) fn ensure(
    world: &World<'_>,
    snapshot: &VirtualMachineSnapshot,
    content: &VirtualMachineSnapshotContent,
) -> Plan {
    let clone = world.clone;
    let target = target::choose(world);
    if let Some(vm) = stranger(world, &target, content) {
        return taken(world, vm);
    }
    let spec = spec(world, snapshot.name(), target, content);
    match &world.restore {
        Child::Own(found) if child::is_made_as(world, *found, &spec) => record(world, Some(snapshot)),
        Child::Own(found) => child::refuse(world, *found),
        _ => {
            let name = clone::restore_name(clone.uid());
            let restore =
                VirtualMachineRestore { metadata: child::metadata(clone, name.clone(), &spec), spec, status: None };
            let ready = format!("snapshot {} for clone {} is ready to use", snapshot.name(), clone.name());
            let created = format!("created restore {name} for clone {}", clone.name());
            let mut events = vec![
                EventRecord::normal(clone, "SnapshotReady", ready),
                EventRecord::normal(clone, "RestoreCreated", created),
            ];
            if may_lack_state(content) {
                let message = format!(
                    "snapshot {} is older than the note of whether it has what the machine's firmware keeps; the target may begin without that",
                    snapshot.name()
                );
                events.push(EventRecord::warning(clone, "StateUnknown", message));
            }
            world.create(&restore, events)
        }
    }
}

/// What the restore is to be. It follows from the clone and from the snapshot's content, neither of which changes.
fn spec(
    world: &World<'_>,
    snapshot: &str,
    target: String,
    content: &VirtualMachineSnapshotContent,
) -> VirtualMachineRestoreSpec {
    let machine = content.spec.source.virtual_machine.clone().unwrap_or_default();
    VirtualMachineRestoreSpec {
        target: TypedLocalReference {
            api_group: Some(kubevirt::GROUP.to_owned()),
            kind: names::MACHINE.to_owned(),
            name: target,
        },
        virtual_machine_snapshot_name: snapshot.to_owned(),
        volume_restore_policy: world.clone.spec.volume_name_policy.clone(),
        patches: patches::of(&world.clone.spec, &machine),
        ..VirtualMachineRestoreSpec::default()
    }
}

/// A machine that has the target's name and is another one: neither made by this clone's restore, nor the machine of which
/// the snapshot is, which a restore may make what it was.
fn stranger<'a>(
    world: &World<'a>,
    target: &str,
    content: &VirtualMachineSnapshotContent,
) -> Option<&'a VirtualMachine> {
    let vm = world.view.get::<VirtualMachine>(world.namespace(), target)?;
    let restored = format!("{}-", clone::restore_name(world.clone.uid()));
    let is_own = vm.annotation(LAST_RESTORE_ANNOTATION).is_some_and(|by| by.starts_with(&restored));
    let source = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.metadata.as_ref());
    let is_source = source.and_then(|metadata| metadata.uid.as_deref()) == Some(vm.uid());
    (!is_own && !is_source).then_some(vm)
}

fn taken(world: &World<'_>, vm: &VirtualMachine) -> Plan {
    let message = format!("target VM {} of clone {} is there already", vm.name(), world.clone.name());
    world.fail(Plan::none().confirm_unchanged(vm), "RestoreCreationFailed", &message)
}

/// Goes on with a restore that is there, and is known to be the clone's own.
pub(super) fn follow(world: &World<'_>, restore: &VirtualMachineRestore) -> Plan {
    if restore.is_complete() {
        let status = &world.status;
        return target::appear(world, &clone_status(status, restore));
    }
    if restore.has_failed() {
        let conditions = restore.status.iter().flat_map(|status| &status.conditions);
        let why = conditions.into_iter().find(|condition| condition.r#type == "Failure");
        let why = why.map(|condition| format!("{} {}", condition.reason, condition.message)).unwrap_or_default();
        let message = format!("restore {} failed: {}", restore.name(), why.trim());
        return world.fail(
            Plan::none().confirm_unchanged(restore),
            "RestoreFailed",
            message.trim_end_matches([':', ' ']),
        );
    }
    let name = &restore.spec.virtual_machine_snapshot_name;
    let Some(snapshot) = world.view.get::<VirtualMachineSnapshot>(world.namespace(), name) else {
        let proof = Plan::none().confirm_absent(&VirtualMachineSnapshot::resource(), world.key(name), "");
        return world.fail(proof, "SnapshotDeleted", &format!("snapshot {name} does not exist anymore"));
    };
    let content = snapshot.status.as_ref().and_then(|status| {
        let name = status.virtual_machine_snapshot_content_name.as_deref()?;
        world.view.get::<VirtualMachineSnapshotContent>(world.namespace(), name)
    });
    if let Some(content) = content
        && let Some(vm) = stranger(world, &restore.spec.target.name, content)
    {
        return taken(world, vm);
    }
    record(world, None)
}

/// The status with what a restore says of its target.
fn clone_status(
    status: &carrack_types::kubevirt::VirtualMachineCloneStatus,
    restore: &VirtualMachineRestore,
) -> carrack_types::kubevirt::VirtualMachineCloneStatus {
    let target_name = Some(restore.spec.target.name.clone());
    carrack_types::kubevirt::VirtualMachineCloneStatus { target_name, ..status.clone() }
}

/// Somebody has deleted the restore before it was done.
pub(super) fn lost(world: &World<'_>) -> Plan {
    let name = clone::restore_name(world.clone.uid());
    let proof = Plan::none().confirm_absent(&VirtualMachineRestore::resource(), world.key(&name), "");
    world.fail(proof, "RestoreDeleted", &format!("restore {name} does not exist anymore"))
}

/// Notes that a restore is being waited for.
fn record(world: &World<'_>, of: Option<&VirtualMachineSnapshot>) -> Plan {
    let own = world.clone.source_of(names::SNAPSHOT).is_none();
    let note = world.report().working(phase::RESTORE_IN_PROGRESS).with(|status| {
        status.restore_name = Some(clone::restore_name(world.clone.uid()));
        if own && let Some(snapshot) = of {
            status.snapshot_name = snapshot.metadata.name.clone();
        }
    });
    note.plan()
}
