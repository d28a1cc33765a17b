//! The VirtualMachineSnapshotContent controller: freezes the guest, has its volumes snapshotted, and thaws it.
//!
//! ```text
//!   source locked ─▶ freeze ─▶ VolumeSnapshots ─ all taken ─▶ thaw ─▶ creationTime ─ all ready ─▶ readyToUse
//!   deleted ─▶ thaw ─▶ VolumeSnapshots deleted ─ none is left ─▶ finalizer off
//!   source locked, runs ─▶ claims for copies ─▶ pod that waits ─▶ freeze, VolumeSnapshots, copies begun ─▶ as above
//!   source locked, off ─▶ claims for copies ─▶ pod that copies ─ succeeded ─▶ creationTime, readyToUse ─▶ pod deleted
//! ```
//!
//! The guest is frozen for no longer than the snapshot may take: the node thaws it by itself then. A freeze and the
//! VolumeSnapshots that follow are one plan, so that no VolumeSnapshot is asked for of a guest that could not be frozen.

use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write, controller_ref};
use carrack_types::kubevirt::snapshot::names::{
    CONTENT_FINALIZER, SNAPSHOT_SOURCE_NAME_LABEL, SNAPSHOT_SOURCE_NAMESPACE_LABEL,
};
use carrack_types::kubevirt::snapshot::{
    ContentVolumeStatus, Error, VirtualMachineSnapshotContentStatus, VolumeBackup, content_name, copying_pod_name,
};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
};
use carrack_types::resource::{Kind as _, Object as _, Resource};
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotSource, VolumeSnapshotSpec};
use carrack_types::well_known::kubevirt::SUBRESOURCES_GROUP;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as MetaTime};
use serde_json::json;

use super::classes::{self, Classes, Kinds};
use super::source::Source;
use super::{KINDS_AGAIN, due, sizes, snapshot_of};
use crate::controllers::copies::{self, Copy, Job, Place, Purpose, Running, Stage};
use crate::controllers::defined;
use crate::controllers::vmi::state;
use crate::controllers::{Config, Planted, vm};
use crate::copying::{COPY_VOLUMES, CopyVolumes};
use crate::diff::merge_patch;

/// How soon to look again at what should be there.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a guest stays frozen at most for a snapshot that may take as long as it takes: KubeVirt's word for never.
const NEVER: Duration = Duration::ZERO;

/// Has the volumes of contents snapshotted.
#[derive(Default)]
pub struct ContentController {
    kinds: Kinds,
    /// Image of the pods that copy disks.
    image: String,
    planted: Option<Planted>,
}

impl ContentController {
    /// With what the controllers are set to.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self { kinds: Kinds::default(), image: config.launcher_image.clone(), planted: config.planted }
    }
}

/// Index of contents that are not taken yet, by their machine's namespace and name.
const BY_OPEN: &str = "open";

fn by_open(content: &VirtualMachineSnapshotContent) -> Vec<String> {
    let vm = content.spec.source.virtual_machine.as_ref().and_then(|vm| vm.metadata.as_ref());
    let name = vm.and_then(|metadata| metadata.name.as_deref()).filter(|_| !content.is_created());
    name.map(|name| super::of_machine(content.namespace(), name)).into_iter().collect()
}

/// Contents of machines of this name that are not taken yet.
fn of_machine(view: &View<'_>, namespace: &str, name: &str) -> Vec<Key> {
    let value = super::of_machine(namespace, name);
    let open = view.cache::<VirtualMachineSnapshotContent>().by_index(BY_OPEN, &value);
    open.map(|content| Key::of(content.as_ref())).collect()
}

