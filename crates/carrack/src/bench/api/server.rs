#![expect(clippy::disallowed_methods, reason = "shell: starts a process and measures time")]
//! The server to measure: one that is given, or an API server of our own.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_auth::kubeconfig::Kubeconfig;

use super::figures::Spent;
use crate::bench::scratch::Scratch;
use crate::bench::used::{cpu_s, resident_mb};
use crate::wire::Endpoint;

/// How long a server may take to be ready.
const LIMIT: Duration = Duration::from_secs(60);

/// A server under measurement. One that was started here ends with this value, and its directory goes.
pub struct Server {
    pub endpoint: Endpoint,
    /// From its start until it was ready.
    pub ready_ms: Option<f64>,
    /// The processes whose memory counts.
    pids: Vec<u32>,
    own: Option<Own>,
}

struct Own {
    process: Child,
    /// Goes when the process has ended.
    dir: Scratch,
}

fn endpoint(kubeconfig: &Path) -> anyhow::Result<Endpoint> {
    let context = || format!("cannot use the kubeconfig {}", kubeconfig.display());
    let target = Kubeconfig::load(kubeconfig).with_context(context)?.resolve(None).with_context(context)?;
    Endpoint::of(&target).with_context(context)
}

impl Server {
    /// The server of a kubeconfig.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub fn given(kubeconfig: &Path, pids: &[u32]) -> anyhow::Result<Self> {
        Ok(Self { endpoint: endpoint(kubeconfig)?, ready_ms: None, pids: pids.to_vec(), own: None })
    }

    /// Starts an API server in a directory of its own, and waits until it is ready.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(port: u16, store: &str) -> anyhow::Result<Self> {
        let dir = Scratch::new("api")?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let began = Instant::now();
        let process = Command::new(program)
            .args(["apiserver", "--log-level", "warn", "--bind-address", "127.0.0.1"])
            .args(["--https-port", &port.to_string(), "--store", store, "--data-dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start an API server")?;
        let pids = vec![process.id()];
        let mut own = Own { process, dir };
        let kubeconfig = own.dir.path().join("kubeconfig.yaml");
        let mut reached = None;
        while began.elapsed() < LIMIT {
            if let Some(status) = own.process.try_wait().context("cannot watch the API server")? {
                bail!("the API server ended: {status}");
            }
            // One connection, kept: making a new one each time would keep the server from its work.
            if reached.is_none()
                && kubeconfig.exists()
                && let Ok(endpoint) = endpoint(&kubeconfig)
                && let Ok(connection) = endpoint.connect().await
            {
                reached = Some((endpoint, connection));
            }
            if let Some((endpoint, mut connection)) = reached.take() {
                match connection.exchange(&endpoint, "GET", "/readyz", "", b"").await {
                    Ok((200, _)) => {
                        let ready_ms = Some(began.elapsed().as_secs_f64() * 1000.0);
                        return Ok(Self { endpoint, ready_ms, pids, own: Some(own) });
                    }
                    Ok(_) => reached = Some((endpoint, connection)),
                    Err(_) => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        bail!("the API server was not ready within {} s", LIMIT.as_secs())
    }

    /// Processor time that its processes and this one have used.
    pub fn spent(&self) -> Spent {
        let server: Option<f64> = self.pids.iter().map(|pid| cpu_s(*pid).ok()).sum();
        Spent { server_s: server.filter(|_| !self.pids.is_empty()), client_s: cpu_s(std::process::id()).ok() }
    }

    /// Resident memory of all its processes in MB, if they are known.
    ///
    /// # Errors
    /// One of them is gone.
    pub fn resident_mb(&self) -> anyhow::Result<Option<f64>> {
        let all: anyhow::Result<Vec<f64>> = self.pids.iter().map(|pid| resident_mb(*pid)).collect();
        let all = all?;
        Ok((!all.is_empty()).then(|| all.iter().sum()))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            crate::output::say(format_args!("the measured API server does not end: {error}"));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.own.take());
    }
}
