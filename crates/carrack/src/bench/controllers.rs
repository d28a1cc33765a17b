#![expect(clippy::disallowed_methods, reason = "shell: runs a control plane and measures time")]
//! What a rollout costs the control plane: Deployments on hollow nodes, made, updated and deleted.
//!
//! API server, scheduler, controllers and hollow nodes run in this process, as in `carrack up`, on a store on disk. Every
//! request of a role is counted on its way.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_apiserver::ApiServer;
use carrack_auth::Caller;
use carrack_auth::caller::{self, GROUP_MASTERS};
use carrack_engine::shell::{NoDoer, random_seed, run_core};
use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream, Method, Rng, Transport};
use carrack_hollow::HollowNodes;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::roles;

/// Pods of each Deployment.
const PODS: usize = 10;
/// Pods for one hollow node.
const PODS_PER_NODE: usize = 100;
const LIMIT: Duration = Duration::from_secs(1800);
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// What one stage cost.
pub struct Stage {
    /// What was done.
    pub name: &'static str,
    /// Seconds until it was done.
    pub seconds: f64,
    /// Writes of the controllers for each pod, events not counted.
    pub controller_writes: f64,
    /// Events of the controllers for each pod.
    pub controller_events: f64,
    /// Writes of all roles for each pod, events not counted.
    pub all_writes: f64,
    /// CPU seconds of the whole process.
    pub cpu_s: f64,
}

/// Counts what goes through a transport.
struct Counting {
    to: Arc<dyn Transport>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    events: AtomicU64,
}

impl Counts {
    fn read(&self) -> (u64, u64) {
        (self.writes.load(Ordering::Relaxed), self.events.load(Ordering::Relaxed))
    }
}

impl Transport for Counting {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        if request.method != Method::Get && !request.path.contains("/leases") {
            let events = request.path.contains("/events");
            if events { &self.counts.events } else { &self.counts.writes }.fetch_add(1, Ordering::Relaxed);
        }
        self.to.send(request)
    }
    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        self.to.watch(request)
    }
}

/// A control plane in this process.
struct Plane {
    admin: Arc<dyn Transport>,
    controllers: Arc<Counts>,
    others: Arc<Counts>,
    tasks: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
}

impl Plane {
    async fn start(dir: &Path, nodes: usize) -> anyhow::Result<Self> {
        let server = roles::apiserver::bare(dir)?;
        server.bootstrap().await.map_err(|status| anyhow::anyhow!("{}", status.message))?;
        let stop = CancellationToken::new();
        let (controllers, others) = (Arc::new(Counts::default()), Arc::new(Counts::default()));
        let counted = |who: Caller, counts: &Arc<Counts>| -> Arc<dyn Transport> {
            Arc::new(Counting { to: client(&server, who), counts: counts.clone() })
        };
        const NONE: [&str; 0] = [];
        let mut tasks = JoinSet::new();
        let (api, token) = (counted(Caller::new(caller::USER_SCHEDULER, NONE), &others), stop.clone());
        let config = carrack_scheduler::Config::named(carrack_scheduler::DEFAULT_SCHEDULER_NAME);
        tasks.spawn(async move { roles::scheduler::run(config, None, api, token).await });
        let (api, token) = (counted(Caller::new(caller::USER_CONTROLLER_MANAGER, NONE), &controllers), stop.clone());
        tasks.spawn(async move { roles::controllers::run("", None, api, token).await });
        let admin = Caller::new("bench:hollow", [GROUP_MASTERS]);
        let (api, token) = (counted(admin.clone(), &others), stop.clone());
        let config = carrack_hollow::Config { nodes, ..carrack_hollow::Config::default() };
        let hollow = HollowNodes::new(config, &Rng::new(random_seed()));
        tasks.spawn(
            async move { run_core(hollow, api, NoDoer, token.cancelled_owned()).await.map_err(anyhow::Error::msg) },
        );
        Ok(Self { admin: client(&server, admin), controllers, others, tasks, stop })
    }

    /// Waits until a list is as it should be.
    async fn wait(&mut self, path: &str, good: impl Fn(&[Value]) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if let Some(ended) = self.tasks.try_join_next() {
                ended.context("a role panicked")??;
                bail!("a role ended by itself");
            }
            let reply = self.send(ApiRequest::new(Method::Get, path)).await?;
            if reply["items"].as_array().is_some_and(|items| good(items)) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        bail!("{path} is not as it should be after {} s", LIMIT.as_secs())
    }

