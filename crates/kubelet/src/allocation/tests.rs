//! Tables for what is allocated, decided and done, and its forms on disk.

use super::*;
use crate::amount::Amounts;
use crate::runtime::Uid;
use carrack_engine::Time;
use serde_json::{Value, json};

fn pod(spec: Value) -> Arc<Pod> {
    let metadata = json!({"name": "p", "namespace": "n", "uid": "u", "generation": 2});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a pod"))
}

fn sized(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn one(cpu: &str, memory: &str) -> Arc<Pod> {
    pod(json!({"containers": [{"name": "a", "resources": sized(cpu, memory)}]}))
}

#[test]
fn a_pod_is_as_it_is_allocated() {
    let containers = |cpu: &str| {
        json!({"initContainers": [{"name": "i", "resources": sized(cpu, "1Gi")},
                                  {"name": "s", "restartPolicy": "Always", "resources": sized(cpu, "1Gi")}],
               "containers": [{"name": "a", "resources": sized(cpu, "1Gi")}], "resources": sized(cpu, "9Gi")})
    };
    let (small, large) = (pod(containers("1")), pod(containers("2")));
    let allocation = Allocation::of(&small);
    let names: Vec<_> = allocation.containers.keys().map(String::as_str).collect();
    assert_eq!(names, ["a", "s"], "an init container that ends is not resized");
    assert!(Arc::ptr_eq(&allocation.applied(&small), &small) && allocation.differs(&large));
    let applied = allocation.applied(&large);
    let cpu = |pod: &Pod, path: &str| serde_json::to_value(pod).expect("JSON").pointer(path).cloned();
    for (path, expected) in [
        ("/spec/containers/0/resources/requests/cpu", "1"),
        ("/spec/initContainers/1/resources/limits/cpu", "1"),
        ("/spec/resources/limits/cpu", "1"),
        ("/spec/initContainers/0/resources/limits/cpu", "2"),
    ] {
        assert_eq!(cpu(&applied, path), Some(expected.into()), "{path}");
    }
    // The same amount, written in another way.
    assert!(!Allocation::of(&one("1", "1Gi")).differs(&one("1000m", "1024Mi")));
}

#[test]
fn what_can_never_be() {
    const NOTHING: (bool, bool) = (false, false);
    let node: Amounts = [("cpu".to_owned(), 4000), ("memory".to_owned(), 8_000_000)].into();
    let allocated = Allocation::of(&one("1", "1k"));
    let mut of_manifest = Pod::clone(&one("2", "1k"));
    let hash = "0".repeat(32);
    let annotations = [("kubernetes.io/config.source", "file"), ("kubernetes.io/config.hash", hash.as_str())];
    of_manifest.metadata.annotations = Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    of_manifest.metadata.uid = Some(hash);
    let burstable = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}));
    for (what, desired, has_its_own, expected) in [
        ("fits", one("4", "8k"), NOTHING, None),
        (
            "CPUs",
            one("5", "8k"),
            NOTHING,
            Some("Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000"),
        ),
        (
            "memory",
            one("5", "9k"),
            NOTHING,
            Some("Node didn't have enough capacity: memory, requested: 9000, capacity: 8000"),
        ),
        ("static", Arc::new(of_manifest), NOTHING, Some("In-place resize of static-pods is not supported")),
        (
            "own CPUs",
            one("2", "1k"),
            (true, false),
            Some("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""),
        ),
        (
            "memory of its own",
            one("1", "2k"),
            (true, true),
            Some("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\""),
        ),
        ("CPUs beside memory of its own", one("2", "1k"), (false, true), None),
        ("memory beside own CPUs", one("1", "2k"), (true, false), None),
        ("shared CPUs", burstable, (true, false), None),
    ] {
        let verdict = infeasible(&desired, &allocated, &node, has_its_own).map(|(message, _)| message);
        assert_eq!(verdict.as_deref(), expected, "{what}");
    }
}

