//! Nodes that fall silent: what is said about them, how they are tainted, and which pods that evicts.
//!
//! ```text
//!   Lease renewed ─▶ heard at (own clock) ─▶ silent for the grace period ─▶ conditions Unknown
//!                                                                               │
//!      TaintEviction ◀── NoExecute, by zone and rate ◀── NoSchedule at once ◀───┘
//! ```
//!
//! - [`NodeLifecycle`] judges Leases and sets conditions and taints; [`zones`] says how fast.
//! - [`TaintEviction`] deletes pods that do not tolerate `NoExecute` taints.

mod eviction;
mod lifecycle;
mod missing;
mod zones;

use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, NodeCondition};

pub use eviction::TaintEviction;
pub use lifecycle::NodeLifecycle;
pub(crate) use missing::Missing;

/// Taint by which an operator says that a node is shut down and will not come back with what it ran.
pub(crate) const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
pub(crate) const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
pub(crate) const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";

/// A node's condition.
pub(crate) fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == type_)
}

/// Status of a node's `Ready` condition; empty when it has none.
pub(crate) fn ready_status(node: &Node) -> &str {
    condition(node, "Ready").map_or("", |c| c.status.as_str())
}

/// Whether a node says that it is ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    ready_status(node) == "True"
}

/// The topology zone of a node, with its region.
pub(crate) fn zone_of(node: &Node) -> String {
    let label = |key: &str| node.label(key).unwrap_or_default();
    format!("{}:{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}
