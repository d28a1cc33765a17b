//! Where an instance goes next: its phase, and the fields of its status that follow from its pod.

use std::collections::BTreeSet;

use carrack_engine::Time;
use carrack_types::data_volumes::DataVolume;
use carrack_types::kubevirt::domain::CpuTopology;
use carrack_types::kubevirt::vmi::{MemoryStatus, PhaseTransition, VirtualMachineInstanceStatus, VolumeStatus};
use carrack_types::kubevirt::{Quantity, Volume, phase};
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{COMPUTE_CONTAINER, NODE_NAME_LABEL};
use k8s_openapi::api::core::v1::{ContainerStatus, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::World;
use super::{pod, state};
use crate::controllers::Planted;
use crate::controllers::defined::{Found, find};
use crate::identity::filler_of;

/// What happens next.
pub(super) enum Next {
    /// Nothing.
    Stay,
    /// Another phase.
    Phase(&'static str),
    /// Accepted, and its pod is made, with the claim that keeps its state, if it needs one. (The pod's appearance moves the
    /// phase on.)
    CreatePod(Box<Pod>, Option<Box<PersistentVolumeClaim>>),
    /// Accepted, and a pod is made for which its claims get the volumes that are to be filled before it has its own.
    CreateConsumer(Box<Pod>, Option<Box<PersistentVolumeClaim>>),
    /// Accepted; something that it needs is not there yet.
    Wait(Obstacle),
}

impl Next {
    /// Whether it comes before there is a guest, with its pod made or about to be.
    pub fn is_scheduling(&self) -> bool {
        matches!(self, Self::CreatePod(..) | Self::Phase(phase::SCHEDULING | phase::SCHEDULED))
    }

    /// Whether a claim waits for a pod that uses it, before it is filled.
    pub fn is_consuming(&self) -> bool {
        matches!(self, Self::CreateConsumer(..) | Self::Wait(Obstacle::Unconsumed))
    }

    /// Whether the pod that uses claims before they are filled has nothing left to do. Some obstacles do not concern it, and while
    /// it is not known what fills a claim, it may have.
    pub fn is_done_with_consumer(&self) -> bool {
        !self.is_consuming() && !matches!(self, Self::Wait(Obstacle::NoNode | Obstacle::Spec(_) | Obstacle::Unread))
    }
}

/// Why an instance cannot get a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// A claim does not exist.
    ClaimMissing(String),
    /// A claim is a DataVolume's that is not filled.
    Unfilled,
    /// A claim is a DataVolume's, and DataVolumes have not been read yet.
    Unread,
    /// A claim is to be filled once it has a volume, which it gets for the pod that uses it by now.
    Unconsumed,
    /// No node has said that it can run instances.
    NoNode,
    /// The spec cannot be made into a pod.
    Spec(String),
}

/// Decides the next phase.
pub(super) fn next(world: &World<'_>) -> Next {
    let vmi = world.vmi;
    match vmi.phase() {
        phase::UNSET | phase::PENDING => unscheduled(world),
        phase::SCHEDULING => match world.pod() {
            None => Next::Phase(phase::FAILED),
            Some(_) if vmi.is_deleting() => Next::Phase(phase::FAILED),
            Some(pod) => with_pod(pod),
        },
        phase::SCHEDULED | phase::RUNNING => ended_by_report(world),
        _ => Next::Stay,
    }
}

/// Where the pod of an instance has got to that is not handed over yet.
fn with_pod(pod: &Pod) -> Next {
    // Nothing starts a container again that has ended, and the guest cannot do without it.
    if is_terminal(pod) || pod.is_deleting() || any_container_ended(pod) {
        return Next::Phase(phase::FAILED);
    }
    if all_containers_run(pod) { Next::Phase(phase::SCHEDULED) } else { Next::Stay }
}

fn unscheduled(world: &World<'_>) -> Next {
    let vmi = world.vmi;
    if vmi.is_deleting() {
        return Next::Phase(phase::FAILED);
    }
    if let Some(pod) = world.pod() {
        // That it has a pod may not have been told yet.
        return match with_pod(pod) {
            Next::Stay => Next::Phase(phase::SCHEDULING),
            next => next,
        };
    }
    // It is not filled any more, and who wants the machine tries anew. (Upstream: `updateStatus` in pkg/virt-controller/watch/vmi.)
    if world.data_volumes().any(DataVolume::has_failed) {
        return Next::Phase(phase::FAILED);
    }
    let mut blocks = BTreeSet::new();
    let mut is_awaited = false;
    for name in vmi.spec.volumes.iter().filter_map(Volume::claim_name) {
        let Some(claim) = world.claim(name) else { return Next::Wait(Obstacle::ClaimMissing(name.to_owned())) };
        match filled(world, claim) {
            _ if world.config.planted == Some(Planted::UnfilledDisksStart) => {}
            Filled::Yes => {}
            Filled::OnceConsumed => is_awaited = true,
            Filled::No => return Next::Wait(Obstacle::Unfilled),
            Filled::Unknown => return Next::Wait(Obstacle::Unread),
        }
        if claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
            blocks.insert(name);
        }
    }
    let nodes = world.view.cache::<Node>().iter().map(AsRef::as_ref);
    let Some(devices) = pod::devices_of(nodes) else {
        return Next::Wait(Obstacle::NoNode);
    };
    let state = match state::missing(world) {
        Ok(state) => state.map(Box::new),
        Err(obstacle) => return Next::Wait(obstacle),
    };
    match pod::build(vmi, &world.cluster(), &devices, &blocks, world.config) {
        Ok(pod) if is_awaited => consume(world, pod, state),
        Ok(pod) => Next::CreatePod(Box::new(pod), state),
        Err(why) => Next::Wait(Obstacle::Spec(why)),
    }
}

