//! Leaders of roles that have several processes: who they are, and what becomes of what they sent once somebody else leads.

use carrack_engine::LeaderElector;
use carrack_store::{Revision, Store as _};
use serde::Deserialize;

use crate::invariants::Breach;
use crate::role::Role;
use crate::server::{Flight, Servers};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "only-leaders-write";

/// A life of a role as a candidate.
pub(crate) fn elector(role: Role, life: u32) -> Option<LeaderElector> {
    lease(role).map(|(namespace, name)| LeaderElector::new(namespace, name, identity(role, life)))
}

fn identity(role: Role, life: u32) -> String {
    format!("{role}-{life}")
}

/// Namespace and name of the Lease that a role's processes want.
fn lease(role: Role) -> Option<(&'static str, &'static str)> {
    Some(match role {
        Role::Scheduler | Role::StandbyScheduler => ("kube-system", "kube-scheduler"),
        Role::Controllers | Role::Standby => ("kube-system", "kube-controller-manager"),
        // The only namespace where they may make a Lease.
        Role::VirtController | Role::StandbyVirt => ("kubevirt", "virt-controller"),
        Role::Attacher | Role::StandbyAttacher => ("kube-system", "attacher"),
        Role::Cloner => ("kubevirt", "cloner"),
        _ => return None,
    })
}

/// The term that is stored now of who leads among a role's processes; none for what no leader is needed.
pub(crate) fn term(role: Role, label: &str, servers: &Servers) -> Option<String> {
    let (namespace, name) = lease(role).filter(|_| !label.starts_with("GET "))?;
    servers.stored::<Lease>(&format!("/registry/leases/{namespace}/{name}")).map(|lease| lease.term())
}

/// What is read of a Lease, at each write of a leader.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Lease {
    spec: LeaseSpec,
}
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_transitions: Option<i64>,
}

impl Lease {
    /// Who holds it; empty for nobody.
    fn holder(&self) -> &str {
        self.spec.holder_identity.as_deref().unwrap_or_default()
    }

    fn term(&self) -> String {
        let transitions = self.spec.lease_transitions.map_or_else(|| "null".to_owned(), |number| number.to_string());
        format!("{transitions} of {}", self.holder())
    }
}

/// A write that only a leader may make, on its way through an API server.
pub(crate) struct Write {
    role: Role,
    life: u32,
    label: String,
    /// The term in which it was sent.
    term: Option<String>,
    known: Revision,
}

impl Write {
    /// The request, if it is one. Leases are for who does not lead, and events tell of what was. A scheduler that leads no more
    /// still sees to it that no binding of its own comes late, by a write to the pod.
    pub(crate) fn of(flight: &Flight, servers: &Servers) -> Option<Self> {
        let (role, life, label) = (flight.role, flight.life, &flight.label);
        lease(role).filter(|_| life > 0)?;
        let schedules = matches!(role, Role::Scheduler | Role::StandbyScheduler);
        let free = ["/leases", "/events"].iter().any(|plural| label.contains(plural))
            || label.starts_with("GET ")
            || schedules && label.starts_with("PATCH ");
        let term = flight.term.clone();
        (!free).then(|| Self { role, life, label: label.clone(), term, known: servers.mem.revision() })
    }

    /// Looks who leads, if something was made of it just now.
    pub(crate) fn look(&self, servers: &Servers) -> Option<Breach> {
        let (namespace, name) = lease(self.role).filter(|_| servers.mem.revision() > self.known)?;
        let lease: Lease = servers.stored(&format!("/registry/leases/{namespace}/{name}"))?;
        let leader = lease.holder();
        let sender = identity(self.role, self.life);
        if leader != sender {
            let leads = if leader.is_empty() { "nobody" } else { leader };
            let what = format!("{} of {sender} is made, and {leads} leads", self.label);
            return Some(Breach::new(NAME, what));
        }
        // A leader may have begun another term of its own because it did not know what becomes of this.
        let (sent, term) = (self.term.as_ref()?, lease.term());
        let what = || format!("{} of {sender} is made in the term {term}, and was sent in {sent}", self.label);
        (*sent != term).then(|| Breach::new(NAME, what()))
    }
}
