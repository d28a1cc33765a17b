//! The controllers of virtual machines.
//!
//! ```text
//!   VirtualMachine ──vm──▶ VirtualMachineInstance ──vmi──▶ launcher pod ──kubelet──▶ container
//!                                  ▲                                                     │
//!                                  └──────── status ──── virt-handler ◀── guest ─────────┘
//! ```
//!
//! `vm` makes and deletes instances as the run strategy says. `vmi` owns an instance until its pod runs (phases Pending,
//! Scheduling, Scheduled); from then on the node's handler owns it, until it is final and `vmi` clears up. `node` stops
//! placement on nodes whose handler has fallen silent, and `node::recovery` fails instances whose node is proven dead.
//! `replicaset` keeps numbers of equal instances. `snapshot` keeps what a machine is, `restore` makes it so again, and `clone`
//! makes another one of it; `copies` is how the first two do it where storage takes no snapshots. `installation` says that all this is there. `metrics` counts, and writes nothing.

pub mod clone;
pub(crate) mod copies;
mod defined;
pub mod installation;
pub mod metrics;
pub mod node;
mod planted;
pub mod replicaset;
pub mod restore;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
mod trim;
pub mod vm;
pub mod vmi;

use carrack_engine::{Manager, Rng};

pub use planted::Planted;

/// Settings of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Image of the launcher.
    pub launcher_image: String,
    /// Directory on every node with the program that keeps containers of container disks alive (see
    /// `paths::KEEP_ALIVE_DIR`).
    pub keep_alive_dir: String,
    /// A bug that the simulator plants.
    pub planted: Option<Planted>,
}

/// Component name in events.
pub const COMPONENT: &str = "virtualmachine-controller";

/// The core of the `virt-controller` role.
#[must_use]
pub fn manager(config: &Config, rng: Rng) -> Manager {
    with_clones(config, rng, clone::CloneController::default())
}

/// The same with this controller of clones: the simulator plants bugs in it.
#[must_use]
pub fn with_clones(config: &Config, rng: Rng, clones: clone::CloneController) -> Manager {
    without_clones(config, rng).with(clones)
}

/// All but the controller of clones, which may run in a process of its own, with caches of its own.
#[must_use]
pub fn without_clones(config: &Config, rng: Rng) -> Manager {
    Manager::new(COMPONENT, rng)
        .with(vm::VmController::new(config.planted))
        .with(vmi::VmiController::new(config.clone()))
        .with(replicaset::ReplicaSetController)
        .with(node::NodeController::new(config.planted))
        .with(node::recovery::RecoveryController::new(config.planted))
        .with(snapshot::SnapshotController::new(config))
        .with(snapshot::ContentController::new(config))
        .with(restore::RestoreController::new(config))
        .with(installation::InstallationController)
}
