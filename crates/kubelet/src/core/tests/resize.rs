//! Pods that are to have another size while they run.

use super::*;
use crate::allocation::GroupLimits;

/// Requests and limits of so many CPUs, and of so much memory.
fn sized(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn container(name: &str, size: &Value, policy: &Value) -> Value {
    json!({"name": name, "image": "busybox", "resources": size, "resizePolicy": policy})
}

fn one(cpu: &str, memory: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [container("c", &sized(cpu, memory), &Value::Null)]})
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/n/pods/{name}")
}

/// The API takes another spec, as its `resize` does.
fn resize(w: &mut World, name: &str, spec: &Value) {
    let object = &w.api.objects[&path(name)];
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(1) + 1;
    let mut whole = object["spec"].clone();
    merge(&mut whole, spec);
    w.edit(&path(name), json!({"metadata": {"generation": generation}, "spec": whole}));
}

fn started(seed: u64) -> World {
    let mut w = World::new(seed);
    w.edit_or_create_node();
    w.run(2);
    w
}

/// Quota and memory limit of a container that runs, and how often it was started anew.
fn runs_with(w: &World, name: &str, container: &str) -> (i64, i64, u32) {
    let id = &w.node.running(&format!("uid-{name}"))[container];
    let c = &w.node.containers[id];
    (c.spec.resources.cpu_quota_us, c.spec.resources.memory_limit_bytes, c.record.attempt)
}

fn group(w: &World, name: &str) -> GroupLimits {
    let ends = format!("/poduid-{name}");
    w.node.groups.iter().find(|(path, _)| path.ends_with(&ends)).map(|(_, limits)| *limits).unwrap()
}

/// Reason and observed generation of a condition, if it is there.
fn told(w: &World, name: &str, type_: &str) -> Option<(String, i64)> {
    let conditions = w.api.objects[&path(name)]["status"]["conditions"].as_array().unwrap();
    let c = conditions.iter().find(|c| c["type"] == type_)?;
    Some((c["reason"].as_str().unwrap_or_default().to_owned(), c["observedGeneration"].as_i64().unwrap()))
}

/// CPUs that a pod's status says to be allocated, and to be had.
fn shown(w: &World, name: &str) -> (String, String) {
    let status = &w.api.objects[&path(name)]["status"]["containerStatuses"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&status["allocatedResources"]["cpu"]), text(&status["resources"]["limits"]["cpu"]))
}

fn told_of(w: &World, reason: &str) -> usize {
    w.api.events.iter().filter(|r| *r == reason).count()
}

const DEFERRED: Option<&str> = Some("Deferred");

#[test]
fn a_pod_grows_and_shrinks_where_it_runs() {
    each_seed(|seed| {
        let mut w = started(seed);
        w.create("p", one("1", "1Gi"));
        w.run(10);
        let before = w.node.running("uid-p");
        assert_eq!(runs_with(&w, "p", "c"), (100_000, 1 << 30, 0), "seed {seed}");
        for (cpu, memory, quota, bytes) in [("2", "2Gi", 200_000, 2 << 30), ("500m", "3Gi", 50_000, 3 << 30)] {
            w.asked.clear();
            resize(&mut w, "p", &one(cpu, memory));
            w.run(5);
            assert_eq!(runs_with(&w, "p", "c"), (quota, bytes, 0), "seed {seed}");
            assert_eq!(w.node.running("uid-p"), before, "the same container runs");
            let limits = group(&w, "p");
            assert_eq!((limits.cpu_quota_us, limits.memory_limit_bytes), (quota, bytes), "seed {seed}");
            assert_eq!(shown(&w, "p"), (cpu.into(), cpu.into()), "seed {seed}");
            assert_eq!((told(&w, "p", "PodResizePending"), told(&w, "p", "PodResizeInProgress")), (None, None));
            // It is on disk before anything has it, and the API is told after.
            let at = |is: &dyn Fn(&Op) -> bool| w.asked.iter().position(|(_, op)| is(op)).unwrap();
            let saved = at(&|op| matches!(op, Op::SaveAllocated(_)));
            assert!(saved < at(&|op| matches!(op, Op::ReadGroup { .. })), "seed {seed}");
            assert!(saved < at(&|op| matches!(op, Op::UpdateContainer { .. })), "seed {seed}");
        }
        assert_eq!((told_of(&w, "ResizeStarted"), told_of(&w, "ResizeCompleted")), (2, 2), "seed {seed}");
        let status = &w.api.objects[POD]["status"];
        assert_eq!((&status["observedGeneration"], &status["qosClass"]), (&json!(3), &json!("Guaranteed")));
    });
}

