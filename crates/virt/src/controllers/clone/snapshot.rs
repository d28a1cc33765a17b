//! The first step: a snapshot of the source that can be restored.

use carrack_engine::{EventRecord, Plan, derived_suffix};
use carrack_types::kubevirt::clone::{self, names, phase};
use carrack_types::kubevirt::snapshot::names::LEFT_OUT_ANNOTATION;
use carrack_types::kubevirt::snapshot::{TypedLocalReference, VirtualMachineSnapshotSpec, VolumeBackup, content_name};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineSnapshot, VirtualMachineSnapshotContent, VirtualMachineSpec,
};
use carrack_types::resource::{Kind as _, Object};
use carrack_types::well_known::kubevirt;

use super::{Child, Planted, World, child, restore};
use crate::controllers::copies;
use crate::identity::{keeps_state, state_volume_name};

/// Has a snapshot, and goes on with it once it can be restored.
pub(super) fn ensure(world: &World<'_>) -> Plan {
    match world.clone.source_of(names::SNAPSHOT) {
        Some(name) => of_snapshot(world, name),
        None => of_machine(world),
    }
}

/// The source is a snapshot.
fn of_snapshot(world: &World<'_>, name: &str) -> Plan {
    let namespace = world.namespace();
    let Some(snapshot) = world.view.get::<VirtualMachineSnapshot>(namespace, name) else {
        let begun = !matches!(world.clone.phase(), phase::UNSET | phase::SNAPSHOT_IN_PROGRESS);
        if begun {
            return gone(world, name);
        }
        return world
            .wait("SourceDoesNotExist", &format!("Source doesnt exist: {} {namespace}/{name}", names::SNAPSHOT));
    };
    follow(world, snapshot)
}

/// The source is a machine.
fn of_machine(world: &World<'_>) -> Plan {
    let source = world.clone.source_of(names::MACHINE).unwrap_or_default();
    let spec = spec(source);
    match (&world.snapshot, &world.status.snapshot_name) {
        (Child::Own(found), recorded) => {
            if recorded.is_none() && !child::is_made_as(world, *found, &spec) {
                return child::refuse(world, *found);
            }
            follow(world, found)
        }
        (_, Some(name)) => gone(world, name),
        (_, None) => take(world, source, spec),
    }
}

/// What the snapshot is to be.
fn spec(source: &str) -> VirtualMachineSnapshotSpec {
    VirtualMachineSnapshotSpec {
        source: TypedLocalReference {
            api_group: Some(kubevirt::GROUP.to_owned()),
            kind: names::MACHINE.to_owned(),
            name: source.to_owned(),
        },
        ..VirtualMachineSnapshotSpec::default()
    }
}

/// Somebody has deleted the snapshot.
fn gone(world: &World<'_>, name: &str) -> Plan {
    let resource = VirtualMachineSnapshot::resource();
    let proof = Plan::none().confirm_absent(&resource, world.key(name), "");
    world.fail(proof, "SnapshotDeleted", &format!("snapshot {name} does not exist anymore"))
}

/// Takes the snapshot, if the source is there and can be snapshotted.
fn take(world: &World<'_>, source: &str, spec: VirtualMachineSnapshotSpec) -> Plan {
    let (clone, namespace) = (world.clone, world.namespace());
    let machine = world.view.get::<VirtualMachine>(namespace, source).filter(|vm| !vm.is_deleting());
    let Some(machine) = machine else {
        let message = format!("Source doesnt exist: {} {namespace}/{source}", names::MACHINE);
        return world.wait("SourceDoesNotExist", &message);
    };
    if let Some(message) = unsupported(world, machine) {
        return world.wait("VMVolumeSnapshotsInvalid", &message);
    }
    let name = match world.planted {
        Some(Planted::RandomNames) => {
            let drawn = derived_suffix(&[clone.uid(), &world.now.0.to_string()], 5);
            format!("clone-{}-snapshot-{source}-{drawn}", clone.name())
        }
        _ => clone::snapshot_name(clone.uid()),
    };
    let snapshot = VirtualMachineSnapshot { metadata: child::metadata(clone, name.clone(), &spec), spec, status: None };
    let message = format!("created snapshot {name} for clone {}", clone.name());
    let plan = world.create(&snapshot, vec![EventRecord::normal(clone, "SnapshotCreated", message)]);
    if world.planted == Some(Planted::RandomNames) {
        return plan.then(record(world, &snapshot));
    }
    plan
}

/// Volumes of claims, by name.
pub(super) fn of_claims(spec: &VirtualMachineSpec) -> impl Iterator<Item = &str> {
    let volumes = spec.template.iter().flat_map(|template| &template.spec.volumes);
    let of_claim = volumes.filter(|volume| volume.persistent_volume_claim.is_some() || volume.data_volume.is_some());
    of_claim.map(|volume| volume.name.as_str())
}

