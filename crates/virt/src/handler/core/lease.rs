//! Keeps the node's Lease: see [`crate::fence`] for what it means.
//!
//! ```text
//!              read: none ─▶ create ──┐
//!   start ─▶ read: ours ─▶ renew ─────┴─▶ promised until sent + 8 s ─every 2 s─▶ renew …
//!              ▲  read: marked ─▶ end all bound guests ─▶ none is left ─▶ begin a new term ─▶ promised …
//!              └── any failure: what became of it is unknown, so it is read again
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, Time};
use carrack_types::resource::{Kind as _, Object};
use carrack_types::well_known::kubevirt::NODE_LEASE_NAMESPACE;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::fence::{GUEST_RUNS, LEASE_DURATION, RENEW_PERIOD, is_marked, term};

/// A request that was not answered for so long is not waited for any longer; a late answer still counts.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Requests in flight at a time.
const FLIGHTS: usize = 3;

/// A request in flight.
struct Flight {
    sent: Time,
    writes: bool,
    /// The Lease was called unsure for its sake. Once is enough: whether it arrives after what was read then, a write
    /// that rests on what was read finds out.
    doubted: bool,
}

/// A node's Lease, and what follows from it.
pub(super) struct Keeper {
    node: String,
    /// The newest form of the Lease that was seen.
    known: Option<Lease>,
    /// Whether it may have changed since, by a write of ours whose outcome is not known.
    unsure: bool,
    flights: BTreeMap<CallId, Flight>,
    /// Not before.
    due: Time,
    /// Guests may run until then.
    promised: Option<Time>,
    /// The last failure was told.
    told: bool,
}

