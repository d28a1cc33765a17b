//! Pods that were bound past the extender, with annotations that somebody else has written.

use super::*;

/// The cores that each pod holds of which GPUs.
fn holds(b: &Bench) -> Vec<(String, Vec<(usize, u32)>)> {
    let holds = |entry: &crate::Entry| entry.holds.iter().map(|(gpu, used)| (*gpu, used.cores)).collect();
    b.core.ledger().iter().map(|(uid, entry)| (uid.to_owned(), holds(entry))).collect()
}

#[track_caller]
fn check(b: &Bench, expected: &[(&str, &[(usize, u32)])], contested: u64) {
    let expected: Vec<_> = expected.iter().map(|(name, held)| (format!("u-{name}"), held.to_vec())).collect();
    assert_eq!(holds(b), expected);
    let said = b.core.metrics.text(&b.core.ledger, true);
    assert!(said.contains(&format!("carrack_gpu_extender_contested_pods {contested}\n")), "{said}");
}

/// The same, since a second.
fn since(mut pod: Value, second: u32) -> Value {
    let at = format!("2026-01-01T00:00:{second:02}Z");
    pod["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]});
    pod
}

#[test]
fn who_was_bound_first_holds_and_the_next_one_follows() {
    let thief = bound(pod("thief", 100), "n1", "0", 12);
    let owner = bound(pod("owner", 60), "n1", "0", 11);
    let mut b = Bench::started(std::slice::from_ref(&owner), &[node("n1", 2)]);
    b.watch("ADDED", &thief);
    check(&b, &[("owner", &[(0, 60)]), ("thief", &[(0, 40)])], 1);
    // The words of the one cost nobody the other GPU, and free nothing of this one.
    assert_eq!(b.filter(&pod("x", 1), &["n1"]), json!(["n1"]));
    check(&b, &[("owner", &[(0, 60)]), ("thief", &[(0, 40)]), ("x", &[(1, 1)])], 1);
    b.watch("DELETED", &owner);
    b.filter(&pod("y", 1), &["n1"]);
    check(&b, &[("thief", &[(0, 100)]), ("x", &[(1, 1)]), ("y", &[(1, 1)])], 0);
}

/// A new life hears of all at once, and in no order.
#[test]
fn a_new_life_asks_who_was_first() {
    let pods = [
        since(bound(pod("a", 100), "n1", "0", 12), 5),
        since(bound(pod("b", 100), "n1", "0", 11), 3),
        since(bound(pod("c", 100), "n1", "0", 13), 4),
    ];
    let mut b = Bench::started(&pods, &[node("n1", 2)]);
    check(&b, &[("a", &[]), ("b", &[(0, 100)]), ("c", &[])], 2);
    b.watch("DELETED", &pods[1]);
    b.filter(&pod("x", 100), &["n1"]);
    check(&b, &[("a", &[]), ("c", &[(0, 100)]), ("x", &[(1, 100)])], 1);
}

#[test]
fn a_gpu_that_is_not_there_is_nobodys() {
    let beyond = bound(pod("thief", 200), "n1", "0,7", 12);
    let mut b = Bench::started(std::slice::from_ref(&beyond), &[node("n1", 2)]);
    check(&b, &[("thief", &[(0, 100)])], 1);
    assert_eq!(b.filter(&pod("x", 100), &["n1"]), json!(["n1"]));
    // Before the node says which it has, nobody knows.
    let mut bare = node("n1", 2);
    bare["status"] = json!({});
    let mut b = Bench::started(std::slice::from_ref(&beyond), &[bare]);
    check(&b, &[("thief", &[(0, 100), (7, 100)])], 0);
    let mut there = node("n1", 2);
    there["metadata"]["resourceVersion"] = "6".into();
    b.watch_of("/nodes", "MODIFIED", &there);
    check(&b, &[("thief", &[(0, 100)])], 1);
}

#[test]
fn memory_that_is_not_there_is_not_counted() {
    let names = ["a", "b", "c", "d", "e"];
    let pods: Vec<Value> =
        names.iter().zip(1..).map(|(name, second)| since(bound(pod(name, 20), "n1", "0", 12), second)).collect();
    let mut bare = node("n1", 1);
    bare["status"] = json!({});
    let mut b = Bench::started(&pods, &[bare]);
    let all = names.map(|name| (name, &[(0, 20)][..]));
    check(&b, &all, 0);
    // The GPU has room for four of them.
    let mut there = node("n1", 1);
    there["metadata"]["resourceVersion"] = "6".into();
    b.watch_of("/nodes", "MODIFIED", &there);
    check(&b, &all, 1);
    assert!(b.core.ledger().settled("n1", "").values().all(|used| used.memory == 16));
}

/// An offer is no hold yet: whoever is bound first has the GPU, and the other one gets another.
#[test]
fn an_offer_gives_way_and_a_binding_does_not() {
    let mut b = Bench::started(&[pod("a", 100), pod("c", 100)], &[node("n1", 2)]);
    assert_eq!(b.filter(&pod("a", 100), &["n1"]), json!(["n1"]));
    b.watch("ADDED", &bound(pod("thief", 100), "n1", "0", 12));
    b.bind("a", "n1");
    let written = b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "13"}})));
    assert_eq!(written["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"], "1");
    b.watch("ADDED", &bound(pod("thief-2", 100), "n1", "1", 14));
    check(&b, &[("a", &[(1, 100)]), ("thief", &[(0, 100)]), ("thief-2", &[])], 1);
    b.answer("binding", Ok(json!({})));
    b.watch("MODIFIED", &bound(pod("a", 100), "n1", "1", 15));
    check(&b, &[("a", &[(1, 100)]), ("thief", &[(0, 100)]), ("thief-2", &[])], 1);
    assert_eq!(b.filter(&pod("c", 100), &["n1"]), json!([]));
}

/// What is contested stays so when the cards of a node get other numbers.
#[test]
fn a_contested_card_stays_its_owners() {
    let on = |name: &str, card: &str, number: &str, revision: u64| {
        let mut pod = bound(pod(name, 100), "n", number, revision);
        pod["metadata"]["annotations"]["tencent.com/predicate-gpu-uuid-0"] = card.into();
        pod
    };
    let pods = [since(on("owner", "x", "0", 3), 1), since(on("another", "y", "1", 4), 2)];
    let mut b = Bench::started(&pods, &[naming(&["x", "y"], 4)]);
    b.watch("ADDED", &since(on("thief", "x", "0", 5), 3));
    check(&b, &[("another", &[(1, 100)]), ("owner", &[(0, 100)]), ("thief", &[])], 1);
    b.watch_of("/nodes", "MODIFIED", &naming(&["y", "x"], 6));
    check(&b, &[("another", &[(0, 100)]), ("owner", &[(1, 100)]), ("thief", &[])], 1);
}
