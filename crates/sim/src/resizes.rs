//! Pods that ask for another size while they run, on a node that has not room for all that they ask for.
//!
//! ```text
//!   spec ─▶ kubelet: allocated, or deferred until others leave room, or infeasible ─▶ its group, its container ─▶ status
//!                       │ written down first                                   │ fails, is late, its answer is lost
//!                       └──────────── and the kubelet may end between any two of these
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::KubeletCore;
use carrack_kubelet::runtime::PodRef;
use carrack_types::quantity::Quantity;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::{Breach, Requests};
use crate::node::{CPUS, Node, named};
use crate::observer::{Change, Made as _, Observer, conditions, deleting, key_of, label, terminal, text, uid};
use crate::options::LATEST;
use crate::plants::Bug;
use crate::role::node_name;
use crate::wants::Want;
use crate::workload::{Act, What, delete};

/// The invariants that are looked after here.
pub(crate) const FITS: &str = "nodes-give-what-they-have";
pub(crate) const SETTLES: &str = "sizes-settle";

/// A pod has its size within this, once nothing fails any more: what failed is tried again every ten seconds.
const WITHIN: Duration = Duration::from_secs(120);
/// How long a binding may be on its way, at the most, and how much later than what it led to a grant before that may be told of.
const CROSSES: Duration = Duration::from_secs(40);
/// Marks these pods.
const LABEL: &str = "resized";
/// All of them are on one node.
const NODE: u8 = 1;
/// CPUs that a pod asks for, in thousandths; never whole ones, which are others' affair. Two of the larger do not fit beside each
/// other; no node has the largest.
const SIZES: [i64; 5] = [100, 400, 1200, 1900, 9100];

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(planted: Option<Bug>) -> bool {
    planted.is_none_or(Bug::is_of_resizes)
}

fn container(milli: i64, restarts: bool) -> Value {
    let policy = if restarts { "RestartContainer" } else { "NotRequired" };
    let size = json!({"cpu": format!("{milli}m"), "memory": format!("{}Mi", 64 + milli / 10)});
    // Of the Burstable class: where CPUs are assigned, those of the other one are not given more of them.
    let requests = json!({"cpu": size["cpu"], "memory": "32Mi"});
    json!([{"name": "main", "image": "sim/run", "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "STOPS_IN_S", "value": "1"}],
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy},
                         {"resourceName": "memory", "restartPolicy": policy}],
        "resources": {"limits": size, "requests": requests}}])
}

