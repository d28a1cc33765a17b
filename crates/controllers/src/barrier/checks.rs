//! What must hold at each commit. A bound is the weakest of all specs that an object has had.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::api::{Api, Change, controller, is_deleting, number, text, uid};
use super::storage;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// What an object has allowed so far.
#[derive(Debug)]
struct Bounds {
    most: i64,
    least: i64,
    /// Whether so many were available once.
    reached: bool,
}

#[derive(Default)]
pub struct Checks {
    seen: usize,
    /// Pods that Deployments and ReplicaSets may have, by UID.
    bounds: BTreeMap<String, Bounds>,
    /// Jobs by their owner and time.
    times: BTreeMap<(String, String), String>,
    /// Ends of pods, by Job.
    ends: BTreeMap<String, BTreeSet<String>>,
    /// The volume that each claim was bound to first.
    volumes: BTreeMap<String, String>,
}

pub fn is_over(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

pub fn counts(pod: &Value) -> bool {
    !is_over(pod) && !is_deleting(pod)
}

pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object.pointer("/metadata/annotations").and_then(|all| all[key].as_str()).unwrap_or_default()
}

/// The template of a set, without the label that is made from it.
fn template(set: &Value) -> String {
    let mut template = set["spec"]["template"].clone();
    template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut).map(|l| l.remove("pod-template-hash"));
    template.to_string()
}

/// The node that a daemon's pod is for.
fn target(pod: &Value) -> &str {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    text(pod, &format!("{terms}/0/matchFields/0/values/0"))
}

