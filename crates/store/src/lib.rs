//! The versioned key-value store under the API server.
//!
//! A store is one ordered map from keys to values with one revision counter. Every committed
//! transaction takes the next revision; all its changes carry it. History since the last
//! compaction can be watched and read. [`Store`] is the contract.
//!
//! ```text
//!   mem::state      map + history, a value: apply, range, compact        (pure)
//!   mem::watch      watchers by prefix, their buffers and wakers         (pure)
//!   mem::published  what readers and watchers see, swapped at a commit   (pure)
//!        │                              │                                │
//!   mem::MemStore: no disk,   embedded::EmbeddedStore: one      etcd::EtcdStore: transactions go
//!   ready at the first poll   writer thread, log and snapshot   to etcd, a watch brings back what
//!                             on disk, one flush for many       they and those of others changed
//! ```
//!
//! Entries that rest are packed (`entry`, `pack`) by `packer`, which has a thread for it where the store has a shell.
//!
//! [`mem`] reads no clock, does no IO and needs no runtime, so the simulator runs it as it is.

pub mod backup;
pub mod bench;
pub mod embedded;
mod entry;
pub mod etcd;
mod layer;
pub mod mem;
mod memo;
mod model;
mod packer;

pub use embedded::EmbeddedStore;
pub use etcd::EtcdStore;
pub use layer::Layer;
pub use mem::MemStore;
pub use memo::Memo;
pub use model::*;
