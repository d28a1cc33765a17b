//! What a hollow node does with a pod.

use std::time::Duration;

use carrack_engine::Time;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

use crate::Config;

/// Annotation of a pod whose containers end by themselves: their exit code. Where the pod restarts containers that end so,
/// it goes on running.
pub const EXIT_CODE: &str = "hollow.carrack.io/exit-code";
/// How many seconds its containers run before; at once without it.
pub const EXIT_AFTER_S: &str = "hollow.carrack.io/exit-after-s";

/// How many seconds a pod runs before it is ready; at once without it.
pub const READY_AFTER_S: &str = "hollow.carrack.io/ready-after-s";

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Run,
    End,
    Remove,
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

/// Whether its containers have ended for good.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether its containers run.
pub(crate) fn runs(pod: &Pod) -> bool {
    phase(pod) == "Running"
}

/// Whether it runs, and is held for not ready.
pub(crate) fn is_misjudged(pod: &Pod) -> bool {
    runs(pod) && !pod.is_deleting() && condition(pod, "Ready").is_some_and(|c| c.status != "True")
}

/// What is to be done with a pod that is bound to one of the nodes, and when.
pub(crate) fn due(pod: &Pod, config: &Config) -> Option<(Time, Due)> {
    let (phase, ended) = (phase(pod), has_ended(pod));
    if let Some(asked) = &pod.metadata.deletion_timestamp {
        // The timestamp is when the grace period ends.
        let grace_s = u64::try_from(pod.metadata.deletion_grace_period_seconds.unwrap_or(0)).unwrap_or(0);
        // A pod that ends before it goes leaves its end in the status, as a kubelet would.
        let what = if ended { Due::Remove } else { Due::End };
        return Some((Time::from(asked) - Duration::from_secs(grace_s) + config.stop_after, what));
    }
    if ended {
        return None;
    }
    if phase == "Running" {
        let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(Time::default(), Time::from);
        let ready = annotation(pod, READY_AFTER_S).filter(|_| !was_ready(pod));
        let ready = ready.map(|after_s| (started + Duration::from_secs(after_s), Due::Run));
        let restart = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always");
        let ends = |code: &i32| restart != "Always" && (restart != "OnFailure" || *code == 0);
        let after_s = annotation(pod, EXIT_AFTER_S).unwrap_or(0);
        let end = exit_code(pod).filter(ends).map(|_| (started + Duration::from_secs(after_s), Due::End));
        return ready.into_iter().chain(end).min_by_key(|(at, _)| *at);
    }
    let bound = condition(pod, "PodScheduled").and_then(|c| c.last_transition_time.as_ref());
    Some((bound.map_or(Time::default(), Time::from) + config.start_after, Due::Run))
}

/// Whether its node has said that it is ready. Others may have said since that it is not.
fn was_ready(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    statuses.into_iter().all(|c| c.ready)
}

fn annotation<T: std::str::FromStr>(pod: &Pod, key: &str) -> Option<T> {
    pod.metadata.annotations.as_ref()?.get(key)?.parse().ok()
}

fn exit_code(pod: &Pod) -> Option<i32> {
    annotation(pod, EXIT_CODE)
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// The conditions that are not a kubelet's own, and the kubelet's.
fn conditions(pod: &Pod, initialized: bool, ready: bool, now: Time) -> Vec<Value> {
    let own = [("Initialized", initialized), ("Ready", ready), ("ContainersReady", ready)];
    let others = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    others
        .filter(|c| own.iter().all(|(kind, _)| *kind != c.type_))
        .filter_map(|c| serde_json::to_value(c).ok())
        .chain(own.map(|(kind, holds)| {
            let status = if holds { "True" } else { "False" };
            let since = condition(pod, kind).filter(|c| c.status == status);
            let since = since.and_then(|c| c.last_transition_time.as_ref()).map_or(now, Time::from);
            json!({"type": kind, "status": status, "lastTransitionTime": since.rfc3339()})
        }))
        .collect()
}

fn rests_on(pod: &Pod) -> Value {
    json!({"uid": pod.uid(), "resourceVersion": pod.metadata.resource_version})
}

fn containers(pod: &Pod, state: impl Fn() -> Value, ready: bool) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    containers
        .map(|c| {
            json!({"name": c.name, "image": c.image.as_deref().unwrap_or_default(), "imageID": "hollow", "ready": ready,
                "started": ready, "restartCount": 0, "state": state()})
        })
        .collect()
}

