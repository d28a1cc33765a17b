//! How many pods each PodDisruptionBudget allows to be evicted now.
//!
//! How many pods there ought to be is what their controllers are asked for, where the budget is relative to that. Pods
//! whose eviction was granted count as gone until they are, for two minutes at most. That is counted from when the grant is
//! first seen: upstream goes by the time that the API server has put on it, and where clocks are minutes apart more are
//! evicted than may be.
//!
//! What is odd about a budget is told at each look at it, as upstream does: a budget is looked at when it or one of its pods
//! changes, and not for what was told. The recorder counts what is said again, and lets one object cause so many events only.
//! Behaviour follows kube-controller-manager's disruption controller (pkg/controller/disruption).

mod scale;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::definition::Definition;
use carrack_types::resource::Object as _;
use carrack_types::selector::selects;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time as MetaTime};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use crate::Planted;
use crate::pods::is_ready;
use scale::{Scales, Unknown};

/// How long a pod may take to go after its eviction was granted.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

/// How soon a budget is looked at again whose pods' owners are of a kind that is not read yet.
const NOT_YET: Duration = Duration::from_secs(1);

/// The disruption controller.
#[derive(Default)]
pub struct DisruptionController {
    scales: Scales,
    /// Pods that more than one budget chooses, as they were when it was told, by the first of their budgets: their UIDs with
    /// their revisions.
    told: BTreeMap<Key, BTreeMap<String, String>>,
    /// Granted evictions by their budgets.
    granted: BTreeMap<Key, Granted>,
    /// A planted bug: pods whose eviction was granted count as before.
    forgets: bool,
}

impl DisruptionController {
    pub(crate) fn with_planted(mut self, bug: Option<Planted>) -> Self {
        self.forgets = bug == Some(Planted::GrantsForgotten);
        self
    }
}

fn budgets_of(pod: &Pod, view: &View<'_>) -> Vec<Key> {
    view.cache::<PodDisruptionBudget>()
        .in_namespace(pod.namespace())
        .filter(|b| chooses(b, pod))
        .map(|b| Key::of(b.as_ref()))
        .collect()
}

fn chooses(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| selects(s, pod.metadata.labels.as_ref()))
}

/// One of the labels that a pod must have for a budget to choose it, if there is one.
fn first_label(budget: &PodDisruptionBudget) -> Option<(&String, &String)> {
    budget.spec.as_ref()?.selector.as_ref()?.match_labels.as_ref()?.first_key_value()
}

/// `of` percent or so many; percentages are rounded up.
fn scaled(value: &IntOrString, of: i64) -> Result<i64, String> {
    match value {
        IntOrString::Int(n) => Ok(i64::from(*n)),
        IntOrString::String(text) => text
            .strip_suffix('%')
            .and_then(|p| p.parse::<i64>().ok())
            .map(|percent| percent.saturating_mul(of).saturating_add(99).div_euclid(100))
            .ok_or_else(|| {
                format!("invalid value for IntOrString: invalid type: string is not a percentage: {text:?}")
            }),
    }
}

/// How many pods the controllers of these are asked for, all together, and whether some have no controller.
fn expected(pods: &[&Pod], scales: &Scales, view: &View<'_>) -> Result<(i64, bool), Why> {
    let mut by_controller: BTreeMap<String, i64> = BTreeMap::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut unmanaged = false;
    for pod in pods {
        let owners = pod.metadata.owner_references.iter().flatten();
        let Some(owner) = owners.into_iter().find(|o| o.controller == Some(true)) else {
            unmanaged = true;
            continue;
        };
        if !seen.insert(&owner.uid) {
            continue;
        }
        let (uid, replicas) = scales.of(owner, pod.namespace(), view).map_err(|unknown| match unknown {
            Unknown::NotYet => Why::NotYet,
            Unknown::NoOwner => Why::Failed(format!("found no controllers for pod {:?}", pod.name())),
            Unknown::Never(why) => Why::Failed(why),
        })?;
        by_controller.insert(uid, replicas);
    }
    Ok((by_controller.into_values().sum(), unmanaged))
}

