#![expect(clippy::disallowed_methods, reason = "shell: runs a control plane and watches the clock")]
//! A control plane to measure, with hollow nodes: API server, scheduler and controllers run in this process, as in
//! `carrack up`, on a store on disk; the nodes too, or in a process of their own. Every request of a role here is counted on its
//! way, and so is every write that changes nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_apiserver::ApiServer;
use carrack_auth::Caller;
use carrack_auth::caller::{self, GROUP_MASTERS};
use carrack_auth::pki::Identity;
use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream, Method, Transport};
use carrack_noderuntime::Layout;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::apart::{self, Apart};
use super::used::{self, memory_mb};
use crate::roles::{self, apiserver, hollow, virt_controller};

/// How long anything may take before the measurement is given up.
pub const LIMIT: Duration = Duration::from_secs(1800);

const NONE: [&str; 0] = [];

/// Counts what goes through a transport.
pub struct Counting {
    pub to: Arc<dyn Transport>,
    pub counts: Arc<Counts>,
}

/// How many requests went by.
#[derive(Default)]
pub struct Counts {
    writes: AtomicU64,
    events: AtomicU64,
    idle: AtomicU64,
    conflicts: AtomicU64,
    pub watches: AtomicU64,
}

impl Counts {
    /// Writes but events, events, writes that changed nothing, and writes that were refused because something had
    /// changed.
    pub fn read(&self) -> [u64; 4] {
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

/// The nodes of a control plane.
#[derive(Clone, Copy)]
pub struct Nodes {
    /// How many.
    pub count: usize,
    /// They take virtual machines.
    pub machines: bool,
    /// They have a process of their own, and talk over HTTPS to the API server on this port.
    pub apart: Option<u16>,
}

/// A control plane in this process.
pub struct Plane {
    pub server: ApiServer,
    /// A way to it, as an administrator.
    pub admin: Arc<dyn Transport>,
    /// What the controllers ask for; those of virtual machines too.
    pub controllers: Arc<Counts>,
    /// What scheduler and nodes ask for, unless the nodes are apart.
    pub others: Arc<Counts>,
    /// The nodes' process, if they have one.
    pub apart: Option<Apart>,
    pub tasks: JoinSet<anyhow::Result<()>>,
    pub leader: AbortHandle,
    pub stop: CancellationToken,
}

impl Plane {
    /// Starts one on an empty directory.
    ///
    /// # Errors
    /// The store cannot be opened, a port is taken, a process cannot be started, or the first objects cannot be written.
    pub async fn start(layout: &Layout, nodes: Nodes) -> anyhow::Result<Self> {
        let Nodes { count, machines, apart } = nodes;
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let pki = apart.is_some().then(|| apiserver::open_pki(layout)).transpose()?;
        let role = match (&pki, apart) {
            (Some(pki), Some(port)) => Some(apart::server(layout, pki, port).await?),
            _ => None,
        };
        let server = match &role {
            Some(role) => role.server.clone(),
            None => apiserver::bare(layout.data_dir())?,
        };
        server.bootstrap().await.map_err(|status| anyhow::anyhow!("{}", status.message))?;
        if let Some(role) = role {
            tasks.spawn(role.run(stop.clone()));
        }
        let (controllers, others) = (Arc::new(Counts::default()), Arc::new(Counts::default()));
        let counted = |who: Caller, counts: &Arc<Counts>| -> Arc<dyn Transport> {
            Arc::new(Counting { to: client(&server, who), counts: counts.clone() })
        };
        let (api, token) = (counted(Caller::new(caller::USER_SCHEDULER, NONE), &others), stop.clone());
        let config = carrack_scheduler::Config::named(carrack_scheduler::DEFAULT_SCHEDULER_NAME);
        tasks.spawn(async move { roles::scheduler::run(config, None, None, api, token).await });
        let (api, token) = (counted(Caller::new(caller::USER_CONTROLLER_MANAGER, NONE), &controllers), stop.clone());
        let leader = tasks
            .spawn(async move { roles::controllers::run("", Some("bench-0"), PathBuf::new(), None, api, token).await });
        let who = Caller::new("bench:hollow", [GROUP_MASTERS]);
        let admin = client(&server, who.clone());
        if machines {
            virt_controller::install(&*admin).await?;
            let api = counted(Caller::new(caller::USER_VIRT_CONTROLLER, NONE), &controllers);
            let (config, token) = (virt_controller::config(None, layout.data_dir()), stop.clone());
            tasks.spawn(async move { virt_controller::run(&config, None, None, api, token).await });
        }
        let apart = match (&pki, apart) {
            (Some(pki), Some(port)) => {
                let count = count.to_string();
                let machines = machines.then_some("--machines");
                let role: Vec<&str> = ["hollow", "--nodes", &count].into_iter().chain(machines).collect();
                Some(Apart::start(&role, &Identity::Admin, layout, pki, port)?)
            }
            _ => {
                let config = carrack_hollow::Config { nodes: count, ..carrack_hollow::Config::default() };
                let (api, token) = (counted(who, &others), stop.clone());
                tasks.spawn(hollow::run(config, machines, api, token));
                None
            }
        };
        Ok(Self { server, admin, controllers, others, apart, tasks, leader, stop })
    }

    /// How many writes the API server has answered so far, whoever made them: as in [`Counts::read`] without Leases and Events.
    ///
    /// # Errors
    /// It does not tell.
    pub async fn writes(&self) -> anyhow::Result<u64> {
        let metrics = self.answer(ApiRequest::new(Method::Get, "/metrics")).await?.body;
        let metrics = String::from_utf8_lossy(&metrics);
        let lines = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        let is = |line: &str, label: &str, values: &[&str]| {
            values.iter().any(|value| line.contains(&format!("{label}=\"{value}\"")))
        };
        let writes = lines.filter(|line| {
            is(line, "verb", &["POST", "PUT", "PATCH", "APPLY", "DELETE"])
                && !is(line, "resource", &["leases", "events"])
        });
        writes
            .map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum::<Option<u64>>()
            .context("no number of requests")
    }

    /// Waits until a list is as it should be.
    ///
    /// # Errors
    /// It is not in time, or a role ended.
    pub async fn wait(&mut self, path: &str, good: impl Fn(&[Value]) -> bool) -> anyhow::Result<()> {
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

    /// Makes a request as an administrator.
    ///
    /// # Errors
    /// It is refused, or the answer is no JSON.
    pub async fn send(&self, request: ApiRequest) -> anyhow::Result<Value> {
        self.answer(request).await?.json().map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// The same, where what is answered does not matter: thousands of objects would be the better part of the memory that is
    /// measured.
    ///
    /// # Errors
    /// It is refused.
    pub async fn ask(&self, request: ApiRequest) -> anyhow::Result<()> {
        self.answer(request.unread()).await.map(|_| ())
    }

    async fn answer(&self, request: ApiRequest) -> anyhow::Result<ApiResponse> {
        self.admin.send(request).await.map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Ends all roles.
    ///
    /// # Errors
    /// One of them failed.
    pub async fn end(mut self) -> anyhow::Result<()> {
        drop(self.apart.take());
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Err(error) if error.is_cancelled() => {}
                ended => ended.context("a role panicked")??,
            }
        }
        Ok(())
    }
}

/// A way to an API server in this process.
pub fn client(server: &ApiServer, who: Caller) -> Arc<dyn Transport> {
    Arc::new(server.client_of(who))
}

/// A request with a body.
///
/// # Errors
/// It is no JSON.
pub fn body(method: Method, path: String, value: &Value) -> anyhow::Result<ApiRequest> {
    let mut request = ApiRequest::new(method, path);
    if method == Method::Patch {
        request.content_type = carrack_engine::ContentType::MergePatch;
    }
    request.body = serde_json::to_vec(value).context("a value is no JSON")?.into();
    Ok(request)
}

/// CPU seconds of this process so far.
///
/// # Errors
/// The kernel does not tell.
pub fn cpu_s() -> anyhow::Result<f64> {
    used::cpu_s(std::process::id())
}

/// The most memory that this process ever had resident, in MB (10^6 bytes).
///
/// # Errors
/// The kernel does not tell.
pub fn peak_mb() -> anyhow::Result<f64> {
    memory_mb(std::process::id(), "VmHWM:")
}
