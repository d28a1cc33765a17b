//! Whether a resize can ever be on this node, and in which order those that wait are tried
//! (`pkg/kubelet/allocation/handlers.go` and `sortPendingResizes`).

use std::cmp::Reverse;

use carrack_engine::Time;
use k8s_openapi::api::core::v1::Pod;

use super::{Allocation, Size, resizable};
use crate::amount::Amounts;
use crate::spec::pod;

/// Why a resize can never be, if it cannot: a message, and the name under which it is counted. `has_its_own` says whether the
/// node gives containers CPUs and memory of their own.
#[must_use]
pub fn infeasible(
    desired: &Pod,
    allocated: &Allocation,
    allocatable: &Amounts,
    has_its_own: (bool, bool),
) -> Option<(String, &'static str)> {
    if pod::is_static(desired) {
        return Some(("In-place resize of static-pods is not supported".into(), "static_pod"));
    }
    let changes = |differ: fn(Size, Size) -> bool| {
        resizable(desired).any(|c| differ(Size::of(allocated.containers.get(&c.name)), Size::of(c.resources.as_ref())))
    };
    let is_guaranteed = pod::qos_class(desired) == "Guaranteed";
    if has_its_own.0 && is_guaranteed && changes(|has, wants| has.cpu_request != wants.cpu_request) {
        let message = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
        return Some((message.into(), "guaranteed_pod_cpu_manager_static_policy"));
    }
    if has_its_own.1 && is_guaranteed && changes(|has, wants| has.memory_request != wants.memory_request) {
        let message = "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";
        return Some((message.into(), "guaranteed_pod_memory_manager_static_policy"));
    }
    let requests = pod::requests(desired);
    let of = |list: &Amounts, name: &str| list.get(name).copied().unwrap_or(0);
    // As upstream tells it: memory first, in bytes; CPUs in thousandths.
    let beyond = [("memory", 1000), ("cpu", 1)].into_iter().find_map(|(name, unit)| {
        let (requested, capacity) = (of(&requests, name), of(allocatable, name));
        let text = format!("{name}, requested: {}, capacity: {}", requested / unit, capacity / unit);
        (requested > capacity).then_some(text)
    });
    beyond.map(|what| (format!("Node didn't have enough capacity: {what}"), "insufficient_node_allocatable"))
}

/// Where a resize stands among those that wait; the least is tried first: one that asks for no more, then by priority, by
/// class, and by how long it has been deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    grows: bool,
    priority: Reverse<i32>,
    is_not_guaranteed: bool,
    never_deferred: bool,
    deferred_since: Option<Time>,
}

impl Rank {
    /// Of a pod that wishes something else than what it is allocated.
    #[must_use]
    pub fn of(desired: &Pod, allocated: &Pod, deferred_since: Option<Time>) -> Self {
        let (wants, has) = (pod::requests(desired), pod::requests(allocated));
        Self {
            grows: ["cpu", "memory"].iter().any(|name| wants.get(*name).unwrap_or(&0) > has.get(*name).unwrap_or(&0)),
            priority: Reverse(pod::spec(desired).priority.unwrap_or(0)),
            is_not_guaranteed: pod::qos_class(desired) != "Guaranteed",
            never_deferred: deferred_since.is_none(),
            deferred_since,
        }
    }
}
