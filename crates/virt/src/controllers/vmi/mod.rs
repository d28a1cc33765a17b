//! The VirtualMachineInstance controller: gives an instance its launcher pod, and clears up after it.
//!
//! ```text
//!   "" ─▶ Pending ─pod made─▶ Scheduling ─its containers run─▶ Scheduled ═▶ Running ═▶ Succeeded | Failed
//!            │ a DataVolume failed│ pod gone, ended or refused              (═ the node's handler decides)
//!            └───── deleted ──────┴────────────────────────────────────────────────▶ Failed
//!   final: pods that have ended stay;  final, deletion asked for: pods deleted;  and none left: finalizer off
//! ```
//!
//! The pod of an instance that is over stays with it, as upstream's does, for whoever wants to read its logs. One that does not
//! end is deleted: it would keep its devices and volumes from the machine's next instance.
//!
//! An instance that is deleted takes its pod along at once, as upstream's does: the handler ends the guest, and the kubelet
//! what is left of the pod.
//!
//! A claim that is filled once a pod uses it gets such a pod before the launcher (`pod/consumer.rs`).
//!
//! One instance has one launcher, ever: its name follows from the instance's UID, and an instance whose pod vanished fails
//! rather than get another. From Scheduled on only the handler, which sees the guest, says how the instance ended;
//! this controller steps in when the node itself reports that every container of the pod has ended, or when the
//! node object is gone by an operator's hand.

mod conditions;
mod failover;
mod overhead;
pub(crate) mod pod;
mod progress;
pub(crate) mod state;

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{
    Controller, DeleteOptions, EventRecord, Key, Plan, Premise, Refusal, Setup, Source, Time, View, Write,
};
use carrack_types::data_volumes::DataVolume;
use carrack_types::kubevirt::{Condition, KubeVirt, VirtualMachine, VirtualMachineInstance, phase, set_condition};
use carrack_types::pod::is_terminal;
use carrack_types::resource::{Kind, Object};
use carrack_types::well_known::kubevirt::{
    FAILOVER_ANNOTATION, FENCING_TOKEN_ANNOTATION, KEEP_LAUNCHER_ANNOTATION, NODE_UNRESPONSIVE, VMI_FINALIZER,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::json;

use crate::controllers::defined::{self, Found, Reading, find};
use crate::controllers::{Config, trim};
use crate::diff::merge_patch;
use crate::identity::{consumer_of, filler_of, launcher_of};

use conditions::FAILED_CREATE;
pub(crate) use conditions::{POD_TERMINATING, ready, replace_condition, unpaused_condition};
pub(crate) use pod::DEFAULT_GRACE_S;
pub(crate) use progress::enter;

/// How long a launcher may take to end by itself once its guest has ended, before its pod is deleted with its instance.
const LAUNCHER_END: Duration = Duration::from_secs(3);
/// How long all of a pod's containers may take, where the instance stays and its pod is to stay with it.
const POD_END: Duration = Duration::from_secs(10);
/// Seconds that its containers get then.
const LAUNCHER_GRACE_S: i64 = 5;

/// How long a status may wait that only tells how an instance is getting on.
const STATUS_WAIT: Duration = Duration::from_millis(500);
/// How long it may wait when it tells of a step that passes by itself: its pod is started, or is on its way out.
const STEP_WAIT: Duration = Duration::from_secs(2);

/// Gives instances their pods.
pub struct VmiController {
    config: Config,
    volumes: Reading<DataVolume>,
}

impl VmiController {
    /// A controller with these settings.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, volumes: Reading::default() }
    }
}

/// What a decision about one instance rests on.
pub(super) struct World<'a> {
    pub vmi: &'a VirtualMachineInstance,
    /// Its pods, those that are going away included.
    pub pods: Vec<&'a Pod>,
    /// The pod that uses its claims before they are filled.
    pub consumer: Option<&'a Pod>,
    pub view: &'a View<'a>,
    pub config: &'a Config,
}

impl World<'_> {
    /// The pod that the instance runs in.
    pub fn pod(&self) -> Option<&Pod> {
        self.pods.first().copied()
    }

    /// A claim in the instance's namespace.
    pub fn claim(&self, name: &str) -> Option<&PersistentVolumeClaim> {
        self.view.get::<PersistentVolumeClaim>(self.vmi.namespace(), name).map(AsRef::as_ref)
    }

    /// The instance's DataVolumes, as far as it is known that they are there: those that its volumes name, and those that its
    /// claims belong to. (Upstream: `ListDataVolumesFromVolumes` in pkg/storage/types.)
    pub fn data_volumes(&self) -> impl Iterator<Item = &DataVolume> {
        self.vmi.spec.volumes.iter().filter_map(move |volume| {
            let name = match &volume.data_volume {
                Some(source) => &source.name,
                None => &filler_of(self.claim(volume.claim_name()?)?)?.name,
            };
            match find::<DataVolume>(self.view, self.vmi.namespace(), name) {
                Found::There(volume) => Some(volume),
                Found::Undefined | Found::Unknown | Found::Absent => None,
            }
        })
    }

    /// The cluster's settings; the oldest object counts, as there should be one.
    pub fn cluster(&self) -> KubeVirt {
        self.view.cache::<KubeVirt>().iter().next().map(|object| object.as_ref().clone()).unwrap_or_default()
    }
}