impl Controller for ContentController {
    fn name(&self) -> &'static str {
        "virtualmachinesnapshotcontent"
    }
    fn event_source(&self) -> &'static str {
        "snapshot-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineSnapshotContent>();
        setup.index::<VirtualMachineSnapshotContent>(BY_OPEN, by_open);
        setup.watch::<VirtualMachineSnapshot>(|snapshot, _| {
            vec![Key::new(snapshot.namespace(), content_name(snapshot.uid()))]
        });
        setup.watch::<VirtualMachine>(|vm, view| of_machine(view, vm.namespace(), vm.name()));
        setup.watch::<VirtualMachineInstance>(|vmi, view| of_machine(view, vmi.namespace(), vmi.name()));
        setup.watch_owned::<PersistentVolumeClaim, VirtualMachineSnapshotContent>();
        setup.watch_owned::<Pod, VirtualMachineSnapshotContent>();
        setup.watch_owned::<ControllerRevision, VirtualMachineSnapshotContent>();
        setup.read::<StorageClass>();
        defined::setup(setup);
    }

    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.kinds.refresh(view, setup, |setup| {
            setup.watch_owned::<VolumeSnapshot, VirtualMachineSnapshotContent>();
            setup.read::<VolumeSnapshotClass>();
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let content = view.get::<VirtualMachineSnapshotContent>(&key.namespace, &key.name);
        let Some(content) = content else { return Plan::none() };
        if Classes::new(view).is_unknown() || !classes::are_known(view) {
            return Plan::none().requeue_after(KINDS_AGAIN);
        }
        if content.is_deleting() {
            return clean_up(content, view);
        }
        // What it says is that its disks are copied, so the pod has done its work.
        if let Some(pod) = copying_pod(content, view).filter(|_| content.is_created()) {
            return copies::remove(pod);
        }
        match snapshot_of(content, view) {
            Some(snapshot) if snapshot.is_deleting() || snapshot.has_failed() => Plan::none(),
            Some(snapshot) => take(&World { content, snapshot, view, now, image: &self.image, planted: self.planted }),
            None => Plan::none(),
        }
    }

    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let content = view.get::<VirtualMachineSnapshotContent>(&key.namespace, &key.name);
        let Some(content) = content else { return Plan::none() };
        let message = refusal.error.message.as_str();
        match refusal.write {
            // A guest that cannot be thawed now is thawed by its node, or is gone; the content does not wait for that.
            Write::Call { sub: "unfreeze", .. } if content.is_deleting() => clean_up_thawed(content, view),
            // It was frozen for that.
            Write::Call { sub: COPY_VOLUMES, .. } => {
                let name = content.spec.virtual_machine_snapshot_name.as_deref().unwrap_or_default();
                thaw(content, name, view).then(say_error(content, message, now))
            }
            // Among them: that it has thawed itself, which the snapshot says of itself then.
            Write::Call { .. } | Write::Create { .. } => say_error(content, message, now),
            _ => Plan::none(),
        }
    }
}

/// What a decision about one content rests on.
struct World<'a> {
    content: &'a VirtualMachineSnapshotContent,
    snapshot: &'a VirtualMachineSnapshot,
    view: &'a View<'a>,
    now: Time,
    image: &'a str,
    planted: Option<Planted>,
}

fn subresources() -> Resource {
    Resource { group: SUBRESOURCES_GROUP.into(), version: "v1".into(), ..VirtualMachineInstance::resource() }
}

fn source<'a>(content: &VirtualMachineSnapshotContent, view: &'a View<'_>) -> Option<Source<'a>> {
    let metadata = content.spec.source.virtual_machine.as_ref()?.metadata.as_ref()?;
    let source = Source::find(content.namespace(), metadata.name.as_deref()?, view)?;
    (metadata.uid.as_deref() == Some(source.vm.uid())).then_some(source)
}

/// The VolumeSnapshots that a content should have, as they are.
fn children<'a>(
    content: &'a VirtualMachineSnapshotContent,
    view: &'a View<'_>,
) -> impl Iterator<Item = (&'a VolumeBackup, &'a str, Option<&'a VolumeSnapshot>)> {
    let by_storage = content.spec.volume_backups.iter().filter(|backup| !copies::is_copy(content.name(), backup));
    by_storage.filter_map(move |backup| {
        let name = backup.volume_snapshot_name.as_deref()?;
        Some((backup, name, classes::volume_snapshot(view, content.namespace(), name)))
    })
}

/// Whether a VolumeSnapshot is the content's own, and of the claim that it should be of.
fn is_own(content: &VirtualMachineSnapshotContent, backup: &VolumeBackup, snapshot: &VolumeSnapshot) -> bool {
    snapshot.controller_uid() == Some(content.uid())
        && snapshot.spec.source.persistent_volume_claim_name == backup.persistent_volume_claim.metadata.name
}

