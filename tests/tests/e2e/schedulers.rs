//! Two schedulers with one Lease, as processes of their own: one works, the other takes over, a leader that hung goes on
//! when it leads again, and each tells its metrics to those who may read them.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::process::Child;

use carrack_e2e::{Kubectl, Sandbox, assert_contains, eventually_true};
use serde_json::{Value, json};

fn apply(kubectl: &Kubectl<'_>, object: &Value) {
    kubectl.run(&["create", "-f", "-"]).input(object.to_string()).done();
}

/// Makes a pod, and waits until it has a node.
fn bound(kubectl: &Kubectl<'_>, name: &str) {
    apply(
        kubectl,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "10m"}}}]}}),
    );
    eventually_true(&format!("{name} has a node"), 30, || kubectl.field("pod", name, "/spec/nodeName") == "a");
}

fn signal(process: &Child, signal: &str) {
    let done = std::process::Command::new("sh").args(["-c", &format!("kill -{signal} {}", process.id())]).status();
    assert!(done.expect("sh runs").success());
}

#[test]
fn a_leader_that_hung_goes_on_and_metrics_are_told() {
    let sandbox = Sandbox::new();
    let mut api = sandbox.carrack(&["apiserver", "--bind-address", "127.0.0.1"]).spawn();
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 60, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });
    apply(&kubectl, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}));
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "20"});
    apply(
        &kubectl,
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "status": {"capacity": room, "allocatable": room}}),
    );
    // A node is tainted from its creation, until a controller finds that its agent is ready. Here is neither.
    kubectl.ok(&["taint", "nodes", "--all", "node.kubernetes.io/not-ready:NoSchedule-"]);
    let role = sandbox.home().join("scheduler.yaml").display().to_string();
    std::fs::write(&role, sandbox.carrack(&["kubeconfig", "--user", "scheduler"]).ok()).expect("written");
    let scheduler = |port: &str| {
        let arguments = ["scheduler", "--kubeconfig", &role, "--leader-elect", "--secure-port", port];
        sandbox.carrack(&arguments).spawn()
    };
    let leads = |port: u16| {
        sandbox.page(port, "/metrics", true).0.contains("leader_election_master_status{name=\"kube-scheduler\"} 1")
    };
    let mut first = scheduler("10259");
    eventually_true("the first one leads", 30, || leads(10259));
    let mut second = scheduler("10260");
    eventually_true("the second one is well", 30, || sandbox.page(10260, "/healthz", false).1 == "200");
    bound(&kubectl, "one");
    assert!(!leads(10260));

    let (text, code) = sandbox.page(10259, "/metrics", true);
    assert_eq!(code, "200");
    assert_contains(
        &text,
        &[
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_pending_pods{queue=\"active\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"default-scheduler\",result=\"scheduled\",le=\"+Inf\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"1\"} 1",
            "scheduler_queue_incoming_pods_total{event=\"UnschedulablePodAdd\",queue=\"active\"} 1",
            "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Bind\"",
            "scheduler_scheduling_algorithm_duration_seconds_count 1",
            "# TYPE scheduler_preemption_victims histogram",
        ],
    );
    for (path, as_admin, expected) in [
        ("/metrics", false, "401"),
        ("/nothing", false, "401"),
        ("/nothing", true, "404"),
        ("/livez", false, "200"),
        ("/readyz", false, "200"),
        ("/livez?verbose", false, "200"),
        ("/readyz/core", false, "401"),
        ("/readyz/core", true, "200"),
        ("/readyz/etcd", true, "404"),
    ] {
        assert_eq!(sandbox.page(10259, path, as_admin).1, expected, "{path}, as the administrator: {as_admin}");
    }

    // It hangs: the other one works. It goes on: it is still there, and knows what happened.
    signal(&first, "STOP");
    eventually_true("the second one leads", 30, || leads(10260));
    bound(&kubectl, "two");
    signal(&first, "CONT");
    eventually_true("the first one is well again", 30, || sandbox.page(10259, "/healthz", false).1 == "200");
    assert!(!leads(10259));
    second.kill().and_then(|()| second.wait()).expect("it was ours");
    eventually_true("the first one leads again", 30, || leads(10259));
    bound(&kubectl, "three");
    let (text, _) = sandbox.page(10259, "/metrics", true);
    assert_contains(&text, &["scheduler_cache_size{type=\"pods\"} 3", "scheduler_pod_scheduling_attempts_count 2"]);
    assert!(first.try_wait().expect("it is ours").is_none(), "the process was never started again");
    for child in [&mut first, &mut api] {
        child.kill().and_then(|()| child.wait()).expect("it was ours");
    }
}
