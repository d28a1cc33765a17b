//! Clones of machines: snapshots and restores by the real controllers, over storage that is slow and fails.
//!
//! [`acts`]: what people do, and [`squatter`] who takes names that are not theirs. [`storage`]: what stands beside a storage
//! system. [`checks`]: what must hold at every step; [`ends`]: what must be so in the end. [`mishap`]: one thing that goes wrong,
//! for tests that try everything that can.

mod acts;
mod checks;
mod ends;
mod mishap;
mod squatter;
mod storage;

pub use acts::Scene;
pub(crate) use acts::acts;
pub(crate) use checks::Clones;
pub(crate) use ends::{debris, end, lacks};
pub(crate) use mishap::Fate;
pub use mishap::{Counts, Mishap};
pub(crate) use squatter::Squatter;
pub(crate) use storage::manager as storage;
