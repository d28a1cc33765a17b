//! What must hold of workloads at every step.
//!
//! A bound follows from a spec, and a controller may act on a spec that is not the newest. So each bound is the weakest of
//! all specs that an object has had: a Deployment that is only ever rolled has its bounds exactly.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::wants::pods_of;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, controller, deleting, key_of, terminal, text, uid};

/// The bounds of one Deployment.
#[derive(Debug)]
struct Rolling {
    most: i64,
    least_available: i64,
    /// Whether so many were available once.
    reached: bool,
    recreate: bool,
}

/// Bounds of all workloads.
#[derive(Default)]
pub(crate) struct Bounds {
    /// By UID.
    deployments: BTreeMap<String, Rolling>,
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn counts(pod: &Value) -> bool {
    !terminal(pod) && !deleting(pod)
}

impl Bounds {
    /// A change that was just committed.
    pub(crate) fn changed(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        match (change.resource, &change.after) {
            ("deployment", Some(deployment)) => self.deployment(deployment),
            ("pod", _) if !controller(change.object()).is_empty() => self.pod(change.object(), observer, breaches),
            _ => {}
        }
    }

    fn deployment(&mut self, object: &Value) {
        let replicas = number(object, "/spec/replicas");
        let part = |field: &str| number(object, &format!("/spec/strategy/rollingUpdate/{field}"));
        let recreate = text(object, "/spec/strategy/type") == "Recreate";
        let (most, least) = (replicas + part("maxSurge"), replicas - part("maxUnavailable"));
        let bounds = self.deployments.entry(uid(object).to_owned()).or_insert(Rolling {
            most,
            least_available: least,
            reached: false,
            recreate,
        });
        bounds.most = bounds.most.max(most);
        bounds.least_available = bounds.least_available.min(least);
    }

    fn pod(&mut self, pod: &Value, observer: &Observer, breaches: &mut Vec<Breach>) {
        let Some(set) = observer.all("replicaset").find(|s| uid(s) == controller(pod)) else { return };
        let Some(deployment) = observer.all("deployment").find(|d| uid(d) == controller(set)) else { return };
        let Some(bounds) = self.deployments.get_mut(uid(deployment)) else { return };
        if deleting(deployment) {
            return;
        }
        let name = key_of(deployment);
        let breach = |what: String| Breach::new("rollouts-keep-their-bounds", what);
        let pods: Vec<&Value> = pods_of(deployment, observer).collect();
        let have = i64::try_from(pods.iter().filter(|p| counts(p)).count()).unwrap_or(i64::MAX);
        if have > bounds.most {
            breaches.push(breach(format!("{name} has {have} pods that count, of {} at most", bounds.most)));
        }
        let running: BTreeSet<&str> = pods.iter().filter(|p| !terminal(p)).map(|p| controller(p)).collect();
        if bounds.recreate && running.len() > 1 {
            breaches.push(breach(format!("{name} is to be recreated, and has pods of {} templates", running.len())));
        }
        let available = i64::try_from(pods.iter().filter(|p| counts(p) && is_ready(p)).count()).unwrap_or(0);
        if available >= bounds.least_available {
            bounds.reached = true;
        } else if bounds.reached && !bounds.recreate {
            let least = bounds.least_available;
            breaches.push(breach(format!("{name} has {available} available pods, of {least} at least")));
        }
    }
}
