//! Containers with memory of NUMA nodes of their own, as upstream's `test/e2e_node/memory_manager_test.go` plays it, and over
//! restarts.

use super::*;
use crate::memory::{MEMORY, MemoryConfig, Policy, Sizes, decode};
use crate::topology::{Policy as Together, Scope};

const GIB: u64 = 1 << 30;

/// A kubelet on a machine of two nodes of 8 GiB, which keeps one of the first back: most of it is reserved, and the rest is what
/// the hard threshold leaves free.
fn config(policy: Policy, together: Together) -> NodeConfig {
    let reserved = BTreeMap::from([(0, Sizes::from([(MEMORY.to_owned(), GIB)]))]);
    NodeConfig {
        node_name: "sim".into(),
        memory: MemoryConfig { policy, reserved },
        reserved: BTreeMap::from([(MEMORY.to_owned(), (924 << 20) * 1000)]),
        topology: (together, Scope::Container),
        ..NodeConfig::default()
    }
}

fn started(seed: u64, policy: Policy, together: Together) -> World {
    let mut w = World::new(seed);
    w.node.host.numa_nodes = vec![0, 1];
    w.node.host.numa_memory = (0..2).map(|node| (node, Sizes::from([(MEMORY.to_owned(), 8 * GIB)]))).collect();
    w.restart_kubelet_as(config(policy, together));
    w.edit_or_create_node();
    w.run(2);
    w
}

/// Containers that ask for so much memory, and those before for their init containers.
fn pod(init: &[&str], containers: &[&str]) -> Value {
    let list = |prefix: &str, sizes: &[&str]| -> Value {
        let named = |(n, memory): (usize, &&str)| {
            let resources = json!({"cpu": "100m", "memory": memory});
            json!({"name": format!("{prefix}{n}"), "image": "busybox",
                "resources": {"limits": resources.clone(), "requests": resources}})
        };
        sizes.iter().enumerate().map(named).collect()
    };
    json!({"terminationGracePeriodSeconds": 1, "restartPolicy": "Always",
        "initContainers": list("i", init), "containers": list("c", containers)})
}

/// The NUMA nodes that a pod's running containers are bound to.
fn bound(w: &World, uid: &str) -> Vec<String> {
    w.node.running(uid).values().map(|id| w.node.containers[id].spec.resources.memory_nodes.clone()).collect()
}

fn end(w: &mut World, uid: &str, container: &str) {
    let (now, id) = (w.now, w.node.running(uid)[container].clone());
    w.node.exit(now, &id, 0);
    w.run(15);
}

#[test]
fn guaranteed_pods_are_bound_to_nodes_with_enough() {
    each_seed(|seed| {
        for together in [Together::None, Together::BestEffort, Together::Restricted, Together::SingleNumaNode] {
            let mut w = started(seed, Policy::Static, together);
            // The init container's memory is used again: else node 0 would not have enough.
            w.create("p", pod(&["6Gi"], &["3Gi", "3Gi"]));
            w.run(3);
            assert_eq!(bound(&w, "uid-p"), ["0"], "{together:?} {seed}");
            end(&mut w, "uid-p", "i0");
            assert_eq!(bound(&w, "uid-p"), ["0", "0"], "{together:?} {seed}");
            w.create("q", pod(&[], &["7Gi"]));
            // Burstable: it may have memory of all nodes.
            let mut burstable = pod(&[], &["1Mi"]);
            burstable["containers"][0]["resources"]["limits"]["memory"] = "2Mi".into();
            w.create("b", burstable);
            w.run(5);
            assert_eq!((bound(&w, "uid-q"), bound(&w, "uid-b")), (vec!["1".into()], vec![String::new()]));
            // It is on disk before the container is made.
            let position = |is: &dyn Fn(&Op) -> bool| w.asked.iter().position(|(_, op)| is(op)).unwrap();
            let written = position(
                &|op| matches!(op, Op::SaveMemory(body) if decode(body).unwrap().assigned.contains_key("uid-q")),
            );
            let made = position(&|op| matches!(op, Op::CreateContainer(_, spec) if spec.pod.name == "q"));
            assert!(written < made, "{together:?} {seed}");
            // There is enough on both nodes together, and on neither.
            w.create("r", pod(&[], &["1536Mi"]));
            w.run(5);
            let status = &w.api.objects["/api/v1/namespaces/n/pods/r"]["status"];
            assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("UnexpectedAdmissionError")));
            let message = status["message"].as_str().unwrap();
            assert!(message.contains("Allocate failed due to [memorymanager]"), "{together:?}: {message}");
            assert_eq!(w.core.memory().holders().count(), 2, "{together:?} {seed}");
            w.delete(1);
            w.run(20);
            assert_eq!(w.core.memory().tables()[&0].kinds[MEMORY].free, 7 * GIB, "{together:?} {seed}");
            // What is free is given again.
            w.create("s", pod(&[], &["7Gi"]));
            w.run(5);
            assert_eq!(bound(&w, "uid-s"), ["0"], "{together:?} {seed}");
        }
    });
}

