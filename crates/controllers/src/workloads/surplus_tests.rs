//! Which pods go first when there are too many, made by the controller or by hand.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Time, Write};
use k8s_openapi::api::apps::v1::{ControllerRevision, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::claim::index;
use super::job::by_job;
use super::{JobController, ReplicaSets, StatefulSetController};
use crate::testing::{of, words};

/// An owner of a kind, as its pods refer to it.
const SET: [&str; 3] = ["apps/v1", "ReplicaSet", "web"];
const OTHER_SET: [&str; 3] = ["apps/v1", "ReplicaSet", "old"];
const JOB: [&str; 3] = ["batch/v1", "Job", "web"];
const ORDERED: [&str; 3] = ["apps/v1", "StatefulSet", "web"];

/// A pod that has been running and ready on a node for an hour, with this other than that.
fn pod(owner: Option<[&str; 3]>, name: &str, other: Value) -> Value {
    let mut pod = json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {"app": "web"},
            "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    if let Some([version, kind, owner]) = owner {
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": version, "kind": kind, "name": owner, "uid": owner, "controller": true}]);
    }
    json_patch(&mut pod, &other);
    pod
}

fn json_patch(into: &mut Value, from: &Value) {
    match (into.as_object_mut(), from.as_object()) {
        (Some(into), Some(from)) => {
            from.iter().for_each(|(key, value)| json_patch(into.entry(key).or_insert(Value::Null), value));
        }
        _ => *into = from.clone(),
    }
}

fn ready_since(minute: u32) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "True",
        "lastTransitionTime": format!("2026-01-01T00:{minute:02}:00Z")}]}})
}

fn made_at(minute: u32) -> Value {
    json!({"metadata": {"creationTimestamp": format!("2026-01-01T00:{minute:02}:00Z")}})
}

fn cost(cost: &str) -> Value {
    json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}}})
}

fn restarted(times: u32) -> Value {
    json!({"status": {"containerStatuses": [
        {"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": times}]}})
}

/// One of each kind of pod that goes before one of which nothing is to be said, in the order in which they are less there.
fn less_there() -> Vec<(&'static str, Value)> {
    vec![
        ("unbound", json!({"spec": {"nodeName": ""}, "status": {"phase": "Pending", "conditions": null}})),
        ("pending", json!({"status": {"phase": "Pending", "conditions": null}})),
        ("unknown", json!({"status": {"phase": "Unknown", "conditions": null}})),
        ("not ready", json!({"status": {"conditions": null}})),
    ]
}

fn now() -> Time {
    Time::parse("2026-01-01T01:00:00Z").expect("a time")
}

/// Names of the pods that a plan deletes, in order.
fn gone(plan: &Plan) -> Vec<String> {
    words(plan).iter().filter_map(|word| Some(word.strip_prefix("delete ns/")?.to_owned())).collect()
}

fn look_at_set(replicas: usize, pods: &[Value]) -> Plan {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d", "controller": true}]);
    let set = |name: &str| {
        of::<ReplicaSet>(json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "ownerReferences": owner},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}}}))
    };
    let caches = Caches::new()
        .with_index("controller", index::<Pod>)
        .with::<Pod>(pods.iter().cloned().map(of))
        .with::<ReplicaSet>([set("web"), set("old")]);
    ReplicaSets::default().reconcile(&Key::new("ns", "web"), &caches.view(), now())
}

