//! The GPU extender: shares GPUs between pods.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use carrack_auth::pki::KeyPairPem;
use carrack_auth::tls::{self, Reloadable};
use carrack_engine::shell::{random_seed, run_core};
use carrack_engine::{Rng, Transport};
use carrack_gpu_extender::serve::{Server, Settings};
use carrack_gpu_extender::{GpuExtender, Names};
use carrack_scheduler::extender::Extender;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cli::roles::GpuExtenderArgs;

/// How long the scheduler of the same process waits for it.
const ANSWER: Duration = Duration::from_secs(10);

/// What the role is told.
#[derive(Clone)]
pub struct Config {
    listen: SocketAddr,
    tls: Option<rustls::ServerConfig>,
    core: carrack_gpu_extender::Config,
}

impl Config {
    /// Without TLS, and with upstream's names.
    #[must_use]
    pub fn plain(listen: SocketAddr) -> Self {
        Self { listen, tls: None, core: carrack_gpu_extender::Config::default() }
    }
}

/// Lets a scheduler ask the extender at an address, after all others that it asks.
///
/// # Errors
/// Another extender binds pods already.
pub fn ask_it(scheduling: &mut carrack_scheduler::Config, listen: SocketAddr) -> anyhow::Result<()> {
    if let Some(other) = scheduling.extenders.iter().find(|e| !e.bind_verb.is_empty()) {
        bail!("the extender {} binds pods, and so would the GPU extender: only one may", other.url_prefix);
    }
    let names = Names::default();
    scheduling.extenders.push(Extender {
        url_prefix: format!("http://{listen}/scheduler"),
        filter_verb: "predicates".to_owned(),
        prioritize_verb: "priorities".to_owned(),
        preempt_verb: "preemption".to_owned(),
        bind_verb: "bind".to_owned(),
        timeout: ANSWER,
        node_cache_capable: true,
        managed_resources: vec![names.core, names.memory],
        ..Extender::default()
    });
    Ok(())
}

/// Answers schedulers until `stop`.
///
/// # Errors
/// Why it cannot start or go on.
pub async fn run(config: Config, transport: Arc<dyn Transport>, stop: CancellationToken) -> anyhow::Result<()> {
    let Config { listen, tls, core } = config;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("the GPU extender cannot listen on {listen}"))?;
    tracing::info!(%listen, tls = tls.is_some(), "the GPU extender listens");
    let server = Server::new(listener, tls, Settings::default(), &format!("carrack {}", env!("CARGO_PKG_VERSION")));
    let core = GpuExtender::new(core, &Rng::new(random_seed()));
    run_core(core, transport, server, stop.cancelled_owned()).await.map_err(anyhow::Error::msg)
}

/// `carrack gpu-extender`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: GpuExtenderArgs) -> anyhow::Result<()> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let tls = match (&args.tls_cert_file, &args.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            let pair = KeyPairPem { certificate: read(certificate)?, key: read(key)?.into() };
            let certificate = Reloadable::new(&pair)?;
            Some(match &args.client_ca_file {
                Some(authority) => tls::mutual_server_config(certificate, &read(authority)?)?,
                None => tls::open_server_config(certificate)?,
            })
        }
        _ => None,
    };
    Names::check(&args.names.resource_prefix).map_err(anyhow::Error::msg)?;
    let names = Names::new(&args.names.resource_prefix);
    let core = carrack_gpu_extender::Config { names, ..carrack_gpu_extender::Config::default() };
    let config = Config { listen: args.listen, tls, core };
    super::alone("gpu-extender", &args.role, |transport, stop| run(config, transport, stop)).await
}
