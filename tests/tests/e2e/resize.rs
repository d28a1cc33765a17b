//! Pods that get another size while they run: their control groups on the machine, their containers in containerd.

use std::path::{Path, PathBuf};

use carrack_e2e::{Kubectl, Sandbox, assert_contains, eventually, eventually_true};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A pod whose one container says how often it has started, and has so many thousandths of a CPU and MiB.
fn pod(name: &str, milli: u64, mib: u64, memory_policy: &str) -> String {
    let size = json!({"cpu": format!("{milli}m"), "memory": format!("{mib}Mi")});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": "localhost/carrack/busybox:0.1.0", "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.2; done"],
            "env": [{"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}}],
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": memory_policy}],
            "resources": {"requests": size, "limits": size},
            "volumeMounts": [{"name": "about", "mountPath": "/about"}]}],
        "volumes": [{"name": "about", "downwardAPI": {"items": [{"path": "limit",
            "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}}]}}]}})
    .to_string()
}

fn resize(kubectl: &Kubectl<'_>, name: &str, milli: u64, mib: u64) {
    let size = json!({"cpu": format!("{milli}m"), "memory": format!("{mib}Mi")});
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": size, "limits": size}}]}});
    kubectl.ok(&["patch", "pod", name, "--subresource", "resize", "--patch", &patch.to_string()]);
}

/// A directory below this one, by its name.
fn below(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).find_map(|path| if path.ends_with(name) { Some(path) } else { below(&path, name) })
}

/// The quota of the CPUs in thousandths of one, and the memory in MiB, of a control group.
fn limits(path: &str) -> Option<(u64, u64)> {
    let root = Path::new("/sys/fs/cgroup");
    let read = |dir: &Path, file: &str| std::fs::read_to_string(dir.join(file)).ok();
    let number = |text: Option<String>| text?.split_whitespace().next()?.parse::<u64>().ok();
    let group = |controller: &Path| {
        path.split('/').try_fold(controller.to_owned(), |dir, name| below(&dir, name).filter(|dir| dir.is_dir()))
    };
    if root.join("cgroup.controllers").exists() {
        let dir = group(root)?;
        return Some((number(read(&dir, "cpu.max"))? / 100, number(read(&dir, "memory.max"))? / MIB));
    }
    let (cpu, memory) = (group(&root.join("cpu"))?, group(&root.join("memory"))?);
    Some((number(read(&cpu, "cpu.cfs_quota_us"))? / 100, number(read(&memory, "memory.limit_in_bytes"))? / MIB))
}

/// What the machine gives a pod, and its container.
fn given(kubectl: &Kubectl<'_>, name: &str) -> Result<[(u64, u64); 2], String> {
    let object = kubectl.get("pod", name).ok_or("there is no such pod")?;
    let text = |place: &str| object.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned();
    let group = format!("pod{}", text("/metadata/uid"));
    let id = text("/status/containerStatuses/0/containerID");
    let id = id.rsplit('/').next().unwrap_or_default();
    let of = |path: &str| limits(path).ok_or(format!("no group {path}"));
    Ok([of(&group)?, of(&format!("{group}/{id}"))?])
}

fn has(kubectl: &Kubectl<'_>, name: &str, milli: u64, mib: u64) {
    eventually(&format!("{name} has {milli}m and {mib}Mi"), 60, || {
        let given = given(kubectl, name)?;
        if given == [(milli, mib); 2] { Ok(()) } else { Err(format!("{given:?}")) }
    });
    eventually(&format!("the status of {name} tells so"), 60, || {
        let status = kubectl.field("pod", name, "/status");
        let c = &status["containerStatuses"][0];
        let told = [&c["resources"]["limits"], &c["resources"]["requests"], &c["allocatedResources"]];
        let size = json!({"cpu": format!("{milli}m"), "memory": format!("{mib}Mi")});
        let same = told.iter().all(|told| **told == size);
        let settled = !status["conditions"].to_string().contains("PodResize");
        if same && settled { Ok(()) } else { Err(status.to_string()) }
    });
}

/// The container's id, when it started, and how often.
fn life(kubectl: &Kubectl<'_>, name: &str) -> [Value; 3] {
    let c = kubectl.field("pod", name, "/status/containerStatuses/0");
    [c["containerID"].clone(), c["state"]["running"]["startedAt"].clone(), c["restartCount"].clone()]
}

fn pending(kubectl: &Kubectl<'_>, name: &str, reason: &str, message: &str) {
    eventually(&format!("{name} is told {reason}"), 60, || {
        let conditions = kubectl.field("pod", name, "/status/conditions");
        let c = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "PodResizePending");
        let c = c.ok_or_else(|| conditions.to_string())?;
        let told = c["message"].as_str().unwrap_or_default();
        let same = c["reason"] == reason && c["status"] == "True" && c["observedGeneration"].is_i64();
        if same && told.contains(message) { Ok(()) } else { Err(c.to_string()) }
    });
}

#[test]
fn pods_get_another_size_while_they_run() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let cpu = kubectl.field("node", &node, "/status/allocatable/cpu").as_str().unwrap_or_default().to_owned();
    let room = cpu.strip_suffix('m').map_or_else(|| cpu.parse::<u64>().map(|cpus| cpus * 1000), str::parse);
    let room = room.unwrap_or_else(|error| panic!("{cpu}: {error}"));

    // Up and down, and nothing of it starts anew.
    for (name, milli) in [("p", 200), ("q", 100)] {
        kubectl.apply(&pod(name, milli, 64, "NotRequired"));
        kubectl.ok(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"]);
        has(&kubectl, name, milli, 64);
    }
    let before = life(&kubectl, "p");
    for (milli, mib) in [(400, 128), (150, 96), (300, 32)] {
        resize(&kubectl, "p", milli, mib);
        has(&kubectl, "p", milli, mib);
        assert_eq!(life(&kubectl, "p"), before, "{milli}m {mib}Mi");
    }
    let env = kubectl.ok(&["exec", "p", "--", "sh", "-c", "echo $LIMIT"]);
    assert_eq!(env.trim(), "64", "the environment of what runs stays");
    eventually_true("the downward volume tells the new limit", 120, || {
        kubectl.ok(&["exec", "p", "--", "cat", "/about/limit"]).trim() == "32"
    });
    eventually("it was told", 30, || {
        let events = kubectl.ok(&["get", "events", "-o", "jsonpath={.items[*].reason}"]);
        let all = ["ResizeStarted", "ResizeCompleted"].iter().all(|reason| events.contains(reason));
        if all { Ok(()) } else { Err(events) }
    });

    // Where the policy says so, it starts anew, once.
    kubectl.apply(&pod("r", 100, 64, "RestartContainer"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/r", "--timeout=60s"]);
    let first = life(&kubectl, "r");
    resize(&kubectl, "r", 150, 64);
    has(&kubectl, "r", 150, 64);
    assert_eq!(life(&kubectl, "r"), first, "its CPUs do not need that");
    resize(&kubectl, "r", 150, 96);
    has(&kubectl, "r", 150, 96);
    eventually_true("it was started anew", 60, || life(&kubectl, "r")[2] == 1);
    assert_eq!(kubectl.ok(&["exec", "r", "--", "sh", "-c", "echo $LIMIT"]).trim(), "96");
    kubectl.ok(&["delete", "pod", "r", "--timeout=60s"]);

    // What the node has not is told; what others have is waited for, over the deaths of the agent.
    resize(&kubectl, "p", room + 1000, 32);
    pending(&kubectl, "p", "Infeasible", "Node didn't have enough capacity: cpu, requested:");
    kubectl.apply(&pod("s", room / 2, 64, "NotRequired"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/s", "--timeout=60s"]);
    let wanted = room / 2 + 100;
    resize(&kubectl, "p", wanted, 32);
    pending(&kubectl, "p", "Deferred", "Node didn't have enough resource: cpu, requested:");
    assert_eq!(given(&kubectl, "p").map(|given| given[1]), Ok((300, 32)));
    let lives = || ["p", "q", "s"].map(|name| life(&kubectl, name));
    let before = lives();
    sandbox.kill_9();
    for file in ["allocated_pods_state", "actuated_pods_state"] {
        let text = std::fs::read_to_string(sandbox.data_dir().join("kubelet").join(file));
        assert_contains(&text.unwrap_or_else(|error| panic!("{file}: {error}")), &["ContainerResources", "checksum"]);
    }
    sandbox.start(&[]);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"]);
    pending(&kubectl, "p", "Deferred", "Node didn't have enough resource: cpu, requested:");
    assert_eq!(given(&kubectl, "p").map(|given| given[1]), Ok((300, 32)));
    assert_eq!(lives(), before);
    let metrics = kubectl.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")]);
    assert_contains(&metrics, &["kubelet_pod_pending_resizes{reason=\"deferred\"} 1"]);
    kubectl.ok(&["delete", "pod", "s", "--timeout=60s"]);
    has(&kubectl, "p", wanted, 32);
    assert_eq!([life(&kubectl, "p"), life(&kubectl, "q")], [before[0].clone(), before[1].clone()]);

    // And killed in the middle of it.
    for (milli, mib) in [(300, 64), (500, 128)] {
        resize(&kubectl, "p", milli, mib);
        sandbox.kill_9();
        sandbox.start(&[]);
        has(&kubectl, "p", milli, mib);
    }
    assert_eq!(life(&kubectl, "p"), before[0]);
    kubectl.ok(&["delete", "pod", "p", "q", "--timeout=60s"]);
}
