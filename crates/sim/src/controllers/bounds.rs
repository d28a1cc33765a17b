//! What must hold of workloads at every step.
//!
//! A bound follows from a spec, and a controller may act on a spec that is not the newest. So each bound is the weakest of
//! all specs that an object has had: a Deployment that is only ever rolled has its bounds exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use serde_json::Value;

use super::attachments::Attached;
use super::budgets::Guarded;
use super::claims::Claims;
use super::endings::Endings;
use super::heirs::is_held;
use super::quotas::Quotas;
use super::services::Served;
use super::times::Times;
use super::tolerations::Tolerated;
use super::wants::pods_of;
use crate::invariants::Breach;
use crate::observer::{
    Change, Observer, conditions, controller, deleting, is_true, key_of, owner_kind, terminal, text, uid,
};

/// The bounds of one Deployment.
#[derive(Debug)]
struct Rolling {
    most: i64,
    least_available: i64,
    /// Whether so many were available once.
    reached: bool,
    recreate: bool,
}

/// Ends of a Job's pods, by their UIDs.
#[derive(Debug, Default)]
struct Ends {
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// Those of pods of an index that failed by themselves, by the index.
    failed_of_index: BTreeMap<String, BTreeSet<String>>,
    /// The most pods at a time that its specs allowed.
    parallelism: i64,
}

/// Bounds of all workloads.
#[derive(Default)]
pub(crate) struct Bounds {
    /// By UID.
    deployments: BTreeMap<String, Rolling>,
    /// By UID.
    jobs: BTreeMap<String, Ends>,
    times: Times,
    claims: Claims,
    served: Served,
    guarded: Guarded,
    endings: Endings,
    tolerated: Tolerated,
    quotas: Quotas,
    attached: Attached,
    /// Since when nodes that were there have been gone.
    gone: BTreeMap<String, Time>,
}

/// How long the node of a pod must have been gone, at the least, before the pod is given up.
const QUARANTINE: Duration = Duration::from_secs(40);

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

pub(super) fn is_ready(pod: &Value) -> bool {
    is_true(pod, "Ready")
}

fn counts(pod: &Value) -> bool {
    !terminal(pod) && !deleting(pod)
}

fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object.pointer("/metadata/labels").and_then(|l| l[key].as_str()).unwrap_or_default()
}

/// Label with the index of a Job's pod.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// How many failures of its index a pod says that there were before it, those that count and those that do not.
fn failures_told(pod: &Value) -> i64 {
    let annotation = |kind: &str| {
        let name = format!("batch.kubernetes.io/job-index-{kind}-count");
        pod.pointer("/metadata/annotations").and_then(|all| all[name].as_str()?.parse::<i64>().ok()).unwrap_or(0)
    };
    annotation("failure").saturating_add(annotation("ignored-failure"))
}

/// How many failures of its index a new pod must know of: those that one which is still held has told, and its own. Of an
/// index without a limit nobody tells.
fn failures_before(job: &Value, pod: &Value, observer: &Observer) -> i64 {
    if job.pointer("/spec/backoffLimitPerIndex").is_none_or(Value::is_null) {
        return 0;
    }
    let is_held = |p: &&Value| is_held(p) && text(p, "/status/phase") == "Failed";
    let of_index = pods_of(job, observer).filter(|p| uid(p) != uid(pod) && label(p, INDEX) == label(pod, INDEX));
    of_index.filter(is_held).map(|p| failures_told(p).saturating_add(1)).max().unwrap_or(0)
}

