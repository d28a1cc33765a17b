//! The node's own containerd and pod network.
//!
//! Carrack does not touch a containerd that the machine may already run: it keeps one of its own below the data
//! directory, with its own root, state, socket, images and CNI network. The parts, from the inside out:
//!
//! ```text
//!   layout ── where everything lies, and the names derived from the data directory (bridge, CNI network)
//!   host   ── what the machine offers, probed: capabilities, overlayfs, cgroups, programs
//!   cgroups ── asks the kernel to move processes into them without waiting
//!   config ── pure: layout + host facts → config.toml, CNI conflist
//!   lock   ── one process at a time runs a cluster or takes it down
//!   process ─ a process named so that it cannot be mistaken for a later one; signals through pidfds
//!   limits ── open files and the order when memory runs out: what an agent takes, and what its runtime begins with
//!   containerd ─ start or adopt, wait until CRI answers, notice death and start again
//!   hung   ── when a containerd that runs counts as none
//!   rules  ── the packet filter's rules for pods, set and put back; ports ── those for their host ports, put back
//!   members ── several nodes on one machine: their names, addresses and networks
//!   networks ── further networks of pods: their plugin, and what is left of them
//!   power ─── switches one of several nodes off, as a power cut does
//!   teardown ─ the way back: pods, processes, namespaces, links, rules, mounts, directories
//! ```
//!
//! containerd is started in a session of its own, and containers belong to their shims: killing every Carrack
//! process, and containerd too, stops no container. The next start adopts what runs.

mod cgroups;
pub mod config;
pub mod containerd;
pub mod cri;
pub mod host;
mod hung;
pub mod layout;
pub mod limits;
pub mod lock;
pub mod members;
pub mod networks;
mod ports;
pub mod power;
pub mod process;
pub mod rules;
pub mod teardown;

pub use config::NodeSettings;
pub use containerd::{Containerd, StartError};
pub use host::{HostFacts, Problem};
pub use layout::Layout;
pub use networks::FurtherNetworks;