impl Keeper {
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            known: None,
            unsure: true,
            flights: BTreeMap::new(),
            due: Time::default(),
            promised: None,
            told: false,
        }
    }

    /// Until when guests may run, while that lies ahead.
    pub fn promised(&self, now: Time) -> Option<Time> {
        self.promised.filter(|until| now < *until)
    }

    /// Until when guests were to run, also when that is over; none when this process has never held the Lease.
    pub fn last_promise(&self) -> Option<Time> {
        self.promised
    }

    /// The term under which guests start, while they may.
    pub fn term(&self, now: Time) -> Option<i64> {
        self.promised(now)?;
        self.known.as_ref().filter(|lease| !is_marked(lease)).map(term)
    }

    /// Whether the Lease was found marked: bound guests must end before anything else.
    pub fn is_marked(&self) -> bool {
        self.known.as_ref().is_some_and(is_marked)
    }

    /// What to ask for now, and when to look again. `clean` says that no bound guest is left on this node.
    pub fn next(&mut self, now: Time, clean: bool) -> (Option<ApiRequest>, Time) {
        let answers_by = self.flights.values().map(|flight| flight.sent + ANSWER_WITHIN).max();
        if let Some(until) = answers_by.filter(|until| now < *until) {
            return (None, until);
        }
        if now < self.due {
            return (None, self.due);
        }
        for flight in self.flights.values_mut().filter(|flight| flight.writes && !flight.doubted) {
            flight.doubted = true;
            self.unsure = true;
        }
        if self.flights.len() >= FLIGHTS {
            // The oldest is given up; should it be answered all the same, nothing follows from it.
            let oldest = self.flights.iter().min_by_key(|(_, flight)| flight.sent).map(|(id, _)| *id);
            oldest.map(|id| self.flights.remove(&id));
        }
        let request = match &self.known {
            _ if self.unsure => ApiRequest::get(&Lease::resource(), NODE_LEASE_NAMESPACE, &self.node),
            None => ApiRequest::create(&self.lease(now, None)),
            Some(lease) if is_marked(lease) && !clean => {
                self.due = now + RETRY;
                return (None, self.due);
            }
            Some(lease) => ApiRequest::update(&self.lease(now, Some(lease))),
        };
        (Some(request), now + ANSWER_WITHIN)
    }

    /// What [`Self::next`] asked for has been sent.
    pub fn sent(&mut self, id: CallId, now: Time) {
        self.flights.insert(id, Flight { sent: now, writes: !self.unsure, doubted: false });
    }

    /// An answer. Returns false when it is not about the Lease.
    pub fn answered(&mut self, now: Time, id: CallId, result: &Result<ApiResponse, ApiError>) -> bool {
        let Some(Flight { sent, writes, .. }) = self.flights.remove(&id) else { return false };
        match result.as_ref().map_err(Clone::clone).and_then(|reply| reply.object::<Lease>()) {
            Ok(lease) => {
                if writes {
                    // Counted from before the request, so that it is never longer than others believe.
                    let until = sent + GUEST_RUNS;
                    self.promised = Some(self.promised.map_or(until, |old| old.max(until)));
                }
                if self.known.as_ref().is_none_or(|known| known.revision() <= lease.revision()) {
                    self.known = Some(lease);
                }
                self.unsure = false;
                self.told = false;
                self.due = if writes { sent + RENEW_PERIOD } else { now };
            }
            Err(error) if error.is_not_found() && !writes => {
                self.known = None;
                self.unsure = false;
                self.due = now;
            }
            Err(error) => {
                self.unsure = true;
                let changed = error.is_conflict() || error.is_already_exists();
                self.due = if changed { now } else { now + RETRY };
                if !self.told {
                    self.told = true;
                    tracing::warn!(%error, "the node's lease was not renewed");
                }
            }
        }
        true
    }

    /// The Lease as it is to be: held, without a mark, in a new term if there was one.
    fn lease(&self, now: Time, old: Option<&Lease>) -> Lease {
        let term = old.map_or(1, |lease| term(lease) + i64::from(is_marked(lease)));
        Lease {
            metadata: ObjectMeta {
                namespace: Some(NODE_LEASE_NAMESPACE.to_owned()),
                name: Some(self.node.clone()),
                resource_version: old.and_then(|lease| lease.metadata.resource_version.clone()),
                uid: old.and_then(|lease| lease.metadata.uid.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.node.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                renew_time: Some(now.meta_micro()),
                lease_transitions: i32::try_from(term).ok(),
                ..LeaseSpec::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carrack_types::well_known::kubevirt::FENCED_ANNOTATION;
    use serde_json::json;

    fn at(ms: u64) -> Time {
        Time::from_unix_s(1000) + Duration::from_millis(ms)
    }

    fn reply(revision: u32, term: i64, marked: bool) -> Result<ApiResponse, ApiError> {
        let annotations = if marked { json!({FENCED_ANNOTATION: "now"}) } else { json!({}) };
        let body = json!({"metadata": {"name": "n", "resourceVersion": revision.to_string(), "annotations": annotations},
            "spec": {"leaseTransitions": term, "holderIdentity": "n", "leaseDurationSeconds": 10}});
        Ok(ApiResponse { status: 200, body: body.to_string().into() })
    }

    struct Rig(Keeper, u64);

    impl Rig {
        /// Asks what is next, and sends it.
        fn ask(&mut self, ms: u64, clean: bool) -> Option<(CallId, String)> {
            let (request, _) = self.0.next(at(ms), clean);
            let request = request?;
            self.1 += 1;
            let id = CallId(self.1);
            self.0.sent(id, at(ms));
            Some((id, format!("{:?}", request.method)))
        }
        fn done(&mut self, ms: u64, id: CallId, result: &Result<ApiResponse, ApiError>) {
            assert!(self.0.answered(at(ms), id, result));
        }
    }

    fn held() -> Rig {
        let mut rig = Rig(Keeper::new("n"), 0);
        let (id, what) = rig.ask(0, true).expect("a request");
        assert_eq!(what, "Get");
        rig.done(10, id, &reply(5, 1, false));
        let (id, what) = rig.ask(10, true).expect("a request");
        assert_eq!(what, "Put");
        rig.done(100, id, &reply(6, 1, false));
        rig
    }

    #[test]
    fn a_promise_counts_from_before_the_request() {
        let rig = held();
        assert_eq!(rig.0.promised(at(100)), Some(at(10) + GUEST_RUNS));
        assert_eq!(rig.0.term(at(100)), Some(1));
        assert_eq!((rig.0.promised(at(8010)), rig.0.term(at(8010))), (None, None));
    }

    #[test]
    fn what_was_not_answered_is_read_before_it_is_tried_again() {
        let mut rig = held();
        assert!(rig.ask(1000, true).is_none());
        let (lost, what) = rig.ask(2010, true).expect("a request");
        assert_eq!(what, "Put");
        assert!(rig.ask(3000, true).is_none());
        let (id, what) = rig.ask(4010, true).expect("a request");
        assert_eq!(what, "Get");
        // The answer of the first comes all the same: it was written, and counts from when it was sent.
        rig.done(4100, lost, &reply(7, 1, false));
        assert_eq!(rig.0.promised(at(4100)), Some(at(2010) + GUEST_RUNS));
        rig.done(4200, id, &reply(7, 1, false));
        assert_eq!(rig.ask(4200, true).map(|(_, what)| what), Some("Put".to_owned()));
    }

    #[test]
    fn a_mark_is_taken_off_only_by_a_node_without_bound_guests_and_begins_a_term() {
        let mut rig = held();
        let (id, _) = rig.ask(2010, true).expect("a request");
        rig.done(2020, id, &Err(ApiError::from_reply(409, b"{}")));
        let (id, what) = rig.ask(2020, true).expect("a request");
        assert_eq!(what, "Get");
        rig.done(2030, id, &reply(9, 1, true));
        assert!(rig.0.is_marked() && rig.0.term(at(2030)).is_none());
        assert!(rig.ask(2030, false).is_none());
        assert!(rig.ask(2040, true).is_none(), "it is looked at again a little later");
        let (request, _) = rig.0.next(at(3030), true);
        let body: Lease = serde_json::from_slice(&request.expect("a request").body).expect("a lease");
        assert_eq!((term(&body), is_marked(&body)), (2, false));
        assert_eq!(body.metadata.resource_version.as_deref(), Some("9"));
    }
}