impl Controller for VmiController {
    fn name(&self) -> &'static str {
        "virtualmachineinstance"
    }
    fn event_source(&self) -> &'static str {
        "virtualmachine-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineInstance>();
        setup.index::<VirtualMachineInstance>(BY_WAIT, by_wait);
        setup.watch_owned::<Pod, VirtualMachineInstance>();
        // All of these controllers share the cache, and none of them writes a whole pod back.
        setup.trim::<Pod>(trim::pod);
        // A node's heartbeat is news for nobody that waits, of whom there may be thousands.
        setup.watch_changes::<Node>(Source::of::<Node>(), is_another, |_, view| waiting(view, WAITS));
        // What nodes have is looked through for each instance that begins.
        setup.keep_open::<Node>();
        setup.watch::<PersistentVolumeClaim>(|claim, view| waiting(view, &wait_for(claim.namespace(), claim.name())));
        setup.watch::<KubeVirt>(|_, view| waiting(view, WAITS));
        setup.read::<PersistentVolume>();
        setup.read::<VirtualMachine>();
        setup.watch_source::<Lease>(crate::fence::leases(), |_, _| Vec::new());
        defined::setup(setup);
    }

    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        // A DataVolume has the name of its claim.
        self.volumes.refresh(view, setup, |setup| {
            setup.watch::<DataVolume>(|volume, view| waiting(view, &wait_for(volume.namespace(), volume.name())));
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(vmi) = view.get::<VirtualMachineInstance>(&key.namespace, &key.name) else { return Plan::none() };
        let (pods, uid) = (view.cache::<Pod>(), vmi.uid());
        let consumer = pods.by_owner(uid).find(|pod| consumer_of(pod) == Some(uid)).map(AsRef::as_ref);
        let pods = pods.by_owner(uid).filter(|pod| launcher_of(pod) == Some(uid)).map(AsRef::as_ref).collect();
        reconcile(&World { vmi, pods, consumer, view, config: &self.config }, now)
    }

    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(vmi) = view.get::<VirtualMachineInstance>(&key.namespace, &key.name) else { return Plan::none() };
        let error = &refusal.error.message;
        match refusal.write {
            Write::Create { resource, .. } if *resource == Pod::resource() => {
                let event = EventRecord::warning(vmi.as_ref(), FAILED_CREATE, format!("Error creating pod: {error}"));
                let message = format!("failed to create virtual machine pod: {error}");
                let mut status = vmi.status.clone().unwrap_or_default();
                let told = Condition::new("Synchronized", "False", FAILED_CREATE, &message);
                let is_new = set_condition(&mut status.conditions, told, &now.meta());
                let patch = json!({"status": {"conditions": status.conditions}});
                let plan = Plan::none().event(event);
                if is_new { plan.patch(vmi.as_ref(), patch) } else { plan }
            }
            Write::Delete { resource, key, .. } if *resource == Pod::resource() => {
                let message = format!("Failed to delete virtual machine pod {}", key.name);
                Plan::none().event(EventRecord::warning(vmi.as_ref(), "FailedDelete", message))
            }
            _ => Plan::none(),
        }
    }
}

/// Whether what a node says of itself has become something else for an instance that waits.
fn is_another(old: &Node, new: &Node) -> bool {
    let devices = |node| pod::devices_of(std::iter::once(node));
    devices(old) != devices(new)
}

/// Instances that wait before they get a pod, under one value of the index.
fn waiting(view: &View<'_>, what: &str) -> Vec<Key> {
    view.cache::<VirtualMachineInstance>().by_index(BY_WAIT, what).map(|vmi| Key::of(vmi.as_ref())).collect()
}

/// Index of instances that wait for something before they get a pod: all under one value, and each under its claims. What they wait
/// for changes often, and most instances wait for nothing.
const BY_WAIT: &str = "waits";
const WAITS: &str = "waits";

/// The value for those that a claim may be missing for.
fn wait_for(namespace: &str, claim: &str) -> String {
    format!("{namespace}/{claim}")
}

fn by_wait(vmi: &VirtualMachineInstance) -> Vec<String> {
    if !matches!(vmi.phase(), phase::UNSET | phase::PENDING) {
        return Vec::new();
    }
    let claims: BTreeSet<String> = state::claims(vmi).map(|claim| wait_for(vmi.namespace(), &claim)).collect();
    std::iter::once(WAITS.to_owned()).chain(claims).collect()
}