#[test]
fn who_does_not_fit_waits_and_who_never_will_is_told() {
    each_seed(|seed| {
        let mut w = started(seed);
        for (name, cpu) in [("p", "3"), ("q", "3")] {
            w.create(name, one(cpu, "1Gi"));
        }
        w.run(10);
        resize(&mut w, "p", &one("6", "1Gi"));
        w.run(5);
        assert_eq!(told(&w, "p", "PodResizePending"), Some(("Deferred".into(), 2)), "seed {seed}");
        assert_eq!((runs_with(&w, "p", "c").0, shown(&w, "p").0), (300_000, "3".into()), "seed {seed}");
        let conditions = w.api.objects[POD]["status"]["conditions"].to_string();
        let why = "Node didn't have enough resource: cpu, requested: 6000, used: 3000, capacity: 8000";
        assert!(conditions.contains(why), "{conditions}");
        // More than the node has is not waited for.
        resize(&mut w, "p", &one("9", "1Gi"));
        w.run(5);
        assert_eq!(told(&w, "p", "PodResizePending"), Some(("Infeasible".into(), 3)), "seed {seed}");
        let conditions = w.api.objects[POD]["status"]["conditions"].to_string();
        assert!(conditions.contains("Node didn't have enough capacity: cpu, requested: 9000, capacity: 8000"));
        assert_eq!((told_of(&w, "ResizeDeferred"), told_of(&w, "ResizeInfeasible")), (1, 1), "seed {seed}");
        resize(&mut w, "p", &one("6", "1Gi"));
        w.run(5);
        assert_eq!(told(&w, "p", "PodResizePending").unwrap().0, "Deferred", "seed {seed}");
        // Another one gives up what it needs.
        resize(&mut w, "q", &one("1", "1Gi"));
        w.run(5);
        assert_eq!(told(&w, "p", "PodResizePending"), None, "seed {seed}");
        assert_eq!((runs_with(&w, "p", "c").0, runs_with(&w, "q", "c").0), (600_000, 100_000), "seed {seed}");
        assert_eq!(shown(&w, "p"), ("6".into(), "6".into()), "seed {seed}");
    });
}

