//! What becomes of nodes that fall silent, and of those that only seem to.

use carrack_engine::testing::Caches;
use serde_json::{Value, json};

use super::*;
use crate::testing::{of, words};

fn node(name: &str, ready: &str, taints: Value) -> Value {
    let condition = |t: &str, s: &str| json!({"type": t, "status": s});
    let pressed = if ready == "Unknown" { "Unknown" } else { "False" };
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {"taints": taints},
        "status": {"conditions": [condition("Ready", ready), condition("MemoryPressure", pressed),
            condition("DiskPressure", pressed), condition("PIDPressure", pressed)]}})
}

fn lease(name: &str, revision: u32) -> Value {
    json!({"metadata": {"namespace": LEASES, "name": name, "resourceVersion": revision.to_string()}, "spec": {}})
}

fn step(c: &mut NodeLifecycle, nodes: &[Value], leases: &[Value], name: &str, at_s: i64) -> Plan {
    let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "1"},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let caches = Caches::new()
        .with_index::<Node>(BY_HEALTH, by_health)
        .with::<Node>(nodes.iter().cloned().map(of))
        .with_source::<Lease>(super::leases(), leases.iter().cloned().map(of))
        .with_index::<Pod>(BY_READY, by_ready)
        .with::<Pod>([of(pod)]);
    c.reconcile(&Key::new("", name), &caches.view(), Time::from_unix_s(at_s))
}

const SILENT: &str = "patch a/status Ready=Unknown MemoryPressure=Unknown DiskPressure=Unknown PIDPressure=Unknown";

#[test]
fn silence_is_measured_by_the_observer_and_confirmed() {
    let mut c = NodeLifecycle::default();
    let nodes = [node("a", "True", json!([]))];
    let none: [&str; 0] = [];
    let plan = step(&mut c, &nodes, &[lease("a", 1)], "a", 1000);
    assert_eq!(words(&plan), none);
    assert_eq!(plan.requeue_after, Some(GRACE));
    assert_eq!(words(&step(&mut c, &nodes, &[lease("a", 2)], "a", 1049)), none);
    assert_eq!(words(&step(&mut c, &nodes, &[lease("a", 2)], "a", 1098)), none);
    let plan = step(&mut c, &nodes, &[lease("a", 2)], "a", 1099);
    assert_eq!(words(&plan), ["confirm unchanged kube-node-lease/a", SILENT]);
    assert_eq!(plan.events.len(), 1);
}

#[test]
fn nodes_that_come_and_go_are_told_once() {
    let mut c = NodeLifecycle::default();
    let made = |uid: &str, at: &str| {
        let mut new = node("a", "True", json!([]));
        new["metadata"]["uid"] = uid.into();
        new["metadata"]["creationTimestamp"] = at.into();
        new
    };
    let told = |plan: &Plan| -> Vec<String> {
        let uid = |e: &EventRecord| e.regarding.uid.clone().unwrap_or_default();
        plan.events.iter().map(|e| format!("{} {} {}", uid(e), e.reason, e.message)).collect()
    };
    let registered = "u RegisteredNode Node a event: Registered Node a in Controller";
    let removed = "u RemovingNode Node a event: Removing Node a from Controller";
    let new = [made("u", "1970-01-01T00:16:40Z")];
    assert_eq!(told(&step(&mut c, &new, &[], "a", 1001)), [registered]);
    assert_eq!(told(&step(&mut c, &new, &[], "a", 1002)), [""; 0]);
    assert_eq!(told(&step(&mut c, &[], &[], "a", 1003)), [removed]);
    assert_eq!(told(&step(&mut c, &[], &[], "a", 1004)), [""; 0]);
    // Seen first by this controller, and not new.
    assert_eq!(told(&step(&mut c, &[made("old", "1970-01-01T00:01:00Z")], &[], "a", 1005)), [""; 0]);
}

#[test]
fn a_node_that_never_spoke_has_a_minute() {
    let mut c = NodeLifecycle::default();
    let mut new = node("a", "True", json!([]));
    new["status"] = json!({});
    assert_eq!(words(&step(&mut c, &[new.clone()], &[], "a", 1000)), [""; 0]);
    assert_eq!(words(&step(&mut c, &[new.clone()], &[], "a", 1059)), [""; 0]);
    assert_eq!(words(&step(&mut c, &[new], &[], "a", 1060)), ["confirm absent kube-node-lease/a", SILENT]);
}

