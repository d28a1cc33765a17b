//! Which nodes take a pod, and what each has too few or too many of.

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

/// How long a pod that has ended stays, so that one which cannot live on its node is not made again without end.
const ENDED_STAYS: Duration = Duration::from_secs(10);

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
    if !named.is_empty() && named != node.name() || !affinity_matches(model, node) || node.is_deleting() {
        return (false, false);
    }
    let bears = |effects: &[&str]| untolerated(model, node, effects).is_none();
    (bears(&["NoSchedule", "NoExecute"]), bears(&["NoExecute"]))
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

/// A pod for a node.
pub(super) fn pod_for(view: &View<'_>, known: &Known<'_>, node: &Node) -> Option<Pod> {
    let purpose = format!("{}/{}", node.name(), known.hash);
    let name = names::free::<Pod>(view, (known.set.namespace(), known.set.name()), known.set.uid(), &purpose).next()?;
    let mut pod = model(known.set, known.spec);
    pod.metadata.name = Some(name);
    pod.metadata.labels.get_or_insert_default().insert(revisions::LABEL.to_owned(), known.hash.clone());
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
pub(super) fn plan(view: &View<'_>, known: &Known<'_>) -> Plan {
    let mut plan = Plan::none();
    for (node, runs, stays) in &known.nodes {
        if plan.writes.len() >= BURST {
            return plan;
        }
        let here = known.on(node.name());
        plan = match (runs, stays) {
            (true, _) if here.is_empty() => make(plan, view, known, node),
            (_, true) => tidy(plan, known, here),
            (_, false) => here.iter().filter(|p| !p.is_deleting()).fold(plan, |plan, pod| remove(plan, known, pod)),
        };
    }
    // Pods for nodes that are gone, and were never bound: nobody else takes those away.
    for (node, here) in &known.by_node {
        if !known.nodes.iter().any(|(n, _, _)| n.name() == node) {
            let unbound = here.iter().filter(|p| pods::node(p).is_empty() && !p.is_deleting());
            plan = unbound.fold(plan, |plan, pod| remove(plan, known, pod));
        }
    }
    plan
}

/// Removes what a node has too many of: pods that have ended, and all but the oldest of each revision that may be there.
fn tidy(mut plan: Plan, known: &Known<'_>, here: &[Arc<Pod>]) -> Plan {
    let mut living: Vec<&Arc<Pod>> = Vec::new();
    for pod in here.iter().filter(|p| !p.is_deleting()) {
        if !pods::terminal(pod) {
            living.push(pod);
            continue;
        }
        let made = pod.metadata.creation_timestamp.as_ref().map_or(known.now, Time::from);
        let left = ENDED_STAYS.saturating_sub(known.now.since(made));
        if left.is_zero() {
            let (reason, what) = match pods::phase(pod) {
                "Failed" => ("FailedDaemonPod", "failed"),
                _ => ("SucceededDaemonPod", "succeeded"),
            };
            let about =
                format!("Found {what} daemon pod {}/{} on node {}", pod.namespace(), pod.name(), pods::node(pod));
            let message = format!("{about}, will try to kill it");
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
    let surges = known.rolls() && known.bounds().0 > 0;
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