/// What the VolumeSnapshots say together.
#[derive(Debug, Default)]
struct Sum {
    statuses: Vec<ContentVolumeStatus>,
    missing: Vec<String>,
    /// Names of claims of copies that are not there.
    uncopied: Vec<String>,
    /// All is as it was at one time: what there is still to write does not change any more.
    taken: bool,
    created: bool,
    ready: bool,
    error: Option<String>,
}

fn sum(world: &World<'_>) -> Sum {
    let mut sum = Sum { taken: true, created: true, ready: true, ..Sum::default() };
    for (backup, name, found) in children(world.content, world.view) {
        let Some(found) = found else {
            sum.missing.push(name.to_owned());
            continue;
        };
        if !is_own(world.content, backup, found) {
            let resource = VolumeSnapshot::resource().qualified();
            sum.error = Some(format!("{resource} \"{name}\" already exists, and belongs to somebody else"));
            sum.created = false;
            sum.ready = false;
            continue;
        }
        let is = found.status.clone().unwrap_or_default();
        let error = is.error.map(|error| Error { time: error.time, message: error.message });
        sum.created &= is.creation_time.is_some();
        sum.ready &= is.ready_to_use == Some(true);
        if let Some(message) = error.as_ref().and_then(|error| error.message.as_deref())
            && sum.error.is_none()
        {
            sum.error = Some(format!("VolumeSnapshot {name} error: {message}"));
        }
        sum.statuses.push(ContentVolumeStatus {
            volume_snapshot_name: name.to_owned(),
            creation_time: is.creation_time,
            ready_to_use: is.ready_to_use,
            error,
        });
    }
    if !sum.missing.is_empty() {
        sum.created = false;
        sum.ready = false;
    }
    sum.taken = sum.created;
    add_copies(world, &mut sum);
    sum
}

/// The pod that copies, or waits for copies, or is to: as it is there, or else as the machine is.
fn copying_job<'a>(world: &World<'a>, copies: &[Copy<'_>]) -> Option<Job<'a>> {
    let World { content, view, .. } = *world;
    let source = source(content, view);
    let purpose = match copying_pod(content, view) {
        // Of an instance that is not there any more.
        Some(pod) if !copies::instance(pod).is_empty() => {
            Purpose::Receive(source.and_then(|source| source.running()).unwrap_or(Running { uid: "", node: "" }))
        }
        Some(_) => Purpose::Keep,
        None => source.and_then(|source| source.running()).map_or(Purpose::Keep, Purpose::Receive),
    };
    copies::job(content, copies, purpose)
}

/// Whether storage has taken some of the volumes.
fn is_partly_taken(world: &World<'_>) -> bool {
    children(world.content, world.view).any(|(_, _, found)| found.is_some())
}

/// Deletes what storage has taken at a time which is not that of the other volumes: all begin anew.
fn drop_taken(world: &World<'_>) -> Plan {
    let World { content, view, .. } = *world;
    let own = children(content, view).filter_map(|(_, _, found)| found);
    let own = own.filter(|found| found.controller_uid() == Some(content.uid()) && !found.is_deleting());
    own.fold(Plan::none(), |plan, found| {
        let message = format!("Deleted VolumeSnapshot {}, as not all volumes could be taken at its time", found.name());
        plan.delete(found).told(EventRecord::warning(content, "VolumeSnapshotOutdated", message))
    })
}

/// Whether guests are not frozen: a bug that the simulator plants.
fn is_planted(world: &World<'_>) -> bool {
    world.planted == Some(Planted::UnfrozenDisks)
}

/// What the content remembers of a copy.
fn remembered<'a>(content: &'a VirtualMachineSnapshotContent, copy: &str) -> Option<&'a ContentVolumeStatus> {
    content.status.as_ref()?.volume_snapshot_status.iter().find(|status| status.volume_snapshot_name == copy)
}

/// When a running machine began to copy a disk, as the content remembers it until all is there. One that was copied while
/// the machine was off has a time only when it is ready.
fn begun_at(content: &VirtualMachineSnapshotContent, copy: &str) -> Option<MetaTime> {
    remembered(content, copy).filter(|status| status.ready_to_use != Some(true))?.creation_time.clone()
}

