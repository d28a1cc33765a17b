//! The kubelet: the pods of one node.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use carrack_auth::pki::Identity;
use carrack_engine::Transport;
use carrack_kubelet::{KubeletConfig, NodeConfig, ServingTls};
use carrack_noderuntime::Layout;
use tokio_util::sync::CancellationToken;

use crate::cli::roles::{AgentArgs, KubeletArgs};
use crate::network;

/// What a node's agent serves with, and whom it believes.
#[derive(Debug, Clone)]
pub struct Serving {
    /// Certificate, PEM.
    pub cert_pem: String,
    /// Its key, PEM.
    pub key_pem: String,
    /// The authority of clients, PEM.
    pub client_ca_pem: String,
}

/// One node, as its kubelet is told.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Labels that it gets.
    pub labels: BTreeMap<String, String>,
    /// Where pods find the API server.
    pub api_server: Option<(String, u16)>,
    /// Where the kubelet listens.
    pub listen: SocketAddr,
    /// Socket of the container runtime.
    pub runtime_endpoint: PathBuf,
    /// File that tells the boot's id instead of the kernel.
    pub boot_id_file: Option<PathBuf>,
}

/// Runs the node's pods until `stop`. They run on afterwards.
///
/// # Errors
/// Why it cannot start or go on.
pub async fn run(
    layout: &Layout,
    node: Node,
    serving: Serving,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let config = KubeletConfig {
        node: NodeConfig {
            node_name: node.name,
            node_ips: vec![node.address],
            labels: node.labels,
            api_server: node.api_server,
            root_dir: layout.kubelet_root().display().to_string(),
            log_dir: layout.pod_log_dir().display().to_string(),
            cgroup_root: layout.cgroup_root(),
            port: node.listen.port(),
            ..NodeConfig::default()
        },
        runtime_endpoint: node.runtime_endpoint,
        listen: Some(node.listen),
        serving: Some(ServingTls {
            cert_pem: serving.cert_pem,
            key_pem: serving.key_pem,
            client_ca_pem: serving.client_ca_pem,
            allowed_names: vec![Identity::ApiserverKubeletClient.user()],
        }),
        boot_id_file: node.boot_id_file,
    };
    carrack_kubelet::run(config, transport, stop.cancelled_owned()).await.context("the kubelet ended")
}

/// `carrack kubelet`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: KubeletArgs) -> anyhow::Result<()> {
    let layout = args.agent.data_dir.layout()?;
    let serving = serving(&args.agent)?;
    let node = Node {
        name: super::node_name(args.agent.node_name.as_deref())?,
        address: args.node_ip.unwrap_or_else(network::own_address),
        labels: BTreeMap::new(),
        api_server: None,
        listen: SocketAddr::new(args.agent.bind_address, args.port),
        runtime_endpoint: args.container_runtime_endpoint.unwrap_or_else(|| layout.containerd_socket()),
        boot_id_file: args.boot_id_file,
    };
    super::alone(&args.agent.role, |transport, stop| async move { run(&layout, node, serving, transport, stop).await })
        .await
}

/// Reads the files that an agent serves with.
///
/// # Errors
/// One cannot be read.
pub fn serving(args: &AgentArgs) -> anyhow::Result<Serving> {
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    Ok(Serving {
        cert_pem: read(&args.tls_cert_file)?,
        key_pem: read(&args.tls_private_key_file)?,
        client_ca_pem: read(&args.client_ca_file)?,
    })
}
