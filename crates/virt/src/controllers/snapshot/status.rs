//! What a snapshot says of itself: from its content, its source, and the time.

use carrack_engine::View;
use carrack_types::kubevirt::VirtualMachineSnapshotContent;
use carrack_types::kubevirt::snapshot::{
    Error, SnapshotVolumes, SourceIndication, VirtualMachineSnapshotStatus, indication, phase,
};
use carrack_types::resource::Object as _;

use super::World;
use super::classes;
use super::conditions::{failure, progressing, ready};
use super::source::Source;
use crate::identity::state_volume_name;

/// What a guest's agent says when Windows thaws by itself before it is told to.
const FREEZE_LIMIT: &str = "fsfreeze is limited";
/// Why a snapshot failed that took too long.
pub(super) const DEADLINE: &str = "snapshot deadline exceeded";

/// What the decision of this turn adds to what is there.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// It is over: why.
    pub failed: Option<String>,
    /// Why the source is not locked, or that it is.
    pub lock: String,
    /// What keeps it from going on.
    pub problem: Option<String>,
}

/// The status as it should be.
pub(super) fn compute(world: &World<'_>, turn: &Turn) -> VirtualMachineSnapshotStatus {
    let World { snapshot, content, source, now, .. } = world;
    let mut status = snapshot.status.clone().unwrap_or_default();
    status.ready_to_use.get_or_insert(false);
    if let Some(source) = source {
        status.source_uid.get_or_insert_with(|| source.vm.uid().to_owned());
    }
    match content.and_then(|content| Some((content, content.status.as_ref()?))) {
        Some((content, is)) => {
            status.virtual_machine_snapshot_content_name = content.metadata.name.clone();
            status.creation_time.clone_from(&is.creation_time);
            status.ready_to_use = is.ready_to_use;
            status.error.clone_from(&is.error);
        }
        None if snapshot.is_progressing() => status.error = error(status.error.take(), turn.problem.as_deref(), world),
        None => {}
    }
    let progress = if let Some(why) = turn.failed.as_deref() {
        phase::FAILED.clone_into(&mut status.phase);
        failure(&mut status.conditions, why, *now);
        (false, "Operation failed")
    } else if snapshot.has_failed() {
        (false, "Operation failed")
    } else if snapshot.has_succeeded() || status.creation_time.is_some() {
        phase::SUCCEEDED.clone_into(&mut status.phase);
        if let Some(content) = content {
            volumes(content, source.as_ref(), world.view, &mut status);
        }
        (false, "Operation complete")
    } else if snapshot.is_deleting() {
        phase::DELETING.clone_into(&mut status.phase);
        (false, "VM snapshot is deleting")
    } else {
        phase::IN_PROGRESS.clone_into(&mut status.phase);
        match source {
            Some(source) => {
                indications(source, &mut status);
                (source.is_locked_by(snapshot.name()), turn.lock.as_str())
            }
            None => (false, "Source does not exist"),
        }
    };
    // What failed says why in its own condition. This one is set once: set and taken back, its time would be that of
    // each look, and it would be written each time.
    let in_error = status.error.is_some() && status.phase != phase::FAILED;
    let (is, why) = if in_error { (false, "In error state") } else { progress };
    progressing(&mut status.conditions, is, why, *now);
    let is_ready = status.ready_to_use == Some(true);
    ready(&mut status.conditions, is_ready, if is_ready { "Ready" } else { "Not ready" }, *now);
    status
}

/// An error as it was, if it is the same.
fn error(old: Option<Error>, message: Option<&str>, world: &World<'_>) -> Option<Error> {
    let message = message?;
    let same = old.filter(|old| old.message.as_deref() == Some(message));
    same.or_else(|| Some(Error { time: Some(world.now.meta()), message: Some(message.to_owned()) }))
}