#[test]
fn taints_follow_conditions_and_evictions_need_somebody_who_is_heard() {
    let schedule = |key: &str| json!([{"key": key, "effect": "NoSchedule"}]);
    let both =
        json!([{"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}, {"key": UNREACHABLE_TAINT, "effect": "NoExecute"}]);
    // (a's readiness, its taints, b's readiness) → what is written of a.
    for (ready, taints, other, expected) in [
        ("True", json!([]), "True", vec![]),
        (
            "False",
            json!([]),
            "True",
            vec![format!("patch a taints={NOT_READY_TAINT}:NoSchedule,{NOT_READY_TAINT}:NoExecute")],
        ),
        (
            "Unknown",
            json!([]),
            "True",
            // Heard just now: how it is, it says itself.
            vec![format!("patch a taints={UNREACHABLE_TAINT}:NoSchedule")],
        ),
        // Nobody is heard: new pods stay away, and those that are there stay.
        ("Unknown", json!([]), "Unknown", vec![format!("patch a taints={UNREACHABLE_TAINT}:NoSchedule")]),
        ("Unknown", both.clone(), "Unknown", vec![format!("patch a taints={UNREACHABLE_TAINT}:NoSchedule")]),
        ("Unknown", both.clone(), "True", vec![]),
        ("True", both, "True", vec!["patch a taints=".to_owned()]),
        ("True", schedule("example.com/mine"), "True", vec![]),
        ("True", schedule(NOT_READY_TAINT), "True", vec!["patch a taints=".to_owned()]),
    ] {
        let mut c = NodeLifecycle::default();
        let nodes = [node("a", ready, taints.clone()), node("b", other, json!([]))];
        let plan = step(&mut c, &nodes, &[lease("a", 1)], "a", 1000);
        assert_eq!(words(&plan), expected, "{ready} {taints} {other}");
    }
}

#[test]
fn labels_have_their_former_names_too() {
    let (os, arch) = ("kubernetes.io/os", "kubernetes.io/arch");
    let former = |key: &str| format!("beta.{key}");
    for (labels, expected) in [
        (json!({}), vec![]),
        (json!({os: "linux", former(os): "linux", arch: "arm64", former(arch): "arm64"}), vec![]),
        (json!({os: "linux", former(os): "windows"}), vec!["patch a labels={\"beta.kubernetes.io/os\":\"linux\"}"]),
        (json!({arch: "arm64"}), vec!["patch a labels={\"beta.kubernetes.io/arch\":\"arm64\"}"]),
        (json!({former(arch): "arm64"}), vec![]),
    ] {
        let mut node = node("a", "True", json!([]));
        node["metadata"]["labels"] = labels.clone();
        assert_eq!(words(&step(&mut NodeLifecycle::default(), &[node], &[], "a", 1000)), expected, "{labels}");
    }
}

#[test]
fn a_silent_node_is_evicted_and_one_that_is_heard_again_is_not() {
    let nodes = || {
        let taint = json!([{"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}]);
        [node("a", "Unknown", taint), node("b", "True", json!([]))]
    };
    let check = |spoke: u32, expected: &[String]| {
        let mut c = NodeLifecycle::default();
        drop(step(&mut c, &nodes(), &[lease("a", 1)], "a", 1000));
        for at in [1010, 1020, 1030, 1040, 1050] {
            drop(step(&mut c, &nodes(), &[lease("a", 1), lease("b", at)], "b", i64::from(at)));
        }
        assert_eq!(
            words(&step(&mut c, &nodes(), &[lease("a", spoke), lease("b", 1050)], "a", 1050)),
            expected,
            "{spoke}"
        );
    };
    check(
        1,
        &[
            "patch ns/p/status Ready=False".to_owned(),
            "confirm unchanged kube-node-lease/a".to_owned(),
            format!("patch a taints={UNREACHABLE_TAINT}:NoSchedule,{UNREACHABLE_TAINT}:NoExecute"),
        ],
    );
    // Its condition is the controller's word still.
    check(2, &[]);
}

#[test]
fn pods_of_a_silent_node_are_not_ready() {
    let mut c = NodeLifecycle::default();
    let taint = json!([{"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}]);
    let nodes = [node("a", "Unknown", taint)];
    // Heard just now: the node speaks for itself.
    assert_eq!(words(&step(&mut c, &nodes, &[lease("a", 1)], "a", 1000)), [""; 0]);
    let plan = step(&mut c, &nodes, &[lease("a", 1)], "a", 1050);
    assert_eq!(words(&plan), ["patch ns/p/status Ready=False"]);
    assert_eq!(plan.apart.len(), 1, "a pod of which that may not be said keeps no other");
}

#[test]
fn after_a_time_in_which_nobody_was_heard_all_have_time_again() {
    let mut c = NodeLifecycle::default();
    let nodes = [node("a", "True", json!([])), node("b", "True", json!([]))];
    for name in ["a", "b"] {
        assert_eq!(words(&step(&mut c, &nodes, &[lease("a", 1), lease("b", 1)], name, 1000)), [""; 0]);
    }
    // The store could not be written for 48 s; b is the first to get through, a comes a little later.
    let after = [lease("a", 1), lease("b", 2)];
    assert_eq!(words(&step(&mut c, &nodes, &after, "b", 1048)), [""; 0]);
    assert_eq!(words(&step(&mut c, &nodes, &after, "a", 1055)), [""; 0]);
    assert_eq!(words(&step(&mut c, &nodes, &after, "a", 1097)), [""; 0]);
    assert_eq!(words(&step(&mut c, &nodes, &after, "a", 1098)).len(), 2);
}