#[test]
fn the_less_useful_pods_of_a_set_go_first() {
    let of_set = |name: &str, other: Value| pod(Some(SET), name, other);
    // Whichever of these two there is one too many of, the first goes.
    let mut pairs = vec![
        (cost("-1"), json!({})),
        (cost("9"), cost("10")),
        (json!({}), cost("1")),
        // What is no number costs nothing.
        (json!({}), json_sum(cost("1"), restarted(5))),
        (cost("-1"), cost("many")),
        (ready_since(59), json!({})),
        (restarted(2), restarted(1)),
        (made_at(59), json!({})),
        // The cheaper one goes however long it has been ready, and the one that is not ready however dear it is.
        (cost("-1"), ready_since(59)),
        (json_sum(cost("100"), json!({"status": {"conditions": null}})), cost("-100")),
        (ready_since(59), restarted(9)),
        (restarted(9), made_at(59)),
    ];
    let ranks = less_there();
    pairs.extend(ranks.iter().map(|(_, rank)| (rank.clone(), cost("-1"))));
    pairs.extend(ranks.windows(2).map(|two| (two[0].1.clone(), two[1].1.clone())));
    for (first, second) in pairs {
        // Names and UIDs decide nothing.
        for (a, b) in [("a", "b"), ("b", "a")] {
            let plan = look_at_set(1, &[of_set(a, first.clone()), of_set(b, second.clone())]);
            assert_eq!(gone(&plan), [a], "{first} before {second}");
        }
    }
    // Those about as old as each other go by their UIDs.
    let alike = [of_set("b", made_at(10)), of_set("a", made_at(11)), of_set("c", made_at(12))];
    assert_eq!(gone(&look_at_set(1, &alike)), ["a", "b"]);
}

fn json_sum(mut a: Value, b: Value) -> Value {
    json_patch(&mut a, &b);
    a
}

#[test]
fn pods_that_are_doubled_up_on_a_node_go_first() {
    let on = |owner: [&str; 3], name: &str, node: &str| pod(Some(owner), name, json!({"spec": {"nodeName": node}}));
    let twice = [on(SET, "a", "n1"), on(SET, "b", "n2"), on(SET, "c", "n2")];
    assert_eq!(gone(&look_at_set(2, &twice)), ["b"]);
    // Pods of the other sets of the same Deployment are company, too; those that go are none.
    let mut others = vec![on(SET, "a", "n1"), on(SET, "b", "n2"), on(OTHER_SET, "x", "n2")];
    assert_eq!(gone(&look_at_set(1, &others)), ["b"]);
    others[2]["metadata"]["deletionTimestamp"] = "2026-01-01T00:30:00Z".into();
    assert_eq!(gone(&look_at_set(1, &others)), ["a"]);
    // A dear one stays where it is.
    let mut dear = twice;
    json_patch(&mut dear[1], &cost("1"));
    json_patch(&mut dear[2], &cost("1"));
    assert_eq!(gone(&look_at_set(2, &dear)), ["a"]);
}

#[test]
fn pods_made_by_hand_are_adopted_and_then_count_like_all_others() {
    let ended = json!({"status": {"phase": "Succeeded"}});
    let mut by_hand = [
        pod(None, "hand", made_at(59)),
        pod(None, "ended", ended),
        pod(Some(SET), "a", json!({})),
        pod(Some(SET), "b", json!({})),
    ];
    // Nothing goes before it is known whose they are; what has ended is nobody's.
    let settling = words(&look_at_set(2, &by_hand));
    assert_eq!(settling[0], "confirm alive ns/web");
    assert!(settling.len() == 2 && settling[1].starts_with("patch ns/hand ownerReferences="), "{settling:?}");
    by_hand[0] = pod(Some(SET), "hand", made_at(59));
    assert_eq!(gone(&look_at_set(2, &by_hand)), ["hand"]);
    // One that the selector does not choose any more is let go, and not deleted.
    by_hand[2]["metadata"]["labels"] = json!({"app": "debugged"});
    let settling = words(&look_at_set(1, &by_hand));
    assert_eq!(settling, ["patch ns/a ownerReferences=[]"]);
}

fn look_at_job(spec: Value, pods: &[Value]) -> Plan {
    let mut job = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "web", "resourceVersion": "1"},
        "spec": {"completions": 5, "parallelism": 1, "template": {"spec": {"containers": [], "restartPolicy": "Never"}}},
        "status": {"startTime": "2026-01-01T00:00:00Z"}});
    json_patch(&mut job["spec"], &spec);
    let caches = Caches::new()
        .with_index("controller", index::<Pod>)
        .with_index("job-tracked", by_job)
        .with::<Pod>(pods.iter().cloned().map(of))
        .with::<Job>([of(job)]);
    JobController::default().reconcile(&Key::new("ns", "web"), &caches.view(), now())
}

