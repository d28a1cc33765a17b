//! What a pod is like, which pod goes first, and a pod from a template.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{EventRecord, Time, controller_ref};
use carrack_types::resource::{Kind, Object as _};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(crate) use crate::pods::{condition, node_of as node};

/// Annotation that says how much a pod's deletion costs; the cheapest goes first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The pod's phase.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

/// Whether its containers have ended for good.
pub(crate) fn terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether it counts as a replica: it has not ended, and is not asked to.
pub(crate) fn active(pod: &Pod) -> bool {
    !terminal(pod) && !pod.is_deleting()
}

fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    condition(pod, "Ready").filter(|c| c.status == "True")
}

/// Whether it is ready.
pub(crate) fn ready(pod: &Pod) -> bool {
    ready_condition(pod).is_some()
}

/// Whether it has been ready for so long; if not, how long it still has to be.
pub(crate) fn available(pod: &Pod, min_ready_s: i32, now: Time) -> Result<(), Option<Duration>> {
    let condition = ready_condition(pod).ok_or(None)?;
    let needed = Duration::from_secs(u64::try_from(min_ready_s).unwrap_or(0));
    let since = condition.last_transition_time.as_ref().map_or(now, Time::from);
    let left = needed.saturating_sub(now.since(since));
    if left.is_zero() { Ok(()) } else { Err(Some(left)) }
}

/// How often the container of a pod was restarted that was restarted most, and of its sidecars that one.
fn restarts(pod: &Pod) -> (i32, i32) {
    let init = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    let sidecars: Vec<&str> =
        init.filter(|c| c.restart_policy.as_deref() == Some("Always")).map(|c| c.name.as_str()).collect();
    let status = || pod.status.iter();
    let most = |counts: &mut dyn Iterator<Item = i32>| counts.max().unwrap_or(0);
    let beside = status().flat_map(|s| s.init_container_statuses.iter().flatten());
    (
        most(&mut status().flat_map(|s| s.container_statuses.iter().flatten()).map(|c| c.restart_count)),
        most(&mut beside.filter(|c| sidecars.contains(&c.name.as_str())).map(|c| c.restart_count)),
    )
}

fn deletion_cost(pod: &Pod) -> i32 {
    pod.metadata
        .annotations
        .iter()
        .flatten()
        .find(|(k, _)| *k == DELETION_COST)
        .and_then(|(_, v)| v.parse().ok())
        .unwrap_or(0)
}

/// How old something is, in powers of two of a nanosecond: what is about as old as another goes in no particular order.
fn about_as_old(age: Option<Duration>) -> Option<u32> {
    age.and_then(|age| age.as_nanos().checked_ilog2())
}

/// For how long a pod has been ready.
fn ready_for(pod: &Pod, now: Time) -> Option<Duration> {
    ready_condition(pod).and_then(|c| c.last_transition_time.as_ref()).map(|at| now.since(Time::from(at)))
}

/// How long ago a pod was made.
fn old(pod: &Pod, now: Time) -> Option<Duration> {
    pod.metadata.creation_timestamp.as_ref().map(|at| now.since(Time::from(at)))
}

/// Unbound before bound, pending before running, not ready before ready.
fn less_there(a: &Pod, b: &Pod) -> Ordering {
    let phase_rank = |pod: &Pod| match phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    (!node(a).is_empty())
        .cmp(&!node(b).is_empty())
        .then_with(|| phase_rank(a).cmp(&phase_rank(b)))
        .then_with(|| ready(a).cmp(&ready(b)))
}