/// Before the launcher, another pod uses the claims.
fn consume(world: &World<'_>, launcher: Pod, state: Option<Box<PersistentVolumeClaim>>) -> Next {
    let Some(pod) = world.consumer else {
        return Next::CreateConsumer(Box::new(pod::consumer::before(world.vmi, launcher)), state);
    };
    if pod.is_deleting() {
        // Who takes it away, such as to empty its node, has it fail. Another comes when it is gone.
        return Next::Wait(Obstacle::Unconsumed);
    }
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Failed") => Next::Phase(phase::FAILED),
        // What it has used were claims that have gone since, and these are others.
        Some("Succeeded") => Next::Wait(Obstacle::Unfilled),
        _ => Next::Wait(Obstacle::Unconsumed),
    }
}

/// Whether a claim has its contents.
enum Filled {
    /// It has, or will have before a pod that uses it begins.
    Yes,
    /// Not yet.
    No,
    /// Not before it has a volume, and it gets none before a pod uses it.
    OnceConsumed,
    /// Nobody has told yet.
    Unknown,
}

/// Whether a claim has its contents, where those are a DataVolume's. One that is not there is not done. Where nobody makes
/// DataVolumes, nobody fills them. (Upstream: `VolumeReadyToAttachToNode` in pkg/storage/types.)
fn filled(world: &World<'_>, claim: &PersistentVolumeClaim) -> Filled {
    let Some(owner) = filler_of(claim) else { return Filled::Yes };
    let is_unbound = !claim.is_deleting() && claim.spec.as_ref().is_none_or(|spec| spec.volume_name.is_none());
    match find::<DataVolume>(world.view, claim.namespace(), &owner.name) {
        Found::Undefined => Filled::Yes,
        Found::There(volume) if volume.is_usable() => Filled::Yes,
        Found::There(volume) if volume.waits_for_consumer() && volume.uid() == owner.uid && is_unbound => {
            Filled::OnceConsumed
        }
        Found::Unknown => Filled::Unknown,
        Found::Absent | Found::There(_) => Filled::No,
    }
}

