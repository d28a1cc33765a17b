//! The VirtualMachineRestore controller: makes a machine what a snapshot holds, or makes another one so.
//!
//! ```text
//!   target off? ─▶ restoreInProgress ─▶ claims from VolumeSnapshots ─▶ machine's spec, or a new machine
//!                                       claims, filled from copies ─┘
//!       │ no: stop it, wait, or fail                                        └▶ claims owned ─▶ complete
//!   deleted before it was complete ─▶ claims that no machine has, or that are blank, deleted ─▶ restoreInProgress off ─▶ gone
//!   failed ─▶ restoreInProgress off, unless the target has a claim that is blank
//! ```
//!
//! A claim's name follows from the restore's UID and the volume, or is said by whoever asks; it is the restore's own if
//! its annotation says so, and one that is somebody else's ends the restore. Nothing of the target is changed unless a live
//! read has shown that it has no instance, and the machine's controller starts none while `restoreInProgress` is set.

mod claims;
mod filling;
mod target;

use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, controller_ref};
use carrack_types::kubevirt::snapshot::names::{LAST_RESTORE_ANNOTATION, RESTORE_FINALIZER, RESTORE_NAME_ANNOTATION};
use carrack_types::kubevirt::snapshot::{VirtualMachineRestoreStatus, target_readiness};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineRestore, VirtualMachineSnapshot,
    VirtualMachineSnapshotContent,
};
use carrack_types::resource::{Kind as _, Object};
use carrack_types::snapshots::VolumeSnapshot;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::defined;
use super::snapshot::KINDS_AGAIN;
use super::snapshot::classes::{self, Kinds};
use super::snapshot::conditions::{failure, progressing, ready};
use crate::api::plan_stop;
use crate::controllers::copies::off;
use crate::controllers::vm::is_to_start;
use crate::controllers::{Config, Planted};
use crate::diff::merge_patch;

/// How long a target may run on before the restore fails that waits for it.
const GRACE: Duration = Duration::from_secs(300);
/// How soon to look again at what it waits for.
const AGAIN: Duration = Duration::from_secs(5);

const VMI_EXISTS: &str = "Restore target VMI still exists, please stop the restore target to proceed with restore";
const WAIT_EVENTUALLY: &str =
    "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore";
const WAIT_GRACE: &str = "Waiting for target VM to be powered off. Please stop the restore target to proceed with \
                          restore, or the operation will fail after 5m0s";
const GRACE_EXCEEDED: &str =
    "Restore target failed to be ready within 5m0s. Please power off the target VM before attempting restore";
const NOT_READY: &str = "Restore target VMI must be powered off before restore operation";
const STOPPING: &str = "Automatically stopping restore target for restore operation";
const OTHER_TARGET: &str = "restore source and restore target are different but restore target already exists";

/// Restores machines.
#[derive(Default)]
pub struct RestoreController {
    kinds: Kinds,
    /// Image of the pods that copy disks.
    image: String,
    planted: Option<Planted>,
}

impl RestoreController {
    /// With what the controllers are set to.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self { kinds: Kinds::default(), image: config.launcher_image.clone(), planted: config.planted }
    }
}

/// What a decision about one restore rests on.
struct World<'a> {
    restore: &'a VirtualMachineRestore,
    /// The machine of the target's name.
    vm: Option<&'a VirtualMachine>,
    /// An instance of the target's name, whosever it is.
    vmi: Option<&'a VirtualMachineInstance>,
    view: &'a View<'a>,
    now: Time,
    /// Image of the pods that copy disks.
    image: &'a str,
    planted: Option<Planted>,
}

/// What a snapshot holds, when it can be used.
struct Held<'a> {
    snapshot: &'a VirtualMachineSnapshot,
    content: &'a VirtualMachineSnapshotContent,
}

/// Why it does not go on, for now or for good.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// Something may change.
    ForNow(String),
    /// Nothing will, as long as this is there, if anything.
    ForGood { why: String, while_there: Option<Box<Premise>> },
}