#[test]
fn who_fits_no_node_is_bound_to_a_group() {
    for (together, expected) in [
        (Together::None, Ok("0-1")),
        (Together::Restricted, Ok("0-1")),
        // A set of hints that is wider than a node is none for this policy.
        (Together::SingleNumaNode, Err("TopologyAffinityError")),
    ] {
        let mut w = started(1, Policy::Static, together);
        w.create("p", pod(&[], &["10Gi"]));
        w.run(5);
        match expected {
            Ok(nodes) => assert_eq!(bound(&w, "uid-p"), [nodes], "{together:?}"),
            Err(reason) => assert_eq!(w.api.objects[POD]["status"]["reason"], reason, "{together:?}"),
        }
    }
}

#[test]
fn restarts_and_other_policies_move_nobody() {
    each_seed(|seed| {
        let together = Together::BestEffort;
        let mut w = started(seed, Policy::None, together);
        w.create("p", pod(&[], &["4Gi"]));
        w.run(5);
        assert_eq!((bound(&w, "uid-p"), w.node.memory.clone()), (vec![String::new()], None));
        let before = w.node.running("uid-p");
        // What runs is counted from now on, and bound when it starts again.
        w.restart_kubelet_as(config(Policy::Static, together));
        w.run(10);
        assert_eq!((w.node.running("uid-p"), bound(&w, "uid-p")), (before, vec![String::new()]), "{seed}");
        assert_eq!(w.core.memory().tables()[&0].kinds[MEMORY].free, 3 * GIB, "{seed}");
        end(&mut w, "uid-p", "c0");
        assert_eq!(bound(&w, "uid-p"), ["0"], "{seed}");
        // Killed at every step of a start: what is on disk is what it has.
        w.create("q", pod(&[], &["4Gi"]));
        for _ in 0..40 {
            w.next();
            w.restart_kubelet_as(config(Policy::Static, together));
            for _ in 0..8 {
                w.next();
            }
        }
        w.run(20);
        assert_eq!((bound(&w, "uid-p"), bound(&w, "uid-q")), (vec!["0".into()], vec!["1".into()]), "{seed}");
        let now = w.now;
        w.node.reboot(now, "boot-2");
        w.restart_kubelet_as(config(Policy::Static, together));
        w.run(40);
        assert_eq!((bound(&w, "uid-p"), bound(&w, "uid-q")), (vec!["0".into()], vec!["1".into()]), "{seed}");
        // What is on disk is no JSON: who runs is counted again.
        w.node.memory = Some(b"{".to_vec());
        w.restart_kubelet_as(config(Policy::Static, together));
        w.run(10);
        assert_eq!(w.core.memory().holders().count(), 2, "{seed}");
        // Nothing is kept any more, and the disk does not say that it is.
        w.restart_kubelet_as(config(Policy::None, together));
        w.run(10);
        let state = decode(w.node.memory.as_ref().unwrap()).unwrap();
        assert_eq!((state.policy.as_str(), state.assigned.len()), ("None", 0), "{seed}");
        assert!(!w.api.phases.iter().any(|p| p.ends_with("=Failed")), "{seed}: {:?}", w.api.phases);
    });
}

#[test]
fn what_a_pod_on_its_way_out_has_is_waited_for() {
    let together = Together::SingleNumaNode;
    let mut w = started(1, Policy::Static, together);
    for name in ["p", "q"] {
        w.create(name, pod(&[], &["5Gi"]));
        w.run(3);
    }
    w.deaf = true;
    w.delete(1);
    w.run(1);
    w.create("r", pod(&[], &["4Gi"]));
    w.run(5);
    assert_eq!(w.api.objects["/api/v1/namespaces/n/pods/r"]["status"]["phase"], "Pending");
    w.deaf = false;
    w.restart_kubelet_as(config(Policy::Static, together));
    w.run(20);
    assert_eq!(bound(&w, "uid-r"), ["0"]);
}

/// Upstream's "should report pinning failures when the memorymanager allocation is known to fail", and the one beside it
/// (`test/e2e_node/memory_manager_metrics_test.go`): the counts are shown when they have changed.
#[test]
fn who_is_refused_is_counted() {
    for (memory, reason, expected) in [
        ("64Mi", None, (1, 0)),
        ("1000Gi", Some("OutOfmemory"), (1, 1)),
        // There is as much on both nodes together, and the policy wants one.
        ("10Gi", Some("TopologyAffinityError"), (0, 0)),
        ("8000Mi", None, (1, 0)),
    ] {
        let mut w = started(1, Policy::Static, Together::SingleNumaNode);
        w.create("p", pod(&[], &[memory]));
        w.run(5);
        assert_eq!(w.api.objects[POD]["status"]["reason"].as_str(), reason, "{memory}");
        let shown = w.asked.iter().rev().find_map(|(_, op)| match op {
            Op::PublishDevices(view) => Some(view.memory.asked),
            _ => None,
        });
        assert_eq!(shown, Some(expected), "{memory}");
    }
}

#[test]
fn memory_of_its_own_is_not_resized() {
    let mut w = started(1, Policy::Static, Together::None);
    w.create("p", pod(&[], &["1Gi"]));
    w.run(5);
    let resources = json!({"cpu": "100m", "memory": "2Gi"});
    w.edit(
        POD,
        json!({"metadata": {"generation": 2}, "spec": {"containers": [{"name": "c0", "image": "busybox",
        "resources": {"limits": resources, "requests": resources}}]}}),
    );
    w.run(5);
    let told = w.api.objects[POD]["status"]["conditions"].to_string();
    assert!(told.contains("alongside Memory Manager policy"), "{told}");
}
