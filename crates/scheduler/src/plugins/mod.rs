//! The plugins, each with upstream's name, semantics and words (kubernetes, pkg/scheduler/framework/plugins).
//!
//! Whatever depends on one node alone is a function of pod and node here. What depends on many nodes at once (spreading,
//! affinity between pods) is kept by [`crate::class`] in counters, and judged here from those.

pub mod fit;
pub mod images;
pub mod node;
pub mod spread;
pub mod volumes;

#[cfg(test)]
mod tests;
