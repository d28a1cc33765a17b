//! start, stop, restart: what they change of a machine, by its run strategy.

use carrack_apiserver::body::json as json_reply;
use carrack_apiserver::{Body, Response, Status};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, phase, run_strategy};
use carrack_types::resource::Object;
use serde::Deserialize;
use serde_json::{Value, json};

use super::objects::Call;
use super::{AnyOptions, accepted};

/// How often a change is tried while others change the machine.
const TRIES: usize = 5;

const NOT_RUNNING: &str = "VM is not running";
const ALREADY_RUNNING: &str = "VM is already running";
const UNDERWAY: &str = "unable to complete request: stop/start already underway";
const ONLY_FASTER: &str = "Halted only supports manual stop requests with a shorter graceperiod";
const FAILED_RERUNS: &str = "RerunOnFailure does not support starting VM from failed state";
const ONLY_AT_ONCE: &str = "For force restart, only gracePeriod=0 is supported for now";

/// Why a machine is left as it is, in KubeVirt's words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The call makes no sense for the machine as it is: 409.
    Conflict(String),
    /// Another request is being carried out, which KubeVirt tells as an error of the server.
    Underway,
}

impl Refusal {
    fn because(why: impl Into<String>) -> Self {
        Self::Conflict(why.into())
    }
    fn status(&self, name: &str) -> Status {
        match self {
            Self::Conflict(why) => Status::conflict("kubevirt.io", "virtualmachine", name, why),
            Self::Underway => Status::internal(UNDERWAY),
        }
    }
}

/// What is to be changed.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    /// The run strategy.
    Strategy(&'static str),
    /// The requests that the controller acts on.
    Requests(Value),
}

impl Change {
    /// As a merge patch: of which subresource of the machine, and what.
    pub(crate) fn patch(&self, vm: &VirtualMachine) -> (&'static str, Value) {
        match self {
            // Whoever uses the older field keeps it.
            Self::Strategy(strategy) if vm.spec.running.is_some() => {
                ("", json!({"spec": {"running": *strategy == run_strategy::ALWAYS}}))
            }
            Self::Strategy(strategy) => ("", json!({"spec": {"runStrategy": strategy}})),
            // Who asks is not made to wait for what failed before.
            Self::Requests(requests) if vm.status.as_ref().is_some_and(|status| status.start_failure.is_some()) => {
                ("status", json!({"status": {"stateChangeRequests": requests, "startFailure": null}}))
            }
            Self::Requests(requests) => ("status", json!({"status": {"stateChangeRequests": requests}})),
        }
    }

    /// Whether the machine is asked for just that already.
    pub(crate) fn is_asked(&self, vm: &VirtualMachine) -> bool {
        let there = vm.status.as_ref().map(|status| json!(status.state_change_requests));
        matches!(self, Self::Requests(requests) if there.as_ref() == Some(requests))
    }
}

/// What starting changes.
///
/// # Errors
/// Why it cannot be started.
pub(super) fn plan_start(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    paused: bool,
) -> Result<Change, Refusal> {
    let start =
        if paused { json!({"action": "Start", "data": {"paused": "true"}}) } else { json!({"action": "Start"}) };
    let strategy = vm.run_strategy();
    let counts = |vmi: &&VirtualMachineInstance| {
        let going = vmi.is_deleting() && strategy == run_strategy::HALTED;
        !vmi.is_final() && !matches!(vmi.phase(), phase::UNSET | phase::UNKNOWN) && !going
    };
    if vmi.filter(counts).is_some() {
        return Err(Refusal::because(ALREADY_RUNNING));
    }
    let over = vmi.filter(|vmi| vmi.is_final());
    match strategy {
        // The strategy alone would forget how it is to start; the controller changes it when it sees the request.
        run_strategy::HALTED if paused => {
            busy(vm)?;
            Ok(Change::Requests(json!([start])))
        }
        run_strategy::HALTED => Ok(Change::Strategy(run_strategy::ALWAYS)),
        run_strategy::RERUN_ON_FAILURE if over.is_some_and(|vmi| vmi.phase() == phase::FAILED) => {
            Err(Refusal::because(FAILED_RERUNS))
        }
        run_strategy::MANUAL | run_strategy::RERUN_ON_FAILURE => {
            busy(vm)?;
            let over = over.map(|vmi| json!({"action": "Stop", "uid": vmi.uid()}));
            Ok(Change::Requests(over.into_iter().chain([start]).collect()))
        }
        _ => Err(Refusal::because(format!("{strategy} does not support manual start requests"))),
    }
}

/// What stopping changes. A stop takes the place of whatever was asked for before.
///
/// # Errors
/// Why it cannot be stopped.
pub(crate) fn plan_stop(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    grace_period_s: Option<i64>,
) -> Result<Change, Refusal> {
    let alive = vmi.filter(|vmi| !vmi.is_final());
    match (vm.run_strategy(), alive) {
        (run_strategy::HALTED | run_strategy::MANUAL | run_strategy::RERUN_ON_FAILURE, None) => {
            Err(Refusal::because(NOT_RUNNING))
        }
        // A machine that is being stopped can be stopped faster.
        (run_strategy::HALTED, Some(vmi)) if !is_faster(vmi, grace_period_s) => Err(Refusal::because(ONLY_FASTER)),
        (run_strategy::HALTED | run_strategy::MANUAL | run_strategy::RERUN_ON_FAILURE, Some(vmi)) => {
            Ok(Change::Requests(json!([stop_request(vmi, grace_period_s)])))
        }
        _ => Ok(Change::Strategy(run_strategy::HALTED)),
    }
}

/// Whether that is less time than the guest has now.
fn is_faster(vmi: &VirtualMachineInstance, grace_period_s: Option<i64>) -> bool {
    let has = vmi.spec.termination_grace_period_seconds;
    grace_period_s.is_some_and(|wanted| has.is_none_or(|has| wanted < has))
}

