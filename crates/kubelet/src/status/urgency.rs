//! What of a pod's status others wait for.
//!
//! On its way to Running, and to its end, a pod goes through many small steps: its sandbox has an address, one container runs,
//! then the next. Each would be a write that nobody waits for. Such a change waits for a moment, and usually becomes one write
//! with what follows; what others act on (phase, readiness, failures, what stands in the way) is told at once.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodCondition, PodStatus};

use super::pod::READY_TO_START;

/// How long a change may wait that nobody waits for.
const HOLD: Duration = Duration::from_millis(500);
/// How long a step on the way to Running may.
const STEP_HOLD: Duration = Duration::from_millis(1500);

/// How long this change of a status may wait; not at all, if somebody may wait for it. What readiness is left of a pod that is
/// being deleted is nothing to be quick about: nobody counts on it any more.
#[must_use]
pub fn hold(before: Option<&PodStatus>, after: &PodStatus, deleting: bool) -> Option<Duration> {
    let is_pending = after.phase.as_deref() == Some("Pending");
    let ends = |status: &PodStatus| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if deleting && !ends(after) && !before.is_some_and(ends) {
        return Some(HOLD);
    }
    (!is_pressing(before, after)).then_some(if is_pending { STEP_HOLD } else { HOLD })
}

/// Conditions that only say how far the pod is on its way.
const STEPS: [&str; 4] = ["PodScheduled", "Initialized", "ContainersReady", READY_TO_START];

/// Reasons with which a container waits that is simply not there yet.
const NOT_YET: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Whether somebody may wait for this change of a status.
fn is_pressing(before: Option<&PodStatus>, after: &PodStatus) -> bool {
    let nothing = PodStatus::default();
    let before = before.unwrap_or(&nothing);
    let phase = |status: &PodStatus| status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
    phase(before) != phase(after)
        || (&before.reason, &before.message) != (&after.reason, &after.message)
        || before.ephemeral_container_statuses != after.ephemeral_container_statuses
        || verdicts(before) != verdicts(after)
        || is_any_pressing(before, after)
}

/// Whether somebody may wait for the change of any container.
fn is_any_pressing(before: &PodStatus, after: &PodStatus) -> bool {
    let mut first: BTreeMap<&str, &ContainerStatus> = BTreeMap::new();
    for then in containers(before) {
        first.entry(&then.name).or_insert(then);
    }
    containers(after).any(|now| container_is_pressing(first.get(now.name.as_str()).copied(), now))
}

/// Conditions that others act on. One that is not there is as good as false.
fn verdicts(status: &PodStatus) -> Vec<(&str, &str, Option<&str>)> {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let acted_on = |condition: &&PodCondition| match condition.type_.as_str() {
        "Ready" => condition.status == "True",
        step => !STEPS.contains(&step),
    };
    let acted_on = conditions.iter().filter(acted_on);
    let mut verdicts: Vec<_> = acted_on.map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref())).collect();
    verdicts.sort_unstable();
    verdicts
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten()
}

fn container_is_pressing(before: Option<&ContainerStatus>, after: &ContainerStatus) -> bool {
    let restarted = before.map_or(0, |before| before.restart_count) != after.restart_count;
    let trouble = |state: Option<&ContainerState>| {
        let waiting = state.and_then(|state| state.waiting.as_ref()).and_then(|waiting| waiting.reason.clone());
        let failed = state.and_then(|state| state.terminated.as_ref()).map(|terminated| terminated.exit_code);
        (waiting.filter(|reason| !NOT_YET.contains(&reason.as_str())), failed.filter(|code| *code != 0))
    };
    restarted || trouble(before.and_then(|before| before.state.as_ref())) != trouble(after.state.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).expect("a status")
    }

    #[test]
    fn what_others_wait_for_is_told_at_once() {
        let container = |state: Value| json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        let creating = || container(json!({"waiting": {"reason": "ContainerCreating"}}));
        let condition = |kind: &str, status: &str| json!([{"type": kind, "status": status}]);
        let with = |change: Value| {
            let mut value =
                json!({"phase": "Pending", "conditions": condition("Ready", "False"), "containerStatuses": creating()});
            value.as_object_mut().expect("a map").extend(change.as_object().expect("a map").clone());
            status(value)
        };
        let table = [
            ("nothing changes", json!({}), false),
            ("it has an address", json!({"podIP": "10.0.0.1"}), false),
            ("a step on the way", json!({"conditions": condition("Initialized", "True")}), false),
            ("a container runs", json!({"containerStatuses": container(json!({"running": {}}))}), false),
            (
                "one has ended well",
                json!({"initContainerStatuses": container(json!({"terminated": {"exitCode": 0}}))}),
                false,
            ),
            (
                "one has failed",
                json!({"initContainerStatuses": container(json!({"terminated": {"exitCode": 1}}))}),
                true,
            ),
            ("no image", json!({"containerStatuses": container(json!({"waiting": {"reason": "ErrImagePull"}}))}), true),
            ("a new phase", json!({"phase": "Running"}), true),
            ("ready", json!({"conditions": condition("Ready", "True")}), true),
            ("what it waits for", json!({"conditions": condition("carrack.io/Admitted", "False")}), true),
            ("refused", json!({"reason": "UnexpectedAdmissionError"}), true),
            ("debugged", json!({"ephemeralContainerStatuses": creating()}), true),
        ];
        for (what, change, expected) in table {
            assert_eq!(is_pressing(Some(&with(json!({}))), &with(change)), expected, "{what}");
        }
        let mut restarted = with(json!({}));
        restarted.container_statuses.as_mut().expect("one")[0].restart_count = 1;
        assert!(is_pressing(Some(&with(json!({}))), &restarted));
        // The first word of a new pod, whose status the API server has begun.
        assert!(!is_pressing(Some(&status(json!({"phase": "Pending"}))), &with(json!({}))));
        assert!(!is_pressing(None, &with(json!({}))));
        assert!(is_pressing(None, &with(json!({"phase": "Running"}))));
        // A step on the way to Running may wait longer; of a pod that goes, its end alone is pressing.
        let running = with(json!({"phase": "Running", "conditions": condition("Ready", "True")}));
        let unready = with(json!({"phase": "Running"}));
        let ended = with(json!({"phase": "Succeeded"}));
        let steps = [
            (None, with(json!({})), false, Some(STEP_HOLD)),
            (Some(&running), unready.clone(), false, None),
            (Some(&running), unready, true, Some(HOLD)),
            (Some(&running), ended.clone(), true, None),
            (Some(&ended), with(json!({"phase": "Succeeded", "podIP": "10.0.0.1"})), true, Some(HOLD)),
        ];
        for (before, after, deleting, held) in steps {
            assert_eq!(hold(before, &after, deleting), held, "{before:?} {after:?} {deleting}");
        }
        // It is not ready any more, also where its condition goes.
        let ready = with(json!({"conditions": condition("Ready", "True")}));
        assert!(
            is_pressing(Some(&ready), &with(json!({}))) && is_pressing(Some(&ready), &with(json!({"conditions": []})))
        );
    }
}