/// Whether a running machine has begun to copy all that it is to copy, and the content remembers it.
fn are_begun(content: &VirtualMachineSnapshotContent, copies: &[Copy<'_>]) -> bool {
    copies.iter().all(|copy| begun_at(content, copy.name).is_some())
}

/// What the copies are, besides. They are there when their pod has succeeded; the content remembers that.
fn add_copies(world: &World<'_>, sum: &mut Sum) {
    let World { content, view, .. } = world;
    let copies = copies::of(content, view);
    if copies.is_empty() {
        return;
    }
    let stage = copying_job(world, &copies).map(|job| job.stage(*content, view));
    // That a machine has copied its disks says nothing of the time at which storage took the others.
    let is_online = copying_pod(content, view).is_some_and(|pod| !copies::instance(pod).is_empty());
    let is_alone = children(content, view).next().is_none();
    let done = content.is_created()
        || matches!(stage, Some(Stage::Done)) && (!is_online || is_alone || are_begun(content, &copies))
        || world.planted == Some(Planted::CopiesUnread) && matches!(stage, Some(Stage::Running(..)));
    // What a pod waited for that is gone was begun in vain, and is begun anew; unless storage has taken other volumes at
    // that time.
    let lasts = done || matches!(stage, None | Some(Stage::Running(..))) || is_partly_taken(world);
    if let Some(Stage::Running(_, trouble)) = stage {
        sum.error = sum.error.take().or(trouble);
    }
    let by_storage = sum.created;
    for copy in copies {
        let own = copy.is_own(content);
        let there = own && done;
        let begun = begun_at(content, copy.name).filter(|_| own && lasts);
        sum.taken &= there || begun.is_some();
        match copy.claim {
            None => sum.uncopied.push(copy.name.to_owned()),
            Some(_) if own => sum.statuses.push(ContentVolumeStatus {
                volume_snapshot_name: copy.name.to_owned(),
                ready_to_use: Some(there && (by_storage || begun.is_none())),
                creation_time: begun.or_else(|| {
                    let said = remembered(content, copy.name).and_then(|status| status.creation_time.clone());
                    there.then(|| said.unwrap_or_else(|| taken_at(world)))
                }),
                error: None,
            }),
            Some(_) => {
                let resource = PersistentVolumeClaim::resource().qualified();
                sum.error = Some(format!("{resource} \"{}\" already exists, and belongs to somebody else", copy.name));
            }
        }
        sum.created &= there;
        sum.ready &= there;
    }
}

/// Whether what is copied does not change any more, and all else is taken: the snapshot's deadline is met, however long the
/// copying takes. Of a running machine, that is so once the copy was begun; of one that is off, once the pod runs that keeps
/// it off.
pub(super) fn is_cut(content: &VirtualMachineSnapshotContent, view: &View<'_>) -> bool {
    let Some(pod) = copying_pod(content, view).filter(|pod| copies::is_at_work(pod)) else { return false };
    let is_dated = |name: &str| remembered(content, name).is_some_and(|status| status.creation_time.is_some());
    let is_online = !copies::instance(pod).is_empty();
    children(content, view).all(|(_, name, _)| is_dated(name))
        && (!is_online || copies::of(content, view).iter().all(|copy| is_dated(copy.name)))
}

/// When all was taken: as it was said, or now.
fn taken_at(world: &World<'_>) -> MetaTime {
    let said = world.content.status.as_ref().and_then(|status| status.creation_time.clone());
    said.unwrap_or_else(|| world.now.meta())
}

/// The pod that copies a content's disks, if it is there.
fn copying_pod<'a>(content: &VirtualMachineSnapshotContent, view: &'a View<'_>) -> Option<&'a Pod> {
    copies::own(content, &copying_pod_name(machine_uid(content)?), view)
}

fn machine_uid(content: &VirtualMachineSnapshotContent) -> Option<&str> {
    content.spec.source.virtual_machine.as_ref()?.metadata.as_ref()?.uid.as_deref()
}

fn take(world: &World<'_>) -> Plan {
    let World { content, snapshot, view, .. } = world;
    let mut sum = sum(world);
    if !content.is_created() {
        match sizes::keep(content, source(content, view).as_ref(), view) {
            Ok(plan) if plan.is_none() => {}
            Ok(plan) => return resting(world, plan),
            Err(why) => {
                (sum.error, sum.taken, sum.created, sum.ready) = (Some(why), false, false, false);
                return report(world, sum).requeue_after(AGAIN);
            }
        }
    }
    let waits = !sum.created && !copies::of(content, view).is_empty();
    if sum.missing.is_empty() && !waits || content.is_created() {
        let mut proof = Plan::none();
        if !sum.uncopied.is_empty() {
            for name in &sum.uncopied {
                let key = Key::new(content.namespace(), name.clone());
                proof = proof.confirm_absent(&PersistentVolumeClaim::resource(), key, "");
            }
            sum.error = Some(format!("copies ({}) missing", sum.uncopied.join(",")));
        }
        if !sum.missing.is_empty() {
            // They were there once: that they are not any more must be so.
            for name in &sum.missing {
                let key = Key::new(content.namespace(), name.clone());
                proof = proof.confirm_absent(&VolumeSnapshot::resource(), key, "");
            }
            sum.error = Some(format!("VolumeSnapshots ({}) missing", sum.missing.join(",")));
        }
        return proof.then(report(world, sum));
    }
    let Some(source) = source(content, view).filter(|source| source.is_locked_by(snapshot.name())) else {
        // The snapshot's controller locks it; or it is gone, and the snapshot's time runs out.
        return report(world, sum);
    };
    // First what takes its time. Nothing is taken before all can be.
    let next = match copy(world, &source, &mut sum) {
        Ok(next) => next,
        Err(why) => {
            sum.error = Some(why);
            return report(world, sum).requeue_after(AGAIN);
        }
    };
    let (mut plan, begins) = match next {
        Next::Do(plan) if plan.is_none() => return report(world, sum),
        Next::Do(plan) => return resting(world, plan),
        Next::Wait => return report(world, sum),
        Next::Pause(left) => return report(world, sum).requeue_after(left),
        Next::Take(begins) => (Plan::none(), begins),
    };
    let first = !is_partly_taken(world);
    if source.has_agent() && !source.is_paused() && (first || !source.is_frozen()) && !is_planted(world) {
        if !first {
            // The guest has gone on since storage took some: all would not be of one time.
            let dropped = drop_taken(world);
            return if dropped.is_none() { report(world, sum) } else { dropped };
        }
        let key = Key::new(content.namespace(), source.vm.name());
        if source.is_frozen() {
            // By somebody else, or for a snapshot before, and it may be thawed by now.
            plan = plan.call(&subresources(), key.clone(), "unfreeze", json!({}));
        }
        let left = due(snapshot).map_or(NEVER, |due| due.since(world.now).max(Duration::from_secs(1)));
        plan = plan.call(&subresources(), key, "freeze", json!({"unfreezeTimeout": format!("{}s", left.as_secs())}));
    }
    let classes = Classes::new(view);
    for (backup, name, found) in children(content, view) {
        if found.is_some() {
            continue;
        }
        match volume_snapshot(world, backup, name, &classes) {
            Ok(child) => {
                let message = format!("Successfully created VolumeSnapshot {name}");
                plan =
                    plan.create(&child).told(EventRecord::normal(*content, "SuccessfulVolumeSnapshotCreate", message));
            }
            Err(why) => {
                sum.error = Some(why);
                return report(world, sum).requeue_after(AGAIN);
            }
        }
    }
    if let Some(begins) = begins {
        let key = Key::new(content.namespace(), source.vm.name());
        plan = plan.call(&subresources(), key, COPY_VOLUMES, json!(begins));
        for status in &mut sum.statuses {
            let is_copy = !children(content, view).any(|(_, name, _)| name == status.volume_snapshot_name);
            if is_copy {
                status.creation_time = Some(world.now.meta());
            }
        }
        sum.taken = sum.missing.is_empty() && sum.statuses.iter().all(|status| status.creation_time.is_some());
        sum.error = None;
        return resting(world, plan.then(report(world, sum)));
    }
    if plan.is_none() {
        return report(world, sum);
    }
    resting(world, plan)
}

/// A request that arrives late finds the content there, or makes nothing.
fn resting(world: &World<'_>, plan: Plan) -> Plan {
    let World { content, snapshot, .. } = world;
    plan.resting_on(&Premise::present(*content)).resting_on(&Premise::present(*snapshot))
}

/// What comes next for the disks that storage cannot snapshot.
enum Next {
    /// This.
    Do(Plan),
    /// Nothing, for now.
    Wait,
    /// Nothing, for so long.
    Pause(Duration),
    /// All that there is besides is taken, and the running machine begins to copy, if there is something to copy.
    Take(Option<CopyVolumes>),
}

fn copy(world: &World<'_>, source: &Source<'_>, sum: &mut Sum) -> Result<Next, String> {
    let World { content, view, .. } = world;
    let copies = copies::of(content, view);
    if copies.is_empty() {
        return Ok(Next::Take(None));
    }
    let mut plan = Plan::none();
    for copy in &copies {
        if copy.claim.is_some() {
            // Somebody else's was told of.
            if !copy.is_own(content) {
                return Ok(Next::Wait);
            }
            continue;
        }
        let name = copy.backup.persistent_volume_claim.metadata.name.as_deref().unwrap_or_default();
        let claim =
            classes::claim(view, content.namespace(), name).ok_or_else(|| format!("claim {name} is not there"))?;
        let class = copies::class_for(claim, view)
            .ok_or_else(|| format!("no StorageClass makes a volume for the copy of claim {name}"))?;
        let message = format!("Successfully created PersistentVolumeClaim {} for a copy of {name}", copy.name);
        let event = EventRecord::normal(*content, "SuccessfulCopyClaimCreate", message);
        plan = plan.create(&copies::claim(content, copy, claim, class)).told(event);
    }
    if !plan.is_none() {
        return Ok(Next::Do(plan));
    }
    let Some(job) = copying_job(world, &copies) else { return Ok(Next::Wait) };
    let receives = matches!(job.purpose, Purpose::Receive(_));
    Ok(match job.stage(*content, view) {
        Stage::Absent if is_partly_taken(world) => {
            let dropped = drop_taken(world);
            if dropped.is_none() {
                return Ok(Next::Wait);
            }
            Next::Do(copies::confirm_none(*content, &job.name).then(dropped))
        }
        Stage::Absent => {
            let (proof, premise) = match (source.vmi, receives) {
                (Some(vmi), true) => (Plan::none(), Premise::present(vmi)),
                (Some(_), false) => return Err("the machine neither runs nor is it off".to_owned()),
                // A pod that copies would keep it off until all is copied.
                (None, _) if vm::is_to_start(source.vm) => {
                    return Err("the machine is about to start, and is copied when it runs".to_owned());
                }
                (None, _) if world.planted == Some(Planted::CopiesWhatRuns) => {
                    (Plan::none(), Premise::present(source.vm))
                }
                (None, _) => copies::off(source.vm),
            };
            if copies.iter().any(|copy| begun_at(content, copy.name).is_some()) {
                // First that is forgotten.
                return Ok(Next::Wait);
            }
            let message = format!("Successfully created Pod {} that copies disks", job.name);
            let event = EventRecord::normal(*content, "SuccessfulCopyingPodCreate", message);
            let create = Plan::none().create(&job.pod(*content, world.image)).resting_on(&premise);
            Next::Do(proof.then(create.resting_on(&Premise::present(source.vm))).told(event))
        }
        Stage::Foreign => return Err(format!("pod {} is there, and copies for somebody else", job.name)),
        Stage::Useless(pod) => {
            let why = copies::trouble(pod).unwrap_or_else(|| format!("copying pod {} came to nothing", job.name));
            // As long as it is there, nothing starts.
            let blocks = match job.purpose {
                Purpose::Receive(running) => copies::instance(pod) != running.uid,
                Purpose::Keep | Purpose::Restore => vm::is_to_start(source.vm),
            };
            let left = copies::pause_left(pod, *content, world.now);
            if !blocks && !left.is_zero() {
                sum.error = Some(why);
                return Ok(Next::Pause(left));
            }
            let remove = copies::remove(pod);
            if remove.is_none() {
                sum.error = Some(why);
                return Ok(Next::Wait);
            }
            Next::Do(remove.event(EventRecord::warning(*content, "CopyingFailed", why)))
        }
        Stage::Running(pod, _) if receives && !are_begun(content, &copies) && !is_partly_taken(world) => {
            let Some(container) = copies::container_id(pod) else { return Ok(Next::Wait) };
            // The launcher calls what firmware keeps as its pod does.
            let name = |copy: &Copy<'_>| match copies::place(content, copy.backup) {
                Place::State => state::VOLUME.to_owned(),
                Place::Disk | Place::Device => copy.backup.volume_name.clone(),
            };
            let volumes = copies.iter().map(name).collect();
            Next::Take(Some(CopyVolumes { pod: pod.uid().to_owned(), container: container.to_owned(), volumes }))
        }
        Stage::Running(..) | Stage::Done if receives => {
            if are_begun(content, &copies) && sum.missing.is_empty() {
                return Ok(Next::Wait);
            }
            // What storage took, or still has to, is of another time than the copies, or not known to be of the same.
            let Some(pod) = copying_pod(content, view) else { return Ok(Next::Wait) };
            let left = copies::pause(pod, *content, world.now);
            if !left.is_zero() {
                let said = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.clone());
                sum.error = Some(said.unwrap_or_else(|| "not all disks could be taken at one time".to_owned()));
                // Whatever went wrong: its guest does not wait for that.
                if source.is_frozen() {
                    return Ok(Next::Do(thaw(content, world.snapshot.name(), view).requeue_after(left)));
                }
                return Ok(Next::Pause(left));
            }
            let remove = copies::remove(pod);
            if remove.is_none() {
                return Ok(Next::Wait);
            }
            Next::Do(thaw(content, world.snapshot.name(), view).then(remove))
        }
        // The guest is off: what storage takes itself is taken.
        Stage::Running(..) | Stage::Done if !sum.missing.is_empty() => Next::Take(None),
        Stage::Running(..) | Stage::Done => Next::Wait,
    })
}

