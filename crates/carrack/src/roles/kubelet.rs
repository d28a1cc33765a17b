//! The kubelet: the pods of one node.

mod certificates;
mod image_credentials;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use carrack_auth::pki::{Identity, KeyPairPem};
use carrack_auth::tls::{ClientCa, Reloadable};
use carrack_engine::Transport;
use carrack_kubelet::configuration::Configuration;
use carrack_kubelet::credentials::NodeCredentials;
use carrack_kubelet::pods::dead::Policy;
use carrack_kubelet::{HEALTHZ, KubeletConfig, NodeConfig, ServingTls};
use carrack_noderuntime::{Layout, limits};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use image_credentials::of_node;

use super::held::{self, Held};
use crate::cli::roles::KubeletArgs;
use crate::{flags, logging, network, process};

/// What a node's agent serves with, and whom it believes.
#[derive(Debug, Clone)]
pub struct Served {
    /// The certificate, which may be exchanged.
    pub certificate: Arc<Reloadable>,
    /// The authority of clients, which may be exchanged for those who follow it.
    pub client_ca: Arc<ClientCa>,
}

impl Serving {
    /// For as long as the process lives.
    ///
    /// # Errors
    /// Certificate and key cannot be used.
    pub fn served(&self) -> anyhow::Result<Served> {
        let pair = KeyPairPem { certificate: self.cert_pem.clone(), key: self.key_pem.clone().into() };
        let certificate = Reloadable::new(&pair).context("the certificate to serve with cannot be used")?;
        let client_ca = ClientCa::new(&self.client_ca_pem).context("the authority of clients cannot be used")?;
        Ok(Served { certificate, client_ca })
    }
}

/// The same as text.
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
    /// The API server, as measures of the requests to it name it.
    pub api_host: String,
    /// Where the kubelet listens.
    pub listen: SocketAddr,
    /// Where it tells everybody over plain HTTP whether it is well, unless its configuration says otherwise.
    pub healthz: Option<SocketAddr>,
    /// Socket of the container runtime.
    pub runtime_endpoint: PathBuf,
    /// What its configuration file says.
    pub configuration: Option<Configuration>,
    /// How many containers that are over are kept.
    pub container_gc: Policy,
    /// How long a pod waits for a resource.
    pub resource_wait: Duration,
    /// Where it has credentials for registries of its own from; none by default.
    pub credentials: NodeCredentials,
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
    served: Served,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let _held = hold(layout).await?;
    work(layout, node, served, transport, stop).await
}

/// Takes the kubelet's directory for this process.
async fn hold(layout: &Layout) -> anyhow::Result<Held> {
    super::closed_dir(&layout.kubelet_root())?;
    held::hold(&layout.kubelet_root(), "the kubelet").await
}

/// Runs them, in a directory that is this process's.
async fn work(
    layout: &Layout,
    node: Node,
    served: Served,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut config = KubeletConfig {
        node: NodeConfig {
            node_name: node.name,
            node_ips: vec![node.address],
            labels: node.labels,
            api_server: node.api_server,
            root_dir: layout.kubelet_root().display().to_string(),
            volume_plugin_dir: layout.volume_plugin_dir().display().to_string(),
            log_dir: layout.pod_log_dir().display().to_string(),
            cgroup_root: layout.cgroup_root(),
            port: node.listen.port(),
            healthz: node.healthz,
            container_gc: node.container_gc,
            resource_wait: node.resource_wait,
            ..NodeConfig::default()
        },
        runtime_endpoint: node.runtime_endpoint,
        credentials: node.credentials,
        listen: Some(node.listen),
        serving: Some(ServingTls {
            certificate: served.certificate,
            client_ca: served.client_ca,
            allowed_names: vec![Identity::ApiserverKubeletClient.user()],
        }),
        boot_id_file: node.boot_id_file,
        process_metrics: Some(process::metrics),
        api_host: node.api_host,
        flags: flags::told().clone(),
        started: process::started(),
    };
    if let Some(configuration) = &node.configuration {
        configuration.apply(&mut config.node).map_err(anyhow::Error::msg)?;
    }
    carrack_kubelet::run(config, transport, stop.cancelled_owned()).await.context("the kubelet ended")
}

