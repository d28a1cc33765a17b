//! Who holds what several pods claim: pods that others have bound, with annotations that somebody else has written.

use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::{GpuExtender, Planted};
use crate::claims::{bound_since, room_for};
use crate::demand::Demand;
use crate::ledger::{Entry, Stage};
use crate::place::{Places, Uses};

impl GpuExtender {
    /// Counts a pod where its annotations say, as far as nobody else holds that already. Offers are no holds yet: for such a
    /// pod other places are found when it is bound.
    pub(super) fn claim(&mut self, pod: &Pod, node: &str, demand: &Demand, places: Places, stage: Stage) {
        let uid = pod.uid();
        self.count(pod, node, demand, places, stage);
        if self.planted == Some(Planted::ClaimsAddUp) {
            return;
        }
        let Some(entry) = self.ledger.get(uid) else { return };
        let holds = room_for(&entry.claims, &self.ledger.settled(node, uid), self.gpus(node));
        if holds == entry.claims {
            return;
        }
        let entry = Entry { holds, ..entry.clone() };
        tracing::warn!(
            pod = pod.name(),
            namespace = pod.namespace(),
            node,
            claims = ?entry.claims,
            counts = ?entry.holds,
            "the annotations of a pod claim GPUs that others have, or that its node has not"
        );
        self.ledger.set(uid, entry);
    }

    /// Leaves a pod its claim, and nothing that it holds of it: what there is comes from [`Self::settle_claims`].
    pub(super) fn hold_nothing(&mut self, uid: &str) {
        if let Some(entry) = self.ledger.get(uid) {
            let entry = Entry { holds: Uses::new(), ..entry.clone() };
            self.ledger.set(uid, entry);
        }
    }

    /// Gives those whose claims are contested what is free by now, in the order in which they were bound.
    pub(super) fn settle_claims(&mut self) {
        let contested = self.ledger.contested().map(|(uid, entry)| (uid.to_owned(), entry.clone()));
        let mut contested: Vec<(String, Entry)> = contested.collect();
        if contested.is_empty() {
            return;
        }
        contested.sort_by_cached_key(|(uid, entry)| {
            let since = self.pod(&entry.namespace, &entry.name, uid).map(|pod| bound_since(pod));
            // One that the cache does not know is newer than all that it knows.
            (since.is_none(), since.map(|(since, made, _)| (since, made)), uid.clone())
        });
        for (uid, _) in &contested {
            self.hold_nothing(uid);
        }
        for (uid, entry) in contested {
            let holds = room_for(&entry.claims, &self.ledger.settled(&entry.node, &uid), self.gpus(&entry.node));
            self.ledger.set(&uid, Entry { holds, ..entry });
        }
    }

    /// It is known now which GPUs a node has: where more is held than that, those who were bound first hold what there is.
    pub(super) fn look_for_gpus(&mut self, node: &str) {
        let gpus = self.gpus(node);
        let held = self.ledger.settled(node, "");
        if gpus.is_empty() || room_for(&held, &Uses::new(), gpus) == held {
            return;
        }
        let entries = self.ledger.iter().filter(|(_, entry)| entry.node == node && entry.stage == Stage::Held);
        let held: Vec<String> = entries.map(|(uid, _)| uid.to_owned()).collect();
        for uid in &held {
            self.hold_nothing(uid);
        }
        self.settle_claims();
    }
}