/// The VolumeSnapshot of a volume.
fn volume_snapshot(
    world: &World<'_>,
    backup: &VolumeBackup,
    name: &str,
    classes: &Classes<'_, '_>,
) -> Result<VolumeSnapshot, String> {
    let claim = &backup.persistent_volume_claim;
    let claim_name = claim.metadata.name.clone().unwrap_or_default();
    let storage_class = claim.spec.storage_class_name.as_deref().ok_or_else(|| {
        format!("{}/{claim_name} VolumeSnapshot requested but no storage class", world.content.namespace())
    })?;
    let class = classes.of(storage_class).map_err(|ambiguous| ambiguous.0)?;
    let class = class.ok_or_else(|| format!("no VolumeSnapshotClass for {storage_class}"))?;
    let of = world.content.spec.source.virtual_machine.as_ref().and_then(|vm| vm.metadata.clone()).unwrap_or_default();
    let labels = [
        (SNAPSHOT_SOURCE_NAME_LABEL, crate::identity::label_value(of.name.as_deref().unwrap_or_default())),
        (SNAPSHOT_SOURCE_NAMESPACE_LABEL, world.content.namespace().to_owned()),
    ];
    Ok(VolumeSnapshot {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: world.content.metadata.namespace.clone(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: Some(vec![controller_ref(world.content)]),
            ..ObjectMeta::default()
        },
        spec: VolumeSnapshotSpec {
            source: VolumeSnapshotSource {
                persistent_volume_claim_name: Some(claim_name),
                volume_snapshot_content_name: None,
            },
            volume_snapshot_class_name: Some(class),
        },
        status: None,
    })
}

