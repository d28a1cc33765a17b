//! Deletes pods that nobody else will: ended ones beyond a number, those of nodes that are gone, those that are deleted
//! before they had a node, and those of a node that an operator declared out of service.
//!
//! Behaviour follows kube-controller-manager's pod garbage collector (pkg/controller/podgc). That a node is not in the
//! cache proves nothing: after the quarantine a live read must say that it is gone.

use std::time::Duration;

use carrack_engine::{Controller, DeleteOptions, Key, Plan, Premise, Setup, Source, Time, View};
use carrack_types::pod::{forget_what_nodes_do, is_terminal};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use crate::node::{Missing, OUT_OF_SERVICE_TAINT, is_ready};
use crate::pods::{self, BY_NODE, node_of};

/// How long a pod's node must have been missing.
const QUARANTINE: Duration = Duration::from_secs(40);
/// How many ended pods may stay.
const TERMINATED_PODS: usize = 12_500;
/// How often the ended ones are counted.
const PERIOD: Duration = Duration::from_secs(20);
/// The key under which ended pods are counted; no pod has such a name.
const ENDED: &str = "(ended)";
/// Index of pods that have ended, all under one value.
const BY_END: &str = "ended";
const REASON: &str = "DeletionByPodGC";

/// The pod garbage collector.
pub struct PodGc {
    threshold: usize,
    quarantine: Duration,
    counted: Option<Time>,
    /// Since when nodes that pods name have been missing.
    missing: Missing,
    /// A planted bug: pods without a node are not looked at.
    blind: bool,
}

impl Default for PodGc {
    fn default() -> Self {
        Self {
            threshold: TERMINATED_PODS,
            quarantine: QUARANTINE,
            counted: None,
            missing: Missing::default(),
            blind: false,
        }
    }
}

impl PodGc {
    /// Plants the bug that a node which is missing is gone. For the simulator, which must find it; never for a real
    /// process.
    #[must_use]
    pub fn with_planted_haste() -> Self {
        Self { quarantine: Duration::ZERO, ..Self::default() }
    }
    /// Plants the bug that nobody says of a pod which is to go and never had a node that it has ended. For the simulator,
    /// which must find it; never for a real process.
    #[must_use]
    pub fn with_planted_blindness() -> Self {
        Self { blind: true, ..Self::default() }
    }
}

fn force(plan: Plan, pod: &Pod) -> Plan {
    let options = DeleteOptions { grace_period_s: Some(0), ..DeleteOptions::default() };
    plan.delete_with(&Pod::resource(), pod, options)
}

impl PodGc {
    fn ended(&mut self, view: &View<'_>, now: Time) -> Plan {
        if let Some(wait) = self.counted.map(|at| PERIOD.saturating_sub(now.since(at))).filter(|w| !w.is_zero()) {
            return Plan::none().requeue_after(wait);
        }
        self.counted = Some(now);
        let pods = view.cache::<Pod>();
        // Nearly always there are fewer, and none of them needs to be looked at.
        if pods.count(BY_END, ENDED) <= self.threshold {
            return Plan::none();
        }
        let mut ended: Vec<_> = pods.by_index(BY_END, ENDED).filter(|p| !p.is_deleting()).collect();
        let excess = ended.len().saturating_sub(self.threshold);
        if excess == 0 {
            return Plan::none();
        }
        // Evicted ones tell the least: somebody else runs in their place.
        ended.sort_by_key(|p| {
            (!is_evicted(p), p.metadata.creation_timestamp.as_ref().map(|t| t.0), Key::of(p.as_ref()))
        });
        // One that may not go keeps no other.
        ended.into_iter().take(excess).fold(Plan::none(), |plan, pod| force(plan, pod)).each_apart()
    }

    fn orphaned(&mut self, pod: &Pod, view: &View<'_>, now: Time) -> Plan {
        let pods = view.cache::<Pod>();
        let since = self.missing.since(node_of(pod), now, |node| pods.count(BY_NODE, node) > 0);
        let left = self.quarantine.saturating_sub(now.since(since));
        if !left.is_zero() {
            return Plan::none().requeue_after(left);
        }
        let node = Key::new("", node_of(pod));
        let gone = Plan::none().confirm_absent(&Node::resource(), node.clone(), "");
        let marked = if is_terminal(pod) {
            gone
        } else {
            pods::mark_disrupted(gone, pod, REASON, "PodGC: node no longer exists", true, now)
        };
        // When a write arrives late, the node may be back, and the pod runs on it.
        force(marked, pod).resting_on(&Premise::absent(&Node::resource(), node))
    }
}

