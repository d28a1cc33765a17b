//! The engine under every role: decisions as pure cores, and the shells that carry them out.
//!
//! A [`Core`] observes [`Input`]s and answers with [`Effects`]; it reads no clock and awaits
//! nothing. [`Informer`]s are parts that a core embeds to know a kind of object. A [`Manager`] is a
//! core that hosts [`Controller`]s, which see even less: a view in, a [`Plan`] out. The same cores
//! run in a process ([`shell`], on tokio) and in the simulator.
//!
//! ```text
//!   watch events, replies ─▶ Informer ─▶ Cache ─▶ reconcile(key, view, now) ─▶ Plan
//!          ▲                                 ▲                                  │
//!          │                                 └── barrier: the key waits until ◀─┤
//!          └──── API server ◀── requests ◀───── the cache shows its writes ─────┘
//! ```

pub mod accept;
mod api;
pub mod bucket;
mod cache;
mod controller;
mod core;
pub mod diff;
mod discovery;
mod events;
mod informer;
mod keys;
mod leader;
mod manager;
mod packed;
pub mod page;
mod plan;
mod premise;
mod queue;
pub mod requests;
mod rng;
pub mod shell;
pub mod testing;
mod time;
mod transport;
mod unseen;
pub mod version;
pub mod zpages;

pub use api::*;
pub use cache::*;
pub use controller::*;
pub use core::*;
pub use discovery::{GroupDiscovery, ResourceDiscovery, ResponseKind, VersionDiscovery};
pub use events::*;
pub use informer::*;
pub use leader::*;
pub use manager::*;
pub use plan::*;
pub use premise::*;
pub use queue::*;
pub use rng::*;
pub use time::*;
pub use transport::*;
