//! A machine that is being shut down: which pods end when, and how long each has
//! (<https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/>).
//!
//! Pods end in groups, those of the least priority first. A group has its time; when it is over, the next one's turn has come,
//! whatever is left of it (kubernetes `pkg/kubelet/nodeshutdown`).

use std::time::Duration;

/// What pods are told that end because the machine is shut down.
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// The reason of that.
pub const REASON: &str = "Terminated";
/// Why a pod is rejected meanwhile.
pub const REJECTED: (&str, &str) = ("NodeShutdown", "Pod was rejected as the node is shutting down.");

/// The time of the pods from a priority on, up to that of the next such group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The least priority.
    pub priority: i32,
    /// The time.
    pub grace: Duration,
}

/// Pods by their priorities, the least first. Without any, nobody is waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// Puts groups in order.
    #[must_use]
    pub fn new(mut groups: Vec<Group>) -> Self {
        groups.sort_by_key(|group| group.priority);
        Self(groups)
    }

    /// Ordinary and critical pods, where critical ones have a part of the time for themselves (`migrateConfig`).
    #[must_use]
    pub fn of_two(all: Duration, critical: Duration) -> Self {
        match all.checked_sub(critical).filter(|_| !all.is_zero()) {
            Some(ordinary) => Self::new(vec![
                Group { priority: 0, grace: Duration::from_secs(ordinary.as_secs()) },
                Group { priority: CRITICAL, grace: Duration::from_secs(critical.as_secs()) },
            ]),
            None => Self::default(),
        }
    }

    /// Whether nobody is waited for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    #[must_use]
    pub fn list(&self) -> &[Group] {
        &self.0
    }

    /// How long all of it may take.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.0.iter().map(|group| group.grace).sum()
    }

    /// The group of a priority, as its place: the first one for those that are below all (`groupByPriority`).
    #[must_use]
    pub fn of(&self, priority: i32) -> usize {
        self.0.iter().rposition(|group| group.priority <= priority).unwrap_or(0)
    }
}

/// Priority from which a pod is critical (`system-cluster-critical`).
pub const CRITICAL: i32 = 2_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_have_their_groups() {
        let s = Duration::from_secs;
        let group = |priority, grace_s| Group { priority, grace: s(grace_s) };
        let three = Groups::new(vec![group(100, 20), group(-5, 5), group(1000, 60)]);
        assert_eq!(three.list(), [group(-5, 5), group(100, 20), group(1000, 60)]);
        assert_eq!(three.total(), s(85));
        for (priority, expected) in [(-6, 0), (-5, 0), (99, 0), (100, 1), (999, 1), (1000, 2), (i32::MAX, 2)] {
            assert_eq!(three.of(priority), expected, "{priority}");
        }
        for (all_s, critical_s, expected) in [
            (30, 10, vec![group(0, 20), group(CRITICAL, 10)]),
            (30, 0, vec![group(0, 30), group(CRITICAL, 0)]),
            (0, 0, vec![]),
            (10, 30, vec![]),
        ] {
            assert_eq!(Groups::of_two(s(all_s), s(critical_s)).list(), expected, "{all_s} {critical_s}");
        }
    }
}
