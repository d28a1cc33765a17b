//! Whether a pod may be evicted: what its PodDisruptionBudget has left, and what the eviction takes of it.
//!
//! The charge is stored with the pod's deletion in one transaction, so a budget is never spent twice and
//! never spent for nothing. Upstream: `pkg/registry/core/pod/storage/eviction.go`.

use serde_json::{Value, json};

use super::scale::selector_text;
use crate::admission::set_condition;
use crate::object::{Object, at, child_mut, is_deleting, meta, name, str_at};
use crate::selector::LabelSelector;
use crate::status::Status;

/// A budget with more evictions than this that its controller has not seen is not charged further.
const MAX_DISRUPTED: usize = 2000;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const CAUSE: &str = "DisruptionBudget";

/// What an eviction rests on.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// No budget has a say.
    Free,
    /// The budget has this status from now on.
    Charged(Object),
}

/// Decides about a pod. `budgets` are those of its namespace; `now` is the time as text.
pub(super) fn decide(pod: &Object, budgets: &[Object], now: &str) -> Result<Verdict, Status> {
    let phase = str_at(pod, &["status", "phase"]);
    // Such a pod serves nobody (yet, or any more).
    if matches!(phase, "Succeeded" | "Failed" | "Pending") || is_deleting(pod) {
        return Ok(Verdict::Free);
    }
    let mut concerned = budgets.iter().filter(|budget| selects(budget, pod));
    let Some(budget) = concerned.next() else { return Ok(Verdict::Free) };
    if concerned.next().is_some() {
        let mut status = Status::internal("");
        status.message =
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
                .to_owned();
        (status.reason, status.details) = ("".into(), None);
        return Err(status);
    }
    let number = |path: &[&str]| at(budget, path).and_then(Value::as_i64).unwrap_or(0);
    let (healthy, desired) = (number(&["status", "currentHealthy"]), number(&["status", "desiredHealthy"]));
    if !is_ready(pod) {
        let always = str_at(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow";
        if always || (healthy >= desired && desired > 0) {
            return Ok(Verdict::Free);
        }
    }
    let budget_name = name(budget);
    if number(&["status", "observedGeneration"]) < number(&["metadata", "generation"]) {
        let text = format!("The disruption budget {budget_name} is still being processed by the server.");
        return Err(Status::too_many_requests(REFUSED, 10).because(CAUSE, text, ""));
    }
    let allowed = number(&["status", "disruptionsAllowed"]);
    let forbid = |why: &str| Err(Status::forbidden("policy", "poddisruptionbudget", budget_name, why));
    if allowed < 0 {
        return forbid("pdb disruptions allowed is negative");
    }
    let disrupted = at(budget, &["status", "disruptedPods"]).and_then(Value::as_object);
    if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        return forbid("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        let text = format!("The disruption budget {budget_name} {}", why_none(budget, healthy, desired));
        let mut status = Status::too_many_requests(REFUSED, 0).because(CAUSE, text, "");
        // Nothing says when: clients have rhythms of their own for this.
        status.details.get_or_insert_default().retry_after_s = None;
        return Err(status);
    }
    Ok(Verdict::Charged(charge(budget, pod, allowed - 1, now)))
}

/// Why a budget allows nothing. Where its controller could not count, the counts are not to be trusted.
fn why_none(budget: &Object, healthy: i64, desired: i64) -> String {
    let conditions = at(budget, &["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let refused = conditions
        .into_iter()
        .find(|c| c["type"] == "DisruptionAllowed")
        .filter(|c| c["status"] == "False")
        .map(|c| (c["reason"].as_str().unwrap_or_default(), c["message"].as_str().unwrap_or_default()))
        .filter(|(_, message)| !message.is_empty());
    match refused {
        Some(("SyncFailed", why)) => {
            format!("does not allow evicting pods currently because it failed sync: {why}")
        }
        _ if healthy <= desired => format!("needs {desired} healthy pods and has {healthy} currently"),
        Some((reason, why)) => format!("does not allow evicting pods currently ({reason}): {why}"),
        None => "does not allow evicting pods currently".to_owned(),
    }
}

fn selects(budget: &Object, pod: &Object) -> bool {
    let Some(selector) = at(budget, &["spec", "selector"]) else { return false };
    let labels = meta(pod, "labels").and_then(Value::as_object);
    let label = |key: &str| labels?.get(key)?.as_str();
    // One that cannot be read selects nothing.
    LabelSelector::parse(&selector_text(Some(selector))).is_ok_and(|selector| selector.matches(label))
}

fn is_ready(pod: &Object) -> bool {
    let conditions = at(pod, &["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn charge(budget: &Object, pod: &Object, left: i64, now: &str) -> Object {
    let mut budget = budget.clone();
    let generation = at(&budget, &["status", "observedGeneration"]).cloned().unwrap_or_default();
    let status = child_mut(&mut budget, "status");
    status.insert("disruptionsAllowed".to_owned(), left.into());
    child_mut(status, "disruptedPods").insert(name(pod).to_owned(), now.into());
    if left == 0 {
        let slot = status.entry("conditions").or_insert_with(|| json!([]));
        if let Some(conditions) = slot.as_array_mut() {
            set_condition(conditions, "DisruptionAllowed", "False", "InsufficientPods", "", now);
            for condition in conditions.iter_mut().filter(|condition| condition["type"] == "DisruptionAllowed") {
                condition["observedGeneration"] = generation.clone();
            }
        }
    }
    budget
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        value.as_object().cloned().expect("an object")
    }

    fn pod(phase: &str, ready: &str) -> Object {
        object(json!({"metadata": {"name": "p", "labels": {"a": "b"}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}}))
    }

    fn budget(spec: Value, status: Value) -> Object {
        let mut spec = object(spec);
        spec.entry("selector").or_insert_with(|| json!({"matchLabels": {"a": "b"}}));
        object(json!({"metadata": {"name": "b", "generation": 1}, "spec": spec, "status": status}))
    }

    /// What becomes of it, in short: `free`, what is left, or the code of the refusal.
    fn verdict(pod: &Object, budgets: &[Object]) -> String {
        match decide(pod, budgets, "now") {
            Ok(Verdict::Free) => "free".to_owned(),
            Ok(Verdict::Charged(budget)) => {
                format!("{} left, {}", budget["status"]["disruptionsAllowed"], budget["status"]["disruptedPods"])
            }
            Err(status) => {
                let causes = status.details.map(|d| d.causes).unwrap_or_default();
                let cause = causes.first().map(|c| c.message.clone()).unwrap_or_default();
                format!("{} {cause}", status.code)
            }
        }
    }

    #[test]
    fn budgets_have_the_say() {
        let open = json!({"observedGeneration": 1, "disruptionsAllowed": 2, "currentHealthy": 4, "desiredHealthy": 2});
        let spent = json!({"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2});
        let broken =
            json!({"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 2});
        let (running, unready) = (pod("Running", "True"), pod("Running", "False"));
        let spent_text = "429 The disruption budget b needs 2 healthy pods and has 2 currently";
        for (pod, budgets, want) in [
            (&running, vec![], "free"),
            (&running, vec![budget(json!({"selector": {"matchLabels": {"x": "y"}}}), spent.clone())], "free"),
            (&running, vec![budget(json!({"selector": null}), spent.clone())], "free"),
            (&running, vec![budget(json!({"selector": {}}), spent.clone())], spent_text),
            (&running, vec![budget(json!({}), spent.clone())], spent_text),
            (&running, vec![budget(json!({}), open.clone())], "1 left, {\"p\":\"now\"}"),
            (&running, vec![budget(json!({}), open.clone()), budget(json!({}), open.clone())], "500 "),
            (
                &running,
                vec![budget(json!({}), json!({"disruptionsAllowed": 1}))],
                "429 The disruption budget b is still being processed by the server.",
            ),
            (&unready, vec![budget(json!({}), spent.clone())], "free"),
            (
                &unready,
                vec![budget(json!({}), broken.clone())],
                "429 The disruption budget b needs 2 healthy pods and has 1 currently",
            ),
            (&unready, vec![budget(json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), broken)], "free"),
            (&pod("Pending", "False"), vec![budget(json!({}), spent.clone())], "free"),
            (&pod("Failed", "False"), vec![budget(json!({}), spent)], "free"),
        ] {
            assert_eq!(verdict(pod, &budgets), want, "{budgets:?}");
        }
    }

    #[test]
    fn why_a_budget_allows_nothing_is_told() {
        let status = |status: &str, reason: &str, message: &str, healthy: i64| {
            json!({"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 3,
                "conditions": [{"type": "DisruptionAllowed", "status": status, "reason": reason, "message": message}]})
        };
        for (status, expected) in [
            (
                status("False", "SyncFailed", "no scale", 0),
                "does not allow evicting pods currently because it failed sync: no scale",
            ),
            (status("False", "InsufficientPods", "", 3), "needs 3 healthy pods and has 3 currently"),
            (status("True", "SyncFailed", "no scale", 2), "needs 3 healthy pods and has 2 currently"),
            (status("False", "Odd", "why", 4), "does not allow evicting pods currently (Odd): why"),
            (status("False", "Odd", "", 4), "does not allow evicting pods currently"),
        ] {
            let found = verdict(&pod("Running", "True"), &[budget(json!({}), status.clone())]);
            assert_eq!(found, format!("429 The disruption budget b {expected}"), "{status}");
        }
    }

    #[test]
    fn the_last_one_is_told() {
        let status = json!({"observedGeneration": 1, "disruptionsAllowed": 1, "conditions": [
            {"type": "DisruptionAllowed", "status": "True", "lastTransitionTime": "then"}]});
        let Ok(Verdict::Charged(charged)) = decide(&pod("Running", "True"), &[budget(json!({}), status)], "now") else {
            panic!("not charged");
        };
        assert_eq!(charged["status"]["conditions"][0]["status"], "False");
        assert_eq!(charged["status"]["conditions"][0]["reason"], "InsufficientPods");
    }
}
