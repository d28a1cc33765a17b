//! Where a pod is to go is told before something that may take minutes: before its volumes are made.
//!
//! Its room is held in this process alone, and who scales a cluster down would take a node for idle to which pods are
//! on their way (kubernetes #125491). So `status.nominatedNodeName` names the node, as with upstream's
//! `NominatedNodeNameForExpectation` (KEP 5278, on by default since 1.35): only where a PreBind plugin has something to
//! do (`PreBindPreFlight`), and of those there is one here, that of the volumes. It is for others, and for who
//! schedules after this process, who looks at that node first. What counts here is the flight: this process never reads
//! it back. It is taken back where the flight ends without a binding. What a binding leaves of it is the API server's
//! (`ClearingNominatedNodeNameAfterBinding`).
//!
//! The write rests on the pod as it was known, so it cannot come late. Where it is refused, or lost, the pod goes on
//! all the same.

use std::sync::Arc;

use carrack_engine::{ApiError, ApiResponse, Effects, Time};
use carrack_types::resource::Object as _;
use serde_json::json;

use super::{Ask, Call, Flight, Scheduler, Step};
use crate::Pod;
use crate::scheduler::attempt::{revision, status_patch};

impl Scheduler {
    /// Says where a pod is to go, if its status does not say so yet. Tells whether an answer is to come.
    pub(super) fn announce(&mut self, now: Time, flight: &Flight, fx: &mut Effects<Ask>) -> bool {
        let (uid, node) = (&flight.row.pod.uid, &*flight.node);
        let Some(row) = self.queue.get(uid).filter(|row| !row.is_written(Some(node))) else { return false };
        let pod = row.pod.pod.clone();
        let patch = json!({"metadata": {"uid": pod.uid(), "resourceVersion": revision(&pod)},
            "status": {"nominatedNodeName": node}});
        self.queue.wrote_nomination(uid, Some(node));
        let call = self.send(status_patch(&pod, &patch), fx);
        self.awaits(now, call, Call::Flight(flight.id(), Step::Announce));
        true
    }

    /// What became of [`Self::announce`]. The binding is to rest on the pod as it is now.
    pub(super) fn announced(
        &mut self,
        now: Time,
        uid: &str,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Ask>,
    ) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        match result.and_then(|reply| reply.object::<Pod>()) {
            Ok(pod) => {
                let is_newer = flight.latest.as_ref().is_none_or(|known| known.revision() < pod.revision());
                if is_newer && pod.uid() == uid {
                    flight.latest = Some(Arc::new(pod));
                }
            }
            Err(error) => tracing::debug!(uid, %error, "where a pod is to go was not written"),
        }
        self.one_written(now, uid, fx);
    }

    /// A flight has ended without a binding. Who leads no more leaves it to who does, what the pod's status says of it.
    pub(super) fn take_back(&mut self, now: Time, uid: &str, fx: &mut Effects<Ask>) {
        let row = self.queue.get(uid).filter(|row| row.nominated.is_none() && !row.is_written(None));
        if let Some(pod) = row.filter(|_| self.led).map(|row| row.pod.pod.clone()) {
            self.write_renounced(now, &pod, fx);
        }
    }
}