/// The volume that stands for what a machine keeps beside its volumes, by name; none where it has one of that name.
fn of_state(world: &World<'_>, machine: &VirtualMachine) -> Option<String> {
    let name = Some(state_volume_name(machine.name())).filter(|_| world.planted != Some(Planted::StateUnminded))?;
    let mut volumes = machine.spec.template.iter().flat_map(|template| &template.spec.volumes);
    (!volumes.any(|volume| volume.name == name)).then_some(name)
}

/// Why the volumes of a machine, and what it keeps beside them, cannot all be snapshotted.
fn unsupported(world: &World<'_>, machine: &VirtualMachine) -> Option<String> {
    let statuses = machine.status.as_ref().map_or(&[][..], |status| &status.volume_snapshot_statuses);
    let wrong = |name: &str| match statuses.iter().find(|status| status.name == name) {
        Some(status) if status.enabled => None,
        Some(_) => Some(format!("Virtual Machine volume {name} does not support snapshots")),
        None => Some(format!("Virtual Machine volume {name} snapshot support unknown")),
    };
    // Not every machine keeps something.
    let state = of_state(world, machine);
    let state = state.as_deref().filter(|name| statuses.iter().any(|status| status.name == *name));
    let all: Vec<String> = of_claims(&machine.spec).chain(state).filter_map(wrong).collect();
    (!all.is_empty()).then(|| all.join("\n"))
}

/// Goes on with a snapshot that is there.
fn follow(world: &World<'_>, snapshot: &VirtualMachineSnapshot) -> Plan {
    if snapshot.has_failed() {
        let error = snapshot.status.as_ref().and_then(|status| status.error.as_ref()?.message.clone());
        let message = format!("snapshot {} failed: {}", snapshot.name(), error.unwrap_or_default());
        return world.fail(
            Plan::none().confirm_unchanged(snapshot),
            "SnapshotFailed",
            message.trim_end_matches([':', ' ']),
        );
    }
    // One that is being deleted is gone soon, and that is looked at then.
    if !snapshot.is_ready() || snapshot.is_deleting() {
        return record(world, snapshot);
    }
    let in_status = snapshot.status.as_ref().and_then(|status| status.virtual_machine_snapshot_content_name.clone());
    let name = in_status.unwrap_or_else(|| content_name(snapshot.uid()));
    let Some(content) = world.view.get::<VirtualMachineSnapshotContent>(world.namespace(), &name) else {
        let proof = match world.planted {
            Some(Planted::CacheMissIsTerminal) => Plan::none(),
            _ => Plan::none().confirm_absent(&VirtualMachineSnapshotContent::resource(), world.key(&name), ""),
        };
        let message = format!("snapshot content {name} in namespace {} does not exist", world.namespace());
        return world.fail(proof, "SnapshotContentInvalid", &message);
    };
    if let Some(message) = invalid(world, content) {
        return world.fail(Plan::none().confirm_unchanged(content.as_ref()), "SnapshotContentInvalid", &message);
    }
    restore::ensure(world, snapshot, content)
}

/// Why a content cannot be restored to another machine.
fn invalid(world: &World<'_>, content: &VirtualMachineSnapshotContent) -> Option<String> {
    let Some(of) = &content.spec.virtual_machine_snapshot_name else {
        return Some(format!("cannot get snapshot name from content {}", content.name()));
    };
    let Some(machine) = &content.spec.source.virtual_machine else {
        return Some(format!("there is no machine in content {}", content.name()));
    };
    let is_in = |name: &str| content.spec.volume_backups.iter().any(|backup| backup.volume_name == name);
    let state = content.annotation(LEFT_OUT_ANNOTATION).filter(|name| !name.is_empty());
    let state = state.filter(|_| world.planted != Some(Planted::StateUnminded));
    let missing = of_claims(&machine.spec).chain(state).filter(|name| !is_in(name));
    let all: Vec<String> = missing.map(|name| format!("volume {name} is not backed up in snapshot {of}")).collect();
    (!all.is_empty()).then(|| all.join("\n"))
}

/// Whether what a machine keeps beside its volumes may be missing in its content, which does not say so: one that is older than
/// that is noted.
pub(super) fn may_lack_state(content: &VirtualMachineSnapshotContent) -> bool {
    let template = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.spec.template.as_ref());
    let has = |backup: &VolumeBackup| copies::is_state(content, &backup.volume_name);
    content.annotation(LEFT_OUT_ANNOTATION).is_none()
        && template.is_some_and(|template| keeps_state(&template.spec.domain))
        && !content.spec.volume_backups.iter().any(has)
}

/// Notes that a snapshot is being waited for. The name of a source's snapshot is not noted: it is not the clone's own.
fn record(world: &World<'_>, snapshot: &VirtualMachineSnapshot) -> Plan {
    let own = world.clone.source_of(names::SNAPSHOT).is_none();
    let note = world.report().working(phase::SNAPSHOT_IN_PROGRESS);
    note.with(|status| {
        if own {
            status.snapshot_name = snapshot.metadata.name.clone();
        }
    })
    .plan()
}
