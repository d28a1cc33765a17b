//! Judges nodes by their Leases, and says what follows: conditions, taints, pods that are not ready.
//!
//! How long a node has been silent is measured on this observer's own clock, from when it saw the Lease change; what
//! the Lease says of times is not read. Silence counts only while the observer could have heard: not over a time in
//! which its own watch was broken, nor over one in which nobody was heard at all. Before anything is said of a node, a
//! live read shows that its Lease is still the one that was seen.
//! Otherwise as kube-controller-manager's node lifecycle controller (pkg/controller/nodelifecycle).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Source, Time, View};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::zones::{BY_HEALTH, Limiter, Pace, by_health, pace};
use super::{NOT_READY_TAINT, UNREACHABLE_TAINT, condition, ready_status, zone_of};
use crate::pods;

/// Where nodes keep their Leases.
const LEASES: &str = "kube-node-lease";
/// How long a node may be silent.
const GRACE: Duration = Duration::from_secs(50);
/// How long a node may be silent that was never heard.
const STARTUP_GRACE: Duration = Duration::from_secs(60);
/// A time in which nobody was heard, although nodes speak each ten seconds.
const ALL_SILENT: Duration = Duration::from_secs(15);
/// How soon a zone that must wait is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Conditions that nobody but the node knows.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// Condition, its status, and the taint that it brings.
const NO_SCHEDULE: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY_TAINT),
    ("Ready", "Unknown", UNREACHABLE_TAINT),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];
