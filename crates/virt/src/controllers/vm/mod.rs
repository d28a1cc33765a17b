//! The VirtualMachine controller: makes and deletes the instance that a machine's run strategy asks for.
//!
//! ```text
//!            wanted: run          wanted: stop, or the instance is final
//!   no instance ─────────▶ instance ─────────▶ instance deleted ─▶ no instance
//!        ▲                                                            │
//!        └───── after a failed start: wait 10·n² s, at most 300 s ◀───┘
//! ```
//!
//! An instance goes only after its pods are gone (the instance's own finalizer), so a new instance never meets the
//! old one's guest. The instance bears the machine's name. One of that name that belongs to nobody becomes the machine's
//! own, such as one that a machine of this name has left behind; one that belongs to somebody else is left alone and
//! reported.

mod data_volumes;
pub(crate) mod instance;
mod size;
mod start_failure;
mod status;
mod strategy;

use std::time::Duration;

use carrack_engine::{
    Absent, Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write, controller_ref,
};
use carrack_types::data_volumes::{DataSource, DataVolume};
use carrack_types::kubevirt::instancetype::{
    VirtualMachineClusterInstancetype, VirtualMachineClusterPreference, VirtualMachineInstancetype,
    VirtualMachinePreference,
};
use carrack_types::kubevirt::vm::VolumeSnapshotStatus;
use carrack_types::kubevirt::{
    KubeVirt, VirtualMachine, VirtualMachineInstance, Volume, printable_status, run_strategy,
};
use carrack_types::resource::{Kind, Object, Resource};
use carrack_types::snapshots::VolumeSnapshotClass;
use carrack_types::well_known::finalizer::ORPHAN;
use carrack_types::well_known::kubevirt::{STARTED_WITH_ANNOTATIONS, STATE_CLAIM_ANNOTATION, VM_FINALIZER};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::Planted;
use super::copies;
use super::defined::{self, Reading};
use super::snapshot::KINDS_AGAIN;
use super::snapshot::classes::{self, Kinds};
use super::vmi::DEFAULT_GRACE_S;
use crate::diff::merge_patch;
use crate::instancetype::{
    CLUSTER_INSTANCETYPE, CLUSTER_PREFERENCE, INSTANCETYPE, PREFERENCE, instancetype_place, preference_place,
};
pub(crate) use instance::identify;
use size::{Sized, Trouble};
use strategy::Act;

/// Runs machines.
#[derive(Default)]
pub struct VmController {
    kinds: Kinds,
    volumes: Reading<DataVolume>,
    sources: Reading<DataSource>,
    planted: Option<Planted>,
}

impl VmController {
    /// With a bug that the simulator plants, if any.
    #[must_use]
    pub fn new(planted: Option<Planted>) -> Self {
        Self { planted, ..Self::default() }
    }
}

