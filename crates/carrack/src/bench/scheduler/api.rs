#![expect(clippy::disallowed_methods, reason = "shell: it starts an API server and measures time")]
//! Through the API server, on a store whose every write is durable: all in this process, as in `carrack up`, or with the
//! scheduler in a process of its own, over HTTPS.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_auth::pki::Identity;
use carrack_auth::{Caller, caller};
use carrack_engine::shell::{NoDoer, random_seed, run_core};
use carrack_engine::{ApiRequest, EventStream, Rng, Selector, Transport};
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

use super::patience::{Done, Patience};
use super::workloads::{CLASSES, NAMESPACE, node, pod, ready, victim};
use crate::bench::apart::{Apart, server};
use crate::bench::scratch::Scratch;
use crate::bench::used::resident_mb;
use crate::cli::bench::Workload;
use crate::roles::{apiserver, scheduler};

/// How many requests are made at a time to prepare a cluster.
const CLIENTS: usize = 64;
/// How long the API server may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long the watch may last on which bindings are seen.
const WATCH_S: u64 = 24 * 3600;
/// Where nodes keep their Leases.
const LEASES: &str = "kube-node-lease";

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
    Apart(Apart),
}

impl Scheduler {
    fn here(api: Api, stop: &CancellationToken) -> Self {
        let (stop, config) = (stop.child_token(), carrack_scheduler::Config::default());
        Self::Here(tokio::spawn(scheduler::run(config, None, None, api, stop.clone())), stop)
    }
    fn resident_mb(&self) -> anyhow::Result<Option<f64>> {
        match self {
            Self::Here(..) => Ok(None),
            Self::Apart(process) => process.resident_mb().map(Some),
        }
    }
    async fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::Here(running, stop) => {
                stop.cancel();
                running.await.context("the scheduler panicked")?
            }
            // It ends as it is dropped.
            Self::Apart(_) => Ok(()),
        }
    }
}

type Api = Arc<dyn Transport>;

/// Makes the requests of each number, a number's one after another, many numbers at a time.
async fn send_all(
    api: &Api,
    (what, count): (&str, usize),
    patience: &Patience,
    requests: impl Fn(usize) -> Vec<ApiRequest> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let (shared, done) = (Arc::new((AtomicUsize::new(0), requests)), Done::default());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS.min(count) {
        let (shared, done, api) = (shared.clone(), done.clone(), api.clone());
        clients.spawn(async move {
            loop {
                let number = shared.0.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                for request in (shared.1)(number) {
                    let path = format!("{:?} {}", request.method, request.path);
                    api.send(request).await.with_context(|| format!("{path} failed"))?;
                }
                done.one();
            }
        });
    }
    let all = async {
        while let Some(client) = clients.join_next().await {
            client.context("a client panicked")??;
        }
        Ok(())
    };
    patience.wait(what, count, &done, all).await
}

fn creation(resource: &Resource, object: &Value) -> ApiRequest {
    ApiRequest::create_value(resource, object["metadata"]["namespace"].as_str().unwrap_or_default(), object)
}

/// Has so many pods bound on so many nodes, and tells how many that were in a second.
///
/// # Errors
/// The API server fails, or pods are not bound in time.
pub async fn bind(workload: Workload, setting: Setting, patience: Patience) -> anyhow::Result<Bound> {
    let dir = Scratch::new("scheduler")?;
    measure(workload, setting, &patience, &Layout::new(dir.path())).await
}

async fn measure(workload: Workload, setting: Setting, patience: &Patience, layout: &Layout) -> anyhow::Result<Bound> {
    let Setting { nodes, pods, port, .. } = setting;
    let pki = apiserver::open_pki(layout)?;
    let role = server(layout, &pki, port).await?;
    let api = role.server.clone();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(role.run(stop.clone()));
    let admin: Api = Arc::new(api.client_of(Caller::new("system:admin", [caller::GROUP_MASTERS])));
    let no_groups: [String; 0] = [];
    let own: Api = Arc::new(api.client_of(Caller::new(caller::USER_SCHEDULER, no_groups)));
    let asked = Instant::now();
    while admin.send(ApiRequest::new(carrack_engine::Method::Get, "/readyz")).await.is_err() {
        if serving.is_finished() {
            serving.await.context("the API server panicked")??;
            bail!("the API server ended");
        }
        anyhow::ensure!(asked.elapsed() < READY_LIMIT, "the API server is not ready");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let named = |kind: &str, name: &str, namespace: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
    let mut first = vec![
        creation(&Namespace::resource(), &named("Namespace", NAMESPACE, "")),
        creation(&ServiceAccount::resource(), &named("ServiceAccount", "default", NAMESPACE)),
    ];
    first.extend(CLASSES.map(|(name, value)| {
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value});
        creation(&PriorityClass::resource(), &class)
    }));
    send_all(&admin, ("first objects are made", 1), patience, move |_| first.clone()).await?;
    // A new node has a taint until it was seen ready. Whoever takes it off is no part of this, so the benchmark does;
    // upstream's harness turns the admission plugin off (TaintNodesByCondition).
    let node = |number| vec![creation(&Node::resource(), &node(number)), ready(number)];
    send_all(&admin, ("nodes are ready", nodes), patience, node).await?;
    let kubelets = if setting.kubelets { Some(kubelets(&admin, nodes, patience, &stop).await?) } else { None };
    if workload == Workload::Preemption {
        let victim = |number| vec![creation(&Pod::resource(), &victim(number))];
        send_all(&admin, ("less important pods are made", nodes), patience, victim).await?;
    }
    let pod = move |number| vec![creation(&Pod::resource(), &pod(workload, number))];
    send_all(&admin, ("pods are made", pods), patience, pod).await?;
    let list = admin.send(ApiRequest::list(&Pod::resource(), &Selector::all(), 1, "")).await?;
    let revision = list.json::<Value>()?["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let events = admin.watch(ApiRequest::watch(&Pod::resource(), &Selector::all(), &revision, WATCH_S)).await?;
    let running = if setting.apart {
        let role = ["scheduler", "--secure-port", "0"];
        Scheduler::Apart(Apart::start(&role, &Identity::Scheduler, layout, &pki, port)?)
    } else {
        Scheduler::here(own, &stop)
    };
    let done = Done::default();
    let took = match patience.wait("pods are bound", pods, &done, all_bound(events, pods, &done)).await {
        Ok(took) => took,
        Err(error) => {
            let waits = who_waits(&admin).await;
            // A process of its own would outlive this one.
            running.stop().await?;
            return Err(error.context(waits));
        }
    };
    let (resident_mb, scheduler_mb) = (resident_mb(std::process::id())?, running.resident_mb()?);
    running.stop().await?;
    stop.cancel();
    if let Some(kubelets) = kubelets {
        kubelets.await.context("the nodes panicked")??;
    }
    serving.await.context("the API server panicked")??;
    Ok(Bound { per_s: pods as f64 / took.as_secs_f64().max(1e-9), resident_mb, scheduler_mb })
}

