//! The kubelet on a real containerd, CNI and mounts, against the real API server in the process.
//!
//! Needs root, containerd, runc, CNI plugins and busybox; without them the test says so and passes,
//! for machines that only build.
#![expect(clippy::disallowed_methods, reason = "the test hands the API server its clock")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test: what fails ends it, with its place")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use carrack_apiserver::{ApiServer, Config, Env, InProcess};
use carrack_auth::Caller;
use carrack_auth::pki::Pki;
use carrack_auth::token::{DEFAULT_ISSUER, Issuer, SigningKey};
use carrack_engine::{ApiError, ApiRequest, DeleteOptions, Transport};
use carrack_kubelet::{KubeletConfig, NodeConfig};
use carrack_store::MemStore;
use carrack_types::resource::Kind;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

const NODE: &str = "real";
const CGROUP: &str = "carrack-kubelet-test";

/// The machine's clock, and numbers that differ from one another.
struct TestEnv(AtomicU64);

impl Env for TestEnv {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
    fn random(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

/// A containerd of the test's own.
struct Containerd {
    dir: PathBuf,
    child: Child,
}

impl Containerd {
    fn socket(dir: &Path) -> PathBuf {
        dir.join("containerd.sock")
    }

    async fn start(dir: &Path) -> Self {
        let net = dir.join("cni/net.d");
        std::fs::create_dir_all(&net).unwrap();
        // Point-to-point links leave nothing behind, where a bridge would stay.
        let conflist = json!({
            "cniVersion": "0.4.0", "name": "test",
            "plugins": [
                {"type": "ptp", "ipMasq": false, "ipam": {
                    "type": "host-local", "dataDir": dir.join("cni/data"),
                    "ranges": [[{"subnet": "198.18.77.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
                {"type": "portmap", "capabilities": {"portMappings": true}}
            ]
        });
        std::fs::write(net.join("10-test.conflist"), conflist.to_string()).unwrap();
        let d = dir.display();
        let config = format!(
            r#"version = 2
root = "{d}/root"
state = "{d}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
address = "{d}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
sandbox_image = "{pause}"
netns_mounts_under_state_dir = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{d}/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
Root = "{d}/state/runc"
"#,
            pause = carrack_images::reference("pause"),
        );
        let path = dir.join("config.toml");
        std::fs::write(&path, config).unwrap();
        let log = std::fs::File::create(dir.join("containerd.log")).unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut this = Self { dir: dir.to_owned(), child };
        for built in [carrack_images::build_pause(dir).unwrap(), carrack_images::build_busybox(dir).unwrap()] {
            // It takes requests once its socket answers.
            let socket = Self::socket(dir);
            wait(60, "containerd takes the image", async || {
                carrack_images::containerd::ensure(&socket, &built).await.ok()
            })
            .await;
        }
        assert!(this.child.try_wait().unwrap().is_none(), "containerd ended");
        this
    }

    async fn ctr(&self, args: &[&str]) -> String {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(Self::socket(&self.dir))
            .args(["--namespace", "k8s.io"])
            .args(args)
            .output()
            .await
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Ends what runs in it, also after a failed test, then itself.
    async fn stop(mut self) -> Vec<String> {
        let mut left = Vec::new();
        for id in self.ctr(&["tasks", "list", "-q"]).await.lines() {
            left.push(id.to_owned());
            self.ctr(&["tasks", "delete", "--force", id]).await;
        }
        self.child.kill().await.unwrap();
        // The kubelet leaves the parents of all pods' groups, as upstream does.
        for controller in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            remove_groups(&controller.path().join(CGROUP));
        }
        remove_groups(&Path::new("/sys/fs/cgroup").join(CGROUP));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let prefix = self.dir.to_string_lossy().into_owned();
        for line in mounts.lines().rev() {
            let path = line.split(' ').nth(4).unwrap();
            if path.starts_with(&prefix) {
                Command::new("umount").arg(path).status().await.unwrap();
            }
        }
        left
    }
}

/// Removes control groups that hold nothing.
fn remove_groups(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        remove_groups(&entry.path());
    }
    std::fs::remove_dir(dir).unwrap();
}

/// Polls until there is an answer.
async fn wait<T>(seconds: u64, what: &str, mut f: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(t) = f().await {
            return t;
        }
        assert!(tokio::time::Instant::now() < end, "not within {seconds} s: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

struct Cluster {
    api: ApiServer,
    admin: InProcess,
    root: PathBuf,
    logs: PathBuf,
    socket: PathBuf,
}

struct Kubelet {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), carrack_kubelet::KubeletError>>,
}

impl Kubelet {
    /// Ends it without a word, as `kill -9` does.
    async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
        drop(self.stop);
    }
}

impl Cluster {
    async fn start(dir: &Path) -> Self {
        let env = TestEnv(AtomicU64::new(1));
        let pki = Pki::open_or_create(&dir.join("pki"), env.now().as_second()).unwrap();
        let mut config = Config::new(Arc::new(MemStore::default()), Arc::new(env));
        config.issuer = Some(Issuer::new(DEFAULT_ISSUER, SigningKey::from_pem(pki.service_account_key()).unwrap()));
        let api = ApiServer::new(config);
        api.bootstrap().await.unwrap();
        let admin = api.client_as("admin", ["system:masters"]);
        let this =
            Self { api, admin, root: dir.join("kubelet"), logs: dir.join("pod-logs"), socket: Containerd::socket(dir) };
        // What the controllers make in each namespace.
        this.create::<ServiceAccount>("default", json!({"metadata": {"name": "default"}})).await;
        this.create::<ConfigMap>(
            "default",
            json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "the authority"}}),
        )
        .await;
        this
    }

    fn kubelet(&self) -> Kubelet {
        let config = KubeletConfig {
            node: NodeConfig {
                node_name: NODE.into(),
                root_dir: self.root.to_string_lossy().into_owned(),
                log_dir: self.logs.to_string_lossy().into_owned(),
                cgroup_root: CGROUP.into(),
                api_server: Some(("192.0.2.1".into(), 6443)),
                ..NodeConfig::default()
            },
            runtime_endpoint: self.socket.clone(),
            ..KubeletConfig::default()
        };
        let transport: Arc<dyn Transport> = Arc::new(self.api.client_of(Caller::node(NODE)));
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(carrack_kubelet::run(config, transport, async move { drop(stopped.await) }));
        Kubelet { stop, task }
    }

    async fn create<K: Kind>(&self, namespace: &str, object: Value) {
        let made = self.admin.send(ApiRequest::create_value(&K::resource(), namespace, &object)).await;
        match made {
            Err(e) if !e.is_already_exists() => panic!("{object}: {e}"),
            _ => {}
        }
    }

    async fn pod(&self, name: &str, mut spec: Value) {
        spec["nodeName"] = NODE.into();
        self.create::<Pod>("default", json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    async fn get<K: Kind>(&self, namespace: &str, name: &str) -> Option<K> {
        match self.admin.send(ApiRequest::get(&K::resource(), namespace, name)).await {
            Ok(r) => Some(r.json().unwrap()),
            Err(e) if e.is_not_found() => None,
            Err(e) => panic!("{e}"),
        }
    }

    async fn status(&self, name: &str) -> Value {
        let pod = self.get::<Pod>("default", name).await;
        serde_json::to_value(pod.and_then(|p| p.status)).unwrap()
    }

    async fn until(&self, name: &str, what: &str, f: impl Fn(&Value) -> bool) -> Value {
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.status(name).await;
            if f(&status) {
                return status;
            }
            if tokio::time::Instant::now() >= end {
                let path = "/api/v1/namespaces/default/events";
                let events = self.admin.send(ApiRequest::new(carrack_engine::Method::Get, path)).await.unwrap();
                let events: Value = events.json().unwrap();
                let told: Vec<String> = events["items"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|e| format!("{} {} {}", e["involvedObject"]["name"], e["reason"], e["message"]))
                    .collect();
                panic!("{name} is not {what}: {status:#}\n{}", told.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn delete(&self, name: &str) -> Result<(), ApiError> {
        let request = ApiRequest::delete(&Pod::resource(), "default", name, &DeleteOptions::default());
        self.admin.send(request).await.map(drop)
    }

    async fn gone(&self, name: &str) {
        wait(90, "the pod is gone", async || self.get::<Pod>("default", name).await.is_none().then_some(())).await;
    }

    fn log(&self, pod: &str, container: &str) -> String {
        let dir = std::fs::read_dir(&self.logs)
            .unwrap()
            .flatten()
            .find(|e| e.file_name().to_string_lossy().starts_with(&format!("default_{pod}_")))
            .unwrap()
            .path();
        std::fs::read_to_string(dir.join(container).join("0.log")).unwrap_or_default()
    }
}

fn running(s: &Value) -> bool {
    s["phase"] == "Running" && s["containerStatuses"].as_array().is_some_and(|c| c.iter().all(|c| c["ready"] == true))
}

fn shell(script: &str) -> Value {
    json!({"name": "c", "image": carrack_images::reference("busybox"), "imagePullPolicy": "Never",
           "command": ["/bin/sh", "-c", script]})
}

fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root");
    }
    let needed = ["/usr/bin/containerd", "/usr/bin/ctr", "/usr/sbin/runc", "/usr/lib/cni/ptp", "/bin/busybox"];
    needed.into_iter().find(|p| !Path::new(p).exists())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_on_a_real_node() {
    if let Some(what) = missing() {
        eprintln!("skipped: this needs {what}");
        return;
    }
    let dir = tempfile::Builder::new().prefix("carrack-kubelet-").tempdir().unwrap();
    let containerd = Containerd::start(dir.path()).await;
    let path = dir.path().to_owned();
    // What the test did wrong must not leave containers behind.
    let local = tokio::task::LocalSet::new();
    let result =
        local.run_until(async move { tokio::task::spawn_local(async move { scenario(&path).await }).await }).await;
    let left = containerd.stop().await;
    result.unwrap();
    assert!(left.is_empty(), "containers are left: {left:?}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*dir.path().to_string_lossy()), "mounts are left");
}

async fn scenario(dir: &Path) {
    let c = Cluster::start(dir).await;
    let kubelet = c.kubelet();
    wait(60, "the node is ready", async || {
        let node = c.get::<Node>("", NODE).await?;
        let status = node.status?;
        let ready = status.conditions?.into_iter().find(|c| c.type_ == "Ready")?;
        (ready.status == "True" && status.node_info?.container_runtime_version.starts_with("containerd://"))
            .then_some(())
    })
    .await;

    // A pod with everything: volumes of each kind, environment, its address, a token.
    c.create::<ConfigMap>("default", json!({"metadata": {"name": "cm"}, "data": {"k": "from the map"}})).await;
    let mut main = shell(
        "cat /cm/k; echo; echo env $K at $POD_IP; cat /var/run/secrets/kubernetes.io/serviceaccount/ca.crt; echo; \
         test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token; grep ' /mem tmpfs' /proc/mounts; \
         echo host $(hostname); cat /sub/f; trap 'echo bye; exit 0' TERM; while true; do sleep 0.1; done",
    );
    main["volumeMounts"] = json!([
        {"name": "cm", "mountPath": "/cm"}, {"name": "mem", "mountPath": "/mem"}, {"name": "work", "mountPath": "/sub", "subPath": "part"}]);
    main["env"] = json!([
        {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]);
    main["resources"] = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
    main["readinessProbe"] = json!({"exec": {"command": ["/bin/true"]}, "periodSeconds": 1});
    let mut init = shell("mkdir -p /work/part; echo from init > /work/part/f");
    init["name"] = "init".into();
    init["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
    let all = json!({
        "terminationGracePeriodSeconds": 60,
        "initContainers": [init], "containers": [main],
        "volumes": [{"name": "cm", "configMap": {"name": "cm"}}, {"name": "mem", "emptyDir": {"medium": "Memory"}},
                    {"name": "work", "emptyDir": {}}]
    });
    c.pod("all", all).await;
    let begun = tokio::time::Instant::now();
    let up = c.until("all", "running", running).await;
    eprintln!("a pod with an init container and a probe is ready after {:?}", begun.elapsed());
    let ip = up["podIP"].as_str().unwrap().to_owned();
    assert!(ip.starts_with("198.18.77."), "{up:#}");
    let lines = [
        "from the map",
        &format!("env from the map at {ip}"),
        "the authority",
        "token",
        "/mem tmpfs",
        "host all",
        "from init",
    ];
    wait(60, "the log is whole", async || {
        let log = c.log("all", "c");
        lines.iter().all(|l| log.contains(l)).then_some(())
    })
    .await;

    // The kubelet is killed and comes back: the same containers, not restarted.
    let id = up["containerStatuses"][0]["containerID"].clone();
    kubelet.kill().await;
    let kubelet = c.kubelet();
    c.pod(
        "after",
        json!({"restartPolicy": "Never", "containers": [shell("echo last words > /dev/termination-log; exit 3")]}),
    )
    .await;
    let after = c.until("after", "failed", |s| s["phase"] == "Failed").await;
    let ended = &after["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["message"]), (&json!(3), &json!("last words\n")), "{after:#}");
    let still = c.status("all").await;
    assert_eq!(still["containerStatuses"][0]["containerID"], id);
    assert_eq!(still["containerStatuses"][0]["restartCount"], 0);
    assert!(running(&still), "{still:#}");

    // Restarts, by policy.
    c.pod("again", json!({"containers": [shell("sleep 0.2; exit 7")], "terminationGracePeriodSeconds": 1})).await;
    let again = c.until("again", "restarted", |s| s["containerStatuses"][0]["restartCount"] == 1).await;
    assert_eq!(again["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 7, "{again:#}");
    c.until("again", "backing off", |s| s["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff")
        .await;
    c.pod("good", json!({"restartPolicy": "OnFailure", "containers": [shell("true")]})).await;
    c.until("good", "succeeded", |s| s["phase"] == "Succeeded").await;
    let mut nowhere = shell("true");
    nowhere["image"] = "registry.invalid/nothing:1".into();
    c.pod("nowhere", json!({"containers": [nowhere]})).await;
    c.until("nowhere", "refused", |s| s["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull")
        .await;

    // A polite end: the container hears SIGTERM, and nothing is left.
    let begun = tokio::time::Instant::now();
    for name in ["all", "after", "again", "good", "nowhere"] {
        c.delete(name).await.unwrap();
    }
    for name in ["all", "after", "again", "good", "nowhere"] {
        c.gone(name).await;
    }
    eprintln!("five pods are gone after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(50), "the container that traps SIGTERM was not waited out");
    wait(60, "directories are removed", async || {
        let empty = |p: PathBuf| std::fs::read_dir(p).map_or(true, |mut d| d.next().is_none());
        let records = std::fs::read_dir(c.root.join("records")).unwrap().flatten();
        let pods = records.filter(|e| e.file_name().to_string_lossy().starts_with("pod-")).count();
        (empty(c.root.join("pods")) && empty(c.logs.clone()) && pods == 0).then_some(())
    })
    .await;
    kubelet.kill().await;
}
