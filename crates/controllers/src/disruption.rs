//! How many pods each PodDisruptionBudget allows to be evicted now.
//!
//! How many pods there ought to be is what their controllers are asked for, where the budget is relative to that. Pods
//! whose eviction was granted count as gone until they are, for two minutes at most.
//! Behaviour follows kube-controller-manager's disruption controller (pkg/controller/disruption).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use carrack_types::selector::selects;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use crate::pods::is_ready;

/// How long a pod may take to go after its eviction was granted.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

/// The disruption controller.
pub struct DisruptionController;

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

/// `of` percent or so many; percentages are rounded up.
fn scaled(value: &IntOrString, of: i64) -> Result<i64, String> {
    match value {
        IntOrString::Int(n) => Ok(i64::from(*n)),
        IntOrString::String(text) => text
            .strip_suffix('%')
            .and_then(|p| p.parse::<i64>().ok())
            .map(|percent| (percent.saturating_mul(of) + 99).div_euclid(100))
            .ok_or_else(|| {
                format!("invalid value for IntOrString: invalid type: string is not a percentage: {text:?}")
            }),
    }
}

/// How many pods the controllers of these pods are asked for, all together.
fn expected(pods: &[&Pod], view: &View<'_>) -> Result<i64, String> {
    let mut by_controller: BTreeMap<String, i64> = BTreeMap::new();
    for pod in pods {
        let owners = pod.metadata.owner_references.iter().flatten();
        let Some(owner) = owners.into_iter().find(|o| o.controller == Some(true)) else { continue };
        if by_controller.contains_key(&owner.uid) {
            continue;
        }
        let namespace = pod.namespace();
        let scale = match owner.kind.as_str() {
            "ReplicaSet" => {
                view.get::<ReplicaSet>(namespace, &owner.name).filter(|r| r.uid() == owner.uid).map(|set| {
                    let parent = set.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
                    let deployment = parent
                        .filter(|o| o.kind == "Deployment")
                        .and_then(|o| view.get::<Deployment>(namespace, &o.name).filter(|d| d.uid() == o.uid));
                    match deployment {
                        Some(d) => (d.uid().to_owned(), d.spec.as_ref().and_then(|s| s.replicas)),
                        None => (set.uid().to_owned(), set.spec.as_ref().and_then(|s| s.replicas)),
                    }
                })
            }
            "StatefulSet" => view
                .get::<StatefulSet>(namespace, &owner.name)
                .filter(|s| s.uid() == owner.uid)
                .map(|s| (s.uid().to_owned(), s.spec.as_ref().and_then(|s| s.replicas))),
            "ReplicationController" => view
                .get::<ReplicationController>(namespace, &owner.name)
                .filter(|r| r.uid() == owner.uid)
                .map(|r| (r.uid().to_owned(), r.spec.as_ref().and_then(|s| s.replicas))),
            kind => return Err(format!("{} does not implement the scale subresource", kind.to_lowercase())),
        };
        let Some((uid, replicas)) = scale else {
            return Err(format!("found no controllers for pod {:?}", pod.name()));
        };
        by_controller.insert(uid, i64::from(replicas.unwrap_or(1)));
    }
    Ok(by_controller.into_values().sum())
}

/// (how many there ought to be, how many of them healthy).
fn wanted(budget: &PodDisruptionBudget, pods: &[&Pod], view: &View<'_>) -> Result<(i64, i64), String> {
    let Some(spec) = &budget.spec else { return Ok((0, 0)) };
    let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let expected = expected(pods, view)?;
            Ok((expected, (expected - scaled(most, expected)?).max(0)))
        }
        (None, Some(IntOrString::Int(least))) => Ok((count, i64::from(*least))),
        (None, Some(least)) => {
            let expected = expected(pods, view)?;
            Ok((expected, scaled(least, expected)?))
        }
        (None, None) => Ok((count, 0)),
    }
}

