//! The agent's process of one of several nodes: containerd, kubelet and virt-handler in the node's network namespace.
//!
//! It reaches the API server over HTTPS with the node's own certificates, and is told everything else in a file that
//! `carrack up` writes before it starts it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use carrack_engine::Transport;
use carrack_noderuntime::{Containerd, Layout, NodeSettings, host, limits};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::task::JoinSet;

use crate::cli::BuiltIn;
use crate::roles::{self, kubelet, local_storage, networks, virt_handler};
use crate::up::{Taken, keep, provide, refuse, take};
use crate::{log_file, logging};

/// How long roles may take to end.
const ROLES_END: Duration = Duration::from_secs(5);
/// Threads for asynchronous work.
const WORKERS: usize = 2;

/// What an agent serves with, and how it reaches the API server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Credentials {
    /// Kubeconfig of the role.
    pub kubeconfig: PathBuf,
    /// Certificate to serve with, PEM.
    pub cert_pem: String,
    /// Its key, PEM.
    pub key_pem: String,
}

/// What an agent is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Told {
    /// The node's name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Addresses of its pods.
    pub pod_cidr: String,
    /// Where pods find the API server.
    pub api_server: (String, u16),
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Port of the kubelet.
    pub kubelet_port: u16,
    /// Port of virt-handler.
    pub virt_handler_port: u16,
    /// A KubeletConfiguration.
    pub kubelet_config: Option<PathBuf>,
    /// How long a pod waits for a resource, in seconds.
    pub resource_wait_s: u64,
    /// Where images are built.
    pub images_dir: PathBuf,
    /// Where containers of container disks find their program, on every node.
    pub keep_alive_dir: PathBuf,
    /// The authority of clients, PEM.
    pub ca_pem: String,
    /// The kubelet's credentials.
    pub kubelet: Credentials,
    /// virt-handler's credentials.
    pub virt_handler: Credentials,
    /// The kubeconfig of what makes volumes on the node's disk.
    pub local_storage: PathBuf,
    /// What misbehaves there, for tests.
    pub storage_faults: Option<PathBuf>,
    /// What to log.
    pub log_level: String,
}

/// Runs the node below `dir` until a signal.
pub fn run(dir: &Path) -> anyhow::Result<()> {
    let path = dir.join("agent.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let told: Told = serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
    logging::start(&told.log_level)?;
    limits::take_all_files();
    limits::come_last();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let outcome = runtime.block_on(serve(Layout::new(dir), told));
    runtime.shutdown_background();
    outcome
}

async fn serve(layout: Layout, told: Told) -> anyhow::Result<()> {
    let stop = roles::run_until_signal()?;
    let facts = match host::probe(&layout) {
        Ok(facts) => facts,
        Err(problems) => return refuse(&problems),
    };
    let _lock = match take(&layout, &stop, &|text: &str| tracing::info!("{text}")).await? {
        Taken::Held(lock) => lock,
        Taken::Stopped => return Ok(()),
        Taken::Runs(text) => bail!(text),
    };
    let settings = NodeSettings {
        pod_cidr: told.pod_cidr.clone(),
        sandbox_image: carrack_images::reference("pause"),
        masquerade: false,
        networks: Some(networks::further(told.kubelet.kubeconfig.clone())?),
    };
    let containerd = Containerd::start(&layout, &facts, &settings).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(log_file::keep(layout.clone(), stop.clone()));
    let token = stop.clone();
    tasks.spawn(async move {
        if let Err(error) = containerd.supervise(token).await {
            tracing::error!(%error, "containerd is not watched any more");
        }
    });
    let started = async {
        provide(&layout, &told.images_dir, BuiltIn::Pause).await?;
        agents(&mut tasks, &layout, &told, &stop)?;
        provide(&layout, &told.images_dir, BuiltIn::VirtLauncher).await
    };
    tokio::select! {
        started = started => started?,
        () = stop.cancelled() => tracing::warn!("interrupted while the node's images are imported"),
    }
    stop.cancelled().await;
    if tokio::time::timeout(ROLES_END, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
        tracing::warn!("some roles did not end within {} s", ROLES_END.as_secs());
    }
    Ok(())
}

fn agents(
    tasks: &mut JoinSet<()>,
    layout: &Layout,
    told: &Told,
    stop: &tokio_util::sync::CancellationToken,
) -> anyhow::Result<()> {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let serving = |credentials: &Credentials| kubelet::Serving {
        cert_pem: credentials.cert_pem.clone(),
        key_pem: credentials.key_pem.clone(),
        client_ca_pem: told.ca_pem.clone(),
    };
    let node = kubelet::Node {
        name: told.name.clone(),
        address: IpAddr::V4(told.address),
        labels: told.labels.clone(),
        api_server: Some(told.api_server.clone()),
        api_host: roles::server(&told.kubelet.kubeconfig)?,
        listen: SocketAddr::new(any, told.kubelet_port),
        healthz: None,
        runtime_endpoint: layout.containerd_socket(),
        configuration: told.kubelet_config.as_deref().map(kubelet::configuration).transpose()?,
        container_gc: Default::default(),
        resource_wait: Duration::from_secs(told.resource_wait_s),
        credentials: kubelet::of_node(layout),
        boot_id_file: Some(carrack_noderuntime::power::boot_id(layout).context("the node has no boot's id")?),
    };
    let api: Arc<dyn Transport> = roles::https(&told.kubelet.kubeconfig)?;
    let (token, place, tls) = (stop.clone(), layout.clone(), serving(&told.kubelet).served()?);
    tasks.spawn(keep("kubelet", stop.clone(), move || {
        let (api, token, place, node, tls) = (api.clone(), token.clone(), place.clone(), node.clone(), tls.clone());
        async move { kubelet::run(&place, node, tls, api, token).await }
    }));
    let api: Arc<dyn Transport> = roles::https(&told.local_storage)?;
    let token = stop.clone();
    let faults = told.storage_faults.clone();
    let storage = local_storage::settings(&layout.storage_dir(), &layout.kubelet_root(), &told.name, faults);
    tasks.spawn(keep("local-storage", stop.clone(), move || {
        let (api, token, settings) = (api.clone(), token.clone(), storage.clone());
        async move { local_storage::run(settings, api, token).await }
    }));
    let api: Arc<dyn Transport> = roles::https(&told.virt_handler.kubeconfig)?;
    let (token, place, tls) = (stop.clone(), layout.clone(), serving(&told.virt_handler).served()?);
    // Nodes that share a machine cannot have it reset.
    let means = virt_handler::Means { keep_alive_dir: told.keep_alive_dir.clone(), watchdog: None };
    let name = told.name.clone();
    let listen = SocketAddr::new(any, told.virt_handler_port);
    tasks.spawn(keep("virt-handler", stop.clone(), move || {
        let (api, token, place, tls) = (api.clone(), token.clone(), place.clone(), tls.clone());
        let (name, means) = (name.clone(), means.clone());
        async move { virt_handler::run(&place, means, &name, listen, tls, api, token).await }
    }));
    Ok(())
}
