//! What the watch of pods tells: pods that others bound, pods that ended, attempts that failed.

use carrack_engine::{Delta, Effects};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::{GpuExtender, Reply, is_over, node_of};
use crate::annotations;
use crate::demand;
use crate::ledger::{Entry, Stage};

impl GpuExtender {
    pub(super) fn heard(&mut self, delta: Delta<Pod>, fx: &mut Effects<Reply>) {
        match delta {
            Delta::Removed(pod) => self.gone(&pod, fx),
            Delta::Updated(old, new) => {
                if old.uid() != new.uid() {
                    self.gone(&old, fx);
                }
                self.changed(&new, fx);
            }
            Delta::Added(pod) => self.changed(&pod, fx),
        }
    }

    fn gone(&mut self, pod: &Pod, fx: &mut Effects<Reply>) {
        self.drop_flight(pod.uid(), "the pod is gone", fx);
        self.ledger.remove(pod.uid());
    }

    fn changed(&mut self, pod: &Pod, fx: &mut Effects<Reply>) {
        let uid = pod.uid();
        if is_over(pod) {
            return self.gone(pod, fx);
        }
        let node = node_of(pod);
        if !node.is_empty() {
            return self.is_bound(pod, fx);
        }
        // The attempt that the offer was for has failed, and the scheduler has said so.
        if let Some(Stage::Offered { revision, .. }) = self.ledger.get(uid).map(|entry| entry.stage)
            && pod.revision() > revision
            && was_refused(pod)
        {
            self.ledger.remove(uid);
        }
    }

    /// The API shows a pod bound.
    pub(super) fn is_bound(&mut self, pod: &Pod, fx: &mut Effects<Reply>) {
        let (uid, node) = (pod.uid(), node_of(pod));
        let held = |entry: &&Entry| matches!(entry.stage, Stage::Held) && entry.node == node;
        let settled = self.ledger.get(uid).filter(held).is_some();
        self.landed(uid, node, fx);
        if settled {
            // What it holds was settled when it was bound; who edits annotations moves nothing.
            return;
        }
        // What the API shows is what counts: somebody else may have bound it.
        self.ledger.remove(uid);
        let Ok(demand) = demand::of(pod, self.names()) else { return };
        if demand.is_empty() {
            return;
        }
        match annotations::read(self.names(), pod, node, &demand) {
            Some(places) => self.count(pod, node, &demand, places, Stage::Held),
            // Its node's plugin has nothing to hand out for it.
            None => {
                self.metrics.unassigned += 1;
                tracing::warn!(
                    pod = pod.name(),
                    namespace = pod.namespace(),
                    node,
                    "a pod was bound past the GPU extender"
                );
            }
        }
    }

    /// A pod of the first list.
    pub(super) fn found(&mut self, pod: &Pod, fx: &mut Effects<Reply>) {
        if is_over(pod) {
            return;
        }
        if !node_of(pod).is_empty() {
            return self.is_bound(pod, fx);
        }
        if annotations::keys(self.names(), pod).is_empty() {
            return;
        }
        // A former life meant to bind it, and its request may yet arrive. Until it cannot, the pod counts.
        let node = pod.annotation(&self.names().node).unwrap_or_default().to_owned();
        let demand = demand::of(pod, self.names()).unwrap_or_default();
        if let Some(places) = annotations::read(self.names(), pod, &node, &demand).filter(|places| !places.is_empty()) {
            self.count(pod, &node, &demand, places, Stage::Undoing);
        }
        self.undo_found(pod, &node, fx);
    }
}

/// The scheduler says of a pod that it found no node, or failed.
fn was_refused(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "PodScheduled" && c.status == "False")
}
