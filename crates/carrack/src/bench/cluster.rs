#![expect(clippy::disallowed_methods, reason = "shell: starts a cluster and measures time")]
//! A cluster to measure, started as a user starts it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_engine::{ApiRequest, ApiResponse, ContentType, Method, Transport};
use carrack_noderuntime::Layout;
use carrack_noderuntime::process::ProcessId;
use carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL;
use serde_json::Value;

use super::used;
use crate::cli::{BuiltIn, ImagesDir};
use crate::{image, output, roles};

/// Port of the API server.
pub const HTTPS_PORT: u16 = 26443;
/// Port of the kubelet.
pub const KUBELET_PORT: u16 = 26250;
/// Port of virt-handler.
pub const VIRT_HANDLER_PORT: u16 = 26186;
const POD_CIDR: &str = "10.98.0.0/24";

/// How long anything may take before the measurement is given up.
const LIMIT: Duration = Duration::from_secs(180);

/// A data directory for measuring. Dropped, what runs in it is taken down, and it is removed.
pub struct Dir {
    layout: Layout,
    images: PathBuf,
    removed: bool,
}

/// A cluster that runs in it. Dropped, its process ends; containers are left to its [`Dir`].
pub struct Cluster {
    /// Milliseconds from the start of the process until `/readyz` said yes.
    pub ready_ms: f64,
    /// The API server over HTTPS, as the administrator.
    pub api: Arc<dyn Transport>,
    /// Where it lives.
    pub layout: Layout,
    process: Process,
}

/// The process of a cluster, which ends with this value.
struct Process(Child);

impl Dir {
    /// A new directory.
    pub fn new(images_dir: &ImagesDir) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("cb{}", std::process::id()));
        super::scratch::make(&path)?;
        let layout = Layout::new(path.canonicalize().unwrap_or(path));
        // Images that a running cluster built are taken as they are.
        let shared = Layout::new(carrack_noderuntime::layout::DEFAULT_DATA_DIR).images_dir();
        let images = match &images_dir.images_dir {
            Some(dir) => dir.clone(),
            None if shared.exists() => shared,
            None => layout.images_dir(),
        };
        Ok(Self { layout, images, removed: false })
    }

    /// Where images are built.
    pub fn images(&self) -> &Path {
        &self.images
    }

    /// Starts a cluster, with more arguments of `carrack up`, and waits for its API server.
    pub async fn start(&self, more: &[&str]) -> anyhow::Result<Cluster> {
        let mut command = self.command("up")?;
        command.arg("--images-dir").arg(&self.images).args(["--pod-cidr", POD_CIDR]);
        command.args(["--kubelet-port", &KUBELET_PORT.to_string()]);
        command.args(["--virt-handler-port", &VIRT_HANDLER_PORT.to_string()]);
        self.until_ready(command.args(more)).await
    }

    /// Starts the API server alone in place of a cluster that was stopped, whose containers go on, and waits for it.
    pub async fn serve(&self) -> anyhow::Result<Cluster> {
        self.until_ready(self.command("apiserver")?.args(["--bind-address", "127.0.0.1"])).await
    }

    /// A command of this program that serves the API on the directory.
    fn command(&self, name: &str) -> anyhow::Result<Command> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.arg(name).arg("--data-dir").arg(self.layout.data_dir());
        command.args(["--https-port", &HTTPS_PORT.to_string(), "--log-level", "warn"]);
        command.env("MALLOC_ARENA_MAX", "2").stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }

    /// Starts it, and waits for its API server.
    async fn until_ready(&self, command: &mut Command) -> anyhow::Result<Cluster> {
        let began = Instant::now();
        let mut process = Process(command.spawn().context("cannot start a cluster")?);
        let deadline = began + LIMIT;
        while Instant::now() < deadline {
            if let Some(status) = process.0.try_wait().context("cannot watch the cluster")? {
                bail!("the cluster ended: {status}");
            }
            if let Ok(api) = roles::https(&self.layout.kubeconfig())
                && api.send(ApiRequest::new(Method::Get, "/readyz")).await.is_ok()
            {
                let ready_ms = began.elapsed().as_secs_f64() * 1000.0;
                return Ok(Cluster { ready_ms, api, layout: self.layout.clone(), process });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the API server was not ready within {} s", LIMIT.as_secs())
    }

    /// Builds an image, and loads it.
    pub fn build(&self, image: BuiltIn) -> anyhow::Result<()> {
        let built = image::build_one(&self.images, image)?;
        let load = Command::new("ctr")
            .arg("--address")
            .arg(self.layout.containerd_socket())
            .args(["--namespace", "k8s.io", "images", "import"])
            .arg(&built.tar)
            .stdout(Stdio::null())
            .status()
            .context("cannot run ctr")?;
        anyhow::ensure!(load.success(), "the image {} cannot be loaded", built.reference);
        Ok(())
    }

    /// Runs `carrack` on the directory. What it says is told when it fails.
    pub fn carrack(&self, words: &[&str]) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(words).arg("--data-dir").arg(self.layout.data_dir()).stdin(Stdio::null());
        let output = command.output().with_context(|| format!("cannot run carrack {}", words.join(" ")))?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "carrack {}: {}\n{said}", words.join(" "), output.status);
        Ok(())
    }

    /// Takes everything down and removes the directory.
    ///
    /// # Errors
    /// Something is left.
    pub fn remove(mut self) -> anyhow::Result<()> {
        self.purge()
    }

    fn purge(&mut self) -> anyhow::Result<()> {
        self.removed = true;
        self.carrack(&["down", "--purge", "--grace", "0"])
    }
}

