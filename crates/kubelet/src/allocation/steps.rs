//! In which order a pod's group and its containers get other limits
//! (`doPodResizeAction` in `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).
//!
//! A group that grows grows before what is in it, and one that shrinks shrinks after; containers that shrink go before
//! those that grow. Each step may be the last one that this kubelet does, and may be done again by the next.

use std::collections::BTreeMap;

use super::{GroupLimits, Size};
use crate::runtime::Resources;

/// A container that is to have another size.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Name.
    pub name: String,
    /// Id.
    pub id: String,
    /// What it has; none where that is not known.
    pub from: Option<Size>,
    /// What it is to have.
    pub to: Size,
    /// The same as limits of the kernel's.
    pub limits: Resources,
}

impl Change {
    /// Whether its memory is to be less than it is, as far as that is known.
    #[must_use]
    pub fn takes_memory(&self) -> bool {
        self.to.memory_limit > 0 && self.from.is_none_or(|from| at_most(self.to.memory_limit, from.memory_limit))
    }

    fn grows(&self) -> bool {
        let Some(from) = self.from else { return true };
        let limits = |size: Size| (bound(size.memory_limit), bound(size.cpu_limit), size.cpu_request);
        limits(self.to) > limits(from)
    }
}

/// A limit as a number to compare: none is beyond all.
fn bound(limit: i128) -> i128 {
    if limit == 0 { i128::MAX } else { limit }
}

fn at_most(less: i128, more: i128) -> bool {
    bound(less) < bound(more)
}

/// What a pod's control group is like, and what is used in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Its limits; none where pods have no groups of their own.
    pub limits: Option<GroupLimits>,
    /// Memory that the pod uses, in bytes, where that is known.
    pub memory_bytes: Option<u64>,
    /// The same of containers, by their ids.
    pub containers: BTreeMap<String, u64>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Limit the pod's group.
    Group(GroupLimits),
    /// Limit a container.
    Container(Box<Change>),
}

/// Why nothing is done at present: memory is not taken away that is in use (`validateMemoryResizeAction`).
#[must_use]
pub fn held_back(read: &Reading, target: &GroupLimits, changes: &[Change]) -> Option<String> {
    let mut why = Vec::new();
    let limit = i128::from(target.memory_limit_bytes);
    let now = read.limits.map_or(limit, |limits| i128::from(limits.memory_limit_bytes));
    if let Some(used) = read.memory_bytes
        && limit > 0
        && at_most(limit, now)
        && i128::from(used) >= limit
    {
        why.push(format!("attempting to set pod memory limit ({limit}) below current usage ({used})"));
    }
    for c in changes.iter().filter(|c| c.takes_memory()) {
        let limit = c.to.memory_limit / 1000;
        if let Some(used) = read.containers.get(&c.id).filter(|used| i128::from(**used) >= limit) {
            let name = &c.name;
            why.push(format!(
                "attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"
            ));
        }
    }
    match why.as_slice() {
        [] => None,
        [one] => Some(format!("cannot decrease memory limits: {one}")),
        all => Some(format!("cannot decrease memory limits: [{}]", all.join(", "))),
    }
}

/// What to do, one after another.
#[must_use]
pub fn steps(now: Option<&GroupLimits>, target: &GroupLimits, mut changes: Vec<Change>) -> Vec<Step> {
    changes.sort_by_key(Change::grows);
    let containers = changes.into_iter().map(|change| Step::Container(Box::new(change)));
    let Some(now) = now else { return containers.collect() };
    let larger = |now: i64, to: i64| if at_most(i128::from(now), i128::from(to)) { to } else { now };
    // A limit that is there is not taken away, as upstream does not.
    let kept = |now: i64, to: i64| if to == 0 { now } else { to };
    let last = GroupLimits {
        cpu_period_us: kept(now.cpu_period_us, target.cpu_period_us),
        cpu_quota_us: kept(now.cpu_quota_us, target.cpu_quota_us),
        cpu_shares: target.cpu_shares,
        memory_limit_bytes: kept(now.memory_limit_bytes, target.memory_limit_bytes),
    };
    // With another period a quota is another share: that comes as one.
    let period = now.cpu_quota_us > 0 && now.cpu_period_us != last.cpu_period_us;
    let first = GroupLimits {
        cpu_period_us: last.cpu_period_us,
        cpu_quota_us: if period { last.cpu_quota_us } else { larger(now.cpu_quota_us, last.cpu_quota_us) },
        cpu_shares: now.cpu_shares.max(last.cpu_shares),
        memory_limit_bytes: larger(now.memory_limit_bytes, last.memory_limit_bytes),
    };
    let written = |limits: GroupLimits| (limits.cpu_quota_us, limits.cpu_shares, limits.memory_limit_bytes);
    let grow = (period || written(first) != written(*now)).then_some(Step::Group(first));
    let shrink = (written(last) != written(first)).then_some(Step::Group(last));
    grow.into_iter().chain(containers).chain(shrink).collect()
}
