//! The node agent: pods over CRI, devices, volumes, admission, status, logs and exec.
//!
//! [`KubeletCore`] decides: it observes the pods bound to its node, the runtime, the plugins and the
//! outcomes of what it asked for, and answers with effects. [`run`] is the shell around it: it talks
//! to containerd, mounts, serves HTTPS and the plugins' sockets. The simulator runs the same core
//! with a [`sim::SimRuntime`].
//!
//! ```text
//!  API pods ─▶ admission ─▶ record ─▶ volumes ─▶ sandbox ─▶ containers ─▶ status ─▶ API
//!                              ▲                    ▲            ▲
//!                          local disk            CRI relist   devices, probes, images
//! ```

mod adapters;
pub mod admission;
pub mod align;
pub mod allocation;
pub mod amount;
pub mod certificates;
mod config;
pub mod configuration;
pub mod configz;
mod core;
pub mod cpus;
pub mod credentials;
pub mod devices;
mod effects;
pub mod eviction;
pub mod images;
mod local_storage;
pub mod memory;
mod planted;
pub mod pods;
pub mod probes;
pub mod pulled;
pub mod records;
pub mod runtime;
pub mod server;
mod shell;
pub mod shutdown;
pub mod sim;
pub mod spec;
pub mod static_url;
pub mod status;
pub mod topology;
pub mod volumes;

pub use config::*;
pub use core::KubeletCore;
pub use effects::*;
pub use planted::Planted;
pub use shell::{KubeletError, check_machine, run};
