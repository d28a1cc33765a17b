//! An instance's conditions as far as its pod decides them, and the pod's readiness gate.

use std::collections::BTreeSet;

use carrack_engine::Time;
use carrack_networks::FAILURE_ANNOTATION;
use carrack_types::kubevirt::{Condition, VirtualMachineInstance, phase, set_condition};
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::UNPAUSED_CONDITION;
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Pod, PodCondition};
use serde_json::{Value, json};

use super::World;
use super::progress::{Next, Obstacle};

/// Reason of the condition, and the event, of an instance whose pod does not get its networks.
const NO_NETWORKS: &str = "FailedAttachNetworks";

/// Reason of the condition, and the event, of an instance whose pod cannot be made.
pub(super) const FAILED_CREATE: &str = "FailedCreate";

/// Condition of an instance whose claims get their volumes for a pod that goes before its own, until that is there.
const PROVISIONING: &str = "Provisioning";

/// Reason for not being ready of an instance whose pod goes.
pub(crate) const POD_TERMINATING: &str = "PodTerminating";

/// Whether an instance's pod does not get its networks.
pub(super) fn lacks_networks(vmi: &VirtualMachineInstance) -> bool {
    vmi.condition("Synchronized").is_some_and(|condition| condition.reason == NO_NETWORKS)
}