fn size(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Bounds {
    /// A change that was just committed.
    pub(crate) fn changed(&mut self, now: Time, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        self.claims.changed(change, observer, breaches);
        self.served.changed(change, breaches);
        self.endings.changed(change, observer, breaches);
        self.tolerated.changed(now, change, breaches);
        self.quotas.changed(change, observer, breaches);
        self.attached.changed(now, change, observer, breaches);
        super::scratch::changed(change, observer, breaches);
        if change.resource == "pod" {
            self.guarded.changed(change, breaches);
        }
        match (change.resource, &change.after) {
            ("deployment", Some(deployment)) => self.deployment(deployment),
            ("job", Some(job)) => {
                self.times.made(change, observer, breaches);
                self.job(job, breaches);
            }
            ("node", Some(node)) => _ = self.gone.remove(text(node, "/metadata/name")),
            ("node", None) => _ = self.gone.insert(key_of(change.object()), now),
            ("attachment", _) => super::absences::changed(now, change, &self.gone, breaches),
            ("pod", _) => match owner_kind(change.object()) {
                "ReplicaSet" => self.rolled(change, observer, breaches),
                "DaemonSet" => daemon(change, observer, breaches),
                "StatefulSet" => stateful(change, observer, breaches),
                "Job" => self.worked(change, observer, breaches),
                _ => {}
            },
            _ => {}
        }
    }

    fn deployment(&mut self, object: &Value) {
        let replicas = number(object, "/spec/replicas");
        let part = |field: &str| number(object, &format!("/spec/strategy/rollingUpdate/{field}"));
        let recreate = text(object, "/spec/strategy/type") == "Recreate";
        let (most, least) = (replicas + part("maxSurge"), replicas - part("maxUnavailable"));
        let fresh = Rolling { most, least_available: least, reached: false, recreate };
        let bounds = self.deployments.entry(uid(object).to_owned()).or_insert(fresh);
        bounds.most = bounds.most.max(most);
        bounds.least_available = bounds.least_available.min(least);
    }

    /// A pod of a Deployment changed.
    fn rolled(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        let pod = change.object();
        let Some(set) = observer.all("replicaset").find(|s| uid(s) == controller(pod)) else { return };
        let Some(deployment) = observer.all("deployment").find(|d| uid(d) == controller(set)) else { return };
        let Some(bounds) = self.deployments.get_mut(uid(deployment)) else { return };
        // Nothing keeps its number in a namespace that goes.
        let namespace = observer.get("namespace", text(deployment, "/metadata/namespace"));
        if deleting(deployment) || namespace.is_some_and(deleting) {
            return;
        }
        let name = key_of(deployment);
        let mut breach = |what: String| breaches.push(Breach::new("rollouts-keep-their-bounds", what));
        let pods: Vec<&Value> = pods_of(deployment, observer).collect();
        let have = size(pods.iter().filter(|p| counts(p)).count());
        if have > bounds.most {
            breach(format!("{name} has {have} pods that count, of {} at most", bounds.most));
        }
        let running: BTreeSet<&str> = pods.iter().filter(|p| !terminal(p)).map(|p| controller(p)).collect();
        if bounds.recreate && running.len() > 1 {
            breach(format!("{name} is to be recreated, and has pods of {} templates", running.len()));
        }
        let available = size(pods.iter().filter(|p| counts(p) && is_ready(p)).count());
        // Pods of a node that has fallen silent are taken for not ready, and somebody may delete one by force.
        let forced = change.after.is_none() && change.before.as_ref().is_some_and(|p| counts(p) && is_ready(p));
        let stray = pods.iter().any(|p| self.gone.contains_key(text(p, "/spec/nodeName")));
        if forced || stray || !observer.all("node").all(is_ready) {
            bounds.reached = false;
        } else if available >= bounds.least_available {
            bounds.reached = true;
        } else if bounds.reached && !bounds.recreate {
            let least = bounds.least_available;
            breach(format!("{name} has {available} available pods, of {least} at least"));
        }
    }

    /// A Job's status has every end once.
    fn job(&mut self, job: &Value, breaches: &mut Vec<Breach>) {
        let ends = self.jobs.entry(uid(job).to_owned()).or_default();
        ends.parallelism = ends.parallelism.max(number(job, "/spec/parallelism"));
        let listed = |kind: &str| {
            let list = job.pointer(&format!("/status/uncountedTerminatedPods/{kind}")).and_then(Value::as_array);
            size(list.map_or(0, Vec::len))
        };
        for (kind, seen) in [("succeeded", &ends.succeeded), ("failed", &ends.failed)] {
            let told = number(job, &format!("/status/{kind}")) + listed(kind);
            if told > size(seen.len()) {
                let what = format!("{} counts {told} pods that {kind}, of {} that did", key_of(job), seen.len());
                breaches.push(Breach::new("ends-count-once", what));
            }
        }
    }

    /// A pod of a Job changed.
    fn worked(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        let pod = change.object();
        super::heirs::came(change, breaches);
        let ends = self.jobs.entry(controller(pod).to_owned()).or_default();
        match text(pod, "/status/phase") {
            "Succeeded" => _ = ends.succeeded.insert(uid(pod).to_owned()),
            "Failed" => _ = ends.failed.insert(uid(pod).to_owned()),
            // One that is asked to end counts as failed at once.
            _ if deleting(pod) => _ = ends.failed.insert(uid(pod).to_owned()),
            _ => {}
        }
        let index = |p: &Value| label(p, INDEX).to_owned();
        // One that the Job took away, or that was taken along, is none of the index's failures.
        if text(pod, "/status/phase") == "Failed"
            && pod.pointer("/metadata/finalizers").is_some()
            && !is_true(pod, "DisruptionTarget")
        {
            ends.failed_of_index.entry(index(pod)).or_default().insert(uid(pod).to_owned());
        }
        if change.before.is_some() {
            return;
        }
        let Some(job) = observer.all("job").find(|j| uid(j) == controller(pod)) else { return };
        let living: Vec<&Value> = pods_of(job, observer).filter(|p| counts(p)).collect();
        let failures = ends.failed_of_index.get(&index(pod)).map_or(0, |failed| size(failed.len()));
        if job.pointer("/spec/backoffLimitPerIndex").and_then(Value::as_i64).is_some_and(|limit| failures > limit) {
            let what = format!("{} is made, of an index that failed {failures} times and may not again", key_of(pod));
            breaches.push(Breach::new("ends-count-once", what));
        }
        let handed_on = failures_before(job, pod, observer);
        if failures_told(pod) < handed_on {
            let what = format!("{} tells of {} failures before it, of {handed_on}", key_of(pod), failures_told(pod));
            breaches.push(Breach::new("failures-are-handed-on", what));
        }
        let twins = living.iter().filter(|p| !index(p).is_empty() && index(p) == index(pod)).count();
        if twins > 1 {
            let what = format!("{} has {twins} pods of index {}", key_of(job), index(pod));
            breaches.push(Breach::new("one-pod-for-one-place", what));
        }
        if size(living.len()) > ends.parallelism {
            let what = format!("{} has {} pods at a time, of {} at most", key_of(job), living.len(), ends.parallelism);
            breaches.push(Breach::new("rollouts-keep-their-bounds", what));
        }
    }
}

impl Bounds {
    /// A pod of a node that is gone is given up only after a while, for the node may come back.
    pub(crate) fn orphan(&self, now: Time, change: &Change, breaches: &mut Vec<Breach>) {
        let Some(before) = change.before.as_ref().filter(|p| !terminal(p)) else { return };
        let given_up = match &change.after {
            None => true,
            Some(after) => terminal(after) && conditions(after).any(|c| c["reason"] == "DeletionByPodGC"),
        };
        let since = self.gone.get(text(before, "/spec/nodeName")).filter(|_| given_up);
        if let Some(left) = since.map(|at| now.since(*at)).filter(|gone| *gone < QUARANTINE) {
            let what = format!("{} is given up {} s after its node went", key_of(before), left.as_secs());
            breaches.push(Breach::new("orphans-wait", what));
        }
    }
}

/// A pod of an ordered set was made: all before it are there.
fn stateful(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let pod = change.object();
    let Some(set) = observer.all("statefulset").find(|s| uid(s) == controller(pod)) else { return };
    if change.before.is_some() || text(set, "/spec/podManagementPolicy") == "Parallel" {
        return;
    }
    let ordinal = |p: &Value| label(p, "apps.kubernetes.io/pod-index").parse::<i64>().unwrap_or(0);
    let there: BTreeSet<i64> = pods_of(set, observer).map(ordinal).collect();
    let first = number(set, "/spec/ordinals/start");
    if let Some(missing) = (first..ordinal(pod)).find(|o| !there.contains(o)) {
        let what = format!("{} is made, and ordinal {missing} is not there", key_of(pod));
        breaches.push(Breach::new("one-pod-for-one-place", what));
    }
}

/// The node that a daemon's pod is for.
fn target(pod: &Value) -> &str {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    text(pod, &format!("{terms}/0/matchFields/0/values/0"))
}

/// A pod was made for a node: none of the same revision is there, and no other at all without a surge.
fn daemon(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let pod = change.object();
    if change.before.is_some() {
        return;
    }
    let Some(set) = observer.all("daemonset").find(|s| uid(s) == controller(pod)) else { return };
    let surges = number(set, "/spec/updateStrategy/rollingUpdate/maxSurge") > 0;
    let hash = |p: &Value| label(p, "controller-revision-hash").to_owned();
    let twins = pods_of(set, observer)
        .filter(|p| uid(p) != uid(pod) && target(p) == target(pod))
        .filter(|p| if surges { counts(p) && hash(p) == hash(pod) } else { !terminal(p) })
        .count();
    if twins > 0 {
        let what = format!("{} has another pod on {} beside {}", key_of(set), target(pod), key_of(pod));
        breaches.push(Breach::new("one-pod-for-one-place", what));
    }
}
