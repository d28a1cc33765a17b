//! Deletes pods from nodes with `NoExecute` taints that they do not tolerate, or tolerate only for a time.
//!
//! The time is counted on this observer's own clock from when it saw pod and taint together. Before a pod is deleted a
//! live read shows that its node is still as it was seen, so that a node that came back meanwhile keeps its pods.
//! Otherwise as kube-controller-manager's taint eviction controller (pkg/controller/tainteviction).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::placement::tolerates;
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use crate::pods::{self, BY_NODE, node_of};

/// The taint eviction controller.
#[derive(Default)]
pub struct TaintEviction {
    /// Since when a pod, by key and UID, has been on a node with such taints.
    since: BTreeMap<Key, (String, Time)>,
}

fn no_execute(node: &Node) -> Vec<&Taint> {
    node.spec.iter().flat_map(|s| s.taints.iter().flatten()).filter(|t| t.effect == "NoExecute").collect()
}

/// How long a pod tolerates all of these taints; none is for ever.
fn tolerated_for(pod: &Pod, taints: &[&Taint]) -> Option<Duration> {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    let mut least = None;
    for taint in taints {
        // Of several that fit, the first counts.
        let Some(fitting) = tolerations.iter().find(|t| tolerates(t, taint)) else { return Some(Duration::ZERO) };
        if let Some(seconds) = fitting.toleration_seconds {
            let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            least = Some(least.map_or(time, |l: Duration| l.min(time)));
        }
    }
    least
}

impl Controller for TaintEviction {
    fn name(&self) -> &'static str {
        "taint-eviction-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.index::<Pod>(BY_NODE, pods::by_node);
        setup.watch::<Pod>(|pod, _| if node_of(pod).is_empty() { Vec::new() } else { vec![Key::of(pod)] });
        setup.watch::<Node>(|node, view| {
            if no_execute(node).is_empty() {
                return Vec::new();
            }
            view.cache::<Pod>().by_index(BY_NODE, node.name()).map(|p| Key::of(p.as_ref())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let pod = view.get::<Pod>(&key.namespace, &key.name).filter(|p| !p.is_deleting() && !is_terminal(p));
        let tainted = pod.and_then(|p| Some((p, view.get::<Node>("", node_of(p))?)));
        let Some((pod, node)) = tainted else {
            self.since.remove(key);
            return Plan::none();
        };
        let Some(time) = tolerated_for(pod, &no_execute(node)) else {
            if self.since.remove(key).is_some() {
                let message = format!("Cancelling deletion of Pod {key}");
                return Plan::none().event(EventRecord::normal(pod.as_ref(), "TaintManagerEviction", message));
            }
            return Plan::none();
        };
        let since = self.since.entry(key.clone()).or_insert_with(|| (pod.uid().to_owned(), now));
        if since.0 != pod.uid() {
            *since = (pod.uid().to_owned(), now);
        }
        let left = time.saturating_sub(now.since(since.1));
        if !left.is_zero() {
            return Plan::none().requeue_after(left);
        }
        let plan = Plan::none().confirm_unchanged(node.as_ref());
        let message = "Taint manager: deleting due to NoExecute taint";
        pods::mark_disrupted(plan, pod, "DeletionByTaintManager", message, false, now)
            .delete(pod.as_ref())
            .event(EventRecord::normal(pod.as_ref(), "TaintManagerEviction", format!("Marking for deletion Pod {key}")))
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{of, words};

    fn check(c: &mut TaintEviction, tolerations: Value, taints: Value, at_s: i64, wait_s: Option<u64>, evicts: bool) {
        let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "1"},
            "spec": {"nodeName": "n", "containers": [], "tolerations": tolerations}});
        let node = json!({"metadata": {"name": "n", "resourceVersion": "1"}, "spec": {"taints": taints}});
        let caches = Caches::new().with::<Pod>([of(pod)]).with::<Node>([of(node)]);
        let plan = c.reconcile(&Key::new("ns", "p"), &caches.view(), Time::from_unix_s(at_s));
        let evicted = ["confirm unchanged n", "patch ns/p/status DisruptionTarget=True", "delete ns/p"];
        assert_eq!(words(&plan), if evicts { &evicted[..] } else { &[] }, "{tolerations} {taints} at {at_s}");
        assert_eq!(plan.requeue_after, wait_s.map(Duration::from_secs), "{tolerations} {taints} at {at_s}");
    }

    #[test]
    fn pods_go_when_their_toleration_ends() {
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let for_s = |s: i64| json!([{"key": "k", "operator": "Exists", "tolerationSeconds": s}]);
        let c = || TaintEviction::default();
        check(&mut c(), json!([]), json!([]), 0, None, false);
        check(&mut c(), json!([]), taint("k", "NoSchedule"), 0, None, false);
        check(&mut c(), json!([]), taint("k", "NoExecute"), 0, None, true);
        check(&mut c(), json!([{"key": "k", "operator": "Exists"}]), taint("k", "NoExecute"), 0, None, false);
        check(&mut c(), for_s(0), taint("k", "NoExecute"), 0, None, true);
        check(&mut c(), for_s(-5), taint("k", "NoExecute"), 0, None, true);
        check(&mut c(), for_s(300), taint("other", "NoExecute"), 0, None, true);
        let mut one = c();
        check(&mut one, for_s(300), taint("k", "NoExecute"), 1000, Some(300), false);
        check(&mut one, for_s(300), taint("k", "NoExecute"), 1299, Some(1), false);
        check(&mut one, for_s(300), taint("k", "NoExecute"), 1300, None, true);
        // The taint went and came again: the time begins anew.
        check(&mut one, for_s(300), json!([]), 1301, None, false);
        check(&mut one, for_s(300), taint("k", "NoExecute"), 1400, Some(300), false);
        // Of several, the first that fits counts for a taint, and of several taints the shortest time.
        let two = |first: Value| json!([first, {"operator": "Exists", "tolerationSeconds": 10}]);
        let own = |s: Option<i64>| two(json!({"key": "k", "operator": "Exists", "tolerationSeconds": s}));
        check(&mut c(), own(Some(300)), taint("k", "NoExecute"), 0, Some(300), false);
        check(&mut c(), own(None), taint("k", "NoExecute"), 0, None, false);
        let both = json!([{"key": "k", "effect": "NoExecute"}, {"key": "other", "effect": "NoExecute"}]);
        check(&mut c(), own(Some(300)), both, 0, Some(10), false);
    }
}
