//! virt-launcher: starts QEMU in the pod, speaks QMP, and answers the handler.
//!
//! ```text
//!  container "compute"                                    virt-handler
//!  ┌───────────────────────────────────────────┐
//!  │ process 1: carrack virt-launcher ([entry])│
//!  │   ├─ starts ──► monitor ([monitor]) ◄─────┼── command socket ([proto], [client])
//!  │   │               │ prepares disks        │
//!  │   ◄── QEMU's argv ┘                       │
//!  │   └─ becomes QEMU (exec) ◄── QMP ── monitor
//!  └───────────────────────────────────────────┘
//! ```
//!
//! QEMU is the container's first process and the monitor is an ordinary one beside it. So the guest does not
//! depend on any process of ours: the monitor may die at any instant, and a new one (`carrack virt-launcher
//! monitor`, run in the container) takes over from what it finds in the private directory and over QMP.
//! QEMU ends when the monitor tells it to, after the reason has been written down; see [`domain`].
//!
//! What QEMU is started with is a pure function of the [`spec::MachineSpec`]; see [`argv`].

pub mod accel;
pub mod agent;
pub mod argv;
pub mod board;
pub mod cli;
pub mod client;
pub mod copy;
mod copying;
pub mod dhcp;
pub mod domain;
mod entry;
pub mod image;
pub mod iso;
pub mod layout;
mod lines;
mod monitor;
mod pinning;
mod prepare;
mod probe;
pub mod promise;
pub mod proto;
pub mod qmp;
pub mod receive;
pub mod said;
pub mod spec;
mod tail;
mod tpm;
pub mod trim;
pub mod writer;

pub use accel::Accel;
pub use domain::{Domain, EndReason, Phase};
pub use layout::Layout;
pub use lines::LineError;
pub use spec::MachineSpec;
