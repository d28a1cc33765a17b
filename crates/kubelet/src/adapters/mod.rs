//! The node's side: each [`Op`](crate::Op) carried out on the real machine.
//!
//! One file for each neighbour: the container runtime, device plugins, mounts and volumes, control
//! groups, the local record, the machine itself, the network.

pub mod backend;
pub mod cgroups;
mod convert;
pub(crate) mod credentials;
pub mod cri;
pub mod drivers;
pub mod env_files;
pub mod found;
pub mod found_cpus;
mod found_memory;
pub mod host;
pub(crate) mod kernel;
pub(crate) mod kernel_log;
mod listening;
pub mod log_links;
pub mod logind;
pub mod logs;
mod manifest_url;
pub mod manifests;
pub mod net;
mod oom;
pub mod plugins;
pub mod podresources;
pub(crate) mod pulse;
mod readings;
pub(crate) mod reviews;
pub mod sockets;
pub mod stats;
pub mod storage_times;
pub mod store;
mod termination;
mod turns;
pub mod volumes;
mod withheld;

pub(crate) use carrack_disks::{mounts, remove};

use crate::effects::OpError;
pub(crate) use crate::server::clock::now;

/// An error of the operating system with what it was about.
pub(crate) fn io_error(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> OpError {
    move |e| match e.kind() {
        std::io::ErrorKind::NotFound => OpError::NotFound(format!("{what}: {e}")),
        _ => OpError::Failed(format!("{what}: {e}")),
    }
}

/// Runs disk work off the event loop.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, OpError> + Send + 'static,
) -> Result<T, OpError> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| Err(OpError::Failed(e.to_string())))
}
