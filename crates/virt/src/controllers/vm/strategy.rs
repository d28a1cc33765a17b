//! What a run strategy asks for, given the instance and the requests to start or stop.

use carrack_types::kubevirt::vm::StateChangeRequest;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, run_strategy};
use carrack_types::resource::Object;

/// What to do about a machine's instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Leave it.
    Nothing,
    /// Have one.
    Start {
        /// With its CPUs stopped.
        paused: bool,
    },
    /// Have one, by changing the strategy first.
    SwitchOn,
    /// Have none.
    Stop {
        /// Seconds that the guest may take, when the request says so.
        grace_period_s: Option<i64>,
    },
}

/// Decides. A machine that is being restored is not started: its disks are being replaced. One of which a snapshot is taken has no instance
/// that is over: it would be in the way of what copies disks, for good where the machine stays down.
pub(super) fn decide(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> Act {
    let status = vm.status.as_ref();
    let is_held = status.is_some_and(|status| status.restore_in_progress.is_some());
    let is_copied = status.is_some_and(|status| status.snapshot_in_progress.is_some());
    match wanted(vm, instance) {
        Act::Start { .. } | Act::SwitchOn if is_held => Act::Nothing,
        Act::Nothing if is_copied && instance.is_some_and(VirtualMachineInstance::is_final) => {
            Act::Stop { grace_period_s: None }
        }
        act => act,
    }
}

/// What the strategy asks for. Strategies are KubeVirt's (<https://kubevirt.io/user-guide/compute/run_strategies/>).
pub(super) fn wanted(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> Act {
    let stop = instance.and_then(|vmi| stop_request(vm, vmi));
    let start = start_request(vm);
    let paused = start.is_some_and(is_paused);
    let is_final = instance.is_some_and(VirtualMachineInstance::is_final);
    const STOP: Act = Act::Stop { grace_period_s: None };
    if let Some(request) = stop {
        return Act::Stop { grace_period_s: grace_period_s(request) };
    }
    match vm.run_strategy() {
        run_strategy::ALWAYS => match instance {
            Some(_) if is_final => STOP,
            Some(_) => Act::Nothing,
            None => Act::Start { paused },
        },
        run_strategy::RERUN_ON_FAILURE => match instance {
            // One that has ended makes room, whether another one follows or not.
            Some(_) if is_final => STOP,
            Some(_) => Act::Nothing,
            // With this strategy a machine that shut down stays down. It starts when it comes to this strategy, when
            // it is asked to, and after a failure (which leaves a request behind, see `status`).
            None if start.is_some() || last_strategy(vm) != run_strategy::RERUN_ON_FAILURE => Act::Start { paused },
            None => Act::Nothing,
        },
        run_strategy::MANUAL => match instance {
            Some(_) if is_final && start.is_some() => STOP,
            Some(_) => Act::Nothing,
            None if start.is_some() => Act::Start { paused },
            None => Act::Nothing,
        },
        run_strategy::ONCE => match instance {
            Some(_) => Act::Nothing,
            None if last_strategy(vm) != run_strategy::ONCE => Act::Start { paused },
            None => Act::Nothing,
        },
        // Halted, and strategies that only a migration makes use of.
        strategy => match instance {
            Some(_) => STOP,
            None if strategy == run_strategy::HALTED && start.is_some() => Act::SwitchOn,
            None => Act::Nothing,
        },
    }
}

fn requests(vm: &VirtualMachine) -> &[StateChangeRequest] {
    vm.status.as_ref().map_or(&[], |status| &status.state_change_requests)
}

/// The request to start, if there is one.
pub(super) fn start_request(vm: &VirtualMachine) -> Option<&StateChangeRequest> {
    requests(vm).iter().find(|request| request.action == "Start" && !is_outdated(vm, request))
}

/// The request to stop this very instance, if there is one and it comes first.
pub(super) fn stop_request<'a>(vm: &'a VirtualMachine, vmi: &VirtualMachineInstance) -> Option<&'a StateChangeRequest> {
    requests(vm).first().filter(|request| request.action == "Stop" && request.uid.as_deref() == Some(vmi.uid()))
}

/// The seconds that a request to stop leaves the guest, when it says so.
pub(super) fn grace_period_s(request: &StateChangeRequest) -> Option<i64> {
    request.data.get("gracePeriod").and_then(|seconds| seconds.parse().ok())
}

/// Whether a request is to start with CPUs stopped.
fn is_paused(request: &StateChangeRequest) -> bool {
    request.data.get("paused").is_some_and(|value| value == "true")
}

/// Whether a request to start is from before its machine was halted: what is left of a restart, or of a failure. The last word is that
/// it is to be off. Who starts one that is halted changes its strategy, and asks only when it is to start paused. What comes behind a
/// stop is the rest of a restart, whatever strategy was told by then; so is what is there before any was told.
pub(super) fn is_outdated(vm: &VirtualMachine, request: &StateChangeRequest) -> bool {
    let is_rest = requests(vm).first().is_some_and(|first| first.action == "Stop");
    let was_halted = last_strategy(vm) == run_strategy::HALTED && !is_rest;
    vm.run_strategy() == run_strategy::HALTED && !was_halted && !is_paused(request)
}

/// The strategy that was last acted on.
fn last_strategy(vm: &VirtualMachine) -> &str {
    vm.status.as_ref().map_or("", |status| &status.run_strategy)
}