const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";
/// Labels, and what they were called before; selectors may still ask for those.
const RENAMED: [(&str, &str); 2] =
    [("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];

/// What was last heard of a node.
struct Heard {
    node_uid: String,
    lease: Option<String>,
    ready: Option<NodeCondition>,
    at: Time,
}

/// The node lifecycle controller.
#[derive(Default)]
pub struct NodeLifecycle {
    heard: BTreeMap<String, Heard>,
    /// When any node was last heard.
    anybody: Option<Time>,
    /// The end of the last time in which nobody was heard.
    fresh: Time,
    limiter: Limiter,
    deaf: bool,
}

/// No others: leaders renew theirs several times a second.
fn leases() -> Source {
    Source::within::<Lease>(LEASES)
}

fn lease_of<'a>(view: &'a View<'_>, node: &Node) -> Option<&'a std::sync::Arc<Lease>> {
    view.cache_of::<Lease>(&leases())?.get(LEASES, node.name())
}

impl NodeLifecycle {
    /// Plants the bug that silence counts though nothing could be heard. For the simulator, which must find it.
    #[must_use]
    pub fn with_planted_deafness() -> Self {
        Self { deaf: true, ..Self::default() }
    }

    /// Takes note of what the node said; returns for how long it has been silent, and how long it may be.
    fn listen(&mut self, node: &Node, view: &View<'_>, now: Time) -> (Duration, Duration) {
        let lease = lease_of(view, node).and_then(|l| l.metadata.resource_version.clone());
        // Only the node's own words: what this controller says in its place does not count.
        let ready = condition(node, "Ready").filter(|c| c.status != "Unknown").cloned();
        let never = condition(node, "Ready").is_none();
        let old = self.heard.get(node.name()).filter(|h| h.node_uid == node.uid());
        let spoke = old.is_none_or(|h| h.lease != lease || (ready.is_some() && h.ready != ready));
        if spoke {
            if self.anybody.is_some_and(|at| now.since(at) > ALL_SILENT) {
                self.fresh = now;
            }
            self.anybody = Some(now);
            let heard = Heard { node_uid: node.uid().to_owned(), lease, ready, at: now };
            self.heard.insert(node.name().to_owned(), heard);
        }
        let at = self.heard.get(node.name()).map_or(now, |h| h.at);
        if self.deaf {
            return (now.since(at), GRACE);
        }
        // While nothing can be heard, nobody is silent.
        let steady = view.steady_since(&leases()).unwrap_or(now);
        (now.since(at.max(self.fresh).max(steady)), if never { STARTUP_GRACE } else { GRACE })
    }

    /// The plan goes on only if the node has said nothing since.
    fn still_silent(&self, plan: Plan, node: &Node, view: &View<'_>) -> Plan {
        match lease_of(view, node) {
            _ if self.deaf => plan,
            Some(lease) => plan.confirm_unchanged(lease.as_ref()),
            None => plan.confirm_absent(&Lease::resource(), Key::new(LEASES, node.name()), ""),
        }
    }

    /// The taints that the node ought to have; how long to wait for those that must wait.
    fn taints(&mut self, node: &Node, view: &View<'_>, is_silent: bool, now: Time) -> (Vec<Taint>, Option<Duration>) {
        let old = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        let has = |key: &str, effect: &str| old.iter().find(|t| t.key == key && t.effect == effect).cloned();
        let ours = |t: &Taint| match t.effect.as_str() {
            "NoSchedule" => t.key == UNSCHEDULABLE_TAINT || NO_SCHEDULE.iter().any(|(_, _, key)| t.key == *key),
            "NoExecute" => t.key == NOT_READY_TAINT || t.key == UNREACHABLE_TAINT,
            _ => false,
        };
        let mut taints: Vec<Taint> = old.iter().filter(|t| !ours(t)).cloned().collect();
        let taint = |key: &str, effect: &str| {
            has(key, effect).unwrap_or_else(|| Taint {
                key: key.into(),
                effect: effect.into(),
                time_added: Some(now.meta()),
                ..Taint::default()
            })
        };
        for (type_, status, key) in NO_SCHEDULE {
            if condition(node, type_).is_some_and(|c| c.status == status) {
                taints.push(taint(key, "NoSchedule"));
            }
        }
        if node.spec.as_ref().is_some_and(|s| s.unschedulable == Some(true)) {
            taints.push(taint(UNSCHEDULABLE_TAINT, "NoSchedule"));
        }
        let mut wait = None;
        let evicts = match ready_status(node) {
            "False" => Some(NOT_READY_TAINT),
            "Unknown" => Some(UNREACHABLE_TAINT),
            _ => None,
        };
        if let Some(key) = evicts {
            let begun = has(NOT_READY_TAINT, "NoExecute").or_else(|| has(UNREACHABLE_TAINT, "NoExecute")).is_some();
            let zone = zone_of(node);
            let allowed = match pace(view, &zone) {
                Pace::Cut => Err(LOOK_AGAIN),
                _ if begun || self.deaf => Ok(()),
                // It is heard again, and has yet to say how it is.
                _ if key == UNREACHABLE_TAINT && !is_silent => Err(LOOK_AGAIN),
                // Somebody must be heard right now.
                _ if self.anybody.is_none_or(|at| now.since(at) > ALL_SILENT) => Err(LOOK_AGAIN),
                Pace::Wait => Err(LOOK_AGAIN),
                Pace::Every(pace) => self.limiter.take(&zone, pace, now),
            };
            match allowed {
                Ok(()) => taints.push(taint(key, "NoExecute")),
                Err(left) => wait = Some(left),
            }
        }
        (taints, wait)
    }
}

/// The node's conditions with all that only it can know unknown; none when they are.
fn unknown(node: &Node, now: Time) -> Option<Vec<NodeCondition>> {
    let mut all = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for type_ in REPORTED {
        let said = |c: &mut NodeCondition, reason: &str, message: &str| {
            c.status = "Unknown".into();
            c.reason = Some(reason.into());
            c.message = Some(message.into());
            c.last_transition_time = Some(now.meta());
        };
        match all.iter_mut().find(|c| c.type_ == type_) {
            Some(c) if c.status == "Unknown" => {}
            Some(c) => {
                said(c, "NodeStatusUnknown", "Kubelet stopped posting node status.");
                changed = true;
            }
            None => {
                let mut c = NodeCondition { type_: type_.into(), ..NodeCondition::default() };
                said(&mut c, "NodeStatusNeverUpdated", "Kubelet never posted node status.");
                c.last_heartbeat_time.clone_from(&node.metadata.creation_timestamp);
                all.push(c);
                changed = true;
            }
        }
    }
    changed.then_some(all)
}

/// Index of the pods that are ready, by their node: a silent node looks for them every few seconds.
const BY_READY: &str = "ready";

fn by_ready(pod: &Pod) -> Vec<String> {
    if pods::is_ready(pod) { pods::by_node(pod) } else { Vec::new() }
}

/// Pods of a silent node do not count as ready: nobody would know if they were not.
fn pods_not_ready(node: &Node, view: &View<'_>, now: Time) -> Plan {
    let pods = view.cache::<Pod>().by_index(BY_READY, node.name());
    pods.fold(Plan::none(), |plan, pod| {
        let old = pods::condition(pod, "Ready").cloned().unwrap_or_default();
        let conditions = pods::with_condition(pod, PodCondition { status: "False".into(), ..old }, now);
        plan.patch_status(pod.as_ref(), json!({"status": {"conditions": conditions}})).event(EventRecord::warning(
            pod.as_ref(),
            "NodeNotReady",
            "Node is not ready",
        ))
    })
}

impl Controller for NodeLifecycle {
    fn name(&self) -> &'static str {
        "node-lifecycle-controller"
    }
    fn event_source(&self) -> &'static str {
        "node-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Node>();
        // How many of a zone are silent is looked at for each.
        setup.index::<Node>(BY_HEALTH, by_health);
        setup.watch_source::<Lease>(leases(), |lease, _| vec![Key::new("", lease.name())]);
        setup.index::<Pod>(BY_READY, by_ready);
        setup.read::<Pod>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(node) = view.get::<Node>("", &key.name) else {
            let gone = self.heard.remove(&key.name);
            return gone.map_or_else(Plan::none, |gone| Plan::none().event(removed(&key.name, gone.node_uid)));
        };
        let is_new = self.heard.get(&key.name).is_none_or(|heard| heard.node_uid != node.uid());
        let plan = self.judge(node, view, now);
        // Another life of this controller need not say it again.
        let made = node.metadata.creation_timestamp.as_ref().map(Time::from);
        if is_new && made.is_some_and(|made| now.since(made) < STARTUP_GRACE) {
            let message = format!("Node {0} event: Registered Node {0} in Controller", node.name());
            return plan.event(EventRecord::normal(node.as_ref(), "RegisteredNode", message));
        }
        plan
    }
}