#[test]
fn the_less_useful_pods_of_a_job_go_first() {
    let of_job = |name: &str, other: Value| pod(Some(JOB), name, other);
    let mut pairs = vec![
        (ready_since(59), json!({})),
        (restarted(2), restarted(1)),
        // Ages count exactly, and a Job's pods have no costs.
        (made_at(11), json_sum(made_at(10), cost("-100"))),
        (ready_since(11), ready_since(10)),
    ];
    let ranks = less_there();
    pairs.extend(ranks.iter().map(|(_, rank)| (rank.clone(), restarted(9))));
    for (first, second) in pairs {
        for (a, b) in [("a", "b"), ("b", "a")] {
            let plan = look_at_job(json!({}), &[of_job(a, first.clone()), of_job(b, second.clone())]);
            assert_eq!(gone(&plan), [a], "{first} before {second}");
        }
    }
    // Of two pods of one index the more useful one stays; one of an index beyond the last goes.
    let of_index = |name: &str, index: i32, other: Value| {
        let annotations =
            json!({"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": index.to_string()}}});
        of_job(name, json_sum(annotations, other))
    };
    let indexed = json!({"completionMode": "Indexed", "parallelism": 5});
    let pods = [
        of_index("a", 0, made_at(30)),
        of_index("b", 0, json!({})),
        of_index("c", 1, json!({})),
        of_index("d", 5, json!({})),
    ];
    assert_eq!(gone(&look_at_job(indexed.clone(), &pods)), ["a", "d"]);
    let pods = [of_index("a", 0, json!({})), of_index("b", 0, restarted(1))];
    assert_eq!(gone(&look_at_job(indexed, &pods)), ["b"]);
}

/// What a StatefulSet of so many removes, of pods of these ordinals that are each as told.
fn look_at_ordinals(policy: &str, replicas: i32, there: &[(usize, Value)]) -> Vec<String> {
    gone(&plan_for_ordinals(policy, replicas, there, &[]))
}

/// What is planned for a StatefulSet of so many, with these claims of its pods, which are to go with them.
fn plan_for_ordinals(policy: &str, replicas: i32, there: &[(usize, Value)], claims: &[Value]) -> Plan {
    let template = json!({"metadata": {"name": "data"}, "spec": {}});
    let templates = if claims.is_empty() { json!([]) } else { json!([template]) };
    let set = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "web", "resourceVersion": "5"},
        "spec": {"replicas": replicas, "serviceName": "web", "podManagementPolicy": policy,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"},
            "volumeClaimTemplates": templates,
            "updateStrategy": {"type": "OnDelete"}, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}}});
    let pods: Vec<Value> = there
        .iter()
        .map(|(ordinal, other)| {
            let name = format!("web-{ordinal}");
            let labels = json!({"metadata": {"labels": {"statefulset.kubernetes.io/pod-name": name,
                "apps.kubernetes.io/pod-index": ordinal.to_string()}}});
            pod(Some(ORDERED), &name, json_sum(labels, other.clone()))
        })
        .collect();
    let plan = |revisions: Vec<ControllerRevision>| {
        let caches = Caches::new()
            .with::<StatefulSet>([of(set.clone())])
            .with_index("controller", index::<ControllerRevision>)
            .with(revisions)
            .with_index("controller", index::<Pod>)
            .with::<Pod>(pods.iter().cloned().map(of))
            .with::<PersistentVolumeClaim>(claims.iter().cloned().map(of));
        StatefulSetController::default().reconcile(&Key::new("ns", "web"), &caches.view(), now())
    };
    // First it notes the template; what another controller noted in another form is the same.
    let [Write::Create { object, .. }] = &plan(Vec::new()).writes[..] else { panic!("a revision") };
    let mut noted = object.clone();
    noted["data"]["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
    plan(vec![of(noted)])
}