/// `carrack kubelet`
///
/// # Errors
/// As for [`run`], or it cannot come by its certificates.
pub async fn alone(args: KubeletArgs) -> anyhow::Result<()> {
    logging::start(args.role.log.filter())?;
    limits::take_all_files();
    limits::come_last();
    let stop = super::run_until_signal()?;
    let layout = args.data_dir.layout()?;
    let configuration = configurations(args.config.as_deref(), args.config_dir.as_deref())?;
    let (address, port, runtime) = configuration.as_ref().map_or((None, None, None), |c| {
        let runtime = c.container_runtime_endpoint.trim_start_matches("unix://");
        (c.address, c.port, Some(runtime).filter(|r| !r.is_empty()).map(PathBuf::from))
    });
    let listens = address.unwrap_or(args.bind_address);
    let mut node = Node {
        name: super::node_name(args.node_name.as_deref())?,
        address: network::node_address(args.node_ip, listens)?,
        labels: BTreeMap::new(),
        api_server: None,
        api_host: String::new(),
        listen: SocketAddr::new(listens, port.unwrap_or(args.port)),
        healthz: Some(HEALTHZ),
        runtime_endpoint: args.container_runtime_endpoint.or(runtime).unwrap_or_else(|| layout.containerd_socket()),
        configuration,
        container_gc: Policy {
            min_age: args.minimum_container_ttl_duration,
            // What is negative is no limit.
            max_per_container: usize::try_from(args.maximum_dead_containers_per_container).ok(),
            max_containers: usize::try_from(args.maximum_dead_containers).ok(),
        },
        resource_wait: Duration::from_secs(args.resource_wait),
        credentials: image_credentials::of_machine(
            &layout,
            args.image_credential_provider_config.as_deref(),
            args.image_credential_provider_bin_dir,
        )?,
        boot_id_file: args.boot_id_file,
    };
    // Before certificates are asked for, since they are kept there.
    let _held = hold(&layout).await?;
    let wanted = certificates::Wishes::new(&args.certificates, &args.role.kubeconfig, &layout, &node);
    if !wanted.join(&stop).await? {
        return Ok(());
    }
    let mut keepers = JoinSet::new();
    let (served, transport) = wanted.keep(&mut keepers, &stop)?;
    // Its kubeconfig may have come by joining.
    node.api_host = super::server(&args.role.kubeconfig)?;
    tokio::select! {
        result = work(&layout, node, served, transport, stop.clone()) => result,
        Some(ended) = keepers.join_next() => match ended {
            Ok(Err(why)) => Err(anyhow::anyhow!("a certificate is not seen to any more: {why}")),
            // They end by themselves only when the kubelet does.
            Ok(Ok(())) => Ok(()),
            Err(error) => Err(error).context("a certificate is not seen to any more"),
        },
    }
}

/// Reads a configuration file of upstream's kubelet.
///
/// # Errors
/// It cannot be read, or is wrong.
pub fn configuration(path: &Path) -> anyhow::Result<Configuration> {
    let what = || format!("the kubelet's configuration {}", path.display());
    let bytes = std::fs::read(path).with_context(what)?;
    let (configuration, without) =
        carrack_kubelet::configuration::read(&bytes).map_err(anyhow::Error::msg).with_context(what)?;
    usable(&configuration).with_context(what)?;
    if !without.is_empty() {
        tracing::warn!(fields = without.join(", "), "fields of {} have no effect here", path.display());
    }
    Ok(configuration)
}

/// Finds out at once what would otherwise end every run of the kubelet: what is wrong in itself, and what this machine cannot do.
fn usable(configuration: &Configuration) -> anyhow::Result<()> {
    let mut config = NodeConfig::default();
    configuration.apply(&mut config).map_err(anyhow::Error::msg)?;
    carrack_kubelet::check_machine(&config).map_err(anyhow::Error::msg)
}

/// The files of a directory whose names end so, in the order of their names.
fn files_of(directory: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    let ends_so = |path: &Path| path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending));
    paths.retain(|path| ends_so(path) && path.is_file());
    paths.sort();
    Ok(paths)
}

/// What stands in a file.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// What stands in files, each with its name.
fn named(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    paths.iter().map(|path| Ok((path.display().to_string(), read(path)?))).collect()
}

/// Reads a configuration file, and those of a directory that are laid over it.
fn configurations(file: Option<&Path>, directory: Option<&Path>) -> anyhow::Result<Option<Configuration>> {
    let Some(directory) = directory else { return file.map(configuration).transpose() };
    let what = || format!("the kubelet's configuration in {}", directory.display());
    let over = named(&files_of(directory, &["conf"]).with_context(what)?)?;
    let base = file.map(read).transpose()?;
    let (configuration, without) = carrack_kubelet::configuration::read_over(base.as_deref(), &over)
        .map_err(anyhow::Error::msg)
        .with_context(what)?;
    usable(&configuration).with_context(what)?;
    if !without.is_empty() {
        tracing::warn!(fields = without.join(", "), "fields of {} have no effect here", what());
    }
    Ok(Some(configuration))
}