/// Brings the conditions up to date.
pub(super) fn apply(world: &World<'_>, new: &mut VirtualMachineInstance, next: &Next, now: Time) {
    let at = now.meta();
    let Some(status) = new.status.as_mut() else { return };
    set_condition(&mut status.conditions, ready(world.pod(), &status.phase), &at);
    let scheduled = match next {
        Next::Wait(Obstacle::NoNode) => Some(Condition::new(
            "PodScheduled",
            "False",
            "Unschedulable",
            "no node is ready to run virtual machines (label kubevirt.io/schedulable=true)",
        )),
        // As KubeVirt tells it, besides what is not synchronized.
        Next::Wait(Obstacle::ClaimMissing(claim)) => {
            Some(Condition::new("PodScheduled", "False", "Unschedulable", &missing(claim)))
        }
        Next::Wait(Obstacle::Unconsumed | Obstacle::Unread) => unscheduled(world.consumer),
        _ => unscheduled(world.pod()),
    };
    replace_condition(&mut status.conditions, "PodScheduled", scheduled, &at);
    if next.is_consuming() {
        set_condition(&mut status.conditions, Condition::new(PROVISIONING, "True", "", ""), &at);
    } else if !matches!(status.phase.as_str(), phase::UNSET | phase::PENDING) {
        status.conditions.retain(|condition| condition.r#type != PROVISIONING);
    }
    if let Some(told) = data_volumes(world) {
        set_condition(&mut status.conditions, told, &at);
    }
    // From Scheduled on, Synchronized tells how the handler and the guest get on.
    let before_handoff = matches!(status.phase.as_str(), phase::UNSET | phase::PENDING | phase::SCHEDULING);
    let handed_off_now = matches!(next, Next::Phase(phase::SCHEDULED));
    if before_handoff || handed_off_now {
        replace_condition(&mut status.conditions, "Synchronized", unsynchronized(world.vmi, world.pod(), next), &at);
    }
}

/// Sets a condition of a kind to what is wanted, or takes it away.
pub(crate) fn replace_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    wanted: Option<Condition>,
    at: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
) {
    match wanted {
        Some(condition) => {
            set_condition(conditions, condition, at);
        }
        None => conditions.retain(|condition| condition.r#type != kind),
    }
}

/// Whether the guest can serve: it runs, and its pod is ready.
pub(crate) fn ready(pod: Option<&Pod>, phase: &str) -> Condition {
    let not_running = || Condition::new("Ready", "False", "GuestNotRunning", "Guest VM is not reported as running");
    let Some(pod) = pod else {
        if matches!(phase, phase::SUCCEEDED | phase::FAILED) {
            return not_running();
        }
        return Condition::new("Ready", "False", "PodNotExists", "virt-launcher pod has not yet been scheduled");
    };
    if pod.is_deleting() || is_terminal(pod) {
        return Condition::new("Ready", "False", POD_TERMINATING, "virt-launcher pod is terminating");
    }
    if phase != phase::RUNNING {
        return not_running();
    }
    match pod_condition(pod, "Ready") {
        Some(ready) => Condition::new(
            "Ready",
            &ready.status,
            ready.reason.as_deref().unwrap_or_default(),
            ready.message.as_deref().unwrap_or_default(),
        ),
        None => {
            Condition::new("Ready", "False", "PodConditionMissing", "virt-launcher pod is missing the Ready condition")
        }
    }
}

fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn unscheduled(pod: Option<&Pod>) -> Option<Condition> {
    let condition = pod_condition(pod?, "PodScheduled").filter(|condition| condition.status == "False")?;
    Some(Condition::new(
        "PodScheduled",
        "False",
        condition.reason.as_deref().unwrap_or_default(),
        condition.message.as_deref().unwrap_or_default(),
    ))
}

/// Whether the DataVolumes of an instance are ready, if it has any. (Upstream: `aggregateDataVolumesConditions`.)
fn data_volumes(world: &World<'_>) -> Option<Condition> {
    let volumes = world.data_volumes();
    let told: BTreeSet<&str> =
        volumes.map(|volume| volume.condition("Ready").map_or("Unknown", |ready| ready.status.as_str())).collect();
    let first = *told.first()?;
    Some(if told.len() == 1 && first == "True" {
        Condition::new("DataVolumesReady", "True", "AllDVsReady", "All of the VMI's DVs are bound and ready")
    } else {
        let status = if told.contains("False") { "False" } else { "Unknown" };
        Condition::new("DataVolumesReady", status, "NotAllDVsReady", "Not all of the VMI's DVs are ready")
    })
}

fn missing(claim: &str) -> String {
    format!("PVC {claim} does not exist, waiting for it to appear")
}

/// What keeps the instance from getting on. What the server has said of its pod stands until there is one.
fn unsynchronized(vmi: &VirtualMachineInstance, pod: Option<&Pod>, next: &Next) -> Option<Condition> {
    let failure = |reason: &str, message: &str| Some(Condition::new("Synchronized", "False", reason, message));
    match next {
        Next::Wait(Obstacle::ClaimMissing(claim)) => {
            return failure("FailedPvcNotFound", &missing(claim));
        }
        Next::Wait(Obstacle::Spec(why)) => return failure(FAILED_CREATE, why),
        Next::CreatePod(..) | Next::CreateConsumer(..) => {
            return vmi.condition("Synchronized").filter(|told| told.reason == FAILED_CREATE).cloned();
        }
        _ => {}
    }
    if let Some(why) = pod.and_then(|pod| pod.annotation(FAILURE_ANNOTATION)) {
        return failure(NO_NETWORKS, why);
    }
    let waiting = image_error(pod?)?;
    failure(waiting.reason.as_deref().unwrap_or_default(), waiting.message.as_deref().unwrap_or_default())
}

/// The first container that waits for an image which cannot be had.
fn image_error(pod: &Pod) -> Option<&ContainerStateWaiting> {
    const REASONS: [&str; 5] =
        ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"];
    let status = pod.status.as_ref()?;
    status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten())
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref())
        .find(|waiting| waiting.reason.as_deref().is_some_and(|reason| REASONS.contains(&reason)))
}

/// The pod condition behind the readiness gate, when it must be written.
pub(super) fn unpaused(vmi: &VirtualMachineInstance, pod: &Pod, now: Time) -> Option<Value> {
    let wanted = unpaused_condition(vmi.is_paused(), now.rfc3339().into());
    let there = pod_condition(pod, UNPAUSED_CONDITION);
    there.is_none_or(|condition| wanted["status"] != condition.status.as_str()).then_some(wanted)
}

/// The pod condition behind the readiness gate. (Upstream: `syncPausedConditionToPod`.)
pub(crate) fn unpaused_condition(paused: bool, at: Value) -> Value {
    let (status, reason, message) = if paused {
        ("False", "Paused", "the virtual machine is paused")
    } else {
        ("True", "NotPaused", "the virtual machine is not paused")
    };
    json!({"type": UNPAUSED_CONDITION, "status": status, "reason": reason, "message": message, "lastTransitionTime": at})
}
