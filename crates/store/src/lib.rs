//! The versioned key-value store under the API server.
//!
//! A store is one ordered map from keys to values with one revision counter. Every committed
//! transaction takes the next revision; all its changes carry it. History since the last
//! compaction can be watched and read. [`Store`] is the contract; [`embedded`] keeps the map in
//! memory and a log on disk.

mod model;
pub mod embedded;

pub use model::*;