impl Controller for VmController {
    fn name(&self) -> &'static str {
        "virtualmachine"
    }
    fn event_source(&self) -> &'static str {
        "virtualmachine-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachine>();
        setup.index::<VirtualMachine>(BY_NEED, needs);
        // By name, not by owner: a stranger's instance in the way is news, too.
        setup.watch_own::<VirtualMachineInstance>();
        setup.watch_owned::<ControllerRevision, VirtualMachine>();
        setup.watch::<ControllerRevision>(|of, view| that_need(view, REVISION, of.namespace(), of.name()));
        setup.watch::<VirtualMachineInstancetype>(|of, view| that_need(view, INSTANCETYPE, of.namespace(), of.name()));
        setup.watch::<VirtualMachineClusterInstancetype>(|of, view| {
            that_need(view, CLUSTER_INSTANCETYPE, "", of.name())
        });
        setup.watch::<VirtualMachinePreference>(|of, view| that_need(view, PREFERENCE, of.namespace(), of.name()));
        setup.watch::<VirtualMachineClusterPreference>(|of, view| that_need(view, CLUSTER_PREFERENCE, "", of.name()));
        setup.watch::<PersistentVolumeClaim>(|claim, view| that_need(view, CLAIM, claim.namespace(), claim.name()));
        // A machine's state is on a claim of its own, or on one that was restored for it.
        setup.watch_owned::<PersistentVolumeClaim, VirtualMachine>();
        setup.read::<KubeVirt>();
        // They say which volumes can be snapshotted.
        setup.watch::<StorageClass>(|_, view| on_claims(view));
        defined::setup(setup);
    }

    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.kinds.refresh(view, setup, |setup| {
            setup.watch::<VolumeSnapshotClass>(|_, view| on_claims(view));
        });
        // A DataVolume has the name of its claim.
        self.volumes.refresh(view, setup, |setup| {
            setup.watch::<DataVolume>(|volume, view| that_need(view, CLAIM, volume.namespace(), volume.name()));
        });
        self.sources.refresh(view, setup, |setup| {
            setup.watch::<DataSource>(|source, view| that_need(view, SOURCE, source.namespace(), source.name()));
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(vm) = view.get::<VirtualMachine>(&key.namespace, &key.name) else { return Plan::none() };
        let named = view.get::<VirtualMachineInstance>(&key.namespace, &key.name).map(AsRef::as_ref);
        let instance = named.filter(|vmi| vmi.controller_uid() == Some(vm.uid()));
        if vm.is_deleting() {
            return finish(vm, instance, now);
        }
        if !vm.has_finalizer(VM_FINALIZER) {
            return Plan::none().with_finalizer(vm.as_ref(), VM_FINALIZER);
        }
        if let Some(orphan) = named.filter(|vmi| vmi.controller_uid().is_none() && !vmi.is_deleting()) {
            return adopt(vm, orphan, self.planted);
        }
        let revisions: Vec<&ControllerRevision> =
            view.cache::<ControllerRevision>().by_owner(vm.uid()).map(AsRef::as_ref).collect();
        let size = size::find(vm, &revisions, view);
        let bound = |name: &str| {
            let claim = view.get::<PersistentVolumeClaim>(vm.namespace(), name);
            let status = claim.and_then(|claim| claim.status.as_ref());
            claim.is_none() || status.and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        let unbound = !claims(vm).all(bound);
        let stranger = named.is_some() && instance.is_none();
        let snapshots = classes::statuses(vm, view);
        let unknown = snapshots.is_none();
        let settings = view.cache::<KubeVirt>().iter().next();
        let rollout = settings.and_then(|cluster| cluster.spec.configuration.vm_rollout_strategy.as_deref());
        let live = rollout.is_none_or(|strategy| strategy == "LiveUpdate");
        let data = data_volumes::look(vm, instance, view);
        let again = if unknown { Some(KINDS_AGAIN) } else { data.again };
        let plan = run(
            &World { vm, instance, stranger, revisions, size, unbound, data, snapshots, live, planted: self.planted },
            now,
        );
        match again {
            Some(wait) => plan.requeue_after(wait),
            None => plan,
        }
    }

    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(vm) = view.get::<VirtualMachine>(&key.namespace, &key.name) else { return Plan::none() };
        let is_instance = |resource: &Resource| *resource == VirtualMachineInstance::resource();
        let error = &refusal.error.message;
        let (reason, told, event, condition) = match refusal.write {
            Write::Create { resource, .. } if is_instance(resource) => (
                status::FAILED_CREATE,
                status::FAILED_CREATE,
                format!("Error creating virtual machine instance: {error}"),
                format!("Failure while starting VMI: {error}"),
            ),
            Write::Delete { resource, key, .. } if is_instance(resource) => (
                status::FAILED_DELETE,
                status::FAILED_DELETE,
                format!("Error deleting virtual machine instance {}: {error}", key.name),
                format!("Failure attempting to delete VMI: {error}"),
            ),
            Write::Create { resource, .. } if *resource == DataVolume::resource() => (
                status::FAILED_CREATE,
                "FailedDataVolumeCreate",
                format!("Error creating DataVolume {}: {error}", refusal.write.key().name),
                format!("Error encountered while creating DataVolumes: failed to create DataVolume: {error}"),
            ),
            Write::Confirm { absent: Absent::Refusal { .. }, .. } => (
                status::FAILED_CREATE,
                "UnauthorizedDataVolumeCreate",
                format!("Not authorized to create DataVolume: {error}"),
                format!("Error encountered while creating DataVolumes: not authorized to create DataVolume: {error}"),
            ),
            _ => return Plan::none(),
        };
        let plan = Plan::none().event(EventRecord::warning(vm.as_ref(), told, event));
        match status::refused(vm, reason, &condition, now) {
            Some(status) => plan.patch_status(vm.as_ref(), json!({"status": status})),
            None => plan,
        }
    }
}

