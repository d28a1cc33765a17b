//! Incident 1 on real parts: the node loses power under pods with devices and a machine, and its plugins come back at
//! once or late. No pod is rejected for good, none hangs in deletion, devices are right. And the agent alone may
//! restart as often as it likes.

use carrack_e2e::{Kubectl, Plugin, Sandbox, eventually, eventually_true, root, stays};
use serde_json::Value;

const RESOURCE: &str = "test.carrack.io/widget";
const DEVICES: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];

fn plugin(sandbox: &Sandbox) -> Plugin {
    Plugin::start(&sandbox.data_dir().join("kubelet/device-plugins"), RESOURCE, &DEVICES)
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 3\n  \
         containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"while :; do sleep 1; done\"]\n    resources:\n      limits:\n        {RESOURCE}: 1\n"
    )
}

fn wait_ready(kubectl: &Kubectl<'_>, name: &str) {
    kubectl.ok(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=90s"]);
}

fn offers(kubectl: &Kubectl<'_>, count: usize) {
    eventually("the node offers the devices", 60, || {
        let text = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.allocatable}"]);
        let all: Value = serde_json::from_str(&text).unwrap_or_default();
        if all[RESOURCE].as_str().and_then(|n| n.parse().ok()) == Some(count) { Ok(()) } else { Err(text) }
    });
}

/// The device that a running pod holds, as its plugin told its container.
fn device(kubectl: &Kubectl<'_>, name: &str) -> String {
    kubectl.ok(&["exec", name, "--", "sh", "-c", "echo $TEST_DEVICES"]).trim().to_owned()
}

fn no_rejection(kubectl: &Kubectl<'_>) {
    let events = kubectl.ok(&["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"]);
    let pods = kubectl.ok(&["get", "pods", "-A", "-o", "jsonpath={.items[*].status.reason}"]);
    for text in [events, pods] {
        for reason in ["UnexpectedAdmissionError", "ResourceNotReady", "OutOf", "NodeAffinity"] {
            assert!(!text.contains(reason), "{reason} in {text}");
        }
    }
}

/// How long plugins stay away after each power cut, in seconds. `CARRACK_PLUGINS_AWAY=0,30,200` takes some minutes.
fn absences() -> Vec<u64> {
    let told = std::env::var("CARRACK_PLUGINS_AWAY").unwrap_or_else(|_| "0,1".to_owned());
    let read = |seconds: &str| seconds.trim().parse().ok();
    let read: Option<Vec<u64>> = told.split(',').map(read).collect();
    assert!(read.is_some(), "{told}: not seconds with commas between them");
    read.unwrap_or_default()
}

/// One power cut with pods that are deleted before it, during it, after it, and not at all. Their plugin is away for so many seconds.
fn cut(sandbox: &Sandbox, held: Plugin, away_s: u64) -> Plugin {
    let kubectl = sandbox.kubectl();
    for name in ["before", "during", "after"] {
        kubectl.apply(&pod(name));
    }
    for name in ["before", "during", "after", "stays"] {
        wait_ready(&kubectl, name);
    }
    let uid = kubectl.field("pod", "stays", "/metadata/uid");
    let boot = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.bootID}"]);

    kubectl.ok(&["delete", "pod", "before", "--wait=false"]);
    sandbox.cut_power();
    drop(held);
    let early = (away_s == 0).then(|| plugin(sandbox));
    sandbox.start(&[]);
    // What the node said before the power cut stands until it says something else.
    eventually_true("the node tells of another boot", 30, || {
        kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.bootID}"]) != boot
    });
    kubectl.ok(&["delete", "pod", "during", "--wait=false"]);
    // Deletion needs no plugin.
    for name in ["before", "during"] {
        eventually_true("a deleted pod is gone", 60, || kubectl.get("pod", name).is_none());
    }
    let waits = || {
        let state = kubectl.field("pod", "stays", "/status/containerStatuses/0/state/waiting/message");
        let text = state.as_str().unwrap_or_default().to_owned();
        let is_over = kubectl.field("pod", "stays", "/status/phase") == "Failed";
        if text.contains(RESOURCE) && !is_over { Ok(()) } else { Err(text) }
    };
    let held = early.unwrap_or_else(|| {
        eventually("it says what it waits for", 60, waits);
        stays("it waits", away_s, waits);
        plugin(sandbox)
    });
    for name in ["stays", "after"] {
        wait_ready(&kubectl, name);
    }
    assert_ne!(device(&kubectl, "stays"), device(&kubectl, "after"));
    assert!(DEVICES.contains(&device(&kubectl, "stays").as_str()));
    assert_eq!(kubectl.field("pod", "stays", "/metadata/uid"), uid);
    kubectl.ok(&["delete", "pod", "after", "--timeout=60s"]);
    no_rejection(&kubectl);
    held
}

