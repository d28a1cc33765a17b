//! Workloads: Deployments that are rolled, scaled and paused, and the others, on nodes that only pretend.
//!
//! What people do is in [`acts`], what must hold at every step in [`Bounds`], what must be so in the end in [`lacks`].

mod acts;
mod bounds;
mod wants;

pub(crate) use acts::acts;
pub(crate) use bounds::Bounds;
pub(crate) use wants::{end, lacks};

/// How many nodes there are.
pub(crate) const NODES: usize = 4;

/// The nodes.
pub(crate) fn nodes() -> carrack_hollow::Config {
    carrack_hollow::Config {
        nodes: NODES,
        start_after: std::time::Duration::from_millis(300),
        stop_after: std::time::Duration::from_millis(700),
        ..carrack_hollow::Config::default()
    }
}
