#![expect(clippy::disallowed_methods, reason = "shell: runs a control plane and measures time")]
//! What a rollout costs the control plane: Deployments on hollow nodes, made, updated and deleted.
//!
//! API server, scheduler, controllers and hollow nodes run in this process, as in `carrack up`, on a store on disk. Every
//! request of a role is counted on its way, and so is every write of the controllers that changes nothing. In the end
//! leaders are ended without a word, one after another, and what is measured is how long it takes until somebody else acts.

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
use tokio::task::{AbortHandle, JoinSet};
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
    /// Writes of the controllers that changed nothing, for each pod.
    pub idle_writes: f64,
    /// Writes of the controllers that were refused because something had changed, for each pod.
    pub conflicts: f64,
}

/// What everything cost.
pub struct Outcome {
    /// Each stage.
    pub stages: Vec<Stage>,
    /// The most memory that the process had, in MB.
    pub peak_mb: f64,
    /// Seconds from each leader's end until another one acted.
    pub handed_over_s: Vec<f64>,
}

/// How many leaders are ended.
const HAND_OVERS: usize = 5;

/// Counts what goes through a transport.
struct Counting {
    to: Arc<dyn Transport>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    events: AtomicU64,
    idle: AtomicU64,
    conflicts: AtomicU64,
    watches: AtomicU64,
}

impl Counts {
    fn read(&self) -> [u64; 4] {
        [&self.writes, &self.events, &self.idle, &self.conflicts].map(|count| count.load(Ordering::Relaxed))
    }
}

#[derive(serde::Deserialize)]
struct Revised {
    metadata: Revision,
}

#[derive(serde::Deserialize)]
struct Revision {
    #[serde(rename = "resourceVersion")]
    resource_version: Option<String>,
}

/// The revision in an object or a patch.
fn revision(json: &[u8]) -> Option<String> {
    serde_json::from_slice::<Revised>(json).ok()?.metadata.resource_version
}

impl Transport for Counting {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        if request.method == Method::Get || request.path.contains("/leases") {
            return self.to.send(request);
        }
        let events = request.path.contains("/events");
        if events { &self.counts.events } else { &self.counts.writes }.fetch_add(1, Ordering::Relaxed);
        let changes = matches!(request.method, Method::Put | Method::Patch) && !events;
        let before = changes.then(|| revision(&request.body)).flatten();
        let (sent, counts) = (self.to.send(request), self.counts.clone());
        Box::pin(async move {
            let result = sent.await;
            match &result {
                Ok(reply) if before.is_some() && revision(&reply.body) == before => {
                    counts.idle.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.is_conflict() => _ = counts.conflicts.fetch_add(1, Ordering::Relaxed),
                _ => {}
            }
            result
        })
    }
    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        self.counts.watches.fetch_add(1, Ordering::Relaxed);
        self.to.watch(request)
    }
}

/// A control plane in this process.
struct Plane {
    server: ApiServer,
    admin: Arc<dyn Transport>,
    controllers: Arc<Counts>,
    others: Arc<Counts>,
    tasks: JoinSet<anyhow::Result<()>>,
    leader: AbortHandle,
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
        tasks.spawn(async move { roles::scheduler::run(config, None, None, api, token).await });
        let (api, token) = (counted(Caller::new(caller::USER_CONTROLLER_MANAGER, NONE), &controllers), stop.clone());
        let leader = tasks.spawn(async move { roles::controllers::run("", Some("bench-0"), api, token).await });
        let admin = Caller::new("bench:hollow", [GROUP_MASTERS]);
        let (api, token) = (counted(admin.clone(), &others), stop.clone());
        let config = carrack_hollow::Config { nodes, ..carrack_hollow::Config::default() };
        let hollow = HollowNodes::new(config, &Rng::new(random_seed()));
        tasks.spawn(
            async move { run_core(hollow, api, NoDoer, token.cancelled_owned()).await.map_err(anyhow::Error::msg) },
        );
        let admin = client(&server, admin);
        Ok(Self { server, admin, controllers, others, tasks, leader, stop })
    }

    /// Ends the leader without a word, with another candidate at hand. Seconds until that one acted.
    async fn hand_over(&mut self, number: usize) -> anyhow::Result<f64> {
        let counts = Arc::new(Counts::default());
        const NONE: [&str; 0] = [];
        let to = client(&self.server, Caller::new(caller::USER_CONTROLLER_MANAGER, NONE));
        let (api, token) = (Arc::new(Counting { to, counts: counts.clone() }), self.stop.clone());
        let identity = format!("bench-{}", number + 1);
        let next = self.tasks.spawn(async move { roles::controllers::run("", Some(&identity), api, token).await });
        // It reads everything before it can act.
        let mut watches = (0, Instant::now());
        while watches.0 == 0 || watches.1.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = counts.watches.load(Ordering::Relaxed);
            if now != watches.0 {
                watches = (now, Instant::now());
            }
        }
        std::mem::replace(&mut self.leader, next).abort();
        let began = Instant::now();
        let name = format!("handed-over-{number}");
        self.send(body(Method::Post, DEPLOYMENTS.into(), &deployment(&name))?).await?;
        while self.send(ApiRequest::new(Method::Get, format!("{DEPLOYMENTS}/{name}"))).await?["status"]
            ["observedGeneration"]
            .is_null()
        {
            if began.elapsed() > LIMIT {
                bail!("nobody took over");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(began.elapsed().as_secs_f64())
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
        let [controller_writes, controller_events, idle_writes, conflicts] =
            [0, 1, 2, 3].map(|n| each(controllers[n], before.0[n]));
        Ok(Stage {
            name,
            seconds: began.elapsed().as_secs_f64(),
            controller_writes,
            controller_events,
            all_writes: controller_writes + each(others[0], before.1[0]),
            cpu_s: cpu_s()? - before.2,
            idle_writes,
            conflicts,
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

/// Rolls out, updates and deletes so many Deployments, and then ends leaders.
///
/// # Errors
/// A role ended, or it takes too long.
pub async fn run(deployments: usize) -> anyhow::Result<Outcome> {
    let dir = std::env::temp_dir().join(format!("carrack-bench-controllers-{}", std::process::id()));
    let outcome = stages(&dir, deployments).await;
    std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    outcome
}

async fn stages(dir: &Path, deployments: usize) -> anyhow::Result<Outcome> {
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
    let peak_mb = peak_mb()?;
    let mut handed_over_s = Vec::new();
    for number in 0..HAND_OVERS {
        handed_over_s.push(plane.hand_over(number).await?);
    }
    plane.stop.cancel();
    while let Some(ended) = plane.tasks.join_next().await {
        match ended {
            Err(error) if error.is_cancelled() => {}
            ended => ended.context("a role panicked")??,
        }
    }
    Ok(Outcome { stages, peak_mb, handed_over_s })
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