/// Which of two pods of a Job goes first when there are too many: the less goes before the greater. Follows upstream's
/// `ActivePods`, which knows no costs, no company, and ages exactly: what is less there, the one that is ready for a shorter
/// time, with more restarts, and the younger one.
pub(crate) fn of_job_goes_before(a: &Pod, b: &Pod, now: Time) -> Ordering {
    less_there(a, b)
        .then_with(|| ready_for(a, now).cmp(&ready_for(b, now)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| old(a, now).cmp(&old(b, now)))
        .then_with(|| a.uid().cmp(b.uid()))
}

/// Which of two pods of a set goes first when there are too many: the less goes before the greater. Follows upstream's
/// `ActivePodsWithRanks`: what is less there, the cheaper, those with more company on their node, the one that is ready for a
/// shorter time, with more restarts, and the younger one. Where two are about as old upstream asks their UIDs at once; here the
/// rest is asked before, so that the order is one.
pub(crate) fn goes_before(a: &Pod, b: &Pod, company: &BTreeMap<String, usize>, now: Time) -> Ordering {
    let with = |pod: &Pod| company.get(node(pod)).copied().unwrap_or(0);
    let ready_for = |pod: &Pod| about_as_old(ready_for(pod, now));
    let old = |pod: &Pod| about_as_old(old(pod, now));
    less_there(a, b)
        .then_with(|| deletion_cost(a).cmp(&deletion_cost(b)))
        .then_with(|| with(b).cmp(&with(a)))
        .then_with(|| ready_for(a).cmp(&ready_for(b)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| old(a).cmp(&old(b)))
        .then_with(|| a.uid().cmp(b.uid()))
}

/// A pod of a template, with `owner` as its controller.
pub(crate) fn from_template<O: Kind>(owner: &O, template: &PodTemplateSpec, name: String) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: owner.meta().namespace.clone(),
            generate_name: Some(format!("{}-", owner.name())),
            name: Some(name),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_ref(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The labels of a template.
pub(crate) fn template_labels(template: &PodTemplateSpec) -> Option<&BTreeMap<String, String>> {
    template.metadata.as_ref().and_then(|m| m.labels.as_ref())
}

/// Tells of an object whose selector does not choose what it would make: none of that would be its own, and it would make
/// more without end. Admission refuses such an object; one may have been stored before, or by another server.
pub(crate) fn foreign_template<K: Kind>(owner: &K) -> EventRecord {
    EventRecord::warning(owner, "FailedCreate", format!("Error creating: {FOREIGN_TEMPLATE}"))
}

/// What is wrong with it.
pub(crate) const FOREIGN_TEMPLATE: &str = "the selector does not choose the labels of the template";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_less_useful_pod_goes_first() {
        let pod = |v: Value| carrack_types::json::from_value::<Pod>(v).expect("a pod");
        let ready_since = |t: &str| json!([{"type": "Ready", "status": "True", "lastTransitionTime": t}]);
        let running = |conditions: Value| {
            json!({"metadata": {"uid": "b"}, "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": "Running", "conditions": conditions}})
        };
        // Each goes before all that come after it.
        let mut restarted = running(ready_since("2026-01-01T00:00:00Z"));
        restarted["status"]["containerStatuses"] =
            json!([{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 3}]);
        let mut beside = restarted.clone();
        beside["spec"]["initContainers"] = json!([{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]);
        let begun = |name: &str, restarts: u32| json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": restarts});
        beside["status"]["initContainerStatuses"] = json!([begun("s", 2), begun("i", 9)]);
        let mut once = restarted.clone();
        once["status"]["containerStatuses"][0]["restartCount"] = 1.into();
        once["status"]["initContainerStatuses"] = json!([begun("i", 9)]);
        let mut cheap = running(ready_since("2026-01-01T00:00:00Z"));
        cheap["metadata"]["annotations"] = json!({DELETION_COST: "-1"});
        let mut crowded = running(ready_since("2026-01-01T00:00:00Z"));
        crowded["spec"]["nodeName"] = "crowded".into();
        let order = [
            json!({"status": {"phase": "Pending"}}),
            json!({"spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Pending"}}),
            running(json!([])),
            cheap,
            crowded,
            running(ready_since("2026-01-01T00:59:00Z")),
            beside,
            restarted,
            once,
            running(ready_since("2026-01-01T00:00:00Z")),
        ]
        .map(pod);
        let company = BTreeMap::from([("crowded".to_owned(), 2), ("n".to_owned(), 1)]);
        let now = Time::parse("2026-01-01T01:00:00Z").expect("a time");
        for (i, a) in order.iter().enumerate() {
            for (j, b) in order.iter().enumerate() {
                assert_eq!(goes_before(a, b, &company, now), i.cmp(&j), "{i} and {j}");
            }
        }
    }
}