/// Why it cannot be said how many pods there ought to be.
enum Why {
    /// What is asked is not read yet.
    NotYet,
    Failed(String),
}

impl From<String> for Why {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// How many there ought to be.
struct Wanted {
    expected: i64,
    healthy: i64,
    /// Whether pods without a controller were left out.
    unmanaged: bool,
}

fn wanted(budget: &PodDisruptionBudget, pods: &[&Pod], scales: &Scales, view: &View<'_>) -> Result<Wanted, Why> {
    let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    let all = |healthy| Wanted { expected: count, healthy, unmanaged: false };
    let Some(spec) = &budget.spec else { return Ok(Wanted { expected: 0, ..all(0) }) };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let (expected, unmanaged) = expected(pods, scales, view)?;
            Ok(Wanted { expected, healthy: (expected - scaled(most, expected)?).max(0), unmanaged })
        }
        (None, Some(IntOrString::Int(least))) => Ok(all(i64::from(*least))),
        (None, Some(least)) => {
            let (expected, unmanaged) = expected(pods, scales, view)?;
            Ok(Wanted { expected, healthy: scaled(least, expected)?, unmanaged })
        }
        (None, None) => Ok(all(0)),
    }
}

/// What is odd about the pods that a budget has.
fn oddities(budget: &PodDisruptionBudget, pods: &[&Pod], unmanaged: bool) -> Plan {
    let mut plan = Plan::none();
    if pods.is_empty() {
        plan = plan.event(EventRecord::normal(budget, "NoPods", "No matching pods found"));
    }
    if unmanaged {
        let why = "Some of the pods have no controller, and are missing in the number of pods that there ought to be. \
                   Set \".spec.minAvailable\" to a number of pods to have them counted.";
        plan = plan.event(EventRecord::warning(budget, "UnmanagedPods", why));
    }
    plan
}

/// Tells of pods that more than one budget chooses: at their first budget, and again when they change. `told` is what was
/// told of those of this budget.
fn shared(budget: &PodDisruptionBudget, pods: &[&Pod], told: &mut BTreeMap<String, String>, view: &View<'_>) -> Plan {
    let before = std::mem::take(told);
    let mut plan = Plan::none();
    let beside = || view.cache::<PodDisruptionBudget>().in_namespace(budget.namespace());
    if beside().nth(1).is_none() {
        return plan;
    }
    for pod in pods {
        let mut all = beside().filter(|other| chooses(other, pod));
        // Who is not the first asks no further: each of so many budgets goes through its pods.
        if all.next().is_none_or(|first| first.name() != budget.name()) {
            continue;
        }
        let others: Vec<&str> = all.map(|other| other.name()).collect();
        if others.is_empty() {
            continue;
        }
        let revision = pod.metadata.resource_version.clone().unwrap_or_default();
        if before.get(pod.uid()) != Some(&revision) {
            let why = format!(
                "The pod matches more than one PodDisruptionBudget: {}, {}. Each counts it, and it cannot be evicted",
                budget.name(),
                others.join(", ")
            );
            plan = plan.event(EventRecord::warning(*pod, "MultiplePodDisruptionBudgets", why));
        }
        told.insert(pod.uid().to_owned(), revision);
    }
    plan
}

/// What is wrong with a budget's selector. Admission refuses such a one.
fn selector_fault(budget: &PodDisruptionBudget) -> Option<String> {
    let selector = budget.spec.as_ref()?.selector.as_ref()?;
    let known = ["In", "NotIn", "Exists", "DoesNotExist"];
    let bad = selector.match_expressions.iter().flatten().find(|r| !known.contains(&r.operator.as_str()))?;
    Some(format!("{:?} is not a valid label selector operator", bad.operator))
}

fn condition(
    budget: &PodDisruptionBudget,
    observed: Option<i64>,
    status: bool,
    reason: &str,
    message: &str,
    now: Time,
) -> Vec<Condition> {
    let mut all = budget.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut new = Condition {
        type_: "DisruptionAllowed".into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: observed,
        last_transition_time: now.meta(),
    };
    match all.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
            }
            *old = new;
        }
        None => all.push(new),
    }
    all
}