/// Makes an instance that belongs to nobody the machine's own; what its strategy asks for of it is decided then. It rests on the
/// machine being there, by a live read and in the write itself: the garbage collector takes away what belongs to an owner that is
/// gone. (Upstream: `ClaimVirtualMachineInstanceByName` in pkg/controller.)
fn adopt(vm: &VirtualMachine, orphan: &VirtualMachineInstance, planted: Option<Planted>) -> Plan {
    let others = orphan.metadata.owner_references.iter().flatten().filter(|owner| owner.uid != vm.uid());
    let owners: Vec<OwnerReference> = others.cloned().chain([controller_ref(vm)]).collect();
    let patch = Plan::none().patch(orphan, json!({"metadata": {"ownerReferences": owners}}));
    if planted == Some(Planted::AdoptedUnasked) {
        return patch;
    }
    Plan::none().confirm_alive(vm).then(patch.resting_on(&Premise::present(vm)))
}

/// Whether a machine that has no instance is to get one, as far as its strategy and the requests to it say.
pub(crate) fn is_to_start(vm: &VirtualMachine) -> bool {
    matches!(strategy::decide(vm, None), Act::Start { .. } | Act::SwitchOn)
}

/// The claims that a machine's instance will need.
fn claims(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    vm.spec.template.iter().flat_map(|template| &template.spec.volumes).filter_map(Volume::claim_name)
}

/// The machines that have something on a claim.
fn on_claims(view: &View<'_>) -> Vec<Key> {
    let has_claims = |vm: &VirtualMachine| claims(vm).next().is_some() || classes::state_claim(vm, view).is_some();
    view.cache::<VirtualMachine>().iter().filter(|vm| has_claims(vm)).map(|vm| Key::of(vm.as_ref())).collect()
}

/// Index of machines, by what else they name.
const BY_NEED: &str = "need";

/// Kinds of what a machine names, beside those of instance types and preferences.
const CLAIM: &str = "claim";
const REVISION: &str = "revision";
const SOURCE: &str = "source";

fn need(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind}/{namespace}/{name}")
}

fn needs(vm: &VirtualMachine) -> Vec<String> {
    let namespace = vm.namespace();
    let state = vm.annotation(STATE_CLAIM_ANNOTATION);
    let claims = claims(vm).chain(state).map(|claim| need(CLAIM, namespace, claim));
    let places = [instancetype_place(&vm.spec, namespace), preference_place(&vm.spec, namespace)];
    let sizes = places.iter().flatten().flat_map(|place| {
        let revision = place.revision.map(|name| need(REVISION, namespace, name));
        revision.into_iter().chain([need(place.kind, place.namespace, place.name)])
    });
    let sources = data_volumes::sources(vm).map(|(namespace, name)| need(SOURCE, namespace, name));
    claims.chain(sizes).chain(sources).collect()
}

/// The machines that name an object of a kind.
fn that_need(view: &View<'_>, kind: &str, namespace: &str, name: &str) -> Vec<Key> {
    let needs = need(kind, namespace, name);
    let machines = view.cache::<VirtualMachine>().by_index(BY_NEED, &needs);
    machines.map(|vm| Key::of(vm.as_ref())).collect()
}

/// What a decision about one machine rests on.
struct World<'a> {
    vm: &'a VirtualMachine,
    /// Its instance.
    instance: Option<&'a VirtualMachineInstance>,
    /// An instance of its name belongs to somebody else.
    stranger: bool,
    /// Its ControllerRevisions.
    revisions: Vec<&'a ControllerRevision>,
    /// Its instance type and preference.
    size: Result<Sized, Trouble>,
    /// One of its claims is there and has no volume yet.
    unbound: bool,
    /// What there is of its DataVolumes.
    data: data_volumes::Data<'a>,
    /// Which of its volumes can be snapshotted, if that is known.
    snapshots: Option<Vec<VolumeSnapshotStatus>>,
    /// Some changes of its template reach an instance that runs.
    live: bool,
    planted: Option<Planted>,
}

