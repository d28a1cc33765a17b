//! What the handler does for its node's Lease: it renews it, tells monitors of it, ends guests that outlive it, and has the
//! machine's watchdog end those that it cannot.

use carrack_engine::{ApiRequest, ContentType, Effects, Time};
use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::well_known::kubevirt::FENCING_TOKEN_ANNOTATION;
use serde_json::json;

use super::guest::{Guest, Hold};
use super::watchdog::Need;
use super::{Flight, Handler, Wake, Written};
use crate::fence::KILL_AFTER;
use crate::handler::effects::{Op, Out};

impl Handler {
    /// What the Lease allows now.
    pub(super) fn hold(&self, now: Time) -> Hold {
        let open = self.lease.promised(now).zip(self.lease.term(now));
        // A process that has not held the Lease yet leaves it to the monitors, who know what the one before promised.
        let over = self.lease.is_marked() || self.lease.last_promise().is_some_and(|until| until + KILL_AFTER <= now);
        Hold { open, over, guarded: self.is_guarded() }
    }

    /// Whether the watchdog does not keep guests from starting.
    pub(super) fn is_guarded(&self) -> bool {
        self.watchdog.is_settled(self.lease.last_promise())
    }

    /// Whether it is a fact that no guest that runs under the Lease is left. Those of a life before this one are known only
    /// once the record is read.
    fn is_clean(&self) -> bool {
        self.loaded && self.guests.values().all(|guest| !guest.record.bound || guest.is_over())
    }

    /// What the node's guests ask of the machine's watchdog.
    fn need(&self) -> Need {
        let wants = |guest: &Guest| (guest.record.bound || guest.needs_watchdog) && !guest.is_over();
        let wanted = self.guests.values().any(wants);
        Need { wanted, clean: self.is_clean(), promised: self.lease.last_promise() }
    }

    /// Opens, pets and closes the machine's watchdog.
    pub(super) fn guard(&mut self, now: Time, fx: &mut Effects<Out>) {
        let need = self.need();
        let (call, at) = self.watchdog.next(now, &need);
        if let Some(call) = call {
            self.op(fx, Op::Watchdog(call), Flight::Watchdog);
        }
        if let Some(at) = at.filter(|at| self.watchdog_at.is_none_or(|set| set <= now || *at < set)) {
            self.watchdog_at = Some(at);
            self.wake(fx, at, Wake::Watchdog);
        }
    }

    /// Renews the Lease when it is time, tells monitors of a new promise, and wakes for the end of the last one.
    pub(super) fn hold_lease(&mut self, now: Time, fx: &mut Effects<Out>) {
        let (request, at) = self.lease.next(now, self.is_clean());
        if let Some(request) = request {
            let id = fx.api(request);
            self.lease.sent(id, now);
        }
        let promised = self.lease.promised(now);
        if promised != self.told_until {
            self.told_until = promised;
            if let Some(until) = promised {
                self.promise(until, fx);
            }
            // Those that waited for it may start.
            self.consider_all(now, fx);
        } else if self.hold(now).over {
            let bound = self.guests.iter().filter(|(_, guest)| guest.record.bound && !guest.is_over() && !guest.busy);
            for uid in bound.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
                self.consider(now, &uid, fx);
            }
        }
        let ends = self.lease.last_promise().map(|until| until + KILL_AFTER).filter(|end| now < *end);
        let at = ends.map_or(at, |end| end.min(at)).max(now);
        if self.lease_at.is_none_or(|set| set <= now || at < set) {
            self.lease_at = Some(at);
            self.wake(fx, at, Wake::Lease);
        }
    }

    /// Tells the monitors of all guests that run under the Lease.
    fn promise(&mut self, until: Time, fx: &mut Effects<Out>) {
        let bound = self.guests.values().filter(|guest| guest.record.bound && !guest.is_over());
        let places: Vec<_> =
            bound.map(|guest| guest.record.place.clone()).filter(|place| !place.pod_uid.is_empty()).collect();
        if !places.is_empty() {
            Self::tell(fx, Op::Promise(places, until));
        }
    }

    /// Writes onto an instance in which term its guest starts.
    pub(super) fn claim(&mut self, uid: &str, term: i64, fx: &mut Effects<Out>) {
        let Some(vmi) = self.instance(uid) else { return };
        let Some(guest) = self.guests.get_mut(uid) else { return };
        if vmi.revision() < guest.barrier {
            return;
        }
        guest.writing = true;
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": vmi.metadata.resource_version,
            "annotations": {FENCING_TOKEN_ANNOTATION: term.to_string()}}});
        let resource = VirtualMachineInstance::resource();
        let request = ApiRequest::patch(&resource, vmi.namespace(), vmi.name(), "", ContentType::MergePatch, &patch);
        self.writes.insert(fx.api(request), Written::Guest(uid.to_owned()));
    }
}
