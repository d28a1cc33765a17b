//! The kubelet's HTTPS server (port 10250): what the API server forwards to a node.
//!
//! ```text
//!   accept ─▶ TLS ─▶ access (client certificate) ─▶ route ─▶ handle ─┬─▶ find ─▶ logs: the runtime's files
//!                                                                    ├─▶ find ─▶ CRI ─▶ upgrade: exec, attach,
//!                                                                    │                  port-forward, joined
//!                                                                    ├─▶ system_logs: files below /var/log
//!                                                                    └─▶ pods, stats, metrics, configz, healthz
//! ```
//!
//! Whether the kubelet is well is also told over plain HTTP, where somebody wants it (`healthz`). So is, at a port that there is only
//! where it is asked for (`readOnlyPort`), whatever looks into no container: pods, stats, metrics and health.
//!
//! Paths, parameters and texts are upstream's (`pkg/kubelet/server`). It speaks HTTP/1.1 only: each
//! of its streams is a connection that changes its protocol, and nobody else has much to ask. The
//! rest of the kubelet is behind [`Backend`].

mod accept;
mod access;
mod authority;
mod backend;
pub(crate) mod clock;
mod connection;
mod file_parts;
mod find;
#[cfg(test)]
mod fixture;
mod handle;
mod healthz;
mod log_query;
pub(crate) mod logs;
mod metrics;
mod program;
mod query;
mod reply;
mod route;
mod running;
mod settings;
mod stats;
mod streams;
mod system_logs;
#[cfg(test)]
mod tests;
mod tls;
mod upgrade;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use carrack_auth::strangers::Strangers;
use carrack_auth::tls::{Offered, TlsError};
use carrack_engine::requests::Requests;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

pub use authority::Authority;
pub use backend::{Answer, Backend, ExecOutput, Streams};
pub use settings::Settings;
pub use stats::{
    ClaimReference, ContainerStats, CpuStats, FsStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats,
    PodReference, PodStats, ProcessStats, RlimitStats, RuntimeStats, Summary, SwapStats, VolumeHealth, VolumeStats,
};
pub use tls::Tls;

pub(crate) use healthz::Healthz;

use crate::config::ServingTls;
use connection::{Door, Session, Shared};

/// What the server is told.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen.
    pub bind: SocketAddr,
    /// Where what may be read is told to everybody, over plain HTTP; nowhere without it.
    pub read_only: Option<SocketAddr>,
    /// TLS that asks for client certificates without demanding them (a request without a good one is
    /// answered with 401): [`server_tls`].
    pub tls: Arc<Tls>,
    /// Users that may do everything, besides members of `system:masters`.
    pub allowed_users: Vec<String>,
    /// Who says what others may; without it they may nothing.
    pub authority: Option<Arc<dyn Authority>>,
    /// Directory of the pods' logs, as in [`crate::NodeConfig::log_dir`].
    pub log_dir: PathBuf,
    /// Name of the node, for metrics.
    pub node_name: String,
    /// Version, for metrics.
    pub version: String,
    /// What `/configz` shows, whole (`{"kubeletconfig": …}`): no secrets.
    pub configz: serde_json::Value,
    /// What the kubelet asks of the API server, for metrics.
    pub asked: Requests,
    /// Bounds.
    pub settings: Settings,
}

/// TLS of the server.
///
/// # Errors
/// When the authority cannot be used.
pub fn server_tls(serving: &ServingTls, offered: &Offered) -> Result<Arc<Tls>, TlsError> {
    Tls::new(serving, offered)
}

/// Listens and serves until `shutdown` resolves: see [`Server`].
///
/// # Errors
/// When it cannot listen, or the listener fails for good.
pub async fn serve(
    config: ServerConfig,
    backend: Arc<dyn Backend>,
    shutdown: impl Future<Output = ()> + Send,
) -> std::io::Result<()> {
    Server::bind(config).await?.run(backend, shutdown).await
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    listener: TcpListener,
    read_only: Option<TcpListener>,
}