/// Lets a machine go once its instance is gone. Deleting with orphans leaves the instance to itself.
fn finish(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>, now: Time) -> Plan {
    if !vm.has_finalizer(VM_FINALIZER) {
        return Plan::none();
    }
    match instance {
        Some(vmi) if !vm.has_finalizer(ORPHAN) => {
            // What it was made from is of no interest any more.
            let world = World {
                vm,
                instance: Some(vmi),
                stranger: false,
                revisions: Vec::new(),
                size: Ok(Sized::default()),
                unbound: false,
                data: data_volumes::Data::default(),
                snapshots: None,
                live: false,
                planted: None,
            };
            let grace_s = strategy::stop_request(vm, vmi).and_then(strategy::grace_period_s);
            status_plan(&world, now).then(stop(vm, vmi, grace_s))
        }
        _ => Plan::none().without_finalizer(vm, VM_FINALIZER),
    }
}

fn run(world: &World<'_>, now: Time) -> Plan {
    let World { vm, instance, .. } = world;
    // The revisions come before the status that names them.
    let new = world.size.iter().flat_map(|size| &size.new);
    let plan = new.fold(Plan::none(), |plan, revision| plan.create(revision));
    let plan = plan.then(keep_start(world)).then(status_plan(world, now));
    let plan = match (world.instance, status::placed_anew(world)) {
        (Some(vmi), Some(new)) => merge_patch(vmi, &new).into_iter().fold(plan, |plan, patch| plan.patch(vmi, patch)),
        _ => plan,
    };
    let is_filled = world.data.is_ready || world.planted == Some(Planted::UnfilledDisksStart);
    let unheld = (world.planted == Some(Planted::SpentStay)).then(|| without_snapshot(vm));
    let plan = match strategy::decide(unheld.as_ref().unwrap_or(vm), *instance) {
        Act::Nothing => plan,
        Act::Stop { grace_period_s } => match instance {
            Some(vmi) => plan.then(stop(vm, vmi, grace_period_s)),
            None => plan,
        },
        Act::Start { paused } if instance.is_none() && !world.stranger && is_filled => {
            let wait = start_failure::wait_left(vm, now);
            if wait > Duration::ZERO { plan.requeue_after(wait) } else { plan.then(start(world, paused)) }
        }
        Act::Start { .. } => plan,
        Act::SwitchOn => plan.then(switch_on(vm)),
    };
    // Behind all else: what is refused of them keeps nothing from being stopped.
    plan.then(drop_old_revisions(world)).then(data_volumes::make(vm, &world.data))
}

/// A machine as if no snapshot of it were taken, for a planted bug.
fn without_snapshot(vm: &VirtualMachine) -> VirtualMachine {
    let mut vm = vm.clone();
    if let Some(status) = &mut vm.status {
        status.snapshot_in_progress = None;
    }
    vm
}

/// Brings the status up to date, if it is not.
fn status_plan(world: &World<'_>, now: Time) -> Plan {
    let old = world.vm.status.clone().unwrap_or_default();
    let new = status::compute(world, now);
    match merge_patch(&old, &new) {
        Some(patch) => {
            let mut plan = Plan::none().patch_status(world.vm, json!({"status": patch}));
            if let Some(name) = &world.data.failed
                && old.printable_status != new.printable_status
                && new.printable_status == printable_status::DATA_VOLUME_ERROR
            {
                let message = format!("DataVolume {name} failed to import disk image");
                plan = plan.event(EventRecord::warning(world.vm, "FailedDataVolumeImport", message));
            }
            match status::patience(&old, &new) {
                Some(wait) => plan.patient(wait),
                None => plan,
            }
        }
        None => Plan::none(),
    }
}

fn start(world: &World<'_>, paused: bool) -> Plan {
    let vm = world.vm;
    // Without its size, the status says what is missing.
    let Ok((spec, annotations)) = world.size.as_ref().map_err(Clone::clone).and_then(|size| size.spec(vm)) else {
        return Plan::none();
    };
    let vmi = instance::build(vm, spec, annotations, paused);
    let message = format!("Started the virtual machine by creating the new virtual machine instance {}", vm.name());
    // A request that arrives late starts nothing of what the machine was before, and none starts what is being copied.
    let kept = instance::revision(vm);
    let create = kept.iter().fold(Plan::none(), |plan, revision| plan.create(revision));
    let create = create.create(&vmi).resting_on(&Premise::same_spec(vm));
    let create = match world.planted {
        Some(Planted::StartsWhatIsCopied) => create,
        _ => create.resting_on(&copies::at_rest(vm)),
    };
    create.told(EventRecord::normal(vm, "SuccessfulCreate", message))
}

