//! virt-handler: the node agent of virtual machines.
//!
//! ```text
//!   API server ◀─ status, heartbeat ─ Handler (core) ─ Out ─▶ shell: pod network, disks, launcher sockets,
//!       │                                 ▲                          device plugins, local record
//!       └─ instances, pods, own node ─────┴──────── In ◀──────────── what became of it
//!
//!   API server ── console, vnc, pause … (HTTPS, 8186) ─▶ server ─▶ the guest's sockets
//! ```
//!
//! The core ([`core`]) decides about each instance whose pod runs here: when its guest starts, what its status says, how
//! it is brought down. It touches nothing itself; [`effects`] names what it may ask for. The simulator runs the same
//! core over a simulated node.

pub mod agent;
pub mod core;
pub mod effects;
pub mod keep_alive;
pub mod shell;
pub mod spec;
mod status;

pub use core::Handler;
pub use effects::{In, Op, OpId, Out, Outcome, Reply};