/// How many connections there are at the read-only port; with one more the oldest ends.
const MOST_READERS: usize = 64;

impl Server {
    /// Listens. Connections wait until [`Self::run`].
    ///
    /// # Errors
    /// When an address cannot be had, the read-only port's too, as with upstream (`ListenAndServeKubeletReadOnlyServer`): the error
    /// says which, and what to change.
    pub async fn bind(config: ServerConfig) -> std::io::Result<Self> {
        let listener = accept::listen(config.bind, "address, port").await?;
        let read_only = match config.read_only {
            Some(at) => Some(accept::listen(at, "readOnlyPort").await?),
            None => None,
        };
        Ok(Self { config, listener, read_only })
    }

    /// Where it tells everybody what may be read, if it does.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn read_only_addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.read_only.as_ref().map(TcpListener::local_addr).transpose()
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` resolves. Then followers and joined streams end, and other requests
    /// have [`Settings::drain`] to come to their end.
    ///
    /// # Errors
    /// When the listener fails for good.
    pub async fn run(
        self,
        backend: Arc<dyn Backend>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> std::io::Result<()> {
        let Self { config, listener, read_only } = self;
        let ServerConfig {
            bind: _,
            read_only: _,
            tls,
            allowed_users,
            authority,
            log_dir,
            node_name,
            version,
            configz,
            asked,
            settings,
        } = config;
        let door = Door::Tls(tls);
        let (end, ending) = watch::channel(false);
        let (cut_off, cut) = watch::channel(false);
        let (most, strangers) = (settings.max_connections, Strangers::new(settings.max_strangers));
        let places = Arc::new(Semaphore::new(most));
        let (most_streams, streams) = (settings.max_streams, Arc::new(Semaphore::new(settings.max_streams)));
        let drain = settings.drain;
        let requests = metrics::Requests::default();
        let shared = Arc::new(Shared {
            backend,
            allowed_users,
            authority,
            log_dir,
            node_name,
            version,
            configz,
            asked,
            settings,
            requests,
            streams: Arc::clone(&streams),
            ending,
        });
        let entrance = Entrance { shared, places: Arc::clone(&places), cut };
        let readers = async {
            match &read_only {
                Some(listener) => entrance.accept(listener, &Strangers::new(MOST_READERS), &Door::ReadOnly).await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            () = shutdown => Ok(()),
            result = entrance.accept(&listener, &strangers, &door) => result,
            result = readers => result,
        };
        drop(read_only);
        drop(listener);
        end.send_replace(true);
        // Whoever still holds a place is still at work.
        let all = |most: usize| u32::try_from(most).unwrap_or(u32::MAX);
        let emptied = async { tokio::join!(places.acquire_many(all(most)), streams.acquire_many(all(most_streams))) };
        if tokio::time::timeout(drain, emptied).await.is_err() {
            tracing::info!("connections of the kubelet's server are cut off after {} s", drain.as_secs());
        }
        cut_off.send_replace(true);
        result
    }
}

/// What all connections come into, by whatever door.
struct Entrance {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    /// Becomes true when whoever is still there is cut off.
    cut: watch::Receiver<bool>,
}

impl Entrance {
    /// Lets in who comes, until the listener fails for good.
    async fn accept(&self, listener: &TcpListener, strangers: &Strangers, door: &Door) -> std::io::Result<()> {
        loop {
            let stream = accept::next(listener, self.shared.settings.accept_pause).await?;
            // Nobody closes the semaphore.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return Ok(()) };
            let session = Session::new(Arc::clone(&self.shared), place);
            let connection = connection::run(session, strangers.enter(), stream, door.clone());
            let mut cut = self.cut.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = connection => {}
                    // An error means that the server is gone.
                    _ = cut.wait_for(|cut| *cut) => {}
                }
            });
        }
    }
}