/// Whether a Node says that it is ready.
pub fn is_ready(node: &Value) -> bool {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a Node is ready and takes guests.
pub fn takes_guests(node: &Value) -> bool {
    is_ready(node) && node["metadata"]["labels"][SCHEDULABLE_LABEL] == "true"
}

impl Cluster {
    /// Ends its process, while connections to it can still be closed in an orderly way.
    pub async fn stop(self) -> anyhow::Result<()> {
        let process = self.process;
        tokio::task::spawn_blocking(move || drop(process)).await.context("the cluster's process does not end")
    }

    /// Waits until the node is ready and has the image of virt-launcher.
    pub async fn wait_node(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        let (socket, image) = (self.layout.containerd_socket(), carrack_images::reference("virt-launcher"));
        while carrack_images::containerd::present(&socket, &image).await.ok().flatten().is_none() {
            anyhow::ensure!(
                Instant::now() < deadline,
                "the image of virt-launcher is not there after {} s",
                LIMIT.as_secs()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.wait(
            "the node is not ready for pods and virtual machines",
            |list| takes_guests(&list["items"][0]),
            "/api/v1/nodes",
        )
        .await
    }

    async fn send(&self, request: ApiRequest) -> anyhow::Result<ApiResponse> {
        let what = format!("{:?} {}", request.method, request.path);
        self.api.send(request).await.map_err(|error| anyhow::anyhow!("{what}: {error}"))
    }

    /// Reads what is at a path.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let reply = self.send(ApiRequest::new(Method::Get, path)).await?;
        reply.json().map_err(|error| anyhow::anyhow!("{path}: {error}"))
    }

    /// Creates an object.
    pub async fn create(&self, collection: &str, object: &Value) -> anyhow::Result<()> {
        let request = ApiRequest { body: object.to_string().into(), ..ApiRequest::new(Method::Post, collection) };
        self.send(request).await.map(drop)
    }

    /// Merges something into an object.
    pub async fn merge(&self, path: &str, patch: &Value) -> anyhow::Result<()> {
        let content_type = ContentType::MergePatch;
        let request =
            ApiRequest { content_type, body: patch.to_string().into(), ..ApiRequest::new(Method::Patch, path) };
        self.send(request).await.map(drop)
    }

    /// Deletes an object.
    pub async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.send(ApiRequest::new(Method::Delete, path)).await.map(drop)
    }

    /// The events of all writes below a path since a revision, as a watch tells them.
    pub async fn writes_since(&self, path: &str, revision: &str) -> anyhow::Result<Vec<Value>> {
        let watch = format!("{path}?watch=true&resourceVersion={revision}&timeoutSeconds=1");
        let reply = self.send(ApiRequest::new(Method::Get, &watch)).await?;
        let lines = reply.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let events: Result<Vec<Value>, _> = lines.map(serde_json::from_slice).collect();
        let mut events = events.with_context(|| format!("{watch}: no event"))?;
        events.retain(|event| matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED" | "DELETED")));
        Ok(events)
    }

    /// What the kubelet tells in `/metrics`.
    pub async fn kubelet_metrics(&self) -> anyhow::Result<String> {
        let nodes = self.get("/api/v1/nodes").await?;
        let name = nodes["items"][0]["metadata"]["name"].as_str().context("there is no node")?.to_owned();
        let reply = self.send(ApiRequest::new(Method::Get, format!("/api/v1/nodes/{name}/proxy/metrics"))).await?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    }

    /// Asks for `path` until `good` says so.
    pub async fn wait(&self, what: &str, good: impl Fn(&Value) -> bool, path: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if let Ok(response) = self.api.send(ApiRequest::new(Method::Get, path)).await
                && response.json::<Value>().is_ok_and(|value| good(&value))
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("{what} after {} s", LIMIT.as_secs())
    }

    /// Resident memory in MB (10^6 bytes), after `idle_s` seconds without work, three times.
    pub async fn idle_memory_mb(&self, idle_s: u64) -> anyhow::Result<Vec<f64>> {
        tokio::time::sleep(Duration::from_secs(idle_s)).await;
        let mut samples = Vec::new();
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            samples.push(self.memory_mb()?);
        }
        Ok(samples)
    }

    /// Resident memory in MB (10^6 bytes).
    pub fn memory_mb(&self) -> anyhow::Result<f64> {
        used::resident_mb(self.process.0.id())
    }

    /// Use of the processor over some seconds, in percent of one core.
    pub async fn idle_cpu_percent(&self, seconds: u64) -> anyhow::Result<f64> {
        used::cpu_percent(&[self.process.0.id()], seconds).await
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if !self.removed
            && self.layout.data_dir().exists()
            && let Err(error) = self.purge()
        {
            output::say(format_args!("something of the measured cluster is left: {error:#}"));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let ended = i32::try_from(self.0.id()).ok().and_then(ProcessId::of);
        if let Some(process) = ended
            && let Err(error) = process.terminate(Duration::from_secs(15))
        {
            output::say(format_args!("the measured cluster does not end: {error}"));
        }
        if let Err(error) = self.0.wait() {
            output::say(format_args!("the measured cluster cannot be waited for: {error}"));
        }
    }
}
