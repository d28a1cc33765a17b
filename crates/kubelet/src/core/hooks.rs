//! Which containers wait for the postStart hook of one before them, which is being started: proxies hold others back so
//! (upstream's `SyncPod`, `pkg/kubelet/kuberuntime`, starts one container after another, hooks included; one that fails holds up
//! nobody). Without such hooks containers start side by side.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::worker::{PodRuntime, Worker, in_order};
use crate::pods::plan::Start;
use crate::pods::records::Records;
use crate::runtime::ContainerState;

/// Whether a container has such a hook.
pub(super) fn hooks_start(c: &Container) -> bool {
    c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some())
}

/// The hooks of a pod.
#[derive(Default)]
pub(super) struct Hooks<'a> {
    /// Containers that have one, with their places among all, in order.
    with: Vec<(usize, &'a str)>,
    places: BTreeMap<&'a str, usize>,
    records: Records<'a>,
}

impl<'a> Hooks<'a> {
    pub fn of(pod: &'a Pod, runtime: &'a PodRuntime) -> Self {
        let with = in_order(pod).enumerate().filter(|(_, c)| hooks_start(c));
        let with: Vec<_> = with.map(|(place, c)| (place, c.name.as_str())).collect();
        if with.is_empty() {
            return Self::default();
        }
        let places = in_order(pod).enumerate().map(|(place, c)| (c.name.as_str(), place)).collect();
        Self { with, places, records: runtime.containers.iter().collect() }
    }

    /// Whether a container has one.
    pub fn has(&self, container: &str) -> bool {
        self.with.iter().any(|(_, name)| *name == container)
    }

    /// Whether one that is to start waits for another's.
    pub fn hold(&self, w: &Worker, start: &Start) -> bool {
        let place = self.places.get(start.name.as_str()).copied().unwrap_or(usize::MAX);
        let mut before = self.with.iter().take_while(|(other, _)| *other < place);
        before.any(|(_, name)| w.lanes.contains_key(*name) || self.is_made(name, &start.sandbox_id))
    }

    /// Whether one was made and not started, by an earlier life: it is made again.
    fn is_made(&self, container: &str, sandbox_id: &str) -> bool {
        let here = self.records.named(container).iter().filter(|r| r.sandbox_id == sandbox_id);
        here.max_by_key(|r| (r.attempt, r.created_at)).is_some_and(|r| r.state == ContainerState::Created)
    }
}