/// What restarting changes.
///
/// # Errors
/// Why it cannot be restarted.
pub(super) fn plan_restart(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    grace_period_s: Option<i64>,
) -> Result<Change, Refusal> {
    let strategy = vm.run_strategy();
    if matches!(strategy, run_strategy::HALTED | run_strategy::ONCE) {
        return Err(Refusal::because(format!("RunStategy {strategy} does not support manual restart requests")));
    }
    let Some(vmi) = vmi else { return Err(Refusal::because(format!("{NOT_RUNNING}: {}", run_strategy::HALTED))) };
    busy(vm)?;
    Ok(Change::Requests(json!([stop_request(vmi, grace_period_s), {"action": "Start"}])))
}

fn stop_request(vmi: &VirtualMachineInstance, grace_period_s: Option<i64>) -> Value {
    match grace_period_s {
        Some(seconds) => json!({"action": "Stop", "uid": vmi.uid(), "data": {"gracePeriod": seconds.to_string()}}),
        None => json!({"action": "Stop", "uid": vmi.uid()}),
    }
}

/// Refuses while another request is being carried out.
fn busy(vm: &VirtualMachine) -> Result<(), Refusal> {
    let open = vm.status.as_ref().is_some_and(|status| !status.state_change_requests.is_empty());
    if open { Err(Refusal::Underway) } else { Ok(()) }
}

/// What a start may be told.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StartOptions {
    paused: Option<bool>,
    dry_run: Option<Vec<String>>,
}

/// What a stop may be told.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StopOptions {
    /// Seconds.
    grace_period: Option<i64>,
    dry_run: Option<Vec<String>>,
}

/// What a restart may be told.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RestartOptions {
    grace_period_seconds: Option<i64>,
    dry_run: Option<Vec<String>>,
}

pub(super) async fn start(call: &Call<'_>, options: StartOptions) -> Result<Response, Status> {
    let paused = options.paused.unwrap_or(false);
    change(call, options.dry_run, None, |vm, vmi| plan_start(vm, vmi, paused)).await
}

pub(super) async fn stop(call: &Call<'_>, options: StopOptions) -> Result<Response, Status> {
    let grace = grace(options.grace_period)?;
    change(call, options.dry_run, grace, |vm, vmi| plan_stop(vm, vmi, grace)).await
}

pub(super) async fn restart(call: &Call<'_>, options: RestartOptions) -> Result<Response, Status> {
    let grace = grace(options.grace_period_seconds)?;
    if grace.is_some_and(|seconds| seconds > 0) {
        return Err(Status::bad_request(ONLY_AT_ONCE));
    }
    change(call, options.dry_run, None, |vm, vmi| plan_restart(vm, vmi, grace)).await
}

/// Takes back that an instance, or that of a machine, is to leave its node (`External` evictions say so).
pub(super) async fn cancel_evacuation(call: &Call<'_>, options: AnyOptions) -> Result<Response, Status> {
    let dry_run = super::is_dry_run(options.dry_run.as_deref())?;
    let vmi: VirtualMachineInstance = call.get().await?;
    if vmi.status.as_ref().is_some_and(|status| !status.evacuation_node_name.is_empty()) {
        let patch = json!({"metadata": {"uid": vmi.uid()}, "status": {"evacuationNodeName": null}});
        call.patch::<VirtualMachineInstance>("", &patch, dry_run).await?;
    }
    Ok(json_reply(200, Body::Full(bytes::Bytes::new())))
}

fn grace(seconds: Option<i64>) -> Result<Option<i64>, Status> {
    match seconds {
        Some(seconds) if seconds < 0 => Err(Status::bad_request("gracePeriod has to be greater or equal to 0")),
        seconds => Ok(seconds),
    }
}

async fn change(
    call: &Call<'_>,
    dry_run: Option<Vec<String>>,
    instance_grace_s: Option<i64>,
    decide: impl Fn(&VirtualMachine, Option<&VirtualMachineInstance>) -> Result<Change, Refusal>,
) -> Result<Response, Status> {
    let dry_run = super::is_dry_run(dry_run.as_deref())?;
    let mut result = Ok(());
    for _ in 0..TRIES {
        let vm: VirtualMachine = call.get().await?;
        let vmi: Option<VirtualMachineInstance> = call.find().await?;
        let vmi = vmi.filter(|vmi| vmi.controller_uid() == Some(vm.uid()));
        let change = decide(&vm, vmi.as_ref()).map_err(|refusal| refusal.status(call.name))?;
        // With a strategy, nothing else carries the grace to the instance.
        if let (Change::Strategy(_), Some(seconds), Some(_)) = (&change, instance_grace_s, &vmi) {
            let patch = json!({"spec": {"terminationGracePeriodSeconds": seconds}});
            call.patch::<VirtualMachineInstance>("", &patch, dry_run).await?;
        }
        result = apply(call, &vm, &change, dry_run).await;
        match &result {
            Err(status) if status.code == 409 => {}
            _ => break,
        }
    }
    result.map(|()| accepted())
}

/// The change rests on the machine as it was read.
async fn apply(call: &Call<'_>, vm: &VirtualMachine, change: &Change, dry_run: bool) -> Result<(), Status> {
    let (sub, mut patch) = change.patch(vm);
    patch["metadata"] = json!({"uid": vm.uid(), "resourceVersion": vm.metadata.resource_version});
    call.patch::<VirtualMachine>(sub, &patch, dry_run).await
}

/// Whether an instance has a guest that can be talked to.
pub(super) fn is_running(vmi: &VirtualMachineInstance) -> bool {
    vmi.phase() == phase::RUNNING
}
