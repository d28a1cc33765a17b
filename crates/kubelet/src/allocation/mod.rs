//! What the node has set aside for each pod, and what its containers really have: in-place resize
//! (KEP-1287, kubernetes `pkg/kubelet/allocation`).
//!
//! ```text
//!  spec (desired) ─▶ may it be? ─▶ allocated: on disk, and counted from then on ─▶ actuated: groups and containers have it
//!                       │ not now: deferred     ▲ at admission, what the spec says
//!                       └ never: infeasible
//! ```
//!
//! Everything on the node goes by what is allocated: admission, control groups, starts of containers, downward volumes. The
//! core therefore looks at a pod as it is allocated ([`Allocation::applied`]), and at its spec only to see what it wishes.

mod counts;
mod decide;
mod message;
mod state;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::{Deserialize, Serialize};

use crate::amount;
use crate::runtime::Resources;
use crate::spec::pod::{self, ContainerKind, spec};

pub use counts::ResizeCounts;
pub use decide::{Rank, infeasible};
pub use message::summary;
pub use state::{StateError, decode_actuated, decode_allocated, encode_actuated, encode_allocated};
pub use steps::{Change, Reading, Step, held_back, steps};

/// Deferred: it does not fit at present.
pub const DEFERRED: &str = "Deferred";
/// Infeasible: it never will, on this node.
pub const INFEASIBLE: &str = "Infeasible";

/// What of a container's resources can be resized, in thousandths; 0 where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// CPUs requested.
    pub cpu_request: i128,
    /// Most CPUs.
    pub cpu_limit: i128,
    /// Memory requested.
    pub memory_request: i128,
    /// Most memory.
    pub memory_limit: i128,
}

impl Size {
    /// Of a container or of a pod as a whole.
    #[must_use]
    pub fn of(resources: Option<&ResourceRequirements>) -> Self {
        let Some(r) = resources else { return Self::default() };
        let limit = |name: &str| r.limits.as_ref().and_then(|l| l.get(name)).and_then(amount::milli).unwrap_or(0);
        let request = |name: &str| {
            let own = r.requests.as_ref().and_then(|l| l.get(name)).and_then(amount::milli);
            // As the API server fills it in.
            own.unwrap_or_else(|| limit(name))
        };
        Self {
            cpu_request: request("cpu"),
            cpu_limit: limit("cpu"),
            memory_request: request("memory"),
            memory_limit: limit("memory"),
        }
    }

    /// Whether a container with this size has to be started again to have another one, as its policy says.
    #[must_use]
    pub fn needs_restart(self, to: Self, c: &Container) -> bool {
        let cpu = (self.cpu_request, self.cpu_limit) != (to.cpu_request, to.cpu_limit);
        let memory = (self.memory_request, self.memory_limit) != (to.memory_request, to.memory_limit);
        c.resize_policy.iter().flatten().any(|policy| {
            policy.restart_policy == "RestartContainer"
                && match policy.resource_name.as_str() {
                    "cpu" => cpu,
                    "memory" => memory,
                    _ => false,
                }
        })
    }
}

/// Containers that can be resized: those that run beside each other (upstream's `IsResizableContainer`).
pub fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    let sidecars = pod::init_containers(pod).filter(|(kind, _)| *kind == ContainerKind::Sidecar).map(|(_, c)| c);
    sidecars.chain(&spec(pod).containers)
}

/// What a pod is given: its containers by their names, and the pod as a whole where it asks for that.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    /// Of each container that can be resized.
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Of the pod as a whole.
    pub pod: Option<ResourceRequirements>,
}

impl Allocation {
    /// What a pod's spec asks for.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let containers = resizable(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect();
        Self { containers, pod: spec(pod).resources.clone() }
    }

    fn differs_for(&self, c: &Container) -> bool {
        self.containers.get(&c.name).is_some_and(|own| Size::of(Some(own)) != Size::of(c.resources.as_ref()))
    }

    fn differs_as_a_whole(&self, pod: &Pod) -> bool {
        Size::of(self.pod.as_ref()) != Size::of(spec(pod).resources.as_ref())
    }

    /// Whether a pod asks for something else than this.
    #[must_use]
    pub fn differs(&self, pod: &Pod) -> bool {
        resizable(pod).any(|c| self.differs_for(c)) || self.differs_as_a_whole(pod)
    }

    /// The pod with this in place of what it asks for.
    #[must_use]
    pub fn applied(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if !self.differs(pod) {
            return pod.clone();
        }
        let mut applied = Pod::clone(pod);
        let whole = self.differs_as_a_whole(pod);
        if let Some(spec) = &mut applied.spec {
            for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                if self.differs_for(c) {
                    c.resources = self.containers.get(&c.name).cloned();
                }
            }
            if whole {
                spec.resources.clone_from(&self.pod);
            }
        }
        Arc::new(applied)
    }
}

/// The limits of a pod's control group that change with its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupLimits {
    /// CFS period in microseconds.
    pub cpu_period_us: i64,
    /// CFS quota in microseconds; 0 for none.
    pub cpu_quota_us: i64,
    /// CPU shares of cgroup v1.
    pub cpu_shares: i64,
    /// Memory limit in bytes; 0 for none.
    pub memory_limit_bytes: i64,
}

impl From<&Resources> for GroupLimits {
    fn from(r: &Resources) -> Self {
        Self {
            cpu_period_us: r.cpu_period_us,
            cpu_quota_us: r.cpu_quota_us,
            cpu_shares: r.cpu_shares,
            memory_limit_bytes: r.memory_limit_bytes,
        }
    }
}

impl From<GroupLimits> for Resources {
    fn from(limits: GroupLimits) -> Self {
        Self {
            cpu_period_us: limits.cpu_period_us,
            cpu_quota_us: limits.cpu_quota_us,
            cpu_shares: limits.cpu_shares,
            memory_limit_bytes: limits.memory_limit_bytes,
            ..Self::default()
        }
    }
}

/// What a container was given last, in place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// The container's id; empty where whoever wrote this did not say.
    pub id: String,
    /// What.
    pub resources: ResourceRequirements,
}

/// What of an allocation has been brought about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actuated {
    /// By container's name.
    pub containers: BTreeMap<String, Given>,
    /// Of the pod as a whole.
    pub pod: Option<ResourceRequirements>,
    /// The pod's own control group, where that is known.
    pub group: Option<GroupLimits>,
    /// Containers that are stopped in order to be started with another size: how they end says nothing.
    pub restarting: BTreeSet<String>,
    /// Containers that are about to be given another size: whether they have it is not known.
    pub unsure: BTreeSet<String>,
}

/// Resources with the CPUs and the memory of others, where these have some.
#[must_use]
pub fn with_sizes_of(base: &ResourceRequirements, actual: &ResourceRequirements) -> ResourceRequirements {
    let mut out = base.clone();
    for (to, from) in [(&mut out.limits, &actual.limits), (&mut out.requests, &actual.requests)] {
        for name in ["cpu", "memory"] {
            if let Some(q) = from.as_ref().and_then(|list| list.get(name)) {
                to.get_or_insert_default().insert(name.to_owned(), q.clone());
            }
        }
    }
    out
}

/// The part of resources that can be resized, as a container carries it with it.
#[must_use]
pub fn carried(resources: Option<&ResourceRequirements>) -> ResourceRequirements {
    with_sizes_of(&ResourceRequirements::default(), &resources.cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests;