/// Brings the status up to date. When all is taken for the first time, the guest is thawed before that is said.
fn report(world: &World<'_>, sum: Sum) -> Plan {
    let World { content, snapshot, view, now, .. } = world;
    let old = content.status.clone().unwrap_or_default();
    let mut new = VirtualMachineSnapshotContentStatus {
        ready_to_use: Some(sum.ready),
        volume_snapshot_status: sum.statuses,
        ..old.clone()
    };
    let mut plan = Plan::none();
    let said = &old.volume_snapshot_status;
    let was_taken =
        said.len() == content.spec.volume_backups.len() && said.iter().all(|one| one.creation_time.is_some());
    if sum.taken && (!was_taken || sum.created && new.creation_time.is_none() && copies::of(content, view).is_empty()) {
        plan = thaw(content, snapshot.name(), view);
    }
    if sum.created && new.creation_time.is_none() {
        let begun = copies::of(content, view).iter().find_map(|copy| begun_at(content, copy.name));
        new.creation_time = Some(begun.unwrap_or_else(|| now.meta()));
    }
    new.error = match sum.error {
        Some(message) if !sum.ready => {
            let same = old.error.clone().filter(|error| error.message.as_ref() == Some(&message));
            same.or_else(|| Some(Error { time: Some(now.meta()), message: Some(message) }))
        }
        _ => None,
    };
    if !sum.missing.is_empty() && old.error != new.error && content.is_created() {
        for name in &sum.missing {
            let message = format!("VolumeSnapshot {name} no longer exists");
            plan = plan.event(EventRecord::warning(*content, "VolumeSnapshotMissing", message));
        }
    }
    match merge_patch(&old, &new) {
        Some(patch) => plan.patch_status(*content, json!({"status": patch})),
        None => Plan::none(),
    }
}

