//! Failed starts: how many in a row, and when to try again.

use std::time::Duration;

use carrack_engine::{Time, fnv1a};
use carrack_types::kubevirt::vm::StartFailure;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, phase, run_strategy};
use carrack_types::resource::Object;

/// Longest wait between two starts, seconds.
const MAX_WAIT_S: u64 = 300;

/// Whether an instance ended without ever having run.
fn failed_early(vmi: &VirtualMachineInstance) -> bool {
    vmi.is_final() && !has_run(vmi)
}

/// Whether an instance has run.
fn has_run(vmi: &VirtualMachineInstance) -> bool {
    vmi.phase() == phase::RUNNING
        || vmi
            .status
            .iter()
            .flat_map(|status| &status.phase_transition_timestamps)
            .any(|transition| transition.phase == phase::RUNNING)
}

/// The wait before start number `failures + 1`, in seconds: 10·n² and up to half as much again, so that machines that
/// failed together do not come back together. The addition is derived, so that asking twice gives one answer.
fn wait_s(failures: u64, uid: &str) -> u64 {
    let base = failures.saturating_mul(failures).saturating_mul(10).min(MAX_WAIT_S);
    let spread = fnv1a(format!("{uid}/{failures}").as_bytes()) % (base / 2).max(1);
    (base + spread).min(MAX_WAIT_S)
}

/// The failed starts after what is seen now.
pub(super) fn after(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>, now: Time) -> Option<StartFailure> {
    // Who starts machines by hand sees what becomes of it, and decides when to try again.
    if matches!(vm.run_strategy(), run_strategy::HALTED | run_strategy::MANUAL) {
        return None;
    }
    let old = vm.status.as_ref().and_then(|status| status.start_failure.clone());
    let Some(vmi) = instance else { return old };
    if has_run(vmi) {
        return None;
    }
    if !failed_early(vmi) || old.as_ref().is_some_and(|failure| failure.last_failed_vmi_uid == vmi.uid()) {
        return old;
    }
    let count = old.map_or(0, |failure| failure.consecutive_fail_count).max(0).saturating_add(1);
    let wait = Duration::from_secs(wait_s(u64::try_from(count).unwrap_or(1), vm.uid()));
    Some(StartFailure {
        consecutive_fail_count: count,
        last_failed_vmi_uid: vmi.uid().to_owned(),
        retry_after_timestamp: Some((now + wait).meta()),
    })
}

/// How long the next start must still wait. One that is further off than the longest wait was dated by a clock that was ahead: it
/// would be waited for by the calendar, and is not waited for at all.
pub(super) fn wait_left(vm: &VirtualMachine, now: Time) -> Duration {
    let failure = vm.status.as_ref().and_then(|status| status.start_failure.as_ref());
    let left = failure.and_then(|failure| failure.retry_after_timestamp.as_ref()).map(|at| Time::from(at).since(now));
    left.filter(|left| *left <= Duration::from_secs(MAX_WAIT_S)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use carrack_engine::Time;
    use carrack_types::kubevirt::VirtualMachine;
    use serde_json::json;

    use super::{wait_left, wait_s};

    #[test]
    fn waits_grow_with_the_square_and_end_at_the_cap() {
        for (failures, least) in [(1, 10), (2, 40), (3, 90), (4, 160), (5, 250), (6, 300), (100, 300)] {
            let wait = wait_s(failures, "uid");
            assert!(wait >= least && wait <= 300.min(least * 3 / 2), "{failures}: {wait}");
        }
    }

    #[test]
    fn a_clock_that_was_ahead_makes_nobody_wait() {
        let failure = json!({"consecutiveFailCount": 1, "retryAfterTimestamp": "1970-01-01T01:00:00Z"});
        let vm = json!({"metadata": {"name": "v"}, "spec": {"template": {"spec": {"domain": {"devices": {}}}}},
            "status": {"startFailure": failure}});
        let vm: VirtualMachine = serde_json::from_value(vm).expect("a machine");
        for (now_s, expected_s) in [(3700, 0), (3600, 0), (3590, 10), (3300, 300), (3000, 0), (0, 0)] {
            assert_eq!(wait_left(&vm, Time::from_unix_s(now_s)).as_secs(), expected_s, "{now_s}");
        }
    }
}