/// A claim that was to go with the pod before is not the next one's.
#[test]
fn a_pod_waits_until_the_claim_of_the_one_before_is_gone() {
    let claim = |owner: Value| {
        json!({"metadata": {"namespace": "ns", "name": "data-web-0", "uid": "c", "resourceVersion": "1",
            "ownerReferences": owner}, "spec": {}})
    };
    let of_pod = |name: &str| json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "gone"}]);
    for (owner, made) in [(json!([]), true), (of_pod("other"), true), (of_pod("web-0"), false)] {
        let plan = plan_for_ordinals("OrderedReady", 1, &[], &[claim(owner.clone())]);
        let makes = plan.writes.iter().any(|write| matches!(write, Write::Create { .. }));
        assert_eq!(makes, made, "{owner}: {:?}", words(&plan));
    }
}

#[test]
fn the_highest_ordinals_go_first() {
    let as_is = || json!({});
    let there = |n: usize| (0..n).map(|ordinal| (ordinal, as_is())).collect::<Vec<_>>();
    // In order one at a time, and whatever another one costs or is like.
    assert_eq!(look_at_ordinals("OrderedReady", 1, &there(4)), ["web-3"]);
    let mut dear = there(4);
    dear[3].1 = cost("100");
    dear[2].1 = json!({"status": {"conditions": null}});
    assert_eq!(look_at_ordinals("OrderedReady", 1, &dear), ["web-3"]);
    assert_eq!(look_at_ordinals("Parallel", 1, &dear), ["web-3", "web-2", "web-1"]);
    // One that is not available goes, but not before one below it that is not either.
    let unready = || json!({"status": {"conditions": null}});
    let mut two = there(4);
    two[3].1 = unready();
    assert_eq!(look_at_ordinals("OrderedReady", 1, &two), ["web-3"]);
    two[2].1 = unready();
    assert_eq!(look_at_ordinals("OrderedReady", 1, &two), [""; 0]);
    assert_eq!(look_at_ordinals("Parallel", 1, &two), ["web-3", "web-2", "web-1"]);
    two[2].1 = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:59:59Z"}});
    assert_eq!(look_at_ordinals("OrderedReady", 1, &two), [""; 0]);
    // While one goes, or one that stays is not ready, nobody else does.
    dear[3].1 = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:59:59Z"}});
    assert_eq!(look_at_ordinals("OrderedReady", 1, &dear), [""; 0]);
    assert_eq!(look_at_ordinals("Parallel", 1, &dear), ["web-2", "web-1"]);
    let mut sick = there(3);
    sick[0].1 = json!({"status": {"conditions": null}});
    assert_eq!(look_at_ordinals("OrderedReady", 1, &sick), [""; 0]);
    assert_eq!(look_at_ordinals("OrderedReady", 4, &there(4)), [""; 0]);
}

/// Claims that are to go by scaling belong to their pods before the first of those goes, in order or not.
#[test]
fn claims_of_all_pods_that_are_too_many_get_their_owners_at_once() {
    let there: Vec<(usize, Value)> = (0..4).map(|ordinal| (ordinal, json!({}))).collect();
    let claims: Vec<Value> = (0..4)
        .map(|ordinal| {
            let name = format!("data-web-{ordinal}");
            json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1"}, "spec": {}})
        })
        .collect();
    for policy in ["OrderedReady", "Parallel"] {
        let plan = plan_for_ordinals(policy, 1, &there, &claims);
        let owned: Vec<(String, String)> = plan
            .writes
            .iter()
            .filter_map(|write| match write {
                Write::Update { object, .. } => {
                    let owner = object["metadata"]["ownerReferences"][0]["name"].as_str()?;
                    Some((write.key().name, owner.to_owned()))
                }
                _ => None,
            })
            .collect();
        let both = |n: usize| (format!("data-web-{n}"), format!("web-{n}"));
        assert_eq!(owned, [both(3), both(2), both(1)], "{policy}");
        let first_gone = plan.writes.iter().position(|write| matches!(write, Write::Delete { .. }));
        assert_eq!(first_gone, Some(3), "{policy}: {:?}", words(&plan));
    }
}
