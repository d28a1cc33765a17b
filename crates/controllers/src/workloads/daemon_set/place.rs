//! Which nodes take a pod, and what each has too few or too many of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{EventRecord, Plan, Time, View};
use carrack_types::placement::{affinity_matches, untolerated};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Toleration,
};

use super::super::{BURST, names, pods, revisions};
use super::Known;

/// How long the first pod that has ended on a node stays after it was made, and each further one at most: one which cannot
/// live on its node is not made again without end.
const ENDED_STAYS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(900));

/// When a set's pods that had ended were last taken from nodes, and how long the next ones stay: twice as long each time.
/// After a time without, and in another life of the controller, it begins anew.
#[derive(Default)]
pub(super) struct Ended {
    by_set_and_node: BTreeMap<(String, String), (Time, Duration)>,
}

impl Ended {
    /// How long a pod that was made at this time has to stay yet.
    fn left(&self, place: &(String, String), made: Time, now: Time) -> Duration {
        match self.by_set_and_node.get(place) {
            Some((at, stays)) => stays.saturating_sub(now.since(*at)),
            None => ENDED_STAYS.0.saturating_sub(now.since(made)),
        }
    }
    /// One is taken away now.
    fn note(&mut self, place: (String, String), now: Time) {
        let last = self.by_set_and_node.get(&place).map_or(ENDED_STAYS.0, |(_, stays)| *stays);
        self.by_set_and_node.insert(place, (now, (last * 2).min(ENDED_STAYS.1)));
        self.by_set_and_node.retain(|_, (at, _)| now.since(*at) < ENDED_STAYS.1 * 2);
    }
}

/// Taints that a daemon's pods bear (pkg/controller/daemon/util, `AddOrUpdateDaemonPodTolerations`).
const BORNE: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const NETWORK_UNAVAILABLE: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// A pod of the template with the tolerations of daemons, to ask nodes with.
pub(super) fn model(set: &DaemonSet, spec: &DaemonSetSpec) -> Pod {
    let mut pod = pods::from_template(set, &spec.template, String::new());
    if let Some(spec) = &mut pod.spec {
        let host_network = spec.host_network == Some(true);
        let tolerations = spec.tolerations.get_or_insert_default();
        for (key, effect) in BORNE.into_iter().chain(host_network.then_some(NETWORK_UNAVAILABLE)) {
            let toleration = Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some(effect.into()),
                ..Toleration::default()
            };
            if !tolerations.contains(&toleration) {
                tolerations.push(toleration);
            }
        }
    }
    pod
}

/// Whether a pod is to run on a node, and whether one that runs there may stay.
pub(super) fn suits(model: &Pod, node: &Node) -> (bool, bool) {
    let named = pods::node(model);
    if !named.is_empty() && named != node.name() || !affinity_matches(model.spec.as_ref(), node) {
        return (false, false);
    }
    let bears = |effects: &[&str]| untolerated(model.spec.as_ref(), node, effects).is_none();
    (bears(&["NoSchedule", "NoExecute"]), bears(&["NoExecute"]))
}

/// Whether a node takes other pods than before, as far as [`suits`] asks: kubelets write what else is new of their nodes, and each
/// set goes through all nodes.
pub(super) fn is_another(old: &Node, new: &Node) -> bool {
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    old.metadata.labels != new.metadata.labels || taints(old) != taints(new)
}

