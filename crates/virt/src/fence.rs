//! The promise of a node to stop its guests, and what others may conclude from it.
//!
//! ```text
//!   handler: sent ─▶ acknowledged           guests stop          the handler kills what is left
//!              │ ◀──────── 8 s ──────────────▶│ ◀──── 1 s ────────▶│
//!   watchdog:                                                                      reset by 12 s, where there is one
//!   observer:        seen ─────────── 10 s + 3 s of its own clock, nothing newer ──────────▶ Lease marked
//! ```
//!
//! A node's handler renews a Lease every two seconds. From an acknowledged renewal follows that guests may run for eight
//! more seconds, counted from before the request was sent; each guest's monitor holds that time and stops its guest by
//! itself (`carrack_launcher::promise`). An observer that has seen nothing newer for thirteen seconds on its own clock
//! marks the Lease. The mark and a renewal exclude each other, since both rest on the Lease's resourceVersion. No two
//! clocks are compared: what one measures began after what the other measures.
//!
//! The Lease's `leaseTransitions` is the number of its term. A handler that finds its Lease marked makes sure that none
//! of its guests is left, and begins a new term. A guest's start is preceded by a write that puts the term on its
//! instance (the fencing token). So a mark says for all time that every guest of its term and of those before is dead,
//! however old the news is, and an instance without a token that is failed can never be started: both writes rest on
//! the instance's resourceVersion.
//!
//! Who hands an instance over to its node puts the term there that it has seen in the Lease, and the handler does only
//! where that is not the one in which it starts the guest. What was seen may be old. But whoever wrote the token, a
//! guest starts only while its node holds the term that the token names, and a term in which a Lease was marked is held
//! by nobody any more: a guest whose token is of a marked term, or of one before, is dead, or will not start before
//! another write of the token, which rests on the instance as it is then.
//!
//! A Lease that is missing allows no start either. So its place can be taken: thirteen seconds after an observer has missed
//! it, no promise is left that was given under one which somebody deleted, and the observer may make one with a mark. That
//! holds of every guest that is bound, because nothing but a handler which keeps to the above can start it: launchers speak
//! no other handler's language.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Source, Time, View};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{
    FAILOVER_ANNOTATION, FENCED_ANNOTATION, FENCING_TOKEN_ANNOTATION, NODE_LEASE_NAMESPACE,
};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// What the Lease says of how long it holds.
pub const LEASE_DURATION: Duration = Duration::from_secs(10);
/// How often it is renewed.
pub const RENEW_PERIOD: Duration = Duration::from_secs(2);
/// How long guests may run after a renewal was sent. The rest of the Lease is for their end.
pub const GUEST_RUNS: Duration = Duration::from_secs(8);
/// After this time beyond the promise the handler kills what its monitors did not stop.
pub const KILL_AFTER: Duration = Duration::from_secs(1);
/// A machine on which nobody sees to the end of its guests is reset by its watchdog, where it has one, at most so long after
/// their promise. What is left until the observer's time is for what the device itself is late.
pub const RESET_AFTER: Duration = Duration::from_secs(4);
/// What an observer waits beyond the Lease, for clocks that run at different speeds and for slow ends.
pub const MARGIN: Duration = Duration::from_secs(3);
/// A node that was silent for so long takes no new guests.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(6);

/// The Leases of nodes, and no others.
#[must_use]
pub fn leases() -> Source {
    Source::within::<Lease>(NODE_LEASE_NAMESPACE)
}

/// The Lease of a node, where a controller watches [`leases`].
#[must_use]
pub fn lease<'a>(view: &'a View<'_>, node: &str) -> Option<&'a Arc<Lease>> {
    view.cache_of::<Lease>(&leases())?.get(NODE_LEASE_NAMESPACE, node)
}

/// Where a node's Lease is.
#[must_use]
pub fn lease_key(node: &str) -> carrack_engine::Key {
    carrack_engine::Key::new(NODE_LEASE_NAMESPACE, node)
}

/// The number of a Lease's term.
#[must_use]
pub fn term(lease: &Lease) -> i64 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).map_or(0, i64::from)
}