fn reconcile(world: &World<'_>, now: Time) -> Plan {
    let vmi = world.vmi;
    let may_go = vmi.is_deleting() && vmi.is_final() && world.pods.is_empty();
    if may_go {
        let holds = vmi.has_finalizer(VMI_FINALIZER);
        return if holds { Plan::none().without_finalizer(vmi, VMI_FINALIZER) } else { Plan::none() };
    }
    let progress = progress::next(world);
    let mut new = vmi.clone();
    if !vmi.is_deleting() {
        new.add_finalizer(VMI_FINALIZER);
    }
    if progress.is_scheduling() && vmi.annotation(FAILOVER_ANNOTATION).is_none() {
        // Decided once, before there is a guest: what it was started with holds for as long as it runs. A claim that is not
        // bound when there is no pod yet may be when the pod runs.
        let last = matches!(progress, progress::Next::Phase(phase::SCHEDULED));
        let failover = match failover::decide(world) {
            Ok(()) => Some("true".to_owned()),
            Err(against) => (last || !against.passes).then_some(against.why),
        };
        if let Some(failover) = failover {
            new.metadata.annotations.get_or_insert_default().insert(FAILOVER_ANNOTATION.to_owned(), failover);
        }
    }
    progress::apply(world, &mut new, &progress, now);
    if matches!(progress, progress::Next::Phase(phase::SCHEDULED))
        && let Some(term) = failover::term(world, &new)
    {
        new.metadata.annotations.get_or_insert_default().insert(FENCING_TOKEN_ANNOTATION.to_owned(), term.to_string());
    }
    conditions::apply(world, &mut new, &progress, now);
    let mut plan = match merge_patch(vmi, &new) {
        Some(patch) => {
            let plan = Plan::none().patch(vmi, patch);
            match patience(vmi, &new, &progress) {
                Some(wait) => plan.patient(wait),
                None => plan,
            }
        }
        None => Plan::none(),
    };
    plan = tell_obstacle(vmi, &new, &progress, plan);
    // The first write that fails ends the plan: who is in the launcher's way, by a quota or by what it has of its node, goes
    // before it.
    if progress.is_done_with_consumer() {
        plan = plan.then(let_consumer_go(world, &new));
    }
    // The pod comes after the patch: when the finalizer is not there, neither is the pod. When it is, the patch can wait for
    // the pod, which moves the phase on.
    if let progress::Next::CreatePod(pod, state) | progress::Next::CreateConsumer(pod, state) = &progress {
        let make = state.iter().fold(Plan::none(), |plan, claim| plan.create(claim.as_ref()));
        let message = format!("Created virtual machine pod {}", pod.name());
        // A request that arrives late makes no pod beside the next instance's.
        let make = make.create(pod.as_ref()).resting_on(&Premise::present(vmi));
        plan = plan.then(make).told(EventRecord::normal(vmi, "SuccessfulCreate", message));
    }
    // What is left of one whose node is dead is `node::recovery`'s to clear up.
    let is_lost = new.status.as_ref().is_some_and(|status| status.reason == NODE_UNRESPONSIVE);
    if new.is_final() && !is_lost && !keep_launcher(vmi) {
        plan = clear_up(world, &new, plan, now);
    } else if vmi.is_deleting() && matches!(new.phase(), phase::SCHEDULED | phase::RUNNING) {
        // The handler has until the end of the pod's own grace period.
        plan = delete_pods(world, &new, plan, DeleteOptions::default());
    }
    plan.then(unpaused_gate(world, now))
}

/// How long a change may wait that only tells how an instance is getting on: it does not become ready, and nobody acts on what
/// changes. Steps on the way to a guest are told with the phase that hands it over, as long as nothing is in the way.
fn patience(old: &VirtualMachineInstance, new: &VirtualMachineInstance, progress: &progress::Next) -> Option<Duration> {
    let in_the_way = ["PodScheduled", "Synchronized"];
    let unhindered = in_the_way.iter().all(|kind| old.condition(kind) == new.condition(kind));
    let wait = |passes: bool| Some(if passes && unhindered { STEP_WAIT } else { STATUS_WAIT });
    match progress {
        // The pod comes after the finalizer.
        progress::Next::CreatePod(..) | progress::Next::Phase(phase::SCHEDULING)
            if old.metadata.finalizers == new.metadata.finalizers =>
        {
            wait(true)
        }
        // How a guest has ended, and why, its handler tells, unless it is away: of a deleted one in the write that lets it go.
        progress::Next::Phase(phase::SUCCEEDED | phase::FAILED)
            if matches!(old.phase(), phase::SCHEDULED | phase::RUNNING) =>
        {
            wait(true)
        }
        // What is in the way is told once, with its event.
        progress::Next::CreatePod(..) | progress::Next::CreateConsumer(..) | progress::Next::Wait(_) => None,
        _ if !unhindered && conditions::lacks_networks(new) => None,
        _ => {
            let becomes_ready = new.is_true("Ready") && !old.is_true("Ready");
            let passes = new.is_deleting() || new.phase() == phase::SCHEDULING;
            let only_status = old.phase() == new.phase() && old.metadata == new.metadata;
            if only_status && !becomes_ready { wait(passes) } else { None }
        }
    }
}

