//! Nodes that close while an extender thinks about who has to go from there.
//!
//! ```text
//!   a pod comes ─▶ another one waits for it to go ─▶ an extender is asked ─┬─────────────────────▶ it is marked, and goes
//!                                                                          └▶ the node is closed ─▶ it stays
//! ```
//!
//! A pod that goes from a node for one that cannot come there goes for nothing. What counts is what the scheduler has heard when it
//! is answered. These nodes are phantoms ([`crate::phantoms`]), open to their own pods alone, and not even to these for a while.

use std::time::Duration;

use carrack_engine::{ApiRequest, Effect, Method, Rng};
use carrack_scheduler::Scheduler;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::chance::between;
use crate::hosted::OwnOut;
use crate::invariants::Breach;
use crate::observer::{conditions, text};
use crate::options::Options;
use crate::phantoms::{self, asking_for, create};
use crate::plants::Bug;
use crate::workload::{Act, IMPORTANT, delete, important, taint};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "nobody-goes-from-closed-nodes";
/// The name of this part of the work.
pub(crate) const PART: &str = "closings";
/// With the planted bug, for how long an extender thinks about who has to go, at the least and at the most.
pub(crate) const THINKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// How long a node stays closed.
const CLOSED_FOR: Duration = Duration::from_secs(20);
/// The key of the taint that every cordoned node comes to have.
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    options.faults && !options.small && planted.is_none() && rng.fork("whether nodes close").one_in(4)
}

/// Such nodes, with two pods each; with `many` there are more of them.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, many: bool, acts: &mut Vec<Act>) {
    important(acts);
    let count = if many { 4 } else { 1 + rng.below(2) };
    for n in 0..count {
        one(&mut rng.fork(&format!("{n}")), safety, &format!("closing{n}"), acts);
    }
}

fn one(rng: &mut Rng, safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let mut at = between(rng, Duration::from_secs(2), safety / 3);
    acts.push(create(at, Node::resource(), phantoms::node(name)));
    for (pod, class) in [("dweller", None), ("nominee", Some(IMPORTANT))] {
        at += between(rng, Duration::from_secs(2), Duration::from_secs(5));
        acts.push(create(at, Pod::resource(), asking_for(name, pod, class)));
    }
    at += between(rng, Duration::from_millis(300), Duration::from_secs(4));
    acts.push(taint(at, name.to_owned(), &json!([{"key": "sim/closed", "effect": "NoSchedule"}])));
    at += CLOSED_FOR;
    acts.push(taint(at, name.to_owned(), &json!([])));
    at += between(rng, Duration::from_secs(3), Duration::from_secs(6));
    acts.push(delete(at, Node::resource(), "", name, phantoms::KIND));
}

/// Whether a node takes a pod with such a spec, for all that it says of itself: a taint counts as borne by whoever names its key.
pub(crate) fn takes(node: &Value, spec: &Value) -> bool {
    let borne = || spec["tolerations"].as_array().into_iter().flatten().map(|toleration| text(toleration, "/key"));
    let bears = |key: &str| borne().any(|own| own.is_empty() || own == key);
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    let closes = |taint: &&Value| matches!(text(taint, "/effect"), "NoSchedule" | "NoExecute");
    let cordoned = node["spec"]["unschedulable"] == true;
    (!cordoned || bears(UNSCHEDULABLE))
        && taints.into_iter().flatten().filter(closes).all(|taint| bears(text(taint, "/key")))
}

/// UID of the pod that a scheduler says has to go, if a request says so.
fn victim(request: &ApiRequest) -> Option<String> {
    if request.method != Method::Patch || !request.path.ends_with("/status") {
        return None;
    }
    let patch: Value = serde_json::from_slice(&request.body).ok()?;
    let goes = conditions(&patch).any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "PreemptionByScheduler");
    goes.then(|| text(&patch, "/metadata/uid").to_owned())
}

/// Looks at what a scheduler does that has just been answered by an extender.
pub(crate) fn look(scheduler: &Scheduler, effects: &[Effect<OwnOut>], breaches: &mut Vec<Breach>) {
    for effect in effects {
        let Effect::Api(_, request) = effect else { continue };
        let Some(victim) = victim(request) else { continue };
        let Some(name) = scheduler.cluster().node_of(&victim) else { continue };
        let known = scheduler.cluster().named(name).and_then(|info| info.node.as_deref());
        let node = serde_json::to_value(known).unwrap_or_default();
        let mut waiting = scheduler.queue().nominations().filter(|(_, to)| *to == name).peekable();
        let comes = |spec: Value| !node.is_null() && takes(&node, &spec);
        // Where nobody waits, it was taken back in the same step.
        if waiting.peek().is_some()
            && !waiting.any(|(pod, _)| comes(serde_json::to_value(pod.spec()).unwrap_or_default()))
        {
            let what = format!("{victim} has to go from {name}, which takes nobody who waits for that");
            breaches.push(Breach::new(NAME, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::What;

    #[test]
    fn a_closed_node_takes_whoever_bears_that() {
        let node = |cordoned: bool, taints: Value| json!({"spec": {"unschedulable": cordoned, "taints": taints}});
        let pod = |tolerations: Value| json!({ "tolerations": tolerations });
        let (nothing, closed) = (json!([]), json!([{"key": "a", "effect": "NoSchedule"}]));
        for (node, pod, expected) in [
            (node(false, Value::Null), pod(Value::Null), true),
            (node(true, Value::Null), pod(nothing.clone()), false),
            (node(true, Value::Null), pod(json!([{"key": UNSCHEDULABLE, "operator": "Exists"}])), true),
            (node(true, Value::Null), pod(json!([{"operator": "Exists"}])), true),
            (node(false, closed.clone()), pod(nothing.clone()), false),
            (node(false, closed.clone()), pod(json!([{"key": "b", "operator": "Exists"}])), false),
            (node(false, closed), pod(json!([{"key": "a", "operator": "Exists"}])), true),
            (node(false, json!([{"key": "a", "effect": "PreferNoSchedule"}])), pod(nothing), true),
        ] {
            assert_eq!(takes(&node, &pod), expected, "{node} {pod}");
        }
    }

    #[test]
    fn a_mark_is_known() {
        let patch = |reason: &str| {
            let body = json!({"metadata": {"uid": "u"}, "status": {"conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": reason}]}});
            ApiRequest { body: body.to_string().into(), ..ApiRequest::new(Method::Patch, "/api/v1/pods/p/status") }
        };
        assert_eq!(victim(&patch("PreemptionByScheduler")).as_deref(), Some("u"));
        assert_eq!(victim(&patch("EvictionByEvictionAPI")), None);
        assert_eq!(victim(&ApiRequest::new(Method::Patch, "/api/v1/pods/p/status")), None);
    }

    #[test]
    fn a_node_opens_again_and_goes() {
        for seed in 0..50 {
            let (safety, mut all) = (Duration::from_secs(60), Vec::new());
            acts(&mut Rng::new(seed), safety, true, &mut all);
            for name in ["closing0", "closing3"] {
                let of = |what: &What| match what {
                    What::Patch { name: of, .. } | What::Delete { name: of, .. } => of == name,
                    _ => false,
                };
                let times: Vec<Duration> = all.iter().filter(|act| of(&act.what)).map(|act| act.at).collect();
                assert!(times.len() == 3 && times.is_sorted(), "seed {seed}: {times:?}");
            }
        }
    }
}