/// Whether the node's own report, or an operator, says that a running instance is over. Nothing here follows from
/// silence: a pod that is gone while its node exists leaves the word to the handler.
fn ended_by_report(world: &World<'_>) -> Next {
    match world.pod() {
        Some(pod) if is_terminal(pod) && all_containers_ended(pod) => {
            let succeeded = pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Succeeded");
            // The launcher of a guest that has not begun fails when it is ended, also when that is what was asked for.
            let succeeded = succeeded || world.vmi.phase() == phase::SCHEDULED && world.vmi.is_deleting();
            Next::Phase(if succeeded { phase::SUCCEEDED } else { phase::FAILED })
        }
        None => {
            let node = world.vmi.status.as_ref().map_or("", |status| &status.node_name);
            let node_is_gone = world.view.get::<Node>("", node).is_none();
            // The guest of one that runs under its node's Lease is known to be dead by that alone.
            if node_is_gone && !crate::fence::is_bound(world.vmi) { Next::Phase(phase::FAILED) } else { Next::Stay }
        }
        Some(_) => Next::Stay,
    }
}

fn statuses(pod: &Pod) -> &[ContainerStatus] {
    pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default()
}

/// Whether the compute container and all beside it run.
fn all_containers_run(pod: &Pod) -> bool {
    let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|name| !name.is_empty());
    let wanted = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let running = |status: &&ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    let statuses = statuses(pod);
    bound
        && statuses.iter().filter(running).count() == wanted
        && statuses.iter().any(|status| status.name == COMPUTE_CONTAINER)
}

/// Whether one of the containers has ended; a launcher pod's are not restarted.
fn any_container_ended(pod: &Pod) -> bool {
    statuses(pod).iter().any(|status| status.state.as_ref().is_some_and(|state| state.terminated.is_some()))
}

/// Whether the compute container is reported to run.
pub(super) fn compute_runs(pod: &Pod) -> bool {
    let compute = statuses(pod).iter().find(|status| status.name == COMPUTE_CONTAINER);
    compute.and_then(|compute| compute.state.as_ref()).is_some_and(|state| state.running.is_some())
}

/// Whether no container can still run: each that the node reports has ended. A kubelet that gives a pod up after its
/// own restart leaves out what becomes of the containers, which it ends only then: that is no report. (Upstream:
/// `rejectPod` in pkg/kubelet.)
fn all_containers_ended(pod: &Pod) -> bool {
    let has_ended = |status: &ContainerStatus| {
        status.state.as_ref().is_some_and(|state| {
            // A container that never started shows as waiting, with no id.
            state.terminated.is_some() || (state.running.is_none() && status.container_id.is_none())
        })
    };
    let statuses = statuses(pod);
    statuses.iter().any(|status| status.name == COMPUTE_CONTAINER) && statuses.iter().all(has_ended)
}

/// Enters a phase.
pub(crate) fn enter(status: &mut VirtualMachineInstanceStatus, phase: &str, now: Time) {
    if status.phase == phase {
        return;
    }
    status.phase = phase.to_owned();
    status
        .phase_transition_timestamps
        .push(PhaseTransition { phase: phase.to_owned(), phase_transition_timestamp: Some(now.meta()) });
}

/// The phases that an instance went through and that were not told: it was accepted with its creation, and scheduling
/// began with its pod's.
fn steps_until(world: &World<'_>, status: &mut VirtualMachineInstanceStatus, target: &str, now: Time) {
    let order = [phase::UNSET, phase::PENDING, phase::SCHEDULING, phase::SCHEDULED];
    let place = |phase: &str| order.iter().position(|known| *known == phase);
    let (Some(from), Some(to)) = (place(&status.phase), place(target)) else { return };
    let made = |meta: &ObjectMeta| meta.creation_timestamp.as_ref().map_or(now, |at| Time::from(at).min(now));
    let pod = world.pod().map_or(now, |pod| made(&pod.metadata));
    for (place, at) in [(1, made(&world.vmi.metadata)), (2, pod)] {
        if from < place && place < to {
            enter(status, order[place], at);
        }
    }
}