impl Stop {
    /// Nothing that decides it can change.
    fn for_good(why: impl Into<String>) -> Self {
        Self::ForGood { why: why.into(), while_there: None }
    }
}

/// What marks machines and claims that are as they are by this restore.
fn mark(restore: &VirtualMachineRestore) -> String {
    format!("{}-{}", restore.name(), restore.uid())
}

/// Whether a machine or a claim is as it is by this restore.
fn is_by<K: Object>(restore: &VirtualMachineRestore, object: &K) -> bool {
    object.annotation(LAST_RESTORE_ANNOTATION) == Some(mark(restore).as_str())
}

/// Index of restores that still have something to do, by namespace, and by the machine that they are to restore.
const BY_OPEN: &str = "open";

fn by_open(restore: &VirtualMachineRestore) -> Vec<String> {
    if !restore.is_progressing() && !restore.is_deleting() {
        return Vec::new();
    }
    let namespace = restore.namespace();
    vec![namespace.to_owned(), target_of(namespace, &restore.spec.target.name)]
}

/// The index's value for the machine of this name.
fn target_of(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Restores under a value of the index that fit.
fn open(view: &View<'_>, value: &str, fits: impl Fn(&VirtualMachineRestore) -> bool) -> Vec<Key> {
    let open = view.cache::<VirtualMachineRestore>().by_index(BY_OPEN, value);
    open.filter(|restore| fits(restore)).map(|restore| Key::of(restore.as_ref())).collect()
}

impl Controller for RestoreController {
    fn name(&self) -> &'static str {
        "virtualmachinerestore"
    }
    fn event_source(&self) -> &'static str {
        "restore-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineRestore>();
        setup.index::<VirtualMachineRestore>(BY_OPEN, by_open);
        setup.watch::<VirtualMachine>(|vm, view| {
            let mut keys = open(view, &target_of(vm.namespace(), vm.name()), |_| true);
            let holder = vm.status.as_ref().and_then(|status| status.restore_in_progress.clone());
            keys.extend(holder.map(|name| Key::new(vm.namespace(), name)).filter(|key| !keys.contains(key)));
            keys
        });
        setup
            .watch::<VirtualMachineInstance>(|vmi, view| open(view, &target_of(vmi.namespace(), vmi.name()), |_| true));
        setup.watch::<VirtualMachineSnapshot>(|snapshot, view| {
            open(view, snapshot.namespace(), |restore| restore.spec.virtual_machine_snapshot_name == snapshot.name())
        });
        setup.watch::<VirtualMachineSnapshotContent>(|content, view| {
            let snapshot = content.spec.virtual_machine_snapshot_name.as_deref();
            open(view, content.namespace(), |restore| {
                Some(restore.spec.virtual_machine_snapshot_name.as_str()) == snapshot
            })
        });
        setup.watch::<PersistentVolumeClaim>(|claim, view| {
            let named = |restore: &VirtualMachineRestore| {
                let restores = restore.status.iter().flat_map(|status| &status.restores);
                restores.into_iter().any(|volume| volume.persistent_volume_claim_name == claim.name())
            };
            let by = claim.annotation(RESTORE_NAME_ANNOTATION);
            open(view, claim.namespace(), |restore| by == Some(restore.name()) || named(restore))
        });
        setup.watch_owned::<Pod, VirtualMachineRestore>();
        setup.read::<StorageClass>();
        setup.read::<ControllerRevision>();
        defined::setup(setup);
    }

    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.kinds.refresh(view, setup, |setup| {
            setup.watch::<VolumeSnapshot>(|snapshot, view| {
                open(view, snapshot.namespace(), |restore| {
                    let restores = restore.status.iter().flat_map(|status| &status.restores);
                    restores.into_iter().any(|volume| volume.volume_snapshot_name == snapshot.name())
                })
            });
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(restore) = view.get::<VirtualMachineRestore>(&key.namespace, &key.name) else { return Plan::none() };
        let name = &restore.spec.target.name;
        let vm = view.get::<VirtualMachine>(&key.namespace, name).map(AsRef::as_ref);
        let vmi = view.get::<VirtualMachineInstance>(&key.namespace, name).map(AsRef::as_ref);
        let world = World { restore, vm, vmi, view, now, image: &self.image, planted: self.planted };
        if restore.is_deleting() {
            return finish(&world);
        }
        if !restore.is_progressing() {
            // Of one that failed, a pod may be left, and claims that keep the target from starting.
            let free = || if filling::blank(&world).is_empty() { let_go(&world) } else { None };
            return filling::clear(&world).or_else(free).unwrap_or_default();
        }
        if restore.status.is_none() {
            return say(&world, |status, now| {
                status.complete = Some(false);
                progressing(&mut status.conditions, true, "Initializing VirtualMachineRestore", now);
                ready(&mut status.conditions, false, "Initializing VirtualMachineRestore", now);
            });
        }
        if let Some(plan) = own(&world) {
            return plan;
        }
        if !classes::are_known(view) {
            return Plan::none().requeue_after(KINDS_AGAIN);
        }
        match proceed(&world) {
            Ok(plan) => plan,
            Err(Stop::ForNow(why)) => encountered(&world, &why).requeue_after(AGAIN),
            Err(Stop::ForGood { why, while_there: None }) => fail(&world, &why),
            Err(Stop::ForGood { why, while_there: Some(premise) }) => fail(&world, &why).resting_on(&premise),
        }
    }

    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(restore) = view.get::<VirtualMachineRestore>(&key.namespace, &key.name) else { return Plan::none() };
        let world = World { restore, vm: None, vmi: None, view, now, image: &self.image, planted: self.planted };
        encountered(&world, &refusal.error.message)
    }
}