#[test]
fn after_a_power_cut_pods_with_devices_run_again_or_go() {
    let sandbox = Sandbox::up(&["busybox", "demo"]);
    let kubectl = sandbox.kubectl();
    let mut held = plugin(&sandbox);
    offers(&kubectl, DEVICES.len());
    kubectl.apply(&pod("stays"));
    let machine = std::fs::read_to_string(root().join("examples/vm.yaml")).expect("the example");
    // In the end it has just begun to boot, and does not hear the power button yet.
    kubectl.apply(&machine.replace("terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 2"));
    let running = || kubectl.field("vmi", "demo", "/status/phase") == "Running";
    eventually_true("the machine runs", 120, running);
    let mut before = kubectl.field("vmi", "demo", "/metadata/uid");
    for away_s in absences() {
        held = cut(&sandbox, held, away_s);
        let now = || kubectl.field("vmi", "demo", "/metadata/uid");
        eventually_true("the machine runs again", 180, || running() && now() != before);
        before = now();
    }
    no_rejection(&kubectl);
    kubectl.ok(&["delete", "vm", "demo", "--timeout=120s"]);
    kubectl.ok(&["delete", "pod", "--all", "--timeout=60s"]);
    drop(held);
}

/// What must not change of a pod while agents come and go.
fn identity(kubectl: &Kubectl<'_>, name: &str) -> Vec<Value> {
    let object = kubectl.get("pod", name).unwrap_or_default();
    let status = "/status/containerStatuses/0";
    ["/metadata/uid", "/status/podIP", &format!("{status}/containerID"), &format!("{status}/restartCount")]
        .into_iter()
        .chain([format!("{status}/state/running/startedAt").as_str()])
        .map(|pointer| object.pointer(pointer).cloned().unwrap_or_default())
        .collect()
}

/// `CARRACK_RESTARTS` says how often; a hundred times takes some minutes.
#[test]
fn agent_restarts_leave_start_times_unchanged() {
    let restarts = std::env::var("CARRACK_RESTARTS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let _held = plugin(&sandbox);
    offers(&kubectl, DEVICES.len());
    kubectl.apply(&pod("device"));
    kubectl.apply(&pod("plain").replace(&format!("{RESOURCE}: 1"), "cpu: 10m"));
    let names = ["device", "plain"];
    for name in names {
        wait_ready(&kubectl, name);
    }
    let before = names.map(|name| identity(&kubectl, name));
    assert!(before.iter().flatten().all(|value| !value.is_null()), "{before:?}");
    for round in 1..=restarts {
        sandbox.kill_9();
        sandbox.start(&[]);
        for (name, before) in names.into_iter().zip(&before) {
            wait_ready(&kubectl, name);
            assert_eq!(identity(&kubectl, name), *before, "{name} after {round} restarts");
        }
    }
    assert_eq!(device(&kubectl, "device").len(), 2);
    no_rejection(&kubectl);
    kubectl.ok(&["delete", "pod", "--all", "--timeout=60s"]);
}
