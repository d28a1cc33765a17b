//! Deletes pods from nodes with `NoExecute` taints that they do not tolerate, or tolerate only for a time.
//!
//! The time is counted on this observer's own clock, for each taint from when it saw pod and taint together; upstream keeps the
//! first end that it reckoned, whatever taints come and go after that. Before a pod is deleted a live read shows that its node is
//! still as it was seen, so that a node that came back meanwhile keeps its pods.
//! Otherwise as kube-controller-manager's taint eviction controller (pkg/controller/tainteviction).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::placement::tolerates;
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::{NOT_READY_TAINT, UNREACHABLE_TAINT};
use crate::pods::{self, BY_NODE, node_of};

/// Taints that stand for one thing, of which each takes the other's place.
const OUT: [&str; 2] = [NOT_READY_TAINT, UNREACHABLE_TAINT];

/// For each taint that a pod tolerates for a time, by key and value: since when it has been beside it, and until when it may be.
type Tolerated = BTreeMap<(String, String), (Time, Time)>;

/// The taint eviction controller.
#[derive(Default)]
pub struct TaintEviction {
    /// What pods tolerate, each with its UID.
    tolerated: BTreeMap<Key, (String, Tolerated)>,
}

fn no_execute(node: &Node) -> Vec<&Taint> {
    node.spec.iter().flat_map(|s| s.taints.iter().flatten()).filter(|t| t.effect == "NoExecute").collect()
}

/// Until when a pod tolerates all of these taints, given what it did when it was looked at last; none is for ever.
fn tolerated_until(pod: &Pod, taints: &[&Taint], known: &mut Tolerated, now: Time) -> Option<Time> {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    let before = std::mem::take(known);
    let mut first: Option<Time> = None;
    for taint in taints {
        // Of several that fit, the first counts.
        let Some(fitting) = tolerations.iter().find(|t| tolerates(t, taint)) else { return Some(now) };
        let Some(seconds) = fitting.toleration_seconds else { continue };
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let id = (taint.key.clone(), taint.value.clone().unwrap_or_default());
        let since = before.get(&id).map_or_else(|| begun(&before, taint, time, now), |(since, _)| *since);
        let until = since + time;
        known.insert(id, (since, until));
        first = Some(first.map_or(until, |first| first.min(until)));
    }
    first
}

/// Since when a taint counts that was not there before. A node that has been out goes on being out: its pods get no new time, but
/// for what they tolerate this form of it.
fn begun(before: &Tolerated, taint: &Taint, time: Duration, now: Time) -> Time {
    let is_out = |key: &str| OUT.contains(&key);
    let others = before.iter().filter(|((key, _), _)| is_out(&taint.key) && is_out(key));
    others.map(|(_, (_, until))| *until).min().map_or(now, |until| until.min(now + time) - time)
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
        let before = self.tolerated.remove(key);
        let Some((pod, node)) = tainted else { return Plan::none() };
        // Another pod of that name has all of its time.
        let before = before.filter(|(uid, _)| uid == pod.uid());
        let was_to_go = before.is_some();
        let mut known = before.map_or_else(Tolerated::new, |(_, known)| known);
        let Some(until) = tolerated_until(pod, &no_execute(node), &mut known, now) else {
            if was_to_go {
                let message = format!("Cancelling deletion of Pod {key}");
                return Plan::none().event(EventRecord::normal(pod.as_ref(), "TaintManagerEviction", message));
            }
            return Plan::none();
        };
        self.tolerated.insert(key.clone(), (pod.uid().to_owned(), known));
        let left = until.since(now);
        if !left.is_zero() {
            return Plan::none().requeue_after(left);
        }
        let plan = Plan::none().confirm_unchanged(node.as_ref());
        let message = "Taint manager: deleting due to NoExecute taint";
        pods::mark_disrupted(plan, pod, "DeletionByTaintManager", message, false, now)
            .delete(pod.as_ref())
            .event(EventRecord::normal(pod.as_ref(), "TaintManagerEviction", format!("Marking for deletion Pod {key}")))
    }
    fn begin(&mut self) {
        self.tolerated.clear();
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
        // So it does for who begins to lead, and did not see whether it was there all the while.
        one.begin();
        check(&mut one, for_s(300), taint("k", "NoExecute"), 1800, Some(300), false);
        // Of several, the first that fits counts for a taint, and of several taints the shortest time.
        let two = |first: Value| json!([first, {"operator": "Exists", "tolerationSeconds": 10}]);
        let own = |s: Option<i64>| two(json!({"key": "k", "operator": "Exists", "tolerationSeconds": s}));
        check(&mut c(), own(Some(300)), taint("k", "NoExecute"), 0, Some(300), false);
        check(&mut c(), own(None), taint("k", "NoExecute"), 0, None, false);
        let both = json!([{"key": "k", "effect": "NoExecute"}, {"key": "other", "effect": "NoExecute"}]);
        check(&mut c(), own(Some(300)), both.clone(), 0, Some(10), false);
        // Each taint is tolerated for its own time, and one that goes takes its end along.
        let mut one = c();
        check(&mut one, own(Some(300)), taint("k", "NoExecute"), 0, Some(300), false);
        check(&mut one, own(Some(300)), both.clone(), 100, Some(10), false);
        check(&mut one, own(Some(300)), taint("k", "NoExecute"), 105, Some(195), false);
        check(&mut one, own(Some(300)), both.clone(), 250, Some(10), false);
        check(&mut one, own(Some(300)), both, 260, None, true);
        // A node that is not ready is not heard either, or the other way round: that is one time, and the shorter one from then on.
        let out = |not_ready_s: i64, unreachable_s: i64| -> Value {
            let times = [(NOT_READY_TAINT, not_ready_s), (UNREACHABLE_TAINT, unreachable_s)];
            let all = times.map(|(key, s)| json!({"key": key, "operator": "Exists", "tolerationSeconds": s}));
            all.into_iter().collect()
        };
        for (not_ready_s, unreachable_s, at_s, left_s) in
            [(300, 300, 250, Some(50)), (300, 30, 100, Some(30)), (300, 30, 290, Some(10)), (30, 300, 10, Some(20))]
        {
            let (mut one, tolerations) = (c(), out(not_ready_s, unreachable_s));
            let wait = u64::try_from(not_ready_s).ok();
            check(&mut one, tolerations.clone(), taint(NOT_READY_TAINT, "NoExecute"), 0, wait, false);
            check(&mut one, tolerations, taint(UNREACHABLE_TAINT, "NoExecute"), at_s, left_s, false);
        }
    }
}