/// The restore is held by its finalizer, and belongs to its target, if that is there.
fn own(world: &World<'_>) -> Option<Plan> {
    let restore = world.restore;
    let mut new = restore.metadata.clone();
    if !restore.has_finalizer(RESTORE_FINALIZER) {
        new.finalizers.get_or_insert_default().push(RESTORE_FINALIZER.to_owned());
    }
    let target = world.vm.filter(|vm| !vm.is_deleting());
    let orphan = restore.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
    let proof = match target {
        Some(vm) if orphan => {
            new.owner_references = Some(vec![controller_ref(vm)]);
            Plan::none().confirm_alive(vm)
        }
        _ => Plan::none(),
    };
    let patch = merge_patch(&restore.metadata, &new)?;
    Some(proof.patch(restore, json!({"metadata": patch})))
}

/// Brings the status up to date.
fn say(world: &World<'_>, change: impl FnOnce(&mut VirtualMachineRestoreStatus, Time)) -> Plan {
    let old = world.restore.status.clone().unwrap_or_default();
    let mut new = old.clone();
    change(&mut new, world.now);
    match merge_patch(&old, &new) {
        Some(patch) => Plan::none().patch_status(world.restore, json!({"status": patch})),
        None => Plan::none(),
    }
}

/// What is being done, and what is waited for.
fn under_way(world: &World<'_>, is: bool, done: &str, waited_for: &str) -> Plan {
    say(world, |status, now| {
        progressing(&mut status.conditions, is, done, now);
        ready(&mut status.conditions, false, waited_for, now);
    })
}

/// It does not go on for now; said once each time that the reason changes.
fn encountered(world: &World<'_>, why: &str) -> Plan {
    let plan = under_way(world, false, why, why);
    if plan.is_none() {
        return plan;
    }
    let message = format!("VirtualMachineRestore encountered error {why}");
    plan.event(EventRecord::warning(world.restore, "VirtualMachineRestoreError", message))
}

/// It failed, for good.
fn fail(world: &World<'_>, why: &str) -> Plan {
    let blank: Vec<&str> = filling::blank(world).into_iter().map(|claim| claim.name()).collect();
    let held = format!(
        "{why}; the target is not started before this restore is deleted, as PVCs [{}] are not filled",
        blank.join(" ")
    );
    let why = if blank.is_empty() { why } else { &held };
    let plan = say(world, |status, now| {
        progressing(&mut status.conditions, false, why, now);
        ready(&mut status.conditions, false, why, now);
        failure(&mut status.conditions, why, now);
    });
    let message = format!("VirtualMachineRestore failed {why}");
    plan.told(EventRecord::warning(world.restore, "Operation failed", message))
}

