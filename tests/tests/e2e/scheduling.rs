//! The fourth incident's story with real processes: pods that ask for GPUs are scaled up through an extender that writes
//! its choice into their annotations in the middle of the cycle. Nodes are objects here; nothing has to run on them.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use carrack_e2e::{Kubectl, Sandbox, assert_contains, eventually, eventually_true};
use serde_json::{Value, json};

const PORT: u16 = 3456;
const CONFIG: &str = "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: gpu-scheduler
extenders:
- urlPrefix: http://127.0.0.1:3456/scheduler
  filterVerb: predicates
  httpTimeout: 10s
  nodeCacheCapable: true
  managedResources: [{name: tencent.com/vcuda-core}]
";

/// An extender as careless as the one of the incident: it annotates while it filters, and answers a question that it has
/// answered before with an empty list.
struct Extender<'a> {
    kubectl: Kubectl<'a>,
    taken: BTreeMap<String, u32>,
    asked: u32,
}

impl Extender<'_> {
    fn filter(&mut self, args: &Value) -> Value {
        self.asked += 1;
        let pod = &args["Pod"];
        let nothing = json!({"NodeNames": [], "FailedNodes": {}});
        if !pod["metadata"]["annotations"]["tencent.com/predicate-node"].is_null() {
            return nothing;
        }
        let names: Vec<&str> = args["NodeNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let Some(node) = names.iter().find(|n| self.taken.get(**n).copied().unwrap_or(0) < 2) else { return nothing };
        *self.taken.entry((*node).to_owned()).or_default() += 1;
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let patch = json!({"metadata": {"annotations": {"tencent.com/predicate-node": node}}}).to_string();
        self.kubectl.ok(&["patch", "pod", name, "--type=merge", "-p", &patch]);
        json!({"NodeNames": [node], "FailedNodes": {}})
    }

    fn serve(&mut self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let answer = self.filter(&serde_json::from_slice(&body)?).to_string();
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
            answer.len()
        )
    }
}

fn node(number: u32) -> Value {
    let name = format!("hollow-{number}");
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "20", "tencent.com/vcuda-core": "100"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room}})
}

fn pod(name: &str, scheduler: &str, gpu: bool) -> Value {
    let mut limits = json!({"cpu": "1"});
    if gpu {
        limits["tencent.com/vcuda-core"] = "50".into();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": scheduler, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}})
}

fn apply(kubectl: &Kubectl<'_>, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    kubectl.run(&["create", "-f", "-"]).input(list.to_string()).done();
}

fn all_bound(kubectl: &Kubectl<'_>, prefix: &str, count: usize) {
    eventually(&format!("all {count} pods {prefix}* are bound"), 90, || {
        let list: Value = serde_json::from_str(&kubectl.ok(&["get", "pods", "-o", "json"])).expect("JSON");
        let mine = list["items"].as_array().into_iter().flatten();
        let mine = mine.filter(|p| p["metadata"]["name"].as_str().is_some_and(|n| n.starts_with(prefix)));
        let bound = mine.filter(|p| !p["spec"]["nodeName"].is_null()).count();
        if bound == count { Ok(()) } else { Err(format!("{bound} are")) }
    });
}

#[test]
fn an_annotating_extender_loses_no_room() {
    let sandbox = Sandbox::new();
    let mut api = sandbox.carrack(&["apiserver", "--bind-address", "127.0.0.1"]).spawn();
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 60, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    apply(&kubectl, &[account]);
    apply(&kubectl, &(1..=5).map(node).collect::<Vec<_>>());
    // A node is tainted from its creation; a controller takes that away when its agent says that it is ready. Here is neither.
    kubectl.ok(&["taint", "nodes", "--all", "node.kubernetes.io/not-ready:NoSchedule-"]);

    let role = sandbox.home().join("scheduler.yaml");
    let config = sandbox.home().join("config.yaml");
    std::fs::write(&role, sandbox.carrack(&["kubeconfig", "--user", "scheduler"]).ok()).expect("written");
    std::fs::write(&config, CONFIG).expect("written");
    let (role, config) = (role.display().to_string(), config.display().to_string());
    let bad = sandbox.home().join("bad.yaml");
    std::fs::write(&bad, CONFIG.replace("filterVerb", "filtrVerb")).expect("written");
    let said = sandbox.carrack(&["scheduler", "--kubeconfig", &role, "--config", &bad.display().to_string()]).fails();
    assert_contains(&said, &["bad.yaml", "filtrVerb"]);

    // Two schedulers in one cluster.
    let mut gpu = sandbox.carrack(&["scheduler", "--kubeconfig", &role, "--config", &config]).spawn();
    let mut plain = sandbox.carrack(&["scheduler", "--kubeconfig", &role, "--secure-port", "0"]).spawn();
    let listener: TcpListener = sandbox.listen(PORT);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut extender = Extender { kubectl: sandbox.kubectl(), taken: BTreeMap::new(), asked: 0 };
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                stream.and_then(|stream| extender.serve(stream)).expect("the scheduler's connection");
            }
            extender.asked
        });
        let pods: Vec<Value> = (0..8).map(|n| pod(&format!("gpu-{n}"), "gpu-scheduler", true)).collect();
        apply(&kubectl, &pods);
        all_bound(&kubectl, "gpu-", 8);
        // What is left of the nodes can be had, all of it: 20 cores less 8.
        let pods: Vec<Value> = (0..12).map(|n| pod(&format!("plain-{n}"), "default-scheduler", false)).collect();
        apply(&kubectl, &pods);
        all_bound(&kubectl, "plain-", 12);
        let failed = kubectl.ok(&["get", "events", "--field-selector", "reason=FailedScheduling", "-o", "name"]);
        assert_eq!(failed.trim(), "", "no pod failed, least of all one that had a node");
        let nominated = kubectl.ok(&["get", "pods", "-o", "jsonpath={.items[*].status.nominatedNodeName}"]);
        assert_eq!(nominated.trim(), "", "nobody is nominated");
        over.store(true, Ordering::SeqCst);
        drop(sandbox.connect(PORT));
        assert_eq!(serving.join().expect("the extender"), 8, "each pod was asked about once");
    });
    drop(listener);

    // With the extender gone its pods wait, and say why; the others don't care.
    kubectl.ok(&["delete", "pod", "plain-0", "gpu-0", "--grace-period=0", "--force"]);
    apply(&kubectl, &[pod("gpu-late", "gpu-scheduler", true), pod("plain-late", "default-scheduler", false)]);
    all_bound(&kubectl, "plain-late", 1);
    eventually_true("the pod says that its extender failed", 60, || {
        let said = kubectl.field("pod", "gpu-late", "/status/conditions").to_string();
        said.contains("running extender http://127.0.0.1:3456/scheduler") && said.contains("SchedulerError")
    });
    let mut wide = pod("wide", "default-scheduler", false);
    wide["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "64".into();
    apply(&kubectl, &[wide]);
    eventually_true("the pod says that no node is large enough", 60, || {
        let said = kubectl.field("pod", "wide", "/status/conditions").to_string();
        said.contains("0/5 nodes are available: 5 Insufficient cpu. preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling.")
    });
    let explained = sandbox.carrack(&["explain", "pod", "wide"]).ok();
    assert_contains(&explained, &["0 of 5 nodes", "hollow-1", "Insufficient cpu", "more of cpu: 64000m asked for"]);

    for child in [&mut gpu, &mut plain, &mut api] {
        child.kill().and_then(|()| child.wait()).expect("it was ours");
    }
}