/// Whether the control plane has marked a Lease: the guests of its term are dead.
#[must_use]
pub fn is_marked(lease: &Lease) -> bool {
    lease.annotation(FENCED_ANNOTATION).is_some()
}

/// A Lease that is made in a node's place, with its mark: nobody has run guests there since the term given.
#[must_use]
pub fn marked(node: &str, term: i64, now: Time) -> Lease {
    Lease {
        metadata: ObjectMeta {
            namespace: Some(NODE_LEASE_NAMESPACE.to_owned()),
            name: Some(node.to_owned()),
            annotations: Some([(FENCED_ANNOTATION.to_owned(), now.rfc3339())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            lease_transitions: i32::try_from(term).ok(),
            ..LeaseSpec::default()
        }),
    }
}

/// How long an observer waits after it saw a Lease change; none when the Lease promises nothing.
#[must_use]
pub fn patience(lease: &Lease) -> Option<Duration> {
    let spec = lease.spec.as_ref()?;
    let seconds = u64::try_from(spec.lease_duration_seconds?).ok().filter(|seconds| *seconds > 0)?;
    spec.holder_identity.as_ref().filter(|holder| !holder.is_empty())?;
    Some(Duration::from_secs(seconds) + MARGIN)
}

/// Whether an instance's guest runs under its node's Lease only.
#[must_use]
pub fn is_bound(vmi: &VirtualMachineInstance) -> bool {
    vmi.annotation(FAILOVER_ANNOTATION) == Some("true")
}

/// The term under which an instance's guest was started, if it was.
#[must_use]
pub fn token(vmi: &VirtualMachineInstance) -> Option<i64> {
    vmi.annotation(FENCING_TOKEN_ANNOTATION)?.parse().ok()
}

/// Whether a marked Lease proves that the instance's guest is dead, and will never start.
#[must_use]
pub fn proves_dead(lease: &Lease, vmi: &VirtualMachineInstance) -> bool {
    if !is_bound(vmi) || !is_marked(lease) {
        return false;
    }
    match vmi.annotation(FENCING_TOKEN_ANNOTATION) {
        None => true,
        // A token that cannot be read was written by nobody who knows what it means.
        Some(_) => token(vmi).is_some_and(|token| token <= term(lease)),
    }
}

/// Whether somebody would start the machine again that an instance belongs to.
#[must_use]
pub fn comes_back(vm: &VirtualMachine) -> bool {
    use carrack_types::kubevirt::run_strategy;
    matches!(vm.run_strategy(), run_strategy::ALWAYS | run_strategy::RERUN_ON_FAILURE) && !vm.is_deleting()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mark_proves_the_end_of_its_term_and_those_before() {
        let check = |failover: &str, token: Option<&str>, marked: bool, expected: bool| {
            let mut annotations = json!({FAILOVER_ANNOTATION: failover});
            if let Some(token) = token {
                annotations[FENCING_TOKEN_ANNOTATION] = token.into();
            }
            let vmi: VirtualMachineInstance = carrack_types::json::from_value(
                json!({"metadata": {"name": "v", "annotations": annotations}, "spec": {"domain": {"devices": {}}}}),
            )
            .expect("an instance");
            let mark = if marked { json!({FENCED_ANNOTATION: "now"}) } else { json!({}) };
            let lease: Lease = carrack_types::json::from_value(
                json!({"metadata": {"annotations": mark}, "spec": {"leaseTransitions": 3}}),
            )
            .expect("a lease");
            assert_eq!(proves_dead(&lease, &vmi), expected, "{failover} {token:?} {marked}");
        };
        check("true", Some("3"), true, true);
        check("true", Some("2"), true, true);
        check("true", None, true, true);
        // Started in a later term than the mark is about.
        check("true", Some("4"), true, false);
        check("true", Some("x"), true, false);
        check("true", Some("3"), false, false);
        check("its disk lies on one node", Some("3"), true, false);
        assert!(GUEST_RUNS + KILL_AFTER < LEASE_DURATION && RENEW_PERIOD * 3 <= SUSPECT_AFTER);
        assert!(KILL_AFTER < RESET_AFTER && GUEST_RUNS + RESET_AFTER < LEASE_DURATION + MARGIN);
    }
}
