//! A machine's status, from the machine, its instance and its requests.

use std::time::Duration;

use carrack_engine::Time;
use carrack_types::kubevirt::vm::StateChangeRequest;
use carrack_types::kubevirt::{
    Condition, VirtualMachine, VirtualMachineInstance, VirtualMachineStatus, find_condition, phase, printable_status,
    run_strategy, set_condition,
};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::VM_GENERATION_ANNOTATION;
use serde_json::{Value, json};

use super::size::Trouble;
use super::strategy::{Act, decide, is_outdated, wanted};
use super::{World, instance, start_failure, started_revision};
use crate::identity::start_revision_name;

/// What may change in a template while its instance runs, and is handed on to that (rollout strategy LiveUpdate, KubeVirt's default).
const LIVE: [&str; 3] = ["nodeSelector", "affinity", "tolerations"];

/// Conditions that are the machine's own and not its instance's.
const OWN_CONDITIONS: [&str; 4] = ["Failure", "RestartRequired", "ManualRecoveryRequired", "Initialized"];

/// Reasons of the condition Failure: the server refuses an instance, or its deletion.
pub(super) const FAILED_CREATE: &str = "FailedCreate";
pub(super) const FAILED_DELETE: &str = "FailedDelete";

/// How long a status may wait that only tells how a machine is getting on.
const STATUS_WAIT: Duration = Duration::from_millis(300);
/// How long it may wait when the state passes by itself.
const STEP_WAIT: Duration = Duration::from_secs(2);
/// The states that do.
const PASSING: [&str; 3] = [printable_status::STARTING, printable_status::STOPPING, printable_status::TERMINATING];

/// The status as it should be.
pub(super) fn compute(world: &World<'_>, now: Time) -> VirtualMachineStatus {
    let World { vm, instance, .. } = *world;
    let mut status = vm.status.clone().unwrap_or_default();
    status.created = instance.is_some();
    // An instance that is over may still carry the condition of its life.
    status.ready = instance.is_some_and(|vmi| !vmi.is_final() && vmi.is_true("Ready"));
    status.desired_generation = vm.metadata.generation.unwrap_or(0);
    // What else of a machine changed than its template concerns no instance.
    let started_at: Option<i64> = instance.and_then(|vmi| vmi.annotation(VM_GENERATION_ANNOTATION)?.parse().ok());
    let is_current = |vmi: &VirtualMachineInstance| {
        let from = instance::started_from(vmi, started_revision(world));
        from.is_some_and(|from| from["template"] == json!(vm.spec.template))
    };
    status.observed_generation = match started_at {
        Some(at) if at != status.desired_generation && !instance.is_some_and(is_current) => at,
        _ => status.desired_generation,
    };
    status.start_failure = start_failure::after(vm, instance, now);
    status.state_change_requests = open_requests(vm, instance);
    // A strategy counts as acted on when what it asks for is there, and not when a restore holds it up.
    let is_asked = matches!(wanted(vm, None), Act::Start { .. });
    if vm.run_strategy() != status.run_strategy && (instance.is_some() || !is_asked) {
        status.run_strategy = vm.run_strategy().to_owned();
    }
    if let Ok(size) = &world.size
        && !vm.is_deleting()
    {
        [status.instancetype_ref, status.preference_ref] = size.references.clone();
    }
    conditions(world, &mut status.conditions, now);
    if let Some(statuses) = &world.snapshots {
        status.volume_snapshot_statuses.clone_from(statuses);
    }
    status.printable_status = printable(world, &status).to_owned();
    status
}

/// How long a change may wait that only tells how the machine is getting on: it does not become ready, and nothing is decided by
/// what changes. Starts and stops go through several states in a moment, and are told with what they come to.
pub(super) fn patience(old: &VirtualMachineStatus, new: &VirtualMachineStatus) -> Option<Duration> {
    let at_rest = [printable_status::STOPPED, printable_status::PAUSED].contains(&new.printable_status.as_str());
    let becomes_ready = new.ready && !old.ready;
    let mut told = old.clone();
    told.created = new.created;
    told.ready = new.ready;
    told.desired_generation = new.desired_generation;
    told.observed_generation = new.observed_generation;
    told.conditions.clone_from(&new.conditions);
    told.printable_status.clone_from(&new.printable_status);
    told.volume_snapshot_statuses.clone_from(&new.volume_snapshot_statuses);
    if old.run_strategy.is_empty() && new.run_strategy == run_strategy::ALWAYS {
        told.run_strategy.clone_from(&new.run_strategy);
    }
    let passes = PASSING.contains(&new.printable_status.as_str()) && failure(old) == failure(new);
    (told == *new && !at_rest && !becomes_ready).then_some(if passes { STEP_WAIT } else { STATUS_WAIT })
}