/// What the snapshot holds.
fn held<'a>(world: &World<'a>) -> Result<Held<'a>, Stop> {
    let namespace = world.restore.namespace();
    let name = &world.restore.spec.virtual_machine_snapshot_name;
    let of = |why: &str| Stop::ForNow(format!("VMSnapshot {namespace}/{name} {why}"));
    let snapshot = world.view.get::<VirtualMachineSnapshot>(namespace, name).ok_or_else(|| of("does not exist"))?;
    if snapshot.has_failed() {
        return Err(of("failed and is invalid to use"));
    }
    if !snapshot.is_ready() || snapshot.is_deleting() {
        return Err(of("not ready"));
    }
    let status = snapshot.status.as_ref();
    let content = status.and_then(|status| status.virtual_machine_snapshot_content_name.as_deref());
    let content = content.ok_or_else(|| Stop::ForNow(format!("no snapshot content name in {namespace}/{name}")))?;
    let of = |why: &str| Stop::ForNow(format!("VMSnapshotContent {namespace}/{content} {why}"));
    let content =
        world.view.get::<VirtualMachineSnapshotContent>(namespace, content).ok_or_else(|| of("does not exist"))?;
    if !content.is_ready() || content.is_deleting() {
        return Err(of("not ready"));
    }
    Ok(Held { snapshot, content })
}

fn proceed(world: &World<'_>) -> Result<Plan, Stop> {
    let World { restore, vm, vmi, .. } = *world;
    let restored = vm.is_some_and(|vm| is_by(restore, vm));
    if restored {
        return Ok(target::complete(world));
    }
    if let (Some(vm), Some(vmi)) = (vm, vmi) {
        return wait_for(world, vm, vmi);
    }
    let held = held(world)?;
    if let Some(vm) = vm {
        let status = held.snapshot.status.as_ref();
        if status.and_then(|status| status.source_uid.as_deref()).is_some_and(|uid| uid != vm.uid()) {
            return Err(Stop::ForNow(OTHER_TARGET.to_owned()));
        }
        if let Some(plan) = hold(world, vm)? {
            return Ok(plan);
        }
    }
    if let Some(plan) = claims::prepare(world, &held)? {
        return Ok(plan);
    }
    if let Some(plan) = filling::fill(world, &held)? {
        return Ok(plan);
    }
    target::apply(world, &held)
}

/// The target runs: it is stopped, or waited for.
fn wait_for(world: &World<'_>, vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Result<Plan, Stop> {
    let restore = world.restore;
    // That it runs decides whether the restore is over, so it is to be so when that is written.
    let fail = |why: &str| Ok(fail(world, why).resting_on(&Premise::present(vmi)));
    let told = |plan: Plan, message: &str| {
        let event = EventRecord::warning(restore, "RestoreTargetNotReady", message);
        if plan.is_none() { plan } else { plan.event(event) }
    };
    // One that has ended is nothing to wait for, and where its machine stays down nobody else takes it away.
    if vmi.is_final() && vmi.controller_uid() == Some(vm.uid()) && !is_to_start(vm) {
        let plan = if vmi.is_deleting() { Plan::none() } else { Plan::none().delete(vmi) };
        return Ok(plan.then(under_way(world, false, STOPPING, STOPPING)));
    }
    match restore.spec.target_readiness_policy.as_deref().unwrap_or(target_readiness::WAIT_GRACE_PERIOD) {
        target_readiness::STOP_TARGET => {
            let plan = told(under_way(world, false, STOPPING, STOPPING), STOPPING);
            if vmi.is_deleting() || vmi.controller_uid() != Some(vm.uid()) {
                return Ok(plan);
            }
            match plan_stop(vm, Some(vmi), None) {
                Ok(change) if !change.is_asked(vm) => {
                    let (sub, patch) = change.patch(vm);
                    let stop = Plan::none();
                    let stop = if sub.is_empty() { stop.patch(vm, patch) } else { stop.patch_status(vm, patch) };
                    Ok(stop.then(plan))
                }
                // A stop is under way.
                Ok(_) | Err(_) => Ok(plan),
            }
        }
        target_readiness::WAIT_EVENTUALLY => {
            Ok(told(under_way(world, false, WAIT_EVENTUALLY, WAIT_EVENTUALLY), VMI_EXISTS))
        }
        target_readiness::FAIL_IMMEDIATE => fail(NOT_READY),
        _ => {
            let since = restore.metadata.creation_timestamp.as_ref().map_or(world.now, Time::from);
            let until = since + GRACE + Duration::from_secs(1);
            if until <= world.now {
                return fail(GRACE_EXCEEDED);
            }
            let plan = told(under_way(world, false, WAIT_GRACE, WAIT_GRACE), VMI_EXISTS);
            Ok(plan.requeue_after(until.since(world.now)))
        }
    }
}

