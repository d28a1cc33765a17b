//! Clones of machines: snapshots and restores by the real controllers, over storage that is slow and fails.
//!
//! [`acts`]: what people do, and [`squatter`] who takes names that are not theirs. [`storage`]: what stands beside a storage
//! system. [`checks`]: what must hold at every step; [`ends`]: what must be so in the end. [`mishap`]: one thing that goes wrong,
//! for tests that try everything that can.
//!
//! Machines that run while they are copied: [`live`] what people do with them, [`host`] the agents of their node, [`room`] what
//! is really there, and who has which disk open.

mod acts;
mod checks;
mod ends;
mod host;
mod live;
mod mishap;
mod room;
mod squatter;
mod storage;

pub use acts::Scene;
pub(crate) use acts::acts;
pub(crate) use checks::{
    CLONED_STATE, Clones, KEPT_STATE, ONE_INSTANT, RESTORED_STATE, copies_lack, is_copy, one_instant,
};
pub(crate) use ends::{course_lacks, debris, end, lacks, restore_lacks, snapshot_lacks};
pub(crate) use host::manager as host;
pub(crate) use live::machines_lack;
pub(crate) use mishap::Fate;
pub use mishap::{Counts, Mishap};
pub(crate) use room::{NAME as COPIED_DISKS_REST, Room, opens, takes};
pub(crate) use squatter::Squatter;
pub(crate) use storage::manager as storage;
