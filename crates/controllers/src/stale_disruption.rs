//! Takes back that a pod is about to be disrupted, where nothing came of it.
//!
//! Whoever evicts or preempts a pod says so first, in its condition `DisruptionTarget`, and deletes it then. If the second step
//! never comes, the pod goes on, and a Job's failure policy would take a later failure of its own for the cluster's. So the
//! condition is set to `False` after a while. What the kubelet said itself stays: it may take as long as it likes to end a pod.
//! Behaviour follows kube-controller-manager's disruption controller (pkg/controller/disruption).

use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::json;

use crate::pods;

const CONDITION: &str = "DisruptionTarget";
/// How long a pod may be about to be deleted.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The reason of the kubelet's own condition.
const BY_KUBELET: &str = "TerminationByKubelet";

/// The controller; its keys are those of pods.
pub struct StaleDisruption;

/// The condition of a pod that says it is to be deleted, and is not being deleted.
fn pending(pod: &Pod) -> Option<&PodCondition> {
    if pod.is_deleting() || is_terminal(pod) {
        return None;
    }
    pods::condition(pod, CONDITION).filter(|c| c.status == "True" && c.reason.as_deref() != Some(BY_KUBELET))
}

impl Controller for StaleDisruption {
    fn name(&self) -> &'static str {
        "stale-disruption"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch::<Pod>(|pod, _| pending(pod).map(|_| Key::of(pod)).into_iter().collect());
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(pod) = view.get::<Pod>(&key.namespace, &key.name) else { return Plan::none() };
        let Some(condition) = pending(pod) else { return Plan::none() };
        let since = condition.last_transition_time.as_ref().map_or(Time::default(), Time::from);
        // A clock that went back makes the wait no longer than it is.
        let left = TIMEOUT.saturating_sub(now.since(since));
        if !left.is_zero() {
            return Plan::none().requeue_after(left);
        }
        let over = PodCondition { type_: CONDITION.into(), status: "False".into(), ..PodCondition::default() };
        Plan::none().patch_status(pod.as_ref(), json!({"status": {"conditions": pods::with_condition(pod, over, now)}}))
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;

    use super::*;
    use crate::testing::{of, words};

    fn check(status: &str, reason: &str, phase: &str, deleting: bool, at_s: i64, expected: (&[&str], Option<u64>)) {
        let mut pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "1"},
            "spec": {"containers": []}, "status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"},
                {"type": CONDITION, "status": status, "reason": reason, "lastTransitionTime": "1970-01-01T00:01:00Z"}]}});
        if deleting {
            pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:01:00Z".into();
        }
        let caches = Caches::new().with::<Pod>([of(pod)]);
        let plan = StaleDisruption.reconcile(&Key::new("ns", "p"), &caches.view(), Time::from_unix_s(at_s));
        let found = words(&plan);
        assert_eq!(found, expected.0, "{status} {reason} {phase} {deleting} at {at_s}");
        let again_s = plan.requeue_after.map(|after| after.as_secs());
        assert_eq!(again_s, expected.1, "{status} {reason} {phase} {deleting} at {at_s}");
    }

    #[test]
    fn what_nobody_carried_out_is_taken_back() {
        let cleared = &["patch ns/p/status Ready=True DisruptionTarget=False"][..];
        check("True", "EvictionByEvictionAPI", "Running", false, 60, (&[], Some(120)));
        check("True", "PreemptionByScheduler", "Running", false, 179, (&[], Some(1)));
        check("True", "PreemptionByScheduler", "Pending", false, 180, (cleared, None));
        // The clock went back.
        check("True", "EvictionByEvictionAPI", "Running", false, 0, (&[], Some(120)));
        // Nothing is stale about these.
        check("False", "", "Running", false, 600, (&[], None));
        check("True", BY_KUBELET, "Running", false, 600, (&[], None));
        check("True", "EvictionByEvictionAPI", "Running", true, 600, (&[], None));
        check("True", "EvictionByEvictionAPI", "Failed", false, 600, (&[], None));
    }
}