/// What is said of a node that is there no more.
fn removed(name: &str, uid: String) -> EventRecord {
    let metadata = ObjectMeta { name: Some(name.to_owned()), uid: Some(uid), ..ObjectMeta::default() };
    let message = format!("Node {name} event: Removing Node {name} from Controller");
    EventRecord::normal(&Node { metadata, ..Node::default() }, "RemovingNode", message)
}

impl NodeLifecycle {
    fn judge(&mut self, node: &Node, view: &View<'_>, now: Time) -> Plan {
        let (silent, grace) = self.listen(node, view, now);
        if silent >= grace
            && let Some(conditions) = unknown(node, now)
        {
            let plan = self
                .still_silent(Plan::none(), node, view)
                .patch_status(node, json!({"status": {"conditions": conditions}}));
            let what = format!("Node {} status is now: NodeNotReady", node.name());
            return if ready_status(node) == "True" {
                plan.event(EventRecord::normal(node, "NodeNotReady", what))
            } else {
                plan
            };
        }
        let mut plan = if silent < grace { Plan::none().requeue_after(grace - silent) } else { Plan::none() };
        // A node that is heard again speaks for itself: its conditions are its own to mend, and its pods are, too.
        if ready_status(node) == "Unknown" && silent >= grace {
            // One of which that cannot be said keeps neither others nor the node's taints.
            plan = plan.then(pods_not_ready(node, view, now).each_apart());
        }
        let (taints, wait) = self.taints(node, view, silent >= grace, now);
        if let Some(left) = wait {
            plan = plan.requeue_after(left);
        }
        let old = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let mut patch = json!({});
        if taints.len() != old.len() || !taints.iter().all(|t| old.contains(t)) {
            let evicts = |all: &[Taint]| all.iter().any(|t| t.effect == "NoExecute" && t.key == UNREACHABLE_TAINT);
            if evicts(&taints) && !evicts(old) {
                plan = self.still_silent(plan, node, view);
            }
            patch["spec"]["taints"] = json!(taints);
        }
        for (label, before) in RENAMED {
            if let Some(value) = node.label(label).filter(|value| node.label(before) != Some(*value)) {
                patch["metadata"]["labels"][before] = value.into();
            }
        }
        if patch == json!({}) { plan } else { plan.patch(node, patch) }
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