/// How the snapshot is taken. What has been said once stays: the guest may be frozen no more when the next look comes.
fn indications(source: &Source<'_>, status: &mut VirtualMachineSnapshotStatus) {
    if !source.is_online() {
        status.indications.clear();
        status.source_indications.clear();
        return;
    }
    let mut all = std::mem::take(&mut status.indications);
    all.push(indication::ONLINE.to_owned());
    if source.is_paused() {
        all.push(indication::PAUSED.to_owned());
    } else if source.has_agent() {
        all.push(indication::GUEST_AGENT.to_owned());
        let said = status.error.as_ref().and_then(|error| error.message.as_deref());
        if said.is_some_and(|said| said.contains(FREEZE_LIMIT)) {
            all.push(indication::QUIESCE_TIMEOUT.to_owned());
        }
    } else {
        all.push(indication::NO_GUEST_AGENT.to_owned());
    }
    set_indications(all, status);
}

fn set_indications(mut all: Vec<String>, status: &mut VirtualMachineSnapshotStatus) {
    all.sort();
    all.dedup();
    status.source_indications = all
        .iter()
        .map(|name| SourceIndication { indication: name.clone(), message: meaning(name).to_owned() })
        .collect();
    status.indications = all;
}

/// What an indication means, in KubeVirt's words.
fn meaning(name: &str) -> &'static str {
    match name {
        indication::ONLINE => "Snapshot taken while the VM was running. Consistency depends on guest-agent quiescing.",
        indication::GUEST_AGENT => {
            "Guest agent was active and attempted to quiesce the filesystem for application consistency."
        }
        indication::NO_GUEST_AGENT => {
            "Guest agent was not available. Snapshot is crash-consistent and may not be application-consistent."
        }
        indication::QUIESCE_TIMEOUT => {
            "Guest agent quiesced the filesystem, but the freeze window timed out before completion. Snapshot is \
             crash-consistent and may not be application-consistent."
        }
        indication::PAUSED => {
            "Snapshot taken while the VM was paused. Snapshot is crash-consistent and may not be application-consistent."
        }
        indication::PARTIAL_SNAPSHOT => {
            "Not all snapshotable volumes were included in the snapshot. Check status.snapshotVolumes for excluded \
             volumes and VM VolumeSnapshotStatus for details."
        }
        _ => "Unknown indication",
    }
}

/// Which of the machine's volumes are in the snapshot, what it keeps beside them among them. What was said once stays: what the machine
/// has afterwards is of no account.
fn volumes(
    content: &VirtualMachineSnapshotContent,
    source: Option<&Source<'_>>,
    view: &View<'_>,
    status: &mut VirtualMachineSnapshotStatus,
) {
    if status.snapshot_volumes.is_some() {
        return;
    }
    let vm = content.spec.source.virtual_machine.as_ref();
    let volumes = vm.and_then(|vm| vm.spec.template.as_ref()).map_or(&[][..], |template| &template.spec.volumes);
    let is_in = |name: &str| content.spec.volume_backups.iter().any(|backup| backup.volume_name == name);
    let (included, excluded): (Vec<_>, Vec<_>) = volumes.iter().partition(|volume| is_in(&volume.name));
    let names = |some: &[&carrack_types::kubevirt::Volume]| -> Vec<String> {
        some.iter().map(|volume| volume.name.clone()).collect()
    };
    let (mut included, mut left_out, mut partial) =
        (names(&included), names(&excluded), excluded.iter().any(|volume| classes::snapshottable(volume).is_some()));
    let state = state_volume_name(vm.and_then(|vm| vm.metadata.as_ref()?.name.as_deref()).unwrap_or_default());
    let has_state =
        || source.is_some_and(|source| classes::state_claim(source.vm, view).is_some_and(classes::is_bound));
    if !volumes.iter().any(|volume| volume.name == state) {
        if is_in(&state) {
            included.push(state);
        } else if has_state() {
            left_out.push(state);
            partial = true;
        }
    }
    status.snapshot_volumes = Some(SnapshotVolumes { included_volumes: included, excluded_volumes: left_out });
    if partial {
        let mut all = std::mem::take(&mut status.indications);
        all.push(indication::PARTIAL_SNAPSHOT.to_owned());
        set_indications(all, status);
    }
}