    async fn send(&self, request: ApiRequest) -> anyhow::Result<Value> {
        let reply = self.admin.send(request).await.map_err(|error| anyhow::anyhow!("{error}"))?;
        reply.json().map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Does something and waits for its end; what that cost for each pod.
    async fn stage(
        &mut self,
        name: &'static str,
        pods: f64,
        requests: Vec<ApiRequest>,
        path: &str,
        good: impl Fn(&[Value]) -> bool,
    ) -> anyhow::Result<Stage> {
        let before = (self.controllers.read(), self.others.read(), cpu_s()?);
        let began = Instant::now();
        for request in requests {
            self.send(request).await?;
        }
        self.wait(path, good).await?;
        let (controllers, others) = (self.controllers.read(), self.others.read());
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
        let each = |now: u64, then: u64| (now - then) as f64 / pods;
        let controller_writes = each(controllers.0, before.0.0);
        Ok(Stage {
            name,
            seconds: began.elapsed().as_secs_f64(),
            controller_writes,
            controller_events: each(controllers.1, before.0.1),
            all_writes: controller_writes + each(others.0, before.1.0),
            cpu_s: cpu_s()? - before.2,
        })
    }
}

fn client(server: &ApiServer, who: Caller) -> Arc<dyn Transport> {
    Arc::new(server.client_of(who))
}

fn body(method: Method, path: String, value: &Value) -> anyhow::Result<ApiRequest> {
    let mut request = ApiRequest::new(method, path);
    if method == Method::Patch {
        request.content_type = carrack_engine::ContentType::MergePatch;
    }
    request.body = serde_json::to_vec(value).context("a value is no JSON")?.into();
    Ok(request)
}

fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": PODS, "selector": {"matchLabels": {"app": name}}, "template": template(name, 1)}})
}

fn template(name: &str, version: u32) -> Value {
    json!({"metadata": {"labels": {"app": name}, "annotations": {"version": version.to_string()}},
        "spec": {"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "hollow", "resources": {"requests": {"cpu": "10m"}}}]}})
}

/// Rolls out, updates and deletes so many Deployments. Returns what each stage cost, and the peak of memory in MB.
///
/// # Errors
/// A role ended, or it takes too long.
pub async fn run(deployments: usize) -> anyhow::Result<(Vec<Stage>, f64)> {
    let dir = std::env::temp_dir().join(format!("carrack-bench-controllers-{}", std::process::id()));
    let outcome = stages(&dir, deployments).await;
    std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    Ok((outcome?, peak_mb()?))
}

async fn stages(dir: &Path, deployments: usize) -> anyhow::Result<Vec<Stage>> {
    let nodes = (deployments * PODS).div_ceil(PODS_PER_NODE).max(1);
    let mut plane = Plane::start(dir, nodes).await?;
    plane.wait("/api/v1/nodes", |list| list.len() == nodes).await?;
    plane.wait("/api/v1/serviceaccounts", |list| !list.is_empty()).await?;
    let names: Vec<String> = (0..deployments).map(|n| format!("bench-{n}")).collect();
    #[expect(clippy::cast_precision_loss, reason = "numbers of pods are far below 2^52")]
    let pods = (deployments * PODS) as f64;
    let rolled_out = move |list: &[Value]| {
        list.len() == deployments
            && list.iter().all(|d| {
                let is = |count: &str| d["status"][count] == PODS;
                d["status"]["observedGeneration"] == d["metadata"]["generation"]
                    && is("replicas")
                    && is("updatedReplicas")
                    && is("availableReplicas")
            })
    };
    let make: anyhow::Result<Vec<_>> =
        names.iter().map(|n| body(Method::Post, DEPLOYMENTS.into(), &deployment(n))).collect();
    let update: anyhow::Result<Vec<_>> = names
        .iter()
        .map(|n| body(Method::Patch, format!("{DEPLOYMENTS}/{n}"), &json!({"spec": {"template": template(n, 2)}})))
        .collect();
    let delete = names.iter().map(|n| ApiRequest::new(Method::Delete, format!("{DEPLOYMENTS}/{n}"))).collect();
    let stages = vec![
        plane.stage("rolled out", pods, make?, DEPLOYMENTS, rolled_out).await?,
        plane.stage("updated", pods, update?, DEPLOYMENTS, rolled_out).await?,
        plane.stage("deleted", pods, delete, "/api/v1/pods?limit=1", <[Value]>::is_empty).await?,
    ];
    plane.stop.cancel();
    while let Some(ended) = plane.tasks.join_next().await {
        ended.context("a role panicked")??;
    }
    Ok(stages)
}

/// CPU seconds of this process so far.
fn cpu_s() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    // The name in parentheses may hold spaces; user and system time are the 12th and 13th field behind it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().filter_map(|n| fields.get(*n)?.parse::<f64>().ok()).sum();
    Ok(ticks / 100.0)
}

/// The most memory that this process ever had resident, in MB (10^6 bytes).
fn peak_mb() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
        .context("the kernel tells no peak of resident memory")?;
    Ok(kib * 1024.0 / 1e6)
}
