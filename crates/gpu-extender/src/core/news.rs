//! What the watch of pods tells: pods that others bound, pods that ended, attempts that failed.

use std::sync::Arc;

use carrack_engine::{Delta, Effects};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::{GpuExtender, Reply, is_over, node_of};
use crate::annotations;
use crate::demand::{self, Asking, Demand};
use crate::ledger::{Entry, Stage};
use crate::node::{Gpu, Shape};
use crate::place::Places;

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
        match self.places_of(pod, node, &demand) {
            Some(places) => self.claim(pod, node, &demand, places, Stage::Held),
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

    /// The GPUs that a pod's annotations name, by the numbers that they have by now.
    fn places_of(&self, pod: &Pod, node: &str, demand: &Demand) -> Option<Places> {
        annotations::read_by_uuid(self.names(), pod, node, demand, self.gpus(node))
    }

    /// What a pod that is in the ledger holds by now, if its annotations name its cards.
    fn by_cards(&self, uid: &str, entry: &Entry) -> Option<(Arc<Pod>, Demand, Places)> {
        let pod = self.pod(&entry.namespace, &entry.name, uid)?.clone();
        let demand = demand::of(&pod, self.names()).ok()?;
        let named = |asking: &Asking| annotations::uuids(self.names(), &pod, asking.slot, asking.want.gpus()).is_some();
        let places = self.places_of(&pod, &entry.node, &demand).filter(|_| demand.iter().all(named))?;
        Some((pod, demand, places))
    }

    /// A node's GPUs have changed: those that have other numbers now are held under these, those that are there no more by nobody,
    /// and one that is there again by who had it. Who is just being bound keeps the numbers that are being written.
    pub(super) fn renumber(&mut self, node: &str, before: Option<&Shape>) {
        let Some(after) = self.shapes.get(node) else { return };
        // A node without any is one whose plugin has not come yet, after a reboot: nobody loses a card by that.
        let uuids = |shape: &Shape| -> Option<Vec<String>> {
            let uuid = |gpu: &Gpu| Some(gpu.uuid.clone()).filter(|uuid| !uuid.is_empty());
            Some(&shape.gpus).filter(|gpus| !gpus.is_empty())?.iter().map(uuid).collect()
        };
        // Where they had no names before, numbers say nothing of which they were.
        let old = before.and_then(uuids);
        let Some(new) = uuids(after).filter(|new| old.as_ref() != Some(new)) else { return };
        let number = |before: &usize| {
            let uuid = old.as_ref()?.get(*before)?;
            new.iter().position(|now| now == uuid)
        };
        let here = self.ledger.iter().filter(|(_, entry)| entry.node == node);
        let here: Vec<(String, Entry)> = here.map(|(uid, entry)| (uid.to_owned(), entry.clone())).collect();
        for (uid, mut entry) in here {
            if entry.stage == Stage::Held
                && let Some((pod, demand, places)) = self.by_cards(&uid, &entry)
            {
                self.count(&pod, node, &demand, places, Stage::Held);
                if entry.is_contested() {
                    self.hold_nothing(&uid);
                }
                continue;
            }
            if old.is_none() || matches!(entry.stage, Stage::Binding | Stage::Undoing) {
                continue;
            }
            let is_lost = entry.holds.keys().any(|gpu| number(gpu).is_none());
            if is_lost && matches!(entry.stage, Stage::Offered { .. }) {
                self.ledger.remove(&uid);
                continue;
            }
            for gpus in entry.places.values_mut() {
                *gpus = gpus.iter().filter_map(number).collect();
            }
            for uses in [&mut entry.holds, &mut entry.claims] {
                *uses = uses.iter().filter_map(|(gpu, used)| Some((number(gpu)?, *used))).collect();
            }
            self.ledger.set(&uid, entry);
        }
        self.settle_claims();
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
        if let Some(places) = self.places_of(pod, &node, &demand).filter(|places| !places.is_empty()) {
            self.claim(pod, &node, &demand, places, Stage::Undoing);
        }
        self.undo_found(pod, &node, fx);
    }
}

/// The scheduler says of a pod that it found no node, or failed.
fn was_refused(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "PodScheduled" && c.status == "False")
}
