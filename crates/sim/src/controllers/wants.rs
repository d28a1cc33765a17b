//! What must be so of workloads in the end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::acts::{ROLLBACK, VERSION};
use super::bounds::is_ready;
use super::times::is_over;
use crate::observer::{Observer, conditions, controller, deleting, key_of, terminal, text, uid};

pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn version(object: &Value, at: &str) -> String {
    object
        .pointer(&format!("{at}/metadata/annotations"))
        .and_then(|a| a[VERSION].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// The pods of a workload: of an object, or of a ReplicaSet of it.
pub(super) fn pods_of<'a>(object: &'a Value, observer: &'a Observer) -> impl Iterator<Item = &'a Value> {
    let id = uid(object);
    let mut owners: Vec<&str> = observer.all("replicaset").filter(|s| controller(s) == id).map(uid).collect();
    owners.push(id);
    observer.all("pod").filter(move |p| owners.contains(&controller(p)))
}

/// Whether a node is one of those that pods of a workload ask for.
fn takes(object: &Value, node: &Value) -> bool {
    let asked = object.pointer("/spec/template/spec/nodeSelector").and_then(Value::as_object);
    asked.into_iter().flatten().all(|(label, value)| node["metadata"]["labels"].get(label) == Some(value))
}

/// What is not as the object's spec says.
pub(crate) fn lacks(kind: &str, object: &Value, observer: &Observer) -> Option<String> {
    match kind {
        "job" => return job_lacks(object, observer),
        "cronjob" => return super::times::lacks(object, observer),
        "service" => return super::services::lacks(object, observer),
        "quota" => return super::quotas::lacks(object, observer),
        "autoscaler" => return super::autoscalers::lacks(object, observer),
        _ => {}
    }
    if kind == "statefulset"
        && let Some(stray) = super::scratch::stray(observer)
    {
        return Some(stray);
    }
    if object.pointer("/metadata/annotations").is_some_and(|a| a.get(ROLLBACK).is_some()) {
        return Some("is still to go back".to_owned());
    }
    if number(object, "/status/observedGeneration") < number(object, "/metadata/generation") {
        return Some("has a status from before its spec".to_owned());
    }
    let wanted = match kind {
        "daemonset" => observer.all("node").filter(|node| takes(object, node)).count().try_into().unwrap_or(0),
        _ => number(object, "/spec/replicas"),
    };
    let counts: &[&str] = match kind {
        "deployment" => &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"],
        "statefulset" => &["replicas", "updatedReplicas", "currentReplicas", "readyReplicas", "availableReplicas"],
        "daemonset" => &[
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "updatedNumberScheduled",
            "numberReady",
            "numberAvailable",
        ],
        _ => &["replicas", "readyReplicas", "availableReplicas"],
    };
    for count in counts {
        let is = number(object, &format!("/status/{count}"));
        if is != wanted {
            return Some(format!("has {is} {count} of {wanted}"));
        }
    }
    let pods: Vec<&Value> = pods_of(object, observer).collect();
    let version_wanted = version(object, "/spec/template");
    let good = |p: &Value| {
        is_ready(p) && !deleting(p) && (kind == "replicationcontroller" || version(p, "") == version_wanted)
    };
    if let Some(pod) = pods.iter().find(|p| !good(p)) {
        return Some(format!("has the pod {}, which is not what it should be", key_of(pod)));
    }
    (i64::try_from(pods.len()) != Ok(wanted)).then(|| format!("has {} pods of {wanted}", pods.len()))
}

fn job_lacks(job: &Value, observer: &Observer) -> Option<String> {
    if !is_over(job) {
        return Some("is not over".to_owned());
    }
    if let Some(left) = super::heirs::left(observer) {
        return Some(left);
    }
    let left = pods_of(job, observer).find(|p| !terminal(p) || p.pointer("/metadata/finalizers").is_some());
    left.map(|pod| format!("is over, and its pod {} is not", key_of(pod)))
}

/// The state of all workloads without what chance decides: names, addresses, times.
pub(crate) fn end(observer: &Observer) -> BTreeMap<String, Value> {
    let kinds = ["deployment", "replicationcontroller", "statefulset", "daemonset", "job"];
    let objects = kinds.iter().flat_map(|kind| observer.all(kind).map(move |o| (*kind, o)));
    // How many Jobs a CronJob has made depends on when.
    let objects = objects.filter(|(kind, o)| *kind != "job" || controller(o).is_empty());
    objects
        .map(|(kind, object)| {
            let mut pods: Vec<Value> = pods_of(object, observer)
                .filter(|p| !terminal(p))
                .map(|p| json!([version(p, ""), text(p, "/status/phase"), is_ready(p)]))
                .collect();
            pods.sort_by_key(Value::to_string);
            // Whether a Job was over before it was suspended is a matter of time, too.
            let mut conditions: Vec<Value> = conditions(object)
                .filter(|c| c["type"] != "Suspended")
                .map(|c| json!([c["type"], c["status"], c["reason"]]))
                .collect();
            conditions.sort_by_key(Value::to_string);
            let status = object.get("status").and_then(Value::as_object);
            // How often a Job's pods fail depends on when it is suspended; which revisions there are to go back to, on when it is
            // asked.
            let told = |field: &String| match kind {
                "job" => field == "succeeded" && !super::heirs::inherits(object),
                _ => field != "observedGeneration",
            };
            let counts: BTreeMap<&String, &Value> =
                status.into_iter().flatten().filter(|(field, v)| v.is_i64() && told(field)).collect();
            (format!("{kind} {}", key_of(object)), json!({"pods": pods, "conditions": conditions, "status": counts}))
        })
        .collect()
}
