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
    /// Whether who asks has to show a certificate.
    knows_clients: bool,
    core: carrack_gpu_extender::Config,
}

impl Config {
    /// Without TLS, and with upstream's names.
    #[must_use]
    pub fn plain(listen: SocketAddr) -> Self {
        Self { listen, tls: None, knows_clients: false, core: carrack_gpu_extender::Config::default() }
    }

    /// What is wrong with where it listens, if something is: whoever reaches it can have any pod bound to any node.
    fn warning(&self) -> Option<&'static str> {
        match (self.listen.ip().is_loopback(), self.knows_clients, &self.tls) {
            (true, _, _) | (_, true, _) => None,
            (false, false, Some(_)) => Some(
                "whoever reaches the GPU extender can have pods bound by it: with --client-ca-file it answers those with a \
                 certificate alone",
            ),
            (false, false, None) => Some(
                "whoever reaches the GPU extender can have pods bound by it, and read what it is asked: let it listen on \
                 the loopback address, or see --tls-cert-file and --client-ca-file",
            ),
        }
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
    if let Some(warning) = config.warning() {
        tracing::warn!(listen = %config.listen, "{warning}");
    }
    let Config { listen, tls, core, .. } = config;
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
                Some(authority) => tls::mutual_server_config(certificate, &read(authority)?)?.config,
                None => tls::open_server_config(certificate)?,
            })
        }
        _ => None,
    };
    Names::check(&args.names.resource_prefix).map_err(anyhow::Error::msg)?;
    let names = Names::new(&args.names.resource_prefix);
    let core = carrack_gpu_extender::Config { names, ..carrack_gpu_extender::Config::default() };
    let config = Config { listen: args.listen, tls, knows_clients: args.client_ca_file.is_some(), core };
    super::alone("gpu-extender", &args.role, |transport, stop| run(config, transport, stop)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_to_everybody_is_warned() {
        let dir = tempfile::tempdir().expect("a directory");
        let now_s = super::super::apiserver::now_unix_s();
        let pki = carrack_auth::pki::Pki::open_or_create(dir.path(), now_s).expect("authorities");
        let sans = carrack_auth::pki::Sans::loopback();
        let pair = pki.server(&carrack_auth::pki::Server::Apiserver, &sans, now_s).expect("a certificate");
        let tls = tls::open_server_config(Reloadable::new(&pair).expect("usable")).expect("TLS");
        let check = |listen: &str, has_tls: bool, knows_clients: bool, expected: Option<&str>| {
            let tls = has_tls.then(|| tls.clone());
            let listen = listen.parse().expect("an address");
            let config = Config { tls, knows_clients, ..Config::plain(listen) };
            let said = config.warning();
            let holds = said.map(|said| expected.is_some_and(|part| said.contains(part)));
            assert!(holds.unwrap_or(expected.is_none()), "{listen} {has_tls} {knows_clients}: {said:?}");
        };
        check("127.0.0.1:3456", false, false, None);
        check("[::1]:3456", false, false, None);
        check("127.0.0.1:3456", true, false, None);
        check("0.0.0.0:3456", true, true, None);
        check("0.0.0.0:3456", true, false, Some("--client-ca-file"));
        check("10.0.0.1:3456", false, false, Some("loopback"));
        check("[::]:3456", false, false, Some("loopback"));
    }
}