/// Thaws the guest, if it can have been frozen for the content.
fn thaw(content: &VirtualMachineSnapshotContent, snapshot: &str, view: &View<'_>) -> Plan {
    let source = source(content, view).filter(|source| source.is_locked_by(snapshot));
    match source.filter(|source| source.has_agent() && !source.is_paused()) {
        Some(source) if !content.spec.volume_backups.is_empty() => {
            let key = Key::new(content.namespace(), source.vm.name());
            Plan::none().call(&subresources(), key, "unfreeze", json!({}))
        }
        _ => Plan::none(),
    }
}

/// Says why it does not go on.
fn say_error(content: &VirtualMachineSnapshotContent, message: &str, now: Time) -> Plan {
    let said = content.status.as_ref().and_then(|status| status.error.as_ref());
    if said.and_then(|error| error.message.as_deref()) == Some(message) {
        return Plan::none();
    }
    let error = json!({"message": message, "time": now.meta()});
    Plan::none().patch_status(content, json!({"status": {"readyToUse": false, "error": error}}))
}

/// It is to go: first the guest is thawed, if it was not yet.
fn clean_up(content: &VirtualMachineSnapshotContent, view: &View<'_>) -> Plan {
    if !content.has_finalizer(CONTENT_FINALIZER) {
        return Plan::none();
    }
    let name = content.spec.virtual_machine_snapshot_name.as_deref().unwrap_or_default();
    let thaw = if content.is_created() { Plan::none() } else { thaw(content, name, view) };
    thaw.then(clean_up_thawed(content, view))
}

