//! Replaces pods of other revisions: old ones go first, within what may be unavailable, or new ones come first, within the
//! surge.

use std::sync::Arc;

use carrack_engine::{Plan, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::super::{BURST, pods};
use super::{Known, place};

/// One step of an update.
pub(super) fn plan(view: &View<'_>, known: &Known<'_>) -> Plan {
    if known.surges() { surge(view, known) } else { in_place(known) }
}

/// The pods of a node that count, the old one and the new one.
fn pair<'a>(known: &'a Known<'_>, node: &Node) -> (Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>) {
    let living = || known.on(node.name()).iter().filter(|p| pods::active(p));
    (living().find(|p| !known.is_new(p)), living().find(|p| known.is_new(p)))
}

fn in_place(known: &Known<'_>) -> Plan {
    let mut unavailable = 0;
    let (mut at_once, mut in_turn) = (Vec::new(), Vec::new());
    for (node, runs, _) in &known.nodes {
        let (old, new) = pair(known, node);
        match old.or(new) {
            Some(pod) if known.is_available(pod) => in_turn.extend(old),
            Some(_) => {
                unavailable += i32::from(*runs);
                // Nothing is lost with a pod that serves nobody.
                at_once.extend(old);
            }
            None => unavailable += i32::from(*runs),
        }
    }
    let budget = usize::try_from(known.bounds().1 - unavailable).unwrap_or(0);
    at_once
        .into_iter()
        .chain(in_turn.into_iter().take(budget))
        .fold(Plan::none(), |plan, pod| place::remove(plan, known, pod))
}

fn surge(view: &View<'_>, known: &Known<'_>) -> Plan {
    let (surge, _) = known.bounds();
    let (mut beside, mut available) = (0, 0);
    let mut plan = Plan::none();
    let (mut at_once, mut in_turn, mut misplaced) = (Vec::new(), Vec::new(), Vec::new());
    for (node, runs, _) in &known.nodes {
        let (old, new) = pair(known, node);
        available += i32::from(old.or(new).is_some_and(|pod| known.is_available(pod)));
        match (old, new) {
            (Some(old), Some(new)) => match known.availability(new) {
                Ok(()) => plan = place::remove(plan, known, old),
                // It serves nobody, and may hold what the new one needs: a port, or room.
                Err(_) if !pods::ready(old) => plan = place::remove(plan, known, old),
                Err(left) => {
                    beside += 1;
                    // Nothing else tells when it has been ready for long enough.
                    plan = left.into_iter().fold(plan, Plan::requeue_after);
                }
            },
            // One that would not be made here any more stays only as long as the others are too few.
            (Some(old), None) if !*runs => {
                if known.is_available(old) {
                    misplaced.push(old);
                } else {
                    plan = place::remove(plan, known, old);
                }
            }
            (Some(old), None) => {
                // A pod that is on its way already is not made again.
                if known.on(node.name()).iter().any(|p| known.is_new(p)) {
                    beside += 1;
                } else if known.is_available(old) {
                    in_turn.push(node);
                } else {
                    at_once.push(node);
                }
            }
            _ => {}
        }
    }
    let spare = usize::try_from(available - known.desired()).unwrap_or(0);
    let plan = misplaced.into_iter().take(spare).fold(plan, |plan, pod| place::remove(plan, known, pod));
    // Where the old pod serves nobody, a new one beside it is none of the surge.
    let budget = usize::try_from(surge - beside).unwrap_or(0);
    let nodes = at_once.into_iter().chain(in_turn.into_iter().take(budget)).take(BURST);
    nodes.fold(plan, |plan, node| place::make(plan, view, known, node))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use carrack_engine::Time;
    use carrack_engine::testing::Caches;
    use k8s_openapi::api::apps::v1::DaemonSet;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{of, words};

    /// A pod of a revision that has been ready since so many seconds before a minute past midnight; not at all for none.
    fn pod(name: &str, revision: &str, node: &str, ready_for: Option<u32>) -> Value {
        let ready = match ready_for {
            Some(s) => {
                json!([{"type": "Ready", "status": "True", "lastTransitionTime": format!("2026-01-01T00:00:{:02}Z", 59 - s)}])
            }
            None => json!([]),
        };
        json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"controller-revision-hash": revision}},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running", "conditions": ready}})
    }

    /// What an update with a surge of one does, where nodes take pods or only keep them: `(node, takes, pods)`.
    fn check(nodes: &[(&str, bool, Vec<Value>)], expected: &[&str], again: Option<u64>) {
        let set: DaemonSet =
            of(json!({"metadata": {"namespace": "ns", "name": "d", "uid": "d", "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "minReadySeconds": 10,
                "updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}}}));
        let spec = set.spec.as_ref().expect("it has one");
        let by_node: BTreeMap<String, Vec<Arc<Pod>>> = nodes
            .iter()
            .map(|(node, _, pods)| ((*node).to_owned(), pods.iter().map(|p| Arc::new(of(p.clone()))).collect()))
            .collect();
        let made = |name: &str| Arc::new(of::<Node>(json!({"metadata": {"name": name}})));
        let known = Known {
            set: &set,
            spec,
            hash: "new".to_owned(),
            by_node,
            nodes: nodes.iter().map(|(node, runs, _)| (made(node), *runs, true)).collect(),
            now: Time::parse("2026-01-01T00:00:59Z").expect("a time"),
        };
        let caches = Caches::new().with::<Pod>([]);
        let plan = plan(&caches.view(), &known);
        let words: Vec<String> = words(&plan)
            .into_iter()
            .map(|w| w.split("ns/d-").next().unwrap_or_default().trim_end().to_owned())
            .collect();
        assert_eq!(
            (words, plan.requeue_after.map(|after| after.as_secs())),
            (expected.iter().map(|e| (*e).to_owned()).collect(), again),
            "{nodes:?}"
        );
    }

    #[test]
    fn new_pods_come_beside_old_ones() {
        let old = |node: &str, ready| pod(&format!("old-{node}"), "old", node, ready);
        let new = |node: &str, ready| pod(&format!("new-{node}"), "new", node, ready);
        // One at a time.
        let (a, b) = (("a", true, vec![old("a", Some(50))]), ("b", true, vec![old("b", Some(50))]));
        check(&[a.clone(), b.clone()], &["create pods"], None);
        // The new one is waited for, for as long as it takes, and then replaces the old one.
        check(&[("a", true, vec![old("a", Some(50)), new("a", Some(3))]), b.clone()], &[], Some(7));
        check(&[("a", true, vec![old("a", Some(50)), new("a", None)]), b.clone()], &[], None);
        let done = ("a", true, vec![old("a", Some(50)), new("a", Some(10))]);
        check(&[done, b.clone()], &["delete ns/old-a", "create pods"], None);
        // An old one that serves nobody is not waited for, and what replaces it is none of the surge.
        check(
            &[("a", true, vec![old("a", None), new("a", None)]), b.clone()],
            &["delete ns/old-a", "create pods"],
            None,
        );
        let idle = |node: &'static str| (node, true, vec![old(node, None)]);
        check(&[idle("a"), idle("b"), idle("c")], &["create pods"; 3], None);
        // Where none is to come any more, the old one goes once the others are enough.
        let kept = ("a", false, vec![old("a", Some(50))]);
        check(&[kept.clone(), ("b", true, vec![new("b", None)])], &[], None);
        check(&[kept, ("b", true, vec![new("b", Some(50))])], &["delete ns/old-a"], None);
        check(&[("a", false, vec![old("a", None)])], &["delete ns/old-a"], None);
    }
}
