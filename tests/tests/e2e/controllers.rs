#![expect(clippy::disallowed_methods, reason = "measures how long the controllers take")]
#![expect(clippy::expect_used, reason = "a test fails by panicking, and its inputs are its own")]
//! The controllers as processes of their own, on objects that no kubelet looks after: what they write is what upstream's
//! write, and when the one that acts is killed or told to end, another one goes on, within three seconds.

use std::process::Child;
use std::time::{Duration, Instant};

use carrack_e2e::{Kubectl, Sandbox, eventually_true};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Writes an object's status, as its kubelet would.
fn set_status(kubectl: &Kubectl<'_>, path: &str, mut object: Value, status: Value) {
    object["status"] = status;
    let path = format!("{path}/status");
    kubectl.run(&["replace", "--raw", &path, "-f", "-"]).input(object.to_string()).done();
}

/// How long nobody may lead after a leader's end, beside what two requests take: who takes over reads the Lease, and writes it. On a
/// machine with much to do these are what takes longest.
const HAND_OVER: Duration = Duration::from_secs(3);

/// The controllers' Lease; an empty one where there is none yet.
fn lease(kubectl: &Kubectl<'_>) -> LeaseSpec {
    let lease = kubectl.run(&["-n", "kube-system", "get", "lease", "kube-controller-manager", "-o", "json"]).output();
    serde_json::from_str::<Lease>(&lease.stdout).ok().and_then(|lease| lease.spec).unwrap_or_default()
}

/// Who leads; nobody once the Lease was given back.
fn holder(lease: &LeaseSpec) -> Option<&str> {
    lease.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// Ends the leader, and waits until another one leads, which writes down since when: that is not to be long.
fn hand_over(kubectl: &Kubectl<'_>, leader: &mut Child, signal: Signal) {
    let before = lease(kubectl);
    let process = Pid::from_child(leader);
    let told = Timestamp::now();
    kill_process(process, signal).expect("it was ours");
    leader.wait().expect("it was ours");
    let mut now = LeaseSpec::default();
    let mut request = Duration::ZERO;
    eventually_true("another one leads", 30, || {
        let asked = Instant::now();
        now = lease(kubectl);
        request = request.max(asked.elapsed());
        holder(&now).is_some() && holder(&now) != holder(&before)
    });
    let acts = now.acquire_time.as_ref().expect("since when").0;
    let took = acts.duration_since(told);
    eprintln!("another one led {took:#} after {signal:?}; a request took {request:?}");
    assert!(took.unsigned_abs() < HAND_OVER + 2 * request, "nobody led for {took:#}: {before:?} and then {now:?}");
}

/// Nodes that nobody runs: they are silent from the start. An operator will say of one that it is gone.
const NODES: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: silent}\n---\n\
                     apiVersion: v1\nkind: Node\nmetadata: {name: lost}\n";

const OBJECTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec:
  nodeName: silent
  containers: [{name: c, image: none, ports: [{name: http, containerPort: 8080}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: lost}
spec:
  nodeName: lost
  containers: [{name: c, image: none}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 0, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 2Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: /none}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: ""
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
"#;

#[test]
fn what_controllers_write_without_a_kubelet_and_after_one_of_them_is_killed() {
    let sandbox = Sandbox::new();
    let mut api = sandbox.carrack(&["apiserver", "--bind-address", "127.0.0.1"]).spawn();
    let kubeconfig = sandbox.data_dir().join("kubeconfig.yaml");
    eventually_true("the API server made a kubeconfig", 30, || kubeconfig.exists());
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 30, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });
    let role = sandbox.home().join("controllers.yaml");
    std::fs::write(&role, sandbox.carrack(&["kubeconfig", "--user", "controllers"]).ok()).expect("written");
    let start = |port: &str| {
        let role = role.display().to_string();
        sandbox.carrack(&["controllers", "--kubeconfig", &role, "--secure-port", port]).spawn()
    };
    let mut first = start("10257");
    eventually_true("the first one leads", 30, || holder(&lease(&kubectl)).is_some());
    let mut second = start("0");

    kubectl.apply(NODES);
    let silent_since = Instant::now();
    eventually_true("the namespace has its service account", 30, || kubectl.get("serviceaccount", "default").is_some());
    kubectl.apply(OBJECTS);
    for (name, address) in [("web-0", "10.9.8.7"), ("lost", "10.9.8.8")] {
        let pod = kubectl.get("pod", name).expect("it was made");
        let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}]});
        set_status(&kubectl, &format!("/api/v1/namespaces/default/pods/{name}"), pod, status);
    }
    eventually_true("the claim is bound", 30, || kubectl.field("pvc", "data", "/status/phase") == "Bound");
    assert_eq!(kubectl.field("pvc", "data", "/spec/volumeName"), "disk");
    eventually_true("the volume is bound", 30, || kubectl.field("pv", "disk", "/status/phase") == "Bound");
    eventually_true("the service has its endpoint", 30, || {
        kubectl.field("endpoints", "web", "/subsets/0/addresses/0/ip") == "10.9.8.7"
    });
    assert_eq!(kubectl.field("endpoints", "web", "/subsets/0/ports/0/port"), 8080);
    let slices = kubectl.ok(&["get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "json"]);
    let slices: Value = serde_json::from_str(&slices).expect("JSON");
    assert_eq!(slices["items"][0]["endpoints"][0]["conditions"]["ready"], true, "{slices}");
    eventually_true("the budget allows one eviction", 30, || {
        kubectl.field("pdb", "web", "/status/disruptionsAllowed") == 1
    });

    let (text, code) = sandbox.page(10257, "/metrics", true);
    assert_eq!((code.as_str(), sandbox.page(10257, "/metrics", false).1.as_str()), ("200", "401"), "{text}");
    for line in [
        "# TYPE workqueue_depth gauge",
        "workqueue_unfinished_work_seconds{name=\"deployment\"} ",
        "workqueue_queue_duration_seconds_bucket{name=\"persistentvolume-controller\",le=\"1e-06\"} ",
        "workqueue_retries_total{name=\"namespace\"} ",
        "rest_client_requests_total{code=\"200\",host=\"",
        "rest_client_request_duration_seconds_bucket{host=\"",
    ] {
        assert!(text.lines().any(|told| told.starts_with(line)), "{line} in\n{text}");
    }
    let of_volumes = "workqueue_work_duration_seconds_count{name=\"persistentvolume-controller\"}";
    let done = text.lines().find(|line| line.starts_with(of_volumes));
    assert!(done.is_some_and(|line| !line.ends_with(" 0")), "{done:?}");

    // The one that leads is killed; the other goes on where it was.
    hand_over(&kubectl, &mut first, Signal::KILL);
    kubectl.ok(&["delete", "pvc", "data", "--timeout=30s"]);
    eventually_true("the volume is released", 30, || kubectl.field("pv", "disk", "/status/phase") == "Released");

    // One that is told to end gives the Lease back; its successor has the rest of this test to do.
    let mut third = start("0");
    hand_over(&kubectl, &mut second, Signal::TERM);

    // An operator says that a node is gone. Its pod goes when it has been gone for a while.
    kubectl.ok(&["delete", "node", "lost"]);

    // The other node was never heard: it says so, its pods are not ready, and nothing is evicted where nobody is heard.
    eventually_true("the node is unknown", 120, || {
        let node = kubectl.get("node", "silent").unwrap_or_default();
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "Unknown")
    });
    assert!(silent_since.elapsed() >= Duration::from_secs(50), "too soon: {:?}", silent_since.elapsed());
    eventually_true("the node is tainted", 30, || {
        let taints = kubectl.field("node", "silent", "/spec/taints");
        let has = |effect: &str| {
            taints.as_array().is_some_and(|all| {
                all.iter().any(|t| t["key"] == "node.kubernetes.io/unreachable" && t["effect"] == effect)
            })
        };
        assert!(!has("NoExecute"), "{taints}");
        has("NoSchedule")
    });
    eventually_true("its pod does not count as ready", 30, || {
        kubectl.field("endpoints", "web", "/subsets/0/notReadyAddresses/0/ip") == "10.9.8.7"
    });
    eventually_true("the pod of the node that is gone is gone", 90, || kubectl.get("pod", "lost").is_none());
    assert!(kubectl.get("pod", "web-0").is_some(), "its node is only silent");
    for child in [&mut third, &mut api] {
        child.kill().and_then(|()| child.wait()).expect("it was ours");
    }
}