/// Sees so many pods bound; how long that took from the first on.
async fn all_bound(mut events: EventStream, pods: usize, done: &Done) -> anyhow::Result<Duration> {
    let mut bound = BTreeSet::new();
    let mut first = None;
    while bound.len() < pods {
        let event = events.next().await.context("the watch of the pods ended")??;
        let event: Event = serde_json::from_slice(&event).context("a watch event cannot be read")?;
        let name = event.object.metadata.name;
        if !event.object.spec.node_name.is_empty() && name.starts_with("pod-") && bound.insert(name) {
            first.get_or_insert_with(Instant::now);
            done.set(bound.len());
        }
    }
    Ok(first.map_or(Duration::ZERO, |first| first.elapsed()))
}

/// What a pod without a node says that it waits for.
async fn who_waits(admin: &Api) -> String {
    let unbound = Selector { namespace: NAMESPACE.to_owned(), ..Selector::fields("spec.nodeName=") };
    let list = match admin.send(ApiRequest::list(&Pod::resource(), &unbound, 1, "")).await {
        Ok(list) => list.json::<Value>().unwrap_or_default(),
        Err(error) => return format!("pods without a node cannot be listed: {error}"),
    };
    let pod = &list["items"][0];
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let said = conditions.filter(|c| c["type"] == "PodScheduled").find_map(|c| c["message"].as_str());
    let name = pod["metadata"]["name"].as_str().unwrap_or("no pod");
    format!("{name} is without a node: {}", said.unwrap_or("no scheduler has said why"))
}

type Task = tokio::task::JoinHandle<anyhow::Result<()>>;

/// Starts the kubelets of the nodes, and waits until each has its Lease.
async fn kubelets(admin: &Api, nodes: usize, patience: &Patience, stop: &CancellationToken) -> anyhow::Result<Task> {
    let config = carrack_hollow::Config { nodes, ..carrack_hollow::Config::default() };
    let hollow = carrack_hollow::HollowNodes::new(config, &Rng::new(random_seed()));
    let (api, token) = (admin.clone(), stop.clone());
    let task = tokio::spawn(async move {
        run_core(hollow, api, NoDoer, token.cancelled_owned()).await.map_err(anyhow::Error::msg)
    });
    let done = Done::default();
    let leases = async {
        let selector = Selector { namespace: LEASES.to_owned(), ..Selector::all() };
        while done.count() < nodes {
            let list = admin.send(ApiRequest::list(&Lease::resource(), &selector, 1, "")).await?.json::<Value>()?;
            let shown = list["items"].as_array().map_or(0, Vec::len);
            let more = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
            done.set(shown + usize::try_from(more).unwrap_or(0));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    patience.wait("nodes have renewed their Leases", nodes, &done, leases).await?;
    Ok(task)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Few pods on few nodes, so that what is measured on many is known to come to its end.
    async fn binds(workload: Workload, kubelets: bool) {
        let (tell, _told) = tokio::sync::mpsc::unbounded_channel();
        let patience = Patience { limit: Duration::from_secs(60), tell, stop: CancellationToken::new() };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        let setting = Setting { nodes: 6, pods: 6, port, apart: false, kubelets };
        let bound = bind(workload, setting, patience).await.expect("all pods are bound");
        assert!(bound.per_s > 0.0 && bound.resident_mb > 0.0 && bound.scheduler_mb.is_none(), "{workload:?}");
    }

    #[tokio::test]
    async fn every_workload_is_bound_through_an_api_server() {
        for workload in Workload::ALL {
            binds(workload, false).await;
        }
        binds(Workload::Preemption, true).await;
    }
}
