#![expect(clippy::disallowed_methods, reason = "shell: starts processes and measures time")]
//! Roles in processes of their own beside the one that is measured, and an API server that they can talk to: over HTTPS, on a
//! port of the loopback address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, write_private};
use carrack_noderuntime::Layout;

use super::used;
use crate::cli::access::AccessArgs;
use crate::cli::store::StoreArgs;
use crate::network;
use crate::roles::apiserver;

/// An API server on an embedded store, as everybody has it.
///
/// # Errors
/// The store cannot be opened, or the port is taken.
pub async fn server(layout: &Layout, pki: &Pki, port: u16) -> anyhow::Result<apiserver::Role> {
    let endpoint = apiserver::Endpoint {
        bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        service_range: network::range("10.97.0.0/16")?,
        // Told to the cluster as the server's, which a loopback address may not be.
        addresses: vec![network::own_address()],
        names: Vec::new(),
    };
    let store = StoreArgs { store: "embedded".to_owned(), ..StoreArgs::default() };
    apiserver::Role::open(layout, pki, &endpoint, &store, &AccessArgs::default()).await
}

/// A role in a process of its own, which ends with this.
pub struct Apart {
    child: Child,
    /// When it was started.
    pub began: Instant,
}

impl Apart {
    /// Starts a role with these arguments, which talks to the server on a port as somebody.
    ///
    /// # Errors
    /// Its kubeconfig cannot be written, or it cannot be started.
    pub fn start(role: &[&str], who: &Identity, layout: &Layout, pki: &Pki, port: u16) -> anyhow::Result<Self> {
        let pair = pki.client(who, apiserver::now_unix_s())?;
        let server = format!("https://127.0.0.1:{port}");
        let kubeconfig = Kubeconfig::for_certificate("bench", &who.user(), &server, pki.ca_pem(), &pair);
        let name = role.first().copied().unwrap_or_default();
        let path = layout.data_dir().join(format!("{name}.yaml"));
        write_private(&path, &kubeconfig.to_text()).with_context(|| format!("cannot write {}", path.display()))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let began = Instant::now();
        let child = Command::new(program)
            .args(role)
            .args(["--log-level", "warn", "--kubeconfig"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start the role {name}"))?;
        Ok(Self { child, began })
    }

    /// Its resident memory, in MB (10^6 bytes).
    ///
    /// # Errors
    /// It has ended.
    pub fn resident_mb(&self) -> anyhow::Result<f64> {
        used::resident_mb(self.pid())
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// It has ended.
    pub fn ensure_runs(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait().context("a process of this measurement cannot be watched")?;
        ended.map_or(Ok(()), |status| Err(anyhow::anyhow!("process {} ended: {status}", self.pid())))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // It has ended by itself, or it does now.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            tracing::warn!(%error, pid = self.child.id(), "a process of this measurement cannot be ended");
        }
    }
}