/// The node that a pod is bound to, or tied to.
pub(super) fn target(pod: &Pod) -> String {
    let bound = pods::node(pod);
    if !bound.is_empty() {
        return bound.to_owned();
    }
    let terms = pod
        .spec
        .as_ref()
        .and_then(|s| s.affinity.as_ref()?.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
        .map(|s| s.node_selector_terms.as_slice())
        .unwrap_or_default();
    let fields = terms.iter().flat_map(|t| t.match_fields.iter().flatten());
    let named = fields.filter(|r| r.key == "metadata.name").flat_map(|r| r.values.iter().flatten());
    named.into_iter().next().cloned().unwrap_or_default()
}

/// The number of the set's template, as the API server counts them, and where its pods bear it.
const GENERATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

/// A pod for a node.
pub(super) fn pod_for(view: &View<'_>, known: &Known<'_>, node: &Node) -> Option<Pod> {
    let purpose = format!("{}/{}", node.name(), known.hash);
    let name = names::free::<Pod>(view, (known.set.namespace(), known.set.name()), known.set.uid(), &purpose).next()?;
    let mut pod = model(known.set, known.spec);
    pod.metadata.name = Some(name);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(revisions::LABEL.to_owned(), known.hash.clone());
    if let Some(number) = known.set.annotation(GENERATION).filter(|number| number.parse::<i64>().is_ok()) {
        labels.insert(GENERATION_LABEL.to_owned(), number.to_owned());
    }
    // What else the template's affinity asks of nodes was asked here.
    let only = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.name().to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![only]), match_expressions: None };
    let affinity: &mut Affinity = pod.spec.get_or_insert_default().affinity.get_or_insert_default();
    let required = NodeSelector { node_selector_terms: vec![term] };
    let node_affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    node_affinity.required_during_scheduling_ignored_during_execution = Some(required);
    Some(pod)
}

/// Adds the pod of a node.
pub(super) fn make(plan: Plan, view: &View<'_>, known: &Known<'_>, node: &Node) -> Plan {
    let Some(pod) = pod_for(view, known, node) else { return plan };
    let told = EventRecord::normal(known.set, "SuccessfulCreate", format!("Created pod: {}", pod.name()));
    plan.create(&pod).told(told)
}

/// Adds the removal of a pod.
pub(super) fn remove(plan: Plan, known: &Known<'_>, pod: &Pod) -> Plan {
    let told = EventRecord::normal(known.set, "SuccessfulDelete", format!("Deleted pod: {}", pod.name()));
    plan.delete(pod).told(told)
}

/// Makes and removes pods, so that each node has one.
pub(super) fn plan(view: &View<'_>, known: &Known<'_>, ended: &mut Ended) -> Plan {
    let mut plan = Plan::none();
    // This counts nodes: asked once, not for each of them.
    let surges = known.surges();
    for (node, runs, stays) in &known.nodes {
        if plan.writes.len() >= BURST {
            return plan;
        }
        let here = known.on(node.name());
        plan = match (runs, stays) {
            // With a surge a pod that goes is no reason to have none.
            (true, _) if here.is_empty() || surges && here.iter().all(|p| p.is_deleting()) => {
                make(plan, view, known, node)
            }
            (_, true) => tidy(plan, known, here, ended, surges),
            (_, false) => here.iter().filter(|p| !p.is_deleting()).fold(plan, |plan, pod| remove(plan, known, pod)),
        };
    }
    // Pods for nodes that are gone, and were never bound: nobody else takes those away.
    let there: BTreeSet<&str> = known.nodes.iter().map(|(node, _, _)| node.name()).collect();
    for (node, here) in &known.by_node {
        if !there.contains(node.as_str()) {
            let unbound = here.iter().filter(|p| pods::node(p).is_empty() && !p.is_deleting());
            plan = unbound.fold(plan, |plan, pod| remove(plan, known, pod));
        }
    }
    plan
}

