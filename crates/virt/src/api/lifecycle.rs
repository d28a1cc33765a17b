//! start, stop, restart: what they change of a machine, by its run strategy.

use carrack_apiserver::{Response, Status};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, phase, run_strategy};
use carrack_types::resource::Object;
use serde_json::{Value, json};

use super::accepted;
use super::objects::Call;

/// How often a change is tried while others change the machine.
const TRIES: usize = 5;

const NOT_RUNNING: &str = "VM is not running";
const ALREADY_RUNNING: &str = "VM is already running";

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
            Self::Requests(requests) => ("status", json!({"status": {"stateChangeRequests": requests}})),
        }
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
) -> Result<Change, String> {
    let start =
        if paused { json!({"action": "Start", "data": {"paused": "true"}}) } else { json!({"action": "Start"}) };
    let alive = vmi.filter(|vmi| !vmi.is_final());
    let strategy = vm.run_strategy();
    match strategy {
        run_strategy::HALTED if alive.is_some_and(|vmi| !vmi.is_deleting()) => Err(ALREADY_RUNNING.to_owned()),
        // The strategy alone would forget how it is to start; the controller changes it when it sees the request.
        run_strategy::HALTED if paused => {
            busy(vm)?;
            Ok(Change::Requests(json!([start])))
        }
        run_strategy::HALTED => Ok(Change::Strategy(run_strategy::ALWAYS)),
        run_strategy::MANUAL | run_strategy::RERUN_ON_FAILURE => {
            if alive.is_some() {
                return Err(ALREADY_RUNNING.to_owned());
            }
            busy(vm)?;
            let over = vmi.map(|vmi| json!({"action": "Stop", "uid": vmi.uid()}));
            Ok(Change::Requests(over.into_iter().chain([start]).collect()))
        }
        _ => Err(format!("{strategy} does not support manual start requests")),
    }
}

/// What stopping changes.
///
/// # Errors
/// Why it cannot be stopped.
pub(crate) fn plan_stop(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    grace_period_s: Option<i64>,
) -> Result<Change, String> {
    let alive = vmi.filter(|vmi| !vmi.is_final());
    match vm.run_strategy() {
        // A machine that is being stopped can be stopped faster.
        run_strategy::HALTED => match alive {
            Some(vmi) if grace_period_s.is_some() => Ok(Change::Requests(json!([stop_request(vmi, grace_period_s)]))),
            _ => Err(NOT_RUNNING.to_owned()),
        },
        run_strategy::MANUAL => match alive {
            Some(vmi) => {
                busy(vm)?;
                Ok(Change::Requests(json!([stop_request(vmi, grace_period_s)])))
            }
            None => Err(NOT_RUNNING.to_owned()),
        },
        _ => Ok(Change::Strategy(run_strategy::HALTED)),
    }
}

/// What restarting changes.
///
/// # Errors
/// Why it cannot be restarted.
pub(super) fn plan_restart(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    grace_period_s: Option<i64>,
) -> Result<Change, String> {
    let strategy = vm.run_strategy();
    if matches!(strategy, run_strategy::HALTED | run_strategy::ONCE) {
        return Err(format!("{strategy} does not support manual restart requests"));
    }
    let Some(vmi) = vmi.filter(|vmi| !vmi.is_final()) else { return Err(NOT_RUNNING.to_owned()) };
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
fn busy(vm: &VirtualMachine) -> Result<(), String> {
    let open = vm.status.as_ref().is_some_and(|status| !status.state_change_requests.is_empty());
    if open { Err("unable to complete request: stop/start already underway".to_owned()) } else { Ok(()) }
}

pub(super) async fn start(call: &Call<'_>, options: &Value) -> Result<Response, Status> {
    let paused = options["paused"].as_bool().unwrap_or(false);
    change(call, options, None, |vm, vmi| plan_start(vm, vmi, paused)).await
}

pub(super) async fn stop(call: &Call<'_>, options: &Value) -> Result<Response, Status> {
    let grace = grace(options, "gracePeriod")?;
    change(call, options, grace, |vm, vmi| plan_stop(vm, vmi, grace)).await
}

pub(super) async fn restart(call: &Call<'_>, options: &Value) -> Result<Response, Status> {
    let grace = grace(options, "gracePeriodSeconds")?;
    change(call, options, None, |vm, vmi| plan_restart(vm, vmi, grace)).await
}

fn grace(options: &Value, key: &str) -> Result<Option<i64>, Status> {
    match &options[key] {
        Value::Null => Ok(None),
        value => match value.as_i64() {
            Some(seconds) if seconds >= 0 => Ok(Some(seconds)),
            _ => Err(Status::bad_request(format!("{key} has to be greater or equal to 0"))),
        },
    }
}

async fn change(
    call: &Call<'_>,
    options: &Value,
    instance_grace_s: Option<i64>,
    decide: impl Fn(&VirtualMachine, Option<&VirtualMachineInstance>) -> Result<Change, String>,
) -> Result<Response, Status> {
    let dry_run = super::is_dry_run(options);
    let mut result = Ok(());
    for _ in 0..TRIES {
        let vm: VirtualMachine = call.get().await?;
        let vmi: Option<VirtualMachineInstance> = call.find().await?;
        let vmi = vmi.filter(|vmi| vmi.controller_uid() == Some(vm.uid()));
        let change = decide(&vm, vmi.as_ref())
            .map_err(|why| Status::conflict("kubevirt.io", "virtualmachine", call.name, &why))?;
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
