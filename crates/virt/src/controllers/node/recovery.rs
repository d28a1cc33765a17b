//! Instances whose node is dead, or only seems to be.
//!
//! An instance fails, and its machine may be started elsewhere, on proof alone: its node's Lease was marked for the term
//! in which its guest was started (see [`crate::fence`]), or an operator has put the taint
//! `node.kubernetes.io/out-of-service` on a node that is not ready. (That the node itself reports all containers as ended is the
//! `vmi` controller's matter.) The write rests on the instance's UID and resourceVersion, and so on its phase and node.
//!
//! While an instance waits for a silent node, its condition `Recovery` says for what, and until when.
//!
//! Before an instance fails so, it is written on the attachments of its disks that nothing of it has them any more. So they may
//! be attached elsewhere, though the dead node has never said that it has done with them (`controllers/src/volumes/attach.rs`).
//! Its launcher, which nobody is there to end, is removed at once.
//!
//! An instance that ended by itself just before its node died is over, and its launcher is not: nobody is there to end it, and
//! its machine waits for it. On the same proof it is cleared up.
//!
//! Keys are instances: each is looked at again in time, whether there is a Node object or not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Controller, DeleteOptions, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::kubevirt::{Condition, VirtualMachineInstance, phase};
use carrack_types::pod::is_terminal;
use carrack_types::resource::{Kind as _, Object};
use carrack_types::volume::{Attachable, DEAD_USERS, VOLUME_USERS, attachment_of_unique, dead_users, users};
use carrack_types::well_known::kubevirt::{
    FAILOVER_ANNOTATION, FENCED_BY_ANNOTATION, NODE_UNRESPONSIVE, RECOVERY_CONDITION, SCHEDULABLE_LABEL,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use super::{BY_NODE, BY_PLACE, by_node, by_place, launched, node_of, place_of};
use crate::controllers::Planted;
use crate::controllers::vmi::{enter, replace_condition, state};
use crate::diff::merge_patch;
use crate::fence;
use crate::identity::launcher_of;

/// An operator's word that a node is shut down and will not come back with what it ran.
const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Interval at which an instance of a silent node is looked at again.
const RECHECK: Duration = Duration::from_secs(30);

/// Fails instances of dead nodes.
#[derive(Default)]
pub struct RecoveryController {
    planted: Option<Planted>,
}

impl RecoveryController {
    /// One with a bug, or without.
    #[must_use]
    pub fn new(planted: Option<Planted>) -> Self {
        Self { planted }
    }
}

impl Controller for RecoveryController {
    fn name(&self) -> &'static str {
        "virt-recovery"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineInstance>();
        setup.watch_owned::<Pod, VirtualMachineInstance>();
        setup.index::<VirtualMachineInstance>(BY_PLACE, by_place);
        setup.index::<VirtualMachineInstance>(BY_RECOVERY, by_recovery);
        setup.index::<Pod>(BY_NODE, by_node);
        setup.read::<PersistentVolumeClaim>();
        setup.read::<PersistentVolume>();
        setup.read::<VolumeAttachment>();
        // A node that lives writes its status all the time; only what it says when it does not is of interest.
        let planted = self.planted;
        setup.watch::<Node>(move |node, view| {
            let silent = is_silent(Some(node)) || is_out_of_service(node, planted);
            if silent { on_node(node.name(), view) } else { recovering(node.name(), view) }
        });
        setup.watch_source::<Lease>(fence::leases(), |lease, view| {
            if fence::is_marked(lease) { on_node(lease.name(), view) } else { Vec::new() }
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(vmi) = view.get::<VirtualMachineInstance>(&key.namespace, &key.name) else { return Plan::none() };
        let pods = view.cache::<Pod>().by_owner(vmi.uid()).filter(|pod| launcher_of(pod) == Some(vmi.uid()));
        let pods: Vec<&Pod> = pods.map(AsRef::as_ref).collect();
        let is_lost = vmi.is_final() && vmi.status.as_ref().is_some_and(|status| status.reason == NODE_UNRESPONSIVE);
        if is_lost {
            return self.clear_up(vmi, &pods, view);
        }
        if vmi.is_final() {
            if self.planted == Some(Planted::EndedOnDeadNode) {
                return describe(vmi, None, now);
            }
            let is_left = |pod: &&Pod| is_left_for_good(vmi, pod, view, self.planted);
            let left: Vec<_> = pods.into_iter().filter(is_left).collect();
            return self.clear_up(vmi, &left, view);
        }
        let place = match vmi.phase() {
            phase::SCHEDULED | phase::RUNNING => place_of(vmi),
            phase::SCHEDULING => pods.iter().find_map(|pod| node_of(pod)).unwrap_or_default(),
            _ => "",
        };
        let node = view.get::<Node>("", place).map(AsRef::as_ref);
        if place.is_empty() {
            return describe(vmi, None, now);
        }
        let lease = fence::lease(view, place).map(AsRef::as_ref);
        let why = if lease.is_some_and(|lease| fence::proves_dead(lease, vmi)) {
            Some(format!("the lease of node {place} has run out; its guests have stopped"))
        } else {
            let is_out = node.is_some_and(|node| is_out_of_service(node, self.planted));
            is_out.then(|| format!("node {place} is out of service, as its taint says"))
        };
        if let Some(why) = why {
            return self.leave_disks(vmi, place, view).then(fail(vmi, &why, now));
        }
        if is_silent(node) {
            if self.planted == Some(Planted::BuriedAlive) {
                return self.leave_disks(vmi, place, view);
            }
            return describe(vmi, Some(&waiting(vmi, place, node)), now).requeue_after(RECHECK);
        }
        describe(vmi, None, now)
    }
}

impl RecoveryController {
    /// Nobody is there to end the pods of a dead node in their own time. Those that have ended stay as long as their instance, as
    /// anywhere.
    fn clear_up(&self, vmi: &VirtualMachineInstance, pods: &[&Pod], view: &View<'_>) -> Plan {
        let options = || DeleteOptions { grace_period_s: Some(0), ..DeleteOptions::default() };
        let places: BTreeSet<&str> = pods.iter().filter_map(|pod| node_of(pod)).collect();
        let plan = places.into_iter().fold(Plan::none(), |plan, place| plan.then(self.leave_disks(vmi, place, view)));
        let going = pods.iter().filter(|pod| vmi.is_deleting() || pod.is_deleting() || !is_terminal(pod));
        going.fold(plan, |plan, pod| plan.delete_with(&Pod::resource(), *pod, options()))
    }

    /// Writes on the attachments of an instance's disks that nothing of it has them any more on a node. Launchers have them as their
    /// instance ([`user_of`](carrack_types::volume::user_of)).
    ///
    /// Which disks these are, its claims say, and the node, which has named who has what before it was mounted: somebody may have
    /// deleted a claim since, with the DataVolume that it was for, and another disk may be under its name by now.
    fn leave_disks(&self, vmi: &VirtualMachineInstance, place: &str, view: &View<'_>) -> Plan {
        if self.planted == Some(Planted::KeptDisks) {
            return Plan::none();
        }
        let bound = state::claims(vmi).filter_map(|name| {
            let claim = view.get::<PersistentVolumeClaim>(vmi.namespace(), &name)?;
            view.get::<PersistentVolume>("", claim.spec.as_ref()?.volume_name.as_deref()?)
        });
        let bound = bound.filter_map(|volume| Some(Attachable::of(volume)?.attachment(place)));
        let node = view.get::<Node>("", place);
        let said = users(node.and_then(|node| node.annotation(VOLUME_USERS))).unwrap_or_default();
        let had = said.iter().filter(|(_, users)| users.contains(vmi.uid()));
        let had = had.filter_map(|(unique, _)| attachment_of_unique(unique, place));
        let names: BTreeSet<String> = bound.chain(had).collect();
        names.into_iter().fold(Plan::none(), |plan, name| {
            let Some(attachment) = view.get::<VolumeAttachment>("", &name) else {
                // It may be there, and not seen here yet.
                return plan.confirm_absent(&VolumeAttachment::resource(), Key::new("", name), "");
            };
            let mut dead: BTreeSet<&str> = dead_users(attachment.annotation(DEAD_USERS)).collect();
            if !dead.insert(vmi.uid()) {
                return plan;
            }
            let dead = dead.into_iter().collect::<Vec<_>>().join(",");
            plan.patch(attachment.as_ref(), json!({"metadata": {"annotations": {DEAD_USERS: dead}}}))
        })
    }
}

fn is_silent(node: Option<&Node>) -> bool {
    node.is_none_or(|node| node.label(SCHEDULABLE_LABEL) == Some("false"))
}

/// Whether an operator says that a node is down, and it does not say otherwise: on a node that is ready, the taint is a mistake,
/// or was left behind when the node came back, and guests run there. (Upstream: `gcTerminating` in pkg/controller/podgc.)
fn is_out_of_service(node: &Node, planted: Option<Planted>) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    taints.any(|taint| taint.key == OUT_OF_SERVICE_TAINT)
        && (planted == Some(Planted::TaintedAlive)
            || !conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"))
}

/// Instances that a node has or is about to have.
fn on_node(node: &str, view: &View<'_>) -> Vec<Key> {
    let placed = view.cache::<VirtualMachineInstance>().by_index(BY_PLACE, node).map(AsRef::as_ref);
    let unplaced = launched(node, view).filter(|vmi| vmi.phase() == phase::SCHEDULING || vmi.is_final());
    placed.chain(unplaced).map(Key::of).collect()
}

/// Index of instances that say what their recovery waits for, by the node that they were given; those that were given none are
/// under no name.
const BY_RECOVERY: &str = "recovery";

fn by_recovery(vmi: &VirtualMachineInstance) -> Vec<String> {
    vmi.condition(RECOVERY_CONDITION).map(|_| place_of(vmi).to_owned()).into_iter().collect()
}

/// Instances that wait for word of a node. Each node that lives writes its status all the time, and after a rack is lost thousands
/// wait for nodes of it.
fn recovering(node: &str, view: &View<'_>) -> Vec<Key> {
    let vmis = view.cache::<VirtualMachineInstance>();
    let waiting = vmis.by_index(BY_RECOVERY, node).chain(vmis.by_index(BY_RECOVERY, ""));
    waiting.map(|vmi| Key::of(vmi.as_ref())).collect()
}

/// It is over; why.
fn fail(vmi: &VirtualMachineInstance, why: &str, now: Time) -> Plan {
    let mut new = vmi.clone();
    let status = new.status.get_or_insert_default();
    enter(status, phase::FAILED, now);
    status.reason = NODE_UNRESPONSIVE.to_owned();
    status.conditions.retain(|condition| condition.r#type != RECOVERY_CONDITION);
    match merge_patch(vmi, &new) {
        Some(patch) => {
            Plan::none().patch(vmi, patch).event(EventRecord::warning(vmi, NODE_UNRESPONSIVE, why.to_owned()))
        }
        None => Plan::none(),
    }
}

/// Whether an instance was ever handed over to a node's handler. No guest starts of one that was not and is over: handlers
/// start what was handed over to them alone, and nothing that is over is.
fn was_handed_over(vmi: &VirtualMachineInstance) -> bool {
    let entered = vmi.status.iter().flat_map(|status| &status.phase_transition_timestamps);
    let mut phases = entered.map(|entry| entry.phase.as_str());
    vmi.annotation(FAILOVER_ANNOTATION).is_some()
        || fence::token(vmi).is_some()
        || !place_of(vmi).is_empty()
        || phases.any(|entered| matches!(entered, phase::SCHEDULED | phase::RUNNING))
}

/// Whether the launcher of an instance that is over is on a node that will not end it, and runs there no more for certain.
fn is_left_for_good(vmi: &VirtualMachineInstance, pod: &Pod, view: &View<'_>, planted: Option<Planted>) -> bool {
    let Some(place) = node_of(pod) else { return false };
    let is_dead =
        |lease: &Arc<Lease>| fence::proves_dead(lease, vmi) || fence::is_marked(lease) && !was_handed_over(vmi);
    fence::lease(view, place).is_some_and(is_dead)
        || view.get::<Node>("", place).is_some_and(|node| is_out_of_service(node, planted))
}

/// What an instance of a silent node waits for.
fn waiting(vmi: &VirtualMachineInstance, place: &str, node: Option<&Node>) -> Condition {
    let is = if node.is_some() { "is silent" } else { "is not in the cluster any more" };
    let (reason, what) = match vmi.annotation(FAILOVER_ANNOTATION).filter(|_| !fence::is_bound(vmi)) {
        None => {
            let by = node.and_then(|node| node.annotation(FENCED_BY_ANNOTATION));
            let by = by.map_or_else(String::new, |by| format!(" at {by}"));
            let what = format!(
                "unless it is heard before, the machine is started elsewhere{by}, when its guest here has stopped for certain"
            );
            ("WaitingForLease", what)
        }
        Some(why) if node.is_some() => {
            let what = format!(
                "the machine waits for it without limit, or for the taint {OUT_OF_SERVICE_TAINT}, since it is not started \
                 elsewhere: {why}"
            );
            ("WaitingForNode", what)
        }
        // Somebody took the node out: that is an operator's word for what was there.
        Some(_) => ("WaitingForPod", "the machine's run there ends when its pod has been cleared up".to_owned()),
    };
    Condition::new(RECOVERY_CONDITION, "False", reason, &format!("node {place} {is}; {what}"))
}

/// Brings the condition up to date.
fn describe(vmi: &VirtualMachineInstance, condition: Option<&Condition>, now: Time) -> Plan {
    let there = vmi.condition(RECOVERY_CONDITION);
    match condition {
        None if there.is_none() => return Plan::none(),
        Some(wanted) if there.is_some_and(|old| old.reason == wanted.reason && old.message == wanted.message) => {
            return Plan::none();
        }
        _ => {}
    }
    let mut new = vmi.clone();
    let conditions = &mut new.status.get_or_insert_default().conditions;
    replace_condition(conditions, RECOVERY_CONDITION, condition.cloned(), &now.meta());
    merge_patch(vmi, &new).map_or_else(Plan::none, |patch| Plan::none().patch(vmi, patch))
}