fn small(n: i64) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

impl Controller for DisruptionController {
    fn name(&self) -> &'static str {
        "disruption-controller"
    }
    fn event_source(&self) -> &'static str {
        "controllermanager"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PodDisruptionBudget>();
        setup.index_labels::<Pod>();
        // Each pod that changes is held against all budgets of its namespace.
        setup.keep_open::<PodDisruptionBudget>();
        setup.watch::<Pod>(budgets_of);
        // A scale that changes is followed by pods that do.
        setup.watch::<ReplicaSet>(|set, view| of_owned(set.namespace(), set.uid(), view));
        setup.watch::<StatefulSet>(|set, view| of_owned(set.namespace(), set.uid(), view));
        setup.watch::<ReplicationController>(|rc, view| of_owned(rc.namespace(), rc.uid(), view));
        setup.watch::<Deployment>(|deployment, view| {
            let sets = view.cache::<ReplicaSet>().by_owner(deployment.uid());
            sets.flat_map(|set| of_owned(set.namespace(), set.uid(), view))
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        });
        setup.read::<Definition>();
    }
    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.scales.refresh(view, setup, |owner, view| of_owned(owner.namespace(), owner.uid(), view));
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(budget) = view.get::<PodDisruptionBudget>(&key.namespace, &key.name) else {
            self.told.remove(key);
            self.granted.remove(key);
            return Plan::none();
        };
        let pods: Vec<&Pod> = view
            .cache::<Pod>()
            .labelled(&key.namespace, first_label(budget))
            .filter(|p| chooses(budget, p))
            .map(AsRef::as_ref)
            .collect();
        let mut old = budget.status.clone().unwrap_or_default();
        old.disrupted_pods = old.disrupted_pods.filter(|d| !d.is_empty());
        let fault = selector_fault(budget);
        let wanted = match &fault {
            Some(why) => Err(Why::Failed(why.clone())),
            None => wanted(budget, &pods, &self.scales, view),
        };
        let mut plan = shared(budget, &pods, self.told.entry(key.clone()).or_default(), view);
        let new = match wanted {
            // What is said of it stays until it can be known.
            Err(Why::NotYet) => return plan.requeue_after(NOT_YET),
            Ok(Wanted { expected, healthy: desired, unmanaged }) => {
                plan = plan.then(oddities(budget, &pods, unmanaged));
                let (disrupted, again) = match self.forgets {
                    true => Default::default(),
                    false => {
                        let seen = self.granted.entry(key.clone()).or_default();
                        disrupted(budget, &pods, seen, now, &mut plan)
                    }
                };
                if let Some(after) = again {
                    plan = plan.requeue_after(after);
                }
                let healthy = pods
                    .iter()
                    .filter(|p| !p.is_deleting() && !disrupted.contains_key(p.name()) && is_ready(p))
                    .count();
                let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
                let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
                let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
                PodDisruptionBudgetStatus {
                    conditions: Some(condition(budget, budget.metadata.generation, allowed > 0, reason, "", now)),
                    current_healthy: Some(small(healthy)),
                    desired_healthy: Some(small(desired)),
                    expected_pods: Some(small(expected)),
                    disruptions_allowed: Some(small(allowed)),
                    disrupted_pods: Some(disrupted).filter(|d| !d.is_empty()),
                    observed_generation: budget.metadata.generation,
                }
            }
            // Whoever cannot count allows nothing, and has not observed what it cannot count.
            Err(Why::Failed(why)) => {
                let event = if fault.is_some() {
                    EventRecord::warning(budget.as_ref(), "NoPods", format!("Failed to get pods: {why}"))
                } else {
                    if pods.is_empty() {
                        plan = plan.then(oddities(budget, &pods, false));
                    }
                    let message = format!("Failed to calculate the number of expected pods: {why}");
                    EventRecord::warning(budget.as_ref(), "CalculateExpectedPodCountFailed", message)
                };
                plan = plan.event(event);
                PodDisruptionBudgetStatus {
                    conditions: Some(condition(budget, old.observed_generation, false, "SyncFailed", &why, now)),
                    disruptions_allowed: Some(0),
                    ..old.clone()
                }
            }
        };
        if new == old && budget.status.is_some() {
            return plan;
        }
        let mut status = json!(new);
        for gone in old.disrupted_pods.iter().flatten().map(|(name, _)| name) {
            if new.disrupted_pods.as_ref().is_none_or(|d| !d.contains_key(gone)) {
                status["disruptedPods"][gone] = Value::Null;
            }
        }
        plan.patch_status(budget.as_ref(), json!({ "status": status }))
    }
}