/// Takes the target for this restore; nothing when it has it.
fn hold(world: &World<'_>, vm: &VirtualMachine) -> Result<Option<Plan>, Stop> {
    let status = vm.status.as_ref();
    let (proof, premise) = off(vm);
    let mut plan = proof;
    match status.and_then(|status| status.restore_in_progress.as_deref()) {
        Some(name) if name == world.restore.name() => return Ok(None),
        Some(other) => {
            if world.view.get::<VirtualMachineRestore>(vm.namespace(), other).is_some() {
                return Err(Stop::ForNow(format!("vm restore {other} in progress")));
            }
            // It has gone and left this behind.
            plan = plan.confirm_absent(&VirtualMachineRestore::resource(), Key::new(vm.namespace(), other), "");
        }
        None => {}
    }
    if let Some(snapshot) = status.and_then(|status| status.snapshot_in_progress.as_deref()) {
        return Err(Stop::ForNow(format!("vm snapshot {snapshot} in progress")));
    }
    let patch = json!({"status": {"restoreInProgress": world.restore.name()}});
    Ok(Some(plan.patch_status(vm, patch).resting_on(&premise)))
}

/// The next step to letting the target go; nothing when this restore does not have it.
fn let_go(world: &World<'_>) -> Option<Plan> {
    let vm = world.vm?;
    let holder = vm.status.as_ref().and_then(|status| status.restore_in_progress.as_deref());
    (holder == Some(world.restore.name())).then(|| {
        Plan::none().patch_status(vm, json!({"status": {"restoreInProgress": null, "memoryDumpRequest": null}}))
    })
}

/// It is to go: what it made and nobody has goes first.
fn finish(world: &World<'_>) -> Plan {
    let restore = world.restore;
    if !restore.has_finalizer(RESTORE_FINALIZER) {
        return Plan::none();
    }
    if let Some(plan) = filling::clear(world) {
        return plan.then(under_way(world, false, "VM restore is deleting", "VM restore is deleting"));
    }
    if !restore.is_complete()
        && let Some(plan) = claims::drop_unused(world)
    {
        return plan.then(under_way(world, false, "VM restore is deleting", "VM restore is deleting"));
    }
    // It was made already, and would wait for claims of its own for ever.
    let owners = claims::given_owners(world);
    if !owners.is_none() {
        return owners.requeue_after(AGAIN);
    }
    let proof = if restore.is_complete() { Plan::none() } else { claims::confirm_dropped(world) };
    // One of them may be blank, and the target's.
    if let Some(plan) = let_go(world) {
        return proof.then(plan);
    }
    let gone = Plan::none().without_finalizer(restore, RESTORE_FINALIZER);
    let proof = proof.then(filling::confirm_cleared(world));
    match world.vm {
        Some(vm) => proof.then(gone.resting_on(&Premise::unchanged(vm))),
        None => {
            let key = Key::new(restore.namespace(), restore.spec.target.name.clone());
            proof.confirm_absent(&VirtualMachine::resource(), key, "").then(gone)
        }
    }
}

#[cfg(test)]
mod tests;
