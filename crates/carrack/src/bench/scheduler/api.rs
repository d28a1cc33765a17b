#![expect(clippy::disallowed_methods, reason = "shell: it starts an API server and measures time")]
//! Through the API server, on a store whose every write is durable: all in this process, as in `carrack up`, or with the
//! scheduler in a process of its own, over HTTPS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki};
use carrack_auth::{Caller, caller};
use carrack_engine::shell::{NoDoer, random_seed, run_core};
use carrack_engine::{ApiRequest, Rng, Selector, Transport};
use carrack_noderuntime::Layout;
use carrack_types::resource::{Kind as _, Resource};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::workloads::{CLASSES, NAMESPACE, node, pod, victim};
use crate::bench::resident_mb;
use crate::cli::access::AccessArgs;
use crate::cli::bench::Workload;
use crate::cli::store::StoreArgs;
use crate::network;
use crate::roles::{apiserver, scheduler};

/// How many requests are made at a time to prepare a cluster.
const CLIENTS: usize = 64;
/// How long the API server may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long all pods may take.
const LIMIT: Duration = Duration::from_secs(600);

/// What came out.
pub struct Bound {
    pub per_s: f64,
    /// Of this process: API server, store, driver, and the scheduler unless it is apart.
    pub resident_mb: f64,
    /// Of the scheduler's own process.
    pub scheduler_mb: Option<f64>,
}

/// How it is measured.
#[derive(Clone, Copy)]
pub struct Setting {
    pub nodes: usize,
    pub pods: usize,
    pub port: u16,
    /// The scheduler has a process of its own.
    pub apart: bool,
    /// Nodes renew their Leases, and run their pods.
    pub kubelets: bool,
}

/// A scheduler that runs.
enum Scheduler {
    Here(tokio::task::JoinHandle<anyhow::Result<()>>, CancellationToken),
    Apart(Child),
}

impl Scheduler {
    fn here(api: Api, stop: &CancellationToken) -> Self {
        let (stop, config) = (stop.child_token(), carrack_scheduler::Config::default());
        Self::Here(tokio::spawn(scheduler::run(config, None, None, api, stop.clone())), stop)
    }
    fn apart(layout: &Layout, pki: &Pki, port: u16) -> anyhow::Result<Self> {
        let identity = Identity::Scheduler;
        let pair = pki.client(&identity, apiserver::now_unix_s())?;
        let server = format!("https://127.0.0.1:{port}");
        let kubeconfig = Kubeconfig::for_certificate("bench", &identity.user(), &server, pki.ca_pem(), &pair);
        let path = layout.data_dir().join("scheduler.yaml");
        std::fs::write(&path, kubeconfig.to_text()).with_context(|| format!("cannot write {}", path.display()))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let child = Command::new(program)
            .args(["scheduler", "--log-level", "warn", "--secure-port", "0", "--kubeconfig"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a scheduler")?;
        Ok(Self::Apart(child))
    }
    fn resident_mb(&self) -> anyhow::Result<Option<f64>> {
        match self {
            Self::Here(..) => Ok(None),
            Self::Apart(child) => resident_mb(child.id()).map(Some),
        }
    }
    async fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::Here(running, stop) => {
                stop.cancel();
                running.await.context("the scheduler panicked")?
            }
            Self::Apart(mut child) => {
                child.kill().context("the scheduler does not end")?;
                child.wait().map(drop).context("the scheduler cannot be waited for")
            }
        }
    }
}

type Api = Arc<dyn Transport>;

