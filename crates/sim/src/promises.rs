//! What nodes have promised of their guests, as the network shows it: when the renewals of a node's Lease were sent of which
//! its handler has heard that they were made. No handler is asked what it makes of that.

use std::collections::BTreeMap;

use carrack_engine::{ApiRequest, CallId, Method, Time};
use carrack_types::well_known::kubevirt::NODE_LEASE_NAMESPACE;

use crate::role::Role;

/// The promises of all nodes whose handlers run.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Renewals that were not answered yet.
    sent: BTreeMap<(Role, CallId), Time>,
    renewed: BTreeMap<Role, Time>,
}

impl Promises {
    /// A role sends a request.
    pub(crate) fn sent(&mut self, role: Role, id: CallId, request: &ApiRequest, now: Time) {
        let writes = matches!(request.method, Method::Post | Method::Put);
        if matches!(role, Role::VirtHandler(_)) && writes && request.path.contains(NODE_LEASE_NAMESPACE) {
            self.sent.insert((role, id), now);
        }
    }

    /// A role hears what became of a request.
    pub(crate) fn heard(&mut self, role: Role, id: CallId, made: bool) {
        if let Some(sent) = self.sent.remove(&(role, id)).filter(|_| made) {
            let renewed = self.renewed.entry(role).or_insert(sent);
            *renewed = sent.max(*renewed);
        }
    }

    /// A role's process has ended, and what it knew with it.
    pub(crate) fn died(&mut self, role: Role) {
        self.sent.retain(|(of, _), _| *of != role);
        self.renewed.remove(&role);
    }

    /// When the newest renewal was sent that a role knows of.
    pub(crate) fn renewed(&self, role: Role) -> Option<Time> {
        self.renewed.get(&role).copied()
    }
}