/// The patch that says that a pod runs, and is ready, if it need not run for a while before.
pub(crate) fn running(pod: &Pod, host: &str, number: u32, now: Time) -> Value {
    // 10.0.0.0/8, without the ends of each range of 256.
    let new = format!("10.{}.{}.{}", number / 254 / 256 % 256, number / 254 % 256, number % 254 + 1);
    let ip = pod.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or(new);
    let ready = runs(pod) || annotation::<u64>(pod, READY_AFTER_S).is_none();
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(now, Time::from);
    json!({"metadata": rests_on(pod), "status": {
        "phase": "Running",
        "hostIP": host, "hostIPs": [{"ip": host}], "podIP": ip, "podIPs": [{"ip": ip}],
        "startTime": started.rfc3339(),
        "conditions": conditions(pod, true, ready, now),
        "containerStatuses": containers(pod, || json!({"running": {"startedAt": started.rfc3339()}}), ready)}})
}

/// The patch that says that a pod has ended: by itself with the code that it asks for, or because it was told to.
pub(crate) fn ended(pod: &Pod, now: Time) -> Value {
    let told = pod.is_deleting();
    let code = if told { exit_code(pod).unwrap_or(143) } else { exit_code(pod).unwrap_or(0) };
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(now, Time::from);
    let state = json!({"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
        "startedAt": started.rfc3339(), "finishedAt": now.rfc3339()}});
    json!({"metadata": rests_on(pod), "status": {
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "conditions": conditions(pod, true, false, now),
        "containerStatuses": containers(pod, || state.clone(), false)}})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is to be done with a pod, and how many seconds after the epoch.
    fn check(pod: Value, expected: Option<(i64, Due)>) {
        let parsed: Pod = carrack_types::json::from_value(pod.clone()).expect("a pod");
        let config =
            Config { start_after: Duration::from_secs(2), stop_after: Duration::from_secs(3), ..Config::default() };
        assert_eq!(due(&parsed, &config).map(|(at, what)| (at.unix_s(), what)), expected, "{pod}");
    }

    #[test]
    fn pods_run_end_and_go() {
        let scheduled =
            json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:10Z"}]);
        check(json!({"status": {"phase": "Pending", "conditions": scheduled}}), Some((12, Due::Run)));
        let running = json!({"phase": "Running", "startTime": "1970-01-01T00:00:20Z"});
        check(json!({"status": running}), None);
        // One that is not ready at once is so later; who says otherwise after that is not its node.
        let later = json!({"annotations": {READY_AFTER_S: "4"}});
        let mut unready = running.clone();
        unready["containerStatuses"] =
            json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0}]);
        check(json!({"metadata": later, "status": unready}), Some((24, Due::Run)));
        check(json!({"metadata": later, "status": running}), None);
        check(json!({"status": unready}), None);
        let ends = json!({"annotations": {EXIT_CODE: "1", EXIT_AFTER_S: "5"}});
        let restarts = |policy: &str| json!({"containers": [], "restartPolicy": policy});
        check(json!({"metadata": ends, "spec": restarts("Never"), "status": running}), Some((25, Due::End)));
        check(json!({"metadata": ends, "spec": restarts("OnFailure"), "status": running}), None);
        check(json!({"metadata": ends, "spec": restarts("Always"), "status": running}), None);
        let deleting = json!({"deletionTimestamp": "1970-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30});
        check(json!({"metadata": deleting, "status": running}), Some((33, Due::End)));
        check(json!({"metadata": deleting, "status": {"phase": "Failed"}}), Some((33, Due::Remove)));
        check(json!({"status": {"phase": "Failed"}}), None);
    }
}
