//! Room is given back only when no binding can take it any more.
//!
//! A binding whose outcome is unknown may still be on its way, and arrive when its room has gone to another pod. So a
//! Binding rests on the pod as it was known, by UID and resourceVersion (`BindingREST` in
//! pkg/registry/core/pod/storage/storage.go takes both as preconditions), and a flight ends only when the pod was seen at
//! another revision: what arrives then is refused. Where nobody else has written the pod meanwhile, the scheduler does: what it
//! has to say anyway, the condition `PodScheduled=False`, and it waits for the answer.
//!
//! ```text
//!   outcome unknown ─▶ a live read ──has a node──▶ bound
//!        ▲                  ├── at another revision ─▶ bound to the same node once more, a few times
//!        │                  └── as the binding rests on
//!        │                            ▼
//!        └── unknown, or no change ◀─ condition is written ──acknowledged──▶ forgotten: back into the queue
//! ```
//!
//! An extender that binds pods decides itself what its Binding rests on; the pod is written in any case then.

use std::sync::Arc;

use carrack_engine::{ApiError, ApiResponse, Effects, Time};
use carrack_types::resource::Object as _;
use serde_json::json;

use super::{Ask, Call, Flight, Scheduler, Stage, Step};
use crate::Pod;
use crate::scheduler::attempt::{revision, status_patch};

/// So often a pod is bound to the node that was chosen for it, when somebody else writes the pod in between.
const MOST_BINDINGS: u32 = 3;

impl Scheduler {
    /// The revision that a binding is to rest on: the newest that was heard of.
    pub(super) fn newest_revision(&self, flight: &Flight) -> Option<String> {
        let queued = || self.queue.get(&flight.row.pod.uid).map(|row| &row.pod.pod);
        revision(flight.latest.as_ref().or_else(queued).unwrap_or(&flight.row.pod.pod))
    }

    /// A live read has shown that the pod of a binding has no node.
    pub(super) fn unbound(&mut self, now: Time, uid: &str, live: Pod, fx: &mut Effects<Ask>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        let live = Arc::new(live);
        flight.latest = Some(live.clone());
        // It takes no room, wherever it is bound.
        if live.is_deleting() || live.ended {
            return self.forget(now, uid, None, fx);
        }
        let is = revision(&live);
        match &flight.rests_on {
            Some(rested_on) if is.as_ref() != Some(rested_on) => self.bind_again(now, uid, &live, fx),
            _ => {
                flight.rests_on = is;
                if flight.trouble.is_empty() {
                    flight.trouble = format!("binding to node {} failed: the pod has no node", flight.node);
                }
                self.fence(now, uid, &live, fx);
            }
        }
    }

    /// No binding that was sent can take effect any more. Its room is still held, so the pod goes there all the same, unless it
    /// has become another one.
    fn bind_again(&mut self, now: Time, uid: &str, live: &Arc<Pod>, fx: &mut Effects<Ask>) {
        let info = self.decider.cluster.read(live.clone());
        let Some(flight) = self.flights.get_mut(uid) else { return };
        let is_there = self.decider.cluster.find_existing(&flight.node).is_some();
        let same = info.is_like(&flight.row.pod);
        // Another may have led since it was decided, and given the room away.
        let decided_now = self.led && flight.of_term == self.since;
        if !(decided_now && is_there && same && flight.sent < MOST_BINDINGS) {
            return self.forget(now, uid, None, fx);
        }
        flight.row.pod = info;
        self.bind(now, uid, fx);
    }

    /// Writes the pod, so that a binding which rests on it as it is comes too late.
    fn fence(&mut self, now: Time, uid: &str, live: &Pod, fx: &mut Effects<Ask>) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        flight.stage = Stage::Fencing;
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": revision(live)}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": flight.trouble,
            "lastTransitionTime": now.rfc3339()}]}});
        let call = Call::Flight(flight.id(), Step::Fence);
        self.awaits(now, fx.api(status_patch(live, &patch)), call);
    }

    /// What became of [`Self::fence`].
    pub(super) fn fenced(
        &mut self,
        now: Time,
        uid: &str,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Ask>,
    ) {
        let Some(flight) = self.flights.get_mut(uid) else { return };
        match result.and_then(|reply| reply.object::<Pod>()) {
            Ok(pod) if pod.uid() == uid && pod.node.is_empty() && revision(&pod) != flight.rests_on => {
                flight.latest = Some(Arc::new(pod));
                let why = flight.trouble.clone();
                self.forget(now, uid, Some(&why), fx);
            }
            Err(error) if error.is_not_found() => self.vanished(now, uid),
            // Somebody else has written it, which is as good.
            Err(error) if error.is_conflict() => self.check(now, uid, fx),
            // Unknown, or it said what the pod says already: the same words have another time in a while.
            _ => {
                flight.stage = Stage::Checking;
                self.check_later(now, uid, fx);
            }
        }
    }
}
