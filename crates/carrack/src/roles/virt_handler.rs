//! virt-handler: the guests of one node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use carrack_auth::tls;
use carrack_engine::shell::random_seed;
use carrack_engine::{Rng, Transport};
use carrack_noderuntime::{Layout, limits};
use carrack_virt::handler::shell::{self, Config};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::credentials::Files;
use super::kubelet::Served;
use super::virt_controller;
use crate::cli::roles::VirtHandlerArgs;

/// What of the machine the handler uses.
#[derive(Debug, Clone)]
pub struct Means {
    /// The controllers' directory (see [`Config::keep_alive_dir`]).
    pub keep_alive_dir: PathBuf,
    /// The machine's watchdog, where it is to be used.
    pub watchdog: Option<PathBuf>,
}

/// Drives the node's guests until `stop`. They run on afterwards.
///
/// # Errors
/// Why it cannot start or go on.
pub async fn run(
    layout: &Layout,
    means: Means,
    node_name: &str,
    listen: SocketAddr,
    served: Served,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    super::closed_dir(&layout.virt_dir())?;
    let _held = super::held::hold(&layout.virt_dir(), "virt-handler").await?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("virt-handler cannot listen on {listen}: choose another port for it"))?;
    let tls = tls::server_config(served.certificate, &served.client_ca.current())?;
    let config = Config {
        node_name: node_name.to_owned(),
        kubelet_dir: layout.kubelet_root(),
        state_dir: layout.virt_dir(),
        keep_alive_dir: means.keep_alive_dir,
        keep_alive_program: carrack_images::pause_program(),
        watchdog: means.watchdog,
    };
    shell::run(node_name, config, listener, tls, transport, &Rng::new(random_seed()), stop)
        .await
        .map_err(anyhow::Error::msg)
}

/// `carrack virt-handler`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: VirtHandlerArgs) -> anyhow::Result<()> {
    let layout = args.agent.data_dir.layout()?;
    let files = Files::open(&args.agent.tls_cert_file, &args.agent.tls_private_key_file)?;
    let authority = &args.agent.client_ca_file;
    let client_ca =
        std::fs::read_to_string(authority).with_context(|| format!("cannot read {}", authority.display()))?;
    let client_ca = tls::ClientCa::new(&client_ca).with_context(|| format!("cannot use {}", authority.display()))?;
    let served = Served { certificate: files.used(), client_ca };
    let name = super::node_name(args.agent.node_name.as_deref())?;
    let listen = SocketAddr::new(args.agent.bind_address, args.port);
    super::alone("virt-handler", &args.agent.role, |transport, stop| async move {
        limits::take_all_files();
        limits::come_last();
        tokio::spawn(files.follow(stop.clone()));
        let keep_alive_dir = virt_controller::keep_alive_dir(&layout.virt_dir());
        let means = Means { keep_alive_dir, watchdog: args.guard.watchdog };
        run(&layout, means, &name, listen, served, transport, stop).await
    })
    .await
}