async fn create(
    api: &Api,
    resource: Resource,
    count: usize,
    make: impl Fn(usize) -> Value + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let shared = Arc::new((AtomicUsize::new(0), make));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS.min(count) {
        let (shared, api, resource) = (shared.clone(), api.clone(), resource.clone());
        clients.spawn(async move {
            loop {
                let number = shared.0.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                let object = (shared.1)(number);
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                let request = ApiRequest::create_value(&resource, namespace, &object);
                api.send(request).await.with_context(|| format!("cannot create {} {number}", resource.kind))?;
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.context("a client panicked")??;
    }
    Ok(())
}

/// Has so many pods bound on so many nodes, and tells how many that were in a second.
///
/// # Errors
/// The API server fails, or pods are not bound in time.
pub async fn bind(workload: Workload, setting: Setting) -> anyhow::Result<Bound> {
    let dir = std::env::temp_dir().join(format!("carrack-bench-scheduler-{}", std::process::id()));
    let measured = measure(workload, setting, &Layout::new(&dir)).await;
    std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    measured
}

async fn measure(workload: Workload, setting: Setting, layout: &Layout) -> anyhow::Result<Bound> {
    let Setting { nodes, pods, port, .. } = setting;
    let pki = apiserver::open_pki(layout)?;
    let endpoint = apiserver::Endpoint {
        bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        service_range: network::range("10.97.0.0/16")?,
        // Told to the cluster as the server's, which a loopback address may not be.
        addresses: vec![network::own_address()],
        names: Vec::new(),
    };
    let role = apiserver::Role::open(
        layout,
        &pki,
        &endpoint,
        &StoreArgs { store: "embedded".to_owned(), ..StoreArgs::default() },
        &AccessArgs::default(),
    )
    .await?;
    let server = role.server.clone();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(role.run(stop.clone()));
    let admin: Api = Arc::new(server.client_of(Caller::new("system:admin", [caller::GROUP_MASTERS])));
    let no_groups: [String; 0] = [];
    let own: Api = Arc::new(server.client_of(Caller::new(caller::USER_SCHEDULER, no_groups)));
    let ready = Instant::now();
    while admin.send(ApiRequest::new(carrack_engine::Method::Get, "/readyz")).await.is_err() {
        if serving.is_finished() {
            serving.await.context("the API server panicked")??;
            bail!("the API server ended");
        }
        anyhow::ensure!(ready.elapsed() < READY_LIMIT, "the API server is not ready");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let one = |resource: Resource, object: Value| {
        let admin = admin.clone();
        async move { create(&admin, resource, 1, move |_| object.clone()).await }
    };
    let named = |kind: &str, name: &str, namespace: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
    one(Namespace::resource(), json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))
        .await?;
    one(ServiceAccount::resource(), named("ServiceAccount", "default", NAMESPACE)).await?;
    for (name, value) in CLASSES {
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value});
        one(PriorityClass::resource(), class).await?;
    }
    create(&admin, Node::resource(), nodes, node).await?;
    let kubelets = if setting.kubelets { Some(kubelets(&admin, nodes, &stop).await?) } else { None };
    if workload == Workload::Preemption {
        create(&admin, Pod::resource(), nodes, victim).await?;
    }
    create(&admin, Pod::resource(), pods, move |number| pod(workload, number)).await?;
    let list = admin.send(ApiRequest::list(&Pod::resource(), &Selector::all(), 1, "")).await?;
    let revision = list.json::<Value>()?["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let watch = ApiRequest::watch(&Pod::resource(), &Selector::all(), &revision, LIMIT.as_secs());
    let mut events = admin.watch(watch).await?;
    let running = if setting.apart { Scheduler::apart(layout, &pki, port)? } else { Scheduler::here(own, &stop) };
    let mut bound = std::collections::BTreeSet::new();
    let (began, mut first) = (Instant::now(), None);
    while bound.len() < pods {
        let next = tokio::time::timeout(LIMIT.saturating_sub(began.elapsed()), events.next()).await;
        let Ok(Some(event)) = next else {
            bail!("only {} of {pods} pods are bound after {} s", bound.len(), LIMIT.as_secs())
        };
        let event = event?;
        let event: Event = serde_json::from_slice(&event).context("a watch event cannot be read")?;
        let name = event.object.metadata.name;
        if !event.object.spec.node_name.is_empty() && name.starts_with("pod-") && bound.insert(name) {
            first.get_or_insert_with(Instant::now);
        }
    }
    let took = first.unwrap_or(began).elapsed();
    let (resident_mb, scheduler_mb) = (resident_mb(std::process::id())?, running.resident_mb()?);
    running.stop().await?;
    stop.cancel();
    if let Some(kubelets) = kubelets {
        kubelets.await.context("the nodes panicked")??;
    }
    serving.await.context("the API server panicked")??;
    Ok(Bound { per_s: pods as f64 / took.as_secs_f64().max(1e-9), resident_mb, scheduler_mb })
}

type Task = tokio::task::JoinHandle<anyhow::Result<()>>;

/// Starts the kubelets of the nodes, and waits until each has its Lease.
async fn kubelets(admin: &Api, nodes: usize, stop: &CancellationToken) -> anyhow::Result<Task> {
    let config = carrack_hollow::Config { nodes, ..carrack_hollow::Config::default() };
    let hollow = carrack_hollow::HollowNodes::new(config, &Rng::new(random_seed()));
    let (api, token) = (admin.clone(), stop.clone());
    let task = tokio::spawn(async move {
        run_core(hollow, api, NoDoer, token.cancelled_owned()).await.map_err(anyhow::Error::msg)
    });
    let began = Instant::now();
    loop {
        let list = admin.send(ApiRequest::list(&Lease::resource(), &Selector::all(), 1, "")).await?;
        let meta = &list.json::<Value>()?["metadata"];
        if meta["remainingItemCount"].as_u64().is_some_and(|left| left + 1 >= nodes as u64) {
            return Ok(task);
        }
        anyhow::ensure!(began.elapsed() < LIMIT, "the nodes have no Leases: {meta}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[derive(Deserialize)]
struct Event {
    object: Seen,
}
#[derive(Deserialize)]
struct Seen {
    #[serde(default)]
    metadata: Name,
    #[serde(default)]
    spec: Spec,
}
#[derive(Default, Deserialize)]
#[serde(default)]
struct Name {
    name: String,
}
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
}