#[test]
fn who_waits_has_a_place() {
    let at = |s| Some(Time::from_unix_s(s));
    let has = one("1", "1k");
    let with = |cpu: &str, priority: i32| {
        let mut pod = Pod::clone(&one(cpu, "1k"));
        pod.spec.as_mut().expect("a spec").priority = Some(priority);
        pod
    };
    let burstable = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}));
    let in_order = [
        Rank::of(&with("500m", 0), &has, None),
        Rank::of(&with("2", 7), &has, None),
        Rank::of(&with("2", 0), &has, at(1)),
        Rank::of(&with("2", 0), &has, at(2)),
        Rank::of(&with("2", 0), &has, None),
        Rank::of(&burstable, &has, at(0)),
    ];
    assert!(in_order.is_sorted(), "{in_order:?}");
}

#[test]
fn states_are_as_upstream_writes_them() {
    let allocated: BTreeMap<Uid, Allocation> = [("u".into(), Allocation::of(&one("1", "1Gi")))].into();
    let bytes = encode_allocated(&allocated);
    let file: Value = serde_json::from_slice(&bytes).expect("JSON");
    let container = r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}}"#;
    let data =
        format!(r#"{{"entries":{{"u":{{"ContainerResources":{{"a":{container}}},"PodLevelResources":null}}}}}}"#);
    assert_eq!(file["data"], data);
    assert_eq!(file["checksum"], hash_of(&data));
    assert_eq!(decode_allocated(&bytes).expect("a state"), allocated);
    let given = Given { id: "c1".into(), resources: allocated["u"].containers["a"].clone() };
    let actuated: BTreeMap<Uid, Actuated> = [(
        "u".into(),
        Actuated {
            containers: [("a".to_owned(), given)].into(),
            pod: None,
            group: Some(GroupLimits { memory_limit_bytes: 1 << 30, ..GroupLimits::default() }),
            restarting: ["c0".to_owned()].into(),
            unsure: ["c1".to_owned()].into(),
        },
    )]
    .into();
    assert_eq!(decode_actuated(&encode_actuated(&actuated)).expect("a state"), actuated);
    // What upstream wrote does not say which container it was.
    let of_upstream = decode_actuated(&bytes).expect("a state");
    assert_eq!((of_upstream["u"].containers["a"].id.as_str(), of_upstream["u"].group), ("", None));
    assert!(decode_allocated(b"{").is_err() && decode_allocated(br#"{"data":"x","checksum":1}"#).is_err());
    assert_eq!(decode_allocated(&encode_allocated(&BTreeMap::new())).expect("a state"), BTreeMap::new());
}

fn hash_of(data: &str) -> u64 {
    crate::devices::hash_of_print(&format!("(string){data}"))
}

/// A change in the short form `name:cpu/memory>cpu/memory`, limits and CPU requests in thousandths.
fn change(text: &str) -> Change {
    let (name, rest) = text.split_once(':').expect("a name");
    let (from, to) = rest.split_once('>').expect("two sizes");
    let size = |text: &str| {
        let (cpu, memory) = text.split_once('/')?;
        let (cpu, memory) = (cpu.parse().ok()?, memory.parse().ok()?);
        Some(Size { cpu_request: cpu, cpu_limit: cpu, memory_request: memory, memory_limit: memory })
    };
    let to = size(to).expect("a size");
    Change { name: name.into(), id: format!("{name}-id"), from: size(from), to, limits: Resources::default() }
}

#[test]
fn groups_grow_first_and_shrink_last() {
    let group = |quota, memory| GroupLimits {
        cpu_period_us: 100_000,
        cpu_quota_us: quota,
        cpu_shares: 100,
        memory_limit_bytes: memory,
    };
    let text = |steps: &[Step]| {
        let one = |step: &Step| match step {
            Step::Group(g) => format!("group {}/{}", g.cpu_quota_us, g.memory_limit_bytes),
            Step::Container(c) => c.name.clone(),
        };
        steps.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    for (now, target, changes, expected) in [
        (group(10, 10), group(20, 20), &["a:1/1>2/2"][..], "group 20/20, a"),
        (group(20, 20), group(10, 10), &["a:2/2>1/1"], "a, group 10/10"),
        (group(10, 20), group(20, 10), &["a:1/2>2/1"], "group 20/20, a, group 20/10"),
        (group(10, 10), group(10, 10), &["a:1/1>2/2", "b:2/2>1/1"], "b, a"),
        // What has no limit has more than any; and a limit that is there stays.
        (group(0, 0), group(10, 10), &["a:0/0>1/1"], "a, group 10/10"),
        (group(10, 10), group(0, 0), &["a:1/1>2/2"], "a"),
        (group(10, 10), group(10, 10), &["a:>1/1"], "a"),
        (group(10, 10), group(10, 10), &[], ""),
    ] {
        let changes: Vec<Change> = changes.iter().map(|text| change(text)).collect();
        assert_eq!(text(&steps(Some(&now), &target, changes.clone())), expected, "{now:?} {target:?}");
        let alone = steps(None, &target, changes.clone());
        assert!(alone.iter().all(|step| matches!(step, Step::Container(_))) && alone.len() == changes.len());
    }
}

#[test]
fn memory_in_use_is_not_taken() {
    let group = |memory_limit_bytes| GroupLimits { memory_limit_bytes, ..GroupLimits::default() };
    let read = |limit, used: u64, of_a: u64| Reading {
        limits: Some(group(limit)),
        memory_bytes: Some(used),
        containers: [("a-id".to_owned(), of_a)].into(),
    };
    let pod = "attempting to set pod memory limit (50) below current usage (60)";
    let a = "attempting to set container \"a\" memory limit (50) below current usage (55)";
    for (read, target, changes, expected) in [
        (read(100, 60, 10), 50, "a:1/100000>1/50000", Some(format!("cannot decrease memory limits: {pod}"))),
        (read(100, 40, 55), 50, "a:1/100000>1/50000", Some(format!("cannot decrease memory limits: {a}"))),
        (read(100, 60, 55), 50, "a:1/100000>1/50000", Some(format!("cannot decrease memory limits: [{pod}, {a}]"))),
        (read(100, 40, 40), 50, "a:1/100000>1/50000", None),
        // Nothing is taken.
        (read(40, 60, 60), 50, "a:1/40000>1/50000", None),
        (read(50, 60, 60), 50, "a:1/50000>2/50000", None),
    ] {
        assert_eq!(held_back(&read, &group(target), &[change(changes)]), expected, "{read:?} {target} {changes}");
    }
}

#[test]
fn policies_say_what_starts_again() {
    let container = |policies: Value| -> Container {
        serde_json::from_value(json!({"name": "a", "resizePolicy": policies})).expect("a container")
    };
    let policy = |resource: &str, policy: &str| json!([{"resourceName": resource, "restartPolicy": policy}]);
    let (from, cpu, memory) = ("1/1", "2/1", "1/2");
    for (policies, to, expected) in [
        (json!(null), cpu, false),
        (policy("cpu", "NotRequired"), cpu, false),
        (policy("cpu", "RestartContainer"), cpu, true),
        (policy("cpu", "RestartContainer"), memory, false),
        (policy("memory", "RestartContainer"), memory, true),
    ] {
        let change = change(&format!("a:{from}>{to}"));
        let from = change.from.expect("a size");
        assert_eq!(from.needs_restart(change.to, &container(policies.clone())), expected, "{policies} {to}");
    }
}

#[test]
fn events_tell_all_sizes() {
    let text = summary(&one("1", "1Gi"), 2, "", "Pod resize started");
    let resources = r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}}"#;
    let containers = format!(r#"{{"containers":[{{"name":"a","resources":{resources}}}],"generation":2"#);
    assert_eq!(text, format!("Pod resize started: {containers}}}"));
    let text = summary(&one("1", "1Gi"), 2, "no", "Pod resize error");
    assert_eq!(text, format!("Pod resize error: {containers},\"error\":\"no\"}}"));
}
