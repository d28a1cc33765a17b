//! What is counted of resizes, for the metrics (`pkg/kubelet/metrics/metrics.go` for the names of labels).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::{Size, resizable};

/// Counts of resizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeCounts {
    /// Pods that wait, by reason (`deferred`, `infeasible`).
    pub pending: BTreeMap<&'static str, usize>,
    /// Pods whose allocation is being brought about.
    pub in_progress: usize,
    /// Resizes that can never be, by why.
    pub infeasible: BTreeMap<&'static str, u64>,
    /// Resizes that were allocated after they had been deferred, by what led to that.
    pub accepted: BTreeMap<&'static str, u64>,
    /// What was asked for, of containers: resource, `requests` or `limits`, and whether it is more or less.
    pub requested: BTreeMap<(&'static str, &'static str, &'static str), u64>,
    /// How many were brought about, or not, and how long that took together.
    pub took: BTreeMap<bool, (u64, Duration)>,
}

impl ResizeCounts {
    /// Counts what a pod asks for that it did not ask for before.
    pub fn ask(&mut self, before: &Pod, now: &Pod) {
        for c in resizable(now) {
            let Some(was) = resizable(before).find(|was| was.name == c.name) else { continue };
            let (from, to) = (Size::of(was.resources.as_ref()), Size::of(c.resources.as_ref()));
            for (resource, requirement, from, to) in [
                ("cpu", "requests", from.cpu_request, to.cpu_request),
                ("cpu", "limits", from.cpu_limit, to.cpu_limit),
                ("memory", "requests", from.memory_request, to.memory_request),
                ("memory", "limits", from.memory_limit, to.memory_limit),
            ] {
                let operation = match (from, to) {
                    (from, to) if from == to => continue,
                    (0, _) => "add",
                    (_, 0) => "remove",
                    (from, to) if from < to => "increase",
                    _ => "decrease",
                };
                *self.requested.entry((resource, requirement, operation)).or_default() += 1;
            }
        }
    }
}
