//! Nodes that fall silent: suspected first, fenced when it is certain that their guests have stopped.
//!
//! ```text
//!   heard ──6 s without a renewal──▶ suspected: kubevirt.io/schedulable=false, nothing is placed there
//!     ▲                                   │ Lease and margin are over, and there is something to recover
//!     │                                   ▼
//!     └── new term ◀── handler is back ── fenced: the Lease is marked ──▶ `recovery` fails its instances
//! ```
//!
//! A node whose handler keeps no Lease (it may be another than ours) is suspected when its heartbeat annotation has not
//! changed for five minutes, or has never been there. An operator's taint `node.kubernetes.io/out-of-service` says that a
//! node is down, where its kubelet does not say otherwise; [`recovery`] acts on it.
//!
//! Where there is no Lease, because the node never took one or somebody deleted it, no guest runs that is bound to one, but
//! for those that were promised something before. So when an instance waits for such a node, and the longest promise is over,
//! this controller takes the Lease in the node's place: it makes one that bears the mark. That and a handler's own attempt
//! exclude each other, since a name is given once.
//!
//! Keys are names of nodes, also of such as have no Node object any more: what runs there is looked after all the same.
//! Ages are measured on this controller's clock (see [`crate::fence`]).

mod listener;
pub mod recovery;

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Setup, Time, View};
use carrack_types::kubevirt::{VirtualMachineInstance, phase};
use carrack_types::resource::{Kind as _, Object};
use carrack_types::well_known::kubevirt::{
    FENCED_ANNOTATION, FENCED_BY_ANNOTATION, HEARTBEAT_ANNOTATION, SCHEDULABLE_LABEL,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use super::Planted;
use crate::fence::{self, SUSPECT_AFTER};
use crate::identity::{instance_of, launcher_of};
use listener::Listener;

/// Silence after which a node without a Lease takes no more instances.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which a node that is heard of is looked at again.
const RECHECK: Duration = Duration::from_secs(60);

/// Watches nodes' signs of life.
#[derive(Default)]
pub struct NodeController {
    heartbeats: Listener,
    leases: Listener,
    planted: Option<Planted>,
}

impl NodeController {
    /// One with a bug, or without.
    #[must_use]
    pub fn new(planted: Option<Planted>) -> Self {
        Self { planted, ..Self::default() }
    }
}

/// The node that a launcher pod is bound to. Its owner and its name say that it is one: with a label, anybody who may change pods
/// could hide a launcher from its recovery, or pass off as one what only uses an instance's claims.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|_| launcher_of(pod).is_some())
}

/// The node that an instance was given.
pub(super) fn place_of(vmi: &VirtualMachineInstance) -> &str {
    vmi.status.as_ref().map_or("", |status| status.node_name.as_str())
}

/// Index of launcher pods, by their node.
pub(super) const BY_NODE: &str = "launcher-node";
/// Index of instances, by the node that they were given.
pub(super) const BY_PLACE: &str = "place";

pub(super) fn by_node(pod: &Pod) -> Vec<String> {
    node_of(pod).map(str::to_owned).into_iter().collect()
}

pub(super) fn by_place(vmi: &VirtualMachineInstance) -> Vec<String> {
    let place = place_of(vmi);
    if place.is_empty() { Vec::new() } else { vec![place.to_owned()] }
}