/// What the running instance was started from gets an object of its own once the machine's spec is another one, or a snapshot is
/// taken: KubeVirt's controller of snapshots, if it is that, reads it there.
fn keep_start(world: &World<'_>) -> Plan {
    let held = world.vm.status.as_ref().is_some_and(|status| status.snapshot_in_progress.is_some());
    let Some(vmi) = world.instance.filter(|_| held || status::restart_required(world)) else { return Plan::none() };
    if started_revision(world).is_some() {
        return Plan::none();
    }
    instance::revision_of(world.vm, vmi).iter().fold(Plan::none(), |plan, revision| plan.create(revision))
}

/// The revision that the instance says it was started from.
fn started_revision<'a>(world: &World<'a>) -> Option<&'a ControllerRevision> {
    let name = &world.instance?.status.as_ref()?.virtual_machine_revision_name;
    world.revisions.iter().copied().find(|revision| revision.name() == name)
}

/// A halted machine that is asked to start paused: the request stays, and is carried out by the strategy Always. Whoever
/// uses the older field keeps it.
fn switch_on(vm: &VirtualMachine) -> Plan {
    let spec =
        if vm.spec.running.is_some() { json!({"running": true}) } else { json!({"runStrategy": run_strategy::ALWAYS}) };
    Plan::none().patch(vm, json!({"spec": spec}))
}

/// Ends an instance. One that is going already can only be made to go faster: its guest may not heed its power button.
fn stop(vm: &VirtualMachine, vmi: &VirtualMachineInstance, grace_period_s: Option<i64>) -> Plan {
    let (has_s, is_going) = (vmi.spec.termination_grace_period_seconds, vmi.is_deleting());
    // A custom resource has no grace period of its own in its deletion; the handler reads the spec's.
    let plan = match grace_period_s.filter(|wanted_s| has_s != Some(*wanted_s)) {
        Some(seconds) if !is_going || seconds < has_s.unwrap_or(DEFAULT_GRACE_S) => {
            Plan::none().patch(vmi, json!({"spec": {"terminationGracePeriodSeconds": seconds}}))
        }
        _ => Plan::none(),
    };
    if is_going {
        return plan;
    }
    let message = format!("Stopped the virtual machine by deleting the virtual machine instance {}", vmi.uid());
    plan.delete(vmi).told(EventRecord::normal(vm, "SuccessfulDelete", message))
}

/// Revisions of starts that the running instance was not started from, and of sizes that the machine does not have any
/// more, are of no use.
fn drop_old_revisions(world: &World<'_>) -> Plan {
    let started = world.instance.and_then(|vmi| vmi.status.as_ref());
    let started = started.map(|status| status.virtual_machine_revision_name.as_str()).filter(|name| !name.is_empty());
    // What the running instance was started with is what a snapshot of it needs, whatever the machine names by now.
    let running = world.instance.iter().flat_map(|vmi| STARTED_WITH_ANNOTATIONS.map(|(_, key)| vmi.annotation(key)));
    let running: Vec<&str> = running.flatten().collect();
    let sizes: Option<Vec<&str>> = world.size.as_ref().ok().map(|size| {
        size.references.iter().filter_map(|field| size::revision_name(field.as_ref())).chain(running).collect()
    });
    let old = world.revisions.iter().filter(|revision| {
        let name = revision.name();
        let useless = if name.starts_with("revision-start-vm-") {
            started.is_some_and(|started| started != name)
        } else {
            let is_size = revision.label("instancetype.kubevirt.io/object-kind").is_some();
            is_size && sizes.as_ref().is_some_and(|sizes| !sizes.contains(&name))
        };
        useless && !revision.is_deleting()
    });
    old.fold(Plan::none(), |plan, revision| plan.delete(*revision))
}

#[cfg(test)]
mod tests;