/// Pods that ask for more and for less. In the end most of them go, and what is left asks for what there is room for. `alone`
/// says that nobody else needs the node.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, alone: bool, acts: &mut Vec<Act>) {
    for n in 0..3 {
        let name = format!("resized{n}");
        let restarts = !alone && rng.one_in(3);
        let at = between(rng, Duration::from_secs(1), Duration::from_secs(5));
        let object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "labels": {LABEL: "true"}},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1 + rng.below(3),
            "nodeSelector": {"kubernetes.io/hostname": node_name(NODE)},
            "containers": container(400, restarts),
        }});
        let resource = Pod::resource();
        acts.push(Act { at, what: What::Create { resource, object, want: Some(("pod", Want::Any)) } });
        let resize = |at: Duration, milli: i64| Act {
            at,
            what: What::Resize { name: name.clone(), containers: container(milli, restarts) },
        };
        let mut at = at;
        loop {
            at += between(rng, Duration::from_secs(2), Duration::from_secs(8));
            if at >= safety {
                break;
            }
            let size = usize::try_from(rng.below(SIZES.len() as u64)).unwrap_or(0);
            acts.push(resize(at, SIZES[size]));
        }
        // What stays asks for much while the others are still there and have it all; where somebody else needs the node, all ask
        // for as little as they can.
        let (at, milli) = match (alone, n) {
            (true, 0) => (safety, SIZES[3]),
            (true, _) => (safety.saturating_sub(Duration::from_secs(1)), SIZES[2]),
            (false, _) => (safety, SIZES[0]),
        };
        acts.push(resize(at, milli));
        if n > 0 {
            acts.push(delete(safety + Duration::from_secs(10), Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// Whether a pod is one of these.
fn is_ours(pod: &Value) -> bool {
    label(pod, "labels", LABEL) == "true"
}

/// A pod with what is set aside for it in place of what it asks for, as far as its status tells.
pub(crate) fn as_granted(pod: &Value) -> Value {
    let mut granted = pod.clone();
    let told = pod.pointer("/status/containerStatuses/0/allocatedResources").cloned();
    if is_ours(pod)
        && let Some(told) = told
        && let Some(resources) = granted.pointer_mut("/spec/containers/0/resources")
    {
        *resources = json!({"requests": told});
    }
    granted
}

/// Whether a pod's kubelet has found no room for it.
pub(crate) fn is_refused(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Failed" && matches!(text(pod, "/status/reason"), "OutOfcpu" | "OutOfmemory")
}

/// What pods held before their kubelet gave them more a short while ago: another pod may have been on its way to the node then, of
/// which the kubelet could not know.
#[derive(Default)]
pub(crate) struct Grants {
    held: BTreeMap<String, (Time, BTreeMap<String, Quantity>)>,
    /// When pods were told to have been given more, with their UIDs, by their nodes.
    larger: BTreeMap<String, Vec<(Time, String)>>,
    /// When pods were bound, by UID.
    bound: BTreeMap<String, Time>,
    /// When kubelets found no room for pods, by UID.
    refused: BTreeMap<String, Time>,
}

impl Grants {
    /// Something was committed.
    pub(crate) fn changed(&mut self, now: Time, change: &Change) {
        let Some(new) = change.after.as_ref().filter(|_| change.resource == "pod") else { return };
        let (old, node) = (change.before.as_ref(), text(new, "/spec/nodeName"));
        if !node.is_empty() && old.is_none_or(|old| text(old, "/spec/nodeName").is_empty()) {
            self.bound.insert(uid(new).to_owned(), now);
        }
        if is_refused(new) && !old.is_some_and(is_refused) {
            self.refused.insert(uid(new).to_owned(), now);
        }
        let Some(old) = old.filter(|_| is_ours(new)) else { return };
        let (before, after) = (Requests::of(old).0, Requests::of(new).0);
        if after.iter().any(|(resource, amount)| before.get(resource).is_none_or(|had| had < amount)) {
            self.larger.entry(node.to_owned()).or_default().push((now, uid(new).to_owned()));
        }
        if before != after && self.before(now, uid(new)).is_none() {
            self.held.insert(uid(new).to_owned(), (now, before));
        }
    }

    /// Whether what a pod was to have, for which its kubelet has found no room, may have been granted to another one there while
    /// its binding was under way.
    pub(crate) fn crossed(&self, pod: &Value) -> bool {
        let (Some(bound), Some(refused)) = (self.bound.get(uid(pod)), self.refused.get(uid(pod))) else {
            return false;
        };
        let mut larger = self.larger.get(text(pod, "/spec/nodeName")).into_iter().flatten();
        larger.any(|(at, of)| of != uid(pod) && bound.since(*at) < CROSSES && at.since(*refused) < CROSSES)
    }

    /// The least that a pod has held since a binding that arrives now may have been decided: it holds this now.
    pub(crate) fn least(&self, now: Time, uid: &str, holds: &BTreeMap<String, Quantity>) -> BTreeMap<String, Quantity> {
        let mut held = holds.clone();
        for (resource, amount) in self.before(now, uid).into_iter().flatten() {
            if let Some(most) = held.get_mut(resource) {
                *most = (*most).min(*amount);
            }
        }
        held
    }

    fn before(&self, now: Time, uid: &str) -> Option<&BTreeMap<String, Quantity>> {
        self.held.get(uid).filter(|(at, _)| now.since(*at) < LATEST).map(|(_, before)| before)
    }
}

/// Whether a pod's container may be stopped in order to start again with another size: its policy says so, and it has asked
/// for one.
pub(crate) fn may_start_again(pod: &PodRef, observer: &Observer) -> bool {
    observer.pod(pod).is_some_and(|object| {
        text(object, "/spec/containers/0/resizePolicy/0/restartPolicy") == "RestartContainer"
            && object.pointer("/metadata/generation").and_then(Value::as_i64) > Some(1)
    })
}

/// A kubelet's books.
pub(crate) fn set_aside(core: &KubeletCore, node: u8, breaches: &mut Vec<Breach>) {
    let Some((used, allocatable)) = core.set_aside() else { return };
    for name in ["cpu", "memory"] {
        let (used, has) = (used.get(name).unwrap_or(&0), allocatable.get(name).unwrap_or(&0));
        if used > has {
            let what = format!("node{node}'s kubelet has allocated {used} thousandths of {name}, and there are {has}");
            breaches.push(Breach::new(FITS, what));
        }
    }
}

fn quantity(object: &Value, place: &str) -> Quantity {
    text(object, place).parse().unwrap_or_default()
}

fn condition<'a>(pod: &'a Value, type_: &str) -> Option<&'a Value> {
    conditions(pod).find(|c| text(c, "/type") == type_)
}

/// CPUs that are set aside on a node for all but one pod, as statuses and specs tell, in thousandths.
fn others(of: &Value, observer: &Observer) -> i64 {
    let there = observer.all("pod").filter(|pod| {
        text(pod, "/spec/nodeName") == text(of, "/spec/nodeName") && uid(pod) != uid(of) && !terminal(pod)
    });
    let has = |pod: &Value| -> i64 {
        let told = quantity(pod, "/status/containerStatuses/0/allocatedResources/cpu");
        if is_ours(pod) && !told.is_zero() {
            return told.millis();
        }
        let pod: Option<Pod> = serde_json::from_value(pod.clone()).ok();
        pod.and_then(|pod| carrack_types::pod::requests(&pod).get("cpu").copied()).map_or(0, Quantity::millis)
    };
    there.map(has).sum()
}

/// What of a pod's size is not as its spec asks for.
fn lacks(pod: &Value, observer: &Observer, node: &Node) -> Option<String> {
    let asked = quantity(pod, "/spec/containers/0/resources/limits/cpu");
    let room = i64::from(CPUS) * 1000 - i64::try_from(crate::cpus::reserved_milli()).unwrap_or(0);
    if let Some(pending) = condition(pod, "PodResizePending") {
        let others = others(pod, observer);
        return match text(pending, "/reason") {
            "Infeasible" if asked.millis() > room => None,
            "Deferred" if asked.millis() + others > room && asked.millis() <= room => None,
            reason => Some(format!("is told {reason} of {}m beside {others}m, of {room}m", asked.millis())),
        };
    }
    if let Some(c) = condition(pod, "PodResizeInProgress") {
        return Some(format!("is being resized: {}", text(c, "/message")));
    }
    for place in ["allocatedResources/cpu", "resources/limits/cpu"] {
        let told = quantity(pod, &format!("/status/containerStatuses/0/{place}"));
        if told != asked {
            return Some(format!("asks for {}m, and its status tells {place} of {}m", asked.millis(), told.millis()));
        }
    }
    let quota = asked.millis() * 100;
    let container = node.runtime.running().find(|c| *c.record.pod.uid == *uid(pod))?;
    let has = [
        ("container", container.limits.cpu_quota_us, container.limits.memory_limit_bytes),
        match node.runtime.group_of(uid(pod)) {
            Some(group) => ("group", group.cpu_quota_us, group.memory_limit_bytes),
            None => return Some("has no group".to_owned()),
        },
    ];
    let memory = quantity(pod, "/spec/containers/0/resources/limits/memory").units();
    let wrong = has.into_iter().find(|(_, of_cpu, of_memory)| (*of_cpu, *of_memory) != (quota, memory));
    wrong.map(|(what, quota, memory)| format!("has a {what} with a quota of {quota} and {memory} bytes"))
}

/// Pods that have not the size that they are to have, since when, and what they lack.
#[derive(Debug, Default)]
pub(crate) struct Resizes(BTreeMap<String, (Time, String)>);

impl Resizes {
    /// Looks at all of them, now that nothing fails any more.
    pub(crate) fn look(
        &mut self,
        now: Time,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        let ours =
            observer.all("pod").filter(|pod| is_ours(pod) && !deleting(pod) && text(pod, "/status/phase") == "Running");
        let lacking = ours.filter_map(|pod| {
            let node = named(nodes, text(pod, "/spec/nodeName")).filter(|n| n.up)?;
            Some((key_of(pod), lacks(pod, observer, node)?))
        });
        let since = lacking.map(|(pod, why)| {
            let since = self.0.get(&pod).map_or(now, |(since, _)| *since);
            (pod, (since, why))
        });
        self.0 = since.collect();
        if let Some((pod, (since, why))) = self.0.iter().find(|(_, (since, _))| now.since(*since) > WITHIN) {
            let what = format!("{pod} {why}, for {} s", now.since(*since).as_secs());
            breaches.push(Breach::new(SETTLES, what));
        }
    }

    /// What is not as it is to be in the end.
    pub(crate) fn lack(&self) -> Option<String> {
        self.0.iter().next().map(|(pod, (_, why))| format!("pod {pod} {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::plants::PLANTS;
    use crate::world::run;

    fn options() -> Options {
        Options { machines: false, only: Some(vec!["resizes"]), safety: Duration::from_secs(60), ..Options::default() }
    }

    /// Who is refused is so for a grant to another one on its node, from the time of its binding.
    #[test]
    fn grants_cross_bindings() {
        let pod = |name: &str, node: &str, milli: i64, labels: Value| {
            json!({"metadata": {"namespace": "default", "name": name, "uid": name, "labels": labels},
                "spec": {"nodeName": node, "containers": container(milli, false)}})
        };
        let at = |seconds: u64| Time::default() + Duration::from_secs(seconds);
        let change = |before: Option<Value>, after: Value| Change { resource: "pod", before, after: Some(after) };
        for (node, before, after, granted_s, expected) in [
            ("n", 400, 1200, 95, true),
            ("n", 400, 1200, 103, true),
            ("n", 400, 1200, 30, false),
            ("n", 400, 1200, 200, false),
            ("n", 1200, 400, 95, false),
            ("other", 400, 1200, 95, false),
        ] {
            let mut grants = Grants::default();
            let ours = |milli: i64| pod("resized0", node, milli, json!({LABEL: "true"}));
            grants.changed(at(granted_s), &change(Some(ours(before)), ours(after)));
            let (unbound, bound) = (pod("p", "", 100, json!({})), pod("p", "n", 100, json!({})));
            grants.changed(at(100), &change(Some(unbound), bound.clone()));
            let mut refused = bound.clone();
            refused["status"] = json!({"phase": "Failed", "reason": "OutOfcpu"});
            assert!(!grants.crossed(&refused), "it is not refused yet");
            grants.changed(at(102), &change(Some(bound), refused.clone()));
            assert_eq!(grants.crossed(&refused), expected, "{node} {before} {after} {granted_s}");
        }
    }

    #[test]
    fn pods_in_trouble_get_their_sizes() {
        for seed in 1..9 {
            let failure = run(seed, &options()).failure;
            assert!(failure.is_none(), "{}", failure.map(|f| f.to_string()).unwrap_or_default());
        }
    }

    #[test]
    fn bugs_of_resizes_are_found() {
        for plant in PLANTS.iter().filter(|plant| plant.bug.is_of_resizes()) {
            let options = Options { plant: Some(plant), ..options() };
            let found = (1..20).filter_map(|seed| run(seed, &options).failure).any(|failure| {
                let known = failure.invariant == plant.found_by || failure.invariant == "liveness";
                assert!(known, "{}: another invariant breaks\n{failure}", plant.name);
                failure.invariant == plant.found_by
            });
            assert!(found, "{} is not found", plant.name);
        }
    }
}