fn failure(status: &VirtualMachineStatus) -> Option<&Condition> {
    find_condition(&status.conditions, "Failure")
}

fn wants_start(vm: &VirtualMachine) -> bool {
    matches!(decide(vm, None), Act::Start { .. })
}

/// The requests that are not carried out yet: a stop is done when the instance that it names is gone, a start when
/// there is an instance. A run that failed by itself under RerunOnFailure asks for a start; one that was being stopped does not, however it
/// ended.
fn open_requests(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> Vec<StateChangeRequest> {
    let requests = vm.status.as_ref().map_or(&[][..], |status| &status.state_change_requests);
    let mut open = Vec::new();
    for request in requests {
        let done = match request.action.as_str() {
            "Stop" => instance.is_none_or(|vmi| request.uid.as_deref() != Some(vmi.uid())),
            "Start" if is_outdated(vm, request) => true,
            // Behind a stop that is not done, a start waits; before a final instance is gone, too.
            "Start" => instance.is_some_and(|vmi| !vmi.is_final() && !vmi.is_deleting()) && open.is_empty(),
            _ => true,
        };
        if !done {
            open.push(request.clone());
        }
    }
    let failed = instance.is_some_and(|vmi| vmi.phase() == phase::FAILED && !vmi.is_deleting());
    if vm.run_strategy() == run_strategy::RERUN_ON_FAILURE
        && failed
        && !open.iter().any(|request| request.action == "Start")
    {
        open.push(StateChangeRequest { action: "Start".to_owned(), ..StateChangeRequest::default() });
    }
    open
}

fn conditions(world: &World<'_>, conditions: &mut Vec<Condition>, now: Time) {
    let World { vm, instance, stranger, .. } = world;
    let mirrored: Vec<Condition> =
        instance.and_then(|vmi| vmi.status.as_ref()).map(|status| status.conditions.clone()).unwrap_or_default();
    conditions.retain(|old| {
        OWN_CONDITIONS.contains(&old.r#type.as_str())
            || old.r#type == "Ready"
            || find_condition(&mirrored, &old.r#type).is_some()
    });
    for condition in mirrored {
        if OWN_CONDITIONS.contains(&condition.r#type.as_str()) {
            continue;
        }
        match conditions.iter_mut().find(|old| old.r#type == condition.r#type) {
            Some(old) => *old = condition,
            None => conditions.push(condition),
        }
    }
    let at = now.meta();
    let unready = |reason: &str, message: &str| Condition::new("Ready", "False", reason, message);
    match instance {
        None => _ = set_condition(conditions, unready("VMINotExists", "VMI does not exist"), &at),
        Some(vmi) if vmi.condition("Ready").is_none() => {
            let missing = unready("VMIConditionMissing", "VMI is missing the Ready condition");
            set_condition(conditions, missing, &at);
        }
        Some(_) => {}
    }
    if *stranger {
        let message = format!(
            "virtualmachineinstances.kubevirt.io \"{}\" exists and does not belong to this virtual machine",
            vm.name()
        );
        set_condition(conditions, Condition::new("Failure", "True", FAILED_CREATE, &message), &at);
    } else if let Some(trouble) = trouble(world) {
        set_condition(conditions, Condition::new("Failure", "True", trouble.reason, &trouble.message), &at);
    } else if !still_refused(world) {
        conditions.retain(|condition| condition.r#type != "Failure");
    }
    if restart_required(world) {
        let message = "a non-live-updatable field was changed in the template spec";
        set_condition(conditions, Condition::new("RestartRequired", "True", "", message), &at);
    } else {
        conditions.retain(|condition| condition.r#type != "RestartRequired");
    }
}

/// Whether what the server last said of this machine's instance, of its deletion, or of a DataVolume, may be so still: nothing
/// has shown otherwise, and it is tried again and again.
fn still_refused(world: &World<'_>) -> bool {
    let act = decide(world.vm, world.instance);
    match world.vm.status.as_ref().and_then(failure).map(|failure| failure.reason.as_str()) {
        Some(FAILED_CREATE) if world.data.is_missing() => true,
        Some(FAILED_CREATE) => world.instance.is_none() && matches!(act, Act::Start { .. } | Act::SwitchOn),
        Some(FAILED_DELETE) => world.instance.is_some_and(|vmi| !vmi.is_deleting()) && matches!(act, Act::Stop { .. }),
        _ => false,
    }
}

/// What is new in the status of a machine whose instance the server refuses to make, or to delete.
pub(super) fn refused(vm: &VirtualMachine, reason: &str, message: &str, now: Time) -> Option<Value> {
    let mut conditions = vm.status.clone().unwrap_or_default().conditions;
    let failure = Condition::new("Failure", "True", reason, message);
    set_condition(&mut conditions, failure, &now.meta()).then(|| json!({"conditions": conditions}))
}

/// Why no instance can be made from the template.
fn trouble(world: &World<'_>) -> Option<Trouble> {
    if world.instance.is_some() {
        return None;
    }
    match &world.size {
        Err(trouble) => Some(trouble.clone()),
        Ok(size) => size.spec(world.vm).err().or_else(|| world.data.trouble.clone()),
    }
}

/// Whether the template differs from what the instance was started from. An instance of which that is not known
/// says nothing.
pub(super) fn restart_required(world: &World<'_>) -> bool {
    let Some(vmi) = world.instance.filter(|vmi| !vmi.is_final() && !vmi.is_deleting()) else { return false };
    let spec = &world.vm.spec;
    if is_of_now(world.vm, vmi) {
        return false;
    }
    let Some(from) = instance::started_from(vmi, started_revision(world)) else { return false };
    let changed = before_now(world, vmi).is_some_and(|(mut before, mut now)| {
        for template in [&mut before, &mut now].into_iter().filter(|_| world.live) {
            template
                .as_object_mut()
                .into_iter()
                .for_each(|spec| spec.retain(|field, _| !LIVE.contains(&field.as_str())));
        }
        before != now
    });
    changed
        || [("instancetype", json!(spec.instancetype)), ("preference", json!(spec.preference))]
            .into_iter()
            .any(|(field, now)| from.get(field).unwrap_or(&Value::Null) != &now)
}

/// Whether an instance was started from the very spec that its machine has now, by its generation.
fn is_of_now(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> bool {
    let generation = vm.metadata.generation.unwrap_or(0);
    // One that was taken over counts by the generations of the machine that it was started for.
    let from = vmi.status.as_ref().map_or("", |status| status.virtual_machine_revision_name.as_str());
    vmi.annotation(VM_GENERATION_ANNOTATION) == Some(generation.to_string().as_str())
        && (from.is_empty() || from == start_revision_name(vm.uid(), generation))
}

/// The template's spec that an instance was started from, and the one that there is now.
fn before_now(world: &World<'_>, vmi: &VirtualMachineInstance) -> Option<(Value, Value)> {
    let before = instance::started_from(vmi, started_revision(world))?.pointer("/template/spec")?.clone();
    Some((before, json!(world.vm.spec.template.as_ref().map(|template| &template.spec))))
}

/// Where the instance is to run, as the template says it by now, if that has changed since it was started and nothing else has. KubeVirt
/// hands these fields on to what runs, for when it moves.
pub(super) fn placed_anew(world: &World<'_>) -> Option<VirtualMachineInstance> {
    let vmi = world.instance.filter(|vmi| world.live && !vmi.is_final() && !vmi.is_deleting())?;
    if is_of_now(world.vm, vmi) {
        return None;
    }
    let (before, now) = before_now(world, vmi)?;
    let has_changed = |field: &str| before.get(field) != now.get(field);
    if restart_required(world) || !LIVE.iter().any(|field| has_changed(field)) {
        return None;
    }
    let (wanted, _) = world.size.as_ref().ok()?.spec(world.vm).ok()?;
    let mut new = vmi.clone();
    for field in LIVE.into_iter().filter(|field| has_changed(field)) {
        match field {
            "nodeSelector" => new.spec.node_selector.clone_from(&wanted.node_selector),
            "affinity" => new.spec.affinity.clone_from(&wanted.affinity),
            _ => new.spec.tolerations.clone_from(&wanted.tolerations),
        }
    }
    (new.spec != vmi.spec).then_some(new)
}

/// The state in one word. The order of the questions is KubeVirt's: the first that fits counts.
fn printable(world: &World<'_>, status: &VirtualMachineStatus) -> &'static str {
    let World { vm, instance, .. } = *world;
    if vm.is_deleting() {
        return printable_status::TERMINATING;
    }
    let over = instance.is_none_or(VirtualMachineInstance::is_final);
    if let Some(vmi) = instance
        && !over
    {
        let unsynchronized = vmi.condition("Synchronized").filter(|condition| condition.status == "False");
        let reason = unsynchronized.map_or("", |condition| condition.reason.as_str());
        let unschedulable = vmi
            .condition("PodScheduled")
            .is_some_and(|condition| condition.status == "False" && condition.reason == "Unschedulable");
        let starting = matches!(vmi.phase(), phase::UNSET | phase::PENDING | phase::SCHEDULING | phase::SCHEDULED);
        return match vmi.phase() {
            _ if vmi.is_deleting() || matches!(decide(vm, instance), Act::Stop { .. }) => printable_status::STOPPING,
            phase::RUNNING if migrating(vmi) => printable_status::MIGRATING,
            phase::RUNNING if vmi.is_paused() => printable_status::PAUSED,
            phase::RUNNING => printable_status::RUNNING,
            _ if starting && reason == "FailedPvcNotFound" => printable_status::PVC_NOT_FOUND,
            _ if starting && world.data.failed.is_some() => printable_status::DATA_VOLUME_ERROR,
            _ if starting && unschedulable => printable_status::UNSCHEDULABLE,
            _ if starting && world.data.is_provisioning => printable_status::PROVISIONING,
            _ if starting && world.unbound => printable_status::WAITING_FOR_VOLUME_BINDING,
            // KubeVirt knows one word for an image that cannot be had.
            _ if starting && matches!(reason, "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName") => {
                printable_status::ERR_IMAGE_PULL
            }
            _ if starting && reason == "ImagePullBackOff" => printable_status::IMAGE_PULL_BACK_OFF,
            _ if starting => printable_status::STARTING,
            phase::WAITING_FOR_SYNC => printable_status::WAITING_FOR_RECEIVER,
            _ => printable_status::UNKNOWN,
        };
    }
    let again = match decide(vm, instance) {
        Act::Start { .. } | Act::SwitchOn => true,
        // A final instance makes room for the next one.
        Act::Stop { .. } => instance.is_some() && wants_start(vm),
        Act::Nothing => false,
    };
    if world.data.failed.is_some() {
        return printable_status::DATA_VOLUME_ERROR;
    }
    if world.data.is_provisioning {
        return printable_status::PROVISIONING;
    }
    if again && world.unbound {
        return printable_status::WAITING_FOR_VOLUME_BINDING;
    }
    // A guest that has shut down before anybody saw it run has not failed for a machine that is to run again after failures alone:
    // such a one is in no loop when it is not started again (upstream's `isVMIStartExpected` takes it for being in one).
    let stays_down = !again && instance.is_none() && vm.run_strategy() == run_strategy::RERUN_ON_FAILURE;
    let failures = status.start_failure.as_ref().map_or(0, |failure| failure.consecutive_fail_count);
    if failures > 0 && !stays_down {
        return printable_status::CRASH_LOOP_BACK_OFF;
    }
    // One that cannot be made yet does not start.
    if again && trouble(world).is_none() { printable_status::STARTING } else { printable_status::STOPPED }
}

fn migrating(vmi: &VirtualMachineInstance) -> bool {
    vmi.status
        .as_ref()
        .and_then(|status| status.migration_state.as_ref())
        .is_some_and(|state| state.start_timestamp.is_some() && !state.completed)
}