fn of_owned(namespace: &str, uid: &str, view: &View<'_>) -> Vec<Key> {
    if view.cache::<PodDisruptionBudget>().in_namespace(namespace).next().is_none() {
        return Vec::new();
    }
    let pods = view.cache::<Pod>().by_owner(uid);
    pods.flat_map(|p| budgets_of(p, view)).collect::<BTreeSet<_>>().into_iter().collect()
}

type Disrupted = BTreeMap<String, MetaTime>;
/// Granted evictions by the names of their pods: how each is dated, and since when it has been seen.
type Granted = BTreeMap<String, (MetaTime, Time)>;

/// Pods whose eviction was granted and that have not gone yet, and when the first of them is overdue.
fn disrupted(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    seen: &mut Granted,
    now: Time,
    plan: &mut Plan,
) -> (Disrupted, Option<Duration>) {
    let granted = budget.status.as_ref().and_then(|s| s.disrupted_pods.clone()).unwrap_or_default();
    let before = std::mem::take(seen);
    let mut left = Disrupted::new();
    let mut again: Option<Duration> = None;
    for pod in pods {
        let Some(at) = granted.get(pod.name()).filter(|_| !pod.is_deleting()) else { continue };
        let since = before.get(pod.name()).filter(|(dated, _)| dated == at).map_or(now, |(_, since)| *since);
        seen.insert(pod.name().to_owned(), (at.clone(), since));
        let age = now.since(since);
        if age > DELETION_TIMEOUT {
            let message =
                format!("Pod was expected by PDB {}/{} to be deleted but it wasn't", budget.namespace(), budget.name());
            let event = EventRecord::warning(*pod, "NotDeleted", message);
            *plan = std::mem::take(plan).event(event);
            continue;
        }
        let due = DELETION_TIMEOUT - age + Duration::from_secs(1);
        again = Some(again.map_or(due, |a| a.min(due)));
        left.insert(pod.name().to_owned(), at.clone());
    }
    (left, again)
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use carrack_engine::{Source, Write};
    use carrack_types::resource::Resource;

    use super::*;
    use crate::testing::of;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    fn look(spec: Value, status: Value, pods: Vec<Value>, now_s: i64) -> (Value, Plan) {
        look_by(&mut DisruptionController::default(), spec, status, pods, now_s)
    }

    fn look_by(
        controller: &mut DisruptionController,
        spec: Value,
        status: Value,
        pods: Vec<Value>,
        now_s: i64,
    ) -> (Value, Plan) {
        let mut budget =
            json!({"metadata": {"namespace": "ns", "name": "b", "uid": "b", "generation": 3}, "spec": spec});
        if budget["spec"]["selector"].is_null() {
            budget["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
        }
        if !status.is_null() {
            budget["status"] = status;
        }
        let set = json!({"metadata": {"namespace": "ns", "name": "rs", "uid": "rs",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d", "controller": true}]},
            "spec": {"replicas": 1, "selector": {}}});
        let deployment = json!({"metadata": {"namespace": "ns", "name": "d", "uid": "d"},
            "spec": {"replicas": 4, "selector": {}, "template": {}}});
        let caches = Caches::new()
            .with::<PodDisruptionBudget>([of(budget)])
            .with::<Pod>(pods.into_iter().map(of))
            .with::<ReplicaSet>([of(set)])
            .with::<Deployment>([of(deployment)])
            .with::<StatefulSet>([])
            .with::<ReplicationController>([])
            .with::<Definition>([of(definition("fleets", "Fleet", true)), of(definition("crews", "Crew", false))])
            .with_source::<scale::Scaled>(
                Source { metadata_only: false, ..Source::metadata(fleets()) },
                [of(json!({"metadata": {"namespace": "ns", "name": "rs", "uid": "rs"}, "spec": {"size": {"wanted": 6}}}))],
            );
        caches.refresh(controller);
        let plan = controller.reconcile(&Key::new("ns", "b"), &caches.view(), Time::from_unix_s(now_s));
        let status = match &plan.writes[..] {
            [Write::Patch { patch, .. }] => patch["status"].clone(),
            [] => Value::Null,
            other => panic!("{other:?}"),
        };
        (status, plan)
    }

    fn definition(plural: &str, kind: &str, scaled: bool) -> Value {
        let scale = json!({"scale": {"specReplicasPath": ".spec.size.wanted", "statusReplicasPath": ".status.is"}});
        json!({"metadata": {"name": format!("{plural}.example.com"), "uid": plural},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "subresources": if scaled { scale } else { json!({}) }}]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]}})
    }

    fn fleets() -> Resource {
        Resource {
            group: "example.com".into(),
            version: "v1".into(),
            plural: "fleets".into(),
            kind: "Fleet".into(),
            namespaced: true,
        }
    }

    fn pod(name: &str, ready: bool, owner: &str) -> Value {
        let (version, kind) = owner.rsplit_once('/').unwrap_or(("apps/v1", owner));
        json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": version, "kind": kind, "name": "rs", "uid": "rs", "controller": true}]},
            "spec": {"containers": []},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
    }

    #[test]
    fn budgets_count_healthy_pods_against_what_ought_to_be() {
        let endless = format!("{}%", i64::MAX);
        // (spec, ready pods of four, owner) → (expected, desired, healthy, allowed, reason).
        for (spec, ready, owner, expected) in [
            (json!({"minAvailable": 2}), 4, "ReplicaSet", (4, 2, 4, 2, "SufficientPods")),
            (json!({"minAvailable": 2}), 2, "ReplicaSet", (4, 2, 2, 0, "InsufficientPods")),
            (json!({"minAvailable": 1}), 4, "VirtualMachineInstance", (4, 1, 4, 3, "SufficientPods")),
            (json!({"minAvailable": "51%"}), 4, "ReplicaSet", (4, 3, 4, 1, "SufficientPods")),
            (json!({"maxUnavailable": 1}), 4, "ReplicaSet", (4, 3, 4, 1, "SufficientPods")),
            (json!({"maxUnavailable": "30%"}), 4, "ReplicaSet", (4, 2, 4, 2, "SufficientPods")),
            // What a custom kind is asked for is where its definition says.
            (json!({"maxUnavailable": 3}), 4, "example.com/v1/Fleet", (6, 3, 4, 1, "SufficientPods")),
            (json!({"minAvailable": "50%"}), 4, "example.com/v1beta1/Fleet", (6, 3, 4, 1, "SufficientPods")),
            (json!({"maxUnavailable": "100%"}), 0, "ReplicaSet", (4, 0, 0, 0, "InsufficientPods")),
            (json!({"minAvailable": endless}), 4, "ReplicaSet", (4, i32::MAX, 4, 0, "InsufficientPods")),
        ] {
            let pods = (0..4).map(|n| pod(&format!("p{n}"), n < ready, owner)).collect();
            let (s, _) = look(spec.clone(), Value::Null, pods, 0);
            let (e, d, h, a, r) = expected;
            assert_eq!(
                [&s["expectedPods"], &s["desiredHealthy"], &s["currentHealthy"], &s["disruptionsAllowed"]],
                [&json!(e), &json!(d), &json!(h), &json!(a)],
                "{spec} {ready} {owner}"
            );
            assert_eq!(s["conditions"][0]["reason"], r, "{spec} {ready} {owner}");
        }
        // Who cannot count allows nothing, and says why.
        for (owner, why) in [
            ("batch/v1/Job", "jobs.batch does not implement the scale subresource"),
            ("v1/Node", "nodes does not implement the scale subresource"),
            ("example.com/v1/Crew", "crews.example.com does not implement the scale subresource"),
            ("example.com/v1/Thing", "no matches for kind \"Thing\" in version \"example.com/v1\""),
            // Of that name in another group.
            ("example.com/v1/ReplicaSet", "no matches for kind \"ReplicaSet\" in version \"example.com/v1\""),
            ("v1/ReplicationController", "found no controllers for pod \"p\""),
        ] {
            let (s, plan) = look(json!({"maxUnavailable": 1}), Value::Null, vec![pod("p", true, owner)], 0);
            let condition = &s["conditions"][0];
            assert_eq!((&s["disruptionsAllowed"], &condition["reason"]), (&json!(0), &json!("SyncFailed")), "{owner}");
            assert_eq!(condition["message"], why, "{owner}");
            assert_eq!(plan.events.len(), 1, "{owner}");
        }
        let bad = json!({"maxUnavailable": "many"});
        let (s, _) = look(bad, Value::Null, vec![pod("p", true, "ReplicaSet")], 0);
        assert_eq!(s["conditions"][0]["reason"], "SyncFailed");
    }

    #[test]
    fn what_custom_objects_ask_for_is_summed_whatever_they_say() {
        let source = || Source { metadata_only: false, ..Source::metadata(fleets()) };
        let asks = [("a", i64::MAX), ("b", i64::MAX), ("c", i64::MIN)];
        let fleet = |(name, wanted): (&str, i64)| {
            let metadata = json!({"namespace": "ns", "name": name, "uid": name});
            json!({"metadata": metadata, "spec": {"size": {"wanted": wanted}}})
        };
        let of_fleet = |(name, _): (&str, i64)| {
            let mut pod = pod(name, true, "example.com/v1/Fleet");
            pod["metadata"]["ownerReferences"][0]["name"] = name.into();
            pod["metadata"]["ownerReferences"][0]["uid"] = name.into();
            pod
        };
        for spec in [json!({"minAvailable": "50%"}), json!({"maxUnavailable": format!("{}%", i64::MAX)})] {
            let mut budget = json!({"metadata": {"namespace": "ns", "name": "b", "uid": "b"}, "spec": spec});
            budget["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
            let caches = Caches::new()
                .with::<PodDisruptionBudget>([of(budget)])
                .with::<Pod>(asks.map(|ask| of(of_fleet(ask))))
                .with::<Definition>([of(definition("fleets", "Fleet", true))])
                .with_source::<scale::Scaled>(source(), asks.map(|ask| of(fleet(ask))));
            let mut controller = DisruptionController::default();
            caches.refresh(&mut controller);
            let plan = controller.reconcile(&Key::new("ns", "b"), &caches.view(), Time::default());
            let [Write::Patch { patch, .. }] = &plan.writes[..] else { panic!("{:?}", plan.writes) };
            assert_eq!(patch["status"]["expectedPods"], i32::MAX, "{spec}");
        }
    }

    #[test]
    fn granted_evictions_count_for_two_minutes() {
        let pods = || (0..4).map(|n| pod(&format!("p{n}"), true, "ReplicaSet")).collect::<Vec<_>>();
        let granted = json!({"disruptionsAllowed": 1, "currentHealthy": 4, "desiredHealthy": 2, "expectedPods": 4,
            "disruptedPods": {"p0": "1970-01-01T00:00:10Z", "elsewhere": "1970-01-01T00:00:10Z"}});
        let spec = || json!({"minAvailable": 2});
        // Whatever the time is by this clock: the API server's may be minutes off.
        let mut controller = DisruptionController::default();
        for (now_s, again_s) in [(5000, 121), (5060, 61), (5120, 1)] {
            let (s, plan) = look_by(&mut controller, spec(), granted.clone(), pods(), now_s);
            assert_eq!((&s["currentHealthy"], &s["disruptionsAllowed"]), (&json!(3), &json!(1)), "{now_s}");
            assert_eq!(s["disruptedPods"]["elsewhere"], Value::Null);
            assert_eq!(plan.requeue_after, Some(Duration::from_secs(again_s)), "{now_s}");
        }
        // One that is granted anew begins anew.
        let mut anew = granted.clone();
        anew["disruptedPods"]["p0"] = "1970-01-01T00:00:20Z".into();
        let mut other = DisruptionController::default();
        for (status, now_s) in [(&granted, 5000), (&anew, 5100), (&anew, 5200)] {
            let (s, _) = look_by(&mut other, spec(), status.clone(), pods(), now_s);
            assert_eq!(s["currentHealthy"], 3, "{now_s}");
        }
        let (s, plan) = look_by(&mut controller, spec(), granted, pods(), 5121);
        assert_eq!((&s["currentHealthy"], &s["disruptionsAllowed"]), (&json!(4), &json!(2)));
        assert_eq!((plan.events[0].reason.as_str(), &s["disruptedPods"]["p0"]), ("NotDeleted", &Value::Null));
        // What is as it was is not written again.
        let (mut s, _) = look(spec(), Value::Null, pods(), 0);
        s["disruptedPods"] = json!({});
        assert_eq!(look(spec(), s, pods(), 50).0, Value::Null);
    }

    #[test]
    fn a_set_without_its_deployment_still_counts() {
        let set = json!({"metadata": {"namespace": "ns", "name": "rs", "uid": "rs",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d", "controller": true}]},
            "spec": {"replicas": 3, "selector": {}}});
        let owner = OwnerReference {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "rs".into(),
            uid: "rs".into(),
            ..OwnerReference::default()
        };
        let deployment = |uid: &str| {
            of::<Deployment>(json!({"metadata": {"namespace": "ns", "name": "d", "uid": uid},
                "spec": {"replicas": 4, "selector": {}, "template": {}}}))
        };
        for (there, expected) in
            [(vec![deployment("d")], ("d", 4)), (vec![], ("rs", 3)), (vec![deployment("another")], ("rs", 3))]
        {
            let caches = Caches::new().with::<ReplicaSet>([of(set.clone())]).with(there);
            let counted = Scales::default().of(&owner, "ns", &caches.view());
            assert_eq!(counted, Ok((expected.0.to_owned(), expected.1)));
        }
    }

    #[test]
    fn what_is_odd_about_a_budgets_pods_is_told() {
        let lone = || {
            let mut pod = pod("lone", true, "ReplicaSet");
            pod["metadata"]["ownerReferences"] = Value::Null;
            pod
        };
        let owned = || pod("p", true, "ReplicaSet");
        for (spec, pods, expected) in [
            (json!({"minAvailable": 1}), vec![], vec!["NoPods"]),
            (json!({"minAvailable": 1}), vec![lone()], vec![]),
            (json!({"maxUnavailable": 1}), vec![lone(), owned()], vec!["UnmanagedPods"]),
            (json!({"minAvailable": "50%"}), vec![lone()], vec!["UnmanagedPods"]),
            (json!({"maxUnavailable": 1}), vec![owned()], vec![]),
        ] {
            let (status, plan) = look(spec.clone(), Value::Null, pods.clone(), 0);
            let reasons: Vec<&str> = plan.events.iter().map(|e| e.reason.as_str()).collect();
            assert_eq!(reasons, expected, "{spec}");
            // It is told at each look, and nothing is written for that.
            let (again, plan) = look(spec.clone(), status, pods, 0);
            let reasons: Vec<&str> = plan.events.iter().map(|e| e.reason.as_str()).collect();
            assert_eq!((again, plan.requeue_after, reasons), (Value::Null, None, expected), "{spec}");
        }
        let budget = |name: &str| {
            of::<PodDisruptionBudget>(json!({"metadata": {"namespace": "ns", "name": name, "uid": name},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}))
        };
        let mut controller = DisruptionController::default();
        let mut check = |revision: &str, budgets: &[&str], name: &str, expected: &[&str]| {
            let mut pod = owned();
            pod["metadata"]["resourceVersion"] = revision.into();
            let caches = Caches::new().with(budgets.iter().map(|name| budget(name))).with::<Pod>([of(pod)]);
            let plan = controller.reconcile(&Key::new("ns", name), &caches.view(), Time::default());
            let reasons: Vec<&str> = plan.events.iter().map(|e| e.reason.as_str()).collect();
            assert_eq!(reasons, expected, "{name} {revision}");
        };
        // By one of its budgets, each time that the pod changes.
        let both = ["a", "b"];
        check("1", &both, "a", &["MultiplePodDisruptionBudgets"]);
        check("1", &both, "b", &[]);
        check("1", &both, "a", &[]);
        check("2", &both, "a", &["MultiplePodDisruptionBudgets"]);
        // Nothing is remembered of what is not so any more.
        check("2", &["a"], "a", &[]);
        check("2", &both, "a", &["MultiplePodDisruptionBudgets"]);
        check("2", &["b"], "a", &[]);
        assert_eq!(controller.told.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn who_cannot_count_says_so_at_each_look_and_writes_it_once() {
        let counted = json!({"disruptionsAllowed": 2, "currentHealthy": 4, "desiredHealthy": 2, "expectedPods": 4,
            "observedGeneration": 2, "conditions": [{"type": "DisruptionAllowed", "status": "True",
                "reason": "SufficientPods", "message": "", "observedGeneration": 2,
                "lastTransitionTime": "1970-01-01T00:00:01Z"}]});
        let job = || vec![pod("p", true, "batch/v1/Job")];
        let why = "jobs.batch does not implement the scale subresource";
        for (spec, pods, told, why) in [
            (
                json!({"maxUnavailable": 1}),
                job(),
                vec![(
                    "CalculateExpectedPodCountFailed",
                    format!("Failed to calculate the number of expected pods: {why}"),
                )],
                why,
            ),
            (
                json!({"minAvailable": "50%"}),
                job(),
                vec![(
                    "CalculateExpectedPodCountFailed",
                    format!("Failed to calculate the number of expected pods: {why}"),
                )],
                why,
            ),
            (
                json!({"minAvailable": "half"}),
                vec![],
                vec![
                    ("NoPods", "No matching pods found".to_owned()),
                    (
                        "CalculateExpectedPodCountFailed",
                        "Failed to calculate the number of expected pods: invalid value for IntOrString: invalid type: \
                         string is not a percentage: \"half\""
                            .to_owned(),
                    ),
                ],
                "invalid value for IntOrString: invalid type: string is not a percentage: \"half\"",
            ),
            (
                json!({"minAvailable": 1, "selector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}),
                vec![],
                vec![("NoPods", "Failed to get pods: \"Like\" is not a valid label selector operator".to_owned())],
                "\"Like\" is not a valid label selector operator",
            ),
        ] {
            let events =
                |plan: &Plan| plan.events.iter().map(|e| (e.reason.clone(), e.message.clone())).collect::<Vec<_>>();
            let told: Vec<_> = told.into_iter().map(|(reason, message)| (reason.to_owned(), message)).collect();
            let (s, plan) = look(spec.clone(), counted.clone(), pods.clone(), 60);
            assert_eq!(events(&plan), told, "{spec}");
            // Nothing may go; what was counted last is still said, and that this is of an older budget.
            let mut expected = counted.clone();
            expected["disruptionsAllowed"] = 0.into();
            expected["conditions"] = json!([{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed",
                "message": why, "observedGeneration": 2, "lastTransitionTime": "1970-01-01T00:01:00Z"}]);
            let mut seen = s.clone();
            seen.as_object_mut().expect("a status").retain(|_, value| !value.is_null());
            assert_eq!(seen, expected, "{spec}");
            let (again, plan) = look(spec.clone(), s, pods, 99);
            assert_eq!((again, plan.requeue_after, events(&plan)), (Value::Null, None, told), "{spec}");
        }
    }
}
