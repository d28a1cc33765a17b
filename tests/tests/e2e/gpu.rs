//! GPUs shared between pods. The fourth incident's story with all its processes: five nodes, pods scaled up through an
//! extender that annotates them. And the whole way on one real node: from the pod to the variables in its container.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::collections::BTreeMap;

use carrack_e2e::{Kubectl, Sandbox, Spawned, assert_contains, eventually, eventually_true, root};
use serde_json::{Value, json};

const CONFIG: &str = "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- urlPrefix: http://127.0.0.1:3456/scheduler
  filterVerb: predicates
  prioritizeVerb: priorities
  preemptVerb: preemption
  bindVerb: bind
  weight: 1
  httpTimeout: 10s
  nodeCacheCapable: true
  managedResources:
  - name: tencent.com/vcuda-core
  - name: tencent.com/vcuda-memory
";

fn role(sandbox: &Sandbox, user: &str) -> String {
    let path = sandbox.home().join(format!("{user}.yaml"));
    std::fs::write(&path, sandbox.carrack(&["kubeconfig", "--user", user]).ok()).expect("written");
    path.display().to_string()
}

fn deployment(name: &str, replicas: u32, limits: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {
                "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}}}})
}

fn pods(kubectl: &Kubectl<'_>, app: &str) -> Vec<Value> {
    let list = kubectl.ok(&["get", "pods", "-l", &format!("app={app}"), "-o", "json"]);
    serde_json::from_str::<Value>(&list).expect("JSON")["items"].as_array().cloned().unwrap_or_default()
}

fn all_run(kubectl: &Kubectl<'_>, app: &str, count: usize) {
    eventually(&format!("{count} pods of {app} run"), 120, || {
        let pods = pods(kubectl, app);
        let running = pods.iter().filter(|p| p["status"]["phase"] == "Running").count();
        if (running, pods.len()) == (count, count) { Ok(()) } else { Err(format!("{running} of {} do", pods.len())) }
    });
}

/// Cores given out, by node and GPU, as the pods' annotations tell.
fn given_out(pods: &[Value], cores: u32) -> BTreeMap<String, u32> {
    let mut sums = BTreeMap::new();
    for pod in pods {
        let annotations = &pod["metadata"]["annotations"];
        let node = pod["spec"]["nodeName"].as_str().expect("a node");
        assert_eq!(annotations["tencent.com/predicate-node"], node);
        for gpu in annotations["tencent.com/predicate-gpu-idx-0"].as_str().expect("GPUs").split(',') {
            *sums.entry(format!("{node}/{gpu}")).or_default() += cores;
        }
    }
    sums
}

fn extender(sandbox: &Sandbox) -> Spawned {
    let child = sandbox.carrack(&["gpu-extender", "--kubeconfig", &role(sandbox, "gpu-extender")]).spawn();
    let url = "http://127.0.0.1:3456";
    eventually_true("the extender is ready", 30, || {
        sandbox.program("curl", &["-sf", &format!("{url}/readyz")]).output().code == Some(0)
    });
    child
}

fn end(child: &mut Spawned) {
    child.kill().and_then(|()| child.wait()).expect("it was ours");
}

#[test]
fn pods_with_gpus_are_scaled_up_and_no_room_is_lost() {
    let sandbox = Sandbox::new();
    let mut api = sandbox.carrack(&["apiserver", "--bind-address", "127.0.0.1"]).spawn();
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 60, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });
    let config = sandbox.home().join("config.yaml");
    std::fs::write(&config, CONFIG).expect("written");
    let admin = sandbox.data_dir().join("kubeconfig.yaml").display().to_string();
    let (config, scheduler) = (config.display().to_string(), role(&sandbox, "scheduler"));
    let mut others = vec![
        sandbox.carrack(&["controllers", "--kubeconfig", &role(&sandbox, "controllers"), "--secure-port", "0"]).spawn(),
        sandbox.carrack(&["scheduler", "--kubeconfig", &scheduler, "--config", &config]).spawn(),
        sandbox
            .carrack(&[
                "hollow",
                "--kubeconfig",
                &admin,
                "--nodes",
                "5",
                "--allocatable",
                "tencent.com/vcuda-core=200",
                "--allocatable",
                "tencent.com/vcuda-memory=32",
            ])
            .spawn(),
    ];
    let mut gpus = extender(&sandbox);
    let share = json!({"cpu": "1", "tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"});
    kubectl.apply(&deployment("shares", 1, &share).to_string());
    all_run(&kubectl, "shares", 1);
    // As many as there is room for: 5 nodes, 2 GPUs each, 2 pods on each. Half-way the extender dies and comes back.
    kubectl.ok(&["scale", "deployment", "shares", "--replicas=12"]);
    eventually_true("some pods are bound", 60, || {
        pods(&kubectl, "shares").iter().filter(|p| !p["spec"]["nodeName"].is_null()).count() > 3
    });
    end(&mut gpus);
    kubectl.ok(&["scale", "deployment", "shares", "--replicas=20"]);
    gpus = extender(&sandbox);
    all_run(&kubectl, "shares", 20);
    let sums = given_out(&pods(&kubectl, "shares"), 50);
    assert_eq!((sums.len(), sums.values().max()), (10, Some(&100)), "{sums:?}");

    // What is left of the nodes can be had, all of it: 5 times 64 cores, less 20. No phantom counts against them.
    kubectl.apply(&deployment("plain", 60, &json!({"cpu": "5"})).to_string());
    all_run(&kubectl, "plain", 60);
    let of = |field: &str| kubectl.ok(&["get", "pods", "-o", &format!("jsonpath={{.items[*].{field}}}")]);
    assert_eq!(of("status.nominatedNodeName").trim(), "", "nobody is nominated");
    // Pods may have waited while the extender was away; none failed that had a node.
    let events = kubectl.ok(&["get", "events", "-o", "json"]);
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let events = events["items"].as_array().cloned().unwrap_or_default();
    let time = |event: &Value| {
        let of = |field: &str| event[field].as_str().map(str::to_owned);
        of("eventTime").or_else(|| of("lastTimestamp")).or_else(|| of("firstTimestamp")).unwrap_or_default()
    };
    for failed in events.iter().filter(|e| e["reason"] == "FailedScheduling") {
        let pod = &failed["involvedObject"]["uid"];
        let placed = events.iter().find(|e| e["reason"] == "Scheduled" && e["involvedObject"]["uid"] == *pod);
        let placed = placed.expect("it was placed in the end");
        assert!(time(failed)[..19] <= time(placed)[..19], "a pod failed after it was placed: {failed}");
    }

    // One more finds no room, and says so; when one goes, it runs.
    kubectl.ok(&["scale", "deployment", "shares", "--replicas=21"]);
    eventually_true("a pod says that there is no GPU for it", 60, || {
        pods(&kubectl, "shares")
            .iter()
            .any(|p| p["status"]["conditions"].to_string().contains("Insufficient tencent.com/vcuda-core"))
    });
    kubectl.ok(&["scale", "deployment", "shares", "--replicas=19"]);
    all_run(&kubectl, "shares", 19);
    // Where nobody is any more, nothing is held: all ten GPUs can be had as a whole.
    kubectl.ok(&["scale", "deployment", "shares", "--replicas=0"]);
    kubectl.apply(&deployment("wholes", 5, &json!({"tencent.com/vcuda-core": "200"})).to_string());
    all_run(&kubectl, "wholes", 5);
    let sums = given_out(&pods(&kubectl, "wholes"), 100);
    assert_eq!((sums.len(), sums.values().max()), (10, Some(&100)), "{sums:?}");
    let metrics = sandbox.program("curl", &["-sf", "http://127.0.0.1:3456/metrics"]).ok();
    assert_contains(&metrics, &["carrack_gpu_extender_pods{stage=\"held\"} 5", "carrack_gpu_extender_cores 1000"]);

    // Nonsense is answered, and nobody else may ask for everything.
    let asked = |path: &str, body: &str| {
        let url = format!("http://127.0.0.1:3456{path}");
        sandbox.program("curl", &["-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", body, &url]).ok()
    };
    assert_eq!(asked("/scheduler/predicates", "{"), "400");
    assert_eq!(asked("/scheduler/bind", "{}"), "400");
    assert_eq!(asked("/scheduler/nothing", "{}"), "404");
    assert_eq!(asked("/version", "{}"), "405");
    let version = sandbox.program("curl", &["-sf", "http://127.0.0.1:3456/version"]).ok();
    assert_contains(&version, &["carrack"]);
    let may = |verb: &str, what: &str, sub: &str| {
        let arguments = ["auth", "can-i", verb, what, sub, "--as", "carrack.io:gpu-extender"];
        kubectl.run(&arguments).output().code == Some(0)
    };
    let (itself, binding) = ("--subresource=", "--subresource=binding");
    assert!(may("patch", "pods", itself) && may("create", "pods", binding) && may("watch", "nodes", itself));
    assert!(!may("delete", "pods", itself) && !may("patch", "nodes", itself) && !may("get", "secrets", itself));
    others.push(gpus);
    others.iter_mut().for_each(end);
    end(&mut api);
}