fn size(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub fn demand(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

impl Checks {
    /// How many changes it has looked at.
    pub fn seen(&self) -> usize {
        self.seen
    }
    /// Looks at what was committed since. The state is that after all of it: at most one request was served.
    pub fn look(&mut self, api: &Api) -> Result<(), String> {
        let fresh = &api.log[self.seen..];
        self.seen = api.log.len();
        for change in fresh {
            self.learn(change);
        }
        for change in fresh {
            self.changed(change, api)?;
        }
        Ok(())
    }

    fn learn(&mut self, change: &Change) {
        let object = &change.object;
        let part = |field: &str| number(object, &format!("/spec/strategy/rollingUpdate/{field}"));
        let replicas = number(object, "/spec/replicas");
        let (most, least) = match change.path.plural.as_str() {
            "deployments" => (replicas + part("maxSurge"), replicas - part("maxUnavailable")),
            "replicasets" => (replicas, 0),
            "jobs" => (number(object, "/spec/parallelism"), 0),
            "pods" => {
                // One that is asked to end counts as ended.
                if !counts(object) {
                    self.ends.entry(controller(object).to_owned()).or_default().insert(uid(object).to_owned());
                }
                return;
            }
            _ => return,
        };
        let bounds = self.bounds.entry(uid(object).to_owned()).or_insert(Bounds { most, least, reached: false });
        bounds.most = bounds.most.max(most);
        bounds.least = bounds.least.min(least);
    }

    fn changed(&mut self, change: &Change, api: &Api) -> Result<(), String> {
        let object = &change.object;
        let made = change.kind == "ADDED";
        match change.path.plural.as_str() {
            "replicasets" if made => {
                let alike = |s: &&Value| {
                    controller(s) == controller(object) && !is_deleting(s) && template(s) == template(object)
                };
                let twins = api.all("replicasets").filter(alike).count();
                demand(twins <= 1, || format!("{twins} sets for one template: {}", change.path.name))
            }
            "jobs" if made && !controller(object).is_empty() => {
                let time = (controller(object).to_owned(), annotation(object, SCHEDULED).to_owned());
                match self.times.insert(time, uid(object).to_owned()) {
                    None => Ok(()),
                    Some(other) => Err(format!("{} and {other} are for the same time", uid(object))),
                }
            }
            "jobs" => {
                let told = number(object, "/status/succeeded") + number(object, "/status/failed");
                let seen = size(self.ends.get(uid(object)).map_or(0, BTreeSet::len));
                demand(told <= seen, || format!("{} counts {told} ends, of {seen}", change.path.name))
            }
            "nodes" | "volumeattachments" => storage::held(api),
            "namespaces" if change.kind == "DELETED" => {
                let left = api.objects.keys().find(|path| path.namespace == change.path.name);
                demand(left.is_none(), || format!("{} goes, and {left:?} is in it", change.path.name))
            }
            "persistentvolumes" => {
                storage::held(api)?;
                let claim = text(object, "/spec/claimRef/uid");
                let twins = api.all("persistentvolumes").filter(|v| text(v, "/spec/claimRef/uid") == claim).count();
                demand(claim.is_empty() || twins <= 1, || format!("{twins} volumes for {claim}"))
            }
            "persistentvolumeclaims" => {
                let volume = text(object, "/spec/volumeName");
                let first = self.volumes.entry(uid(object).to_owned()).or_default();
                if first.is_empty() {
                    volume.clone_into(first);
                }
                demand(first == volume, || format!("{} had {first}, and has {volume}", change.path.name))
            }
            "pods" => self.pod(change, api),
            _ => Ok(()),
        }
    }

    fn pod(&mut self, change: &Change, api: &Api) -> Result<(), String> {
        let (pod, made) = (&change.object, change.kind == "ADDED");
        let owner = controller(pod);
        let siblings = || api.all("pods").filter(|p| controller(p) == owner);
        let name = &change.path.name;
        if let Some(bounds) = self.bounds.get(owner) {
            let have = size(siblings().filter(|p| counts(p)).count());
            demand(have <= bounds.most, || format!("{have} pods beside {name}, of {} at most", bounds.most))?;
        }
        if let Some(set) = api.all("replicasets").find(|s| uid(s) == owner) {
            self.rolled(controller(set), api)?;
        }
        if !made {
            return Ok(());
        }
        if api.all("daemonsets").any(|d| uid(d) == owner) {
            let there = siblings().filter(|p| target(p) == target(pod) && !is_over(p)).count();
            demand(there <= 1, || format!("{there} pods for {} beside {name}", target(pod)))?;
        }
        if api.all("statefulsets").any(|s| uid(s) == owner) {
            let ordinal = |p: &Value| {
                p["metadata"]["labels"]["apps.kubernetes.io/pod-index"].as_str().and_then(|n| n.parse().ok())
            };
            let there: BTreeSet<u32> = siblings().filter_map(ordinal).collect();
            let missing = (0..ordinal(pod).unwrap_or(0)).find(|n| !there.contains(n));
            demand(missing.is_none(), || format!("{name} is made, and {missing:?} is not there"))?;
        }
        let index = annotation(pod, INDEX);
        if !index.is_empty() {
            let twins = siblings().filter(|p| counts(p) && annotation(p, INDEX) == index).count();
            demand(twins <= 1, || format!("{twins} pods of index {index} beside {name}"))?;
        }
        Ok(())
    }

    /// The bounds of a Deployment.
    fn rolled(&mut self, deployment: &str, api: &Api) -> Result<(), String> {
        let Some(bounds) = self.bounds.get_mut(deployment) else { return Ok(()) };
        let sets: BTreeSet<&str> = api.all("replicasets").filter(|s| controller(s) == deployment).map(uid).collect();
        let pods: Vec<&Value> = api.all("pods").filter(|p| sets.contains(controller(p)) && counts(p)).collect();
        let (have, available) = (size(pods.len()), size(pods.iter().filter(|p| is_ready(p)).count()));
        demand(have <= bounds.most, || format!("{deployment} has {have} pods, of {} at most", bounds.most))?;
        bounds.reached |= available >= bounds.least;
        demand(available >= bounds.least || !bounds.reached, || {
            format!("{deployment} has {available} available pods, of {} at least", bounds.least)
        })
    }
}