fn by_end(pod: &Pod) -> Vec<String> {
    is_terminal(pod).then(|| ENDED.to_owned()).into_iter().collect()
}

fn is_evicted(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Failed") && s.reason.as_deref() == Some("Evicted"))
}

/// A pod that is being deleted, whose node, if it has one, will never say that it has ended. It is said here: whoever holds it with
/// a finalizer until its end is counted, as a Job does, would wait for that without end.
fn end(pod: &Pod) -> Plan {
    if is_terminal(pod) {
        return force(Plan::none(), pod);
    }
    force(Plan::none().patch_status(pod, json!({"status": {"phase": "Failed"}})), pod)
}

fn out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    !is_ready(node) && taints.into_iter().any(|t| t.key == OUT_OF_SERVICE_TAINT)
}

impl Controller for PodGc {
    fn name(&self) -> &'static str {
        "pod-garbage-collector"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        // All controllers share their cache of pods: what no one of them looks at is left out where pods are looked after anyway.
        setup.trim::<Pod>(forget_what_nodes_do);
        setup.index::<Pod>(BY_NODE, pods::by_node);
        setup.index::<Pod>(BY_END, by_end);
        setup.watch::<Pod>(|pod, _| {
            let mut keys = vec![Key::of(pod)];
            if is_terminal(pod) {
                keys.push(Key::new("", ENDED));
            }
            keys
        });
        // One that comes back is looked at, too: when it goes again, its time begins anew.
        let matters = |old: &Node, new: &Node| out_of_service(old) != out_of_service(new);
        setup.watch_changes::<Node>(Source::of::<Node>(), matters, |node, view| {
            view.cache::<Pod>().by_index(BY_NODE, node.name()).map(|p| Key::of(p.as_ref())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        if key.namespace.is_empty() {
            return self.ended(view, now);
        }
        let Some(pod) = view.get::<Pod>(&key.namespace, &key.name) else { return Plan::none() };
        let node = node_of(pod);
        if node.is_empty() {
            return if pod.is_deleting() && !self.blind { end(pod) } else { Plan::none() };
        }
        match view.get::<Node>("", node) {
            None => self.orphaned(pod, view, now),
            Some(found) => {
                self.missing.is_there(node);
                if pod.is_deleting() && out_of_service(found) { end(pod) } else { Plan::none() }
            }
        }
    }
    fn begin(&mut self) {
        self.missing.clear();
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use serde_json::Value;

    use super::*;
    use crate::testing::{of, words};

    fn check(gc: &mut PodGc, key: Key, pods: Vec<Value>, nodes: Vec<Value>, at_s: i64, expected: &[&str]) {
        let caches = Caches::new()
            .with_index(BY_END, by_end)
            .with::<Pod>(pods.iter().cloned().map(of))
            .with::<Node>(nodes.into_iter().map(of));
        let plan = gc.reconcile(&key, &caches.view(), Time::from_unix_s(at_s));
        assert_eq!(words(&plan), expected, "{pods:?} at {at_s}");
    }

    fn pod(name: &str, node: &str, phase: &str, deleting: bool) -> Value {
        let mut pod = json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1"},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}});
        if deleting {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        pod
    }

    #[test]
    fn pods_that_nobody_else_deletes() {
        let mut gc = PodGc::default();
        let key = || Key::new("ns", "p");
        let node = |ready: &str, taints: Value| {
            json!({"metadata": {"name": "n", "uid": "n"}, "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}})
        };
        let out = json!([{"key": OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]);
        let well = || vec![node("True", json!([]))];
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], well(), 0, &[]);
        check(&mut gc, key(), vec![pod("p", "n", "Running", true)], well(), 0, &[]);
        // Deleted before it had a node.
        check(&mut gc, key(), vec![pod("p", "", "Pending", false)], well(), 0, &[]);
        check(
            &mut gc,
            key(),
            vec![pod("p", "", "Pending", true)],
            well(),
            0,
            &["patch ns/p/status phase=Failed", "delete ns/p"],
        );
        check(&mut gc, key(), vec![pod("p", "", "Failed", true)], well(), 0, &["delete ns/p"]);
        // Its node has been missing for the quarantine, and is surely gone.
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], vec![], 100, &[]);
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], vec![], 139, &[]);
        let failed = "patch ns/p/status DisruptionTarget=True phase=Failed";
        let orphan = ["confirm absent n", failed, "delete ns/p"];
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], vec![], 140, &orphan);
        let ended = ["confirm absent n", "delete ns/p"];
        check(&mut gc, key(), vec![pod("p", "n", "Failed", false)], vec![], 140, &ended);
        // A node that came back and goes again has a quarantine of its own.
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], well(), 141, &[]);
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], vec![], 142, &[]);
        // So it has for who begins to lead, and did not see whether it was there.
        gc.begin();
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], vec![], 182, &[]);
        // Out of service counts for a node that is not ready, and for pods that are being deleted.
        let dead = || vec![node("Unknown", out.clone())];
        check(&mut gc, key(), vec![pod("p", "n", "Running", true)], vec![node("True", out.clone())], 200, &[]);
        check(&mut gc, key(), vec![pod("p", "n", "Running", false)], dead(), 200, &[]);
        let ended = ["patch ns/p/status phase=Failed", "delete ns/p"];
        check(&mut gc, key(), vec![pod("p", "n", "Running", true)], dead(), 200, &ended);
        check(&mut gc, key(), vec![pod("p", "n", "Succeeded", true)], dead(), 200, &["delete ns/p"]);
    }

    #[test]
    fn a_pod_is_given_up_only_while_its_node_is_gone() {
        let mut gc = PodGc { quarantine: Duration::ZERO, ..PodGc::default() };
        let pod = of::<Pod>(pod("p", "n", "Running", false));
        let caches = Caches::new().with_index(BY_END, by_end).with::<Pod>([pod]).with::<Node>([]);
        let plan = gc.reconcile(&Key::new("ns", "p"), &caches.view(), Time::default());
        let gone = Premise::absent(&Node::resource(), Key::new("", "n"));
        let rest = plan.premises.iter().filter(|(_, premise)| *premise == gone).map(|(number, _)| *number);
        assert_eq!((plan.writes.len(), rest.collect::<Vec<_>>()), (3, vec![0, 1, 2]));
    }

    #[test]
    fn an_ended_pod_that_may_not_go_keeps_no_other() {
        let mut gc = PodGc { threshold: 0, ..PodGc::default() };
        let pods = ["a", "b"].map(|name| of::<Pod>(pod(name, "n", "Succeeded", false)));
        let caches = Caches::new().with_index(BY_END, by_end).with::<Pod>(pods);
        let plan = gc.reconcile(&Key::new("", ENDED), &caches.view(), Time::default());
        assert_eq!((plan.writes.len(), plan.apart.len()), (2, 2));
    }

    #[test]
    fn the_oldest_ended_pods_go_beyond_a_number() {
        let mut gc = PodGc { threshold: 1, ..PodGc::default() };
        let aged = |name: &str, born: &str| {
            let mut p = pod(name, "n", "Succeeded", false);
            p["metadata"]["creationTimestamp"] = born.into();
            p
        };
        let pods = || vec![aged("young", "2026-01-02T00:00:00Z"), aged("zold", "2026-01-01T00:00:00Z")];
        let key = || Key::new("", ENDED);
        check(&mut gc, key(), pods(), vec![], 0, &["delete ns/zold"]);
        check(&mut gc, key(), pods(), vec![], 19, &[]);
        check(&mut gc, key(), vec![aged("young", "2026-01-02T00:00:00Z")], vec![], 20, &[]);
        // One that was evicted goes before older ones.
        let mut evicted = aged("young", "2026-01-02T00:00:00Z");
        evicted["status"] = json!({"phase": "Failed", "reason": "Evicted"});
        check(&mut gc, key(), vec![aged("old", "2026-01-01T00:00:00Z"), evicted], vec![], 40, &["delete ns/young"]);
    }
}