impl Controller for NodeController {
    fn name(&self) -> &'static str {
        "virt-node"
    }
    fn event_source(&self) -> &'static str {
        "node-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Node>();
        setup.watch_source::<Lease>(fence::leases(), |lease, _| vec![Key::new("", lease.name())]);
        setup.watch::<VirtualMachineInstance>(|vmi, _| {
            let node = place_of(vmi);
            if node.is_empty() { Vec::new() } else { vec![Key::new("", node)] }
        });
        setup.index::<VirtualMachineInstance>(BY_PLACE, by_place);
        setup.index::<Pod>(BY_NODE, by_node);
        setup.watch::<Pod>(|pod, _| node_of(pod).map(|node| Key::new("", node)).into_iter().collect());
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let node = view.get::<Node>("", &key.name).map(AsRef::as_ref);
        let lease = fence::lease(view, &key.name).map(AsRef::as_ref);
        let heartbeat = node.and_then(|node| node.annotation(HEARTBEAT_ANNOTATION));
        let beat = self.heartbeats.since(&key.name, heartbeat.unwrap_or_default(), now);
        let (suspect_at, fence_at) = match lease {
            Some(lease) => {
                let heard = self.leases.since(&key.name, lease.meta().resource_version.as_deref().unwrap_or(""), now);
                // Only as long as leases are heard of is one that does not change a silence.
                let heard = heard.max(view.steady_since(&fence::leases()).unwrap_or(now));
                let said = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(Time::from);
                let heard = said.filter(|_| self.planted == Some(Planted::LeaseByWallClock)).unwrap_or(heard);
                // A mark is the control plane's own word, and no sign of the node's life.
                // A heartbeat is one, too: without that, a handler that says it is well and a controller whose watch of
                // Leases lags would write against each other without end.
                let suspect_at = if fence::is_marked(lease) { now } else { heard.max(beat) + SUSPECT_AFTER };
                (suspect_at, fence::patience(lease).map(|patience| heard + patience))
            }
            None => {
                let missing = self.leases.since(&key.name, "", now);
                let missing = missing.max(view.steady_since(&fence::leases()).unwrap_or(now));
                let suspect_at = if node.is_some() { beat + HEARTBEAT_TIMEOUT } else { now };
                (suspect_at, Some(missing + fence::LEASE_DURATION + fence::MARGIN))
            }
        };
        let over_too = self.planted != Some(Planted::EndedOnDeadNode);
        // What a node has is looked through only where it matters: a node is looked at whenever one of its guests changes.
        let is_gone = node.is_none() && lease.is_none();
        let forgotten = self.planted == Some(Planted::VanishedNode);
        if is_gone && (forgotten || guests(&key.name, view, over_too).next().is_none()) {
            self.heartbeats.forget(&key.name);
            self.leases.forget(&key.name);
            return Plan::none();
        }
        if heartbeat.is_none() && node.is_some() && self.planted == Some(Planted::MissingHeartbeat) {
            return Plan::none();
        }
        let mut plan = Plan::none().requeue_after(RECHECK);
        if now < suspect_at {
            return plan.requeue_after(suspect_at.since(now));
        }
        if let Some(node) = node.filter(|node| node.label(SCHEDULABLE_LABEL) == Some("true")) {
            let message = "virt-handler is not responsive, marking node as unresponsive".to_owned();
            let by = fence_at.map(|at| at.max(now).rfc3339());
            let metadata = json!({"labels": {SCHEDULABLE_LABEL: "false"}, "annotations": {FENCED_BY_ANNOTATION: by}});
            plan = plan.patch(node, json!({"metadata": metadata})).event(EventRecord::warning(
                node,
                "NodeUnresponsive",
                message,
            ));
        }
        match fence_at {
            _ if lease.is_some_and(fence::is_marked) => plan,
            Some(at) if now < at => plan.requeue_after(at.since(now)),
            Some(_) => {
                let guests: Vec<_> = guests(&key.name, view, over_too).collect();
                fence(&key.name, node, lease, &guests, plan, now)
            }
            None => plan,
        }
    }
}

/// Marks a node's Lease, if there is something to recover. One that is missing is made with its mark.
fn fence(
    name: &str,
    node: Option<&Node>,
    lease: Option<&Lease>,
    guests: &[&VirtualMachineInstance],
    plan: Plan,
    now: Time,
) -> Plan {
    // A Lease that was deleted and made again counts its terms anew; whatever was started under the one before is over, too.
    let tokens = guests.iter().filter_map(|vmi| fence::token(vmi)).max();
    let term = lease.map_or(1, fence::term).max(tokens.unwrap_or_default());
    let mark = json!({FENCED_ANNOTATION: now.rfc3339()});
    let (plan, why) = match lease {
        Some(lease) if !guests.is_empty() => {
            let patch = json!({"metadata": {"annotations": mark}, "spec": {"leaseTransitions": term}});
            (plan.patch(lease, patch), "has run out")
        }
        None if guests.iter().any(|vmi| fence::is_bound(vmi)) => {
            let premise = Premise::absent(&Lease::resource(), fence::lease_key(name));
            (plan.then(Plan::none().create(&fence::marked(name, term, now)).resting_on(&premise)), "was not taken")
        }
        _ => return plan,
    };
    let message = format!("the lease of {name} {why}: its guests have stopped");
    match node {
        Some(node) => plan.told(EventRecord::warning(node, "NodeFenced", message)),
        None => plan,
    }
}

/// The instances that a node has or is about to have, and those that are over and have left a launcher there, ordered by key.
fn guests<'a>(node: &'a str, view: &'a View<'_>, over_too: bool) -> impl Iterator<Item = &'a VirtualMachineInstance> {
    let placed = view.cache::<VirtualMachineInstance>().by_index(BY_PLACE, node).map(AsRef::as_ref);
    let placed = placed.filter(|vmi| matches!(vmi.phase(), phase::SCHEDULED | phase::RUNNING));
    let with_launcher =
        launched(node, view).filter(move |vmi| vmi.phase() == phase::SCHEDULING || over_too && vmi.is_final());
    let all: BTreeMap<Key, &VirtualMachineInstance> =
        placed.chain(with_launcher).map(|vmi| (Key::of(vmi), vmi)).collect();
    all.into_values()
}

/// The instances that have a launcher on a node.
pub(super) fn launched<'a>(node: &str, view: &'a View<'_>) -> impl Iterator<Item = &'a VirtualMachineInstance> {
    let owner = |pod: &'a Pod| {
        let owner = instance_of(pod)?;
        let vmi = view.get::<VirtualMachineInstance>(pod.namespace(), &owner.name)?;
        (vmi.uid() == owner.uid).then_some(vmi.as_ref())
    };
    view.cache::<Pod>().by_index(BY_NODE, node).filter_map(move |pod| owner(pod))
}

#[cfg(test)]
mod tests;