/// Brings the status up to what was decided and to what the pod shows.
pub(super) fn apply(
    world: &World<'_>,
    new: &mut carrack_types::kubevirt::VirtualMachineInstance,
    next: &Next,
    now: Time,
) {
    let mut status = new.status.take().unwrap_or_default();
    match next {
        Next::Stay => {}
        Next::Phase(phase) => {
            steps_until(world, &mut status, phase, now);
            enter(&mut status, phase, now);
        }
        Next::CreatePod(..) | Next::CreateConsumer(..) | Next::Wait(_) => enter(&mut status, phase::PENDING, now),
    }
    // Before the guest starts: it is started with what is written here.
    if matches!(status.phase.as_str(), phase::PENDING | phase::SCHEDULING | phase::SCHEDULED) {
        volumes(world, &mut status);
    }
    describe_guest(world, &mut status);
    if let Some(pod) = world.pod() {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        status.qos_class = pod.status.as_ref().and_then(|status| status.qos_class.clone());
        status.launcher_container_image_version = compute_image(pod);
        // Pods that are over don't count as active.
        status.active_pods =
            if is_terminal(pod) { Default::default() } else { [(pod.uid().to_owned(), node.clone())].into() };
        if status.phase == phase::SCHEDULED && status.node_name.is_empty() {
            status.node_name.clone_from(&node);
            new.metadata.labels.get_or_insert_default().insert(NODE_NAME_LABEL.to_owned(), node);
        }
    } else {
        status.active_pods.clear();
    }
    new.status = Some(status);
}

/// The volumes, with what is known of their claims. A claim that is bound late shows its capacity late.
fn volumes(world: &World<'_>, status: &mut VirtualMachineInstanceStatus) {
    // The claim with its state is listed by its own name.
    let state = state::claim_name(world.vmi);
    let listed = world.vmi.spec.volumes.iter().map(|volume| (volume.name.as_str(), volume.claim_name()));
    for (name, claim) in listed.chain(state.iter().map(|claim| (claim.as_str(), Some(claim.as_str())))) {
        let known = status.volume_status.iter().position(|known| known.name == name);
        let index = known.unwrap_or_else(|| {
            status.volume_status.push(VolumeStatus { name: name.to_owned(), ..VolumeStatus::default() });
            status.volume_status.len() - 1
        });
        let Some(claim) = claim.and_then(|name| world.claim(name)) else { continue };
        let (spec, of) = (claim.spec.clone().unwrap_or_default(), claim.status.clone().unwrap_or_default());
        let info = json!({
            "claimName": claim.name(),
            "accessModes": spec.access_modes.unwrap_or_default(),
            "volumeMode": spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
            "capacity": of.capacity.unwrap_or_default(),
            "requests": spec.resources.and_then(|resources| resources.requests).unwrap_or_default(),
        });
        status.volume_status[index].persistent_volume_claim_info = Some(info);
    }
}

fn compute_image(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter(|c| c.name == COMPUTE_CONTAINER).find_map(|c| c.image.clone()).unwrap_or_default()
}

/// What the guest is given, as upstream shows it from the start.
fn describe_guest(world: &World<'_>, status: &mut VirtualMachineInstanceStatus) {
    let domain = &world.vmi.spec.domain;
    if status.current_cpu_topology.is_none() {
        let cpu = domain.cpu.clone().unwrap_or_default();
        let sockets = if domain.cpu.is_some() { cpu.sockets.unwrap_or(1) } else { domain.vcpus() };
        status.current_cpu_topology = Some(CpuTopology {
            cores: Some(cpu.cores.unwrap_or(1)),
            sockets: Some(sockets),
            threads: Some(cpu.threads.unwrap_or(1)),
        });
    }
    if status.memory.is_none() {
        let guest = domain.guest_memory_bytes().map(|bytes| Quantity(super::pod::bytes_quantity(bytes).0));
        status.memory = Some(MemoryStatus {
            guest_at_boot: guest.clone(),
            guest_current: guest.clone(),
            guest_requested: guest,
            ..MemoryStatus::default()
        });
    }
}
