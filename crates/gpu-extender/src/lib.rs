//! GPUs shared between pods: a scheduler extender, for Carrack's scheduler and upstream's.
//!
//! ```text
//!   scheduler ── predicates, priorities, preemption ──▶ ┌──────────────┐ ◀── watches of pods and nodes ── API server
//!             ── bind ────────────────────────────────▶ │ GpuExtender  │ ── patch, Binding, live reads ──▶
//!                                                       │   ledger     │
//!                                                       └──────────────┘
//!      pod's annotations ─▶ the node's device plugin (crate `gpu-plugin`) ─▶ environment of the container
//! ```
//!
//! [`demand`]: what a pod asks for. [`node`]: which GPUs a node has. [`place`]: where a pod's containers go. [`Ledger`]: who
//! holds what. [`GpuExtender`]: the core that answers. [`serve`]: HTTP and HTTPS around it. [`GpuAnnotations`]: the API
//! server's part, by which nobody else writes those annotations.
//!
//! A filter names one node, and the ledger counts the pod there from then on; asked again about the same pod it says the
//! same. Nothing is written until the pod is bound. Then the choice is written into the pod's annotations, resting on UID and
//! resourceVersion, and the Binding rests on what that write made. So a binding can only be as late as the annotation is
//! old: whoever wants to be sure that a lost Binding never arrives writes the pod once more. That is how a failed binding is
//! undone, and what a newly started extender does with every pod that has such annotations and no node.
//!
//! One extender serves a cluster at a time. It is not ready until it has listed pods and nodes.

pub mod annotations;
mod claims;
mod core;
pub mod demand;
mod guard;
mod ledger;
mod metrics;
mod names;
pub mod near;
pub mod node;
pub mod place;
pub mod serve;
mod trim;
pub mod wire;

pub use core::{Call, Config, GpuExtender, Planted, Reply, Verb};
pub use guard::GpuAnnotations;
pub use ledger::{Entry, Ledger, Stage};
pub use names::{CORES, DEFAULT_PREFIX, Names};
pub use node::{Gpu, Shape};