/// What a tenant says of the GPUs of his pods is dropped or refused: by the API server itself, and, of other prefixes, by
/// the policy that is for upstream's.
#[test]
fn a_tenant_says_nothing_of_the_gpus_of_his_pods() {
    let sandbox = Sandbox::new();
    let flags = ["apiserver", "--bind-address", "127.0.0.1", "--gpu-prefix", "example.net"];
    let mut api = sandbox.carrack(&flags).spawn();
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 60, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}).to_string());
    kubectl.ok(&["create", "role", "tenant", "--verb=get,list,create,update,patch", "--resource=pods"]);
    kubectl.ok(&["create", "rolebinding", "tenant", "--role=tenant", "--user=tenant"]);
    let tenant = |arguments: &[&str]| kubectl.run(&[&["--as", "tenant"][..], arguments].concat());
    let pod = |name: &str, annotations: &Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [{"name": "main", "image": "x"}]}})
        .to_string()
    };
    let sent = json!({"tencent.com/predicate-node": "n", "example.net/predicate-gpu-idx-0": "0", "mine": "stays"});
    let made = tenant(&["create", "-f", "-"]).input(pod("own", &sent)).output();
    assert_eq!(made.code, Some(0), "{made}");
    for key in ["tencent.com/predicate-node", "example.net/predicate-gpu-idx-0"] {
        assert_contains(&made.stderr, &[&format!("metadata.annotations[{key}]: dropped")]);
    }
    assert_eq!(kubectl.field("pod", "own", "/metadata/annotations"), json!({"mine": "stays"}));
    let refused = tenant(&["annotate", "pod", "own", "tencent.com/gpu-assigned=true"]).fails();
    assert_contains(&refused, &["only the GPU extender and administrators may change it"]);
    tenant(&["annotate", "pod", "own", "yours=too"]).done();
    kubectl.ok(&["annotate", "pod", "own", "tencent.com/gpu-assigned=true"]);

    let policy = std::fs::read_to_string(root().join("examples/gpu-annotations-policy.yaml")).expect("the example");
    kubectl.apply(&policy);
    // The same about annotations that this API server does not know.
    let policy = policy.replace("tencent[.]com", "example[.]org").replace("tencent.com", "example.org");
    kubectl.apply(&policy.replace("gpu-annotations", "other-annotations"));
    let word = "only the GPU extender and administrators say which GPUs a pod has";
    let create = ["create", "--dry-run=server", "-f", "-"];
    eventually("a pod with a choice of GPUs is refused", 30, || {
        let said = tenant(&create).input(pod("other", &json!({"example.org/predicate-node": "n"}))).output();
        if said.code == Some(1) && said.stderr.contains(word) { Ok(()) } else { Err(said.to_string()) }
    });
    tenant(&create).input(pod("other", &json!({"example.org/note": "n"}))).done();
    tenant(&create).input(pod("other", &Value::Null)).done();
    let changed = ["annotate", "pod", "own", "example.org/gpu-assigned=true"];
    assert_contains(&tenant(&changed).fails(), &[word]);
    kubectl.ok(&changed);
    assert_contains(&tenant(&["annotate", "pod", "own", "example.org/gpu-assigned-"]).fails(), &[word]);
    tenant(&["annotate", "pod", "own", "mine-"]).done();
    end(&mut api);
}