/// Its VolumeSnapshots and copies go, and when none is left, surely, it goes itself.
fn clean_up_thawed(content: &VirtualMachineSnapshotContent, view: &View<'_>) -> Plan {
    let resource = VolumeSnapshot::resource();
    let mut plan = Plan::none();
    let mut left = false;
    let copies = copies::of(content, view);
    if let Some(uid) = machine_uid(content).filter(|_| !copies.is_empty()) {
        match copying_pod(content, view) {
            Some(pod) => {
                left = true;
                plan = plan.then(copies::remove(pod));
            }
            None => plan = plan.then(copies::confirm_none(content, &copying_pod_name(uid))),
        }
    }
    for copy in copies {
        match copy.claim {
            Some(claim) if copy.is_child(content) => {
                left = true;
                if !claim.is_deleting() {
                    plan = plan.delete(claim);
                }
            }
            Some(_) => {}
            None => {
                let key = Key::new(content.namespace(), copy.name);
                plan = plan.confirm_absent(&PersistentVolumeClaim::resource(), key, "");
            }
        }
    }
    for (_, name, found) in children(content, view) {
        match found {
            // By its owner alone: one of another claim is its child, too.
            Some(child) if child.controller_uid() == Some(content.uid()) => {
                left = true;
                if !child.is_deleting() {
                    plan = plan.delete(child);
                }
            }
            Some(_) => {}
            None => plan = plan.confirm_absent(&resource, Key::new(content.namespace(), name), ""),
        }
    }
    if left {
        // What is absent is asked for when it decides something.
        plan.writes.retain(|write| !matches!(write, Write::Confirm { .. }));
        return plan;
    }
    plan.without_finalizer(content, CONTENT_FINALIZER)
}