#[test]
fn what_waits_goes_in_its_order() {
    // Priorities of two pods that wait for the room of a third, which they do not both fit into; who gets it.
    for (p, q, first) in [(0, 7, "q"), (7, 0, "p"), (0, 0, "p")] {
        let mut w = started(3);
        for (name, cpu, priority) in [("p", "1", p), ("q", "1", q), ("r", "5", 0)] {
            let mut spec = one(cpu, "1Gi");
            spec["priority"] = priority.into();
            w.create(name, spec);
        }
        w.run(10);
        for name in ["p", "q"] {
            resize(&mut w, name, &one("5", "1Gi"));
            w.run(5);
        }
        let waits = |w: &World, name: &str| told(w, name, "PodResizePending").map(|(reason, _)| reason);
        assert_eq!((waits(&w, "p").as_deref(), waits(&w, "q").as_deref()), (DEFERRED, DEFERRED));
        let now = w.now.rfc3339();
        w.edit(&path("r"), json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": 1}}));
        w.run(10);
        let got: Vec<&str> = ["p", "q"].into_iter().filter(|name| waits(&w, name).is_none()).collect();
        assert_eq!(got, [first], "{p} {q}");
    }
}

#[test]
fn a_container_that_is_to_start_again_does_once() {
    for (seed, policy) in [(1, "Always"), (2, "OnFailure"), (3, "Always")] {
        let mut w = started(seed);
        w.node.stop_code = 0;
        let restart = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        let spec = |cpu: &str, memory: &str| {
            json!({"terminationGracePeriodSeconds": 1, "restartPolicy": policy,
                "containers": [container("c", &sized(cpu, memory), &restart),
                               container("d", &sized("1", "1Gi"), &Value::Null)]})
        };
        w.create("p", spec("1", "1Gi"));
        w.run(10);
        let d = w.node.running("uid-p")["d"].clone();
        resize(&mut w, "p", &spec("2", "1Gi"));
        w.run(5);
        assert_eq!(runs_with(&w, "p", "c"), (200_000, 1 << 30, 0), "CPUs are given to it as it runs");
        resize(&mut w, "p", &spec("2", "2Gi"));
        w.run(10);
        assert_eq!(runs_with(&w, "p", "c"), (200_000, 2 << 30, 1), "{policy}");
        assert_eq!(w.node.running("uid-p")["d"], d, "the other one runs on");
        assert_eq!(group(&w, "p").memory_limit_bytes, 3 << 30);
        assert_eq!((told(&w, "p", "PodResizeInProgress"), w.phase()), (None, "Running"), "{policy}");
        // That was no crash: the first one is not waited after, and the next size neither.
        resize(&mut w, "p", &spec("2", "1Gi"));
        w.run(10);
        assert_eq!(runs_with(&w, "p", "c"), (200_000, 1 << 30, 2), "{policy}");
        w.restart_kubelet();
        w.run(20);
        assert_eq!(runs_with(&w, "p", "c"), (200_000, 1 << 30, 2), "{policy}");
        let now = w.now;
        let c = w.node.running("uid-p")["c"].clone();
        w.node.exit(now, &c, 0);
        w.run(20);
        let runs = w.node.running("uid-p").contains_key("c");
        assert_eq!(runs, policy == "Always", "one that ends by itself is judged as ever");
    }
}

#[test]
fn memory_in_use_is_not_taken_away() {
    let mut w = started(1);
    w.create("p", one("1", "2Gi"));
    w.run(10);
    let path = w.node.groups.keys().find(|path| path.ends_with("/poduid-p")).unwrap().clone();
    w.node.group_memory_bytes.insert(path.clone(), 3 << 29);
    resize(&mut w, "p", &one("1", "1Gi"));
    w.run(5);
    assert_eq!(told(&w, "p", "PodResizeInProgress"), Some(("Error".into(), 2)));
    let conditions = w.api.objects[POD]["status"]["conditions"].to_string();
    assert!(conditions.contains("cannot decrease memory limits: attempting to set pod memory limit (1073741824)"));
    assert_eq!((runs_with(&w, "p", "c").1, group(&w, "p").memory_limit_bytes), (2 << 30, 2 << 30));
    w.run(60);
    assert_eq!(told_of(&w, "ResizeError"), 1, "it is told once");
    w.node.group_memory_bytes.insert(path, 1 << 20);
    w.run(20);
    assert_eq!((runs_with(&w, "p", "c").1, group(&w, "p").memory_limit_bytes), (1 << 30, 1 << 30));
    assert_eq!((told(&w, "p", "PodResizeInProgress"), told_of(&w, "ResizeCompleted")), (None, 1));
}

#[test]
fn what_fails_is_tried_again() {
    let mut w = started(2);
    w.create("p", one("1", "1Gi"));
    w.run(10);
    w.node.stubborn.insert("c".into());
    resize(&mut w, "p", &one("2", "2Gi"));
    w.run(30);
    assert_eq!(told(&w, "p", "PodResizeInProgress"), Some(("Error".into(), 2)));
    assert_eq!((shown(&w, "p"), group(&w, "p").cpu_quota_us), (("2".into(), "1".into()), 200_000));
    w.node.stubborn.clear();
    w.run(20);
    assert_eq!((told(&w, "p", "PodResizeInProgress"), runs_with(&w, "p", "c").0), (None, 200_000));
    assert_eq!(shown(&w, "p"), ("2".into(), "2".into()));
}

/// The kubelet ends after each thing that happens in turn: the pod gets its size all the same, once, and nobody has more than
/// there is.
#[test]
fn a_kubelet_may_end_between_any_two_steps() {
    let restart = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    for (policy, ends, again) in [(Value::Null, 40, 0), (restart, 60, 1)] {
        for steps in 0..ends {
            let spec = |cpu: &str, memory: &str| {
                json!({"terminationGracePeriodSeconds": 1, "restartPolicy": "OnFailure",
                    "containers": [container("c", &sized(cpu, memory), &policy)]})
            };
            let mut w = started(steps);
            w.node.stop_code = 0;
            w.create("p", spec("1", "1Gi"));
            w.create("q", one("5", "1Gi"));
            w.run(10);
            resize(&mut w, "p", &spec("3", "2Gi"));
            for _ in 0..steps {
                w.next();
            }
            w.restart_kubelet();
            w.run(3);
            // Whoever comes now finds what is left.
            w.create("r", one("1", "1Gi"));
            w.run(40);
            let has = |w: &World| (runs_with(w, "p", "c").0, runs_with(w, "p", "c").1);
            let starts = |w: &World| w.asked.iter().filter(|(_, op)| matches!(op, Op::StartContainer(_))).count();
            assert_eq!((has(&w), starts(&w)), ((300_000, 2 << 30), 2 + again), "after {steps}");
            assert_eq!(group(&w, "p").memory_limit_bytes, 2 << 30, "after {steps}");
            assert_eq!((told(&w, "p", "PodResizeInProgress"), shown(&w, "p").1), (None, "3".into()), "after {steps}");
            let left = w.api.objects[&path("r")]["status"]["reason"].clone();
            assert_eq!(left, "OutOfcpu", "after {steps}");
            // It is known from the disk alone.
            w.run(5);
            w.restart_kubelet();
            w.asked.clear();
            w.run(20);
            assert_eq!((has(&w), starts(&w)), ((300_000, 2 << 30), 0), "after {steps}");
            let done =
                w.asked.iter().any(|(_, op)| matches!(op, Op::UpdateContainer { .. } | Op::StopContainer { .. }));
            assert!(!done, "after {steps}");
        }
    }
}

/// A wish is taken back after each thing that happens in turn, and the kubelet ends before or after that, or not at all: what
/// was on its way is not there in the end.
#[test]
fn a_wish_may_be_taken_back_in_the_middle() {
    for (steps, restarts) in (0..40).flat_map(|steps| [(steps, 0), (steps, 1), (steps, 2)]) {
        let mut w = started(steps);
        w.create("p", one("1", "1Gi"));
        w.run(10);
        resize(&mut w, "p", &one("2", "2Gi"));
        for _ in 0..steps {
            w.next();
        }
        if restarts == 1 {
            w.restart_kubelet();
        }
        resize(&mut w, "p", &one("1", "1Gi"));
        if restarts == 2 {
            for _ in 0..steps / 2 {
                w.next();
            }
            w.restart_kubelet();
        }
        w.run(40);
        let about = format!("after {steps}, restarts {restarts}");
        assert_eq!(runs_with(&w, "p", "c"), (100_000, 1 << 30, 0), "{about}");
        let limits = group(&w, "p");
        assert_eq!((limits.cpu_quota_us, limits.memory_limit_bytes), (100_000, 1 << 30), "{about}");
        let conditions = (told(&w, "p", "PodResizePending"), told(&w, "p", "PodResizeInProgress"));
        assert_eq!((shown(&w, "p").1, conditions), ("1".into(), (None, None)), "{about}");
    }
}

#[test]
fn what_is_allocated_is_what_counts_over_restarts() {
    each_seed(|seed| {
        let mut w = started(seed);
        w.create("p", one("3", "1Gi"));
        w.create("q", one("4", "1Gi"));
        w.run(10);
        resize(&mut w, "p", &one("7", "1Gi"));
        w.run(5);
        // The spec asks for what there is not: a restarted kubelet does not take that for what it had given.
        w.restart_kubelet();
        w.run(20);
        assert_eq!(told(&w, "p", "PodResizePending"), Some(("Deferred".into(), 2)), "seed {seed}");
        assert_eq!((runs_with(&w, "p", "c").0, told_of(&w, "ResizeDeferred")), (300_000, 1), "seed {seed}");
        w.create("r", one("1", "1Gi"));
        w.run(10);
        assert_eq!(w.node.running("uid-r").len(), 1, "seed {seed}: there is room for what nobody has");
        // Neither does one that finds no such file, but what it had recorded of the pod.
        (w.node.allocated, w.node.actuated) = (None, None);
        w.restart_kubelet();
        w.run(20);
        assert_eq!(told(&w, "p", "PodResizePending").map(|(r, _)| r).as_deref(), DEFERRED, "seed {seed}");
        assert_eq!((runs_with(&w, "p", "c").0, runs_with(&w, "q", "c").0), (300_000, 400_000), "seed {seed}");
        assert!(w.node.allocated.is_some() && w.node.actuated.is_some(), "seed {seed}");
        // One that knows nothing at all gives what runs what it asks for.
        (w.node.allocated, w.node.actuated) = (None, None);
        w.node.records.clear();
        w.restart_kubelet();
        w.run(20);
        assert_eq!((told(&w, "p", "PodResizePending"), shown(&w, "p").0), (None, "7".into()), "seed {seed}");
    });
}

#[test]
fn sidecars_and_whole_pods_have_sizes_too() {
    let spec = |sidecar: &str, whole: &str| {
        json!({"terminationGracePeriodSeconds": 1, "resources": sized(whole, "4Gi"),
            "initContainers": [{"name": "s", "image": "busybox", "restartPolicy": "Always", "resources": sized(sidecar, "1Gi")}],
            "containers": [container("c", &sized("1", "1Gi"), &Value::Null)]})
    };
    let mut w = started(5);
    w.create("p", spec("1", "3"));
    w.run(10);
    assert_eq!((group(&w, "p").cpu_quota_us, runs_with(&w, "p", "s").0), (300_000, 100_000));
    resize(&mut w, "p", &spec("2", "4"));
    w.run(5);
    assert_eq!((group(&w, "p").cpu_quota_us, runs_with(&w, "p", "s")), (400_000, (200_000, 1 << 30, 0)));
    let status = &w.api.objects[POD]["status"];
    assert_eq!(status["resources"]["limits"]["cpu"], "4");
    assert_eq!(status["allocatedResources"]["cpu"], "4");
    assert_eq!(status["initContainerStatuses"][0]["resources"]["limits"]["cpu"], "2");
    // Of the pod as a whole alone.
    resize(&mut w, "p", &spec("2", "5"));
    w.run(5);
    assert_eq!((group(&w, "p").cpu_quota_us, told(&w, "p", "PodResizeInProgress")), (500_000, None));
    assert_eq!(w.api.objects[POD]["status"]["resources"]["limits"]["cpu"], "5");
}

#[test]
fn who_crashes_with_one_size_is_not_waited_for_with_another() {
    let mut w = started(4);
    w.create("p", one("1", "1Gi"));
    w.run(10);
    for _ in 0..3 {
        let now = w.now;
        if let Some(c) = w.node.running("uid-p").get("c").cloned() {
            w.node.exit(now, &c, 137);
        }
        w.run(12);
    }
    assert!(w.node.running("uid-p").is_empty(), "it waits");
    resize(&mut w, "p", &one("1", "2Gi"));
    w.run(3);
    assert_eq!(runs_with(&w, "p", "c").1, 2 << 30);
}