/// Removes what a node has too many of: pods that have ended, and all but the oldest of each revision that may be there.
fn tidy(mut plan: Plan, known: &Known<'_>, here: &[Arc<Pod>], ended: &mut Ended, surges: bool) -> Plan {
    let mut living: Vec<&Arc<Pod>> = Vec::new();
    for pod in here.iter().filter(|p| !p.is_deleting()) {
        if !pods::terminal(pod) {
            living.push(pod);
            continue;
        }
        let made = pod.metadata.creation_timestamp.as_ref().map_or(known.now, Time::from);
        let place = (known.set.uid().to_owned(), pods::node(pod).to_owned());
        let left = ended.left(&place, made, known.now);
        if left.is_zero() {
            ended.note(place, known.now);
            let (reason, what) = match pods::phase(pod) {
                "Failed" => ("FailedDaemonPod", "failed"),
                _ => ("SucceededDaemonPod", "succeeded"),
            };
            let about =
                format!("Found {what} daemon pod {}/{} on node {}", pod.namespace(), pod.name(), pods::node(pod));
            let message = format!("{about}, will try to {} it", if what == "failed" { "kill" } else { "delete" });
            let event = match what {
                "failed" => EventRecord::warning(known.set, reason, message),
                _ => EventRecord::normal(known.set, reason, message),
            };
            plan = plan.delete(pod.as_ref()).told(event);
        } else {
            plan = plan.requeue_after(left);
        }
    }
    if living.len() < 2 {
        return plan;
    }
    // A bound pod before one that is not, then the older one.
    living.sort_by_key(|p| {
        (pods::node(p).is_empty(), p.metadata.creation_timestamp.as_ref().map(|t| t.0), p.name().to_owned())
    });
    let mut kept: Vec<&Arc<Pod>> = Vec::new();
    for pod in living {
        let beside_old = surges && kept.len() == 1 && known.is_new(kept[0]) != known.is_new(pod);
        if kept.is_empty() || beside_old {
            kept.push(pod);
        } else {
            plan = remove(plan, known, pod);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::of;

    #[test]
    fn a_pod_bears_the_number_of_its_template() {
        let check = |annotations: Value, expected: Option<&str>| {
            let set: DaemonSet = of(json!({
                "metadata": {"namespace": "ns", "name": "agent", "uid": "d", "annotations": annotations},
                "spec": {"selector": {"matchLabels": {"app": "agent"}},
                    "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": []}}},
            }));
            let spec = set.spec.as_ref().expect("it has one");
            let (hash, now) = ("abc".to_owned(), Time::default());
            let known = Known { set: &set, spec, hash, by_node: BTreeMap::new(), nodes: Vec::new(), now };
            let caches = Caches::new().with::<Pod>([]);
            let node: Node = of(json!({"metadata": {"name": "n1"}}));
            let pod = pod_for(&caches.view(), &known, &node).expect("the name is free");
            assert_eq!(pod.label(GENERATION_LABEL), expected, "{annotations}");
            assert_eq!(pod.label(revisions::LABEL), Some("abc"));
        };
        check(json!({ GENERATION: "7" }), Some("7"));
        check(json!({}), None);
        check(json!({ GENERATION: "seven" }), None);
    }

    #[test]
    fn what_kubelets_write_makes_no_other_node() {
        let check = |change: Value, is_another_one: bool| {
            let node = json!({"metadata": {"name": "n", "labels": {"a": "b"}, "resourceVersion": "1"},
                "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"volumesInUse": []}});
            let mut changed = node.clone();
            for (part, value) in change.as_object().expect("a map") {
                for (field, value) in value.as_object().expect("a map") {
                    changed[part][field] = value.clone();
                }
            }
            assert_eq!(is_another(&of(node), &of(changed)), is_another_one, "{change}");
        };
        check(json!({"metadata": {"resourceVersion": "2", "annotations": {"a": "b"}}}), false);
        check(json!({"status": {"volumesInUse": ["v"], "images": [{"names": ["i"]}]}}), false);
        check(json!({"metadata": {"labels": {"a": "c"}}}), true);
        check(json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}), true);
        check(json!({"spec": {"taints": null}}), true);
    }

    #[test]
    fn what_ends_again_and_again_stays_longer_each_time() {
        let at = |s: i64| Time::from_unix_s(s);
        let place = |node: &str| ("set".to_owned(), node.to_owned());
        let left =
            |ended: &Ended, node: &str, made: i64, now: i64| ended.left(&place(node), at(made), at(now)).as_secs();
        let mut ended = Ended::default();
        assert_eq!((left(&ended, "a", 0, 3), left(&ended, "a", 0, 30)), (7, 0));
        let mut now = 30;
        for stays in [20, 40, 80, 160, 320, 640, 900, 900] {
            ended.note(place("a"), at(now));
            // When it was made does not matter any more.
            assert_eq!((left(&ended, "a", now - 100, now), left(&ended, "b", now - 100, now)), (stays, 0));
            now += i64::try_from(stays).expect("small");
        }
        // It is forgotten after a while.
        ended.note(place("b"), at(now + 1800));
        assert_eq!(left(&ended, "a", now + 1800, now + 1800), 10);
    }
}
