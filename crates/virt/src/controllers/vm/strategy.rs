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

/// Decides. A machine that is being restored is not started: its disks are being replaced.
pub(super) fn decide(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> Act {
    let is_held = vm.status.as_ref().is_some_and(|status| status.restore_in_progress.is_some());
    match wanted(vm, instance) {
        Act::Start { .. } | Act::SwitchOn if is_held => Act::Nothing,
        act => act,
    }
}

/// What the strategy asks for. Strategies are KubeVirt's (<https://kubevirt.io/user-guide/compute/run_strategies/>).
fn wanted(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>) -> Act {
    let stop = instance.and_then(|vmi| stop_request(vm, vmi));
    let start = start_request(vm);
    let paused = start.is_some_and(|request| request.data.get("paused").is_some_and(|value| value == "true"));
    let is_final = instance.is_some_and(VirtualMachineInstance::is_final);
    const STOP: Act = Act::Stop { grace_period_s: None };
    if let Some(request) = stop {
        return Act::Stop { grace_period_s: request.data.get("gracePeriod").and_then(|s| s.parse().ok()) };
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
    requests(vm).iter().find(|request| request.action == "Start")
}

/// The request to stop this very instance, if there is one and it comes first.
pub(super) fn stop_request<'a>(vm: &'a VirtualMachine, vmi: &VirtualMachineInstance) -> Option<&'a StateChangeRequest> {
    requests(vm).first().filter(|request| request.action == "Stop" && request.uid.as_deref() == Some(vmi.uid()))
}

/// The strategy that was last acted on.
fn last_strategy(vm: &VirtualMachine) -> &str {
    vm.status.as_ref().map_or("", |status| &status.run_strategy)
}