#[test]
fn from_the_pod_to_the_variables_in_its_container() {
    let sandbox = Sandbox::new();
    sandbox.start(&["--gpu-extender", "--gpus", "2x16Gi"]);
    sandbox.carrack(&["image", "build", "busybox"]).limit_s(300).done();
    let kubectl = sandbox.kubectl();
    let offered = || kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.allocatable}"]);
    eventually_true("the node offers its GPUs", 30, || {
        offered().contains(r#""tencent.com/vcuda-core":"200""#)
            && offered().contains(r#""tencent.com/vcuda-memory":"128""#)
    });
    eventually_true("the node says which GPUs it has", 30, || {
        kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.annotations}"]).contains("GPU-fake-1")
    });
    let manifest = std::fs::read_to_string(root().join("examples/gpu.yaml")).expect("the example");
    kubectl.apply(&manifest);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod", "-l", "example=gpu", "--timeout=120s"]);
    let env = |pod: &str| -> BTreeMap<String, String> {
        let text = kubectl.ok(&["exec", pod, "--", "env"]);
        text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.trim().to_owned())).collect()
    };
    let (a, b, whole) = (env("gpu-share-a"), env("gpu-share-b"), env("gpu-whole"));
    for (name, env) in [("gpu-share-a", &a), ("gpu-share-b", &b), ("gpu-whole", &whole)] {
        let chosen = kubectl.field("pod", name, "/metadata/annotations/tencent.com~1predicate-gpu-idx-0");
        let number = chosen.as_str().expect("a choice");
        assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], format!("GPU-fake-{number}"), "{name}");
    }
    assert_eq!((a["CARRACK_GPU_CORES"].as_str(), a["CARRACK_GPU_MEMORY_MIB"].as_str()), ("30", "4096"));
    assert_eq!((b["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"].as_str(), b["CARRACK_GPU_MEMORY_MIB"].as_str()), ("60", "8192"));
    assert_eq!((whole["CARRACK_GPU_CORES"].as_str(), whole["CARRACK_GPU_MEMORY_MIB"].as_str()), ("100", "16384"));
    assert_ne!(a["NVIDIA_VISIBLE_DEVICES"], whole["NVIDIA_VISIBLE_DEVICES"]);
    assert_eq!(
        a["NVIDIA_VISIBLE_DEVICES"], b["NVIDIA_VISIBLE_DEVICES"],
        "shares go onto one GPU, since the other one is taken"
    );

    // Killed and back: everybody keeps what they have, and the ledger knows it.
    sandbox.kill_9();
    sandbox.start(&["--gpu-extender", "--gpus", "2x16Gi"]);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod", "-l", "example=gpu", "--timeout=120s"]);
    assert_eq!(kubectl.field("pod", "gpu-whole", "/status/containerStatuses/0/restartCount"), 0);
    let one_more = manifest.split("---").nth(2).expect("the whole one").replace("gpu-whole", "gpu-late");
    kubectl.apply(&one_more);
    eventually_true("there is no second whole GPU", 60, || {
        kubectl.field("pod", "gpu-late", "/status/conditions").to_string().contains("0/1 nodes are available")
    });
    kubectl.ok(&["delete", "pod", "gpu-whole", "--timeout=60s"]);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/gpu-late", "--timeout=120s"]);
    assert_eq!(env("gpu-late")["NVIDIA_VISIBLE_DEVICES"], whole["NVIDIA_VISIBLE_DEVICES"]);

    // Two that come at once get what was chosen for each.
    kubectl.ok(&["delete", "pod", "--all", "--timeout=60s"]);
    let pair: Vec<String> = (0..6)
        .map(|n| {
            let pod =
                manifest.split("---").next().expect("a share").replace("gpu-share-a", &format!("gpu-at-once-{n}"));
            pod.replace("vcuda-memory: 16", "vcuda-memory: 20")
        })
        .collect();
    kubectl.apply(&pair.join("---\n"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod", "-l", "example=gpu", "--timeout=120s"]);
    let mut used = BTreeMap::new();
    for n in 0..6 {
        let name = format!("gpu-at-once-{n}");
        let chosen = kubectl.field("pod", &name, "/metadata/annotations/tencent.com~1predicate-gpu-idx-0");
        let number = chosen.as_str().expect("a choice").to_owned();
        assert_eq!(env(&name)["NVIDIA_VISIBLE_DEVICES"], format!("GPU-fake-{number}"), "{name}");
        *used.entry(number).or_insert(0) += 1;
    }
    assert_eq!(used, BTreeMap::from([("0".to_owned(), 3), ("1".to_owned(), 3)]));
    // One that was bound past the extender has no GPU, and waits for one instead of taking another's.
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let past = manifest.split("---").next().expect("a share").replace("gpu-share-a", "gpu-past");
    let past = past
        .replace("vcuda-core: 30", "vcuda-core: 20")
        .replace("vcuda-memory: 16", "vcuda-memory: 4")
        .replace("spec:\n", &format!("spec:\n  nodeName: {}\n", node.trim()));
    kubectl.apply(&past);
    eventually("it says why it does not start", 90, || {
        let said = kubectl.ok(&["describe", "pod", "gpu-past"]);
        if said.contains("bound past the GPU extender") { Ok(()) } else { Err(said) }
    });
}
