//! The configuration proved on the real containerd: a pod sandbox runs with our pause image and pod network, containerd
//! is adopted and restarted, nothing is left after the teardown, also when everything was killed first.
//!
//! Needs root and the node's programs, which `scripts/install-deps` brings.

#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use carrack_noderuntime::process::{self, ProcessId};
use carrack_noderuntime::teardown::{self, Options};
use carrack_noderuntime::{Containerd, Layout, NodeSettings, cri, host};
use hyper_util::rt::TokioIo;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{PodSandboxConfig, PodSandboxMetadata, PodSandboxStatusRequest, RunPodSandboxRequest};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};

const ALL: Options = Options { guest_grace_s: 0, pod_grace_s: 0, purge: true };

/// Takes the cluster down also when the test fails midway.
struct Guard(Layout);

impl Drop for Guard {
    fn drop(&mut self) {
        let layout = self.0.clone();
        let down = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(teardown::teardown(&layout, &ALL, &mut |_| ()))
        });
        let failures = down.join().unwrap_or_else(|_| vec!["the teardown panicked".to_owned()]);
        if !failures.is_empty() {
            eprintln!("left over: {failures:?}");
        }
    }
}

async fn import_pause(layout: &Layout) {
    let built = carrack_images::build_pause(&layout.images_dir()).expect("the pause image is built");
    carrack_images::containerd::ensure(&layout.containerd_socket(), &built).await.expect("it is imported");
}

async fn client(layout: &Layout) -> RuntimeServiceClient<Channel> {
    let socket = layout.containerd_socket();
    let channel = Endpoint::from_static("http://containerd.invalid")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
        .expect("containerd listens");
    RuntimeServiceClient::new(channel)
}

/// Runs a sandbox and returns its id and its address on the pod network.
async fn run_sandbox(layout: &Layout, name: &str) -> (String, String) {
    try_sandbox(layout, name).await.expect("the sandbox runs")
}

async fn try_sandbox(layout: &Layout, name: &str) -> Result<(String, String), tonic::Status> {
    let mut client = client(layout).await;
    let config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        log_directory: layout.logs_dir().display().to_string(),
        linux: Some(k8s_cri::v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/pod-{name}", layout.cgroup_root()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let request = RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
    let id = client.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
    let request = PodSandboxStatusRequest { pod_sandbox_id: id.clone(), verbose: false };
    let status = client.pod_sandbox_status(request).await.expect("a status").into_inner().status.expect("a status");
    Ok((id, status.network.expect("a network").ip))
}

fn contained(layout: &Layout) -> Vec<ProcessId> {
    let root = layout.containerd_root();
    process::all()
        .into_iter()
        .map(|(process, _)| process)
        .filter(|process| process::is_in_container(process, &root))
        .collect()
}

fn assert_nothing_left(layout: &Layout) {
    let dir = layout.data_dir().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    assert_eq!(mounts.lines().filter(|line| line.contains(&dir)).collect::<Vec<_>>(), Vec::<&str>::new());
    let left: Vec<_> =
        process::all().into_iter().filter(|(_, words)| words.iter().any(|word| word.contains(&dir))).collect();
    assert_eq!(left, []);
    let links = Command::new("ip").args(["-o", "link"]).output().expect("ip runs");
    assert!(!String::from_utf8_lossy(&links.stdout).contains(&layout.bridge()));
    let rules = Command::new("iptables-save").output().expect("iptables-save runs");
    assert!(!String::from_utf8_lossy(&rules.stdout).contains(&layout.cni_network()));
    assert!(!layout.data_dir().exists());
}

#[tokio::test]
async fn a_sandbox_runs_survives_containerd_and_leaves_nothing() {
    let dir = tempfile::Builder::new().prefix("cnr").tempdir_in("/tmp").expect("a temp dir");
    let layout = Layout::new(dir.path().join("d"));
    let guard = Guard(layout.clone());
    let settings = NodeSettings {
        pod_cidr: "10.87.3.0/24".to_owned(),
        sandbox_image: carrack_images::reference("pause"),
        networks: None,
        masquerade: true,
    };
    let facts = host::probe(&layout).expect("the machine has what a node needs");

    let first = Containerd::start(&layout, &facts, &settings).await.expect("containerd starts");
    assert!(first.version().starts_with("containerd "), "{}", first.version());
    import_pause(&layout).await;
    let (id, ip) = run_sandbox(&layout, "a").await;
    assert!(ip.starts_with("10.87.3."), "{ip}");
    let before = contained(&layout);
    assert_eq!(before.len(), 1, "the pause process: {before:?}");

    // A second start adopts the first one's process.
    let second = Containerd::start(&layout, &facts, &settings).await.expect("containerd is adopted");
    assert_eq!(second.process(), first.process());

    // Its death is noticed, another is started, and the sandbox is still there.
    let stop = CancellationToken::new();
    let killed = first.process().clone();
    drop(second);
    let supervisor = tokio::spawn(first.supervise(stop.clone()));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(killed.pid).expect("a pid"),
        rustix::process::Signal::KILL,
    )
    .expect("containerd is killed");
    let restarted = async {
        loop {
            if ProcessId::from_pidfile(&layout.containerd_pidfile()).is_some_and(|now| now != killed) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), restarted).await.expect("containerd is started again");
    let (mut cri, _) =
        cri::wait_ready(&layout.containerd_socket(), Duration::from_secs(60)).await.expect("CRI answers");
    let sandboxes = cri.sandboxes().await.expect("a list");
    assert_eq!(sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
    assert_eq!(contained(&layout), before, "the same process as before");
    stop.cancel();
    supervisor.await.expect("no panic").expect("the supervisor ends");

    // Another pod network is what the next sandboxes get, from the containerd that runs.
    let running = ProcessId::from_pidfile(&layout.containerd_pidfile());
    let moved = NodeSettings { pod_cidr: "10.87.5.0/24".to_owned(), ..settings };
    let third = Containerd::start(&layout, &facts, &moved).await.expect("containerd is adopted");
    assert_eq!(Some(third.process()), running.as_ref());
    drop(third);
    let on_the_new_range = async {
        for attempt in 0u32.. {
            // The bridge has the old range's address, and gets it again from whoever does not know better yet.
            let gone = Command::new("ip").args(["link", "delete", &layout.bridge()]).output().expect("ip runs");
            match try_sandbox(&layout, &format!("b{attempt}")).await {
                Ok((_, ip)) if ip.starts_with("10.87.5.") => return,
                other => eprintln!("not yet: {other:?}, {gone:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), on_the_new_range).await.expect("the new pod network is read");
    let before = contained(&layout);

    // Everything is killed, shims too; the teardown still finds and removes it all.
    // containerd goes first: one that lives would notice the shim's death and remove the container.
    let containerd = ProcessId::from_pidfile(&layout.containerd_pidfile()).expect("containerd runs");
    containerd.terminate(Duration::ZERO).expect("killed");
    let socket = layout.containerd_socket().display().to_string();
    for (shim, _) in process::all().into_iter().filter(|(_, words)| words.contains(&socket)) {
        shim.terminate(Duration::ZERO).expect("killed");
    }
    assert_eq!(contained(&layout), before, "a container outlives its shim");
    let failures = teardown::teardown(&layout, &ALL, &mut |_| ()).await;
    assert_eq!(failures, Vec::<String>::new());
    assert_eq!(contained(&layout), []);
    assert_nothing_left(&layout);
    drop(guard);
}