fn condition(budget: &PodDisruptionBudget, status: bool, reason: &str, message: &str, now: Time) -> Vec<Condition> {
    let mut all = budget.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut new = Condition {
        type_: "DisruptionAllowed".into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: budget.metadata.generation,
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
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(budget) = view.get::<PodDisruptionBudget>(&key.namespace, &key.name) else { return Plan::none() };
        let pods: Vec<&Pod> = view
            .cache::<Pod>()
            .in_namespace(&key.namespace)
            .filter(|p| chooses(budget, p))
            .map(AsRef::as_ref)
            .collect();
        let mut old = budget.status.clone().unwrap_or_default();
        old.disrupted_pods = old.disrupted_pods.filter(|d| !d.is_empty());
        let mut plan = Plan::none();
        let new = match wanted(budget, &pods, view) {
            Ok((expected, desired)) => {
                let (disrupted, again) = disrupted(budget, &pods, now, &mut plan);
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
                    conditions: Some(condition(budget, allowed > 0, reason, "", now)),
                    current_healthy: Some(small(healthy)),
                    desired_healthy: Some(small(desired)),
                    expected_pods: Some(small(expected)),
                    disruptions_allowed: Some(small(allowed)),
                    disrupted_pods: Some(disrupted).filter(|d| !d.is_empty()),
                    observed_generation: budget.metadata.generation,
                }
            }
            // Whoever cannot count allows nothing.
            Err(why) => {
                plan = plan.event(EventRecord::warning(
                    budget.as_ref(),
                    "CalculateExpectedPodCountFailed",
                    format!("Failed to calculate the number of expected pods: {why}"),
                ));
                PodDisruptionBudgetStatus {
                    conditions: Some(condition(budget, false, "SyncFailed", &why, now)),
                    disruptions_allowed: Some(0),
                    observed_generation: budget.metadata.generation,
                    ..old.clone()
                }
            }
        };
        if new == old && budget.status.is_some() {
            plan.events.clear();
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

type Disrupted = BTreeMap<String, k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>;

/// Pods whose eviction was granted and that have not gone yet, and when the first of them is overdue.
fn disrupted(budget: &PodDisruptionBudget, pods: &[&Pod], now: Time, plan: &mut Plan) -> (Disrupted, Option<Duration>) {
    let granted = budget.status.as_ref().and_then(|s| s.disrupted_pods.clone()).unwrap_or_default();
    let mut left = Disrupted::new();
    let mut again: Option<Duration> = None;
    for pod in pods {
        let Some(at) = granted.get(pod.name()).filter(|_| !pod.is_deleting()) else { continue };
        // A grant from a clock that is ahead lasts no longer than one from ours.
        let age = now.since(Time::from(at));
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
    use carrack_engine::Write;
    use carrack_engine::testing::Caches;

    use super::*;
    use crate::testing::of;

    fn look(spec: Value, status: Value, pods: Vec<Value>, now_s: i64) -> (Value, Plan) {
        let mut budget =
            json!({"metadata": {"namespace": "ns", "name": "b", "uid": "b", "generation": 3}, "spec": spec});
        budget["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
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
            .with::<ReplicationController>([]);
        let plan = DisruptionController.reconcile(&Key::new("ns", "b"), &caches.view(), Time::from_unix_s(now_s));
        let status = match &plan.writes[..] {
            [Write::Patch { patch, .. }] => patch["status"].clone(),
            [] => Value::Null,
            other => panic!("{other:?}"),
        };
        (status, plan)
    }

    fn pod(name: &str, ready: bool, owner: &str) -> Value {
        json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": "rs", "uid": "rs", "controller": true}]},
            "spec": {"containers": []},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
    }

    #[test]
    fn budgets_count_healthy_pods_against_what_ought_to_be() {
        // (spec, ready pods of four, owner) → (expected, desired, healthy, allowed, reason).
        for (spec, ready, owner, expected) in [
            (json!({"minAvailable": 2}), 4, "ReplicaSet", (4, 2, 4, 2, "SufficientPods")),
            (json!({"minAvailable": 2}), 2, "ReplicaSet", (4, 2, 2, 0, "InsufficientPods")),
            (json!({"minAvailable": 1}), 4, "VirtualMachineInstance", (4, 1, 4, 3, "SufficientPods")),
            (json!({"minAvailable": "51%"}), 4, "ReplicaSet", (4, 3, 4, 1, "SufficientPods")),
            (json!({"maxUnavailable": 1}), 4, "ReplicaSet", (4, 3, 4, 1, "SufficientPods")),
            (json!({"maxUnavailable": "30%"}), 4, "ReplicaSet", (4, 2, 4, 2, "SufficientPods")),
            (json!({"maxUnavailable": "100%"}), 0, "ReplicaSet", (4, 0, 0, 0, "InsufficientPods")),
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
        let (s, plan) = look(json!({"maxUnavailable": 1}), Value::Null, vec![pod("p", true, "Thing")], 0);
        assert_eq!((&s["disruptionsAllowed"], &s["conditions"][0]["reason"]), (&json!(0), &json!("SyncFailed")));
        assert_eq!(plan.events.len(), 1);
        let bad = json!({"maxUnavailable": "many"});
        let (s, _) = look(bad, Value::Null, vec![pod("p", true, "ReplicaSet")], 0);
        assert_eq!(s["conditions"][0]["reason"], "SyncFailed");
    }

    #[test]
    fn granted_evictions_count_for_two_minutes() {
        let pods = || (0..4).map(|n| pod(&format!("p{n}"), true, "ReplicaSet")).collect::<Vec<_>>();
        let granted = json!({"disruptionsAllowed": 1, "currentHealthy": 4, "desiredHealthy": 2, "expectedPods": 4,
            "disruptedPods": {"p0": "1970-01-01T00:00:10Z", "elsewhere": "1970-01-01T00:00:10Z"}});
        let spec = || json!({"minAvailable": 2});
        let (s, plan) = look(spec(), granted.clone(), pods(), 60);
        assert_eq!((&s["currentHealthy"], &s["disruptionsAllowed"]), (&json!(3), &json!(1)));
        assert_eq!(s["disruptedPods"]["elsewhere"], Value::Null);
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(71)));
        let (s, plan) = look(spec(), granted, pods(), 131);
        assert_eq!((&s["currentHealthy"], &s["disruptionsAllowed"]), (&json!(4), &json!(2)));
        assert_eq!((plan.events[0].reason.as_str(), &s["disruptedPods"]["p0"]), ("NotDeleted", &Value::Null));
        // What is as it was is not written again.
        let (mut s, _) = look(spec(), Value::Null, pods(), 0);
        s["disruptedPods"] = json!({});
        assert_eq!(look(spec(), s, pods(), 50).0, Value::Null);
    }
}