/// What keeps an instance from getting a pod is told once each time that it changes.
fn tell_obstacle(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    progress: &progress::Next,
    plan: Plan,
) -> Plan {
    let kind = match progress {
        progress::Next::Wait(progress::Obstacle::NoNode) => "PodScheduled",
        progress::Next::Wait(_) => "Synchronized",
        _ if conditions::lacks_networks(new) => "Synchronized",
        _ => return plan,
    };
    match new.condition(kind) {
        Some(now) if old.condition(kind).map(|before| &before.message) != Some(&now.message) => {
            plan.event(EventRecord::warning(new, now.reason.clone(), now.message.clone()))
        }
        _ => plan,
    }
}

/// A launcher whose guest failed may be kept to look at, until the instance is deleted.
fn keep_launcher(vmi: &VirtualMachineInstance) -> bool {
    !vmi.is_deleting() && vmi.annotation(KEEP_LAUNCHER_ANNOTATION) == Some("true")
}

/// Deletes the pods of an instance that is over, but for those that have ended while the instance stays. A launcher whose guest
/// has just ended gets a moment to end by itself: stopping a container that is about to be gone only makes noise. (Upstream:
/// `sync` in pkg/virt-controller/watch/vmi.)
fn clear_up(world: &World<'_>, new: &VirtualMachineInstance, plan: Plan, now: Time) -> Plan {
    let goes = world.vmi.is_deleting();
    if !goes && world.pods.iter().all(|pod| is_terminal(pod)) {
        return plan;
    }
    let over_since = new.status.as_ref().and_then(|status| status.phase_transition_timestamps.last());
    let over_since = over_since.and_then(|last| last.phase_transition_timestamp.as_ref()).map(Time::from);
    let patience = if goes { LAUNCHER_END } else { POD_END };
    // By its node's clock. What that says is of no use where it is far ahead of this one.
    let left = over_since.map(|since| (since + patience).since(now)).filter(|left| *left <= patience * 2);
    let left = left.unwrap_or_default();
    let had_guest = !world.vmi.status.as_ref().is_none_or(|status| status.node_name.is_empty());
    if had_guest
        && left > Duration::ZERO
        && world.pod().is_some_and(|pod| !pod.is_deleting() && (!goes || progress::compute_runs(pod)))
    {
        return plan.requeue_after(left);
    }
    let options = DeleteOptions { grace_period_s: Some(LAUNCHER_GRACE_S), ..DeleteOptions::default() };
    delete_pods(world, new, plan, options)
}

/// Deletes the pod that has used an instance's claims before they were filled. No guest runs in it, and nobody waits until it is
/// gone.
fn let_consumer_go(world: &World<'_>, new: &VirtualMachineInstance) -> Plan {
    let Some(pod) = world.consumer.filter(|pod| !pod.is_deleting()) else { return Plan::none() };
    let message = format!("Deleted WaitForFirstConsumer temporary pod {}", pod.name());
    Plan::none().delete(pod).told(EventRecord::normal(new, "SuccessfulDelete", message))
}

/// Deletes an instance's pods.
fn delete_pods(world: &World<'_>, new: &VirtualMachineInstance, plan: Plan, options: DeleteOptions) -> Plan {
    world.pods.iter().filter(|pod| !pod.is_deleting()).fold(plan, |plan, pod| {
        let message = format!("Deleted virtual machine pod {}", pod.name());
        let told = EventRecord::normal(new, "SuccessfulDelete", message);
        plan.delete_with(&Pod::resource(), *pod, options.clone()).told(told)
    })
}

/// Keeps the pod's readiness gate: a pod whose guest is paused takes no traffic.
fn unpaused_gate(world: &World<'_>, now: Time) -> Plan {
    let Some(pod) = world.pod().filter(|pod| !pod.is_deleting()) else { return Plan::none() };
    let Some(wanted) = conditions::unpaused(world.vmi, pod, now) else { return Plan::none() };
    Plan::none().write(Write::Patch {
        resource: Pod::resource(),
        key: Key::of(pod),
        uid: pod.uid().to_owned(),
        sub: "status",
        content_type: carrack_engine::ContentType::StrategicMergePatch,
        patch: json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [wanted]}}),
    })
}

#[cfg(test)]
mod tests;
